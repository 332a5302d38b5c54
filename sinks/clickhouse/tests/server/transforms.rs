//! Programs that make rows from events: the rows, the numbers that they keep, and what becomes of a batch whose program has
//! changed.

use crate::support::{Server, batch_of_events, insert, open, policy, write, write_again};
use millpond_clickhouse::transform::Transform;
use millpond_clickhouse::{ClickHouse, Config, EventTable};
use millpond_consumer::{Batch, BatchingPolicy, Chunk, Cut, Found, RowId, Sink as _};
use prometheus_client::registry::Registry;
use std::sync::Arc;

const STREAM: &str = "events.signup";

const OWN: &str = "_millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3), \
     _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32";

/// A sink whose stream has this program.
async fn sink(server: &Server, program: &str) -> Arc<ClickHouse> {
    let (transform, _) = Transform::new("t.vrl", program).unwrap();
    open(Config {
        signals: Vec::new(),
        event_tables: vec![EventTable {
            stream: STREAM.to_owned(),
            table: "signup".to_owned(),
            columns: Default::default(),
            transform: Some(transform),
        }],
        ..server.config()
    })
    .await
}

async fn create(server: &Server, columns: &str) {
    server.run("CREATE DATABASE IF NOT EXISTS otel").await;
    server
        .run(&format!("CREATE TABLE otel.signup ({columns}, {OWN}) ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100"))
        .await;
}

fn batch(rows: &[&str]) -> Batch {
    batch_of_events(STREAM, 1, &[rows.join("\n").into_bytes()])
}

/// The chunks of a batch, and the numbers, payloads and reasons of the events without a row.
fn cuts(
    sink: &ClickHouse,
    batch: &Batch,
    policy: &BatchingPolicy,
) -> (Vec<Chunk>, Vec<(u32, String, String)>) {
    let (mut chunks, mut failed) = (Vec::new(), Vec::new());
    let mut keep = |cut| {
        match cut {
            Cut::Chunk(chunk) => chunks.push(chunk),
            Cut::Unreadable { id, message, reason } => {
                let payload = String::from_utf8(message.payload).unwrap();
                failed.push((id.record, payload, reason));
            }
        }
        true
    };
    sink.chunks(batch, policy, &mut keep).unwrap();
    (chunks, failed)
}

fn rows_of(number: u64) -> BatchingPolicy {
    BatchingPolicy {
        chunk_rows: number,
        ..policy()
    }
}

/// Each chunk's number and the numbers of its records.
fn numbers(chunks: &[Chunk]) -> Vec<(u32, Vec<u32>)> {
    let records = |chunk: &Chunk| chunk.ids().map(|id| id.record).collect();
    chunks.iter().map(|chunk| (chunk.index, records(chunk))).collect()
}

fn metrics(sink: &ClickHouse) -> String {
    let mut registry = Registry::default();
    sink.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test]
async fn rows_are_what_the_program_makes_and_the_others_are_dropped_or_dead_letters() {
    let server = Server::start();
    create(
        &server,
        "id UInt64, total Decimal(38, 10), name String, day Date, tags Array(Decimal(38, 2))",
    )
    .await;
    let program = r#"
        if .kind == "test" { abort }
        .name = upcase(string!(.name))
        .total = del(.sum)
        .day = format_timestamp!(%received_at, "%F")
    "#;
    let sink = sink(&server, program).await;
    let events = [
        r#"{"id":18446744073709551615,"name":"a","sum":1234567890123456789012345678.0123456789,"tags":[123456789012345678901234567890.25]}"#,
        r#"{"id":2,"kind":"test","name":"b","sum":1}"#,
        r#"{"id":3,"name":7,"sum":1}"#,
        r#"{"id":4,"name":"d","sum":1.5}"#,
        r#"{"id":"x","name":"e","sum":1}"#,
        "[1]",
    ];
    let batch = batch(&events);
    let (chunks, failed) = cuts(&sink, &batch, &rows_of(100));
    assert_eq!(
        numbers(&chunks),
        [(0, vec![0, 3])],
        "a row has the number of another"
    );
    let failed_numbers: Vec<u32> = failed.iter().map(|(number, ..)| *number).collect();
    assert_eq!(failed_numbers, [2, 4, 5]);
    for ((number, payload, reason), words) in failed.iter().zip([
        "t.vrl: upcase at line 3, column 17: string at line 3, column 24: expected string, got integer",
        "$.id: \"x\" does not fit UInt64 (column id)",
        "t.vrl: $: the event is not an object",
    ]) {
        assert_eq!(
            payload, events[*number as usize],
            "a dead letter has the event as it came"
        );
        assert!(reason.contains(words), "{reason}");
    }
    write(&sink, &batch.id, &chunks[0]).await.unwrap();
    let found = server
        .ask("SELECT id, toString(total), name, day, toString(tags[1]) FROM otel.signup ORDER BY _millpond_record")
        .await;
    assert_eq!(
        found,
        "18446744073709551615\t1234567890123456789012345678.0123456789\tA\t2023-11-14\t123456789012345678901234567890.25\n\
         4\t1.5\tD\t2023-11-14\t0"
    );
    let text = metrics(&sink);
    assert!(
        text.contains("millpond_consumer_filtered_total{stream=\"events.signup\"} 1"),
        "{text}"
    );

    // Doctor and repair expect the rows of these events in the table, and no others.
    let readable = sink
        .numbering(&batch)
        .unwrap()
        .into_iter()
        .filter(|record| record.readable);
    assert_eq!(
        readable.map(|record| record.id.record).collect::<Vec<_>>(),
        [0, 3]
    );
    let records = sink
        .records(
            &batch,
            &[RowId {
                sequence: 1,
                record: 3,
            }],
        )
        .unwrap();
    assert_eq!(records[0].payload, events[3].as_bytes());
}

#[tokio::test]
async fn events_without_rows_move_no_row_to_another_chunk() {
    let server = Server::start();
    create(&server, "n UInt64").await;
    let events: Vec<String> = (0..20).map(|n| format!("{{\"n\":{n}}}")).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let batch = batch(&events);
    let expect = async |program: &str, chunks: &[(u32, Vec<u32>)]| {
        let sink = sink(&server, program).await;
        assert_eq!(
            numbers(&cuts(&sink, &batch, &rows_of(5)).0),
            chunks,
            "a row is in another chunk: {program}"
        );
    };
    let all = [(0, 0..5), (1, 5..10), (2, 10..15), (3, 15..20)];
    expect("", &all.clone().map(|(chunk, rows)| (chunk, rows.collect()))).await;
    let odd = all
        .clone()
        .map(|(chunk, rows)| (chunk, rows.filter(|row| row % 2 == 1).collect()));
    expect("if mod(int!(.n), 2) == 0 { abort }", &odd).await;
    expect("if mod(int!(.n), 2) == 0 { .n = int!(\"no\") }", &odd).await;
    expect(
        "if int!(.n) < 11 { abort }",
        &[(2, vec![11, 12, 13, 14]), (3, (15..20).collect())],
    )
    .await;
    expect("abort", &[]).await;

    // Bytes of events end a chunk as well.
    let sink = sink(&server, "if int!(.n) < 3 { abort }").await;
    let policy = BatchingPolicy {
        chunk_bytes: 30,
        ..policy()
    };
    let (chunks, _) = cuts(&sink, &batch, &policy);
    assert_eq!(numbers(&chunks)[..2], [(0, vec![3, 4]), (1, vec![5, 6, 7, 8])]);
}

#[tokio::test]
async fn a_batch_whose_program_has_changed_stores_no_row_twice() {
    let server = Server::start();
    create(&server, "n UInt64").await;
    let events: Vec<String> = (0..10).map(|n| format!("{{\"n\":{n}}}")).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let batch = batch(&events);
    let before = sink(&server, "if int!(.n) < 2 { abort }").await;
    let (chunks, _) = cuts(&before, &batch, &rows_of(100));
    insert(&before, &before.some(&chunks[0], &[0, 3, 7]), "a part of it")
        .await
        .unwrap();
    let after = sink(&server, "if int!(.n) > 7 { abort }\n.n = int!(.n) + 100").await;
    let (chunks, _) = cuts(&after, &batch, &rows_of(100));
    let found = write_again(&after, &batch.id, &chunks[0]).await.unwrap();
    assert_eq!(found, Found::Some);
    // Rows of the program before stay as they are, also those that the new one drops.
    assert_eq!(
        server
            .ask("SELECT groupArray(n) FROM (SELECT n FROM otel.signup ORDER BY _millpond_record)")
            .await,
        "[100,101,2,103,104,5,106,107,9]"
    );
}
