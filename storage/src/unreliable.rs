//! A store behind a bad network: a decorator for robustness tests, and S3's latencies for benchmarks on one machine.
//!
//! It loses requests and answers, delays them, and lets writes land after it reported them as failed. It never breaks
//! the guarantees of the store behind it. All randomness is seeded.

mod controls;
mod latency;

pub use controls::{Controls, Fault, Faults, HeldRequest, Injected, On, Outage, WriteFaults};
pub use latency::{LogNormal, S3Latency};

use async_trait::async_trait;
use controls::Fate;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const STORE: &str = "unreliable";

/// Forwards requests to another store, or loses them.
#[derive(Debug, Clone)]
pub struct Unreliable {
    inner: Arc<dyn ObjectStore>,
    controls: Controls,
}

impl Unreliable {
    /// Wraps the given store with these faults until its [`Controls`] change them.
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Faults) -> Self {
        Self {
            inner,
            controls: Controls::new(faults),
        }
    }

    /// The controls of this store.
    pub fn controls(&self) -> Controls {
        self.controls.clone()
    }

    /// Sends a write to the store or loses it, according to its fate.
    async fn write<T: Send + 'static>(
        &self,
        on: On,
        location: &Path,
        bytes: u64,
        send: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let fate = self.controls.fate(on, Some(location));
        let (answer, transfer) = self.controls.delays(on, bytes);
        // The write takes effect some time between the request and the answer.
        let there = transfer + answer / 2;
        let back = answer / 2;
        match fate {
            Fate::Honest => {}
            Fate::Held(gate) => gate.pass().await,
            Fate::Fault(Fault::Hangs) => return std::future::pending().await,
            Fate::Fault(Fault::Lost) => {
                wait(there + back).await;
                return Err(fault("the connection was lost before the request was sent"));
            }
            Fate::Fault(Fault::Denied) => {
                wait(there + back).await;
                return Err(denied(Some(location)));
            }
            Fate::Fault(Fault::LandsUnreported) => {
                wait(there).await;
                // The answer is lost, whether the write took effect or not.
                drop(send.await);
                wait(back).await;
                return Err(fault("the connection was lost before the answer came"));
            }
            Fate::Fault(Fault::LandsLate(by)) => {
                self.later(tokio::time::sleep(by), send);
                wait(there + back).await;
                return Err(fault("no answer came in time"));
            }
            Fate::Fault(Fault::Repeated(after)) => {
                wait(there).await;
                send.await?;
                wait(after + back).await;
                return Err(refused(on, location));
            }
            Fate::Detained(gate) => {
                self.later(async move { gate.pass().await }, send);
                wait(there + back).await;
                return Err(fault("no answer came in time"));
            }
        }
        wait(there).await;
        let result = send.await;
        wait(back).await;
        result
    }

    /// Sends a write in the background, after its sender got an error.
    fn later<T: Send + 'static>(
        &self,
        until: impl Future<Output = ()> + Send + 'static,
        send: impl Future<Output = Result<T>> + Send + 'static,
    ) {
        self.controls.late(|late| *late += 1);
        let controls = self.controls();
        tokio::spawn(async move {
            until.await;
            drop(send.await);
            controls.late(|late| *late -= 1);
        });
    }

    /// Waits until a read may proceed, or fails.
    async fn read(&self, on: On, location: Option<&Path>) -> Result<()> {
        let fate = self.controls.fate(on, location);
        let (first_byte, _) = self.controls.delays(on, 0);
        wait(first_byte).await;
        match fate {
            Fate::Honest => Ok(()),
            Fate::Held(gate) => {
                gate.pass().await;
                Ok(())
            }
            Fate::Fault(Fault::Hangs) => std::future::pending().await,
            Fate::Fault(Fault::Denied) => Err(denied(location)),
            Fate::Fault(_) | Fate::Detained(_) => Err(fault("the connection was lost")),
        }
    }
}

async fn wait(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

fn fault(what: &'static str) -> Error {
    Error::Generic {
        store: STORE,
        source: what.into(),
    }
}

fn denied(location: Option<&Path>) -> Error {
    Error::PermissionDenied {
        path: location.map(Path::to_string).unwrap_or_default(),
        source: "403 AccessDenied".into(),
    }
}

/// The store's answer to the second copy of a write that took effect.
fn refused(on: On, location: &Path) -> Error {
    let path = location.to_string();
    match on {
        On::Create => Error::AlreadyExists {
            path,
            source: "409 BlobAlreadyExists".into(),
        },
        On::Update => Error::Precondition {
            path,
            source: "the first copy of the request took effect".into(),
        },
        On::Put | On::Get | On::List | On::Delete => fault("the connection was lost before the answer came"),
    }
}

fn unused(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

impl fmt::Display for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unreliable({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Unreliable {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let on = match options.mode {
            PutMode::Overwrite => On::Put,
            PutMode::Create => On::Create,
            PutMode::Update(_) => On::Update,
        };
        let bytes = payload.content_length() as u64;
        let (inner, to) = (Arc::clone(&self.inner), location.clone());
        let send = async move { inner.put_opts(&to, payload, options).await };
        self.write(on, location, bytes, send).await
    }

    async fn put_multipart_opts(
        &self,
        _location: &Path,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unused("a multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if let Err(error) = self.read(On::Get, Some(location)).await {
            // Half of the failures come after the body has begun, if there is a body.
            if matches!(error, Error::PermissionDenied { .. }) || self.controls.chance(2) == 0 {
                return Err(error);
            }
            return match self.inner.get_opts(location, options).await {
                Err(_) => Err(error),
                Ok(mut result) => {
                    let broken = stream::once(async { Err(error) });
                    result.payload = GetResultPayload::Stream(broken.boxed());
                    Ok(result)
                }
            };
        }
        let result = self.inner.get_opts(location, options).await?;
        let bytes = result.range.end.saturating_sub(result.range.start);
        wait(self.controls.transfer(bytes)).await;
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let (inner, to) = (Arc::clone(&store.inner), location.clone());
                    let send = async move { inner.delete(&to).await };
                    store.write(On::Delete, &location, 0, send).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let prefix = prefix.cloned();
        let listing = async move {
            let failed = store.read(On::List, prefix.as_ref()).await;
            let entries = store.inner.list(prefix.as_ref());
            Ok::<_, Error>(match failed {
                Ok(()) => entries,
                // A listing can break off at any entry.
                Err(error) => entries
                    .take(store.controls.chance(4))
                    .chain(stream::once(async { Err(error) }))
                    .boxed(),
            })
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.read(On::List, prefix).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unused("a copy"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cas, Created, ErrorKind, Store};
    use bytes::Bytes;
    use object_store::memory::InMemory;

    fn store(faults: Faults) -> (Store, Controls) {
        let unreliable = Unreliable::new(Arc::new(InMemory::new()), faults);
        let controls = unreliable.controls();
        (Store::over(Arc::new(unreliable), "b"), controls)
    }

    async fn content(store: &Store, key: &str) -> Option<Bytes> {
        store.get(key).await.expect("get").map(|found| found.bytes)
    }

    #[tokio::test]
    async fn a_scripted_unreported_write_lands() {
        let (store, controls) = store(Faults::default());
        controls.once(On::Create, "s/manifest", Fault::LandsUnreported);
        let other = store.put_if_absent("s/other", vec!["x".into()]).await;
        assert_eq!(other, Ok(Created::New));
        let cas = store.compare_and_set("s/manifest", None, "x".into()).await;
        assert!(matches!(cas, Cas::Unknown(_)), "{cas:?}");
        assert_eq!(content(&store, "s/manifest").await, Some("x".into()));
        assert_eq!(controls.unused(), 0);
        assert_eq!(store.requests().cas_unknown, 1);
    }

    #[tokio::test]
    async fn a_lost_write_has_no_effect_and_a_late_one_has_it_later() {
        let (store, controls) = store(Faults::default());
        controls.once(On::Put, "k", Fault::Lost);
        let error = store.put_if_absent("k", vec!["1".into()]).await;
        assert_eq!(error.map_err(|e| e.kind()), Err(ErrorKind::Transient));
        controls.settled().await;
        assert_eq!(content(&store, "k").await, None);

        controls.once(On::Put, "k", Fault::LandsLate(Duration::from_millis(1)));
        assert!(store.put_if_absent("k", vec!["2".into()]).await.is_err());
        controls.settled().await;
        assert_eq!(content(&store, "k").await, Some("2".into()));
    }

    #[tokio::test]
    async fn a_detained_write_lands_when_it_is_released() {
        let (store, controls) = store(Faults::default());
        let mut late = controls.detain(On::Create, "k");
        assert!(store.put_if_absent("k", vec!["late".into()]).await.is_err());
        late.arrived().await;
        assert_eq!(content(&store, "k").await, None);
        late.release();
        controls.settled().await;
        assert_eq!(content(&store, "k").await, Some("late".into()));
    }

    #[tokio::test]
    async fn a_held_write_waits_and_is_then_honest() {
        let (store, controls) = store(Faults::default());
        let mut held = controls.hold(On::Create, "k");
        let writer = tokio::spawn({
            let store = store.clone();
            async move { store.put_if_absent("k", vec!["held".into()]).await }
        });
        held.arrived().await;
        assert_eq!(
            store.put_if_absent("k", vec!["first".into()]).await,
            Ok(Created::New)
        );
        held.release();
        assert_eq!(writer.await.expect("join"), Ok(Created::Existed));
        assert_eq!(content(&store, "k").await, Some("first".into()));
    }

    #[tokio::test]
    async fn in_an_outage_requests_fail_or_hang_until_they_time_out() {
        let (store, controls) = store(Faults::default());
        let store = store.with_request_timeout(Duration::from_millis(20));
        for outage in [Outage::Fails, Outage::Hangs] {
            controls.set_outage(Some(outage));
            let error = store.get("k").await.expect_err("an outage");
            assert_eq!(error.kind(), ErrorKind::Transient);
            assert!(store.put_if_absent("k", vec!["x".into()]).await.is_err());
            assert!(store.list("").await.is_err());
            assert!(store.delete("k").await.is_err());
        }
        controls.set_outage(None);
        let store = store.with_request_timeout(Duration::from_secs(30));
        assert_eq!(content(&store, "k").await, None);
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_faults_and_each_of_them() {
        let run = async |seed: u64| {
            let faults = Faults {
                seed,
                write: WriteFaults::each(0.2),
                read_error: 0.2,
                latency: None,
            };
            let (store, controls) = store(faults);
            let mut story = Vec::new();
            for i in 0..200 {
                let key = format!("k{i}");
                let put = store.put_if_absent(&key, vec!["x".into()]).await;
                controls.settled().await;
                story.push(put.map(|_| 0).map_err(|error| error.to_string()));
                let read = store.get(&key).await;
                story.push(read.map(|_| 1).map_err(|error| error.to_string()));
            }
            controls.heal();
            let landed = store.list("").await.expect("list").len();
            (story, landed)
        };
        let (story, landed) = run(1).await;
        assert_eq!((&story, landed), (&run(1).await.0, landed));
        assert_ne!(story, run(2).await.0);
        let count = |what| story.iter().filter(|step| **step == Ok(what)).count();
        let (reported, read) = (count(0), count(1));
        assert!(reported < landed && landed < 200, "{reported} {landed}");
        assert!((100..200).contains(&read), "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn latency_delays_every_request_and_the_same_seed_gives_the_same_delays() {
        let run = async |seed: u64| {
            let (store, _) = store(Faults {
                seed,
                latency: Some(S3Latency::default()),
                ..Faults::default()
            });
            let body = Bytes::from(vec![0; 8_000_000]);
            let mut times = Vec::new();
            for i in 0..20 {
                let key = format!("k{i}");
                let started = tokio::time::Instant::now();
                store.put_if_absent(&key, vec![body.clone()]).await.expect("put");
                times.push(started.elapsed());
                content(&store, &key).await.expect("there");
                times.push(started.elapsed());
            }
            times
        };
        let times = run(1).await;
        // The body's transfer time in each direction is the minimum.
        let wire = S3Latency::default().transfer(8_000_000);
        assert!(
            times.chunks(2).all(|t| t[0] > wire && t[1] > t[0] + wire),
            "{times:?}"
        );
        assert_eq!(times, run(1).await);
        assert_ne!(times, run(2).await);
    }
}
