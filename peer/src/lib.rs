//! Producers ask each other for commits, and consumers ask the leader for news: HTTP/2 over TLS 1.3 with certificates on both sides.
//! The manifest vouches for those of producers, the cursors for those of consumers.
//!
//! Every process makes a key at its start, in memory. Its producer enters the certificate's fingerprint into its row of the
//! manifest. So a process that may write the manifest can ask, and nobody else; nobody manages certificates.

mod client;
mod consumers;
mod identity;
mod leaders;
mod server;
mod tls;
mod watch;
mod wire;

pub use client::Client;
pub use identity::{Identity, IdentityError};
pub use leaders::WatchClient;
pub use server::{Server, ServerConfig};

/// Reads and writes the requests and replies of other producers, and opens connections by hand. For fuzzing and tests only.
#[doc(hidden)]
pub mod foreign {
    use std::sync::Arc;

    use bytes::Bytes;
    use millpond_manifest::Fingerprint;
    use millpond_producer::{PeerAnswer, PeerRequest};
    use rustls::pki_types::ServerName;
    use tokio::net::TcpStream;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use crate::{Identity, NAME, server, tls, wire};

    /// The TLS part of a connection to the holder of this certificate.
    ///
    /// # Errors
    /// The handshake fails.
    pub async fn connect(
        identity: &Identity,
        expected: Fingerprint,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let config = tls::client(identity, expected).map_err(std::io::Error::other)?;
        let name = ServerName::try_from(NAME).map_err(std::io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// The TLS part of a connection from anybody with a certificate.
    ///
    /// # Errors
    /// The handshake fails.
    pub async fn accept(
        identity: &Identity,
        stream: TcpStream,
    ) -> std::io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
        let config = tls::server(identity).map_err(std::io::Error::other)?;
        TlsAcceptor::from(Arc::new(config)).accept(stream).await
    }

    /// The memory that a server reserves before it decodes a request; `None` for one that it refuses.
    pub fn memory_of_request(body: &[u8]) -> Option<usize> {
        let of_elements = server::memory_of_elements(body).ok()?;
        Some(server::memory_of_body(body.len()) + of_elements)
    }

    /// Decodes a request.
    pub fn request(body: Bytes) -> Option<PeerRequest> {
        wire::decode_request(body).ok()
    }

    /// Decodes a reply.
    pub fn reply(body: Bytes) -> Option<PeerAnswer> {
        wire::decode_reply(body).ok()
    }

    /// Encodes a request.
    pub fn encode_request(request: &PeerRequest) -> Bytes {
        wire::encode_request(request)
    }

    /// Encodes a reply.
    pub fn encode_reply(answer: &PeerAnswer) -> Bytes {
        wire::encode_reply(answer)
    }
}

/// The path for producers.
const COMMIT_PATH: &str = "/v1/commit";

/// The path for requests with clients that number them. A version without it would append their records and forget the clients.
const NUMBERED_PATH: &str = "/v1/commit-numbered";

/// The path for consumers.
const WATCH_PATH: &str = "/v1/watch";

/// The name in every certificate. Fingerprints, not names, tell producers apart.
const NAME: &str = "millpond";

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/millpond.peer.v1.rs"));
}
