//! Watches whether the consumer keeps up, and reports its bottleneck in the log, in the metrics and in the cursor.
//! [`crate::bottleneck`] decides.

use crate::bottleneck::{Bottleneck, Change, Finding, Resource, SAMPLES, Sample};
use crate::metrics::{ResourceLabel, Stage};
use crate::worker::BatchWorker;
use crate::write::WRITING;
use std::convert::Infallible;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::{info, warn};

const INTERVAL: Duration = Duration::from_secs(1);

const MIB: f64 = 1_048_576.0;

impl BatchWorker {
    /// Watches until it is dropped.
    pub(crate) async fn watch(&self) -> Infallible {
        let mut bottleneck = Bottleneck::default();
        self.show_bottleneck(None);
        loop {
            tokio::time::sleep(INTERVAL).await;
            match bottleneck.observe(self.sample()) {
                None => {}
                Some(Change::Begins(finding)) => {
                    let sentence = self.sentence(&finding);
                    warn!("this consumer falls behind: {sentence}");
                    self.show_bottleneck(Some((finding.resource, sentence)));
                }
                Some(Change::Ends) => {
                    info!("this consumer keeps up again");
                    self.show_bottleneck(None);
                }
            }
        }
    }

    fn sample(&self) -> Sample {
        let short = |semaphore: &Semaphore| semaphore.available_permits() == 0;
        let exhausted = Resource::ALL.into_iter().filter(|resource| match resource {
            Resource::sink => self.readiness.reason(WRITING).is_some(),
            Resource::memory => self.metrics.queued(Stage::memory) > 0,
            Resource::writers => short(&self.writers),
            Resource::decoders => short(&self.decoders),
            Resource::fetchers => short(&self.fetchers),
        });
        let [records, raw_bytes] = self.written.total();
        Sample {
            backlog_bytes: self.metrics.backlog_total(),
            records,
            raw_bytes,
            exhausted: exhausted.collect(),
        }
    }

    fn sentence(&self, finding: &Finding) -> String {
        let (cause, remedy) = match finding.resource {
            Resource::sink => ("the sink rejects INSERTs".to_owned(), "the log has its errors"),
            Resource::memory => (
                "batches wait for memory".to_owned(),
                "raise the memory limit (--memory-limit)",
            ),
            Resource::writers => (
                format!("all writers ({}) have an INSERT in flight", self.writers_max),
                "raise --writers, or give ClickHouse more cores",
            ),
            Resource::decoders => ("all decoders are busy".to_owned(), "give this process more cores"),
            Resource::fetchers => (
                "all fetchers wait for the store".to_owned(),
                "raise --fetchers, or move closer to the store",
            ),
        };
        #[expect(clippy::cast_precision_loss, reason = "for reading")]
        let [before, now] = finding.backlog_bytes.map(|bytes| bytes as f64 / MIB);
        format!(
            "{cause} in {} of {SAMPLES} s; the backlog grew from {before:.1} to {now:.1} MiB stored, and the sink takes {:.0} records/s ({:.1} MiB/s \
             raw); {remedy}",
            finding.exhausted,
            finding.records,
            finding.raw_bytes / MIB
        )
    }

    fn show_bottleneck(&self, found: Option<(Resource, String)>) {
        for resource in Resource::ALL {
            let is_it = found.as_ref().is_some_and(|(found, _)| *found == resource);
            self.metrics
                .bottleneck
                .get_or_create(&ResourceLabel { resource })
                .set(is_it.into());
        }
        let sentence = found.map(|(_, sentence)| format!("it falls behind: {sentence}"));
        *self.bottleneck.lock().unwrap_or_else(PoisonError::into_inner) = sentence;
    }
}
