//! Rows known by their identities: whatever was sent before and by whom, each row occurs once.

use crate::support::{
    DAY, NEW_YEAR, Server, at, batch, chunk, insert, open, policy, record, request, write, write_again,
};
use bytes::Bytes;
use millpond_clickhouse::{ClickHouse, Config, NumberedRecord, RowCount, Signal};
use millpond_consumer::{
    Attempt, Batch, BatchingPolicy, Chunk, Cut, Found, Part, Presence, RowId, Sink as _, SinkError,
};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_segment::{BlockBuilder, Compressor, Limits};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const SOURCE: &str = "00000000-0000-0000-0000-000000000007/0000/otlp.logs/test";
const STREAM: &str = "otlp.logs";

/// The number of rows, and of distinct ones.
const COUNT: &str = "SELECT count(), uniqExact(_millpond_sequence, _millpond_record) FROM otel.otel_logs";

/// Makes the table forget every token.
async fn forget(server: &Server) {
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 0")
        .await;
    server.run("DETACH TABLE otel.otel_logs").await;
    server.run("ATTACH TABLE otel.otel_logs").await;
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 100")
        .await;
}

async fn lacks(sink: &ClickHouse, chunk: &Chunk) -> Vec<u64> {
    match sink.presence(SOURCE, chunk).await.unwrap() {
        Presence::Lacks { rows, certain: true } => rows,
        presence => panic!("{presence:?}"),
    }
}

/// A server that is killed between the token and the rows knows the token of rows that it lacks.
#[tokio::test]
async fn rows_whose_token_is_known_without_them_are_sent_under_another() {
    let server = Server::start();
    let sink = server.open().await;
    let batch = batch(1, &[at([NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR])]);
    let chunk = chunk(&sink, &batch);
    // Records the tokens of the first two rounds, in one of two partitions.
    for round in 0..2 {
        let other = crate::support::batch(2 + u64::from(round), &[at([NEW_YEAR])]);
        let other = crate::support::chunk(&sink, &other);
        insert(&sink, &other, &batch.id.token(0, round)).await.unwrap();
    }
    write(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(lacks(&sink, &chunk).await, [0, 2]);
    let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!((found, lacks(&sink, &chunk).await), (Found::Some, vec![]));
    assert_eq!(server.ask(COUNT).await, "5\t5");
    let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!((found, server.ask(COUNT).await.as_str()), (Found::All, "5\t5"));
}

/// The sink asks about the first chunk of a table even after a success.
#[tokio::test]
async fn a_table_that_lacks_inserted_rows_is_a_fault() {
    let server = Server::start();
    let sink = server.open().await;
    let batch = batch(1, &[at([NEW_YEAR, NEW_YEAR])]);
    let chunk = chunk(&sink, &batch);
    let other = crate::support::batch(2, &[at([NEW_YEAR])]);
    let token = batch.id.token(0, 0);
    insert(&sink, &crate::support::chunk(&sink, &other), &token)
        .await
        .unwrap();
    let attempt = |token: &str| Attempt {
        token: token.to_owned(),
        query_id: String::new(),
        first: true,
    };
    let error = sink.insert(&chunk, &attempt(&token)).await.unwrap_err();
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    assert!(error.to_string().contains("lacks 2 of them"), "{error}");
    sink.insert(&chunk, &attempt("mine")).await.unwrap();
    // The first chunk is enough.
    sink.insert(&chunk, &attempt("mine")).await.unwrap();
}

#[tokio::test]
async fn a_batch_that_begins_where_another_did_adds_what_is_new() {
    let server = Server::start();
    let sink = server.open().await;
    let messages = |numbers: std::ops::Range<usize>| request(numbers.map(|n| record(n, NEW_YEAR)).collect());
    let old = batch(1, &[messages(0..5)]);
    write(&sink, &old.id, &chunk(&sink, &old)).await.unwrap();
    // After a reset: the same segment, and the next one with it.
    let mut new = batch(1, &[messages(0..5)]);
    new.parts.extend(batch(2, &[messages(5..10)]).parts);
    new.id.high = 2;
    let chunk = chunk(&sink, &new);
    assert_eq!(chunk.rows, 10);
    for expected in [Found::Some, Found::All] {
        assert_eq!(write_again(&sink, &new.id, &chunk).await.unwrap(), expected);
        assert_eq!(
            server
                .ask("SELECT count(), uniqExact(Body) FROM otel.otel_logs")
                .await,
            "10\t10"
        );
    }
}

fn blocks(numbers: &[(usize, usize)]) -> Vec<u8> {
    let mut compressor = Compressor::new(1).unwrap();
    let mut bytes = Vec::new();
    for (received_at, &(from, to)) in (1_700_000_000_000_000..).zip(numbers) {
        let mut builder = BlockBuilder::with_buffer(received_at, Vec::new(), &Limits::default());
        let message = request((from..to).map(|n| record(n, NEW_YEAR + n as u64)).collect());
        builder.push(received_at, &message).unwrap();
        bytes.extend_from_slice(&compressor.compress(&builder, 0).unwrap().bytes);
    }
    bytes
}

fn part(sequence: u64, data: Vec<u8>) -> Part {
    let [like] = batch(sequence, &[]).parts.try_into().unwrap();
    Part {
        data: Bytes::from(data),
        ..like
    }
}

/// Cuts a batch into chunks of `chunk_rows` rows, up to the damage.
fn small_chunks(sink: &ClickHouse, batch: &Batch, chunk_rows: u64) -> Vec<Chunk> {
    let policy = BatchingPolicy {
        chunk_rows,
        ..policy()
    };
    let mut chunks = Vec::new();
    let _ = sink.chunks(batch, &policy, &mut |cut| {
        let Cut::Chunk(chunk) = cut else { panic!("{cut:?}") };
        chunks.push(chunk);
        true
    });
    chunks
}

/// The consumer has sent the rows before a damaged block, and an operator skips the segment. The chunks with the same
/// numbers then have other rows.
#[tokio::test]
async fn rows_after_a_skipped_segment_are_inserted() {
    let server = Server::start();
    let sink = server.open().await;
    let first = part(1, blocks(&[(0, 4)]));
    let mut bytes = blocks(&[(10, 14), (14, 18)]);
    *bytes.last_mut().unwrap() ^= 1;
    let third = part(3, blocks(&[(20, 24)]));
    let mut batch = Batch {
        parts: vec![first.clone(), part(2, bytes), third.clone()],
        ..batch(1, &[])
    };
    batch.id.high = 3;
    let sent = small_chunks(&sink, &batch, 6);
    assert_eq!(sent.len(), 1);
    write(&sink, &batch.id, &sent[0]).await.unwrap();
    batch.parts = vec![first, third];
    for chunk in small_chunks(&sink, &batch, 6) {
        write_again(&sink, &batch.id, &chunk).await.unwrap();
    }
    let bodies =
        "SELECT groupArray(toUInt32(Body)) FROM (SELECT Body FROM otel.otel_logs ORDER BY toUInt32(Body))";
    assert_eq!(server.ask(bodies).await, "[0,1,2,3,10,11,20,21,22,23]");
}

/// Earlier attempts had any boundaries, and the table knows no token.
#[tokio::test]
async fn other_chunks_of_the_same_log_add_what_is_missing() {
    let server = Server::start();
    let sink = server.open().await;
    let mut batch = batch(1, &[]);
    batch.parts = vec![part(1, blocks(&[(0, 7), (7, 9)])), part(2, blocks(&[(9, 20)]))];
    batch.id.high = 2;
    for (rows, nth) in [(3, 2), (5, 0), (4, 4)] {
        let chunks = small_chunks(&sink, &batch, rows);
        write_again(&sink, &batch.id, &chunks[nth]).await.unwrap();
        forget(&server).await;
    }
    for rows in [20, 6] {
        for chunk in small_chunks(&sink, &batch, rows) {
            write_again(&sink, &batch.id, &chunk).await.unwrap();
            forget(&server).await;
        }
        assert_eq!(server.ask(COUNT).await, "20\t20");
        assert_eq!(
            server.ask("SELECT uniqExact(Body) FROM otel.otel_logs").await,
            "20"
        );
    }
}

/// An INSERT of an earlier owner lands after the rounds of the next one.
#[tokio::test]
async fn a_late_insert_of_the_same_chunk_adds_nothing() {
    let server = Server::start();
    let sink = server.open().await;
    let batch = batch(1, &[at((0..6).map(|row| NEW_YEAR + row % 3 * DAY))]);
    let chunk = chunk(&sink, &batch);
    for partition in ["20240102", "20240103"] {
        write_again(&sink, &batch.id, &chunk).await.unwrap();
        // Only a part of the INSERT landed, and the table has forgotten the token of the rest.
        server
            .run(&format!(
                "ALTER TABLE otel.otel_logs DROP PARTITION ID '{partition}'"
            ))
            .await;
        let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(found, Found::Some);
        write(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask(COUNT).await, "6\t6");
    }
}

/// Times for which ClickHouse's date functions overflow to other times.
#[tokio::test]
async fn rows_of_odd_times_are_found() {
    let server = Server::start();
    let sink = server.open().await;
    let second = 1_000_000_000_u64;
    let times = [
        1,
        NEW_YEAR,
        4_291_747_199 * second,
        4_291_747_200 * second,
        4_294_967_296 * second,
        9_000_000_000 * second,
        u64::MAX,
        u64::MAX - 3_000_000_000 * second,
    ];
    for (low, times) in (1..).zip([&times[..], &times[..3], &times[6..], &times[3..4]]) {
        let batch = batch(low, &[at(times.iter().copied())]);
        let chunk = chunk(&sink, &batch);
        write_again(&sink, &batch.id, &chunk).await.unwrap();
        let before = server.ask(COUNT).await;
        forget(&server).await;
        let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(
            (found, server.ask(COUNT).await),
            (Found::All, before),
            "{times:?}"
        );
    }
    assert_eq!(server.ask(COUNT).await, "14\t14");
}

#[tokio::test]
async fn operators_can_count_rows_and_records() {
    let server = Server::start();
    let sink = server.open().await;
    let message = at([NEW_YEAR, NEW_YEAR + DAY]);
    let batch = batch(3, &[message.clone(), vec![0x0a, 0x05], message]);
    let rows = small_chunks_and_unreadable(&sink, &batch);
    write(&sink, &batch.id, &rows).await.unwrap();
    // A row twice.
    insert(&sink, &sink.some(&rows, &[1]), "another").await.unwrap();
    let later = crate::support::batch(5, &[at([NEW_YEAR])]);
    write(&sink, &later.id, &chunk(&sink, &later)).await.unwrap();
    let counts = sink.counts(SOURCE, STREAM, 0..=9).await.unwrap();
    let count = |rows, distinct, last| RowCount { rows, distinct, last };
    assert_eq!(counts, BTreeMap::from([(3, count(5, 4, 4)), (5, count(1, 1, 0))]));
    assert_eq!(sink.counts(SOURCE, STREAM, 4..=5).await.unwrap().len(), 1);
    assert_eq!(
        sink.counts("another", STREAM, 0..=9).await.unwrap(),
        BTreeMap::new()
    );
    assert_eq!(sink.numbers(SOURCE, STREAM, 3).await.unwrap(), [0, 1, 1, 3, 4]);
    let numbering = sink.numbering(&batch).unwrap();
    let expected = (0..5).map(|record| NumberedRecord {
        id: RowId { sequence: 3, record },
        readable: record != 2,
    });
    assert_eq!(numbering, expected.collect::<Vec<_>>());
    assert!(!sink.has_rows_without_identity(SOURCE, STREAM).await.unwrap());
}

fn small_chunks_and_unreadable(sink: &ClickHouse, batch: &Batch) -> Chunk {
    let mut chunks = Vec::new();
    sink.chunks(batch, &policy(), &mut |cut| {
        if let Cut::Chunk(chunk) = cut {
            chunks.push(chunk);
        }
        true
    })
    .unwrap();
    chunks.pop().unwrap()
}

/// The sink does not insert rows again that the table's TTL removed.
#[tokio::test]
async fn rows_past_the_tables_ttl_are_not_missed() {
    let server = Server::start();
    let config = Config {
        signals: vec![Signal::Logs],
        ttl_seconds: 3 * 86_400,
        ..server.config()
    };
    let now = SystemEnvironment.now_ns();
    let by_other_column = "ALTER TABLE otel.otel_logs MODIFY TTL Seconds + toIntervalDay(3)";
    for low in 1..=2 {
        let sink = open(config.clone()).await;
        let batch = batch(low, &[at([NEW_YEAR, now, now - 2 * DAY, now - 4 * DAY])]);
        let chunk = chunk(&sink, &batch);
        assert_eq!(lacks(&sink, &chunk).await, [1, 2]);
        write_again(&sink, &batch.id, &chunk).await.unwrap();
        server.run("OPTIMIZE TABLE otel.otel_logs FINAL").await;
        let kept = format!("SELECT count() FROM otel.otel_logs WHERE _millpond_sequence = {low}");
        assert_eq!(server.ask(&kept).await, "2");
        let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!((found, server.ask(&kept).await.as_str()), (Found::All, "2"));
        // An operator's table may have such a column.
        server
            .run("ALTER TABLE otel.otel_logs ADD COLUMN IF NOT EXISTS Seconds DateTime DEFAULT toDateTime(Timestamp)")
            .await;
        server.run(by_other_column).await;
    }
    // The server cannot evaluate this TTL without the row.
    server
        .run("ALTER TABLE otel.otel_logs MODIFY TTL toDateTime(Timestamp) + toIntervalSecond(length(Body))")
        .await;
    let sink = open(config).await;
    let batch = batch(3, &[at([NEW_YEAR])]);
    assert_eq!(lacks(&sink, &chunk(&sink, &batch)).await, [0]);
}

/// A server that is killed when it makes a part visible has already written the part's token.
#[tokio::test]
async fn a_server_killed_between_token_and_rows_gets_them() {
    if Command::new("strace").arg("-V").output().is_err() {
        return;
    }
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = Server::over(data.clone());
    let sink = server.open().await;
    let batch = batch(1, &[at([NEW_YEAR; 6])]);
    let chunk = chunk(&sink, &batch);
    let mut strace = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-p",
            &server.process().to_string(),
        ])
        .args([
            "-e",
            "trace=rename",
            "-e",
            "inject=rename:error=EIO:signal=KILL:when=1",
        ])
        .spawn()
        .unwrap();
    while !is_traced(server.process()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if strace.try_wait().unwrap().is_some() {
            // This machine may not allow strace.
            return;
        }
    }
    let error = write(&sink, &batch.id, &chunk).await.unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    strace.wait().unwrap();
    drop((sink, server));

    let server = Server::over(data);
    let sink = server.open().await;
    assert_eq!(server.ask(COUNT).await, "0\t0");
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(server.ask(COUNT).await, "6\t6");
}

/// Returns true if all of its threads are traced.
fn is_traced(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    })
}
