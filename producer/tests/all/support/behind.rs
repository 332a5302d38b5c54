//! A store that answers reads of the manifest with an old one, and knows how long a producer waits after a lost race.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::Instant;

/// Clones are the same store.
#[derive(Debug, Clone)]
pub(crate) struct Behind {
    inner: Arc<dyn ObjectStore>,
    shows: Arc<Mutex<VecDeque<Shown>>>,
    swaps: Arc<AtomicUsize>,
    races: Arc<Mutex<Races>>,
}

/// A state of the manifest, or none.
type Shown = Option<(ObjectMeta, Bytes)>;

const MANIFEST: &str = "buffer/shards/0000/manifest";

/// A producer's waits after lost races.
#[derive(Debug, Default)]
struct Races {
    /// The end of the last request since a swap was refused.
    idle_since: Option<Instant>,
    idle: Duration,
    waits: Vec<Duration>,
}

impl Races {
    fn begins(&mut self, is_swap: bool) {
        let Some(since) = self.idle_since else { return };
        self.idle += since.elapsed();
        if is_swap {
            self.idle_since = None;
            self.waits.push(std::mem::take(&mut self.idle));
        }
    }

    fn ends(&mut self, is_refused: bool) {
        if is_refused || self.idle_since.is_some() {
            self.idle_since = Some(Instant::now());
        }
    }
}

impl Behind {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Behind {
        Behind {
            inner,
            shows: Arc::default(),
            swaps: Arc::default(),
            races: Arc::default(),
        }
    }

    /// From now on, reads of the manifest show what it is now. After several calls they show these states in turns.
    pub(crate) async fn stay_behind(&self) {
        let found = self.inner.get(&MANIFEST.into()).await.unwrap();
        let (meta, bytes) = (found.meta.clone(), found.bytes().await.unwrap());
        self.shows.lock().unwrap().push_back(Some((meta, bytes)));
    }

    /// From now on, reads find no manifest.
    pub(crate) fn show_nothing(&self) {
        self.shows.lock().unwrap().push_back(None);
    }

    /// The state that a read of this object finds in place of the real one.
    fn shown(&self, location: &Path) -> Option<Shown> {
        let mut shows = self.shows.lock().unwrap();
        if shows.is_empty() || location.as_ref() != MANIFEST {
            return None;
        }
        shows.rotate_left(1);
        shows.back().cloned()
    }

    /// The number of swaps so far.
    pub(crate) fn swaps(&self) -> usize {
        self.swaps.load(Relaxed)
    }

    /// How long the producer asked for nothing between a refused swap and the next one, for each lost race.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.races.lock().unwrap().waits.clone()
    }

    /// Reads show what is in the store.
    pub(crate) fn catch_up(&self) {
        self.shows.lock().unwrap().clear();
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "behind({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Behind {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if !matches!(options.mode, PutMode::Update(_)) {
            return self.inner.put_opts(location, payload, options).await;
        }
        self.swaps.fetch_add(1, Relaxed);
        self.races.lock().unwrap().begins(true);
        let put = self.inner.put_opts(location, payload, options).await;
        self.races.lock().unwrap().ends(put.is_err());
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.races.lock().unwrap().begins(false);
        let result = self.inner.get_opts(location, options).await;
        self.races.lock().unwrap().ends(false);
        let mut result = result?;
        match self.shown(location) {
            None => {}
            Some(None) => {
                let (path, source) = (location.to_string(), "not there".into());
                return Err(object_store::Error::NotFound { path, source });
            }
            Some(Some((meta, bytes))) => {
                result.range = 0..meta.size;
                result.meta = meta;
                result.payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
            }
        }
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
