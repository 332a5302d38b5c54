//! The port for other producers and for consumers. Nobody else gets more from it than a handshake, and every byte that waits here is
//! reserved.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use millpond_gateway::{Connections, Room, Seat};
use millpond_manifest::{Fingerprint, ProducerId};
use millpond_producer::{PeerAnswer, PeerRefusal, Producer, Serving};
use millpond_runtime::Budget;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::identity::{Identity, fingerprint};
use crate::tls;
use crate::watch::{Place, Watches, within};
use crate::wire::{WireError, decode_request, elements, encode_reply};
use crate::{COMMIT_PATH, NUMBERED_PATH, WATCH_PATH};

/// The header that names the producer that asks, as a UUID.
pub(crate) const PRODUCER: &str = "millpond-producer";
/// The content type of requests and replies.
pub(crate) const CONTENT: &str = "application/x-protobuf";

/// Followers may take this fraction of the producer's memory.
const SHARE: usize = 2;
/// Consumers that watch may take this fraction of the connections.
const WATCHERS_SHARE: usize = 4;
/// Memory of an open connection: TLS's buffers and HTTP/2's window.
const CONNECTION_BYTES: usize = (48 << 10) + WINDOW_BYTES as usize;
/// The bytes that a client may send ahead. The minimum of HTTP/2: within a zone that is no limit.
const WINDOW_BYTES: u32 = 65_535;
/// A request is in memory as received and as blocks.
const COPIES: usize = 2;
/// Memory of a request beside its body.
const REQUEST_BYTES: usize = 8 << 10;
/// Memory of a block, a segment or a part beside its bytes, as received and as decoded.
const ELEMENT_BYTES: usize = 512;
/// Pause of accepting when the system refuses.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A request waits this long for memory, since its producer can also commit without this one.
const MEMORY_WAIT: Duration = Duration::from_secs(1);
/// A certificate that this producer does not know may be in a manifest that it has not read yet.
const CERTIFICATE_WAIT: Duration = Duration::from_millis(500);
const CERTIFICATE_POLL: Duration = Duration::from_millis(20);

/// The limits of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Maximum number of open connections. A further one replaces the slowest that has not proven itself. Default 512.
    pub max_connections: usize,
    /// Maximum number of requests in flight on one connection. Default 8: a producer has one.
    pub max_streams: u32,
    /// Maximum number of connections of consumers that watch. Further ones poll. Default 128.
    pub max_watchers: usize,
    /// Maximum bytes of a request. Default 2 MiB.
    pub max_request_bytes: usize,
    /// Time limit for the handshake of a connection, for the body of a request, and for a consumer to read an answer. Default 5 s.
    pub patience: Duration,
    /// Time limit for requests in flight to finish once the producer stops. Default 10 s.
    pub drain_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            max_connections: 512,
            max_streams: 8,
            max_watchers: 128,
            max_request_bytes: 2 << 20,
            patience: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Commits for other producers, and tells consumers of commits.
pub struct Server {
    service: Arc<Service>,
    acceptor: TlsAcceptor,
    connections: Connections,
    tasks: TaskTracker,
    closing: CancellationToken,
}

pub(crate) struct Service {
    pub(crate) serving: Serving,
    pub(crate) budget: Budget,
    pub(crate) config: ServerConfig,
    share: Budget,
    pub(crate) watches: Watches,
}

/// A connection whose handshake is done.
struct Visit {
    presented: Fingerprint,
    seat: Seat,
    /// A request on it was authorised.
    proven: CancellationToken,
    /// It did not read an answer in time.
    slow: CancellationToken,
    place: Place,
}

impl Visit {
    fn prove(&self) {
        self.seat.prove();
        self.proven.cancel();
    }
}

/// An answer that is no reply: the request was not looked into.
pub(crate) type Rejection = (StatusCode, String);

impl Server {
    /// A port in front of one producer, or of those of a process that may lead.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn new(
        serving: impl Into<Serving>,
        identity: &Identity,
        config: ServerConfig,
    ) -> Result<Server, rustls::Error> {
        let serving = serving.into();
        let budget = serving.budget();
        let share = budget.part(SHARE);
        // Half of the share is left to requests.
        let connections = config.max_connections.min(share.limit() / 2 / CONNECTION_BYTES);
        Ok(Server {
            acceptor: TlsAcceptor::from(Arc::new(tls::server(identity)?)),
            connections: Connections::new(connections),
            service: Arc::new(Service {
                watches: Watches::new(config.max_watchers.min(connections / WATCHERS_SHARE)),
                share,
                budget,
                serving,
                config,
            }),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Serves until `shutdown`, and until the requests in flight are answered.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let _closed = self.closing.clone().drop_guard();
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = async {
                    let room = self.connections.room().await;
                    listener.accept().await.map(|(stream, from)| (stream, from, room))
                } => accepted,
            };
            match accepted {
                Ok((stream, from, room)) => self.accept(stream, from, room),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of another producer");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        self.closing.cancel();
        self.tasks.close();
        // What is left is cut off: its producers commit for themselves.
        let _ = timeout(self.service.config.drain_timeout, self.tasks.wait()).await;
    }

    fn accept(&self, stream: TcpStream, from: SocketAddr, room: Room) {
        let Some(connection) = self.connections.admit(from.ip(), room) else {
            return tracing::debug!(%from, "connection closed: all connections are busy");
        };
        let (service, acceptor, closing) = (
            Arc::clone(&self.service),
            self.acceptor.clone(),
            self.closing.clone(),
        );
        self.tasks.spawn(async move {
            let served = service.serve(stream, acceptor, connection.seat(), closing);
            if let Some(Err(reason)) = connection.until_closed(served).await {
                tracing::debug!(%from, reason, "connection of another producer closed");
            }
        });
    }
}

impl Service {
    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        acceptor: TlsAcceptor,
        seat: Seat,
        closing: CancellationToken,
    ) -> Result<(), String> {
        let _held = self
            .share
            .reserve(CONNECTION_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream = timeout(self.config.patience, acceptor.accept(stream)).await;
        let stream = stream
            .map_err(|_| "the handshake took too long")?
            .map_err(|error| error.to_string())?;
        let certificates = stream.get_ref().1.peer_certificates();
        let presented = certificates.and_then(|all| all.first()).map(fingerprint);
        let presented = presented.ok_or("it has no certificate")?;
        let visit = Arc::new(Visit {
            presented,
            seat,
            proven: CancellationToken::new(),
            slow: CancellationToken::new(),
            place: Place::default(),
        });
        let answer = service_fn({
            let (service, visit) = (Arc::clone(&self), Arc::clone(&visit));
            move |request| {
                let (service, visit) = (Arc::clone(&service), Arc::clone(&visit));
                async move { Ok::<_, Infallible>(service.answer(request, &visit).await) }
            }
        });
        let unproven = async {
            if timeout(self.config.patience, visit.proven.cancelled())
                .await
                .is_ok()
            {
                std::future::pending::<()>().await;
            }
        };
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_concurrent_streams(self.config.max_streams)
            .max_header_list_size(4 << 10)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10));
        let connection = builder.serve_connection(TokioIo::new(stream), answer);
        let mut connection = std::pin::pin!(connection);
        let closed = tokio::select! {
            closed = connection.as_mut() => closed,
            () = unproven => return Err("no producer or consumer of this buffer asked on it".to_owned()),
            () = visit.slow.cancelled() => return Err("it reads too slowly".to_owned()),
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        closed.map_err(|error| error.to_string())
    }

    async fn answer(&self, request: Request<Incoming>, visit: &Visit) -> Response<Full<Bytes>> {
        let path = (request.method() == Method::POST).then(|| request.uri().path());
        let answered = match path {
            Some(COMMIT_PATH | NUMBERED_PATH) => {
                let answer = self.commit(request, visit).await;
                answer.map(|answer| encode_reply(&answer))
            }
            Some(WATCH_PATH) => {
                let prove = || visit.prove();
                let answer = self.watch(&request, visit.presented, &visit.place, prove).await;
                answer.map(|manifest| within(self.config.patience, manifest, &visit.slow))
            }
            _ => {
                let reason = format!("only POST {COMMIT_PATH}, {NUMBERED_PATH} and {WATCH_PATH} are here");
                Err((StatusCode::NOT_FOUND, reason))
            }
        };
        let (status, body) = match answered {
            Ok(body) => (StatusCode::OK, body),
            Err((status, reason)) => {
                tracing::debug!(%status, reason, "request of another process rejected");
                (status, format!("{reason}\n").into())
            }
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    async fn commit(&self, request: Request<Incoming>, visit: &Visit) -> Result<PeerAnswer, Rejection> {
        let (head, body) = request.into_parts();
        let (producer, leader) = self.authorize(&head.headers, visit.presented).await?;
        visit.prove();
        let _answering = visit.seat.answering();
        let length = length(&head.headers, &body, self.config.max_request_bytes)?;
        let (mut share, mut reservation) = match self.reserve(memory_of_body(length)).await {
            Ok(held) => held,
            Err(refusal) => return Ok(PeerAnswer::Refused(refusal)),
        };
        let body = timeout(self.config.patience, Limited::new(body, length).collect()).await;
        let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the body took too long".to_owned()))?;
        let body = body
            .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?
            .to_bytes();
        let unreadable = |error: WireError| (StatusCode::BAD_REQUEST, error.to_string());
        match self.reserve(memory_of_elements(&body).map_err(unreadable)?).await {
            Ok((more_share, more)) => {
                share.merge(more_share);
                reservation.merge(more);
            }
            Err(refusal) => return Ok(PeerAnswer::Refused(refusal)),
        }
        let request = decode_request(body).map_err(unreadable)?;
        if request.producer != producer {
            let reason = format!(
                "the request is of producer {}, not of {producer}",
                request.producer
            );
            return Err((StatusCode::FORBIDDEN, reason));
        }
        let outcome = leader.commit_for(request, reservation).await;
        drop(share);
        Ok(match outcome {
            Ok(commit) => PeerAnswer::Committed(commit),
            Err(refusal) => PeerAnswer::Refused(refusal),
        })
    }

    /// Checks that a manifest vouches for the certificate of the producer that asks. Returns it, and the producer of its shard: a
    /// producer is registered in one shard.
    async fn authorize(
        &self,
        headers: &HeaderMap,
        presented: Fingerprint,
    ) -> Result<(ProducerId, Producer), Rejection> {
        let named = headers.get(PRODUCER).and_then(|value| value.to_str().ok());
        let named: Option<ProducerId> = named.and_then(|value| value.parse().ok());
        let Some(producer) = named else {
            return Err((StatusCode::BAD_REQUEST, format!("{PRODUCER} is no producer id")));
        };
        let start = Instant::now();
        loop {
            let serving = self.serving.all();
            let of_its_shard = serving
                .iter()
                .find(|it| it.certificate_of(producer) == Some(presented));
            if let Some(leader) = of_its_shard {
                return Ok((producer, leader.clone()));
            }
            if start.elapsed() >= CERTIFICATE_WAIT {
                let reason =
                    format!("the manifest does not vouch for this certificate of producer {producer}");
                return Err((StatusCode::FORBIDDEN, reason));
            }
            serving.iter().for_each(|it| it.look_for(producer));
            sleep(CERTIFICATE_POLL).await;
        }
    }

    /// Memory that is free now.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<[millpond_runtime::Reservation; 2]> {
        Some([self.share.try_reserve(bytes)?, self.budget.try_reserve(bytes)?])
    }

    async fn reserve(
        &self,
        bytes: usize,
    ) -> Result<(millpond_runtime::Reservation, millpond_runtime::Reservation), PeerRefusal> {
        let over = |_| PeerRefusal::OverBudget;
        let share = self.share.reserve(bytes);
        let share = timeout(MEMORY_WAIT, share)
            .await
            .map_err(|_| PeerRefusal::OverBudget)?
            .map_err(over)?;
        let own = self.budget.reserve(bytes);
        let own = timeout(MEMORY_WAIT, own)
            .await
            .map_err(|_| PeerRefusal::OverBudget)?
            .map_err(over)?;
        Ok((share, own))
    }
}

/// Memory of a request with a body of this length, before its elements are counted.
pub(crate) fn memory_of_body(length: usize) -> usize {
    length * COPIES + REQUEST_BYTES
}

/// Memory of what is in a request, beside its bytes.
pub(crate) fn memory_of_elements(body: &[u8]) -> Result<usize, WireError> {
    Ok(elements(body)?.saturating_mul(ELEMENT_BYTES))
}

/// The announced length of a body, which has to be there.
fn length(headers: &HeaderMap, body: &Incoming, max: usize) -> Result<usize, Rejection> {
    if headers.get(CONTENT_TYPE) != Some(&HeaderValue::from_static(CONTENT)) {
        let reason = format!("content-type must be {CONTENT}");
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, reason));
    }
    let length = body
        .size_hint()
        .exact()
        .and_then(|length| usize::try_from(length).ok());
    let Some(length) = length else {
        return Err((
            StatusCode::LENGTH_REQUIRED,
            "content-length is missing".to_owned(),
        ));
    };
    if length > max {
        let reason = format!("a request of {length} bytes is over the limit of {max}");
        return Err((StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    Ok(length)
}
