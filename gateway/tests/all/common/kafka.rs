//! A client that speaks Kafka's protocol byte by byte, so that a test can break every rule.

use std::net::SocketAddr;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

pub const PRODUCE: i16 = 0;
pub const METADATA: i16 = 3;
pub const SASL_HANDSHAKE: i16 = 17;
pub const API_VERSIONS: i16 = 18;
pub const INIT_PRODUCER_ID: i16 = 22;
pub const SASL_AUTHENTICATE: i16 = 36;

/// The error that has Java's client send a batch again under a new epoch.
const UNKNOWN_PRODUCER_ID: i16 = 59;

/// The newest version of Produce that is not flexible. Its answers have reasons.
pub const PRODUCE_VERSION: i16 = 8;

pub struct Client {
    stream: TcpStream,
    correlation_id: i32,
}

/// The outcome for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub error: i16,
    pub message: String,
    /// The malformed records.
    pub records: Vec<(i32, String)>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client {
            stream: TcpStream::connect(address).await.expect("a connection"),
            correlation_id: 0,
        }
    }

    /// Sends a request without waiting for the answer.
    pub async fn send(&mut self, api: i16, version: i16, body: &[u8]) {
        self.correlation_id += 1;
        let mut request = Vec::new();
        request.put_i16(api);
        request.put_i16(version);
        request.put_i32(self.correlation_id);
        string(&mut request, "a test");
        request.put_slice(body);
        self.send_raw(&framed(&request)).await;
    }

    pub async fn send_raw(&mut self, bytes: &[u8]) {
        // The gateway may have closed the connection: the answer says so.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next answer: its correlation id, and what follows. `None` if the connection is closed.
    pub async fn answer(&mut self) -> Option<(i32, Vec<u8>)> {
        let answer = async {
            let length = self.stream.read_u32().await.ok()?;
            let mut answer = vec![0; length as usize];
            self.stream.read_exact(&mut answer).await.ok()?;
            let mut bytes = &answer[..];
            Some((bytes.get_i32(), bytes.to_vec()))
        };
        timeout(PATIENCE, answer).await.expect("an answer or an end")
    }

    pub async fn ask(&mut self, api: i16, version: i16, body: &[u8]) -> Option<Vec<u8>> {
        self.send(api, version, body).await;
        let (correlation_id, answer) = self.answer().await?;
        assert_eq!(correlation_id, self.correlation_id);
        Some(answer)
    }

    /// Sends one batch to partition 0 of a topic.
    pub async fn produce(&mut self, topic: &str, batch: &[u8]) -> Outcome {
        let request = produce(topic, -1, &[(0, batch)]);
        let answer = self
            .ask(PRODUCE, PRODUCE_VERSION, &request)
            .await
            .expect("an answer");
        outcomes(&answer).remove(0)
    }
}

pub fn framed(request: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_u32(u32::try_from(request.len()).expect("short"));
    frame.put_slice(request);
    frame
}

pub fn string(out: &mut Vec<u8>, text: &str) {
    out.put_i16(i16::try_from(text.len()).expect("short"));
    out.put_slice(text.as_bytes());
}

/// Batches by partition.
pub type Batches<'a> = &'a [(i32, &'a [u8])];

/// The body of a Produce request for one topic.
pub fn produce(topic: &str, acks: i16, partitions: Batches<'_>) -> Vec<u8> {
    produce_all(acks, &[(topic, partitions)])
}

/// The body of a Produce request: topics, and a batch for each of some partitions.
pub fn produce_all(acks: i16, topics: &[(&str, Batches<'_>)]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i16(-1);
    body.put_i16(acks);
    body.put_i32(30_000);
    body.put_i32(i32::try_from(topics.len()).expect("few"));
    for (topic, partitions) in topics {
        string(&mut body, topic);
        body.put_i32(i32::try_from(partitions.len()).expect("few"));
        for (index, batch) in *partitions {
            body.put_i32(*index);
            body.put_i32(i32::try_from(batch.len()).expect("short"));
            body.put_slice(batch);
        }
    }
    body
}

/// The outcomes in the answer to a Produce request, by topic and partition.
pub fn outcomes(mut answer: &[u8]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..answer.get_i32() {
        take_string(&mut answer);
        take_outcomes(&mut answer, &mut outcomes);
    }
    assert_eq!((answer.get_i32(), answer.len()), (0, 0));
    outcomes
}

fn take_outcomes(answer: &mut &[u8], outcomes: &mut Vec<Outcome>) {
    for _ in 0..answer.get_i32() {
        answer.get_i32();
        let error = answer.get_i16();
        let log_start = if error == UNKNOWN_PRODUCER_ID { 0 } else { -1 };
        assert_eq!(
            (answer.get_i64(), answer.get_i64(), answer.get_i64()),
            (-1, -1, log_start)
        );
        let mut records = Vec::new();
        for _ in 0..answer.get_i32() {
            records.push((answer.get_i32(), take_string(answer)));
        }
        outcomes.push(Outcome {
            error,
            message: take_string(answer),
            records,
        });
    }
}

pub fn take_string(from: &mut &[u8]) -> String {
    let length = usize::try_from(from.get_i16()).unwrap_or(0);
    let text = String::from_utf8(from[..length].to_vec()).expect("text");
    from.advance(length);
    text
}

/// A record: key, value, headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// Records with these values alone.
pub fn values<'a>(values: &[&'a str]) -> Vec<Record<'a>> {
    let record = |value: &&'a str| Record {
        value: Some(value.as_bytes()),
        ..Record::default()
    };
    values.iter().map(record).collect()
}

/// The records of a batch, not compressed. The n-th is n ms after the first.
pub fn body(records: &[Record<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for (place, record) in (0_i64..).zip(records) {
        let mut bytes = vec![0];
        varint(&mut bytes, place);
        varint(&mut bytes, place);
        optional(&mut bytes, record.key);
        optional(&mut bytes, record.value);
        varint(&mut bytes, i64::try_from(record.headers.len()).expect("few"));
        for (name, value) in record.headers {
            optional(&mut bytes, Some(name.as_bytes()));
            optional(&mut bytes, *value);
        }
        optional(&mut out, Some(&bytes));
    }
    out
}

pub const TIMESTAMP: i64 = 1_700_000_000_000;

/// A batch of `count` records with these attributes.
pub fn batch_of(attributes: i16, count: i32, body: &[u8]) -> Vec<u8> {
    let mut checked = Vec::new();
    checked.put_i16(attributes);
    checked.put_i32(count - 1);
    checked.put_i64(TIMESTAMP);
    checked.put_i64(TIMESTAMP + i64::from(count) - 1);
    checked.put_i64(-1);
    checked.put_i16(-1);
    checked.put_i32(-1);
    checked.put_i32(count);
    checked.put_slice(body);
    let mut batch = Vec::new();
    batch.put_i64(0);
    batch.put_i32(i32::try_from(checked.len() + 9).expect("short"));
    batch.put_i32(-1);
    batch.put_i8(2);
    batch.put_u32(crc32c::crc32c(&checked));
    batch.put_slice(&checked);
    batch
}

/// A batch of these records, not compressed.
pub fn batch(records: &[Record<'_>]) -> Vec<u8> {
    batch_of(0, i32::try_from(records.len()).expect("few"), &body(records))
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.put_u8(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest.to_le_bytes()[0]);
}

fn optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint(out, -1),
        Some(bytes) => {
            varint(out, i64::try_from(bytes.len()).expect("short"));
            out.put_slice(bytes);
        }
    }
}

/// The batch as an idempotent producer numbers it.
pub fn numbered(mut batch: Vec<u8>, producer_id: i64, epoch: i16, first: i32) -> Vec<u8> {
    const CHECKED: usize = 21;
    batch[43..51].copy_from_slice(&producer_id.to_be_bytes());
    batch[51..53].copy_from_slice(&epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&first.to_be_bytes());
    let checksum = crc32c::crc32c(&batch[CHECKED..]);
    batch[CHECKED - 4..CHECKED].copy_from_slice(&checksum.to_be_bytes());
    batch
}
