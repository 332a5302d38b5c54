//! The entrance of every connection, whatever it speaks afterwards: checks for TLS, reserves memory for it and does the
//! handshake. A silent client holds no memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use millpond_runtime::{Budget, Reservation};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::connections::{Holding, Scarce, Seat};
use crate::security::Security;

/// A connection ready to speak, in plaintext or through TLS.
pub(crate) type Link = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// HTTP/2 and HTTP/1.1 by their ALPN names.
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// The first byte of a TLS connection: a handshake record (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Maximum memory of a handshake: rustls collects messages of up to 64 KiB and keeps the client's certificates.
const HANDSHAKE_BYTES: usize = 128 << 10;

/// Memory of TLS after the handshake: an encrypted and a decrypted record, the send buffer, the keys.
const TLS_BYTES: usize = 48 << 10;

/// Limit of TLS's send buffer: answers are short.
const SEND_BUFFER_BYTES: usize = 8 << 10;

/// TLS may take this fraction of the memory budget: idle connections leave the rest to requests.
const TLS_SHARE: usize = 4;

pub(crate) const HTTP1_METHODS: [&[u8]; 5] = [b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI"];
const HTTP1_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 35\r\n\r\nthis port speaks TLS: use https://\n";

/// Why a connection was closed before its first request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the connection limit is reached, and all connections are busy")]
    TooMany,
    #[error(
        "another connection needed its place or its memory, and it was the slowest without a complete request"
    )]
    Evicted,
    #[error("the client sent nothing, or did not finish the TLS handshake, in time")]
    Slow,
    #[error("the client does not speak HTTP/2")]
    NotHttp2,
    #[error("not a request that the port for Kafka's clients takes: {0}")]
    NotKafka(String),
    #[error(
        "the client speaks TLS, and this port does not: give the gateway --tls-cert and --tls-key, or the client http:// (`insecure`)"
    )]
    Tls,
    #[error("the client speaks plaintext, and this port needs TLS: give the client https:// (no `insecure`)")]
    Clear,
    #[error("the client's certificate was refused: {0}")]
    Certificate(String),
    #[error(
        "the client ended the TLS handshake: {0}; does it trust the CA of --tls-cert, and ask for a name in the certificate?"
    )]
    Distrust(String),
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    #[error("no memory for another TLS connection: raise the memory limit")]
    NoMemory,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Refused {
    /// All metric labels.
    pub(crate) const NAMES: [&str; 12] = [
        "too_many",
        "evicted",
        "slow",
        "not_http2",
        "not_kafka",
        "tls",
        "clear",
        "certificate",
        "distrust",
        "handshake",
        "no_memory",
        "io",
    ];

    /// The label in metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Refused::TooMany => "too_many",
            Refused::Evicted => "evicted",
            Refused::Slow => "slow",
            Refused::NotHttp2 => "not_http2",
            Refused::NotKafka(_) => "not_kafka",
            Refused::Tls => "tls",
            Refused::Clear => "clear",
            Refused::Certificate(_) => "certificate",
            Refused::Distrust(_) => "distrust",
            Refused::Handshake(_) => "handshake",
            Refused::NoMemory => "no_memory",
            Refused::Io(_) => "io",
        }
    }

    /// Returns true if somebody should fix a client or the gateway. The other causes occur daily on any network port.
    pub(crate) fn is_worth_a_look(&self) -> bool {
        match self {
            Refused::Slow | Refused::NotHttp2 | Refused::Io(_) => false,
            Refused::TooMany
            | Refused::Evicted
            | Refused::NotKafka(_)
            | Refused::Tls
            | Refused::Clear
            | Refused::Certificate(_)
            | Refused::Distrust(_)
            | Refused::Handshake(_)
            | Refused::NoMemory => true,
        }
    }
}

/// The entrance of all ports of a gateway.
#[derive(Debug)]
pub(crate) struct Entrance {
    security: Arc<Security>,
    budget: Budget,
    /// The share of the budget for TLS.
    share: Budget,
    patience: Duration,
}

/// Memory that TLS holds, until dropped.
#[derive(Debug)]
pub(crate) struct SeatedConnection {
    budget: Reservation,
    share: Reservation,
    _holding: Holding,
}

impl Entrance {
    /// A connection has `patience` for its first byte, and again for the TLS handshake.
    pub(crate) fn new(security: Arc<Security>, budget: &Budget, patience: Duration) -> Entrance {
        Entrance {
            security,
            share: budget.part(TLS_SHARE),
            budget: budget.clone(),
            patience,
        }
    }

    /// Admits a connection to one of these protocols, by ALPN name, and reserves its memory.
    pub(crate) async fn enter(
        &self,
        mut stream: TcpStream,
        protocols: &[&[u8]],
        seat: &Seat,
    ) -> Result<(Link, Option<SeatedConnection>), Refused> {
        stream.set_nodelay(true)?;
        let mut first = [0; 4];
        let heard = timeout(self.patience, stream.peek(&mut first))
            .await
            .map_err(|_| Refused::Slow)??;
        let speaks_tls = heard > 0 && first[0] == TLS_HANDSHAKE;
        let tls = match (self.security.tls(), speaks_tls) {
            (None, false) => return Ok((Either::Left(stream), None)),
            (None, true) => return Err(Refused::Tls),
            (Some(_), false) if heard == 0 => {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            (Some(_), false) => {
                if HTTP1_METHODS.contains(&&first[..]) {
                    stream.write_all(HTTP1_ANSWER).await?;
                    stream.shutdown().await?;
                }
                return Err(Refused::Clear);
            }
            (Some(tls), true) => tls,
        };
        let acceptor = TlsAcceptor::from(tls.config(protocols));
        let handshake = async {
            let held = self.hold(seat).await?;
            let limit = |connection: &mut rustls::ServerConnection| {
                connection.set_buffer_limit(Some(SEND_BUFFER_BYTES));
            };
            let stream = acceptor.accept_with(stream, limit).await.map_err(refusal)?;
            if self.security.asks_for_certificates() {
                seat.prove();
            }
            Ok((Either::Right(Box::new(stream)), Some(held.shrunk())))
        };
        timeout(self.patience, handshake)
            .await
            .map_err(|_| Refused::Slow)?
    }

    async fn hold(&self, seat: &Seat) -> Result<SeatedConnection, Refused> {
        let no_memory = |_| Refused::NoMemory;
        let connections = self.share.limit() / TLS_BYTES;
        let share = seat.press(Scarce::Tls, connections, self.share.reserve(HANDSHAKE_BYTES));
        let share = share.await.map_err(no_memory)?;
        let budget = self.budget.reserve(HANDSHAKE_BYTES).await.map_err(no_memory)?;
        Ok(SeatedConnection {
            budget,
            share,
            _holding: seat.holding(Scarce::Tls),
        })
    }
}

impl SeatedConnection {
    fn shrunk(mut self) -> SeatedConnection {
        self.budget.shrink(TLS_BYTES);
        self.share.shrink(TLS_BYTES);
        self
    }
}

fn refusal(error: io::Error) -> Refused {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        None => Refused::Io(error),
        Some(rustls::Error::NoCertificatesPresented) => {
            Refused::Certificate("the client sent none".to_owned())
        }
        Some(rustls::Error::InvalidCertificate(reason)) => Refused::Certificate(reason.to_string()),
        Some(rustls::Error::AlertReceived(alert)) => Refused::Distrust(format!("{alert:?}")),
        Some(other) => Refused::Handshake(other.to_string()),
    }
}
