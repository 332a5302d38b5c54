//! What producers ask of each other: to commit records under a number of the one that asks. The transport is the caller's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millpond_manifest::{ClientClaim, Fingerprint, NewSegment, ProducerId};
use millpond_segment::{EncodedBlock, Encoding};

/// How a producer takes part in shared commits.
#[derive(Clone)]
pub struct Peering {
    /// Reaches other producers.
    pub peers: Arc<dyn Peers>,
    /// The certificate that this producer presents.
    pub certificate: Fingerprint,
    /// Where others reach this producer, as `host:port`. `None`: it never leads.
    pub address: Option<Arc<str>>,
    /// Smaller data, in compressed bytes, is sent to the leader. Larger data is uploaded, and the leader commits it.
    pub forward_below: u64,
}

/// Makes the part of another producer of the same process. Each has a connection to the leader of its shard.
pub type NewPeering = Arc<dyn Fn() -> Peering + Send + Sync>;

impl Peering {
    /// 256 KiB: a PUT per second costs as much as moving that much data per second between two zones.
    pub const FORWARD_BELOW: u64 = 256 << 10;
}

/// A producer that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderAddress {
    /// As `host:port`.
    pub address: String,
    /// The certificate that it must present.
    pub certificate: Fingerprint,
}

/// Asks another producer to commit.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Sends a request and waits for the answer. The wait has no limit as long as the leader shows signs of life.
    ///
    /// # Errors
    /// The leader could not be asked, or did not answer: the request may or may not be committed.
    async fn ask(&self, leader: &LeaderAddress, request: PeerRequest) -> Result<PeerAnswer, String>;
}

/// The records of one number.
#[derive(Debug, Clone)]
pub struct PeerRequest {
    /// The producer that asks.
    pub producer: ProducerId,
    /// The number of its next commit. Whoever commits it, it enters the log at most once.
    pub number: u64,
    /// Its records.
    pub records: Records,
    /// The clients among them that number their requests, in the order in which they are judged. Their `segment` is an index of
    /// [`Records::Segments`], or 0.
    pub clients: Vec<ClientClaim>,
}

/// Where the records of a number are.
#[derive(Debug, Clone)]
pub enum Records {
    /// Blocks for a segment of the leader, in their order.
    Blocks(Vec<StreamBlock>),
    /// Segments in the store, in their order.
    Segments(Vec<NewSegment>),
}

/// A block and its stream.
#[derive(Debug, Clone)]
pub struct StreamBlock {
    /// For example `otlp.logs`.
    pub stream: Arc<str>,
    /// The format of its messages.
    pub encoding: Encoding,
    /// The block.
    pub block: EncodedBlock,
}

/// The leader's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAnswer {
    /// The records are in the log.
    Committed(PeerCommit),
    /// They are not in the log yet, as far as the leader knows.
    Refused(PeerRefusal),
}

/// Records of another producer are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCommit {
    /// Sequence of the first segment with the records.
    pub first_sequence: u64,
    /// When the leader closes its next segment, and how often it does. Blocks that come shortly before wait least.
    pub closes: Option<Closes>,
}

/// The rhythm of a leader's segments, seen from the time of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closes {
    /// The time until the next segment closes.
    pub after: Duration,
    /// The time between two segments.
    pub every: Duration,
}

/// Why a producer does not commit for another one. The other one commits for itself, under the same number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefusal {
    /// It does not lead.
    #[error("this producer does not lead")]
    NotLeading,
    /// It stops.
    #[error("this producer is shutting down")]
    Leaving,
    /// It is short of memory.
    #[error("no memory for records of others")]
    OverBudget,
    /// It cannot reach the store.
    #[error("this producer waits for the store: {0}")]
    HeldUp(String),
    /// It holds another number of the producer.
    #[error("another number of the producer waits for its commit")]
    Busy,
    /// It gave the records up.
    #[error("not committed: {0}")]
    NotCommitted(String),
    /// The log does not take a client's request as it is.
    #[error("the log does not take a client's request in it")]
    Client,
    /// It does not commit requests of clients that number them.
    #[error("this producer does not know numbered requests")]
    Unnumbered,
    /// The request breaks a rule.
    #[error("refused: {0}")]
    Invalid(String),
}
