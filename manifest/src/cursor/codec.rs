//! The bytes of a cursor, and the rules that a decoded cursor must keep.

use super::programs::{PROGRAMS_MAX, ProgramHash, Programs};
use super::tables::{IDENTITIES_MAX, SinkTable, SinkTables, TABLES_MAX, TableClaim};
use super::unique::Deduplication;
use super::{
    ALL_PLANS_MAX, Cursor, Ownership, Plan, REFUSED_MAX, Refused, SKIPS_MAX, Seen, Skip, StreamCursor,
};
use crate::entry::STREAMS_MAX;
use crate::error::CURSOR;
use crate::manifest::Fingerprint;
use crate::object::{Object, Stamp};
use crate::plan::BatchingPolicy;
use crate::unique::{decode_reference, decode_setting, encode_reference, encode_setting};
use crate::{
    CURSOR_VERSION, Count, FORMAT_VERSION, FormatError, UNIQUE_VERSION, envelope, layout, limits, proto,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use ulid::Ulid;
use uuid::Uuid;

/// The highest credible epoch: nobody opens a cursor that often.
const EPOCH_MAX: u64 = u64::MAX / 2;

impl Object for Cursor {
    const NAME: &'static str = CURSOR;
    const MAGIC: [u8; 4] = *b"MPCR";
    const VERSION_MAX: u16 = CURSOR_VERSION;
    const BYTES_MAX: u64 = 8 << 20;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "streams",
            path: &[12],
            max: STREAMS_MAX,
        },
        Count {
            of: "planned batches",
            path: &[12, 3],
            max: ALL_PLANS_MAX,
        },
        Count {
            of: "skipped parts",
            path: &[13],
            max: SKIPS_MAX,
        },
        Count {
            of: "refused batches",
            path: &[14],
            max: REFUSED_MAX,
        },
        Count {
            of: "refused pieces",
            path: limits::PIECES,
            max: ALL_PLANS_MAX,
        },
        Count {
            of: "reasons for waiting",
            path: &[15],
            max: 1_000,
        },
        Count {
            of: "tables",
            path: &[21, 1],
            max: TABLES_MAX,
        },
        Count {
            of: "identities of tables",
            path: &[21, 1, 2],
            max: IDENTITIES_MAX.1,
        },
        Count {
            of: "claimed tables",
            path: &[21, 4, 2],
            max: TABLES_MAX,
        },
        Count {
            of: "identities of claimed tables",
            path: &[21, 4, 2, 2],
            max: IDENTITIES_MAX.1,
        },
        Count {
            of: "streams without repeated events",
            path: &[24],
            max: STREAMS_MAX,
        },
        Count {
            of: "paths of keys",
            path: &[24, 2, 1],
            max: 8 * STREAMS_MAX,
        },
        Count {
            of: "programs",
            path: &[26, 1],
            max: PROGRAMS_MAX,
        },
    ];

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
        let Cursor {
            buffer_id,
            shard,
            consumer,
            stamp,
            epoch,
            opening,
            ownership,
            lease_ms,
            generation,
            unsettled,
            sent_below,
            policy,
            start,
            streams,
            skipped,
            refused,
            waiting_for,
            tables,
            shards,
            certificate,
            unique,
            deduplicated_below,
            seen,
            programs,
        } = self;
        let (kind, owner, lease_expires_at_ms) = match ownership {
            Ownership::Released => (proto::Ownership::Released, String::new(), 0),
            Ownership::Abandoned => (proto::Ownership::Abandoned, String::new(), 0),
            Ownership::Removed => (proto::Ownership::Removed, String::new(), 0),
            Ownership::Held {
                owner,
                lease_expires_at_ms,
            } => (proto::Ownership::Held, owner.clone(), *lease_expires_at_ms),
        };
        // An older program would erase the settings, or their rules, and send other rows than this one.
        let medians = unique.values().any(|of| of.medians_from.is_some());
        let version = if medians || *deduplicated_below > 0 {
            CURSOR_VERSION
        } else if unique.is_empty() {
            FORMAT_VERSION
        } else {
            UNIQUE_VERSION
        };
        envelope::wrap_version(
            Self::MAGIC,
            version,
            &proto::Cursor {
                buffer_id: buffer_id.as_bytes().to_vec(),
                shard: *shard,
                consumer: consumer.clone(),
                version: stamp.version,
                writer_nonce: stamp.nonce,
                epoch: *epoch,
                ownership: kind.into(),
                owner,
                lease_expires_at_ms,
                policy: Some(encode_policy(policy)),
                start: *start,
                streams: streams.iter().map(encode_stream).collect(),
                skipped: skipped.iter().map(encode_skip).collect(),
                refused: refused.iter().map(encode_refused).collect(),
                waiting_for: waiting_for.clone(),
                opening: *opening,
                generation: *generation,
                sent_below: *sent_below,
                unsettled: *unsettled,
                lease_ms: *lease_ms,
                tables: (*tables != SinkTables::default()).then(|| encode_tables(tables)),
                shards: *shards,
                certificate: Fingerprint::encode(*certificate),
                unique: unique.iter().map(encode_unique).collect(),
                deduplicated_below: *deduplicated_below,
                seen: seen.map(encode_seen),
                programs: programs.as_ref().map(encode_programs),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let c: proto::Cursor = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let ownership = match proto::Ownership::try_from(c.ownership) {
            Ok(proto::Ownership::Released) => Ownership::Released,
            Ok(proto::Ownership::Abandoned) => Ownership::Abandoned,
            Ok(proto::Ownership::Removed) => Ownership::Removed,
            Ok(proto::Ownership::Held) => Ownership::Held {
                owner: c.owner,
                lease_expires_at_ms: c.lease_expires_at_ms,
            },
            Err(_) => return Err(content(format!("unknown ownership {}", c.ownership))),
        };
        let policy = c
            .policy
            .ok_or_else(|| content("it has no batching policy".into()))?;
        let mut streams = BTreeMap::new();
        for stream in c.streams {
            let planned = stream
                .planned
                .iter()
                .map(|p| Plan {
                    low: p.low,
                    high: p.high,
                })
                .collect();
            streams.insert(
                stream.stream,
                StreamCursor {
                    next: stream.next,
                    planned,
                },
            );
        }
        let unique: Result<_, _> = c.unique.into_iter().map(decode_unique).collect();
        let cursor = Cursor {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &c.buffer_id)?),
            shard: c.shard,
            consumer: c.consumer,
            stamp: Stamp {
                version: c.version,
                nonce: c.writer_nonce,
            },
            epoch: c.epoch,
            opening: c.opening,
            ownership,
            lease_ms: c.lease_ms,
            generation: c.generation,
            unsettled: c.unsettled,
            sent_below: c.sent_below,
            policy: decode_policy(policy),
            start: c.start,
            streams,
            skipped: c.skipped.into_iter().map(decode_skip).collect(),
            refused: c.refused.into_iter().map(decode_refused).collect(),
            waiting_for: c.waiting_for,
            tables: c.tables.map(decode_tables).unwrap_or_default(),
            shards: c.shards,
            certificate: Fingerprint::decode(Self::NAME, "certificate", &c.certificate)?,
            unique: unique.map_err(content)?,
            deduplicated_below: c.deduplicated_below,
            seen: c.seen.as_ref().map(decode_seen).transpose()?,
            programs: c.programs.map(decode_programs).transpose()?,
        };
        cursor.check().map_err(content)?;
        Ok(cursor)
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn key(&self) -> Option<String> {
        Some(crate::layout::cursor(self.shard, &self.consumer))
    }
}

impl Cursor {
    /// Names the first rule of the format that this state breaks.
    pub fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        layout::check_consumer_name(&self.consumer).map_err(|error| error.to_string())?;
        let skipped = self.skipped.iter().map(|skip| &skip.stream);
        let refused = self.refused.iter().map(|refused| &refused.stream);
        let programs = self.programs.iter().flat_map(Programs::keys);
        for stream in self.streams.keys().chain(skipped).chain(refused).chain(programs) {
            millpond_segment::check_stream_name(stream).map_err(|error| error.to_string())?;
        }
        // Each opening and each reset takes the next value.
        if self.epoch.max(self.generation) > EPOCH_MAX {
            let (epoch, generation) = (self.epoch, self.generation);
            return Err(format!(
                "its epoch {epoch} or its generation {generation} is over {EPOCH_MAX}"
            ));
        }
        for (stream, cursor) in &self.streams {
            let mut from = cursor.next;
            for plan in &cursor.planned {
                if plan.low < from || plan.high < plan.low || plan.high == u64::MAX {
                    let Plan { low, high } = plan;
                    return Err(format!(
                        "stream {stream}: the plan {low}..={high} does not follow {from}"
                    ));
                }
                from = plan.high + 1;
            }
        }
        for refused in &self.refused {
            refused.check(self.next(&refused.stream))?;
        }
        self.check_unique()?;
        self.tables.check()
    }
}

fn encode_seen(Seen { sequence, segment }: Seen) -> proto::Seen {
    proto::Seen {
        sequence,
        segment: segment.to_bytes().to_vec(),
    }
}

fn decode_seen(seen: &proto::Seen) -> Result<Seen, FormatError> {
    let proto::Seen { sequence, segment } = seen;
    Ok(Seen {
        sequence: *sequence,
        segment: Ulid::from_bytes(envelope::sixteen(CURSOR, "segment", segment)?),
    })
}

fn encode_programs(programs: &Programs) -> proto::Programs {
    let programs = programs.iter().map(|(stream, hash)| proto::Program {
        stream: stream.clone(),
        hash: hash.0.to_vec(),
    });
    proto::Programs {
        programs: programs.collect(),
    }
}

fn decode_programs(programs: proto::Programs) -> Result<Programs, FormatError> {
    let programs = programs
        .programs
        .into_iter()
        .map(|proto::Program { stream, hash }| {
            let hash = hash.as_slice().try_into().map_err(|_| FormatError::Content {
                object: CURSOR,
                reason: format!("the hash of a program has {} bytes, not 32", hash.len()),
            })?;
            Ok((stream, ProgramHash(hash)))
        });
    programs.collect()
}

fn encode_unique((stream, of): (&String, &Deduplication)) -> proto::Deduplication {
    let Deduplication {
        setting,
        since,
        snapshot,
        deduplicated_from,
        duplicates,
        medians_from,
    } = of;
    proto::Deduplication {
        stream: stream.clone(),
        setting: setting.as_ref().map(encode_setting),
        since: *since,
        snapshot: snapshot.map(encode_reference),
        deduplicated_from: *deduplicated_from,
        duplicates: *duplicates,
        medians_from: *medians_from,
    }
}

fn decode_unique(of: proto::Deduplication) -> Result<(String, Deduplication), String> {
    let proto::Deduplication {
        stream,
        setting,
        since,
        snapshot,
        deduplicated_from,
        duplicates,
        medians_from,
    } = of;
    let of = Deduplication {
        setting: setting.map(decode_setting),
        since,
        snapshot: snapshot.as_ref().map(decode_reference).transpose()?,
        deduplicated_from,
        duplicates,
        medians_from,
    };
    Ok((stream, of))
}

fn encode_stream((stream, cursor): (&String, &StreamCursor)) -> proto::StreamCursor {
    let StreamCursor { next, planned } = cursor;
    proto::StreamCursor {
        stream: stream.clone(),
        next: *next,
        planned: planned
            .iter()
            .map(|p| proto::Plan {
                low: p.low,
                high: p.high,
            })
            .collect(),
    }
}

fn encode_skip(skip: &Skip) -> proto::Skip {
    let Skip {
        stream,
        sequence,
        at_ms,
        reason,
    } = skip.clone();
    proto::Skip {
        stream,
        sequence,
        at_ms,
        reason,
    }
}

fn decode_skip(skip: proto::Skip) -> Skip {
    let proto::Skip {
        stream,
        sequence,
        at_ms,
        reason,
    } = skip;
    Skip {
        stream,
        sequence,
        at_ms,
        reason,
    }
}

fn encode_refused(refused: &Refused) -> proto::Refused {
    let Refused {
        stream,
        batch: Plan { low, high },
        pieces,
        reason,
    } = refused.clone();
    proto::Refused {
        stream,
        low,
        high,
        pieces: pieces.into_iter().collect(),
        reason,
    }
}

fn decode_refused(refused: proto::Refused) -> Refused {
    let proto::Refused {
        stream,
        low,
        high,
        pieces,
        reason,
    } = refused;
    Refused {
        stream,
        batch: Plan { low, high },
        pieces: pieces.into_iter().collect(),
        reason,
    }
}

fn encode_tables(tables: &SinkTables) -> proto::SinkTables {
    let SinkTables {
        tables,
        claim,
        shared,
    } = tables.clone();
    proto::SinkTables {
        tables: tables.into_iter().map(encode_table).collect(),
        shared,
        claim: claim.map(encode_claim),
    }
}

fn decode_tables(tables: proto::SinkTables) -> SinkTables {
    let proto::SinkTables {
        tables,
        shared,
        claim,
    } = tables;
    SinkTables {
        tables: tables.into_iter().map(decode_table).collect(),
        claim: claim.map(decode_claim),
        shared,
    }
}

fn encode_claim(claim: TableClaim) -> proto::TableClaim {
    let TableClaim {
        id,
        tables,
        expires_at_ms,
        firm,
    } = claim;
    proto::TableClaim {
        id,
        tables: tables.into_iter().map(encode_table).collect(),
        expires_at_ms,
        firm,
    }
}

fn decode_claim(claim: proto::TableClaim) -> TableClaim {
    let proto::TableClaim {
        id,
        tables,
        expires_at_ms,
        firm,
    } = claim;
    TableClaim {
        id,
        tables: tables.into_iter().map(decode_table).collect(),
        expires_at_ms,
        firm,
    }
}

fn encode_table(SinkTable { name, identities }: SinkTable) -> proto::SinkTable {
    proto::SinkTable {
        name,
        identities: identities.into_iter().collect(),
    }
}

fn decode_table(proto::SinkTable { name, identities }: proto::SinkTable) -> SinkTable {
    SinkTable {
        name,
        identities: identities.into_iter().collect(),
    }
}

fn encode_policy(policy: &BatchingPolicy) -> proto::BatchingPolicy {
    let BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    } = policy.clone();
    proto::BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    }
}

fn decode_policy(policy: proto::BatchingPolicy) -> BatchingPolicy {
    let proto::BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    } = policy;
    BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    }
}
