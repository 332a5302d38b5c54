//! The reasons that end a consumer. It waits for everything that can pass by itself.

use thiserror::Error;

/// An error that ends a consumer.
#[derive(Debug, Error)]
pub enum ConsumeError {
    /// An invalid name.
    #[error(transparent)]
    Name(#[from] millpond_manifest::layout::InvalidName),
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// An object of the buffer is damaged or of another version.
    #[error("{key}: {wrong}: {}", .wrong.remedy())]
    Format {
        /// The object's key.
        key: String,
        /// The defect.
        wrong: millpond_manifest::FormatError,
    },
    /// The cursor belongs to a buffer other than the one at this URL.
    #[error(
        "{key} belongs to buffer {found}, but the buffer here is {expected}: objects of two buffers are mixed at this URL"
    )]
    OtherBuffer {
        /// The object's key.
        key: String,
        /// The cursor's buffer.
        found: uuid::Uuid,
        /// The buffer at this URL.
        expected: uuid::Uuid,
    },
    /// Only the sink that batches are planned for can write them.
    #[error(
        "consumer {consumer} was stopped while batches were planned for {pinned_sink} (schema version \
         {pinned_version}), and is now started for {sink} (schema version {version}): start it once more as \
         it was so that it can write them, or use another consumer name"
    )]
    PinnedSink {
        /// The consumer's name.
        consumer: String,
        /// The pinned sink.
        pinned_sink: String,
        /// Its schema version.
        pinned_version: u32,
        /// The configured sink.
        sink: String,
        /// Its schema version.
        version: u32,
    },
    /// Another consumer writes to the same tables, or asks for them.
    #[error(
        "consumer {consumer} would write to table {table}, and consumer {other} of this buffer {}, so that every \
         record would be there twice: continue {other} with --consumer {other}, give this one another database (--database), or \
         start it with --share-tables if the two read different streams; `millpond consumer remove {other}` if {other} will not \
         come back",
        if *asks { "asks for it too, or ended while it did" } else { "writes there already" }
    )]
    SharedTables {
        /// The consumer's name.
        consumer: String,
        /// The other consumer's name.
        other: String,
        /// One of the tables.
        table: String,
        /// The other consumer does not have the table yet.
        asks: bool,
    },
    /// A committed segment or page is missing.
    #[error(
        "{key} (sequence {sequence}) is in the manifest but not in the store: it was deleted by hand or by a lifecycle rule; restore it"
    )]
    Lost {
        /// The object's key.
        key: String,
        /// The sequence of the object in the log.
        sequence: u64,
    },
    /// The store has returned a manifest from before one that it or the leader showed, for a minute.
    #[error(
        "the store returns version {found} of {key}, and this process saw version {shown} a minute ago: somebody restored the bucket, or the store serves old copies; start the consumer again to go on from the store"
    )]
    Behind {
        /// The manifest's key.
        key: String,
        /// The version in the store.
        found: u64,
        /// The latest version that was seen.
        shown: u64,
    },
    /// The store has had no manifest for a minute, and had one before.
    #[error(
        "the store has no {key}, and this process saw version {shown} of it a minute ago: somebody deleted or moved the buffer, or the URL leads to another bucket now; restore the buffer, or check the store"
    )]
    Gone {
        /// The manifest's key.
        key: String,
        /// The latest version that was seen.
        shown: u64,
    },
    /// The log has another segment in the place of one that the consumer has seen.
    #[error(
        "consumer {consumer} has read segment {read} at sequence {sequence}, and {key} has {found} there: somebody restored the manifest, or \
         deleted it so that gateways began a new one. New records may have the sequences of rows that are in the tables. Put the right \
         manifest back, or read this log with another consumer into other tables"
    )]
    OtherLog {
        /// The manifest's key.
        key: String,
        /// The consumer's name.
        consumer: String,
        /// The place of the segment in the log.
        sequence: u64,
        /// The segment that the consumer has seen there.
        read: ulid::Ulid,
        /// The segment that is there now.
        found: ulid::Ulid,
    },
    /// A segment or page was trimmed that this consumer had not read: by retention, by a round of garbage collection
    /// that began before the consumer did, or after another process of this name had read it.
    #[error(
        "{key} (sequence {sequence}) was trimmed before this consumer had read it: the log begins at {first} now; start it again to go on from there"
    )]
    Trimmed {
        /// The object's key.
        key: String,
        /// The sequence of the object in the log.
        sequence: u64,
        /// The first sequence of the log.
        first: u64,
    },
    /// The page differs from the one that the manifest refers to.
    #[error("{key}: {wrong}")]
    WrongPage {
        /// The page's key.
        key: String,
        /// The defect.
        wrong: millpond_manifest::log::WrongPage,
    },
    /// A batch cannot be read or bisected.
    #[error(
        "batch {batch} cannot be written: {reason}. Nothing is left out by itself: `millpond consumer skip` leaves a sequence out"
    )]
    Refused {
        /// The batch's identity.
        batch: String,
        /// In the sink's words.
        reason: String,
    },
    /// The sink refuses more of a batch than may become dead letters, so the cause is not its rows.
    #[error(
        "more than {max} records of batch {batch} are refused, the most that may become dead letters: {reason}. Fix the table, or \
         raise --dead-letters-max, and start the consumer again: it continues where it was"
    )]
    TooManyRefused {
        /// The batch's identity.
        batch: String,
        /// The limit.
        max: usize,
        /// The reason for one of them, in the sink's words.
        reason: String,
    },
    /// The sink accepted the rows in every round and still lacks some.
    #[error(
        "batch {batch}: the sink has taken chunk {chunk} in every round and lacks {rows} of its rows all the same. Something removes \
         them (a TTL, an engine that merges rows, a row policy), or the sink forgets what it has taken"
    )]
    Missing {
        /// The batch's identity.
        batch: String,
        /// The number of the chunk or piece.
        chunk: u32,
        /// The number of missing rows.
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
    /// The cursor is gone, and so is the buffer's object.
    #[error(
        "the store has neither the cursor of consumer {consumer} nor a buffer at {url}: somebody deleted or moved the buffer, or the URL \
         leads to another bucket now; restore the buffer, or check the store"
    )]
    BufferGone {
        /// The consumer's name.
        consumer: String,
        /// The buffer.
        url: String,
    },
    /// The sink cannot tell which rows it has, so a repair is impossible.
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
    /// The deduplication of a stream would remember more keys than its memory has room for.
    #[error(
        "the deduplication of stream {stream} needs more than the {keys} keys that {bytes} bytes hold: raise --unique-memory (40 bytes \
         for each key within the window, and for longer if gateways' clocks are behind) and --memory-limit with it. A shorter window takes \
         effect after the next clean stop only. Nothing is forgotten early, so the consumer ends; it continues where it was"
    )]
    UniqueMemory {
        /// The stream.
        stream: String,
        /// The number of keys that the limit allows.
        keys: u64,
        /// The limit in bytes.
        bytes: u64,
    },
    /// The keys of a stream cannot be put together again.
    #[error(
        "the keys of stream {stream} that consumer {consumer} has seen are lost: {reason}. `millpond consumer reset {consumer} --shard \
         {shard} --to {next}` continues without them (`--to earliest`, if the log begins later), from the position of the stream that is \
         furthest behind: events that were dropped from there on, or that repeat earlier ones, may get rows"
    )]
    UniqueLost {
        /// The consumer's name.
        consumer: String,
        /// The shard.
        shard: u32,
        /// The stream.
        stream: String,
        /// Why.
        reason: String,
        /// The position of the stream that is furthest behind.
        next: u64,
    },
    /// The rows of one key may be in several shards.
    #[error(
        "consumer {consumer} drops repeated events of stream {stream} (--unique), and the buffer has {shards} shards: a repetition may be \
         in another shard than the first event, because {reason}. Run {remedy}"
    )]
    UniqueShards {
        /// The consumer's name.
        consumer: String,
        /// The stream.
        stream: String,
        /// The number of shards.
        shards: u32,
        /// How its rows find their shards.
        reason: String,
        /// The commands that change it.
        remedy: String,
    },
    /// The consumer's state violates an invariant of the protocol. Stopping is the safe answer.
    #[error("stopped before breaking the protocol: {0}")]
    Forbidden(millpond_manifest::cursor::Forbidden),
}

impl ConsumeError {
    /// Returns true if the log was trimmed below what the consumer had to read. That is no error of an owner that another one has
    /// succeeded.
    pub(crate) fn is_of_trimmed(&self) -> bool {
        matches!(
            self,
            ConsumeError::Trimmed { .. } | ConsumeError::UniqueLost { .. }
        )
    }
}

impl From<millpond_manifest::cursor::Forbidden> for ConsumeError {
    fn from(policy: millpond_manifest::cursor::Forbidden) -> Self {
        Self::Forbidden(policy)
    }
}
