//! The producers that the port for other producers serves.

use std::sync::Arc;

use millpond_runtime::Budget;

use super::Producers;
use crate::Producer;

/// The producers of a process that may lead: one, and while it moves to another shard two. Cheap to clone.
#[derive(Clone)]
pub struct Serving(Arc<dyn Fn() -> Vec<Producer> + Send + Sync>);

impl Serving {
    /// All of them, the newest first.
    pub fn all(&self) -> Vec<Producer> {
        self.0()
    }

    /// The budget that they share.
    pub fn budget(&self) -> Budget {
        self.newest().budget().clone()
    }

    /// The one whose shard new requests go to.
    pub fn newest(&self) -> Producer {
        self.all().swap_remove(0)
    }
}

impl From<Producer> for Serving {
    fn from(producer: Producer) -> Serving {
        Serving(Arc::new(move || vec![producer.clone()]))
    }
}

impl From<Producers> for Serving {
    fn from(producers: Producers) -> Serving {
        Serving(Arc::new(move || {
            let state = producers.state();
            let own = std::iter::once(&state.own.producer);
            let leaving = state.leaving.iter().rev().map(|leaving| &leaving.producer);
            own.chain(leaving).cloned().collect()
        }))
    }
}
