//! One connection that has passed the entrance: does the peer speak HTTP/2, how far may it send ahead, and HTTP/2 itself
//! (hyper). It never looks into a request.

use std::io::Cursor;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use millpond_producer::{Budget, Reservation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::entrance::{HTTP1_METHODS, Link, Refused};
use crate::request::Service;

/// What an HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The smallest connection window that HTTP/2 knows (RFC 9113, 6.9.2).
const WINDOW_MIN: u32 = 65_535;

/// The first connection may send ahead by this part of the memory budget at most.
const WINDOW_SHARE: usize = 16;

const HTTP1_ANSWER: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 46\r\n\r\nthis port speaks OTLP/gRPC, which needs HTTP/2";

/// Where the tasks of connections and requests run, so that they can be waited for and ended.
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

/// Where a request comes from: every request has it among its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Serves a connection, the `nth` of those open, until it is closed or drained.
pub(crate) async fn serve(
    link: Link,
    peer: SocketAddr,
    nth: usize,
    service: Arc<Service>,
    config: &Config,
    budget: &Budget,
    tasks: Tasks,
) -> Result<(), Refused> {
    let (mut read, mut write) = tokio::io::split(link);
    timeout(config.handshake_timeout, preface(&mut read, &mut write))
        .await
        .map_err(|_| Refused::Slow)??;
    let (window, _reserved) = window(config.connection_window_bytes, nth, budget);
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
    let io = TokioIo::new(tokio::io::join(Cursor::new(PREFACE).chain(read), write));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        Arc::clone(&service).answer(request)
    });
    let mut connection = pin!(builder.serve_connection(io, answer));
    let closed = tokio::select! {
        closed = connection.as_mut() => closed,
        () = tasks.drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = closed {
        tracing::debug!(%error, "connection closed");
    }
    Ok(())
}

/// Reads HTTP/2's first bytes. Anything else ends the connection at the first byte that differs.
async fn preface(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Refused> {
    let mut got = [0; PREFACE.len()];
    let mut have = 0;
    while have < PREFACE.len() {
        match read.read(&mut got[have..]).await? {
            0 => return Err(Refused::NotHttp2),
            more => have += more,
        }
        if got[..have] != PREFACE[..have] {
            if HTTP1_METHODS.iter().any(|method| got.starts_with(method)) {
                write.write_all(HTTP1_ANSWER).await?;
            }
            return Err(Refused::NotHttp2);
        }
    }
    Ok(())
}

/// How far the `nth` connection may send ahead of what is read, and the reservation for it. When memory is short that is
/// the protocol's minimum, which cannot be refused and is not reserved.
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
