//! Shards that cannot go on while others can. The process leaves such a shard alone for a while and then begins it again, so that one
//! damaged object does not stop the whole buffer.

use crate::error::ConsumeError;
use crate::shard::Shard;
use millpond_manifest::layout;
use millpond_runtime::Level;
use std::time::Duration;
use tokio::time::sleep;

/// The time after which a shard is begun again.
const REST: Duration = Duration::from_secs(60);

impl Shard {
    /// Shows why the shard does not go on, and returns its number when it is time to begin it again.
    pub(crate) async fn rest(self, why: ConsumeError) -> u32 {
        let shard = self.claim.shard;
        let what = format!("shard {shard:04}");
        let reason = format!("{why}. The other shards go on");
        let mut left = REST;
        while !left.is_zero() {
            // Again and again: the end of another shard's term drops all waits.
            self.claim.readiness.waits(&what, &reason, Level::Error);
            let pause = left.min(Duration::from_secs(1));
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                () = sleep(pause) => left -= pause,
            }
        }
        self.claim.readiness.goes_on(&what);
        shard
    }
}

impl ConsumeError {
    /// Returns true if the reason lies in the objects of one shard of the buffer, and an attempt to go on with the others harms nothing.
    /// Settings, the sink and an operator's word concern all shards.
    pub(crate) fn is_of_one_shard(&self, shard: u32) -> bool {
        match self {
            ConsumeError::Format { key, .. } => key.starts_with(&layout::shard(shard)),
            ConsumeError::Lost { .. }
            | ConsumeError::Behind { .. }
            | ConsumeError::Gone { .. }
            | ConsumeError::OtherLog { .. }
            | ConsumeError::Trimmed { .. }
            | ConsumeError::WrongPage { .. }
            | ConsumeError::Refused { .. } => true,
            ConsumeError::Name(_)
            | ConsumeError::Setting(_)
            | ConsumeError::OtherBuffer { .. }
            | ConsumeError::PinnedSink { .. }
            | ConsumeError::SharedTables { .. }
            | ConsumeError::TooManyRefused { .. }
            | ConsumeError::Missing { .. }
            | ConsumeError::Removed { .. }
            | ConsumeError::BufferGone { .. }
            | ConsumeError::CannotCompare { .. }
            | ConsumeError::Repair { .. }
            | ConsumeError::UniqueMemory { .. }
            | ConsumeError::UniqueLost { .. }
            | ConsumeError::UniqueShards { .. }
            | ConsumeError::Forbidden(_) => false,
        }
    }
}
