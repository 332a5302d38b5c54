//! Requests as clients send them, whole and cut off, and answers of every version.

use bytes::Bytes;
use millpond_kafka::{
    Acks, Api, Batch, Body, Broker, ErrorCode, Metadata, PARTITIONS_MAX, PartitionOutcome, Produce, Request,
    RequestError, RequestHeader, TOPICS_MAX, TopicMetadata, TopicOutcome, TopicRef, metadata,
    metadata_len_max, produce,
};
use proptest::prelude::*;

const PRODUCE_8: &[u8] = include_bytes!("../../fuzz/seeds/kafka/produce-8");
const PRODUCE_9: &[u8] = include_bytes!("../../fuzz/seeds/kafka/produce-9");

fn read(bytes: &[u8]) -> Result<Request, RequestError> {
    Request::read(Bytes::copy_from_slice(bytes))
}

fn produce_of(bytes: &[u8]) -> Produce {
    match read(bytes).expect("a request").body {
        Body::Produce(produce) => produce,
        other => panic!("{other:?}"),
    }
}

#[test]
fn compact_and_plain_requests_say_the_same() {
    let plain = produce_of(PRODUCE_8);
    assert_eq!(plain, produce_of(PRODUCE_9));
    assert_eq!((plain.acks, plain.is_transactional), (Acks::Committed, false));
    let [topic] = &plain.topics[..] else {
        panic!("{plain:?}");
    };
    assert_eq!(topic.topic, TopicRef::Name("events.a".to_owned()));
    let batch = Batch::read(topic.partitions[0].records.as_ref().expect("records")).expect("a batch");
    let records: Vec<_> = batch
        .records(&batch.body)
        .map(|record| record.expect("a record"))
        .collect();
    let [record] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!(
        (record.key, record.value),
        (Some(&b"k"[..]), Some(&b"{\"a\":1}"[..]))
    );
    let headers: Vec<_> = record.headers.map(|header| (header.key, header.value)).collect();
    assert_eq!(
        (record.timestamp_ms, headers),
        (1_700_000_000_000, vec![(&b"h"[..], None)])
    );
}

#[test]
fn a_request_that_is_cut_off_anywhere_is_malformed() {
    for whole in [PRODUCE_8, PRODUCE_9] {
        for end in 0..whole.len() {
            let error = read(&whole[..end]).expect_err("too short");
            assert!(matches!(error, RequestError::Malformed(_)), "{end}: {error}");
        }
    }
}

/// The header of a request without a client id.
fn begin(api: Api, version: i16) -> Vec<u8> {
    let mut request = Vec::new();
    request.extend(api.key().to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend([0, 0, 0, 1, 0xff, 0xff]);
    request
}

#[test]
fn topics_and_partitions_of_a_request_are_limited() {
    let metadata = |topics: usize| {
        let mut request = begin(Api::Metadata, 1);
        request.extend(i32::try_from(topics).expect("few").to_be_bytes());
        request.extend([0, 1, b't'].repeat(topics));
        read(&request)
    };
    assert!(metadata(TOPICS_MAX).is_ok());
    let error = metadata(TOPICS_MAX + 1).expect_err("too many").to_string();
    assert!(error.contains("more elements"), "{error}");

    let produce = |partitions: usize| {
        let mut request = begin(Api::Produce, 8);
        // No transaction, all acks, no time limit, two topics, the first without partitions.
        request.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        request.extend([0, 0, 0, 2, 0, 1, b'a', 0, 0, 0, 0, 0, 1, b'b']);
        request.extend(i32::try_from(partitions).expect("few").to_be_bytes());
        request.extend([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff].repeat(partitions));
        read(&request)
    };
    assert!(produce(PARTITIONS_MAX).is_ok());
    let error = produce(PARTITIONS_MAX + 1).expect_err("too many").to_string();
    assert!(error.contains("more elements"), "{error}");
}

/// A list that announces more elements than its bytes have room for takes no memory.
#[test]
fn the_smallest_elements_of_a_list_are_read_and_no_more_are_announced() {
    // No tagged fields, no transaction, all acks, no time limit; one more than the number of topics.
    let begin = |announced: u8| {
        let mut request = begin(Api::Produce, 9);
        request.extend([0, 0, 0xff, 0xff, 0, 0, 0, 0, 1 + announced]);
        request
    };
    for partitions in [0_u8, 1, 9] {
        let mut request = begin(20);
        // Topics without a name and partitions, and one with these partitions, which have no records.
        request.extend([1, 1, 0].repeat(19));
        request.extend([1, 1 + partitions]);
        request.extend([0, 0, 0, 7, 0, 0].repeat(partitions.into()));
        // Tagged fields of the last topic and of the request.
        request.extend([0, 0]);
        let read = produce_of(&request);
        assert_eq!(read.topics.len(), 20);
        assert_eq!(read.topics[19].partitions.len(), usize::from(partitions));
    }
    for topics in [15, 30] {
        let mut request = begin(topics + 1);
        request.extend([1, 1, 0].repeat(topics.into()));
        let error = read(&request).expect_err("they do not fit").to_string();
        assert!(error.contains("an array that ends too early"), "{error}");
    }
}

fn header(api: Api, version: i16) -> RequestHeader {
    RequestHeader {
        api,
        version,
        correlation_id: 7,
    }
}

/// What grows with the number of topics and partitions fits what is reserved for it.
#[test]
fn the_answer_to_metadata_is_never_longer_than_its_bound() {
    for version in Api::Metadata.versions() {
        for (topics, partitions) in [(0, 1), (1, 1), (3, 200)] {
            let topic = |number| TopicMetadata {
                error: ErrorCode::None,
                name: Some(format!("topic-{number}")),
                id: [7; 16],
            };
            let content = Metadata {
                broker: Broker {
                    node_id: 1,
                    host: "gateway.example.com".to_owned(),
                    port: 9092,
                },
                cluster_id: "1b4e28ba-2fa1-11d2-883f-0016d3cca427".to_owned(),
                topics: (0..topics).map(topic).collect(),
                partitions,
            };
            let answer = metadata(&header(Api::Metadata, version), &content);
            assert!(answer.len() <= metadata_len_max(&content), "version {version}");
        }
    }
}

/// A reason that is too long for the protocol is cut off, at the end of a character.
#[test]
fn long_reasons_do_not_break_an_answer() {
    for version in Api::Produce.versions() {
        let outcome = TopicOutcome {
            topic: TopicRef::Name("t".to_owned()),
            partitions: vec![PartitionOutcome {
                index: 0,
                error: ErrorCode::InvalidRecord,
                message: Some("é".repeat(40_000)),
                records: vec![(0, "é".repeat(40_000))],
            }],
        };
        let answer = produce(&header(Api::Produce, version), &[outcome]);
        assert_eq!(
            answer[..4],
            u32::try_from(answer.len() - 4).expect("short").to_be_bytes()
        );
        assert!(answer.len() < 3 * 40_000, "version {version}: {}", answer.len());
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), api in 0_i16..40, version in 0_i16..15) {
        let _ = read(&bytes);
        let mut request = Vec::new();
        request.extend(api.to_be_bytes());
        request.extend(version.to_be_bytes());
        request.extend([0, 0, 0, 1, 0xff, 0xff]);
        request.extend(bytes);
        let _ = read(&request);
        let _ = Batch::read(&request.into());
    }
}
