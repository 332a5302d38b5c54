//! Serves one connection that has passed the entrance: detects HTTP/2, sets its window, and runs HTTP (hyper). Its transport
//! decides who answers a request; nothing here looks into one.

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use millpond_runtime::{Budget, Reservation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::connections::Seat;
use crate::entrance::{HTTP1_METHODS, Link, Refused};
use crate::envelope::Peer;
use crate::metrics::Transport;
use crate::request::Service;
use crate::{grpc, http};

/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The smallest connection window in HTTP/2 (RFC 9113, 6.9.2).
const WINDOW_MIN: u32 = 65_535;

/// The first connection's window is at most this fraction of the memory budget.
const WINDOW_SHARE: usize = 16;

/// The answer to an HTTP/1 client at the OTLP/gRPC port.
const HTTP1_ANSWER: &str = "this port speaks OTLP/gRPC, which needs HTTP/2; OTLP/HTTP uses another port (--listen-http, 4318 by default)\n";

/// The smallest read buffer that hyper allows an HTTP/1 connection.
const HTTP1_BUFFER_MIN: usize = 8 << 10;

/// Tracks the tasks of connections and requests, to wait for them and to end them.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    pub(crate) tracker: TaskTracker,
    /// Connections finish their requests and close.
    pub(crate) drain: CancellationToken,
    /// Everything ends at once.
    pub(crate) kill: CancellationToken,
}

impl Tasks {
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let kill = self.kill.clone();
        self.tracker
            .spawn(async move { kill.run_until_cancelled_owned(task).await });
    }
}

impl<F> Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// A connection that has passed the entrance.
pub(crate) struct Arrival {
    pub(crate) link: Link,
    pub(crate) peer: SocketAddr,
    pub(crate) seat: Seat,
    pub(crate) transport: Transport,
    /// The number of open connections, including this one.
    pub(crate) nth: usize,
}

/// Serves a connection until it is closed or drained.
pub(crate) async fn serve(
    arrival: Arrival,
    service: Arc<Service>,
    config: &Config,
    budget: &Budget,
    tasks: Tasks,
) -> Result<(), Refused> {
    let Arrival {
        link,
        peer,
        seat,
        transport,
        nth,
    } = arrival;
    let (mut read, mut write) = tokio::io::split(link);
    let opening = timeout(config.handshake_timeout, opening(&mut read))
        .await
        .map_err(|_| Refused::Slow)??;
    if transport == Transport::Grpc && !opening.is_http2() {
        return Err(not_http2(&mut write, &opening).await?);
    }
    let is_http2 = opening.is_http2();
    let io = TokioIo::new(tokio::io::join(Cursor::new(opening.bytes).chain(read), write));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer {
            address: peer,
            seat: seat.clone(),
        });
        let service = Arc::clone(&service);
        async move {
            Ok::<_, Infallible>(match transport {
                Transport::Grpc => grpc::answer(&service, request).await,
                Transport::Http | Transport::Kafka => http::answer(&service, request).await,
            })
        }
    });
    let closed = if is_http2 {
        let (window, _reserved) = window(config.connection_window_bytes, nth, budget);
        let connection = http2(config, window, &tasks).serve_connection(io, answer);
        until_closed(connection, http2::Connection::graceful_shutdown, &tasks).await
    } else {
        let connection = http1(config).serve_connection(io, answer);
        until_closed(connection, http1::Connection::graceful_shutdown, &tasks).await
    };
    if let Err(error) = closed {
        tracing::debug!(%error, "connection closed");
    }
    Ok(())
}

fn http2(config: &Config, window: u32, tasks: &Tasks) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(tasks.clone());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(config.stream_window_bytes.min(window))
        .initial_connection_window_size(window)
        .max_concurrent_streams(config.max_streams_per_connection)
        .max_frame_size(config.max_frame_bytes)
        .max_header_list_size(config.max_header_bytes)
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout);
    builder
}

/// An HTTP/1 connection has one request at a time and buffers at most twice its buffer size unread. That is less than
/// the minimum window of HTTP/2, so nothing is reserved.
fn http1(config: &Config) -> http1::Builder {
    let header_bytes = config.max_header_bytes as usize;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(config.http1_header_timeout)
        .max_header_size(header_bytes)
        .max_buf_size(header_bytes.max(HTTP1_BUFFER_MIN));
    builder
}

/// Waits for the connection's end. When the gateway drains, tells the connection to finish its requests.
async fn until_closed<C>(connection: C, finish: fn(Pin<&mut C>), tasks: &Tasks) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        closed = connection.as_mut() => closed,
        () = tasks.drain.cancelled() => {
            finish(connection.as_mut());
            connection.await
        }
    }
}

/// A connection's first bytes: HTTP/2's preface, or everything up to the first byte that differs from it.
struct Opening {
    bytes: Vec<u8>,
}

impl Opening {
    fn is_http2(&self) -> bool {
        self.bytes == PREFACE
    }
}

async fn opening(stream: &mut (impl AsyncRead + Unpin)) -> Result<Opening, Refused> {
    let mut got = [0; PREFACE.len()];
    let mut have = 0;
    while have < PREFACE.len() && got[..have] == PREFACE[..have] {
        match stream.read(&mut got[have..]).await? {
            0 => break,
            read => have += read,
        }
    }
    let bytes = got[..have].to_vec();
    Ok(Opening { bytes })
}

/// Tells an HTTP/1 client which port it has reached.
async fn not_http2(stream: &mut (impl AsyncWrite + Unpin), opening: &Opening) -> io::Result<Refused> {
    if HTTP1_METHODS
        .iter()
        .any(|method| opening.bytes.starts_with(method))
    {
        let length = HTTP1_ANSWER.len();
        let answer = format!(
            "HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{HTTP1_ANSWER}"
        );
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(Refused::NotHttp2)
}

/// The window of the `nth` connection and its reservation. When memory is short this is the protocol's minimum, which
/// cannot be refused and is not reserved.
fn window(first: u32, nth: usize, budget: &Budget) -> (u32, Option<Reservation>) {
    let part = u32::try_from(budget.limit() / WINDOW_SHARE).unwrap_or(u32::MAX);
    let share = first.min(part) / u32::try_from(nth.max(1)).unwrap_or(u32::MAX);
    if share <= WINDOW_MIN {
        return (WINDOW_MIN, None);
    }
    match budget.reserve(share as usize).now_or_never() {
        Some(Ok(reservation)) => (share, Some(reservation)),
        Some(Err(_)) | None => (WINDOW_MIN, None),
    }
}
