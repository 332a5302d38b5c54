//! Makes messages of the records of a partition, each with the offsets that it covers. Records that do not match their
//! topic's encoding become rows of a stream of their own, in their place. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millpond_gateway::rows::ROW_BYTES_MAX;
use millpond_gateway::{Route, raw_row};
use millpond_kafka::Record;
use millpond_segment::Encoding;
use serde_json::{Value, json};

use crate::position::Position;

/// The stream of records that do not match their topic's encoding.
pub(crate) const REJECTED: &str = "bridge.rejected";

/// The reason in the row of a record that an operator skips.
pub(crate) const SKIPPED: &str = "skipped, as --skip-record demands";

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
    /// Offsets whose records an operator skips.
    skipped: BTreeSet<u64>,
    /// The incarnation of the position at which they begin.
    incarnation: u64,
    /// The position after the last complete message.
    at: u64,
    filling: Option<Batch>,
    complete: Vec<Batch>,
    /// The bytes of both.
    bytes: usize,
}

impl Batches {
    /// Begins at this position.
    pub(crate) fn new(route: Route, topic: String, partition: u32, begin: Position) -> Batches {
        Batches {
            route,
            topic,
            partition,
            skipped: BTreeSet::new(),
            incarnation: begin.incarnation,
            at: begin.next,
            filling: None,
            complete: Vec::new(),
            bytes: 0,
        }
    }

    /// Begins anew at this position, without what was added.
    pub(crate) fn restart(&mut self, begin: Position) {
        self.incarnation = begin.incarnation;
        self.at = begin.next;
        self.filling = None;
        self.complete.clear();
        self.bytes = 0;
    }

    /// The bytes of the messages so far. Keys, headers and escapes make a row longer than its record's value.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if an operator skips the record at this offset.
    pub(crate) fn skips(&self, offset: u64) -> bool {
        self.skipped.contains(&offset)
    }

    /// Skips the records at these offsets: the stream of rejected ones has a row without their content.
    pub(crate) fn skipping(mut self, offsets: BTreeSet<u64>) -> Batches {
        self.skipped = offsets;
        self
    }

    /// Returns true if the records need keys and headers.
    pub(crate) fn has_metadata(&self) -> bool {
        self.route.has_metadata()
    }

    /// The incarnation of the position.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The position after the last record.
    pub(crate) fn position(&self) -> u64 {
        self.filling.as_ref().map_or(self.at, |batch| batch.to)
    }

    /// Adds the record at this offset, unless it is before the position: the log has those.
    ///
    /// # Errors
    /// The record does not match its topic's encoding, or is one to skip. The caller passes it to [`Batches::reject`].
    pub(crate) fn add(&mut self, offset: u64, record: &Record<'_>) -> Result<(), String> {
        if offset < self.position() {
            return Ok(());
        }
        if self.skips(offset) {
            return Err(SKIPPED.to_owned());
        }
        let bytes = record.value.map_or(0, <[u8]>::len);
        let length = self.filling.as_ref().map_or(0, |batch| batch.payload.len());
        if length > 0 && length + bytes > MESSAGE_BYTES {
            self.finish();
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
        let length = filling.payload.len();
        match route.add(record, &mut filling.payload) {
            Ok(records) => {
                self.bytes += filling.payload.len() - length;
                filling.records += records;
                filling.read += 1;
                filling.to = offset + 1;
                if filling.payload.len() >= MESSAGE_BYTES {
                    self.finish();
                }
                Ok(())
            }
            Err(reason) => {
                if filling.read == 0 {
                    self.filling = None;
                }
                Err(reason)
            }
        }
    }

    fn finish(&mut self) {
        if let Some(batch) = self.filling.take() {
            self.at = batch.to;
            self.complete.push(batch);
        }
    }

    /// Puts a record that cannot be added into the stream of rejected ones.
    pub(crate) fn reject(&mut self, offset: u64, record: &Record<'_>, reason: &str) {
        self.finish();
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
        self.bytes += batch.payload.len();
        self.complete.push(batch);
    }

    /// One row with the record, or several with pieces of it if it is large.
    fn rejected_rows(&self, offset: u64, record: &Record<'_>, reason: &str) -> Vec<u8> {
        let place = json!({
            "topic": self.topic,
            "partition": self.partition,
            "offset": offset,
            "reason": reason,
            "route": &**self.route.stream(),
        });
        if reason == SKIPPED {
            let length = record.value.map_or(0, <[u8]>::len);
            let more = json!({ "timestamp": record.timestamp_ms, "value_bytes": length });
            return joined(&place, more.to_string().as_bytes());
        }
        // As text: a record may have a header twice, and a parsed object would keep the last one.
        let mut raw = Vec::new();
        raw_row(record, &mut raw);
        if raw.len() <= PIECE_BYTES {
            return joined(&place, &raw);
        }
        let pieces = raw.len().div_ceil(PIECE_BYTES);
        let rows: Vec<Vec<u8>> = (1..)
            .zip(raw.chunks(PIECE_BYTES))
            .map(|(piece, bytes)| {
                let more = json!({
                    "timestamp": record.timestamp_ms,
                    "piece": piece,
                    "pieces": pieces,
                    "record_base64": STANDARD.encode(bytes),
                });
                joined(&place, more.to_string().as_bytes())
            })
            .collect();
        rows.join(&b'\n')
    }

    /// Takes the messages, the last one even if it is short.
    pub(crate) fn take(&mut self) -> Vec<Batch> {
        self.finish();
        self.bytes = 0;
        std::mem::take(&mut self.complete)
    }
}

/// One object with the members of two, of which neither is empty.
fn joined(object: &Value, more: &[u8]) -> Vec<u8> {
    let mut row = object.to_string().into_bytes();
    row.pop();
    row.push(b',');
    row.extend_from_slice(more.strip_prefix(b"{").unwrap_or(more));
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_gateway::rows::{Form, read};
    use millpond_gateway::{KafkaTopics, TopicSettings, Unlisted};
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
        let position = Position {
            incarnation: 0,
            next: at,
        };
        Batches::new(route, "orders".into(), 3, position)
    }

    fn add(batches: &mut Batches, offset: u64, value: &[u8]) {
        let mut headers = Vec::new();
        let record = record(value, &mut headers);
        if let Err(reason) = batches.add(offset, &record) {
            batches.reject(offset, &record, &reason);
        }
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
            add(&mut batches, offset, value.as_bytes());
        }
        // The log has it.
        add(&mut batches, 21, b"{}");
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
    fn a_rejected_record_keeps_a_header_that_it_has_twice() {
        let mut batches = batches(0);
        let (mut one, mut headers) = (Vec::new(), Vec::new());
        let record = Record {
            headers: Headers::of(
                [(&b"h"[..], Some(&b"v"[..])), (&b"h"[..], Some(&b"w"[..]))],
                &mut headers,
            ),
            ..record(b"no JSON", &mut one)
        };
        let reason = batches.add(5, &record).unwrap_err();
        batches.reject(5, &record, &reason);
        let row = String::from_utf8(batches.take().remove(0).payload).unwrap();
        assert!(row.contains(r#""headers":{"h":"v","h":"w"}"#), "{row}");
    }

    #[test]
    fn a_skipped_record_leaves_a_row_without_its_content() {
        let mut batches = batches(0).skipping(BTreeSet::from([1]));
        for offset in 0..3 {
            add(&mut batches, offset, br#"{"a":1}"#);
        }
        let all = batches.take();
        let places: Vec<_> = all.iter().map(|it| (&*it.stream, it.from, it.to)).collect();
        assert_eq!(places, [("orders", 0, 1), (REJECTED, 1, 2), ("orders", 2, 3)]);
        let row: Value = serde_json::from_slice(&all[1].payload).unwrap();
        assert_eq!(
            (&row["reason"], &row["value_bytes"]),
            (&json!(SKIPPED), &json!(7))
        );
        assert_eq!(row.get("value"), None);
    }

    /// Neither librdkafka's limits nor the length of a value bound what becomes of a record.
    #[test]
    fn headers_and_escapes_count() {
        let raw = TopicSettings::Raw { stream: None };
        let topics = KafkaTopics::new([("audit".to_owned(), raw)].into(), Unlisted::Refuse);
        let mut batches = Batches::new(
            topics.route("audit").unwrap(),
            "audit".into(),
            0,
            Position::default(),
        );
        let header = vec![b'x'; 100_000];
        let mut none = Vec::new();
        let mut headers = Vec::new();
        let with_headers = Record {
            timestamp_ms: 7,
            key: None,
            value: Some(b""),
            headers: Headers::of([(&b"h"[..], Some(&header[..]))], &mut headers),
        };
        batches.add(0, &with_headers).unwrap();
        assert!(batches.bytes() > 100_000, "{}", batches.bytes());
        let control = vec![1; 100_000];
        let escaped = Record {
            timestamp_ms: 7,
            key: None,
            value: Some(&control),
            headers: Headers::of([], &mut none),
        };
        batches.add(1, &escaped).unwrap();
        assert!(batches.bytes() > 700_000, "{}", batches.bytes());
        let before = batches.bytes();
        batches.reject(2, &with_headers, "a reason");
        assert!(batches.bytes() > before + 100_000);
        let bytes: usize = batches.take().iter().map(|batch| batch.payload.len()).sum();
        assert!(bytes > before + 100_000);
        assert_eq!(batches.bytes(), 0);
    }

    #[test]
    fn a_large_record_does_not_share_a_message() {
        let mut batches = batches(0);
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(MESSAGE_BYTES + 1));
        for (offset, value) in [(0, "{}"), (1, &*large), (2, "{}")] {
            add(&mut batches, offset, value.as_bytes());
        }
        let lengths: Vec<usize> = batches.take().iter().map(|it| it.payload.len()).collect();
        assert_eq!(lengths, [2, large.len(), 2]);
    }

    #[test]
    fn a_message_has_a_maximum_length() {
        let mut batches = batches(0);
        let value = format!("{{\"a\":\"{}\"}}", "x".repeat(100_000));
        for offset in 0..12 {
            add(&mut batches, offset, value.as_bytes());
        }
        let all = batches.take();
        assert_eq!(all.iter().map(|it| it.read).collect::<Vec<_>>(), [5, 5, 2]);
        assert!(all.iter().all(|it| it.payload.len() <= MESSAGE_BYTES));
        assert!(all.windows(2).all(|two| two[1].from == two[0].to));
    }
}
