//! Shards that cannot go on while others can. The process leaves such a shard alone for a while and then begins it again, so that one
//! damaged object does not stop the whole buffer.

use crate::error::ConsumeError;
use crate::shard::Shard;
use crate::terms::Ended;
use millpond_manifest::layout;
use millpond_runtime::{Level, Readiness};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::sleep;

/// The time after which a shard is begun again.
const REST: Duration = Duration::from_secs(60);

/// A shard that has gone on for so long is well again: each failure comes sooner.
const TRIAL: Duration = Duration::from_secs(90);

/// A shard that is to be begun again.
pub(crate) struct Rested {
    shard: Shard,
    /// This process has seen the cursor, so a missing one was removed.
    known: bool,
    /// The reason why it did not go on.
    reason: String,
}

impl Shard {
    /// Shows why the shard does not go on, and returns when it is time to begin it again.
    pub(crate) fn rest(self, known: bool, why: &ConsumeError) -> impl Future<Output = Rested> + use<> {
        let reason = format!("{why}. The other shards go on");
        async move {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => {}
                () = sleep(REST) => {}
                never = show(&self.claim.readiness, self.claim.shard, &reason) => match never {},
            }
            Rested {
                shard: self,
                known,
                reason,
            }
        }
    }
}

impl Rested {
    /// Begins the shard again. The reason is shown until it has gone on for a while.
    pub(crate) async fn run_again(self) -> Ended {
        let Rested {
            shard: driver,
            known,
            reason,
        } = self;
        let (readiness, shard) = (driver.claim.readiness.clone(), driver.claim.shard);
        let trial = async {
            tokio::select! {
                () = sleep(TRIAL) => {}
                never = show(&readiness, shard, &reason) => match never {},
            }
            readiness.goes_on(&what(shard));
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            ended = driver.run_knowing(known) => ended,
            never = trial => match never {},
        }
    }
}

fn what(shard: u32) -> String {
    format!("shard {shard:04}")
}

/// Shows the reason again and again, because the end of another shard's term drops all waits.
async fn show(readiness: &Readiness, shard: u32, reason: &str) -> Infallible {
    loop {
        readiness.waits(&what(shard), reason, Level::Error);
        sleep(Duration::from_secs(1)).await;
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
            | ConsumeError::Refused { .. }
            | ConsumeError::UniqueLost { .. } => true,
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
            | ConsumeError::UniqueShards { .. }
            | ConsumeError::Forbidden(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_keys_are_of_one_shard_and_a_full_table_is_of_all() {
        let stream = "events.signup".to_owned();
        let lost = ConsumeError::UniqueLost {
            consumer: "default".into(),
            shard: 0,
            stream: stream.clone(),
            reason: "a snapshot is not in the store".into(),
            next: 7,
        };
        assert!(lost.is_of_one_shard(1));
        let full = ConsumeError::UniqueMemory {
            stream,
            keys: 3,
            bytes: 120,
        };
        assert!(!full.is_of_one_shard(1));
    }
}
