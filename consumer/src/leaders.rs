//! The leader of a shard, as a consumer sees it: it tells of commits as soon as they are made. The transport is the caller's.

use async_trait::async_trait;
use bytes::Bytes;
use millpond_manifest::Fingerprint;
use std::sync::Arc;

/// How a consumer hears of commits from leaders.
#[derive(Clone)]
pub struct Watching {
    /// Reaches leaders.
    pub leaders: Arc<dyn Leaders>,
    /// The certificate that this process presents to them. The cursors that it owns vouch for it.
    pub certificate: Fingerprint,
}

/// A leader, as the manifest names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedLeader {
    /// The shard that it leads.
    pub shard: u32,
    /// As `host:port`.
    pub address: String,
    /// The certificate that it must present.
    pub certificate: Fingerprint,
}

/// Reaches leaders.
#[async_trait]
pub trait Leaders: Send + Sync {
    /// Opens a connection, which ends when it is dropped.
    ///
    /// # Errors
    /// The leader could not be reached within the transport's time limit.
    async fn connect(&self, leader: &WatchedLeader) -> Result<Box<dyn LeaderConnection>, String>;
}

/// A connection to a leader.
#[async_trait]
pub trait LeaderConnection: Send {
    /// Waits for a manifest whose version is above this one, and returns its bytes: at most those of a manifest in the store. With 0
    /// the leader answers at once. The wait has no limit as long as the leader shows signs of life.
    ///
    /// # Errors
    /// See [`WatchError`]. The connection is of no further use.
    async fn watch(&mut self, consumer: &str, newer_than: u64) -> Result<Bytes, WatchError>;
}

/// Why a leader does not tell a consumer of commits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// It does not lead, or stops.
    #[error("it leads no more")]
    NotLeading,
    /// It does not serve this consumer.
    #[error("it refuses: {0}")]
    Refused(String),
    /// It does not answer.
    #[error("{0}")]
    Failed(String),
}
