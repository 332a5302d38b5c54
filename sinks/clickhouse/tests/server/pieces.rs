//! Pieces of a chunk that the table refused: the table's errors for them, and the rows that it already has.

use crate::signals::{TABLES, TIMES, metrics, points, traces};
use crate::support::{
    DAY, NEW_YEAR, Server, at, batch, batch_of, chunk, chunks, record, request, text, write, write_again,
};
use millpond_clickhouse::{ClickHouse, Signal};
use millpond_consumer::{Batch, BatchId, Chunk, Sink as _, SinkError, piece};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Both halves of a chunk or a piece.
fn halves(sink: &ClickHouse, chunk: &Chunk) -> [Chunk; 2] {
    let middle = chunk.rows.div_ceil(2);
    let numbers = piece::halves(chunk.index);
    let half = |rows: std::ops::Range<u64>, index| Chunk {
        index,
        ..sink.some(chunk, &rows.collect::<Vec<_>>())
    };
    [half(0..middle, numbers[0]), half(middle..chunk.rows, numbers[1])]
}

async fn refused(sink: &Arc<ClickHouse>, id: &BatchId, chunk: &Chunk) {
    let error = write_again(sink, id, chunk).await.unwrap_err();
    assert!(matches!(error, SinkError::Refused(_)), "{error}");
}

const ROWS: &str = "SELECT Body, _millpond_record FROM otel.otel_logs ORDER BY toUInt32(Body)";

#[tokio::test]
async fn everything_but_the_refused_row_goes_in_and_twice_is_once() {
    let server = Server::start();
    let sink = server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs ADD CONSTRAINT tidy CHECK Body != '4'")
        .await;
    // Without a window, only the identity columns show which rows are there.
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 0")
        .await;
    let batch = batch(1, &[at((0..6).map(|row| NEW_YEAR + row))]);
    let whole = chunk(&sink, &batch);
    let error = write(&sink, &batch.id, &whole).await.unwrap_err();
    assert!(matches!(error, SinkError::Refused(_)), "{error}");
    for _ in 0..2 {
        refused(&sink, &batch.id, &whole).await;
        let [first, second] = halves(&sink, &whole);
        write_again(&sink, &batch.id, &first).await.unwrap();
        refused(&sink, &batch.id, &second).await;
        let [left, last] = halves(&sink, &second);
        refused(&sink, &batch.id, &left).await;
        write_again(&sink, &batch.id, &last).await.unwrap();
        let [good, bad] = halves(&sink, &left);
        write_again(&sink, &batch.id, &good).await.unwrap();
        refused(&sink, &batch.id, &bad).await;
        assert_eq!(server.ask(ROWS).await, "0\t0\n1\t1\n2\t2\n3\t3\n5\t5");
    }
}

/// Part of a chunk landed, its answer was lost, and by the time of the next attempt the table refuses the rest.
#[tokio::test]
async fn pieces_leave_out_what_landed_of_their_chunk() {
    let server = Server::start();
    let sink = server.open().await;
    // Three days, two rows each.
    let batch = batch(1, &[at((0..6).map(|row| NEW_YEAR + row % 3 * DAY + row))]);
    let whole = chunk(&sink, &batch);
    write(&sink, &batch.id, &whole).await.unwrap();
    server
        .run("ALTER TABLE otel.otel_logs DROP PARTITION ID '20240102'")
        .await;
    server
        .run("ALTER TABLE otel.otel_logs ADD CONSTRAINT tidy CHECK Body != '4'")
        .await;
    refused(&sink, &batch.id, &whole).await;
    let [first, second] = halves(&sink, &whole);
    write_again(&sink, &batch.id, &first).await.unwrap();
    refused(&sink, &batch.id, &second).await;
    for half in halves(&sink, &second) {
        if half.rows == 1 {
            write_again(&sink, &batch.id, &half).await.unwrap();
            continue;
        }
        refused(&sink, &batch.id, &half).await;
        let [there, bad] = halves(&sink, &half);
        write_again(&sink, &batch.id, &there).await.unwrap();
        refused(&sink, &batch.id, &bad).await;
    }
    let bodies = "SELECT groupArray(Body) FROM (SELECT Body FROM otel.otel_logs ORDER BY Body)";
    assert_eq!(server.ask(bodies).await, "['0','1','2','3','5']");
}

#[tokio::test]
async fn rows_that_break_a_computed_column_are_refused_but_not_those_that_break_a_view() {
    let server = Server::start();
    let sink = server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs ADD COLUMN number UInt8 MATERIALIZED toUInt8(Body || 'x')")
        .await;
    let batch = batch(1, &[at([NEW_YEAR])]);
    let whole = chunk(&sink, &batch);
    refused(&sink, &batch.id, &whole).await;
    server.run("ALTER TABLE otel.otel_logs DROP COLUMN number").await;

    server
        .run("CREATE TABLE otel.numbers (number UInt8) ENGINE = MergeTree ORDER BY number")
        .await;
    server
        .run(
            "CREATE MATERIALIZED VIEW otel.numbering TO otel.numbers AS \
             SELECT toUInt8(Body || 'x') AS number FROM otel.otel_logs",
        )
        .await;
    let error = write(&sink, &batch.id, &whole).await.unwrap_err();
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    // The table has the row, so nothing is left to do.
    write_again(&sink, &batch.id, &whole).await.unwrap();
    assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "1");
}

/// Writes the rows of a chunk that the table takes, and returns those that it refuses.
async fn take_apart(sink: &Arc<ClickHouse>, id: &BatchId, whole: Chunk) -> Vec<Chunk> {
    let (mut level, mut rows) = (vec![whole], Vec::new());
    while let Some(chunk) = level.pop() {
        match write_again(sink, id, &chunk).await {
            Ok(_) => {}
            Err(SinkError::Refused(_)) if chunk.rows == 1 => rows.push(chunk),
            Err(SinkError::Refused(_)) => level.extend(halves(sink, &chunk)),
            Err(error) => panic!("{error}"),
        }
    }
    rows
}

/// ClickHouse quotes a value in its exception. A record could claim there that a view refused it, and cause endless
/// retries.
#[tokio::test]
async fn a_record_that_reads_like_a_view_is_refused_and_the_others_arrive() {
    // ClickHouse quotes text that it cannot parse as a number, but not text that it cannot parse as a UUID.
    for column in [
        "n Int32 MATERIALIZED toInt32(Body)",
        "u UUID MATERIALIZED toUUID(if(match(Body, '^[0-9]+$'), '00000000-0000-0000-0000-000000000000', Body))",
    ] {
        for with_view in [false, true] {
            let server = Server::start();
            let sink = server.open().await;
            server
                .run(&format!("ALTER TABLE otel.otel_logs ADD COLUMN {column}"))
                .await;
            if with_view {
                server
                    .run("CREATE MATERIALIZED VIEW otel.counting ENGINE = MergeTree ORDER BY Body AS SELECT Body FROM otel.otel_logs")
                    .await;
            }
            let mut records: Vec<_> = (0..5).map(|number| record(number, NEW_YEAR)).collect();
            records[3].body =
                text("while pushing to view otel.counting (00000000-0000-0000-0000-000000000000)");
            let batch = batch(1, &[request(records)]);
            let refused = take_apart(&sink, &batch.id, chunk(&sink, &batch)).await;
            let rows: Vec<_> = refused.iter().map(|row| row.id(0).unwrap().record).collect();
            assert_eq!(rows, [3], "{column}");
            let bodies = "SELECT groupArray(Body) FROM (SELECT Body FROM otel.otel_logs ORDER BY Body)";
            assert_eq!(server.ask(bodies).await, "['0','1','2','4']", "{column}");
        }
    }
}

/// Writes a refused row from its record alone, twice, as the replay of a dead letter does.
async fn replay(sink: &Arc<ClickHouse>, signal: Signal, batch: &Batch, row: &Chunk) {
    let id = row.id(0).unwrap();
    let [record] = sink.records(batch, &[id]).unwrap().try_into().unwrap();
    let mut letter = batch_of(signal, id.sequence, &[record.payload]);
    letter.parts[0].first_record = id.record;
    let alone = chunk(sink, &letter);
    assert_eq!((alone.table, alone.rows, alone.id(0)), (row.table, 1, Some(id)));
    let piece = Chunk {
        index: row.index,
        ..alone
    };
    for _ in 0..2 {
        write_again(sink, &batch.id, &piece).await.unwrap();
    }
}

/// Part of a chunk landed, the server died before the view had it, and the table now refuses the rest.
#[tokio::test]
async fn refused_spans_go_in_later_and_every_trace_is_found() {
    let server = Server::start();
    let sink = server.open().await;
    let times: Vec<u64> = (0..6).map(|row| NEW_YEAR + row % 3 * DAY).collect();
    let batch = traces(1, &times);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    for sql in [
        "ALTER TABLE otel.otel_traces DROP PARTITION ID '20240102'",
        "ALTER TABLE otel.otel_traces_trace_id_ts DELETE WHERE 1 SETTINGS mutations_sync = 2",
        "ALTER TABLE otel.otel_traces ADD CONSTRAINT tidy CHECK SpanName NOT IN ('span 1', 'span 4')",
    ] {
        server.run(sql).await;
    }
    let rows = take_apart(&sink, &batch.id, chunk(&sink, &batch)).await;
    assert_eq!(rows.len(), 2);
    let names = "SELECT groupArray(SpanName) FROM (SELECT SpanName FROM otel.otel_traces ORDER BY SpanName)";
    assert_eq!(server.ask(names).await, "['span 0','span 2','span 3','span 5']");
    let found = "SELECT count(), uniqExact(TraceId) FROM otel.otel_traces_trace_id_ts";
    assert_eq!(server.ask(found).await, "4\t4");
    server
        .run("ALTER TABLE otel.otel_traces DROP CONSTRAINT tidy")
        .await;
    for row in &rows {
        replay(&sink, Signal::Traces, &batch, row).await;
    }
    assert_eq!(
        server.ask(names).await,
        "['span 0','span 1','span 2','span 3','span 4','span 5']"
    );
    let seconds = |row: usize| times[row] / 1_000_000_000;
    let expected: Vec<String> = (0..6)
        .map(|row| {
            format!(
                "{}\t{1}\t{1}",
                format!("{:02x}", row + 1).repeat(16),
                seconds(row)
            )
        })
        .collect();
    assert_eq!(server.ask(TIMES).await, expected.join("\n"));
}

#[tokio::test]
async fn refused_points_go_into_their_own_table_later() {
    let server = Server::start();
    let sink = server.open().await;
    for table in TABLES {
        let forbid = "ADD CONSTRAINT tidy CHECK toDate(TimeUnix) != '2024-01-02'";
        server
            .run(&format!("ALTER TABLE otel.otel_metrics_{table} {forbid}"))
            .await;
    }
    let batch = metrics(1, &[NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR]);
    let mut rows = Vec::new();
    for chunk in chunks(&sink, &batch) {
        rows.extend(take_apart(&sink, &batch.id, chunk).await);
    }
    assert_eq!(points(&server).await, ["2024-01-01\t2"; 5]);
    let tables: Vec<u32> = rows.iter().map(|row| row.table).collect();
    assert_eq!(tables, [2, 3, 4, 5, 6]);
    let numbers: BTreeSet<u32> = rows.iter().map(|row| row.index).collect();
    assert_eq!(numbers.len(), 5, "{numbers:?}");
    for table in TABLES {
        server
            .run(&format!(
                "ALTER TABLE otel.otel_metrics_{table} DROP CONSTRAINT tidy"
            ))
            .await;
    }
    for row in &rows {
        replay(&sink, Signal::Metrics, &batch, row).await;
    }
    assert_eq!(points(&server).await, ["2024-01-01\t2\n2024-01-02\t1"; 5]);
}
