//! A shard of the buffer and its consumer's cursor. It reads the log and settles requests of earlier owners. Its terms as
//! the cursor's owner are in [`crate::terms`].

use crate::claim::Claim;
use crate::config::Config;
use crate::error::ConsumeError;
use crate::leaders::Watching;
use crate::membership::Membership;
use crate::reading::{BEHIND_WAIT, NOT_YET, is_behind, read_patiently};
use crate::rounds::{requests_of, requests_of_opening};
use crate::sink::Settled;
use crate::worker::BatchWorker;
use futures::future::{BoxFuture, FutureExt};
use millpond_manifest::cas::Snapshot;
use millpond_manifest::{Manifest, Page, PageReference, layout};
use millpond_runtime::{Backoff, Level, Readiness};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A shard of the buffer, with the context to consume it.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) config: Config,
    pub(crate) claim: Claim,
    pub(crate) worker: Arc<BatchWorker>,
    pub(crate) shutdown: CancellationToken,
    /// The sequences to repair. `None`: this is not a repair.
    pub(crate) repair: Option<RangeInclusive<u64>>,
    /// Take the cursor from its owner in the first term.
    pub(crate) take_over: bool,
    /// How this process came to have the sink's tables.
    pub(crate) admitted: Admitted,
    /// The consumer's processes. A repair is not divided.
    pub(crate) membership: Option<Arc<Membership>>,
    /// How it hears of commits from the leader. `None`: it polls.
    pub(crate) watching: Option<Watching>,
}

/// How a process came to have the sink's tables ([`crate::sharing`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It did not ask: another shard decides, the sink cannot tell its tables, or this is a repair.
    Unasked,
    /// The consumer has a cursor.
    Continues,
    /// This process made the cursor.
    Begins,
}

impl Shard {
    pub(crate) async fn read_log(&self) -> Result<Option<Snapshot<Manifest>>, ConsumeError> {
        let key = layout::manifest(self.claim.shard);
        let log = read_patiently::<Manifest>(
            &self.claim.store,
            &key,
            &self.claim.readiness,
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
            readiness,
            environment,
            ..
        } = &self.claim;
        let began = Instant::now();
        loop {
            let page = read_patiently::<Page>(store, &key, readiness, &**environment).await?;
            if let Some(page) = page {
                readiness.goes_on(&key);
                return Ok(PageRead::Page(Arc::new(page.state)));
            }
            if began.elapsed() >= BEHIND_WAIT || !is_behind(store, self.claim.shard, reference.last).await {
                break;
            }
            readiness.waits(&key, NOT_YET, Level::Warn);
            sleep(Duration::from_secs(1)).await;
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
    pub(crate) fn settle(&self, opening: u64, outlived: Duration) -> BoxFuture<'static, ()> {
        let Claim {
            buffer_id,
            shard,
            consumer,
            readiness,
            environment,
            ..
        } = self.claim.clone();
        let (sink, own) = (self.worker.sink.clone(), requests_of_opening(opening));
        let all = requests_of(buffer_id, shard, &consumer);
        let what = format!("requests of earlier owners of shard {shard:04}");
        let settle = async move {
            wait_for_requests(&readiness, &what, outlived).await;
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
            loop {
                match sink.settle(&all, Some(&own)).await {
                    Ok(Settled::Ended) => break,
                    Ok(Settled::Waits) => {
                        wait_for_requests(&readiness, &what, sink.attempt_max()).await;
                        break;
                    }
                    Err(error) => readiness.waits(&what, error, Level::Warn),
                }
                backoff.pause(&*environment).await;
            }
            readiness.goes_on(&what);
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

/// Waits for requests that may still be under way to the sink. Says so again and again: the end of another shard's term drops all waits.
async fn wait_for_requests(readiness: &Readiness, what: &str, mut time: Duration) {
    loop {
        readiness.waits(what, "they may still be under way to the sink", Level::Warn);
        let pause = time.min(Duration::from_secs(1));
        sleep(pause).await;
        time -= pause;
        if time.is_zero() {
            return;
        }
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
