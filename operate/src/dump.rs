//! The content of a shard and of a segment.

use crate::buffer::{cursors, whole};
use anyhow::Context;
use bytes::Bytes;
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Buffer, Cursor, Log, Manifest, cas, layout};
use millpond_segment::Limits;
use millpond_storage::Store;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A shard's log and the cursors of its consumers.
#[derive(Debug)]
pub struct Shard {
    /// The log with all of its pages.
    pub log: Log,
    /// Size of the manifest.
    pub manifest_bytes: usize,
    /// The cursors.
    pub cursors: Vec<Cursor>,
}

impl Shard {
    /// Reads a shard.
    ///
    /// # Errors
    /// The log or a cursor cannot be read.
    pub async fn read(store: &Store, buffer: &Buffer, shard: u32) -> anyhow::Result<Shard> {
        let found = cas::read::<Manifest>(store, &layout::manifest(shard)).await?;
        let manifest_bytes = found.as_ref().map_or(0, |found| found.bytes);
        let manifest = found.map_or_else(|| Manifest::new(buffer.id, shard), |found| found.state);
        Ok(Shard {
            log: whole(store, manifest).await?,
            manifest_bytes,
            cursors: cursors(store, shard).await?,
        })
    }
}

impl Serialize for Shard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        shard_json(&self.log, self.manifest_bytes, &self.cursors).serialize(serializer)
    }
}

fn shard_json(log: &Log, bytes: usize, cursors: &[Cursor]) -> Value {
    let entries: Vec<Value> = log
        .entries(0)
        .map(|(sequence, entry)| {
            let parts: Vec<Value> = entry.parts.iter().map(|p| json!({
            "stream": log.streams[p.stream as usize].name, "offset": p.offset, "length": p.length,
            "raw_len": p.raw_len, "messages": p.messages, "records": p.records,
            "first_received_at_us": p.first_received_at_us, "last_received_at_us": p.last_received_at_us,
        })).collect();
            json!({
                "sequence": sequence, "segment": entry.segment.to_string(), "size": entry.size,
                "committed_at_ms": entry.committed_at_ms, "parts": parts,
            })
        })
        .collect();
    let pages: Vec<Value> = log.pages.iter().map(|p| json!({
        "first": p.first, "last": p.last, "page": p.page.to_string(), "bytes": p.bytes, "messages": p.messages,
        "records": p.records,
    })).collect();
    let producers: Vec<Value> = log.producers.iter().map(|p| json!({
        "id": p.id.to_string(), "commit": p.commit, "first_sequence": p.first_sequence, "count": p.count,
        "seen_at_ms": p.seen_at_ms,
    })).collect();
    json!({
        "shard": log.shard, "version": log.stamp.version, "bytes": bytes, "first_sequence": log.first_sequence,
        "next_sequence": log.next_sequence, "orphan_floor_ms": log.orphan_floor_ms, "pages": pages, "entries": entries,
        "streams": log.streams.iter().map(|s| json!({"name": s.name, "encoding": s.encoding.name()})).collect::<Vec<_>>(),
        "producers": producers, "consumers": cursors.iter().map(|c| cursor_json(log, c)).collect::<Vec<_>>(),
    })
}

fn cursor_json(log: &Log, cursor: &Cursor) -> Value {
    let (ownership, owner, lease) = match &cursor.ownership {
        Ownership::Released => ("released", None, None),
        Ownership::Abandoned => ("abandoned", None, None),
        Ownership::Removed => ("removed", None, None),
        Ownership::Held {
            owner,
            lease_expires_at_ms,
        } => ("held", Some(owner), Some(lease_expires_at_ms)),
    };
    let streams: Vec<Value> = (0_u32..)
        .zip(&log.streams)
        .map(|(index, stream)| {
            let next = cursor.next(&stream.name);
            let waiting = log.records(index, next);
            let planned: Vec<_> = cursor.planned(&stream.name).collect();
            json!({ "stream": stream.name, "next": next, "planned": planned, "records_behind": waiting })
        })
        .collect();
    let programs = cursor.programs.as_ref().map(|programs| {
        let hashes = programs
            .iter()
            .map(|(stream, hash)| (stream.clone(), hash.to_string()));
        hashes.collect::<BTreeMap<_, _>>()
    });
    json!({
        "consumer": cursor.consumer, "epoch": cursor.epoch, "ownership": ownership, "owner": owner,
        "lease_expires_at_ms": lease, "policy": cursor.policy, "streams": streams, "programs": programs,
    })
}

/// The index of a segment whose checksums are right.
#[derive(Debug, Serialize)]
pub struct Segment {
    /// Its file or URL.
    pub segment: String,
    /// Its size.
    pub size: usize,
    /// Its streams.
    pub streams: Vec<Part>,
}

/// The part of a segment that holds one stream.
#[derive(Debug, Serialize)]
pub struct Part {
    /// The stream.
    pub stream: String,
    /// The encoding of its messages.
    pub encoding: &'static str,
    /// Its offset in the segment.
    pub offset: u64,
    /// Its compressed size.
    pub length: u64,
    /// Its uncompressed size.
    pub raw_len: u64,
    /// Number of messages.
    pub messages: u64,
    /// Number of records.
    pub records: u64,
    /// Unix time in microseconds of the first message's reception.
    pub first_received_at_us: i64,
    /// Unix time in microseconds of the last message's reception.
    pub last_received_at_us: i64,
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// A block.
#[derive(Debug, Serialize)]
pub struct Block {
    /// Its offset in the segment.
    pub offset: u64,
    /// Its size with the header.
    pub length: u64,
    /// Its uncompressed size.
    pub raw_len: u64,
    /// Number of messages.
    pub messages: u64,
    /// Its compression.
    pub compression: &'static str,
}

impl Segment {
    /// Verifies every checksum of a segment and reads its index. `name` is for messages.
    ///
    /// # Errors
    /// The segment is damaged.
    pub fn read(name: &str, object: &Bytes) -> anyhow::Result<Segment> {
        let index = millpond_segment::verify(object, &Limits::default()).with_context(|| name.to_owned())?;
        let mut streams = Vec::new();
        for part in &index.streams {
            let data = part.slice(object).context("the index was verified")?;
            let mut blocks = Vec::new();
            for block in millpond_segment::blocks(&data, part.offset, &Limits::default()) {
                let block = block?;
                blocks.push(Block {
                    offset: block.offset(),
                    length: block.encoded_len(),
                    raw_len: block.raw_len(),
                    messages: block.messages(),
                    compression: block.compression().name(),
                });
            }
            streams.push(Part {
                stream: part.stream.clone(),
                encoding: part.encoding.name(),
                offset: part.offset,
                length: part.length,
                raw_len: part.raw_len,
                messages: part.messages,
                records: part.records,
                first_received_at_us: part.first_received_at_us,
                last_received_at_us: part.last_received_at_us,
                blocks,
            });
        }
        Ok(Segment {
            segment: name.to_owned(),
            size: object.len(),
            streams,
        })
    }
}
