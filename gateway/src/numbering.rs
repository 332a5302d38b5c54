//! The numbers that clients give to their requests, so that a repetition does not append the records twice: by headers
//! over HTTP and gRPC, by sequence numbers over Kafka's protocol.

use std::fmt::Display;
use std::str::FromStr;

use hyper::header::{HeaderMap, HeaderName};
use millpond_producer::{ClientId, ClientRefusal, Numbered, Numbers};
use sha2::{Digest as _, Sha256};

use crate::envelope::show_header;
use crate::refusal::{Refusal, Why};

/// Names the client. Its numbers count per stream.
const PRODUCER: HeaderName = HeaderName::from_static("millpond-producer");
/// The number of the request, from 1.
const NUMBER: HeaderName = HeaderName::from_static("millpond-number");
/// A key that no other request to the stream has.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// In an answer: the log had the records already.
pub(crate) const REPEATED: HeaderName = HeaderName::from_static("millpond-repeated");
/// In an answer: the last number of the client in the log.
pub(crate) const LAST_NUMBER: HeaderName = HeaderName::from_static("millpond-last-number");

/// Maximum bytes of a client's name or of a key.
const NAME_MAX: usize = 255;

/// A request's number, by its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Numbering {
    /// The client counts its requests.
    Counted {
        /// The client's name.
        producer: String,
        /// From 1.
        number: u64,
    },
    /// The request has an idempotency key.
    Key(String),
}

impl Numbering {
    /// Reads the headers. `None`: the request has no number.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Numbering>, Refusal> {
        let producer = name(headers, &PRODUCER)?;
        let number: Option<u64> = single(headers, &NUMBER, "a number from 1 on")?;
        match (producer, number, name(headers, &KEY)?) {
            (None, None, key) => Ok(key.map(Numbering::Key)),
            (Some(_), Some(0), None) => Err(Refusal::invalid("millpond-number is 0; numbers begin with 1")),
            (Some(producer), Some(number), None) => Ok(Some(Numbering::Counted { producer, number })),
            (Some(_), None, _) => Err(Refusal::invalid("millpond-producer needs a millpond-number")),
            (None, Some(_), _) => Err(Refusal::invalid("millpond-number needs a millpond-producer")),
            (Some(_), Some(_), Some(_)) => Err(Refusal::invalid(
                "millpond-producer and idempotency-key exclude each other; use one of them",
            )),
        }
    }

    /// The number of a message for this stream.
    pub(crate) fn numbered(&self, stream: &str, message: &[u8]) -> Numbered {
        let (client, numbers) = match self {
            Numbering::Counted { producer, number } => (
                client(stream, &["http", producer]),
                Numbers::Counted { number: *number },
            ),
            Numbering::Key(key) => (client(stream, &["key", key]), Numbers::Once),
        };
        Numbered {
            client,
            numbers,
            // 0 stands for no checksum.
            checksum: crc32c::crc32c(message).max(1),
            source: None,
        }
    }
}

/// The number of a batch of a Kafka producer, whose numbers count per topic and partition.
pub(crate) fn of_kafka(
    sequence: millpond_kafka::Sequence,
    count: u32,
    (stream, topic, partition): (&str, &str, i32),
) -> Result<Numbered, &'static str> {
    let (Ok(epoch), Ok(first)) = (u16::try_from(sequence.epoch), u32::try_from(sequence.first)) else {
        return Err("the batch of an idempotent producer has no epoch or no sequence number");
    };
    let (partition, producer) = (partition.to_string(), sequence.producer_id.to_string());
    Ok(Numbered {
        client: client(stream, &["kafka", topic, &partition, &producer]),
        numbers: Numbers::Sequence { epoch, first, count },
        // Whoever repeats a batch repeats its bytes.
        checksum: 0,
        source: None,
    })
}

/// The answer to a request whose number cannot be accepted.
pub(crate) fn refusal(refused: &ClientRefusal) -> Refusal {
    let conflict = |last: Option<u64>, what: &dyn Display| Refusal::new(Why::Number { last }, what);
    match refused {
        ClientRefusal::Gap { last } => conflict(
            Some(*last),
            &format_args!(
                "the number does not follow {last}, the client's last one in the log; send {}",
                last + 1
            ),
        ),
        ClientRefusal::Unknown => conflict(
            None,
            &"the gateway's shard does not know the client, or has forgotten it: begin again with 1 under a new name. Whether the \
              last request without an answer is in the log is unknown",
        ),
        ClientRefusal::Reused => Refusal::new(
            Why::Reused,
            "the number or key belongs to another message in the log; use a new one for each message",
        ),
        ClientRefusal::Full => Refusal::exhausted(format_args!(
            "{refused}; use millpond-producer and millpond-number instead"
        )),
        // A repetition is a success, and the others occur with numbers of Kafka's only, or with a bridge.
        ClientRefusal::Repeated { .. }
        | ClientRefusal::Fenced { .. }
        | ClientRefusal::Overlaps
        | ClientRefusal::Position { .. }
        | ClientRefusal::SetAnew
        | ClientRefusal::Invalid(_) => conflict(None, refused),
    }
}

/// The client of a stream that has this name, whose parts contain no zero bytes. Its group is the first part of the stream's
/// name: the prefix of the token, if it has one. So each such tenant has a share of the shard's tables.
fn client(stream: &str, name: &[&str]) -> ClientId {
    let group = stream.split('.').next().unwrap_or_default();
    let mut digest = Sha256::new();
    for part in [stream].iter().chain(name) {
        digest.update(part);
        digest.update([0]);
    }
    ClientId::new(&Sha256::digest(group).into(), &digest.finalize().into())
}

fn name(headers: &HeaderMap, header: &HeaderName) -> Result<Option<String>, Refusal> {
    let expected = "1 to 255 visible ASCII characters";
    let name: Option<String> = single(headers, header, expected)?;
    let is_allowed = |name: &String| {
        (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match name {
        Some(name) if !is_allowed(&name) => Err(invalid(header, name.as_bytes(), expected)),
        name => Ok(name),
    }
}

fn single<T: FromStr>(
    headers: &HeaderMap,
    header: &HeaderName,
    expected: &str,
) -> Result<Option<T>, Refusal> {
    let mut all = headers.get_all(header).iter();
    let Some(value) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err(Refusal::invalid(format_args!("the header {header} occurs twice")));
    }
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    parsed
        .map(Some)
        .ok_or_else(|| invalid(header, value.as_bytes(), expected))
}

fn invalid(header: &HeaderName, value: &[u8], expected: &str) -> Refusal {
    Refusal::invalid(format_args!("{header} is {}, not {expected}", show_header(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn of(headers: &[(&HeaderName, &str)]) -> Result<Option<Numbering>, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        Numbering::of(&map).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_request_has_a_producer_and_a_number_or_a_key_or_neither() {
        let counted = |producer: &str, number| {
            let producer = producer.to_owned();
            Ok(Some(Numbering::Counted { producer, number }))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(
            of(&[(&PRODUCER, "billing-7"), (&NUMBER, "12")]),
            counted("billing-7", 12)
        );
        assert_eq!(
            of(&[(&KEY, "\"a\"")]),
            Ok(Some(Numbering::Key("\"a\"".to_owned())))
        );
        let long = "x".repeat(NAME_MAX + 1);
        for (headers, wrong) in [
            (
                &[(&PRODUCER, "a")][..],
                "millpond-producer needs a millpond-number",
            ),
            (&[(&NUMBER, "1")], "millpond-number needs a millpond-producer"),
            (
                &[(&PRODUCER, "a"), (&NUMBER, "0")],
                "millpond-number is 0; numbers begin with 1",
            ),
            (
                &[(&PRODUCER, "a"), (&NUMBER, "-1")],
                "millpond-number is -1, not a number from 1 on",
            ),
            (
                &[(&PRODUCER, "a"), (&NUMBER, "1"), (&NUMBER, "2")],
                "the header millpond-number occurs twice",
            ),
            (
                &[(&PRODUCER, "a b"), (&NUMBER, "1")],
                "millpond-producer is a b, not 1 to 255 visible ASCII characters",
            ),
            (
                &[(&PRODUCER, ""), (&NUMBER, "1")],
                "millpond-producer is , not 1 to 255 visible ASCII characters",
            ),
            (
                &[(&PRODUCER, "a"), (&NUMBER, "1"), (&KEY, "k")],
                "millpond-producer and idempotency-key exclude each other; use one of them",
            ),
        ] {
            assert_eq!(of(headers), Err(wrong.to_owned()), "{headers:?}");
        }
        assert!(
            of(&[(&KEY, &long)])
                .unwrap_err()
                .starts_with("idempotency-key is xxx")
        );
    }

    #[test]
    fn clients_differ_by_stream_and_kind() {
        let key = Numbering::Key("a".to_owned());
        let counted = Numbering::Counted {
            producer: "a".to_owned(),
            number: 1,
        };
        let ids = [
            key.numbered("events.a", b"").client,
            key.numbered("events.b", b"").client,
            counted.numbered("events.a", b"").client,
        ];
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
        assert_eq!(key.numbered("events.a", b"other").client, ids[0]);
        assert_ne!(
            key.numbered("events.a", b"other").checksum,
            key.numbered("events.a", b"").checksum
        );
        let group = |stream| key.numbered(stream, b"").client.0[..4].to_vec();
        assert_eq!(group("acme.otlp.logs"), group("acme.signup"));
        assert_ne!(group("acme.signup"), group("globex.signup"));
    }
}
