//! Producers ask each other for commits: HTTP/2 over TLS 1.3 with certificates on both sides, which the manifest vouches for.
//!
//! Every process makes a key at its start, in memory. Its producer enters the certificate's fingerprint into its row of the
//! manifest. So a process that may write the manifest can ask, and nobody else; nobody manages certificates.

mod client;
mod identity;
mod server;
mod tls;
mod wire;

pub use client::Client;
pub use identity::{Identity, IdentityError};
pub use server::{Server, ServerConfig};

/// Reads and writes the requests and replies of other producers. For fuzzing only.
#[doc(hidden)]
pub mod foreign {
    use bytes::Bytes;
    use millpond_producer::{PeerAnswer, PeerRequest};

    use crate::{server, wire};

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

/// The only path.
const COMMIT_PATH: &str = "/v1/commit";

/// The name in every certificate. Fingerprints, not names, tell producers apart.
const NAME: &str = "millpond";

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/millpond.peer.v1.rs"));
}
