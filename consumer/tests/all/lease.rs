//! Nobody sends without a lease: not a machine that stood still, not in the middle of a request, and no successor
//! before the leases of earlier owners have expired.

use crate::support::{Log, Machine, Table, acknowledged, config, eventually, start, start_on};
use millpond_consumer::Config;
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, LogNormal, Outage, S3Latency};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

fn one_writer() -> Config {
    Config {
        writers: 1,
        ..config("a")
    }
}

/// A way in which a machine can stand still.
type Stands = fn(&Machine, Duration);

/// On a suspended machine the wall clock may be wrong for a while. On a machine that a hypervisor paused, the uptime is
/// wrong.
const STANDS: [(&str, Stands); 2] = [("suspended", Machine::suspend), ("paused", Machine::pause)];

/// The machine stands still in the middle of a batch, for as long as the lease lasts.
#[tokio::test(start_paused = true)]
async fn a_machine_that_stood_still_begins_no_request_before_its_lease_is_renewed() {
    for (how, stand_still) in STANDS {
        let mut log = Log::new(Store::memory()).await;
        let (store, network) = log.store.behind(Faults::default());
        log.commit(&[20]).await;
        let table = Table::shut("table");
        let machine = Machine::with_one_thread();
        let lease = one_writer().lease;
        let consumer = start_on(&machine, &store, one_writer(), &table);
        eventually("the first request is in flight", async || table.begun() == 1).await;
        network.set_outage(Some(Outage::Fails));
        stand_still(&machine, lease);
        table.let_through(1);
        eventually("the first request has ended", async || {
            table.hanging() == 0 || table.begun() > 1
        })
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(
            table.begun(),
            1,
            "{how}: another owner may have the cursor and have sent the rest"
        );
        table.let_through(1 << 20);
        network.set_outage(None);
        acknowledged(&log, 1).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
    }
}

/// A request that arrives after the lease has expired may find its token forgotten.
#[tokio::test(start_paused = true)]
async fn a_request_under_way_is_dropped_when_the_lease_runs_out() {
    for (_, stand_still) in STANDS {
        let mut log = Log::new(Store::memory()).await;
        let (store, network) = log.store.behind(Faults::default());
        log.commit(&[3]).await;
        let table = Table::shut("table");
        let machine = Machine::with_one_thread();
        let consumer = start_on(&machine, &store, one_writer(), &table);
        eventually("a request is in flight", async || table.hanging() == 1).await;
        network.set_outage(Some(Outage::Fails));
        stand_still(&machine, one_writer().lease);
        eventually("the request is dropped", async || table.hanging() == 0).await;
        table.let_through(1 << 20);
        network.set_outage(None);
        acknowledged(&log, 1).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
    }
}

/// An operator resets the cursor, and the fenced owner does not know it. It may send until its lease expires.
#[tokio::test(start_paused = true)]
async fn a_successor_waits_for_the_leases_of_earlier_owners_after_a_reset() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::shut("table");
    let of = |instance: &str| Config {
        lease: Duration::from_secs(30),
        ..config(instance)
    };
    let first = start_on(&Machine::with_one_thread(), &log.store, of("a"), &table);
    eventually("a request is in flight", async || table.begun() == 1).await;
    first.crash().await;
    let reset = Instant::now();
    log.reset("default", 0).await;
    table.let_through(1 << 20);
    let second = start_on(&Machine::with_one_thread(), &log.store, of("b"), &table);
    eventually("the rows are there", async || table.rows().len() == 3).await;
    assert!(
        reset.elapsed() >= of("a").lease,
        "the first owner could still send, {:?} after the reset",
        reset.elapsed()
    );
    acknowledged(&log, 1).await;
    second.stop().await.unwrap();
}

/// Whenever a consumer is stopped, the next one does not wait for its lease.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_stopped_while_it_takes_the_cursor_gives_it_back() {
    let of = |instance| Config {
        lease: Duration::from_secs(600),
        ..config(instance)
    };
    for after_ms in (0..3_000).step_by(50) {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[1]).await;
        let slow = LogNormal {
            p50: Duration::from_millis(200),
            p99: Duration::from_millis(200),
        };
        let (store, _) = log.store.behind(Faults {
            latency: Some(S3Latency {
                get: slow,
                put: slow,
                ..S3Latency::default()
            }),
            ..Faults::default()
        });
        let table = Table::open("table");
        let consumer = start(&store, of("a"), &table);
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        let is_taken = log.cursor("default").await.is_some();
        consumer.stop().await.unwrap();
        if !is_taken {
            assert_eq!(
                table.rows(),
                BTreeMap::new(),
                "sent after the stop at {after_ms} ms"
            );
        }
        let consumer = start(&log.store, of("next"), &table);
        acknowledged(&log, 1).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
    }
}
