//! Asks a leader, over one connection that stays open.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use millpond_manifest::{Fingerprint, ProducerId};
use millpond_producer::{LeaderAddress, PeerAnswer, PeerRefusal, PeerRequest, Peers};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::identity::Identity;
use crate::server::{CONTENT, PRODUCER};
use crate::wire::{decode_reply, encode_request};
use crate::{COMMIT_PATH, NAME, NUMBERED_PATH, tls};

/// Time limit for a new connection: TCP, TLS and HTTP/2 together.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);
/// The interval of pings while a request waits, and the time limit for the answer to one. A leader that died without a word,
/// or whose process stands still, is noticed within their sum.
const PING_INTERVAL: Duration = Duration::from_millis(500);
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes of a reply.
const REPLY_MAX: usize = 64 << 10;

/// Asks leaders. One connection at a time: a shard has one leader.
pub struct Client {
    identity: Arc<Identity>,
    connection: Mutex<Option<Connection>>,
}

/// An open connection to a leader, until dropped.
pub(crate) struct Connection {
    leader: LeaderAddress,
    pub(crate) send: SendRequest<Full<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl Client {
    /// Presents this certificate.
    pub fn new(identity: Arc<Identity>) -> Client {
        Client {
            identity,
            connection: Mutex::default(),
        }
    }

    /// The connection to a leader: the open one, or a new one.
    async fn connect(&self, leader: &LeaderAddress) -> Result<SendRequest<Full<Bytes>>, String> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = &*connection
            && open.leader == *leader
            && !open.send.is_closed()
        {
            return Ok(open.send.clone());
        }
        *connection = None;
        let opened = timeout(CONNECT, open(&self.identity, &leader.address, leader.certificate)).await;
        let opened = opened.map_err(|_| format!("no connection within {} s", CONNECT.as_secs()))??;
        let send = opened.send.clone();
        *connection = Some(opened);
        Ok(send)
    }

    async fn send(&self, leader: &LeaderAddress, request: &PeerRequest) -> Result<PeerAnswer, String> {
        let mut send = self.connect(leader).await?;
        let path = match request.clients.is_empty() {
            true => COMMIT_PATH,
            false => NUMBERED_PATH,
        };
        let response = send.send_request(http_request(request.producer, path, encode_request(request))?);
        let response = response.await.map_err(|error| chain(&error))?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && path == NUMBERED_PATH {
            return Ok(PeerAnswer::Refused(PeerRefusal::Unnumbered));
        }
        let body = Limited::new(response.into_body(), REPLY_MAX).collect().await;
        let body = body.map_err(|error| chain(&*error))?.to_bytes();
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end()));
        }
        decode_reply(body).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Peers for Client {
    async fn ask(&self, leader: &LeaderAddress, request: PeerRequest) -> Result<PeerAnswer, String> {
        let answer = self.send(leader, &request).await;
        if answer.is_err() {
            // Whatever is wrong with the connection, the next request gets another.
            *self.connection.lock().await = None;
        }
        answer
    }
}

/// Opens a connection to the holder of this certificate. Pings show that it lives while a request waits.
pub(crate) async fn open(
    identity: &Identity,
    address: &str,
    certificate: Fingerprint,
) -> Result<Connection, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let config = tls::client(identity, certificate).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let (send, driver) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| chain(&error))?;
    let driver = tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(error = chain(&error), "connection to the leader closed");
        }
    });
    Ok(Connection {
        leader: LeaderAddress {
            address: address.to_owned(),
            certificate,
        },
        send,
        _driver: AbortOnDropHandle::new(driver),
    })
}

fn http_request(producer: ProducerId, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let request = Request::post(format!("https://{NAME}{path}"))
        .header(CONTENT_TYPE, CONTENT)
        .header(PRODUCER, producer.to_string());
    request.body(Full::new(body)).map_err(|error| error.to_string())
}

/// An error with its causes: hyper's own text is only "http2 error".
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
