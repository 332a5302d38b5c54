//! A consumer that falls behind names the resource that limits it, until its backlog grows no more.

use crate::support::{Log, Machine, Table, config};
use millpond_consumer::{Config, Consumer};
use millpond_storage::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Returns the resources whose metric is 1.
fn bottlenecks(registry: &Registry) -> Vec<String> {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("millpond_consumer_bottleneck{resource=\""))
        .filter_map(|line| Some(line.strip_suffix("\"} 1")?.to_owned()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn writers_that_all_wait_for_the_sink_are_the_bottleneck_while_the_backlog_grows() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    let config = Config {
        // One INSERT per segment.
        batch_records: 10_000,
        chunk_rows: 100_000,
        ..config("a")
    };
    let mut registry = Registry::default();
    let consumer = Consumer::new(log.store.clone(), config, table, &mut registry)
        .unwrap()
        .with_environment(Arc::new(Machine::with_one_thread()));
    let task = tokio::spawn(consumer.run(CancellationToken::new()));
    let shown = async |log: &Log| log.cursor("default").await.unwrap().waiting_for;

    // More than 64 KiB in half a minute.
    for _ in 0..70 {
        log.commit(&[20_000]).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The cursor is written every third of a lease at least.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(bottlenecks(&registry), ["writers"]);
    let waits = shown(&log).await;
    let [sentence] = &waits[..] else {
        panic!("one reason: {waits:?}")
    };
    assert!(
        sentence.starts_with("it falls behind: all writers (2) have an INSERT in flight in ")
            && sentence.contains("raise --writers"),
        "{sentence}"
    );

    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(bottlenecks(&registry), [""; 0], "the backlog grows no more");
    assert_eq!(shown(&log).await, [""; 0]);
    task.abort();
}
