//! Tests when a consumer says that retention has dropped what it had not read.

use crate::support::{Log, STREAM, Table, acknowledged_in, config, eventually, start};
use millpond_storage::Store;
use millpond_storage::unreliable::{Fault, Faults, On};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the messages that say so.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let message = format!("{value:?}");
        if field.name() == "message" && message.contains("were trimmed before this consumer had read them") {
            self.0.lock().unwrap().push(message);
        }
    }
}

impl Subscriber for Said {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn what_a_swap_without_an_answer_acknowledged_is_not_reported_as_lost() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    let (store, network) = log.store.behind(Faults::default());
    let consumer = start(&store, config("a"), &table);
    log.commit_to(STREAM, &[1]).await;
    eventually("the batch is on its way", async || table.hanging() == 1).await;
    sleep(Duration::from_secs(1)).await;

    // The store has the position that the owner does not know yet, and garbage collection goes by the store.
    network.once(On::Update, "cursor", Fault::LandsUnreported);
    let mut read = network.hold(On::Get, "cursor");
    table.let_through(1 << 20);
    read.arrived().await;
    acknowledged_in(&log, STREAM, 1).await;
    log.change(|log| log.collect(1, 0)).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(said.count(), 0, "{:?}", said.0);
    read.release();
    log.commit_to(STREAM, &[1]).await;
    acknowledged_in(&log, STREAM, 2).await;
    assert_eq!(said.count(), 0, "{:?}", said.0);
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_retention_drops_is_reported_as_lost() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    log.commit_to(STREAM, &[1]).await;
    let consumer = start(&log.store, config("a"), &table);
    acknowledged_in(&log, STREAM, 1).await;
    consumer.stop().await.unwrap();
    log.commit_to(STREAM, &[1, 1]).await;
    log.change(|log| log.collect(2, 0)).await;
    let consumer = start(&log.store, config("b"), &table);
    acknowledged_in(&log, STREAM, 3).await;
    eventually("the loss is reported", async || said.count() == 1).await;
    consumer.stop().await.unwrap();
}
