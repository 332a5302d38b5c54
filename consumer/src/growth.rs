//! Notices that the buffer has grown, or routes other streams. It only reads, and never ends the consumer: a look that fails is repeated.

use millpond_manifest::KnownBuffer;
use millpond_runtime::{Environment, Looks};
use millpond_storage::Store;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::{info, warn};

/// Looks at the buffer object from time to time.
pub(crate) struct Growth {
    pub(crate) store: Store,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) looks: Looks,
    /// The buffer as last seen.
    pub(crate) known: KnownBuffer,
    /// Asks for a look at once.
    pub(crate) wanted: Arc<Notify>,
}

impl Growth {
    /// Waits until the buffer has grown or routes other streams. Returns the new shards. A caller may drop the wait and begin another.
    pub(crate) async fn change(&mut self) -> Range<u32> {
        loop {
            let due = tokio::select! {
                biased;
                () = self.wanted.notified() => false,
                () = self.looks.due(&*self.environment) => true,
            };
            let routed = self.known.buffer().routed.clone();
            let looked = self.known.look(&self.store).await;
            if due {
                self.looks.looked();
            }
            match looked {
                Ok(new) if new.is_empty() && self.known.buffer().routed == routed => {}
                Ok(new) if new.is_empty() => {
                    info!("the streams whose rows are routed by key have changed");
                    return new;
                }
                Ok(new) => {
                    info!(before = new.start, now = new.end, "the buffer has grown");
                    return new;
                }
                Err(reason) if due => warn!(
                    "cannot look for new shards: {reason}: this process goes on with {}, and looks again",
                    self.known.buffer().shards
                ),
                // The next look that is due reports the reason.
                Err(_) => {}
            }
        }
    }
}
