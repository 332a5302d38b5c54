//! Dead letters: records that a sink will never accept, in the buffer. A dead letter has the record's origin, the
//! reason and the message itself. It is written once, before the batch is acknowledged; its name depends on its
//! content.

use crate::object::{Object, Stamp};
use crate::{FormatError, envelope, layout, proto};
use bytes::Bytes;
use millpond_segment::Encoding;
use prost::Message as _;
use uuid::Uuid;

/// Why a dead letter exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The sink refused the record.
    Refused,
    /// The message does not match its encoding: it has no records.
    Unreadable,
}

impl Kind {
    /// Its name in metrics and commands.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Refused => "refused",
            Kind::Unreadable => "unreadable",
        }
    }
}

/// The content of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The buffer.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// The stream.
    pub stream: String,
    /// The consumer that could not deliver it.
    pub consumer: String,
    /// The sink.
    pub sink: String,
    /// The version of the sink's mapping from messages to rows.
    pub schema_version: u32,
    /// The sequence of the record's segment.
    pub sequence: u64,
    /// The record's number among those of the stream in that segment. Together with the sequence it is the identity of
    /// its row. An unreadable message has one number.
    pub record: u32,
    /// Why there is a dead letter.
    pub kind: Kind,
    /// The format of the payload.
    pub encoding: Encoding,
    /// When the message was received, in unix microseconds.
    pub received_at_us: i64,
    /// For a refused record, a message with only that record; otherwise the original message.
    pub payload: Bytes,
    /// The sink's error.
    pub reason: String,
    /// When the dead letter was written, in unix milliseconds.
    pub written_at_ms: u64,
}

impl DeadLetter {
    /// The key. It depends on everything but the reason and the time of writing. Writing the same dead letter again
    /// finds it there, and different dead letters never collide.
    pub fn key(&self) -> String {
        let same = proto::DeadLetter {
            reason: String::new(),
            written_at_ms: 0,
            ..self.message()
        };
        let DeadLetter {
            shard,
            consumer,
            sequence,
            stream,
            record,
            ..
        } = self;
        let folder = layout::dead_letters(*shard, Some(consumer));
        let content = crc32c::crc32c(&same.encode_to_vec());
        format!("{folder}/{sequence:020}-{stream}-{record:010}-{content:08x}")
    }

    fn message(&self) -> proto::DeadLetter {
        let DeadLetter {
            buffer_id,
            shard,
            stream,
            consumer,
            sink,
            schema_version,
            sequence,
            record,
            kind,
            encoding,
            received_at_us,
            payload,
            reason,
            written_at_ms,
        } = self;
        let kind = match kind {
            Kind::Refused => proto::DeadLetterKind::Refused,
            Kind::Unreadable => proto::DeadLetterKind::Unreadable,
        };
        let encoding = match encoding {
            Encoding::Otlp => proto::Encoding::Otlp,
            Encoding::Ndjson => proto::Encoding::Ndjson,
        };
        proto::DeadLetter {
            buffer_id: buffer_id.as_bytes().to_vec(),
            shard: *shard,
            stream: stream.clone(),
            consumer: consumer.clone(),
            sink: sink.clone(),
            schema_version: *schema_version,
            sequence: *sequence,
            record: *record,
            kind: kind.into(),
            encoding: encoding.into(),
            received_at_us: *received_at_us,
            payload: payload.to_vec(),
            reason: reason.clone(),
            written_at_ms: *written_at_ms,
        }
    }

    /// Names the first rule of the format that this dead letter breaks.
    fn check(&self) -> Result<(), String> {
        layout::check_consumer_name(&self.consumer).map_err(|e| e.to_string())?;
        millpond_segment::check_stream_name(&self.stream).map_err(|e| e.to_string())?;
        Ok(())
    }
}

impl Object for DeadLetter {
    const NAME: &'static str = "dead letter";
    const MAGIC: [u8; 4] = *b"MPDL";
    // A message has at most 64 MiB (`millpond_segment::Limits`).
    const BYTES_MAX: u64 = 65 << 20;

    fn encode(&self) -> Bytes {
        envelope::wrap(Self::MAGIC, &self.message())
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message: proto::DeadLetter = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let kind = match message.kind() {
            proto::DeadLetterKind::Refused => Kind::Refused,
            proto::DeadLetterKind::Unreadable => Kind::Unreadable,
            proto::DeadLetterKind::Unspecified => {
                return Err(content(format!("unknown kind {}", message.kind)));
            }
        };
        let encoding = match message.encoding() {
            proto::Encoding::Otlp => Encoding::Otlp,
            proto::Encoding::Ndjson => Encoding::Ndjson,
            proto::Encoding::Unspecified => {
                return Err(content(format!("unknown encoding {}", message.encoding)));
            }
        };
        let letter = DeadLetter {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &message.buffer_id)?),
            shard: message.shard,
            stream: message.stream,
            consumer: message.consumer,
            sink: message.sink,
            schema_version: message.schema_version,
            sequence: message.sequence,
            record: message.record,
            kind,
            encoding,
            received_at_us: message.received_at_us,
            payload: message.payload.into(),
            reason: message.reason,
            written_at_ms: message.written_at_ms,
        };
        letter.check().map_err(content)?;
        Ok(letter)
    }

    fn stamp(&self) -> Stamp {
        // The object is never replaced.
        Stamp { version: 0, nonce: 0 }
    }
}
