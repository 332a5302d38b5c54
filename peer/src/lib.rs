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

/// The only path.
const COMMIT_PATH: &str = "/v1/commit";

/// The name in every certificate. Fingerprints, not names, tell producers apart.
const NAME: &str = "millpond";

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/millpond.peer.v1.rs"));
}
