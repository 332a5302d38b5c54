//! The listener behind the admin port: few connections, small buffers, short waits. It does not know the content that it serves.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use millpond_gateway::{Connection, Connections};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

/// Maximum connections: enough for a few scrapers, probes and people. One more takes the place of the slowest.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// Maximum time until a connection has sent the headers of its next request, including idle time. A probe sends them at once, and a
/// scraper reopens a closed connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Read buffer of a connection, in bytes. A request's headers must fit into it; no request here has a body.
const BUFFER_BYTES: usize = 16 << 10;

/// Header lines of one request. 64: browsers send about 20.
const HEADERS_MAX: usize = 64;

/// Pause after the system refuses to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let router = router.layer(from_fn(without_body));
    let connections = Connections::new(CONNECTIONS_MAX);
    loop {
        let room = connections.room().await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "accepting a connection of the admin port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(connection) = connections.admit(peer.ip(), room) else {
            debug!(%peer, "admin connection closed: all others are at work");
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            let served = connection.until_closed(answer(stream, router, &connection)).await;
            debug!(%peer, ?served, "admin connection closed");
        });
    }
}

async fn answer(stream: TcpStream, router: Router, connection: &Connection) -> hyper::Result<()> {
    let (seat, router) = (connection.seat(), TowerToHyperService::new(router));
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = seat.answering();
        let (seat, answer) = (seat.clone(), router.call(request));
        async move {
            let answer = answer.await;
            // At the limit, connections without an answer are closed before those that had one.
            seat.prove();
            drop(answering);
            answer
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Refuses requests with a body: nothing here takes one.
async fn without_body(request: Request<Body>, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let close = [(header::CONNECTION, "close")];
    (
        StatusCode::PAYLOAD_TOO_LARGE,
        close,
        "this port takes no request with a body\n",
    )
        .into_response()
}
