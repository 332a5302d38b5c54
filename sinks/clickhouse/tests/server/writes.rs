//! The form of an INSERT: one block, compressed, under one token and the pinned settings.

use crate::signals::traces;
use crate::support::{DAY, NEW_YEAR, Proxy, Server, at, batch, chunk, chunks, open, write};
use millpond_clickhouse::{Columns, Compression, Config};
use millpond_consumer::{Chunk, Presence, Sink as _};

const COUNT: &str = "SELECT count(), uniqExact(Body) FROM otel.otel_logs";

#[tokio::test]
async fn a_chunk_is_one_block() {
    let server = Server::start();
    let sink = server.open().await;
    // A view makes one row of each block; its table forgets repetitions like the logs'.
    server
        .run(
            "CREATE TABLE otel.blocks (rows UInt64) ENGINE = MergeTree ORDER BY () \
             SETTINGS non_replicated_deduplication_window = 100",
        )
        .await;
    server
        .run("CREATE MATERIALIZED VIEW otel.counting TO otel.blocks AS SELECT count() AS rows FROM otel.otel_logs")
        .await;
    let batch = batch(1, &[at((0..100_000).map(|row| NEW_YEAR + row))]);
    let chunk = chunk(&sink, &batch);
    for _ in 0..2 {
        write(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask("SELECT rows FROM otel.blocks").await, "100000");
        assert_eq!(server.ask(COUNT).await, "100000\t100000");
        let parts =
            "SELECT count() FROM system.parts WHERE database = 'otel' AND table = 'otel_logs' AND level = 0";
        assert_eq!(server.ask(parts).await, "1");
    }
}

#[tokio::test]
async fn the_same_chunk_again_adds_nothing_and_another_does() {
    let server = Server::start();
    let sink = server.open().await;
    // The same rows in two batches are two chunks.
    let first = batch(1, &[at([NEW_YEAR, NEW_YEAR + DAY])]);
    let second = batch(2, &[at([NEW_YEAR, NEW_YEAR + DAY])]);
    for (batch, expected) in [
        (&first, "2\t2"),
        (&first, "2\t2"),
        (&second, "4\t2"),
        (&first, "4\t2"),
    ] {
        write(&sink, &batch.id, &chunk(&sink, batch)).await.unwrap();
        assert_eq!(server.ask(COUNT).await, expected);
    }
}

#[tokio::test]
async fn a_chunk_arrives_in_every_compression() {
    let server = Server::start();
    let mut sizes = Vec::new();
    for (sequence, compression) in [
        (1, Compression::None),
        (2, Compression::Lz4),
        (3, Compression::Zstd),
    ] {
        let config = Config {
            compression,
            ..server.config()
        };
        let sink = open(config).await;
        let batch = batch(sequence, &[at((0..10_000).map(|row| NEW_YEAR + row))]);
        let whole = chunk(&sink, &batch);
        sizes.push(whole.body.iter().map(bytes::Bytes::len).sum::<usize>());
        // To send a part of a chunk, the sink reads it back. The other index gives the part another token.
        let some = Chunk {
            index: 1,
            ..sink.some(&whole, &[7, 9_999])
        };
        for chunk in [&some, &whole] {
            write(&sink, &batch.id, chunk).await.unwrap();
        }
        let rows = "SELECT count(), uniqExact(Body), sum(cityHash64(Timestamp, Body, ServiceName)) FROM otel.otel_logs \
                    WHERE _millpond_sequence = {}";
        let found = server.ask(&rows.replace("{}", &sequence.to_string())).await;
        assert!(found.starts_with("10002\t10000\t"), "{compression:?}: {found}");
    }
    let [none, lz4, zstd] = sizes.try_into().unwrap();
    assert!(zstd < lz4 && lz4 < none, "{zstd}, {lz4}, {none} bytes");
}

/// Sent again, or in pieces, they are the same rows.
#[tokio::test]
async fn rows_come_in_the_order_of_their_table() {
    const IN_ORDER: &str =
        "SELECT sum(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocksAlreadySorted'";
    let times: Vec<u64> = (0..40)
        .map(|row| NEW_YEAR + row * 7_000_000_000 % 40_000_000_000)
        .collect();
    for (columns, in_order) in [(Columns::All, ["1", "2"]), (Columns::None, ["0", "0"])] {
        let server = Server::start();
        let config = Config {
            columns,
            ..server.config()
        };
        let sink = open(config).await;
        server.run("DROP TABLE otel.otel_traces_trace_id_ts_mv").await;
        let logs = batch(1, &[at(times.iter().copied())]);
        let spans = traces(1, &times);
        for (batch, in_order) in [&logs, &spans].into_iter().zip(in_order) {
            write(&sink, &batch.id, &chunk(&sink, batch)).await.unwrap();
            assert_eq!(
                server.ask(IN_ORDER).await,
                in_order,
                "{columns:?}, {}",
                batch.id.stream
            );
        }
        if columns == Columns::All {
            let whole = chunk(&sink, &logs);
            server
                .run("DELETE FROM otel.otel_logs WHERE _millpond_record IN (3, 17, 39)")
                .await;
            let Presence::Lacks { rows, certain } = sink.presence(&logs.id.source(), &whole).await.unwrap()
            else {
                panic!("the table keeps identities");
            };
            assert_eq!((rows.as_slice(), certain), (&[3, 17, 39][..], true));
            let lacking = Chunk {
                index: 1,
                ..sink.some(&whole, &rows)
            };
            write(&sink, &logs.id, &lacking).await.unwrap();
            let records =
                "SELECT count(), uniqExact(_millpond_record), uniqExact(Timestamp) FROM otel.otel_logs";
            assert_eq!(server.ask(records).await, "40\t40\t40");
        }
    }
}

#[tokio::test]
async fn rows_over_many_partitions_are_split_the_same_way_every_time() {
    let server = Server::start();
    let sink = server.open().await;
    let batch = batch(1, &[at((0..360).map(|row| NEW_YEAR + row % 120 * DAY))]);
    for _ in 0..2 {
        let chunks = chunks(&sink, &batch);
        let rows: Vec<u64> = chunks.iter().map(|chunk| chunk.rows).collect();
        assert_eq!(rows, [150, 150, 60]);
        for chunk in &chunks {
            write(&sink, &batch.id, chunk).await.unwrap();
        }
        assert_eq!(server.ask(COUNT).await, "360\t360");
    }
    let partitions = "SELECT uniqExact(_partition_id) FROM otel.otel_logs";
    assert_eq!(server.ask(partitions).await, "120");
}

#[tokio::test]
async fn a_request_pins_what_makes_one_block_under_one_token() {
    let server = Server::start();
    let proxy = Proxy::start(&server).await;
    let config = Config {
        urls: vec![proxy.url.clone()],
        ..server.config()
    };
    let sink = open(config).await;
    let batch = batch(1, &[at((0..1000).map(|row| NEW_YEAR + row))]);
    let chunk = chunk(&sink, &batch);
    let opening = proxy.requests().len();
    write(&sink, &batch.id, &chunk).await.unwrap();
    let requests = proxy.requests();
    let insert = &requests[opening..];
    let (line, _) = insert.split_once("\r\n").unwrap();
    let parameters: Vec<&str> = line.split(['?', '&', ' ']).collect();
    for setting in [
        "async_insert=0",
        "insert_deduplicate=1",
        "deduplicate_blocks_in_dependent_materialized_views=1",
        "max_insert_block_size=1048449",
        "min_insert_block_size_rows=0",
        "min_insert_block_size_bytes=0",
        "max_insert_threads=1",
        "max_partitions_per_insert_block=0",
        "wait_end_of_query=1",
        "deduplicate_insert=enable",
        "use_strict_insert_block_limits=0",
        "max_insert_block_size_bytes=0",
        "max_execution_time=300",
        "timeout_overflow_mode=throw",
        "decompress=1",
        "insert_deduplication_token=millpond%2F2%2F00000000-0000-0000-0000-000000000007%2F0000%2Fotlp.logs%2Ftest%2F\
         clickhouse%3Aotel.otel_logs%2Fv2%2Fg0%2F1-1%2F0",
    ] {
        assert!(parameters.contains(&setting), "{setting} is not in {line}");
    }
    // The bytes on the wire are a fraction of those that the engine has read.
    let sent: usize = chunk.body.iter().map(bytes::Bytes::len).sum();
    assert!(
        4 * sent as u64 <= chunk.raw_bytes,
        "{sent} of {}",
        chunk.raw_bytes
    );
    assert_eq!(server.ask(COUNT).await, "1000\t1000");
}

#[tokio::test]
async fn the_exporters_own_table_takes_rows() {
    let server = Server::start();
    server.run("CREATE DATABASE otel").await;
    server
        .run(include_str!("../../testdata/exporter-table-bloom.sql"))
        .await;
    // The TTL would drop these rows.
    server.run("ALTER TABLE otel.otel_logs REMOVE TTL").await;
    let config = Config {
        columns: Columns::None,
        ..server.config()
    };
    let sink = open(config).await;
    let batch = batch(1, &[at([NEW_YEAR, NEW_YEAR])]);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    assert_eq!(server.ask(COUNT).await, "2\t2");
}

#[tokio::test]
async fn our_columns_cost_less_than_a_byte_a_row() {
    let server = Server::start();
    let sink = server.open().await;
    // In a compact part the engine does not know the size of a column.
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING min_bytes_for_wide_part = 0")
        .await;
    let messages: Vec<_> = (0..100)
        .map(|message| at((0..1000).map(|row| NEW_YEAR + message * 1_000_000 + row)))
        .collect();
    let batch = batch(1, &messages);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    let sql = "SELECT sum(column_data_compressed_bytes) FROM system.parts_columns WHERE database = 'otel' \
               AND table = 'otel_logs' AND active AND startsWith(column, '_millpond_')";
    let bytes: u64 = server.ask(sql).await.parse().unwrap();
    assert!((1..100_000).contains(&bytes), "{bytes} bytes for 100,000 rows");
}
