//! A panic in any task on the thread of a run is a violation of that run.

use super::record::{Oracle, Record};
use std::cell::RefCell;
use std::panic;
use std::sync::{Arc, Once, Weak};

thread_local! {
    static LISTENS: RefCell<Weak<Record>> = const { RefCell::new(Weak::new()) };
}

/// Listens for panics until dropped.
pub(crate) struct Listening;

pub(crate) fn listen(record: &Arc<Record>) -> Listening {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| match LISTENS.with_borrow(Weak::upgrade) {
            Some(record) => record.violated(Oracle::Panic, info.to_string()),
            None => others(info),
        }));
    });
    LISTENS.set(Arc::downgrade(record));
    Listening
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENS.set(Weak::new());
    }
}
