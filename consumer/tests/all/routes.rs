//! Consumers that drop repeated events of a buffer with several shards: gateways must route the rows by the same key.

use crate::growth::{copy_to, name_shards};
use crate::support::{Log, Running, STREAM, Table, acknowledged_in, config, eventually, start};
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, Route, UniqueSetting, layout};
use millpond_storage::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn unique(instance: &str) -> Config {
    let setting = UniqueSetting {
        key: vec!["id".into()],
        window_ms: 3_600_000,
    };
    Config {
        unique: [(STREAM.to_owned(), setting)].into(),
        unique_file: "unique.toml".into(),
        growth_interval: Duration::from_secs(1),
        ..config(instance)
    }
}

async fn change(store: &Store, change: impl Fn(&Buffer) -> Buffer) {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await.unwrap().unwrap();
    let swapped = cas::swap(store, layout::BUFFER, Some(&found.version), change(&found.state)).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

pub(crate) async fn route(store: &Store, key: &str, shards: u32) {
    let key = vec![key.to_owned()];
    let routes = [(STREAM.into(), Arc::new(Route { key, shards }))].into();
    change(store, |buffer| buffer.route(&routes, 7).unwrap().unwrap()).await;
}

async fn end_route(store: &Store) {
    change(store, |buffer| buffer.unroute(&[STREAM.to_owned()], 7).unwrap()).await;
}

/// The same rows in two shards: each key is in the wrong one once.
async fn same_rows_in_two_shards() -> Log {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4, 2]).await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    log
}

/// The reason why a consumer ends, which it does soon.
async fn refusal(consumer: Running) -> ConsumeError {
    let ended = tokio::time::timeout(Duration::from_secs(120), consumer.task).await;
    let ended = ended.expect("the consumer goes on").expect("no panic");
    ended.expect_err("the consumer has not stopped")
}

fn words(error: &ConsumeError) -> String {
    assert!(matches!(error, ConsumeError::UniqueShards { .. }), "{error}");
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn several_shards_need_a_route_by_the_same_key() {
    let log = same_rows_in_two_shards().await;
    let table = Table::open("table");
    table.repeat_after(3);
    let refused = refusal(start(&log.store, unique("a"), &table)).await;
    let said = words(&refused);
    assert!(
        said.contains("has 2 shards") && said.contains("do not route its rows"),
        "{said}"
    );
    let command = format!(
        "Run `millpond buffer route --unique unique.toml --buffer {}`",
        log.store.url()
    );
    assert!(said.ends_with(&command), "{said}");

    route(&log.store, "number", 2).await;
    let refused = refusal(start(&log.store, unique("a"), &table)).await;
    let said = words(&refused);
    assert!(said.contains("by number, not by id"), "{said}");
    assert!(
        said.contains(&format!("`millpond buffer unroute {STREAM} ")),
        "{said}"
    );
    assert!(table.rows().is_empty(), "nothing was written");
    end_route(&log.store).await;

    route(&log.store, "id", 2).await;
    let mut registry = Registry::default();
    let consumer = Consumer::new(log.store.clone(), unique("a"), table.clone(), &mut registry).unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    eventually("both shards are written", async || {
        table.rows().values().sum::<u64>() == 6
    })
    .await;
    acknowledged_in(&log, STREAM, 2).await;
    shutdown.cancel();
    running.await.unwrap().unwrap();
    // The first rows of the three keys, in each shard.
    let expected = (0..3).map(|row| (format!("row-{row}"), 2)).collect();
    assert_eq!(table.rows(), expected);
    // Half of the twelve rows are in the other shard than their key's.
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let misrouted = "millpond_consumer_unique_misrouted_total{stream=\"otlp.logs\"} 6\n";
    assert!(text.contains(&misrouted.replace("otlp.logs", STREAM)), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_growth_ends_no_consumer_whose_streams_are_routed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4, 2]).await;
    let table = Table::open("table");
    table.repeat_after(3);
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 2).await;
    // The rows stay in the first shard.
    route(&log.store, "id", 1).await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 3).await;
    eventually("the new shard is read", async || {
        table.rows().values().sum::<u64>() == 6
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!consumer.task.is_finished());
    consumer.stop().await.unwrap();

    // The key must stay.
    let consumer = start(&log.store, unique("b"), &table);
    tokio::time::sleep(Duration::from_secs(5)).await;
    end_route(&log.store).await;
    let ended = refusal(consumer).await;
    assert!(words(&ended).contains("do not route its rows"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_growth_ends_a_consumer_whose_stream_is_not_routed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 1).await;
    name_shards(&log.store, 2).await;
    let ended = refusal(consumer).await;
    assert!(
        words(&ended).contains("millpond buffer route --unique unique.toml"),
        "{ended}"
    );
}
