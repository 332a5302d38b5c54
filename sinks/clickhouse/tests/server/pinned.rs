//! Settings that would break deduplication or hide rows from a query, set for every request as a profile can.

use crate::support::{NEW_YEAR, Proxy, Server, at, batch, chunk, open, write, write_again};
use millpond_clickhouse::{ClickHouse, Config, Signal, SkipIndexes};
use millpond_consumer::{Found, Sink as _, SinkError};

/// A sink whose every request has these settings.
fn with(server: &Server, settings: &str) -> Config {
    Config {
        urls: vec![format!("{}/?{settings}", server.url)],
        signals: vec![Signal::Logs],
        ..server.config()
    }
}

const COUNT: &str = "SELECT count() FROM otel.otel_logs";

#[tokio::test]
async fn parameters_of_the_url_are_in_every_request_and_pinned_ones_win() {
    let server = Server::start();
    let proxy = Proxy::start(&server).await;
    let config = Config {
        urls: vec![format!(
            "{}/?max_threads=3&log_comment=a%26b&async_insert=1&limit=7",
            proxy.url
        )],
        ..server.config()
    };
    let sink = open(config).await;
    let batch = batch(1, &[at([NEW_YEAR])]);
    write_again(&sink, &batch.id, &chunk(&sink, &batch))
        .await
        .unwrap();
    let requests = proxy.requests();
    let lines: Vec<&str> = requests
        .split("POST /?")
        .skip(1)
        .map(|text| text.lines().next().unwrap())
        .collect();
    assert!(lines.len() > 10, "{lines:?}");
    for line in &lines {
        let parameters: Vec<&str> = line.split(['&', ' ']).collect();
        for setting in ["max_threads=3", "log_comment=a%26b"] {
            assert!(parameters.contains(&setting), "{setting} is not in {line}");
        }
        let inserts = line.contains("FORMAT+Native");
        let limit = if inserts { "limit=7" } else { "limit=0" };
        assert!(parameters.contains(&limit), "{line}");
        assert!(!inserts || parameters.contains(&"async_insert=0"), "{line}");
    }
}

#[tokio::test]
async fn a_profile_cannot_switch_deduplication_off() {
    let server = Server::start();
    let sink = open(with(&server, "deduplicate_insert=disable&insert_deduplicate=0")).await;
    let batch = batch(1, &[at([NEW_YEAR; 6])]);
    let chunk = chunk(&sink, &batch);
    for _ in 0..2 {
        write(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask(COUNT).await, "6");
    }
}

#[tokio::test]
async fn a_profile_cannot_split_a_block() {
    let server = Server::start();
    server.open().await;
    server.run("SYSTEM STOP MERGES otel.otel_logs").await;
    let settings = "use_strict_insert_block_limits=1&max_insert_block_size_bytes=20000&min_insert_block_size_bytes=10000";
    let sink = open(with(&server, settings)).await;
    let batch = batch(1, &[at((0..5_000).map(|_| NEW_YEAR))]);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    let parts = "SELECT count() FROM system.parts WHERE table = 'otel_logs' AND active";
    assert_eq!(server.ask(parts).await, "1");
}

#[tokio::test]
async fn indexes_are_built_by_the_insert_or_by_the_first_merge() {
    for skip_indexes in [SkipIndexes::Insert, SkipIndexes::Merge] {
        let server = Server::start();
        server.open().await;
        server.run("SYSTEM STOP MERGES otel.otel_logs").await;
        let sink = open(Config {
            skip_indexes,
            ..server.config()
        })
        .await;
        for sequence in [1, 2] {
            let batch = batch(sequence, &[at([NEW_YEAR; 6])]);
            write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
        }
        let indexed = "SELECT countIf(secondary_indices_compressed_bytes > 0) FROM system.parts \
                       WHERE table = 'otel_logs' AND active";
        let expected = match skip_indexes {
            SkipIndexes::Insert => "2",
            SkipIndexes::Merge => "0",
        };
        assert_eq!(server.ask(indexed).await, expected, "{skip_indexes:?}");
        // Without them, a query still finds every row.
        let found = format!("{COUNT} WHERE ServiceName = 'shop' OR hasToken(Body, 'nothing')");
        let all = server.ask(&found).await;
        server.run("SYSTEM START MERGES otel.otel_logs").await;
        server.run("OPTIMIZE TABLE otel.otel_logs FINAL").await;
        assert_eq!(server.ask(indexed).await, "1", "{skip_indexes:?}");
        assert_eq!(server.ask(&found).await, all, "{skip_indexes:?}");
        assert_eq!(server.ask(COUNT).await, "12", "{skip_indexes:?}");
    }
}

#[tokio::test]
async fn a_profile_cannot_hide_rows_from_a_question() {
    let server = Server::start();
    server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 0")
        .await;
    let filter = "additional_table_filters=%7B%27otel.otel_logs%27%3A%27_millpond_record+%3D+0%27%7D";
    for (low, settings) in (1..).zip([
        "limit=1".to_owned(),
        "offset=1".to_owned(),
        "final=1".to_owned(),
        filter.to_owned(),
        "additional_result_filter=0".to_owned(),
        "use_query_cache=1&query_cache_min_query_runs=0".to_owned(),
        "use_query_condition_cache=1".to_owned(),
    ]) {
        let sink = open(with(&server, &settings)).await;
        let mut both = batch(low, &[at([NEW_YEAR; 4])]);
        both.parts.extend(batch(low + 1000, &[at([NEW_YEAR; 4])]).parts);
        let chunk = chunk(&sink, &both);
        for expected in [Found::Nothing, Found::All, Found::All] {
            let found = write_again(&sink, &both.id, &chunk).await.unwrap();
            assert_eq!(found, expected, "{settings}");
        }
        assert_eq!(server.ask(COUNT).await, (8 * low).to_string(), "{settings}");
    }
}

/// A limit makes a query fail, and never truncates its answer.
#[tokio::test]
async fn a_limit_of_a_profile_is_an_error() {
    let server = Server::start();
    let mut both = batch(1, &[at([NEW_YEAR; 4])]);
    both.parts.extend(batch(2, &[at([NEW_YEAR; 4])]).parts);
    let sink = server.open().await;
    let chunk = chunk(&sink, &both);
    write(&sink, &both.id, &chunk).await.unwrap();
    for settings in [
        "max_rows_to_group_by=1&group_by_overflow_mode=any",
        "max_rows_to_group_by=1&group_by_overflow_mode=break",
    ] {
        let sink = open(with(&server, settings)).await;
        let error = sink.presence(&both.id.source(), &chunk).await.unwrap_err();
        assert!(matches!(error, SinkError::Transient(_)), "{settings}: {error}");
    }
    for settings in [
        "max_rows_to_read=1&read_overflow_mode=break",
        "max_result_rows=1&result_overflow_mode=break",
    ] {
        let error = ClickHouse::open(with(&server, settings)).await.unwrap_err();
        assert!(matches!(error, SinkError::Transient(_)), "{settings}: {error}");
    }
}
