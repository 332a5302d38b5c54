//! Kafka's protocol over real connections: what reaches the log, the errors, and what a client may not do.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use crate::common::kafka::{
    API_VERSIONS, Client, INIT_PRODUCER_ID, METADATA, Outcome, PRODUCE, PRODUCE_VERSION, Record,
    SASL_AUTHENTICATE, SASL_HANDSHAKE, TIMESTAMP, batch, batch_of, body, outcomes, produce, produce_all,
    string, take_string, values,
};
use crate::common::log::{messages, rows};
use crate::common::{PATIENCE, Running, logs, producer_config, secured, start, with_topics};
use bytes::{Buf, BufMut};
use millpond_gateway::{Config, KafkaConfig, KafkaTopics, SecurityFiles, TopicSettings, Unlisted};
use millpond_otlp::Signal;
use millpond_segment::Encoding;
use millpond_storage::unreliable::On;
use prost::Message as _;
use tempfile::TempDir;
use tokio::time::timeout;

const TOPIC: &str = "events.signup";

fn accepted() -> Outcome {
    Outcome {
        error: 0,
        message: String::new(),
        records: Vec::new(),
    }
}

fn compressed(codec: i16, body: &[u8]) -> Vec<u8> {
    match codec {
        1 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(body).expect("gzip");
            encoder.finish().expect("gzip")
        }
        2 => snap::raw::Encoder::new().compress_vec(body).expect("snappy"),
        3 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(body).expect("lz4");
            encoder.finish().expect("lz4")
        }
        4 => zstd::encode_all(body, 1).expect("zstd"),
        _ => body.to_vec(),
    }
}

async fn with(
    topics: impl IntoIterator<Item = (&'static str, TopicSettings)>,
    unlisted: Unlisted,
) -> Running {
    let topics: BTreeMap<String, _> = topics
        .into_iter()
        .map(|(name, settings)| (name.to_owned(), settings))
        .collect();
    let kafka = KafkaConfig {
        topics: KafkaTopics::new(topics, unlisted),
        advertised: None,
    };
    with_topics(
        producer_config(),
        Config::default(),
        &SecurityFiles::default(),
        kafka,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_values_of_a_batch_are_the_rows_of_one_message_whatever_the_codec() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let records = body(&values(&["{\"n\": 1.50}", " {\"s\":\n\"é\"}\n"]));
    for codec in 0..=4 {
        let batch = batch_of(codec, 2, &compressed(codec, &records));
        assert_eq!(client.produce(TOPIC, &batch).await, accepted(), "codec {codec}");
    }
    let row = "{\"n\": 1.50}\n{\"s\":\n\"é\"}".to_owned();
    assert_eq!(rows(&gateway, TOPIC).await, (vec![row; 5], 10));
    let of = "{transport=\"kafka\",signal=\"events\"";
    let metrics = gateway.metrics();
    for line in [
        format!("millpond_gateway_requests_total{of},code=\"OK\"}} 5\n"),
        format!("millpond_gateway_records_total{of}}} 10\n"),
        "millpond_gateway_kafka_requests_total{api=\"Produce\"} 5\n".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line} not in {metrics}");
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_headers_and_times_are_kept_where_a_topic_says_so() {
    let metadata = TopicSettings::Ndjson {
        stream: Some("events.full".to_owned()),
        metadata: true,
    };
    let gateway = with(
        [("full", metadata), ("any", TopicSettings::Raw { stream: None })],
        Unlisted::Refuse,
    )
    .await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let headers: &[(&str, Option<&[u8]>)] = &[
        ("trace \"x\"", Some(b"a\\\n\x01")),
        ("none", None),
        ("bin", Some(b"\xff\x00")),
    ];
    let record = |value: &'static [u8]| Record {
        key: Some(b"k\xc3\xa9y"),
        value: Some(value),
        headers,
    };
    let nothing = Record::default();
    let batch_full = batch(&[record(b"{ }"), record(b"{\"a\":1}")]);
    assert_eq!(client.produce("full", &batch_full).await, accepted());
    let batch_any = batch(&[record(b"\xfe\xff\x00"), nothing, record(b"text \"q\"")]);
    assert_eq!(client.produce("any", &batch_any).await, accepted());
    let headers = "{\"trace \\\"x\\\"\":\"a\\\\\\n\\u0001\",\"none\":null,\"bin_base64\":\"/wA=\"}";
    let (one, two, three) = (TIMESTAMP, TIMESTAMP + 1, TIMESTAMP + 2);
    let full = format!(
        "{{\"_kafka_key\":\"kéy\",\"_kafka_timestamp\":{one},\"_kafka_headers\":{headers} }}\n\
         {{\"_kafka_key\":\"kéy\",\"_kafka_timestamp\":{two},\"_kafka_headers\":{headers},\"a\":1}}"
    );
    assert_eq!(rows(&gateway, "events.full").await, (vec![full], 2));
    let any = format!(
        "{{\"key\":\"kéy\",\"value_base64\":\"/v8A\",\"timestamp\":{one},\"headers\":{headers}}}\n\
         {{\"key\":null,\"value\":null,\"timestamp\":{two},\"headers\":{{}}}}\n\
         {{\"key\":\"kéy\",\"value\":\"text \\\"q\\\"\",\"timestamp\":{three},\"headers\":{headers}}}"
    );
    assert_eq!(rows(&gateway, "any").await, (vec![any], 3));
    let refused = client.produce("other", &batch(&values(&["{}"]))).await;
    assert_eq!(
        (refused.error, refused.message.contains("--kafka-topics")),
        (3, true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topics_of_the_collector_are_otlp_and_a_batch_is_one_request() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let (one, two) = (logs(1).encode_to_vec(), logs(2).encode_to_vec());
    let record = |value| Record {
        value: Some(value),
        ..Record::default()
    };
    let both = batch(&[record(&one[..]), record(&two[..])]);
    assert_eq!(client.produce("otlp_logs", &both).await, accepted());
    let (found, records) = messages(&gateway, Encoding::Otlp, Signal::Logs.stream()).await;
    assert_eq!((found, records), (vec![[one, two].concat()], 3));

    let bad = client.produce("otlp_spans", &batch(&values(&["", "\n"]))).await;
    assert_eq!(
        (bad.error, bad.records.len(), bad.records[0].0),
        (87, 1, 1),
        "{bad:?}"
    );
    // No topic leads past the encoding of a stream.
    let refused = client.produce("otlp.logs", &batch(&values(&["{}"]))).await;
    assert_eq!(refused.error, 17, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_malformed_record_is_refused_whole_with_its_records_named() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let mut records = values(&["{}", "{\"a\":}", "[1]"]);
    records.push(Record::default());
    let refused = client.produce(TOPIC, &batch(&records)).await;
    assert_eq!(refused.error, 87, "a part of the batch is accepted");
    let places: Vec<i32> = refused.records.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [1, 2, 3]);
    assert_eq!(refused.records[0].1, "malformed JSON: expected value at byte 5");
    assert_eq!(refused.records[2].1, "the record has no value");
    assert!(
        refused
            .message
            .starts_with("malformed records: 3; record 1 of the batch"),
        "{refused:?}"
    );
    assert_eq!(client.produce(TOPIC, &batch(&values(&["{}"]))).await, accepted());
    assert_eq!(rows(&gateway, TOPIC).await, (vec!["{}".to_owned()], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_hostile_batches_get_an_error_and_take_no_memory() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let good = batch(&values(&["{}"]));
    let mut flipped = good.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    let mut old = good.clone();
    old[16] = 1;
    let bomb = compressed(4, &vec![b' '; 64 << 20]);
    let mut snappy_claim = vec![0xff, 0xff, 0xff, 0xff, 0x0f];
    snappy_claim.push(0);
    for (what, bytes, error) in [
        ("a flipped bit", flipped, 2),
        ("message format 1", old, 43),
        ("an unknown codec", batch_of(7, 1, &[]), 76),
        ("a transaction", batch_of(1 << 4, 1, &body(&values(&["{}"]))), 53),
        (
            "a control batch",
            batch_of(1 << 5, 1, &body(&values(&["{}"]))),
            53,
        ),
        ("two batches", [good.clone(), good.clone()].concat(), 87),
        ("half a batch", good[..good.len() - 1].to_vec(), 87),
        ("half a header", good[..30].to_vec(), 87),
        ("no batch", Vec::new(), 87),
        ("no records", batch_of(0, 0, &[]), 87),
        (
            "fewer records than it says",
            batch_of(0, 2, &body(&values(&["{}"]))),
            87,
        ),
        (
            "more records than it says",
            batch_of(0, 1, &body(&values(&["{}", "{}"]))),
            87,
        ),
        (
            "two thousand million records",
            batch_of(0, i32::MAX, &body(&values(&["{}"]))),
            87,
        ),
        ("a record that is cut off", batch_of(0, 1, &[40, 0, 0, 0]), 87),
        (
            "a header count without headers",
            batch_of(0, 1, &[14, 0, 0, 0, 1, 1, 0xfe, 0x7f]),
            87,
        ),
        ("bytes that are not gzip", batch_of(1, 1, b"not gzip"), 87),
        ("bytes that are not snappy", batch_of(2, 1, b"\x05not snappy"), 87),
        ("bytes that are not lz4", batch_of(3, 1, b"not lz4"), 87),
        ("bytes that are not zstd", batch_of(4, 1, b"not zstd"), 87),
        ("64 MiB of blanks", batch_of(4, 1, &bomb), 10),
        ("4 GiB in six bytes", batch_of(2, 1, &snappy_claim), 10),
    ] {
        let refused = client.produce(TOPIC, &bytes).await;
        assert_eq!(refused.error, error, "{what}: {refused:?}");
        assert!(!refused.message.is_empty(), "{what}");
    }
    assert_eq!(rows(&gateway, TOPIC).await.1, 0);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_ask_for_what_there_is_not_get_kafkas_errors() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let good = batch(&values(&["{}"]));
    let mut ask = async |topic: &str, acks, partition| {
        let request = produce(topic, acks, &[(partition, &good)]);
        let answer = client
            .ask(PRODUCE, PRODUCE_VERSION, &request)
            .await
            .expect("an answer");
        outcomes(&answer).remove(0).error
    };
    assert_eq!(ask(TOPIC, 2, 0).await, 21);
    assert_eq!(ask(TOPIC, -1, 1).await, 3);
    assert_eq!(ask(TOPIC, -1, -1).await, 3);
    assert_eq!(ask("a/b", -1, 0).await, 17);
    assert_eq!(ask(&"x".repeat(101), -1, 0).await, 17);
    assert_eq!(ask(TOPIC, 1, 0).await, 0);

    let mut transactional = Vec::new();
    string(&mut transactional, "tx");
    transactional.put_slice(&produce(TOPIC, -1, &[(0, &good)])[2..]);
    let answer = client
        .ask(PRODUCE, PRODUCE_VERSION, &transactional)
        .await
        .expect("an answer");
    assert_eq!(outcomes(&answer).remove(0).error, 53);

    let mut init = Vec::new();
    string(&mut init, "tx");
    init.put_i32(1_000);
    let answer = client.ask(INIT_PRODUCER_ID, 1, &init).await.expect("an answer");
    assert_eq!((&answer[4..]).get_i16(), 53);
    let mut init = vec![0xff, 0xff];
    init.put_i32(1_000);
    let answer = client.ask(INIT_PRODUCER_ID, 1, &init).await.expect("an answer");
    let mut answer = &answer[4..];
    assert_eq!(
        (answer.get_i16(), answer.get_i64() >= 0, answer.get_i16()),
        (0, true, 0)
    );

    // Version 99 of ApiVersions: the answer has version 0, an error and the versions.
    let answer = client.ask(API_VERSIONS, 99, &[]).await.expect("an answer");
    let mut answer = &answer[..];
    assert_eq!((answer.get_i16(), answer.get_i32()), (35, 8));
    assert_eq!(
        (answer.get_i16(), answer.get_i16(), answer.get_i16()),
        (PRODUCE, 3, 13)
    );
    assert_eq!(rows(&gateway, TOPIC).await.1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_names_the_gateway_and_every_topic_that_one_may_write_to() {
    let gateway = with(
        [("audit", TopicSettings::Raw { stream: None })],
        Unlisted::default(),
    )
    .await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let mut ask = async |topics: Option<&[&str]>| {
        let mut request = Vec::new();
        request.put_i32(topics.map_or(-1, |topics| i32::try_from(topics.len()).expect("few")));
        for topic in topics.unwrap_or_default() {
            string(&mut request, topic);
        }
        let answer = client.ask(METADATA, 1, &request).await.expect("an answer");
        let mut answer = &answer[..];
        assert_eq!(answer.get_i32(), 1, "brokers");
        let node = answer.get_i32();
        assert_eq!(take_string(&mut answer), gateway.kafka_address.ip().to_string());
        assert_eq!(answer.get_i32(), i32::from(gateway.kafka_address.port()));
        assert_eq!((answer.get_i16(), answer.get_i32()), (-1, node));
        let mut found = Vec::new();
        for _ in 0..answer.get_i32() {
            let error = answer.get_i16();
            let name = take_string(&mut answer);
            assert_eq!(answer.get_i8(), 0);
            let partitions = answer.get_i32();
            for _ in 0..partitions {
                assert_eq!(
                    (answer.get_i16(), answer.get_i32(), answer.get_i32()),
                    (0, 0, node)
                );
                assert_eq!((answer.get_i32(), answer.get_i32()), (1, node));
                assert_eq!((answer.get_i32(), answer.get_i32()), (1, node));
            }
            found.push((name, error, partitions));
        }
        found
    };
    let topic = |name: &str, error, partitions| (name.to_owned(), error, partitions);
    assert_eq!(
        ask(None).await,
        ["audit", "otlp_logs", "otlp_metrics", "otlp_spans"].map(|name| topic(name, 0, 1))
    );
    assert_eq!(
        ask(Some(&["anything", "otlp.logs", "a/b"])).await,
        [
            topic("anything", 0, 1),
            topic("otlp.logs", 17, 0),
            topic("a/b", 17, 0)
        ]
    );
    assert_eq!(ask(Some(&[])).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn success_comes_only_after_the_commit() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let held = async {
        timeout(PATIENCE, commit.arrived()).await.expect("a commit");
        let line = "millpond_gateway_records_total{transport=\"kafka\",signal=\"events\"} 0\n";
        let metrics = gateway.metrics();
        assert!(metrics.contains(line), "answered before the commit: {metrics}");
        commit.release();
    };
    let produced = batch(&values(&["{}"]));
    let (outcome, ()) = tokio::join!(client.produce(TOPIC, &produced), held);
    assert_eq!(outcome, accepted());
}

/// Produce from version 13 on names topics by the ids that Metadata gave them.
#[tokio::test(flavor = "multi_thread")]
async fn records_find_their_topic_by_its_id() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    // The end of the header, a topic of this name and without an id, two flags, the end.
    let mut request = vec![0, 2];
    request.extend([0; 16]);
    compact(&mut request, TOPIC.as_bytes());
    request.extend([0, 1, 0, 0]);
    let answer = client.ask(METADATA, 12, &request).await.expect("an answer");
    let name = answer
        .windows(TOPIC.len())
        .position(|part| part == TOPIC.as_bytes());
    let id = &answer[name.expect("the topic") + TOPIC.len()..][..16];
    assert_ne!(id, [0; 16]);
    let batch = batch(&values(&["{}"]));
    for (id, error) in [(id, 0), (&[7; 16], 100)] {
        // The end of the header, no transaction.
        let mut request = vec![0, 0];
        request.put_i16(-1);
        request.put_i32(30_000);
        request.put_u8(2);
        request.put_slice(id);
        request.put_u8(2);
        request.put_i32(0);
        compact(&mut request, &batch);
        request.extend([0, 0, 0]);
        let answer = client.ask(PRODUCE, 13, &request).await.expect("an answer");
        let mut answer = &answer[2..];
        assert_eq!(answer.copy_to_bytes(16), id);
        answer.advance(5);
        assert_eq!(answer.get_i16(), error);
    }
    assert_eq!(rows(&gateway, TOPIC).await, (vec!["{}".to_owned()], 1));
}

/// Bytes after their length, as flexible versions have it.
fn compact(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() < 127, "one byte is enough for the length");
    out.put_u8(u8::try_from(bytes.len() + 1).expect("short"));
    out.put_slice(bytes);
}

/// Answers come in the order of the requests, and a later request is read while an earlier one waits.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_their_commits_together_and_keep_their_order() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let held = gateway.controls.hold(On::Put, "manifest");
    for number in 0..20 {
        let row = format!("{{\"n\":{number}}}");
        let acks = if number % 5 == 4 { 0 } else { -1 };
        let request = produce(TOPIC, acks, &[(0, &batch(&values(&[&row])))]);
        client.send(PRODUCE, PRODUCE_VERSION, &request).await;
    }
    let all_taken = async {
        while !gateway
            .metrics()
            .contains("kafka_requests_total{api=\"Produce\"} 20\n")
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all_taken).await.expect("all requests are read");
    held.release();
    for number in (0..20).filter(|number| number % 5 != 4) {
        let (correlation_id, answer) = client.answer().await.expect("an answer");
        assert_eq!(
            (correlation_id, outcomes(&answer)),
            (number + 1, vec![accepted()])
        );
    }
    let (messages, records) = rows(&gateway, TOPIC).await;
    let expected: Vec<String> = (0..20).map(|number| format!("{{\"n\":{number}}}")).collect();
    assert_eq!((messages, records), (expected, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_gateway_answers_what_it_has_taken() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let held = gateway.controls.hold(On::Put, "manifest");
    let request = produce(TOPIC, -1, &[(0, &batch(&values(&["{}"])))]);
    client.send(PRODUCE, PRODUCE_VERSION, &request).await;
    let taken = async {
        while !gateway
            .metrics()
            .contains("requests_in_flight{transport=\"kafka\"} 1\n")
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, taken).await.expect("the request is taken");
    gateway.shutdown.cancel();
    held.release();
    let (_, answer) = client.answer().await.expect("an answer");
    assert_eq!(outcomes(&answer), [accepted()]);
    assert_eq!(client.answer().await, None, "the connection is closed");
    let served = timeout(PATIENCE, gateway.served).await.expect("an end");
    served.expect("no panic").expect("a clean drain");
}

/// The records for its first topic are committed: without an answer, the client would send them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_gateway_finishes_a_request_that_waits_for_memory() {
    let config = millpond_producer::Config {
        max_wait: PATIENCE,
        ..producer_config()
    };
    let gateway = start(config, Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let budget = gateway.producers.budget();
    let others = budget.reserve(budget.limit() - (2 << 20)).await.expect("memory");
    let row = format!("{{\"text\":\"{}\"}}", "x".repeat(900_000));
    let long = compressed(4, &body(&values(&[&row, &row, &row])));
    let (short, long) = (batch(&values(&["{}"])), batch_of(4, 3, &long));
    let request = produce_all(-1, &[("short", &[(0, &short[..])]), ("long", &[(0, &long[..])])]);
    client.send(PRODUCE, PRODUCE_VERSION, &request).await;
    let first_is_read = async {
        while !gateway
            .metrics()
            .contains("raw_bytes_total{transport=\"kafka\",signal=\"events\"} 2\n")
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, first_is_read).await.expect("the first topic");
    gateway.shutdown.cancel();
    drop(others);
    let (_, answer) = client.answer().await.expect("an answer");
    assert_eq!(outcomes(&answer), [accepted(), accepted()]);
}

/// franz-go makes one request of the batches of all partitions.
fn many_batches(batch: &[u8], count: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|number| format!("events.{number}")).collect();
    let partition = [(0, batch)];
    let topics: Vec<_> = names.iter().map(|name| (&**name, &partition[..])).collect();
    produce_all(-1, &topics)
}

/// Memory of 16 MiB, messages of 256 KiB: the longest request has 11.5 MiB.
async fn small_messages() -> Running {
    let config = millpond_producer::Config {
        max_wait: PATIENCE,
        ..producer_config()
    };
    let limits = Config {
        max_message_bytes: 256 << 10,
        ..Config::default()
    };
    start(config, limits).await
}

#[tokio::test(flavor = "multi_thread")]
async fn long_requests_of_many_batches_take_turns() {
    const BATCHES: usize = 40;
    const CLIENTS: usize = 6;
    let gateway = small_messages().await;
    let row = format!("{{\"text\":\"{}\"}}", "x".repeat(200 << 10));
    // Together they are three times as long as the memory.
    let request = many_batches(&batch(&values(&[&row])), BATCHES);
    let address = gateway.kafka_address;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let request = request.clone();
            tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                client.ask(PRODUCE, PRODUCE_VERSION, &request).await
            })
        })
        .collect();
    for client in clients {
        let answer = client.await.expect("no panic").expect("an answer");
        assert_eq!(outcomes(&answer), vec![accepted(); BATCHES]);
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_request_may_have_no_long_batch() {
    let gateway = small_messages().await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let rows = |length| batch(&values(&[&format!("{{\"text\":\"{}\"}}", "x".repeat(length))]));
    let (short, long) = (rows(200 << 10), rows(300 << 10));
    let request = produce_all(
        -1,
        &[
            ("one", &[(0, &short[..])]),
            ("two", &[(0, &long[..])]),
            ("three", &[(0, &short[..])]),
        ],
    );
    let answer = client.ask(PRODUCE, PRODUCE_VERSION, &request).await;
    let errors: Vec<_> = outcomes(&answer.expect("an answer"))
        .into_iter()
        .map(|outcome| outcome.error)
        .collect();
    assert_eq!(errors, [0, 10, 0]);
    // More than 11.5 MiB.
    let request = many_batches(&short, 60);
    assert_eq!(client.ask(PRODUCE, PRODUCE_VERSION, &request).await, None);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_kafkas_end_the_connection_alone() {
    let gateway = start(producer_config(), Config::default()).await;
    let unknown_api = crate::common::kafka::framed(&[0, 99, 0, 0, 0, 0, 0, 1]);
    let unknown_version = crate::common::kafka::framed(&[0, 0, 0, 99, 0, 0, 0, 1]);
    let mut endless_topics = vec![0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff];
    endless_topics.put_i32(i32::MAX);
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        (-1_i32).to_be_bytes().to_vec(),
        i32::MAX.to_be_bytes().to_vec(),
        crate::common::kafka::framed(&[]),
        unknown_api,
        unknown_version,
        crate::common::kafka::framed(&endless_topics),
    ] {
        let mut client = Client::connect(gateway.kafka_address).await;
        client.send_raw(&bytes).await;
        assert_eq!(client.answer().await, None, "{bytes:?}");
    }
    let refused = "millpond_gateway_connections_refused_total{transport=\"kafka\",reason=\"not_kafka\"} 7\n";
    let counted = async {
        while !gateway.metrics().contains(refused) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, counted).await.expect("all are counted");
    gateway.assert_well().await;
}

/// A request that is not complete takes neither a place for ever nor memory for what it only announces.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_is_given_up() {
    let config = Config {
        read_timeout: std::time::Duration::from_millis(300),
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    client.send_raw(&[0, 0x20, 0, 0, 1, 2, 3]).await;
    assert_eq!(client.answer().await, None);
    gateway.assert_well().await;
}

const AGENTS: &str = "agents-token-0123456789abcdef";
const ACME: &str = "acme-token-0123456789abcdef";

fn entry(name: &str, token: &str, rest: &str) -> String {
    format!("[[token]]\nname = \"{name}\"\ntoken = \"{token}\"\n{rest}\n")
}

async fn secured_gateway() -> (Running, TempDir) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tokens.toml");
    let tokens = entry("agents", AGENTS, "") + &entry("acme", ACME, "prefix = \"acme\"");
    fs::write(&path, tokens).expect("written");
    let files = SecurityFiles {
        tls: None,
        tokens: Some(path),
    };
    (
        secured(producer_config(), Config::default(), &files).await,
        directory,
    )
}

/// Authenticates: the error, and its reason.
async fn authenticate(client: &mut Client, message: &str) -> (i16, String) {
    let mut mechanism = Vec::new();
    string(&mut mechanism, "PLAIN");
    let answer = client
        .ask(SASL_HANDSHAKE, 1, &mechanism)
        .await
        .expect("an answer");
    assert_eq!((&answer[..]).get_i16(), 0);
    let mut auth = Vec::new();
    auth.put_i32(i32::try_from(message.len()).expect("short"));
    auth.put_slice(message.as_bytes());
    let answer = client.ask(SASL_AUTHENTICATE, 1, &auth).await.expect("an answer");
    let mut answer = &answer[..];
    (answer.get_i16(), take_string(&mut answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_a_client_needs_the_name_and_the_token_of_one() {
    let (gateway, _directory) = secured_gateway().await;
    let one = batch(&values(&["{}"]));
    let mut agents = Client::connect(gateway.kafka_address).await;
    assert!(
        agents.ask(API_VERSIONS, 0, &[]).await.is_some(),
        "before authentication"
    );
    assert_eq!(
        authenticate(&mut agents, &format!("\0agents\0{AGENTS}")).await.0,
        0
    );
    assert_eq!(agents.produce("signup", &one).await, accepted());
    let forbidden = agents.produce("acme.signup", &one).await;
    assert_eq!(forbidden.error, 29, "{forbidden:?}");
    let mut acme = Client::connect(gateway.kafka_address).await;
    assert_eq!(authenticate(&mut acme, &format!("acme\0acme\0{ACME}")).await.0, 0);
    assert_eq!(acme.produce("signup", &one).await, accepted());
    assert_eq!(rows(&gateway, "signup").await.1, 1);
    assert_eq!(rows(&gateway, "acme.signup").await.1, 1);

    for message in [
        format!("\0agents\0{ACME}"),
        "\0agents\0".to_owned(),
        format!("\0nobody\0{AGENTS}"),
        format!("acme\0agents\0{AGENTS}"),
        AGENTS.to_owned(),
        format!("\0agents\0{AGENTS}\0"),
    ] {
        let mut client = Client::connect(gateway.kafka_address).await;
        let (error, reason) = authenticate(&mut client, &message).await;
        assert_eq!(error, 58, "{message:?}");
        assert!(!reason.contains(AGENTS) && !reason.is_empty(), "{reason}");
        assert_eq!(client.answer().await, None, "the connection is closed");
    }
    // Records of a stranger, another mechanism, and a long request before authentication.
    let mut scram = Vec::new();
    string(&mut scram, "SCRAM-SHA-256");
    let mut client = Client::connect(gateway.kafka_address).await;
    let answer = client.ask(SASL_HANDSHAKE, 1, &scram).await.expect("an answer");
    assert_eq!((&answer[..]).get_i16(), 33);
    assert_eq!(client.answer().await, None);
    let mut client = Client::connect(gateway.kafka_address).await;
    assert_eq!(
        client
            .ask(PRODUCE, PRODUCE_VERSION, &produce("signup", -1, &[(0, &one)]))
            .await,
        None
    );
    let mut client = Client::connect(gateway.kafka_address).await;
    client.send_raw(&(1_i32 << 20).to_be_bytes()).await;
    assert_eq!(client.answer().await, None);
    assert_eq!(rows(&gateway, "signup").await.1, 1);
    let metrics = gateway.metrics();
    assert!(
        metrics.contains("requests_denied_total{reason=\"unknown\"} 3\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_token_ends_its_connections() {
    let (gateway, directory) = secured_gateway().await;
    let one = batch(&values(&["{}"]));
    let mut agents = Client::connect(gateway.kafka_address).await;
    let mut acme = Client::connect(gateway.kafka_address).await;
    assert_eq!(
        authenticate(&mut agents, &format!("\0agents\0{AGENTS}")).await.0,
        0
    );
    assert_eq!(authenticate(&mut acme, &format!("\0acme\0{ACME}")).await.0, 0);
    assert_eq!(acme.produce("signup", &one).await, accepted());
    fs::write(directory.path().join("tokens.toml"), entry("agents", AGENTS, "")).expect("written");
    gateway.security.reload(false).await;
    assert_eq!(agents.produce("signup", &one).await, accepted());
    let request = produce("signup", -1, &[(0, &one)]);
    assert_eq!(acme.ask(PRODUCE, PRODUCE_VERSION, &request).await, None);
    assert_eq!(rows(&gateway, "acme.signup").await.1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_a_password_is_refused_rather_than_ignored() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let (error, reason) = authenticate(&mut client, "\0me\0secret").await;
    assert_eq!((error, reason.contains("--tokens")), (58, true), "{reason}");
}
