//! Why a consumer cannot go on. Everything that could pass by itself is waited for instead.

use thiserror::Error;

/// What ends a consumer.
#[derive(Debug, Error)]
pub enum ConsumeError {
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] millpond_manifest::layout::InvalidName),
    /// A setting that cannot be meant.
    #[error("{0}")]
    Setting(String),
    /// An object of the buffer is damaged or of another version.
    #[error("{key}: {wrong}: {}", .wrong.remedy())]
    Format {
        /// The object's key.
        key: String,
        /// What is wrong.
        wrong: millpond_manifest::FormatError,
    },
    /// The cursor belongs to another buffer than the one at this URL.
    #[error(
        "{key} belongs to buffer {found}, but the buffer here is {expected}: objects of two buffers are mixed at this URL"
    )]
    OtherBuffer {
        /// The object's key.
        key: String,
        /// Its buffer.
        found: uuid::Uuid,
        /// The buffer at this URL.
        expected: uuid::Uuid,
    },
    /// Batches are in doubt that only the sink they were begun for can finish.
    #[error(
        "consumer {consumer} was stopped while batches were on their way to {pinned_sink} (schema version \
         {pinned_version}), and is now started for {sink} (schema version {version}): start it once more as \
         it was so that it can finish them, or use another consumer name"
    )]
    PinnedSink {
        /// The consumer's name.
        consumer: String,
        /// The sink pinned.
        pinned_sink: String,
        /// Its schema version.
        pinned_version: u32,
        /// The sink configured.
        sink: String,
        /// Its schema version.
        version: u32,
    },
    /// Another consumer writes to the same tables.
    #[error(
        "consumer {consumer} would write to table {table}, and consumer {other} of this buffer writes there already, so that every \
         record would be there twice: continue {other} with --consumer {other}, give this one another database (--database), or \
         start it with --share-tables if the two read different streams; `millpond consumer remove {other}` if {other} will not \
         come back"
    )]
    SharedTables {
        /// The consumer's name.
        consumer: String,
        /// The other consumer's name.
        other: String,
        /// One of the tables.
        table: String,
    },
    /// A committed segment, or a page of the log, is gone.
    #[error(
        "{key} (sequence {sequence}) is in the manifest but not in the store: it was deleted by hand or by a lifecycle rule; restore it"
    )]
    Lost {
        /// Its key.
        key: String,
        /// Its place in the log.
        sequence: u64,
    },
    /// Retention dropped what was about to be read.
    #[error(
        "{key} (sequence {sequence}) was trimmed before this consumer had read it: the log begins at {first} now; start it again to go on from there"
    )]
    Trimmed {
        /// The object's key.
        key: String,
        /// Its place in the log.
        sequence: u64,
        /// Where the log begins.
        first: u64,
    },
    /// A page is another one than the manifest refers to.
    #[error("{key}: {wrong}")]
    WrongPage {
        /// The page's key.
        key: String,
        /// What is wrong.
        wrong: millpond_manifest::log::WrongPage,
    },
    /// A batch cannot be read, or not taken apart.
    #[error(
        "batch {batch} cannot be written: {reason}. Nothing is left out by itself: `millpond consumer skip` leaves a sequence out"
    )]
    Refused {
        /// The batch's identity.
        batch: String,
        /// In the sink's words.
        reason: String,
    },
    /// So much of a batch is refused that something else than its rows must be wrong.
    #[error(
        "more than {max} records of batch {batch} are refused, the most that may become dead letters: {reason}. Fix the table, or \
         raise --dead-letters-max, and start the consumer again: it continues where it was"
    )]
    TooManyRefused {
        /// The batch's identity.
        batch: String,
        /// The limit.
        max: usize,
        /// Of one of them, in the sink's words.
        reason: String,
    },
    /// The sink accepted rows in every round, and does not have them.
    #[error(
        "batch {batch}: the sink has taken chunk {chunk} in every round and lacks {rows} of its rows all the same. Something removes \
         them (a TTL, an engine that merges rows, a row policy), or the sink forgets what it has taken"
    )]
    Missing {
        /// The batch's identity.
        batch: String,
        /// The chunk's or the piece's number.
        chunk: u32,
        /// How many rows.
        rows: u64,
    },
    /// An operator removed the consumer.
    #[error(
        "consumer {consumer} was removed from shard {shard:04} while it was running: start it again only if it is to read from the \
         beginning"
    )]
    Removed {
        /// The consumer's name.
        consumer: String,
        /// The shard.
        shard: u32,
    },
    /// The sink cannot tell which rows it has, so that nothing can be repaired.
    #[error(
        "{sink} cannot tell which rows of stream {stream} it has, so that they cannot be repaired: its table does not keep the \
         identities of its rows (columns = \"none\"), or not all replicas can be asked (a consumer's --cluster)"
    )]
    CannotCompare {
        /// The sink.
        sink: String,
        /// The stream.
        stream: String,
    },
    /// A range cannot be repaired.
    #[error("consumer {consumer} cannot be repaired in shard {shard:04}: {reason}")]
    Repair {
        /// The consumer whose rows the repair compares.
        consumer: String,
        /// The shard.
        shard: u32,
        /// The reason, and what to do.
        reason: String,
    },
    /// Our own bookkeeping broke a rule of the protocol; stopping is the safe answer.
    #[error("stopped before breaking the protocol: {0}")]
    Forbidden(millpond_manifest::cursor::Forbidden),
}

impl From<millpond_manifest::cursor::Forbidden> for ConsumeError {
    fn from(policy: millpond_manifest::cursor::Forbidden) -> Self {
        Self::Forbidden(policy)
    }
}
