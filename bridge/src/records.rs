//! Makes messages of the records of a partition, each with the offsets that it covers. Records that do not match their
//! topic's encoding become rows of a stream of their own, in their place. Pure.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millpond_gateway::rows::ROW_BYTES_MAX;
use millpond_gateway::{Route, raw_row};
use millpond_kafka::Record;
use millpond_segment::Encoding;
use serde_json::{Value, json};

/// The stream of records that do not match their topic's encoding.
pub(crate) const REJECTED: &str = "bridge.rejected";

/// The length at which a message is complete.
const MESSAGE_BYTES: usize = 512 << 10;

/// The part of a rejected record in one row: base64 takes a third more.
const PIECE_BYTES: usize = ROW_BYTES_MAX / 2;

/// A message for a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) stream: Arc<str>,
    pub(crate) encoding: Encoding,
    pub(crate) payload: Vec<u8>,
    /// The stream's records.
    pub(crate) records: u64,
    /// Kafka's records.
    pub(crate) read: u64,
    /// The position before the records.
    pub(crate) from: u64,
    /// The position after them.
    pub(crate) to: u64,
    pub(crate) is_rejected: bool,
}

/// The records of a partition on their way into messages.
#[derive(Debug)]
pub(crate) struct Batches {
    route: Route,
    topic: String,
    partition: u32,
    /// The position after the last complete message.
    at: u64,
    filling: Option<Batch>,
    complete: Vec<Batch>,
}

impl Batches {
    /// Begins at this position.
    pub(crate) fn new(route: Route, topic: String, partition: u32, at: u64) -> Batches {
        Batches {
            route,
            topic,
            partition,
            at,
            filling: None,
            complete: Vec::new(),
        }
    }

    /// Returns true if the records need keys and headers.
    pub(crate) fn has_metadata(&self) -> bool {
        self.route.has_metadata()
    }

    /// The position after the last record.
    pub(crate) fn position(&self) -> u64 {
        self.filling.as_ref().map_or(self.at, |batch| batch.to)
    }

    /// Adds the record at this offset. Returns false for one before the position, which the log has.
    pub(crate) fn add(&mut self, offset: u64, record: &Record<'_>) -> bool {
        if offset < self.position() {
            return false;
        }
        let at = self.at;
        let route = &self.route;
        let filling = self.filling.get_or_insert_with(|| Batch {
            stream: Arc::clone(route.stream()),
            encoding: route.encoding(),
            payload: Vec::new(),
            records: 0,
            read: 0,
            from: at,
            to: at,
            is_rejected: false,
        });
        match route.add(record, &mut filling.payload) {
            Ok(records) => {
                filling.records += records;
                filling.read += 1;
                filling.to = offset + 1;
                if filling.payload.len() >= MESSAGE_BYTES {
                    self.finish();
                }
            }
            Err(reason) => {
                if filling.read == 0 {
                    self.filling = None;
                }
                self.finish();
                self.reject(offset, record, &reason);
            }
        }
        true
    }

    fn finish(&mut self) {
        if let Some(batch) = self.filling.take() {
            self.at = batch.to;
            self.complete.push(batch);
        }
    }

    fn reject(&mut self, offset: u64, record: &Record<'_>, reason: &str) {
        let payload = self.rejected_rows(offset, record, reason);
        let batch = Batch {
            stream: REJECTED.into(),
            encoding: Encoding::Ndjson,
            records: payload.iter().filter(|byte| **byte == b'\n').count() as u64 + 1,
            payload,
            read: 1,
            from: self.at,
            to: offset + 1,
            is_rejected: true,
        };
        self.at = batch.to;
        self.complete.push(batch);
    }

    /// One row with the record, or several with pieces of it if it is large.
    fn rejected_rows(&self, offset: u64, record: &Record<'_>, reason: &str) -> Vec<u8> {
        let mut raw = Vec::new();
        raw_row(record, &mut raw);
        let row = |more: Value| {
            let mut row = json!({
                "topic": self.topic,
                "partition": self.partition,
                "offset": offset,
                "timestamp": record.timestamp_ms,
                "reason": reason,
                "route": &**self.route.stream(),
            });
            if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
                row.extend(more);
            }
            row.to_string()
        };
        if raw.len() <= PIECE_BYTES
            && let Ok(Value::Object(raw)) = serde_json::from_slice(&raw)
        {
            return row(Value::Object(raw)).into_bytes();
        }
        let pieces = raw.len().div_ceil(PIECE_BYTES);
        let rows: Vec<String> = (1..)
            .zip(raw.chunks(PIECE_BYTES))
            .map(|(piece, bytes)| {
                let encoded = STANDARD.encode(bytes);
                row(json!({ "piece": piece, "pieces": pieces, "record_base64": encoded }))
            })
            .collect();
        rows.join("\n").into_bytes()
    }

    /// Takes the messages, the last one even if it is short.
    pub(crate) fn take(&mut self) -> Vec<Batch> {
        self.finish();
        std::mem::take(&mut self.complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_gateway::KafkaTopics;
    use millpond_gateway::rows::{Form, read};
    use millpond_kafka::Headers;

    fn record<'a>(value: &'a [u8], headers: &'a mut Vec<u8>) -> Record<'a> {
        Record {
            timestamp_ms: 7,
            key: Some(b"k"),
            value: Some(value),
            headers: Headers::of([(&b"h"[..], Some(&b"v"[..]))], headers),
        }
    }

    fn batches(at: u64) -> Batches {
        let route = KafkaTopics::default().route("orders").unwrap();
        Batches::new(route, "orders".into(), 3, at)
    }

    fn add(batches: &mut Batches, offset: u64, value: &[u8]) -> bool {
        batches.add(offset, &record(value, &mut Vec::new()))
    }

    #[test]
    fn messages_follow_each_other_over_offsets_without_records() {
        let mut batches = batches(10);
        for (offset, value) in [
            (12, "{\"a\":1}"),
            (13, "{\"a\":2}"),
            (20, "no JSON"),
            (22, "{\"a\":3}"),
        ] {
            assert!(add(&mut batches, offset, value.as_bytes()));
        }
        assert!(!add(&mut batches, 21, b"{}"), "the log has it");
        let all = batches.take();
        let places: Vec<_> = all
            .iter()
            .map(|it| (&*it.stream, it.from, it.to, it.read))
            .collect();
        let expected = [
            ("orders", 10, 14, 2),
            (REJECTED, 14, 21, 1),
            ("orders", 21, 23, 1),
        ];
        assert_eq!(places, expected);
        assert_eq!(all[0].payload, b"{\"a\":1}\n{\"a\":2}");
        assert_eq!(batches.position(), 23);
        assert!(batches.take().is_empty());
    }

    #[test]
    fn a_rejected_record_is_kept_whole() {
        let mut batches = batches(0);
        add(&mut batches, 5, b"no JSON");
        let row: Value = serde_json::from_slice(&batches.take()[0].payload).unwrap();
        for (name, value) in [
            ("topic", json!("orders")),
            ("partition", json!(3)),
            ("offset", json!(5)),
            ("key", json!("k")),
            ("value", json!("no JSON")),
            ("headers", json!({ "h": "v" })),
            ("route", json!("orders")),
        ] {
            assert_eq!(row[name], value, "{row}");
        }
    }

    #[test]
    fn a_large_rejected_record_takes_several_rows() {
        let mut batches = batches(0);
        let large: Vec<u8> = (0..=250).cycle().take(3 * ROW_BYTES_MAX).collect();
        add(&mut batches, 5, &large);
        let batch = batches.take().remove(0);
        let rows = read(&batch.payload.clone().into(), Form::Lines);
        assert_eq!((rows.accepted, rows.rejected), (batch.records, 0));
        let raw: Vec<u8> = String::from_utf8(batch.payload)
            .unwrap()
            .lines()
            .flat_map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                STANDARD.decode(row["record_base64"].as_str().unwrap()).unwrap()
            })
            .collect();
        let raw: Value = serde_json::from_slice(&raw).unwrap();
        assert_eq!(
            STANDARD.decode(raw["value_base64"].as_str().unwrap()).unwrap(),
            large
        );
    }

    #[test]
    fn a_message_has_a_maximum_length() {
        let mut batches = batches(0);
        let value = format!("{{\"a\":\"{}\"}}", "x".repeat(100_000));
        for offset in 0..12 {
            add(&mut batches, offset, value.as_bytes());
        }
        let all = batches.take();
        assert!(all.len() == 2 && all[1].from == all[0].to, "{}", all.len());
    }
}
