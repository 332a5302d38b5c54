//! A shard of the buffer and its consumer's cursor. It waits until it can take the cursor, serves a term as its owner
//! ([`crate::tenure`]), and waits again. It also reads the log and settles requests of earlier owners.

use crate::Config;
use crate::environment::{now_ms, pause};
use crate::error::ConsumeError;
use crate::owner::{Attempt, Beginning, Claim, Owned, read_patiently};
use crate::repair::Origin;
use crate::rounds::{requests_of, requests_of_opening};
use crate::sharing::Admitted;
use crate::sink::Settled;
use crate::status::Level;
use crate::tenure::{Known, Tenure, Term};
use crate::work::{self, BatchWorker};
use futures::future::{BoxFuture, FutureExt};
use millpond_manifest::cas::Snapshot;
use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{Manifest, Page, PageReference, layout};
use millpond_storage::Backoff;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// A shard of the buffer, with the context to consume it.
pub(crate) struct Shard {
    pub(crate) config: Config,
    pub(crate) claim: Claim,
    pub(crate) worker: Arc<BatchWorker>,
    pub(crate) shutdown: CancellationToken,
    /// The sequences to repair. `None`: this is not a repair.
    pub(crate) repair: Option<RangeInclusive<u64>>,
    /// How this process came to have the sink's tables.
    pub(crate) admitted: Admitted,
}

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
                    () = stopped => return Ok(Term::Released),
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
                Term::Released => return Ok(()),
                // Another process took the cursor on purpose. If this one took it back at once, the two would fight
                // over it.
                Term::Fenced => take_over = false,
            }
        }
    }

    /// Stands by until this process takes the cursor. `None`: the shutdown came first.
    async fn stand_by(&self, take_over: bool, known: &mut bool) -> Result<Option<Box<Owned>>, ConsumeError> {
        let mut said = false;
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
            if !said {
                info!(
                    shard = self.claim.shard,
                    "standing by: the cursor is held by {}", held.owner
                );
                said = true;
                // The waits of this process as an owner now concern another owner.
                self.claim.status.forget();
            }
            let now = now_ms(&*self.claim.environment);
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

    pub(crate) async fn read_log(&self) -> Result<Option<Snapshot<Manifest>>, ConsumeError> {
        let key = layout::manifest(self.claim.shard);
        let log = read_patiently::<Manifest>(
            &self.claim.store,
            &key,
            &self.claim.status,
            &*self.claim.environment,
        )
        .await?;
        if let Some(log) = &log {
            self.check_log(&log.state)?;
        }
        Ok(log)
    }

    /// Reads a page, and retries until the store answers.
    pub(crate) async fn read_page(&self, reference: &PageReference) -> Result<PageRead, ConsumeError> {
        let key = layout::page(self.claim.shard, reference.first, reference.page);
        let Claim {
            store,
            status,
            environment,
            ..
        } = &self.claim;
        let page = read_patiently::<Page>(store, &key, status, &**environment).await?;
        if let Some(page) = page {
            return Ok(PageRead::Page(Arc::new(page.state)));
        }
        match self.read_log().await? {
            Some(log) if reference.last < log.state.first_sequence => Ok(PageRead::Trimmed(Box::new(log))),
            // As long as the log begins inside this page, the page must exist.
            _ => Err(ConsumeError::Lost {
                key,
                sequence: reference.last,
            }),
        }
    }

    /// Finds out why a segment is missing: the log was trimmed past it, or somebody deleted it.
    pub(crate) async fn gone(&self, key: &str, sequence: u64) -> Result<ConsumeError, ConsumeError> {
        let log = self.read_log().await?;
        let first = log.map_or(0, |log| log.state.first_sequence);
        let key = key.to_owned();
        Ok(if sequence < first {
            ConsumeError::Trimmed { key, sequence, first }
        } else {
            ConsumeError::Lost { key, sequence }
        })
    }

    /// Waits until no request of an earlier generation is in flight to the sink. Earlier owners may have started some
    /// until their leases expired, at the latest `outlived` from now. Ends the requests that the sink can end, and
    /// waits for the others.
    pub(crate) fn settle(&self, term: &work::Term, outlived: Duration) -> BoxFuture<'static, ()> {
        let Claim {
            buffer_id,
            shard,
            consumer,
            status,
            environment,
            ..
        } = self.claim.clone();
        let (sink, own) = (self.worker.sink.clone(), requests_of_opening(term.opening));
        let all = requests_of(buffer_id, shard, &consumer);
        let what = format!("requests of earlier owners of shard {shard:04}");
        let settle = async move {
            status.waits(&what, "they may still be under way to the sink", Level::Warn);
            if !planted::is(Bug::LeaseNotOutlived) {
                tokio::time::sleep(outlived).await;
            }
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
            loop {
                match sink.settle(&all, Some(&own)).await {
                    Ok(Settled::Ended) => break,
                    Ok(Settled::Waits) => {
                        tokio::time::sleep(sink.attempt_max()).await;
                        break;
                    }
                    Err(error) => status.waits(&what, &error.to_string(), Level::Warn),
                }
                pause(&*environment, &mut backoff).await;
            }
            status.goes_on(&what);
        };
        settle.boxed()
    }

    pub(crate) fn check_log(&self, log: &Manifest) -> Result<(), ConsumeError> {
        if log.buffer_id == self.claim.buffer_id {
            return Ok(());
        }
        Err(ConsumeError::OtherBuffer {
            key: layout::manifest(self.claim.shard),
            found: log.buffer_id,
            expected: self.claim.buffer_id,
        })
    }
}

/// The time that a stopping process takes at most to release the cursor, including the reads before the release.
pub(crate) const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// The answer to the read of a page.
pub(crate) enum PageRead {
    Page(Arc<Page>),
    /// The garbage collector deleted the page: this newer manifest begins after it.
    Trimmed(Box<Snapshot<Manifest>>),
}
