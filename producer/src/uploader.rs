//! The uploaders: at most `max_uploads` segments at a time. They retry each segment under the same name until it is in
//! the store. They never give up and never drop a segment.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::layout;
use millpond_runtime::{Backoff, Environment, Level, Readiness};
use millpond_storage::{Created, Store};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::segment::{EncodedWork, UploadedWork};

/// The wait of an upload, as `/readyz` shows it.
pub(crate) const UPLOAD: &str = "waiting for the store (upload)";

/// A message to the committer. Every number comes once.
pub(crate) enum Arrival {
    Uploaded(UploadedWork),
    /// The segment was not uploaded, because the leader takes its blocks.
    Kept(EncodedWork),
    /// The segment of this number failed, and its callers have their answers.
    Skipped(u64),
}

/// Uploads segments. Clones share everything.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) store: Store,
    pub(crate) shard: u32,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
}

impl Upload {
    /// Uploads a segment, and retries without limit. Its name gets a time of at least `not_before_ms`.
    pub(crate) async fn put(&self, mut work: EncodedWork, not_before_ms: u64) -> UploadedWork {
        let started = Instant::now();
        let mut name = self.environment.ulid(not_before_ms);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut tried = false;
        loop {
            let key = layout::segment(self.shard, name);
            if !tried {
                work.trace.upload(name, &key);
            }
            match self.attempt(&key, &work).await {
                Ok(Created::New) => break,
                // Nobody else has this name, so an earlier attempt of ours landed although it reported an error.
                Ok(Created::Existed) if tried => break,
                Ok(Created::Existed) => name = self.environment.ulid(not_before_ms),
                Err(error) => {
                    tried = true;
                    self.readiness.waits(UPLOAD, &error, Level::Warn);
                    self.metrics.upload_retries.inc();
                    work.trace.again(&error);
                    backoff.pause(&*self.environment).await;
                }
            }
        }
        self.readiness.goes_on(UPLOAD);
        work.trace.wait();
        self.metrics
            .upload_seconds
            .observe(started.elapsed().as_secs_f64());
        let commit_by = Instant::now() + work.linger_left;
        UploadedWork {
            name,
            commit_by,
            work,
        }
    }

    async fn attempt(&self, key: &str, work: &EncodedWork) -> Result<Created, millpond_storage::Error> {
        self.store.put_if_absent(key, work.encoded.parts.clone()).await
    }
}

/// The uploaders of a producer, which feed its committer.
pub(crate) struct Uploaders {
    upload: Upload,
    free: Arc<Semaphore>,
    tasks: TaskTracker,
    committer: mpsc::Sender<Arrival>,
}

impl Uploaders {
    pub(crate) fn new(
        upload: Upload,
        max_uploads: usize,
        tasks: TaskTracker,
        committer: mpsc::Sender<Arrival>,
    ) -> Self {
        Self {
            upload,
            free: Arc::new(Semaphore::new(max_uploads)),
            tasks,
            committer,
        }
    }

    /// Uploads a segment in its turn and hands it to the committer.
    pub(crate) fn upload(&self, work: EncodedWork) {
        let (upload, free) = (self.upload.clone(), Arc::clone(&self.free));
        let waiting = &self.upload.metrics.segments_uploading;
        waiting.inc();
        let waiting = waiting.clone();
        self.hand_over(async move {
            let turn = free.acquire().await;
            let uploaded = upload.put(work, 0).await;
            drop(turn);
            waiting.dec();
            Arrival::Uploaded(uploaded)
        });
    }

    /// Hands a segment to the committer without uploading it.
    pub(crate) fn keep(&self, work: EncodedWork) {
        self.hand_over(async move { Arrival::Kept(work) });
    }

    /// Tells the committer not to wait for this number.
    pub(crate) fn skip(&self, number: u64) {
        self.hand_over(async move { Arrival::Skipped(number) });
    }

    fn hand_over(&self, arrival: impl Future<Output = Arrival> + Send + 'static) {
        let committer = self.committer.clone();
        self.tasks.spawn(async move {
            // The committer ends last. If it has ended, the runtime is shutting down and callers see that.
            let _ = committer.send(arrival.await).await;
        });
    }
}
