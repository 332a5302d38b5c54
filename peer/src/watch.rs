//! `POST /v1/watch`: the leader answers a consumer with the manifest as soon as it has a newer one. The consumer's cursor vouches for
//! its certificate, which allows nothing else.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use millpond_manifest::{Fingerprint, layout};
use millpond_producer::{CURSOR_MEMORY, PeerRefusal, Producer, Watcher};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::consumers::{Consumers, Verdict};
use crate::server::{Rejection, Service};

/// The header that names the consumer that asks.
pub(crate) const CONSUMER: &str = "millpond-consumer";
/// The header that names the shard, because a process may have producers in several.
pub(crate) const SHARD: &str = "millpond-shard";
/// The header with the version that the consumer has.
pub(crate) const NEWER_THAN: &str = "millpond-newer-than";

/// A consumer whose cursor the leader may not read yet waits this long. It polls meanwhile.
const READ_WAIT: Duration = Duration::from_secs(2);

/// The consumers of a leader.
pub(crate) struct Watches {
    consumers: Mutex<Consumers>,
    places: Arc<Semaphore>,
}

/// The consumer of one connection, from its first request that the leader accepts.
pub(crate) type Place = OnceLock<(Watcher, OwnedSemaphorePermit)>;

impl Watches {
    /// For at most this many connections.
    pub(crate) fn new(max: usize) -> Watches {
        Watches {
            consumers: Mutex::default(),
            places: Arc::new(Semaphore::new(max)),
        }
    }

    fn judge(&self, cursor: &str, presented: Fingerprint) -> Verdict {
        let mut consumers = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        consumers.judge(cursor, presented, Instant::now())
    }

    fn found(&self, cursor: &str, certificate: Option<Fingerprint>) {
        let mut consumers = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        consumers.found(cursor, certificate, Instant::now());
    }

    /// The place of a connection. `None`: there are too many.
    fn place<'a>(&self, place: &'a Place, producer: &Producer) -> Option<&'a Watcher> {
        if place.get().is_none() {
            let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
            // A request that came at the same time may have taken the place.
            let _ = place.set((producer.watch(), permit));
        }
        place.get().map(|(watcher, _)| watcher)
    }
}

impl Service {
    /// Answers one request. `prove` is called once the certificate is vouched for.
    pub(crate) async fn watch(
        &self,
        request: &Request<Incoming>,
        presented: Fingerprint,
        place: &Place,
        prove: impl Fn(),
    ) -> Result<Bytes, Rejection> {
        let bad = |reason: String| (StatusCode::BAD_REQUEST, reason);
        let headers = request.headers();
        let consumer = text(headers, CONSUMER).ok_or_else(|| bad(format!("{CONSUMER} is missing")))?;
        layout::check_reader_name(consumer).map_err(|error| bad(error.to_string()))?;
        let newer_than = text(headers, NEWER_THAN).and_then(|text| text.parse::<u64>().ok());
        let newer_than = newer_than.ok_or_else(|| bad(format!("{NEWER_THAN} is no version")))?;
        if !request.body().is_end_stream() {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the request has a body".to_owned()));
        }
        let producer = self.producer_of(text(headers, SHARD))?;
        self.authorize_consumer(consumer, &producer, presented).await?;
        prove();
        let busy = || {
            let reason = "too many consumers watch this producer".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, reason)
        };
        let watcher = self.watches.place(place, &producer).ok_or_else(busy)?;
        watcher.next(newer_than).await.map_err(|refusal| {
            let status = match refusal {
                PeerRefusal::NotLeading | PeerRefusal::Leaving => StatusCode::CONFLICT,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, refusal.to_string())
        })
    }

    /// The producer of a shard. Older consumers do not name one.
    fn producer_of(&self, shard: Option<&str>) -> Result<Producer, Rejection> {
        let Some(shard) = shard else {
            return Ok(self.serving.newest());
        };
        let mut serving = self.serving.all().into_iter();
        let found = serving.find(|producer| producer.shard().to_string() == shard);
        found.ok_or_else(|| {
            let reason = format!("this process does not lead shard {shard}");
            (StatusCode::CONFLICT, reason)
        })
    }

    /// Checks that the consumer's cursor in the producer's shard vouches for the certificate.
    async fn authorize_consumer(
        &self,
        consumer: &str,
        producer: &Producer,
        presented: Fingerprint,
    ) -> Result<(), Rejection> {
        let cursor = layout::cursor(producer.shard(), consumer);
        let give_up_at = Instant::now() + READ_WAIT;
        loop {
            match self.watches.judge(&cursor, presented) {
                Verdict::Vouched => return Ok(()),
                Verdict::Read => break,
                Verdict::Wait(until) if until <= give_up_at => sleep_until(until).await,
                Verdict::Wait(_) => {
                    let reason = "cursors are read too often".to_owned();
                    return Err((StatusCode::TOO_MANY_REQUESTS, reason));
                }
            }
        }
        let unreadable = |reason: String| {
            tracing::debug!(consumer, reason, "cannot check the certificate of a consumer");
            let reason = "the cursor cannot be read now".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, reason)
        };
        // Without a wait, in which a stranger would keep others from their memory: a consumer polls meanwhile.
        let held = self.try_reserve(CURSOR_MEMORY);
        let _held = held.ok_or_else(|| unreadable(PeerRefusal::OverBudget.to_string()))?;
        let read = timeout(self.config.patience, producer.certificate_of_consumer(consumer)).await;
        let found = read.map_err(|_| unreadable("the store does not answer".to_owned()))?;
        let found = found.map_err(unreadable)?;
        self.watches.found(&cursor, found);
        if found == Some(presented) {
            return Ok(());
        }
        let reason = format!("the cursor does not vouch for this certificate of consumer {consumer}");
        Err((StatusCode::FORBIDDEN, reason))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The bytes of an answer, which tell when the last of them was sent, or given up.
struct Sending {
    bytes: Bytes,
    _sent: DropGuard,
}

impl AsRef<[u8]> for Sending {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Closes the connection of a reader that is slower than `patience`: it holds a copy of an old manifest.
pub(crate) fn within(patience: Duration, bytes: Bytes, slow: &CancellationToken) -> Bytes {
    let (sent, slow) = (CancellationToken::new(), slow.clone());
    let sending = Sending {
        bytes,
        _sent: sent.clone().drop_guard(),
    };
    tokio::spawn(async move {
        if timeout(patience, sent.cancelled()).await.is_err() {
            slow.cancel();
        }
    });
    Bytes::from_owner(sending)
}
