//! Notices that the buffer has grown. It only reads, and never ends the consumer: a look that fails is repeated.

use millpond_manifest::cas::{self, Reread, Snapshot};
use millpond_manifest::{Buffer, layout};
use millpond_runtime::Environment;
use millpond_storage::Store;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// Looks at the buffer object from time to time.
pub(crate) struct Growth {
    pub(crate) store: Store,
    pub(crate) environment: Arc<dyn Environment>,
    /// The time between two looks. Each comes up to a quarter of it early.
    pub(crate) interval: Duration,
    /// The buffer as last seen.
    pub(crate) known: Snapshot<Buffer>,
    /// Asks for a look at once.
    pub(crate) wanted: Arc<Notify>,
    /// The time of the next look.
    pub(crate) due_at: Option<Instant>,
}

impl Growth {
    /// Waits until the buffer has grown. Returns the new shards. A caller may drop the wait and begin another.
    pub(crate) async fn new_shards(&mut self) -> Range<u32> {
        loop {
            let early = self.interval.mul_f64(self.environment.fraction() / 4.0);
            // It stays when the caller drops the wait, or a caller with much to do would never look.
            let due_at = *self
                .due_at
                .get_or_insert_with(|| Instant::now() + self.interval - early);
            let due = tokio::select! {
                biased;
                () = self.wanted.notified() => false,
                () = sleep_until(due_at) => true,
            };
            let before = self.known.state.shards;
            let looked = self.look().await;
            if due {
                self.due_at = None;
            }
            match looked {
                Err(reason) if due => warn!(
                    "cannot look for new shards: {reason}: this process goes on with {before}, and looks again"
                ),
                // The next look that is due reports the reason.
                Ok(()) | Err(_) => {}
            }
            let now = self.known.state.shards;
            if now > before {
                info!(before, now, "the buffer has grown");
                return before..now;
            }
        }
    }

    async fn look(&mut self) -> Result<(), String> {
        let found = cas::read_if_changed::<Buffer>(&self.store, layout::BUFFER, &self.known.version).await;
        match found.map_err(|error| error.to_string())? {
            Reread::Unchanged => Ok(()),
            Reread::Absent => Err(format!("the object {} is gone", layout::BUFFER)),
            Reread::Changed(found) if found.state.id != self.known.state.id => Err(format!(
                "{} belongs to another buffer, {}",
                layout::BUFFER,
                found.state.id
            )),
            Reread::Changed(found) if found.state.shards < self.known.state.shards => {
                let (known, shards) = (self.known.state.shards, found.state.shards);
                Err(format!(
                    "{} shrank from {known} shards to {shards}",
                    layout::BUFFER
                ))
            }
            Reread::Changed(found) => {
                self.known = found;
                Ok(())
            }
        }
    }
}
