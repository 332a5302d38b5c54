//! The terms of this process as the owner of a shard's cursor: it waits until it can take the cursor, serves a term
//! ([`crate::tenure`]), and waits again.

use crate::error::ConsumeError;
use crate::owner::{Attempt, Beginning, Owned};
use crate::repair::Origin;
use crate::shard::{Admitted, RELEASE_PATIENCE, Shard};
use crate::tenure::{Known, Tenure, TermEnd};
use millpond_manifest::Manifest;
use millpond_manifest::cas::Snapshot;
use std::time::Duration;
use tracing::info;

impl Shard {
    /// Consumes the shard until the shutdown, as the cursor's owner or in standby.
    pub(crate) async fn run(self) -> Result<(), ConsumeError> {
        let (mut take_over, mut known) = (self.config.take_over, self.admitted != Admitted::Unasked);
        loop {
            let Some(owned) = self.stand_by(take_over, &mut known).await? else {
                return Ok(());
            };
            self.worker.metrics.owned_shards.inc();
            let term = async {
                let stopped = async {
                    self.shutdown.cancelled().await;
                    tokio::time::sleep(RELEASE_PATIENCE).await;
                };
                // Read after the epoch was won: it shows all that the predecessor can have seen.
                let log = tokio::select! {
                    biased;
                    log = self.read_log() => log?,
                    () = stopped => return Ok(TermEnd::Released),
                };
                if let Err(refused) = self.origin(log.as_ref()).await {
                    self.claim.forgo(*owned).await;
                    return Err(refused);
                }
                self.announce_start(&owned, log.as_ref().map(|log| &log.state));
                let log = log.map(Known::new);
                Tenure::begin(&self, *owned, log).serve().await
            }
            .await;
            self.worker.metrics.owned_shards.dec();
            match term? {
                TermEnd::Released => return Ok(()),
                // Another process took the cursor on purpose. If this one took it back at once, the two would fight
                // over it.
                TermEnd::Fenced => take_over = false,
            }
        }
    }

    /// Stands by until this process takes the cursor. `None`: the shutdown came first.
    async fn stand_by(&self, take_over: bool, known: &mut bool) -> Result<Option<Box<Owned>>, ConsumeError> {
        let mut announced = false;
        loop {
            let attempt = async {
                let log = self.read_log().await?;
                let origin = self.origin(log.as_ref()).await?;
                let log = log.as_ref().map(|log| &log.state);
                let start = match &self.repair {
                    Some(range) => *range.start(),
                    None => self.first_sequence(log, *known).await?,
                };
                let beginning = Beginning { start, origin };
                self.claim.open(&beginning, take_over, *known).await
            };
            let attempt = tokio::select! {
                biased;
                attempt = attempt => attempt?,
                () = self.shutdown.cancelled() => return Ok(None),
            };
            // If another process finished the repair meanwhile, this one starts a new repair.
            *known = self.repair.is_none();
            let held = match attempt {
                Attempt::Opened(owned) => return Ok(Some(owned)),
                Attempt::Held(held) => held,
                Attempt::Removed => return Err(self.claim.removed()),
            };
            if !announced {
                info!(
                    shard = self.claim.shard,
                    "standing by: the cursor is held by {}", held.owner
                );
                announced = true;
                // The waits of this process as an owner now concern another owner.
                self.claim.readiness.forget();
            }
            let now = self.claim.environment.now_ms();
            let left = Duration::from_millis(held.lease_expires_at_ms.saturating_sub(now));
            tokio::select! {
                biased;
                () = tokio::time::sleep(left.clamp(Duration::from_millis(100), Duration::from_secs(1))) => {}
                () = self.shutdown.cancelled() => return Ok(None),
            }
        }
    }

    /// Checks a repair's range. `None` if this is not a repair.
    async fn origin(&self, log: Option<&Snapshot<Manifest>>) -> Result<Option<Origin>, ConsumeError> {
        let Some(range) = &self.repair else {
            return Ok(None);
        };
        let log = log.map(|log| &log.state);
        let takes = |name: &str| {
            let mut streams = log.into_iter().flat_map(|log| &log.streams);
            streams.any(|stream| stream.name == name && self.worker.takes(name, stream.encoding))
        };
        self.claim.origin(range, log, takes).await.map(Some)
    }
}
