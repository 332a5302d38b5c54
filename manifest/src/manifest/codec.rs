//! The bytes of a manifest, and the rules that a decoded manifest must keep.

use super::{
    ADDRESS_MAX, CLIENTS_MAX, ClientId, ClientRow, Fingerprint, KEYS_MAX, Leader, Manifest, PRODUCERS_MAX,
    ProducerId, ProducerRow, SOURCES_MAX, SourcePartition, SourceRow, Stream,
};
use crate::entry::{
    ENTRIES_READ_MAX, LOG_BYTES_MAX, PARTS_MAX, STREAMS_MAX, check_entry, decode_entry, encode_entry,
};
use crate::object::{Object, Stamp};
use crate::page::PageReference;
use crate::{CLIENTS_VERSION, Count, FormatError, envelope, proto};
use bytes::Bytes;
use millpond_segment::Encoding;
use std::sync::Arc;
use uuid::Uuid;

/// Maximum pages of a manifest: two billion segments.
pub(super) const PAGES_MAX: usize = 1 << 20;

impl Object for Manifest {
    const NAME: &'static str = "manifest";
    const MAGIC: [u8; 4] = *b"MPMF";
    const BYTES_MAX: u64 = LOG_BYTES_MAX;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "streams",
            path: &[8],
            max: STREAMS_MAX,
        },
        Count {
            of: "pages",
            path: &[9],
            max: PAGES_MAX,
        },
        Count {
            of: "entries",
            path: &[10],
            max: ENTRIES_READ_MAX,
        },
        Count {
            of: "parts of segments",
            path: &[10, 4],
            max: PARTS_MAX,
        },
        Count {
            of: "producers",
            path: &[11],
            max: PRODUCERS_MAX,
        },
        Count {
            of: "clients",
            path: &[13],
            max: CLIENTS_MAX,
        },
        Count {
            of: "idempotency keys",
            path: &[14],
            max: KEYS_MAX,
        },
        Count {
            of: "sources",
            path: &[15],
            max: SOURCES_MAX,
        },
    ];
    const VERSION_MAX: u16 = 3;

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
        let Manifest {
            buffer_id,
            shard,
            stamp,
            first_sequence,
            next_sequence,
            orphan_floor_ms,
            streams,
            pages,
            tail,
            producers,
            leader,
            clients,
            keys,
            sources,
        } = self;
        // A program that does not know the clients would erase them, and then accept their requests again. Without the
        // positions of sources, bridges would read everything again.
        let version = if !sources.is_empty() {
            3
        } else if clients.is_empty() && keys.is_empty() {
            1
        } else {
            CLIENTS_VERSION
        };
        envelope::wrap_version(
            Self::MAGIC,
            version,
            &proto::Manifest {
                buffer_id: buffer_id.as_bytes().to_vec(),
                shard: *shard,
                version: stamp.version,
                writer_nonce: stamp.nonce,
                first_sequence: *first_sequence,
                next_sequence: *next_sequence,
                orphan_floor_ms: *orphan_floor_ms,
                streams: streams.iter().map(encode_stream).collect(),
                pages: pages.iter().map(PageReference::encode).collect(),
                tail: tail.iter().map(encode_entry).collect(),
                producers: producers.iter().map(encode_producer).collect(),
                leader: leader.as_ref().map(encode_leader),
                clients: clients.iter().map(encode_client).collect(),
                keys: keys.iter().map(encode_client).collect(),
                sources: sources.iter().map(encode_source).collect(),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let m: proto::Manifest = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let manifest = Manifest {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &m.buffer_id)?),
            shard: m.shard,
            stamp: Stamp {
                version: m.version,
                nonce: m.writer_nonce,
            },
            first_sequence: m.first_sequence,
            next_sequence: m.next_sequence,
            orphan_floor_ms: m.orphan_floor_ms,
            streams: m
                .streams
                .into_iter()
                .map(decode_stream)
                .collect::<Result<_, _>>()
                .map_err(content)?,
            pages: m
                .pages
                .iter()
                .map(PageReference::decode)
                .collect::<Result<_, _>>()?,
            tail: m
                .tail
                .into_iter()
                .map(|entry| decode_entry(Self::NAME, &entry))
                .collect::<Result<_, _>>()?,
            producers: m
                .producers
                .iter()
                .map(decode_producer)
                .collect::<Result<_, _>>()?,
            leader: m.leader.map(decode_leader).transpose()?,
            clients: m.clients.iter().map(decode_client).collect::<Result<_, _>>()?,
            keys: m.keys.iter().map(decode_client).collect::<Result<_, _>>()?,
            sources: m.sources.into_iter().map(decode_source).collect(),
        };
        manifest.check().map_err(content)?;
        Ok(manifest)
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn key(&self) -> Option<String> {
        Some(crate::layout::manifest(self.shard))
    }
}

impl Manifest {
    /// Names the first rule of the format that this state breaks.
    pub fn check(&self) -> Result<(), String> {
        // Garbage collection drops the oldest page only as a whole; until then the log may begin inside it.
        let mut at = self.pages.first().map_or(self.first_sequence, |page| page.first);
        if self
            .pages
            .first()
            .is_some_and(|page| self.first_sequence < page.first || self.first_sequence > page.last)
        {
            return Err(format!(
                "first_sequence {} is not in the oldest page",
                self.first_sequence
            ));
        }
        for page in &self.pages {
            if page.first != at || page.last < page.first {
                return Err(format!(
                    "page {}..={} does not begin at {at}",
                    page.first, page.last
                ));
            }
            at = page
                .last
                .checked_add(1)
                .ok_or("a page ends past the last sequence")?;
        }
        if at.checked_add(self.tail.len() as u64) != Some(self.next_sequence) {
            return Err(format!(
                "{} entries from sequence {at} do not end at next_sequence {}",
                self.tail.len(),
                self.next_sequence
            ));
        }
        for (i, entry) in self.tail.iter().enumerate() {
            check_entry(entry, self.streams.len()).map_err(|e| format!("sequence {}: {e}", at + i as u64))?;
        }
        if !self.producers.is_sorted_by(|a, b| a.id < b.id) {
            return Err("the producer table is not in order".into());
        }
        for (table, rows) in [("clients", &self.clients), ("keys", &self.keys)] {
            if !rows.is_sorted_by(|a, b| a.id < b.id) {
                return Err(format!("the table of {table} is not in order"));
            }
        }
        self.check_sources()?;
        if let Some(leader) = &self.leader
            && leader.address.len() > ADDRESS_MAX
        {
            return Err(format!(
                "the leader's address has {} bytes, the limit is {ADDRESS_MAX}",
                leader.address.len()
            ));
        }
        Ok(())
    }
}

fn encode_stream(stream: &Stream) -> proto::Stream {
    let encoding = match stream.encoding {
        Encoding::Otlp => proto::Encoding::Otlp,
        Encoding::Ndjson => proto::Encoding::Ndjson,
    };
    proto::Stream {
        name: stream.name.clone(),
        encoding: encoding.into(),
    }
}

fn decode_stream(stream: proto::Stream) -> Result<Stream, String> {
    let encoding = match stream.encoding() {
        proto::Encoding::Otlp => Encoding::Otlp,
        proto::Encoding::Ndjson => Encoding::Ndjson,
        proto::Encoding::Unspecified => {
            return Err(format!(
                "stream {:?} has the unknown encoding {}",
                stream.name, stream.encoding
            ));
        }
    };
    millpond_segment::check_stream_name(&stream.name).map_err(|error| error.to_string())?;
    Ok(Stream {
        name: stream.name,
        encoding,
    })
}

fn encode_producer(row: &ProducerRow) -> proto::Producer {
    let &ProducerRow {
        id,
        commit,
        first_sequence,
        count,
        seen_at_ms,
        certificate,
    } = row;
    proto::Producer {
        id: id.0.to_vec(),
        commit,
        first_sequence,
        count,
        seen_at_ms,
        certificate: Fingerprint::encode(certificate),
    }
}

fn decode_producer(row: &proto::Producer) -> Result<ProducerRow, FormatError> {
    Ok(ProducerRow {
        id: ProducerId(envelope::sixteen(Manifest::NAME, "producers.id", &row.id)?),
        commit: row.commit,
        first_sequence: row.first_sequence,
        count: row.count,
        seen_at_ms: row.seen_at_ms,
        certificate: Fingerprint::decode(Manifest::NAME, "producers.certificate", &row.certificate)?,
    })
}

fn encode_leader(leader: &Leader) -> proto::Leader {
    let Leader {
        producer,
        term,
        shared,
        address,
    } = leader;
    proto::Leader {
        producer: producer.0.to_vec(),
        term: *term,
        shared: *shared,
        address: address.clone(),
    }
}

fn decode_leader(leader: proto::Leader) -> Result<Leader, FormatError> {
    Ok(Leader {
        producer: ProducerId(envelope::sixteen(
            Manifest::NAME,
            "leader.producer",
            &leader.producer,
        )?),
        term: leader.term,
        shared: leader.shared,
        address: leader.address,
    })
}

fn encode_client(row: &ClientRow) -> proto::Client {
    let &ClientRow {
        id,
        epoch,
        last,
        sequence,
        seen_at_ms,
        checksum,
    } = row;
    proto::Client {
        id: id.0.to_vec(),
        epoch: epoch.into(),
        last,
        sequence,
        seen_at_ms,
        checksum,
    }
}

fn decode_client(row: &proto::Client) -> Result<ClientRow, FormatError> {
    let content = |reason: String| FormatError::Content {
        object: Manifest::NAME,
        reason,
    };
    let epoch = u16::try_from(row.epoch);
    Ok(ClientRow {
        id: ClientId(envelope::sixteen(Manifest::NAME, "clients.id", &row.id)?),
        epoch: epoch.map_err(|_| content(format!("clients.epoch {} has more than 16 bits", row.epoch)))?,
        last: row.last,
        sequence: row.sequence,
        seen_at_ms: row.seen_at_ms,
        checksum: row.checksum,
    })
}

fn encode_source(row: &SourceRow) -> proto::Source {
    let SourceRow {
        of,
        shard,
        incarnation,
        next,
        seen_at_ms,
    } = row;
    let SourcePartition {
        source,
        topic,
        partition,
        stream,
    } = &**of;
    proto::Source {
        source: source.clone(),
        topic: topic.clone(),
        partition: *partition,
        stream: stream.clone(),
        shard: *shard,
        incarnation: *incarnation,
        next: *next,
        seen_at_ms: *seen_at_ms,
    }
}

fn decode_source(row: proto::Source) -> SourceRow {
    let proto::Source {
        source,
        topic,
        partition,
        stream,
        shard,
        incarnation,
        next,
        seen_at_ms,
    } = row;
    SourceRow {
        of: Arc::new(SourcePartition {
            source,
            topic,
            partition,
            stream,
        }),
        shard,
        incarnation,
        next,
        seen_at_ms,
    }
}
