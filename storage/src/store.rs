//! Requests to one buffer: get, put, compare-and-set, list, delete.
//!
//! Every method makes one attempt within the request timeout, and counts it. A retry inside the client would report our
//! own landed write as a loss; only the caller can find out what became of an attempt.

use crate::error::{Error, ErrorKind, Failure};
use crate::metrics::{Kind, Metrics, Outcome, RequestCounts};
use crate::unreliable::{Controls, Faults, Unreliable};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    PutResult, UpdateVersion,
};
use prometheus_client::registry::Registry;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The default of [`StoreOptions::request_timeout`](crate::StoreOptions): longer than S3 takes for 16 MiB on a working
/// network, and short enough to notice a dead connection before a client gives up.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest object that a read accepts: many times the size of any object in a buffer.
const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Keys on one page of a listing: the page size of S3, GCS and (at most) Azure.
const LIST_PAGE: usize = 1_000;

/// One buffer in an object store. Cheap to clone; clones share the connections and the counts.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    objects: Arc<dyn ObjectStore>,
    prefix: String,
    url: String,
    timeout: Duration,
    metrics: Metrics,
}

/// Names one state of an object: a later compare-and-set expects it.
///
/// It may depend on the content alone, so equal bytes may have equal versions. Objects that are compared and set
/// therefore carry something that never repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(UpdateVersion);

/// An object and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The object's content.
    pub bytes: Bytes,
    /// The version to expect in a [`Store::compare_and_set`] based on this content.
    pub version: Version,
}

/// The answer of [`Store::get_if_changed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// The object still has the known version; no body was transferred.
    Unchanged,
    /// Another version.
    Changed(Versioned),
    /// No such object.
    Absent,
    /// The object is larger than the caller accepts; its body was not read.
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
        /// The version to expect in a [`Store::compare_and_set`] that replaces it.
        version: Version,
    },
}

/// The answer of [`Store::put_if_absent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object did not exist and now does.
    New,
    /// The object existed already and is unchanged. It may come from an earlier attempt of the caller that returned an
    /// error.
    Existed,
}

/// The outcome of [`Store::compare_and_set`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Cas {
    /// The write took effect, and the object now has this version.
    Committed(Version),
    /// The store refused the write: the object does not have the expected version. It may have changed through an
    /// earlier attempt with an unknown outcome, or through the first copy of a request that a proxy sent twice.
    Mismatch,
    /// The write took effect, did not, or still will. Read the object again to find out. This includes a 409 from S3,
    /// which wrote nothing: reading again then costs one request, so it needs no fourth case.
    Unknown(Error),
}

/// One object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The object's key, relative to the buffer.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written, by the store's clock: Unix time in milliseconds.
    pub last_modified_ms: i64,
    /// The ETag in a listing with versions.
    e_tag: Option<String>,
}

impl Listed {
    /// Returns true if the object had this version when the store listed it, so that its content is the one that was read with the
    /// version. False if the listing does not tell: it was asked for without versions, or has no ETags (files), or weak ones, or others than a read has.
    pub fn is_at(&self, version: &Version) -> bool {
        let listed = self.e_tag.as_deref().and_then(opaque_tag);
        listed.is_some() && listed == version.0.e_tag.as_deref().and_then(opaque_tag)
    }
}

impl Store {
    /// A buffer under `prefix` (without leading or trailing slash; empty for the whole store) of any object store whose
    /// client does not retry. It uses the default request timeout.
    pub fn over(objects: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        let url = format!("{objects}/{prefix}");
        Self::new(objects, prefix, url, REQUEST_TIMEOUT)
    }

    /// An empty buffer in this process's memory, visible only to clones of the returned value.
    pub fn memory() -> Self {
        let objects = Arc::new(InMemory::new());
        Self::new(objects, "", "memory:///".to_owned(), REQUEST_TIMEOUT)
    }

    pub(crate) fn new(objects: Arc<dyn ObjectStore>, prefix: &str, url: String, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            objects,
            prefix: prefix.trim_matches('/').to_owned(),
            url,
            timeout,
            metrics: Metrics::new(),
        }))
    }

    /// The same buffer through an unreliable network and its controls, for tests. Request counts start at zero.
    pub fn behind(&self, faults: Faults) -> (Self, Controls) {
        let unreliable = Unreliable::new(Arc::clone(&self.0.objects), faults);
        let controls = unreliable.controls();
        let inner = &self.0;
        let store = Self::new(
            Arc::new(unreliable),
            &inner.prefix,
            inner.url.clone(),
            inner.timeout,
        );
        (store, controls)
    }

    /// The same buffer and counts with another request timeout.
    #[must_use]
    pub fn with_request_timeout(&self, timeout: Duration) -> Self {
        let Inner {
            objects,
            prefix,
            url,
            timeout: _,
            metrics,
        } = &*self.0;
        Self(Arc::new(Inner {
            objects: Arc::clone(objects),
            prefix: prefix.clone(),
            url: url.clone(),
            timeout,
            metrics: metrics.clone(),
        }))
    }

    /// The time limit of a request.
    pub fn request_timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The buffer's URL, for messages.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The requests so far.
    pub fn requests(&self) -> RequestCounts {
        self.0.metrics.counts()
    }

    /// Exports `millpond_store_requests_total{kind,outcome}`, `millpond_store_bytes_total{direction}` and
    /// `millpond_store_request_seconds{kind}`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    /// Reads an object, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// There was no usable answer, or the object is larger than 1 GiB.
    pub async fn get(&self, key: &str) -> Result<Option<Versioned>, Error> {
        match self.get_at_most(key, None, OBJECT_BYTES_MAX).await? {
            Fetched::Changed(versioned) => Ok(Some(versioned)),
            // No version was known, so "unchanged" can only come from a faulty store, for an absent object.
            Fetched::Absent | Fetched::Unchanged => Ok(None),
            Fetched::TooLarge { bytes, .. } => {
                let failure = Failure::Invalid(too_large(bytes));
                Err(self.error("get", key, &failure))
            }
        }
    }

    /// Reads an object of at most `bytes_max` bytes, unless it still has the known version. For a larger one it returns
    /// only the size and version.
    ///
    /// # Errors
    /// There was no usable answer.
    pub async fn get_at_most(
        &self,
        key: &str,
        known: Option<&Version>,
        bytes_max: u64,
    ) -> Result<Fetched, Error> {
        let known = known.and_then(|known| known.0.e_tag.clone());
        let options = GetOptions::new().with_if_none_match(known);
        self.fetch(key, options, bytes_max.min(OBJECT_BYTES_MAX))
            .await
            .map_err(|failure| self.error("get", key, &failure))
    }

    /// Reads an object unless it still has the known version.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_if_changed(&self, key: &str, known: &Version) -> Result<Fetched, Error> {
        match self.get_at_most(key, Some(known), OBJECT_BYTES_MAX).await? {
            Fetched::TooLarge { bytes, .. } => {
                let failure = Failure::Invalid(too_large(bytes));
                Err(self.error("get", key, &failure))
            }
            fetched => Ok(fetched),
        }
    }

    /// Reads exactly this range of an object, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Store::get`]; `Misconfigured` if the range is empty or extends past the object's end.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        match self.fetch_range(key, range).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(failure) if failure.is_absent() => Ok(None),
            Err(failure) => Err(self.error("get a range of", key, &failure)),
        }
    }

    /// Returns an object's size without reading it, or `None` if it does not exist.
    ///
    /// # Errors
    /// There was no usable answer.
    pub async fn head(&self, key: &str) -> Result<Option<Listed>, Error> {
        let head = async |path: Path| self.0.objects.head(&path).await.map_err(Failure::from);
        match self.request(Kind::head, key, head).await {
            Ok(meta) => Ok(Some(listed(key.to_owned(), &meta))),
            Err(failure) if failure.is_absent() => Ok(None),
            Err(failure) => Err(self.error("head", key, &failure)),
        }
    }

    /// Writes an object that must not exist. The body's pieces are sent in order without copying.
    ///
    /// # Errors
    /// There was no usable answer. The whole object may then exist, or appear later. Retry, and take
    /// [`Created::Existed`] for success if no other writer uses the key.
    pub async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<Created, Error> {
        match self.put(key, body.into_iter().collect(), PutMode::Create).await {
            Ok(_) => Ok(Created::New),
            Err(failure) if failure.is_refused_condition() => Ok(Created::Existed),
            Err(failure) => Err(self.error("put", key, &failure)),
        }
    }

    /// Replaces an object if it has the expected version. For `None` it creates the object if it does not exist.
    pub async fn compare_and_set(&self, key: &str, expected: Option<&Version>, body: Bytes) -> Cas {
        let mode = expected.map_or(PutMode::Create, |version| PutMode::Update(version.0.clone()));
        let cas = match self.put(key, body.into(), mode).await {
            Ok(result) => match version(result.e_tag, result.version) {
                Ok(version) => Cas::Committed(version),
                Err(failure) => Cas::Unknown(self.error("compare and set", key, &failure)),
            },
            Err(failure) if failure.is_refused_condition() => Cas::Mismatch,
            Err(failure) => Cas::Unknown(self.error("compare and set", key, &failure)),
        };
        self.0.metrics.cas(&cas);
        cas
    }

    /// The error of a compare-and-set that the caller did not send, because it would break a rule of the format.
    pub fn unsent(&self, key: &str, reason: String) -> Error {
        Error::unsent(key, &self.0.url, reason)
    }

    /// Lists all objects in a folder (`shards/0000/segments`; empty for the whole buffer), ordered by key. The request
    /// timeout applies to each page.
    ///
    /// # Errors
    /// A page got no answer. A partial listing is useless, so none is returned.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        // A folder may have millions of objects.
        self.list_keeping(prefix, |_| None).await
    }

    /// Lists all objects in a folder with their versions: see [`Listed::is_at`].
    ///
    /// # Errors
    /// As [`Store::list`].
    pub async fn list_with_versions(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        self.list_keeping(prefix, |e_tag| e_tag).await
    }

    async fn list_keeping(
        &self,
        prefix: &str,
        kept: impl Fn(Option<String>) -> Option<String>,
    ) -> Result<Vec<Listed>, Error> {
        let mut all = self
            .list_folder(prefix, kept)
            .await
            .map_err(|failure| self.error("list", prefix, &failure))?;
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// Deletes an object. Deleting an absent object succeeds.
    ///
    /// # Errors
    /// There was no usable answer; the object may be deleted now or later.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        let delete = async |path: Path| self.0.objects.delete(&path).await.map_err(Failure::from);
        match self.request(Kind::delete, key, delete).await {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_absent() => Ok(()),
            Err(failure) => Err(self.error("delete", key, &failure)),
        }
    }

    pub(crate) async fn fetch(
        &self,
        key: &str,
        options: GetOptions,
        bytes_max: u64,
    ) -> Result<Fetched, Failure> {
        let fetch = async |path: Path| {
            let result = self.0.objects.get_opts(&path, options).await?;
            let version = version(result.meta.e_tag.clone(), result.meta.version.clone())?;
            let bytes = result.meta.size;
            if bytes > bytes_max {
                return Ok(Fetched::TooLarge { bytes, version });
            }
            let bytes = self.body(result).await?;
            Ok(Fetched::Changed(Versioned { bytes, version }))
        };
        match self.request(Kind::get, key, fetch).await {
            Ok(fetched) => Ok(fetched),
            Err(Failure::Store(object_store::Error::NotModified { .. })) => Ok(Fetched::Unchanged),
            Err(failure) if failure.is_absent() => Ok(Fetched::Absent),
            Err(failure) => Err(failure),
        }
    }

    async fn fetch_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Failure> {
        let wanted = range.end.saturating_sub(range.start);
        // Servers treat a number that they cannot represent as no range at all.
        if wanted == 0 || wanted > OBJECT_BYTES_MAX || range.end > i64::MAX.unsigned_abs() {
            return Err(Failure::Invalid(format!(
                "{range:?} is not a range of 1 to {OBJECT_BYTES_MAX} bytes"
            )));
        }
        let fetch = async |path: Path| {
            let options = GetOptions::new().with_range(Some(range.clone()));
            let result = self.0.objects.get_opts(&path, options).await?;
            let size = result.meta.size;
            let bytes = self.body(result).await?;
            if bytes.len() as u64 != wanted {
                return Err(Failure::Invalid(format!(
                    "the range {range:?} exceeds the object's {size} bytes"
                )));
            }
            Ok(bytes)
        };
        self.request(Kind::get, key, fetch).await
    }

    async fn body(&self, result: GetResult) -> Result<Bytes, Failure> {
        let size = result.range.end.saturating_sub(result.range.start);
        if size > OBJECT_BYTES_MAX {
            return Err(Failure::Invalid(too_large(size)));
        }
        let bytes = result.bytes().await?;
        self.0.metrics.read(bytes.len() as u64);
        Ok(bytes)
    }

    async fn put(&self, key: &str, payload: PutPayload, mode: PutMode) -> Result<PutResult, Failure> {
        let bytes = payload.content_length() as u64;
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let put = async |path: Path| {
            self.0.metrics.written(bytes);
            Ok(self.0.objects.put_opts(&path, payload, options).await?)
        };
        self.request(Kind::put, key, put).await
    }

    async fn list_folder(
        &self,
        prefix: &str,
        kept: impl Fn(Option<String>) -> Option<String>,
    ) -> Result<Vec<Listed>, Failure> {
        let folder = if prefix.is_empty() {
            Path::parse(&self.0.prefix).map_err(|error| Failure::Invalid(format!("not a prefix: {error}")))?
        } else {
            self.path(prefix)?
        };
        let strip = if self.0.prefix.is_empty() {
            0
        } else {
            self.0.prefix.len() + 1
        };
        let mut entries = self.0.objects.list(Some(&folder));
        let mut all = Vec::new();
        loop {
            // One request fetches a page; the entries after its first cost nothing.
            let page_starts = all.len().is_multiple_of(LIST_PAGE);
            let mut request = page_starts.then(|| self.0.metrics.start(Kind::list));
            let entry = tokio::time::timeout(self.0.timeout, entries.try_next())
                .await
                .map_err(|_| Failure::Timeout(self.0.timeout))
                .and_then(|entry| entry.map_err(Failure::from));
            if let Some(request) = &mut request {
                request.ended(outcome(&entry));
            }
            match entry {
                Ok(Some(meta)) => {
                    let key = meta.location.as_ref().get(strip..).unwrap_or_default();
                    let (key, e_tag) = (key.to_owned(), kept(meta.e_tag.clone()));
                    all.push(Listed {
                        e_tag,
                        ..listed(key, &meta)
                    });
                }
                Ok(None) => return Ok(all),
                Err(failure) if failure.is_absent() => return Ok(Vec::new()),
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn request<T>(
        &self,
        kind: Kind,
        key: &str,
        attempt: impl AsyncFnOnce(Path) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let path = self.path(key)?;
        let mut request = self.0.metrics.start(kind);
        let answer = tokio::time::timeout(self.0.timeout, attempt(path))
            .await
            .unwrap_or(Err(Failure::Timeout(self.0.timeout)));
        request.ended(outcome(&answer));
        answer
    }

    fn path(&self, key: &str) -> Result<Path, Failure> {
        if key.is_empty() || key.starts_with('/') || key.ends_with('/') {
            return Err(Failure::Invalid(
                "a key is not empty and neither starts nor ends with a slash".to_owned(),
            ));
        }
        let path = if self.0.prefix.is_empty() {
            Path::parse(key)
        } else {
            Path::parse(format!("{}/{key}", self.0.prefix))
        };
        path.map_err(|error| Failure::Invalid(format!("not a key: {error}")))
    }

    pub(crate) fn error(&self, operation: &'static str, key: &str, failure: &Failure) -> Error {
        Error::new(operation, key, &self.0.url, failure)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("url", &self.0.url)
            .finish_non_exhaustive()
    }
}

fn too_large(bytes: u64) -> String {
    format!("{bytes} bytes exceed the limit of {OBJECT_BYTES_MAX} for one read")
}

fn version(e_tag: Option<String>, version: Option<String>) -> Result<Version, Failure> {
    if e_tag.is_none() && version.is_none() {
        return Err(Failure::Invalid(
            "the store returns no version (no ETag in its answer), so compare-and-set is impossible"
                .to_owned(),
        ));
    }
    Ok(Version(UpdateVersion { e_tag, version }))
}

fn listed(key: String, meta: &ObjectMeta) -> Listed {
    Listed {
        key,
        size: meta.size,
        last_modified_ms: meta.last_modified.timestamp_millis(),
        e_tag: None,
    }
}

/// The text between the quotes of a strong ETag. Azure's listings leave the quotes out. A weak tag (`W/"…"`) may stand for several contents.
fn opaque_tag(e_tag: &str) -> Option<&str> {
    let tag = e_tag
        .strip_prefix('"')
        .and_then(|tag| tag.strip_suffix('"'))
        .unwrap_or(e_tag);
    (!tag.is_empty() && !tag.starts_with("W/")).then_some(tag)
}

fn outcome<T>(answer: &Result<T, Failure>) -> Outcome {
    match answer {
        Ok(_) => Outcome::ok,
        Err(Failure::Store(object_store::Error::NotModified { .. })) => Outcome::unchanged,
        Err(failure) if failure.is_absent() => Outcome::absent,
        Err(failure) if failure.is_refused_condition() => Outcome::mismatch,
        Err(failure) => match failure.kind() {
            ErrorKind::Transient => Outcome::transient,
            ErrorKind::Denied => Outcome::denied,
            ErrorKind::Misconfigured => Outcome::misconfigured,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawnable<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) {
        drop(future);
    }

    fn is_at(listed: Option<&str>, read: Option<&str>) -> bool {
        let listed = Listed {
            key: "k".to_owned(),
            size: 1,
            last_modified_ms: 1,
            e_tag: listed.map(str::to_owned),
        };
        let version = Version(UpdateVersion {
            e_tag: read.map(str::to_owned),
            version: Some("7".to_owned()),
        });
        listed.is_at(&version)
    }

    #[test]
    fn a_listing_shows_a_version_by_its_strong_tag() {
        for (listed, read) in [("\"a\"", "\"a\""), ("0x8D", "\"0x8D\""), ("a-2", "a-2")] {
            assert!(is_at(Some(listed), Some(read)), "{listed} {read}");
        }
        for (listed, read) in [
            (Some("\"a\""), Some("\"b\"")),
            (Some("W/\"a\""), Some("W/\"a\"")),
            (Some("\"\""), Some("\"\"")),
            (Some(""), Some("")),
            (None, Some("\"a\"")),
            (Some("\"a\""), None),
            (None, None),
        ] {
            assert!(!is_at(listed, read), "{listed:?} {read:?}");
        }
    }

    #[test]
    fn every_request_can_run_on_any_thread() {
        let store = Store::memory();
        spawnable(async move {
            let _ = store.get("k").await;
            let _ = store.get_range("k", 0..1).await;
            let _ = store.put_if_absent("k", Vec::new()).await;
            let _ = store.compare_and_set("k", None, Bytes::new()).await;
            let _ = store.list("").await;
            let _ = store.delete("k").await;
            let _ = store.head("k").await;
            let _ = store.self_test().await;
            let url = crate::BufferUrl::parse("memory:///").expect("url");
            let _ = Store::open(&url, &crate::StoreOptions::default()).await;
        });
    }
}
