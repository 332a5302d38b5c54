//! Tests that need ClickHouse's own HTTP interface with sessions, query ids and clusters. The engine's library provides
//! it through the arguments of `clickhouse-local`.
#![expect(
    clippy::disallowed_methods,
    reason = "a server that tests start needs real time"
)]

use crate::support::{NEW_YEAR, Server, at, batch, chunk, open, write, write_again};
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::{Attempt, Found, Presence, Settled, Sink as _, SinkError};
use std::time::{Duration, Instant};

fn logs(server: &Server) -> Config {
    Config {
        signals: vec![Signal::Logs],
        ..server.config()
    }
}

/// Every row takes the server half a second.
const SLOW: &str = "ALTER TABLE otel.otel_logs ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.5)";

fn slow(server: &Server, timeout_seconds: u64) -> Config {
    Config {
        urls: vec![format!(
            "{}/?function_sleep_max_microseconds_per_block=0",
            server.url
        )],
        timeout_seconds,
        ..logs(server)
    }
}

#[tokio::test]
async fn inserts_of_others_are_ended_and_our_own_go_on() {
    let server = Server::start();
    open(logs(&server)).await;
    server.ask(SLOW).await;
    let sink = open(slow(&server, 60)).await;
    let batch = batch(1, &[at((0..20).map(|row| NEW_YEAR + row))]);
    let chunk = chunk(&sink, &batch);
    let begun = |query_id: &str, rows: &[u64]| {
        let (sink, some) = (sink.clone(), sink.some(&chunk, rows));
        let attempt = Attempt {
            token: query_id.to_owned(),
            query_id: query_id.to_owned(),
            first: false,
        };
        tokio::spawn(async move { sink.insert(&some, &attempt).await })
    };
    let theirs = begun("millpond/7/0/test/one/1", &(0..20).collect::<Vec<_>>());
    let ours = begun("millpond/7/0/test/two/1", &[0, 1, 2]);
    let others = begun("millpond/7/0/tests/one/1", &[3, 4, 5]);
    let running = "SELECT count() FROM system.processes WHERE startsWith(query_id, 'millpond/7/0/')";
    while server.ask(running).await != "3" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let settled = sink.settle("millpond/7/0/test/", Some("/two/")).await.unwrap();
    assert_eq!(settled, Settled::Ended);
    let error = theirs.await.unwrap().unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    ours.await.unwrap().unwrap();
    others.await.unwrap().unwrap();
    assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "6");
}

/// A Distributed table forwards rows on behalf of the original INSERT, under separate query ids.
#[tokio::test]
async fn requests_that_a_distributed_table_forwards_are_ended_too() {
    let server = Server::start();
    let sink = open(logs(&server)).await;
    server
        .run(
            "CREATE TABLE otel.everywhere AS otel.otel_logs ENGINE = Distributed('pair', 'otel', 'otel_logs') \
             SETTINGS background_insert_sleep_time_ms = 600000",
        )
        .await;
    server.ask(SLOW).await;
    let id = "millpond/7/0/test/one/1";
    let client = clickhouse::Client::default().with_url(&server.url);
    let insert = client
        .query_raw("INSERT INTO otel.everywhere (Timestamp) SELECT now() FROM numbers(10)")
        .with_setting("query_id", id)
        .with_setting("distributed_foreground_insert", "0")
        .with_setting("prefer_localhost_replica", "0")
        .with_setting("function_sleep_max_microseconds_per_block", "0");
    insert.execute().await.unwrap();
    let running = format!(
        "SELECT count() FROM system.processes WHERE initial_query_id = '{id}' AND query_id != '{id}'"
    );
    while server.ask(&running).await != "1" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let settled = sink.settle("millpond/7/0/test/", None).await.unwrap();
    assert_eq!(settled, Settled::Ended);
    assert_eq!(
        server.ask(&running).await,
        "0",
        "the request still runs at a shard"
    );
}

/// The server gives up when the client does, so that no INSERT lands after its time limit.
#[tokio::test]
async fn an_insert_ends_in_its_time_at_the_server_too() {
    let server = Server::start();
    open(logs(&server)).await;
    server.ask(SLOW).await;
    let sink = open(slow(&server, 2)).await;
    assert_eq!(sink.attempt_max(), Duration::from_secs(2));
    let batch = batch(1, &[at((0..20).map(|row| NEW_YEAR + row))]);
    let error = write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    let running = "SELECT count() FROM system.processes WHERE startsWith(query_id, 'millpond/')";
    let until = Instant::now() + Duration::from_secs(5);
    while server.ask(running).await != "0" {
        assert!(Instant::now() < until, "the INSERT still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "0");
}

async fn distributed(server: &Server, engine: &str) -> Config {
    let config = Config {
        logs_table: "everywhere".to_owned(),
        create: false,
        ..logs(server)
    };
    server.ask("DROP TABLE IF EXISTS otel.everywhere").await;
    server
        .ask(&format!(
            "CREATE TABLE otel.everywhere AS otel.otel_logs ENGINE = {engine}"
        ))
        .await;
    config
}

#[tokio::test]
async fn the_tables_behind_a_distributed_one_are_asked() {
    let server = Server::start();
    open(logs(&server)).await;
    let config = distributed(&server, "Distributed('pair', 'otel', 'otel_logs')").await;
    let sink = open(config).await;
    let mut batch = batch(1, &[at([NEW_YEAR; 6])]);
    batch.id.sink = sink.name().to_owned();
    let chunk = chunk(&sink, &batch);
    for expected in [Found::Nothing, Found::All] {
        assert_eq!(write_again(&sink, &batch.id, &chunk).await.unwrap(), expected);
        assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "6");
    }
    server
        .ask("ALTER TABLE otel.otel_logs DELETE WHERE _millpond_record = 4 SETTINGS mutations_sync = 2")
        .await;
    assert_eq!(
        sink.presence(&batch.id.source(), &chunk).await.unwrap(),
        Presence::Lacks {
            rows: vec![4],
            certain: true
        }
    );
    assert_eq!(
        sink.numbers(&batch.id.source(), "otlp.logs", 1).await.unwrap(),
        [0, 1, 2, 3, 5]
    );
    // The sink cannot end INSERTs that other servers forward.
    assert_eq!(
        sink.settle("millpond/", Some("/own/")).await.unwrap(),
        Settled::Waits
    );
}

#[tokio::test]
async fn a_sharding_key_that_is_not_of_the_row_is_refused() {
    let server = Server::start();
    open(logs(&server)).await;
    for (engine, fault) in [
        (
            "Distributed('shards', 'otel', 'otel_logs', rand())",
            Some("rand()"),
        ),
        (
            "Distributed('shards', 'otel', 'otel_logs', cityHash64(TraceId, now()))",
            Some("now()"),
        ),
        (
            "Distributed('shards', 'otel', 'otel_logs', toUnixTimestamp(_millpond_inserted_at))",
            Some("_millpond_inserted_at"),
        ),
        (
            "Distributed('shards', 'otel', 'otel_logs')",
            Some("2 shards and no sharding key"),
        ),
        (
            "Distributed('sh{size}s', 'otel', 'otel_logs')",
            Some("2 shards and no sharding key"),
        ),
        (
            "Distributed('shards', 'otel', 'otel_logs', cityHash64(TraceId))",
            None,
        ),
    ] {
        let config = distributed(&server, engine).await;
        match (ClickHouse::open(config).await, fault) {
            (Ok(_), None) => {}
            (Err(SinkError::Schema(error)), Some(fault)) => assert!(error.contains(fault), "{error}"),
            (opened, _) => panic!("{engine}: {opened:?}"),
        }
    }
}
