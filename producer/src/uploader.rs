//! The uploaders: at most `max_uploads` segments on their way into the store, each tried again under the
//! same name until it is there. They never give up and never drop a segment.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::layout;
use millpond_storage::{Backoff, Created, Store};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use ulid::Ulid;

use crate::Environment;
use crate::health::{Health, Stage};
use crate::metrics::Metrics;
use crate::segment::{EncodedWork, UploadedWork};

/// What comes to the committer. Every number comes once.
pub(crate) enum Arrival {
    Uploaded(UploadedWork),
    /// There is no segment of this number: its callers have been told.
    Skipped(u64),
}

/// Puts segments into the store. Clones share everything.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) store: Store,
    pub(crate) shard: u32,
    pub(crate) environment: Environment,
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
}

impl Upload {
    /// Uploads a segment, however long it takes, and gives it the name of a time not before `not_before_ms`.
    pub(crate) async fn put(&self, work: EncodedWork, not_before_ms: u64) -> UploadedWork {
        let started = Instant::now();
        let mut name = self.environment.ulid(not_before_ms);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut tried = false;
        loop {
            match self.attempt(name, &work).await {
                Ok(Created::New) => break,
                // Nobody else has this name: it was an attempt of ours, though it was reported as an error.
                Ok(Created::Existed) if tried => break,
                Ok(Created::Existed) => name = self.environment.ulid(not_before_ms),
                Err(error) => {
                    tried = true;
                    self.health.held_up(Stage::Upload, &error);
                    self.metrics.upload_retries.inc();
                    sleep(self.environment.next_wait(&mut backoff)).await;
                }
            }
        }
        self.health.got_on(Stage::Upload);
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

    async fn attempt(&self, name: Ulid, work: &EncodedWork) -> Result<Created, millpond_storage::Error> {
        self.store
            .put_if_absent(&layout::segment(self.shard, name), work.encoded.parts.clone())
            .await
    }
}

/// The uploaders of a producer, in front of its committer.
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

    /// Tells the committer not to wait for a number.
    pub(crate) fn skip(&self, number: u64) {
        self.hand_over(async move { Arrival::Skipped(number) });
    }

    fn hand_over(&self, arrival: impl Future<Output = Arrival> + Send + 'static) {
        let committer = self.committer.clone();
        self.tasks.spawn(async move {
            // The committer goes last; if it is gone, the runtime is going down and callers see that.
            let _ = committer.send(arrival.await).await;
        });
    }
}
