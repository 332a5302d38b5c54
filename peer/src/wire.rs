//! Requests and replies as bytes. Whatever comes from another process is checked here.

use std::time::Duration;

use bytes::Bytes;
use millpond_manifest::{ClientClaim, ClientId, NewPart, NewSegment, Numbers, ProducerId};
use millpond_producer::{Closes, PeerAnswer, PeerCommit, PeerRefusal, PeerRequest, Records, StreamBlock};
use millpond_segment::{EncodedBlock, Encoding, Limits};
use prost::Message;
use prost::encoding::decode_varint;
use ulid::Ulid;

use crate::proto;

/// A request or reply that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
    #[error("{0}")]
    Content(String),
}

fn content(reason: impl Into<String>) -> WireError {
    WireError::Content(reason.into())
}

pub(crate) fn encode_request(request: &PeerRequest) -> Bytes {
    let (blocks, segments) = match &request.records {
        Records::Blocks(blocks) => (blocks.iter().map(encode_block).collect(), Vec::new()),
        Records::Segments(segments) => (Vec::new(), segments.iter().map(encode_segment).collect()),
    };
    let message = proto::Request {
        producer: Bytes::copy_from_slice(&request.producer.0),
        number: request.number,
        blocks,
        segments,
        clients: request.clients.iter().map(encode_client).collect(),
    };
    message.encode_to_vec().into()
}

/// The field of a request that has messages with messages in them.
const SEGMENTS: u64 = 4;

/// Counts the blocks, segments, parts and clients of a request, and more, without decoding it. Each takes memory, and as little as two
/// bytes here.
pub(crate) fn elements(request: &[u8]) -> Result<usize, WireError> {
    elements_of(request, true)
}

fn elements_of(mut message: &[u8], is_request: bool) -> Result<usize, WireError> {
    let mut count = 0;
    while !message.is_empty() {
        let key = decode_varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                decode_varint(&mut message)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX),
            5 => 4,
            kind => return Err(content(format!("unknown wire type {kind}"))),
        };
        let field = message
            .split_off(..length)
            .ok_or_else(|| content("a field is cut off"))?;
        count += 1;
        if is_request && key >> 3 == SEGMENTS {
            count += elements_of(field, false)?;
        }
    }
    Ok(count)
}

pub(crate) fn decode_request(bytes: Bytes) -> Result<PeerRequest, WireError> {
    let message = proto::Request::decode(bytes)?;
    let records = match (message.blocks.is_empty(), message.segments.is_empty()) {
        (false, false) => return Err(content("it has blocks and segments")),
        (_, true) => Records::Blocks(
            message
                .blocks
                .into_iter()
                .map(decode_block)
                .collect::<Result<_, _>>()?,
        ),
        (true, false) => {
            let segments = message.segments.into_iter().map(decode_segment);
            Records::Segments(segments.collect::<Result<_, _>>()?)
        }
    };
    Ok(PeerRequest {
        producer: ProducerId(sixteen("producer", &message.producer)?),
        number: message.number,
        records,
        clients: message
            .clients
            .iter()
            .map(decode_client)
            .collect::<Result<_, _>>()?,
    })
}

fn encode_client(claim: &ClientClaim) -> proto::Client {
    use proto::client::Numbers as Proto;
    let numbers = match claim.numbers {
        Numbers::Counted { number } => Some(Proto::Counted(number)),
        Numbers::Sequence { epoch, first, count } => Some(Proto::Sequence(proto::Sequence {
            epoch: epoch.into(),
            first,
            count,
        })),
        Numbers::Once => Some(Proto::Once(proto::Once {})),
        // No other producer commits the offsets of a partition: the leader refuses them.
        Numbers::Offsets { .. } => None,
    };
    proto::Client {
        id: Bytes::copy_from_slice(&claim.client.0),
        checksum: claim.checksum,
        segment: u32::try_from(claim.segment).unwrap_or(u32::MAX),
        numbers,
    }
}

fn decode_client(message: &proto::Client) -> Result<ClientClaim, WireError> {
    use proto::client::Numbers as Proto;
    let numbers = match message.numbers {
        Some(Proto::Counted(number)) => Numbers::Counted { number },
        Some(Proto::Sequence(proto::Sequence { epoch, first, count })) => Numbers::Sequence {
            epoch: u16::try_from(epoch).map_err(|_| content(format!("epoch {epoch} is over 65535")))?,
            first,
            count,
        },
        Some(Proto::Once(proto::Once {})) => Numbers::Once,
        None => return Err(content("a client has no numbers")),
    };
    Ok(ClientClaim {
        client: ClientId(sixteen("client", &message.id)?),
        numbers,
        checksum: message.checksum,
        segment: usize::try_from(message.segment).unwrap_or(usize::MAX),
        source: None,
    })
}

fn sixteen(field: &str, bytes: &[u8]) -> Result<[u8; 16], WireError> {
    let length = bytes.len();
    bytes
        .try_into()
        .map_err(|_| content(format!("{field} has {length} bytes instead of 16")))
}

fn encode_encoding(encoding: Encoding) -> i32 {
    match encoding {
        Encoding::Otlp => proto::Encoding::Otlp.into(),
        Encoding::Ndjson => proto::Encoding::Ndjson.into(),
    }
}

fn decode_encoding(encoding: i32) -> Result<Encoding, WireError> {
    match proto::Encoding::try_from(encoding) {
        Ok(proto::Encoding::Otlp) => Ok(Encoding::Otlp),
        Ok(proto::Encoding::Ndjson) => Ok(Encoding::Ndjson),
        _ => Err(content(format!("unknown encoding {encoding}"))),
    }
}

/// The time from the first to the last message. It wraps like the sum that undoes it.
fn span(first_us: i64, last_us: i64) -> u64 {
    last_us.wrapping_sub(first_us).cast_unsigned()
}

fn end_of_span(first_us: i64, span_us: u64) -> Result<i64, WireError> {
    first_us
        .checked_add_unsigned(span_us)
        .ok_or_else(|| content("received_span_us overflows"))
}

fn encode_block(it: &StreamBlock) -> proto::Block {
    proto::Block {
        stream: it.stream.to_string(),
        encoding: encode_encoding(it.encoding),
        block: it.block.bytes.clone(),
        records: it.block.records,
        first_received_at_us: it.block.first_received_at_us,
        received_span_us: span(it.block.first_received_at_us, it.block.last_received_at_us),
    }
}

fn decode_block(message: proto::Block) -> Result<StreamBlock, WireError> {
    let first_us = message.first_received_at_us;
    let received = first_us..=end_of_span(first_us, message.received_span_us)?;
    // A copy, so that the block does not keep the whole request.
    let bytes = Bytes::copy_from_slice(&message.block);
    let block = EncodedBlock::verified(bytes, message.records, received, &Limits::default())
        .map_err(|error| content(error.to_string()))?;
    Ok(StreamBlock {
        stream: message.stream.into(),
        encoding: decode_encoding(message.encoding)?,
        block,
    })
}

fn encode_segment(segment: &NewSegment) -> proto::Segment {
    let part = |part: &NewPart| proto::Part {
        stream: part.stream.clone(),
        encoding: encode_encoding(part.encoding),
        offset: part.offset,
        length: part.length,
        raw_len: part.raw_len,
        messages: part.messages,
        records: part.records,
        first_received_at_us: part.first_received_at_us,
        received_span_us: span(part.first_received_at_us, part.last_received_at_us),
    };
    proto::Segment {
        name: Bytes::copy_from_slice(&segment.segment.to_bytes()),
        size: segment.size,
        parts: segment.parts.iter().map(part).collect(),
    }
}

fn decode_segment(segment: proto::Segment) -> Result<NewSegment, WireError> {
    let part = |part: proto::Part| {
        Ok(NewPart {
            encoding: decode_encoding(part.encoding)?,
            offset: part.offset,
            length: part.length,
            raw_len: part.raw_len,
            messages: part.messages,
            records: part.records,
            first_received_at_us: part.first_received_at_us,
            last_received_at_us: end_of_span(part.first_received_at_us, part.received_span_us)?,
            stream: part.stream,
        })
    };
    Ok(NewSegment {
        segment: Ulid::from_bytes(sixteen("segment", &segment.name)?),
        size: segment.size,
        parts: segment
            .parts
            .into_iter()
            .map(part)
            .collect::<Result<_, WireError>>()?,
    })
}

pub(crate) fn encode_reply(answer: &PeerAnswer) -> Bytes {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let outcome = match answer {
        PeerAnswer::Committed(commit) => proto::reply::Outcome::Committed(proto::Committed {
            first_sequence: commit.first_sequence,
            closes_after_us: commit.closes.map_or(0, |closes| micros(closes.after)),
            closes_every_us: commit.closes.map_or(0, |closes| micros(closes.every)),
        }),
        PeerAnswer::Refused(refusal) => {
            let (reason, message) = encode_refusal(refusal);
            proto::reply::Outcome::Refused(proto::Refused {
                reason: reason.into(),
                message,
            })
        }
    };
    let reply = proto::Reply {
        outcome: Some(outcome),
    };
    reply.encode_to_vec().into()
}

pub(crate) fn decode_reply(bytes: Bytes) -> Result<PeerAnswer, WireError> {
    match proto::Reply::decode(bytes)?.outcome {
        Some(proto::reply::Outcome::Committed(committed)) => {
            let closes = (committed.closes_every_us > 0).then(|| Closes {
                after: Duration::from_micros(committed.closes_after_us),
                every: Duration::from_micros(committed.closes_every_us),
            });
            Ok(PeerAnswer::Committed(PeerCommit {
                first_sequence: committed.first_sequence,
                closes: closes.filter(|closes| closes.every <= CLOSES_MAX && closes.after <= closes.every),
            }))
        }
        Some(proto::reply::Outcome::Refused(refused)) => Ok(PeerAnswer::Refused(decode_refusal(refused))),
        None => Err(content("the reply has no outcome")),
    }
}

/// A longer interval is no rhythm: it would overflow times.
const CLOSES_MAX: Duration = Duration::from_secs(86_400);

fn encode_refusal(refusal: &PeerRefusal) -> (proto::refused::Reason, String) {
    use proto::refused::Reason;
    let none = String::new;
    match refusal {
        PeerRefusal::NotLeading => (Reason::NotLeading, none()),
        PeerRefusal::Leaving => (Reason::Leaving, none()),
        PeerRefusal::OverBudget => (Reason::OverBudget, none()),
        PeerRefusal::HeldUp(why) => (Reason::HeldUp, why.clone()),
        PeerRefusal::Busy => (Reason::Busy, none()),
        PeerRefusal::NotCommitted(why) => (Reason::NotCommitted, why.clone()),
        PeerRefusal::Client => (Reason::Client, none()),
        // A version that does not know numbered requests has no path for them, and sends nothing.
        PeerRefusal::Unnumbered => (Reason::Invalid, refusal.to_string()),
        PeerRefusal::Invalid(why) => (Reason::Invalid, why.clone()),
    }
}

fn decode_refusal(refused: proto::Refused) -> PeerRefusal {
    use proto::refused::Reason;
    let reason = refused.reason();
    let message = refused.message;
    match reason {
        Reason::NotLeading => PeerRefusal::NotLeading,
        Reason::Leaving => PeerRefusal::Leaving,
        Reason::OverBudget => PeerRefusal::OverBudget,
        Reason::HeldUp => PeerRefusal::HeldUp(message),
        Reason::Busy => PeerRefusal::Busy,
        Reason::NotCommitted => PeerRefusal::NotCommitted(message),
        Reason::Client => PeerRefusal::Client,
        Reason::Invalid | Reason::Unspecified => PeerRefusal::Invalid(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request to commit a segment with two parts.
    fn delegated() -> Bytes {
        let part = NewPart {
            stream: "otlp.logs".to_owned(),
            encoding: Encoding::Otlp,
            offset: 1,
            length: 2,
            raw_len: 3,
            messages: 4,
            records: 5,
            first_received_at_us: 6,
            last_received_at_us: 7,
        };
        encode_request(&PeerRequest {
            producer: ProducerId([7; 16]),
            number: 1,
            records: Records::Segments(vec![NewSegment {
                segment: Ulid::from_parts(1, 1),
                size: 9,
                parts: vec![part.clone(), part],
            }]),
            clients: clients(),
        })
    }

    fn clients() -> Vec<ClientClaim> {
        let sequence = Numbers::Sequence {
            epoch: u16::MAX,
            first: 8,
            count: 9,
        };
        let all = [Numbers::Counted { number: 0 }, sequence, Numbers::Once];
        let claim = |(segment, numbers)| ClientClaim {
            client: ClientId([5; 16]),
            numbers,
            checksum: 1 << 31,
            segment,
            source: None,
        };
        all.into_iter().enumerate().map(claim).collect()
    }

    #[test]
    fn every_part_counts() {
        // The producer, the segment, its name and its parts, and the clients.
        assert_eq!(elements(&delegated()).unwrap(), 8);
        let tiny = [26, 0].repeat(1_000);
        assert_eq!(elements(&tiny).unwrap(), 1_000);
    }

    #[test]
    fn clients_keep_their_numbers() {
        assert_eq!(decode_request(delegated()).unwrap().clients, clients());
    }

    #[test]
    fn clients_without_a_valid_number_are_refused() {
        let client = encode_client(&clients()[1]);
        let offsets = ClientClaim {
            numbers: Numbers::Offsets {
                incarnation: 1,
                from: 2,
                to: 3,
            },
            ..clients().remove(0)
        };
        let large = proto::Sequence {
            epoch: 1 << 16,
            first: 0,
            count: 1,
        };
        for (wrong, reason) in [
            (encode_client(&offsets), "no numbers"),
            (
                proto::Client {
                    numbers: Some(proto::client::Numbers::Sequence(large)),
                    ..client.clone()
                },
                "over 65535",
            ),
            (
                proto::Client {
                    id: Bytes::from_static(b"short"),
                    ..client
                },
                "5 bytes instead of 16",
            ),
        ] {
            let refused = decode_client(&wrong).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn damaged_requests_are_refused() {
        let request = delegated();
        for cut in 0..request.len() {
            let (counted, decoded) = (elements(&request[..cut]), decode_request(request.slice(..cut)));
            assert!(counted.is_ok() || decoded.is_err(), "cut at {cut}");
        }
        for wrong in [
            &[26, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1][..],
            &[27],
            &[255; 20],
        ] {
            assert!(elements(wrong).is_err(), "{wrong:?}");
        }
    }
}
