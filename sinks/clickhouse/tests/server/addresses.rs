//! Several addresses. Distributed tables stand in for replicas here: every server writes to the one that has the rows.
//! `tests/cluster/test_addresses.py` has real replicas.

use crate::support::{NEW_YEAR, Proxy, Server, at, batch, chunk, open, write, write_again};
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::{Batch, Found, Settled, Sink as _, SinkError};
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;

fn logs(urls: &[&str]) -> Config {
    Config {
        urls: urls.iter().map(|&url| url.to_owned()).collect(),
        signals: vec![Signal::Logs],
        timeout_seconds: 20,
        ..Config::default()
    }
}

/// The table `everywhere`, on servers that forward its rows.
fn everywhere(urls: &[&str]) -> Config {
    Config {
        logs_table: "everywhere".to_owned(),
        create: false,
        ..logs(urls)
    }
}

async fn distribute(server: &Server, cluster: &str) {
    open(logs(&[&server.url])).await;
    server
        .run(&format!(
            "CREATE TABLE otel.everywhere AS otel.otel_logs ENGINE = Distributed('{cluster}', 'otel', 'otel_logs')"
        ))
        .await;
}

/// A server that has the rows, and one that forwards rows to it.
async fn two() -> (Server, Server) {
    let near = Server::start();
    let far = Server::beside(&near);
    distribute(&near, "far").await;
    distribute(&far, "far").await;
    (near, far)
}

fn six_rows(sink: &ClickHouse, low: u64) -> Batch {
    let mut batch = batch(low, &[at([NEW_YEAR; 6])]);
    batch.id.sink = sink.name().to_owned();
    batch
}

/// The identities of the first table.
async fn identities(config: Config) -> BTreeSet<String> {
    let sink = open(config).await;
    let tables = sink.tables();
    tables[0].identities.clone()
}

/// A Distributed table leads to the table behind it, which another consumer may write to directly.
#[tokio::test]
async fn consumers_of_one_table_know_it_by_whatever_way_they_write() {
    let (near, far) = two().await;
    let direct = identities(logs(&[&near.url])).await;
    assert_eq!(direct.len(), 1, "{direct:?}");
    for server in [&near, &far] {
        let found = identities(everywhere(&[&server.url])).await;
        assert!(found.is_superset(&direct), "{found:?}");
        assert_eq!(
            found.len(),
            2,
            "its own, and that of the table behind it: {found:?}"
        );
    }
    let other = Config {
        database: "other".to_owned(),
        ..logs(&[&near.url])
    };
    assert!(direct.is_disjoint(&identities(other).await));
    // It is there too, and nothing is passed on from it.
    assert!(direct.is_disjoint(&identities(logs(&[&far.url])).await));
}

/// The name stays, the table does not.
#[tokio::test]
async fn a_table_that_is_made_again_is_another() {
    let server = Server::start();
    let before = identities(logs(&[&server.url])).await;
    assert_eq!(before, identities(logs(&[&server.url])).await);
    server.run("DROP TABLE otel.otel_logs SYNC").await;
    assert!(before.is_disjoint(&identities(logs(&[&server.url])).await));
}

const COUNT: &str = "SELECT count() FROM otel.otel_logs";

async fn refused(config: Config) -> String {
    match ClickHouse::open(config).await {
        Err(SinkError::Schema(reason)) => reason,
        opened => panic!("{opened:?}"),
    }
}

#[tokio::test]
async fn tables_that_do_not_replicate_have_one_address() {
    let (one, other) = (Server::start(), Server::start());
    let both = [&*one.url, &*other.url];
    let error = refused(logs(&both)).await;
    assert!(error.contains("a separate table at each address"), "{error}");
    for server in [&one, &other] {
        let made = server
            .ask("SELECT count() FROM system.tables WHERE database = 'otel'")
            .await;
        assert_eq!(made, "0", "the sink created a table before it refused");
        open(logs(&[&server.url])).await;
    }
    let error = refused(logs(&[&one.url, &other.url, &one.url])).await;
    assert!(error.contains(&format!("{} is given twice", one.url)), "{error}");
    for urls in [&both[..], &[&one.url, "http://127.0.0.1:1"]] {
        let error = refused(logs(urls)).await;
        let message = format!("at {} has engine MergeTree, which does not replicate", one.url);
        assert!(error.contains(&message), "{error}");
    }
}

#[tokio::test]
async fn addresses_that_lead_to_other_shards_are_refused() {
    let (one, other) = (Server::start(), Server::start());
    for server in [&one, &other] {
        distribute(server, "pair").await;
    }
    let error = refused(everywhere(&[&one.url, &other.url])).await;
    assert!(error.contains("sees different shards in cluster pair"), "{error}");
    assert!(error.contains(&one.url) && error.contains(&other.url), "{error}");
}

#[tokio::test]
async fn the_next_address_takes_the_place_of_one_that_is_away() {
    let (near, mut far) = two().await;
    let sink = open(everywhere(&["http://127.0.0.1:1", &far.url, &near.url])).await;
    let mut registry = Registry::default();
    sink.register_metrics(&mut registry);
    let shown = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    let in_use = |url: &str| format!("millpond_clickhouse_address_in_use{{address=\"{url}\"}} 1\n");
    let first = six_rows(&sink, 1);
    write(&sink, &first.id, &chunk(&sink, &first)).await.unwrap();
    assert!(shown().contains(&in_use(&far.url)), "{}", shown());
    assert!(
        shown().contains("millpond_clickhouse_failovers_total 0\n"),
        "{}",
        shown()
    );

    far.kill();
    let second = six_rows(&sink, 2);
    let error = write(&sink, &second.id, &chunk(&sink, &second))
        .await
        .unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    assert!(error.to_string().contains(&far.url), "{error}");
    let found = write_again(&sink, &second.id, &chunk(&sink, &second))
        .await
        .unwrap();
    assert_eq!(found, Found::Nothing);
    assert_eq!(near.ask(COUNT).await, "12");
    assert!(shown().contains(&in_use(&near.url)), "{}", shown());
    assert!(!shown().contains(&in_use(&far.url)), "{}", shown());
    assert!(
        shown().contains("millpond_clickhouse_failovers_total 1\n"),
        "{}",
        shown()
    );
}

/// The table remembers no tokens, so it would store a repetition.
#[tokio::test]
async fn an_attempt_of_unknown_outcome_is_asked_for_and_not_repeated_at_the_next_address() {
    let server = Server::start();
    distribute(&server, "pair").await;
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 0")
        .await;
    let proxy = Proxy::start(&server).await;
    let sink = open(everywhere(&[&proxy.url, &server.url])).await;
    let batch = six_rows(&sink, 1);
    let chunk = chunk(&sink, &batch);
    *proxy.cut.lock().unwrap() = true;
    let sent = write(&sink, &batch.id, &chunk).await;
    assert_eq!(server.ask(COUNT).await, "6", "the rows are there twice");
    assert!(matches!(sent, Err(SinkError::Transient(_))), "{sent:?}");
    assert_eq!(write_again(&sink, &batch.id, &chunk).await.unwrap(), Found::All);
    assert_eq!(server.ask(COUNT).await, "6");
}

/// The sink checks an address that was unreachable at the start before it uses it.
#[tokio::test]
async fn an_address_with_other_tables_never_takes_over() {
    let (mut one, other) = (Server::start(), Server::start());
    for server in [&one, &other] {
        distribute(server, "pair").await;
    }
    let proxy = Proxy::start(&other).await;
    *proxy.cut.lock().unwrap() = true;
    let sink = open(everywhere(&[&one.url, &proxy.url])).await;
    *proxy.cut.lock().unwrap() = false;
    one.kill();
    let batch = six_rows(&sink, 1);
    for _ in 0..3 {
        let error = write_again(&sink, &batch.id, &chunk(&sink, &batch))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(&one.url), "{error}");
    }
    assert!(
        proxy.requests().contains("system.clusters"),
        "nobody checked the address"
    );
    assert_eq!(other.ask(COUNT).await, "0");
}

/// An operator recreates the table, differently, after both addresses were checked.
#[tokio::test]
async fn an_address_is_compared_again_each_time_it_takes_over() {
    let (near, mut far) = two().await;
    let sink = open(everywhere(&[&far.url, &near.url])).await;
    near.run("DROP TABLE otel.everywhere SYNC").await;
    near.run("CREATE TABLE otel.everywhere AS otel.otel_logs").await;
    far.kill();
    let batch = six_rows(&sink, 1);
    for _ in 0..3 {
        let chunk = chunk(&sink, &batch);
        let sent = write_again(&sink, &batch.id, &chunk).await;
        let rows = near.ask("SELECT count() FROM otel.everywhere").await;
        assert_eq!(rows, "0", "another table took the rows");
        let error = sent.unwrap_err().to_string();
        assert!(error.contains(&far.url), "{error}");
    }
}

/// The cluster has only one of the servers. The requests on the other one are visible only at its address.
#[tokio::test]
async fn requests_at_every_address_are_ended() {
    let (near, mut far) = two().await;
    let config = Config {
        cluster: Some("far".to_owned()),
        ..everywhere(&[&near.url, &far.url])
    };
    let sink = open(config).await;
    let id = "millpond/7/0/test/one/1";
    let client = clickhouse::Client::default().with_url(&far.url);
    let slow = client
        .query_raw("SELECT sleepEachRow(1) FROM numbers(600) SETTINGS max_block_size = 1 FORMAT Null")
        .with_setting("query_id", id)
        .with_setting("function_sleep_max_microseconds_per_block", "0");
    let slow = tokio::spawn(async move { slow.execute().await });
    let running = format!("SELECT count() FROM system.processes WHERE query_id = '{id}'");
    while far.ask(&running).await != "1" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(
        sink.settle("millpond/7/0/test/", None).await.unwrap(),
        Settled::Ended
    );
    assert_eq!(
        far.ask(&running).await,
        "0",
        "the request still runs at the other address"
    );
    slow.await.unwrap().unwrap_err();

    far.kill();
    assert_eq!(
        sink.settle("millpond/7/0/test/", None).await.unwrap(),
        Settled::Waits,
        "requests may run at the unreachable address"
    );
}
