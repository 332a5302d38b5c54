//! Counts the requests that reach the store, as a bill does, and follows the manifests that take effect.

use std::fmt;
use std::ops::Sub;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use millpond_manifest::{Manifest, Object};
use millpond_storage::unreliable::S3Latency;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::{Instant, sleep};

/// Requests by kind, and bytes between zones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) segments: u64,
    pub(super) pages: u64,
    /// Swaps that brought segments into the log.
    pub(super) commits: u64,
    /// Other swaps that took effect.
    pub(super) other_swaps: u64,
    pub(super) swaps_refused: u64,
    pub(super) manifest_reads: u64,
    pub(super) other_reads: u64,
    pub(super) lists: u64,
    pub(super) peer_requests: u64,
    pub(super) bytes_between_zones: u64,
    /// Attempts of clients that failed.
    pub(super) attempts_failed: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            segments: self.segments - before.segments,
            pages: self.pages - before.pages,
            commits: self.commits - before.commits,
            other_swaps: self.other_swaps - before.other_swaps,
            swaps_refused: self.swaps_refused - before.swaps_refused,
            manifest_reads: self.manifest_reads - before.manifest_reads,
            other_reads: self.other_reads - before.other_reads,
            lists: self.lists - before.lists,
            peer_requests: self.peer_requests - before.peer_requests,
            bytes_between_zones: self.bytes_between_zones - before.bytes_between_zones,
            attempts_failed: self.attempts_failed - before.attempts_failed,
        }
    }
}

/// A shard as its manifests show it.
#[derive(Debug, Clone, Default)]
pub(super) struct Shard {
    next_sequence: u64,
    leader: Option<String>,
    pub(super) commits: Vec<Instant>,
    pub(super) deaths: Vec<Instant>,
}

/// What a run has counted so far.
#[derive(Debug)]
pub(super) struct Meter {
    counts: Mutex<Counts>,
    shards: Mutex<Vec<Shard>>,
}

impl Meter {
    pub(super) fn new(shards: usize) -> Arc<Meter> {
        Arc::new(Meter {
            counts: Mutex::default(),
            shards: Mutex::new(vec![Shard::default(); shards]),
        })
    }

    pub(super) fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.counts));
    }

    pub(super) fn shards(&self) -> Vec<Shard> {
        lock(&self.shards).clone()
    }

    /// The address of a shard's leader.
    pub(super) fn leader(&self, shard: usize) -> Option<String> {
        lock(&self.shards)[shard].leader.clone()
    }

    /// Records that the leader of a shard dies now.
    pub(super) fn died(&self, shard: usize) {
        lock(&self.shards)[shard].deaths.push(Instant::now());
    }

    fn swapped(&self, bytes: &[u8]) {
        let manifest = Manifest::decode(bytes).expect("producers write valid manifests");
        let mut shards = lock(&self.shards);
        let shard = &mut shards[usize::try_from(manifest.shard).expect("few shards")];
        let has_committed = manifest.next_sequence > shard.next_sequence;
        shard.next_sequence = manifest.next_sequence;
        shard.leader = manifest.leader.map(|leader| leader.address);
        if has_committed {
            shard.commits.push(Instant::now());
        }
        self.count(|counts| {
            let counter = if has_committed {
                &mut counts.commits
            } else {
                &mut counts.other_swaps
            };
            *counter += 1;
        });
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store behind the network: what arrives here is billed.
#[derive(Debug)]
pub(super) struct Billed {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) meter: Arc<Meter>,
    /// One byte of a segment stands for this many.
    pub(super) scale: u64,
}

impl Billed {
    /// The time that the rest of a segment takes to arrive.
    fn rest(&self, bytes: u64) -> Duration {
        S3Latency::default().transfer(bytes * (self.scale - 1))
    }
}

fn unused(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "fleet".to_owned(),
    }
}

#[async_trait]
impl ObjectStore for Billed {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_manifest = location.as_ref().ends_with("/manifest");
        if location.as_ref().contains("/segments/") {
            sleep(self.rest(payload.content_length() as u64)).await;
            self.meter.count(|counts| counts.segments += 1);
        } else if !is_manifest {
            self.meter.count(|counts| counts.pages += 1);
        }
        let bytes: bytes::Bytes = payload.clone().into();
        let is_swap = is_manifest && !matches!(options.mode, PutMode::Overwrite);
        let result = self.inner.put_opts(location, payload, options).await;
        match &result {
            Ok(_) if is_swap => self.meter.swapped(&bytes),
            Err(_) if is_swap => self.meter.count(|counts| counts.swaps_refused += 1),
            _ => {}
        }
        result
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unused("a multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.meter.count(|counts| {
            if location.as_ref().ends_with("/manifest") {
                counts.manifest_reads += 1;
            } else {
                counts.other_reads += 1;
            }
        });
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.meter.count(|counts| counts.lists += 1);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unused("a listing of folders"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unused("a copy"))
    }
}

impl fmt::Display for Billed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fleet({})", self.inner)
    }
}
