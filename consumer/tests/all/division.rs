//! The processes of a consumer divide the shards among themselves, whatever happens to one of them or to their list.

use crate::support::{Log, Machine, Running, Table, config, eventually, start_on};
use millpond_consumer::gc::{GarbageCollector, GcConfig};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Buffer, Cursor, Members, layout};
use millpond_storage::{Cas, Store};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(15);

/// The settings of a process with this name.
fn process(instance: &str) -> Config {
    Config {
        lease: LEASE,
        poll_interval: Duration::from_millis(500),
        ack_interval: Duration::from_secs(1),
        ..config(instance)
    }
}

/// Starts a process on its own machine, whose uptime follows tokio's clock.
fn run(store: &Store, config: Config, table: &Arc<Table>) -> Running {
    start_on(&Machine::with_one_thread(), store, config, table)
}

/// A buffer in which every shard has the same log.
async fn buffer(shards: u32, segments: usize) -> Log {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&vec![1; segments]).await;
    let state = log.manifest().await.state;
    for shard in 1..shards {
        let mut copy = state.clone();
        for entry in &copy.tail {
            let found = log.store.get(&layout::segment(0, entry.segment)).await;
            let key = layout::segment(shard, entry.segment);
            let bytes = found.unwrap().unwrap().bytes;
            log.store.put_if_absent(&key, vec![bytes]).await.unwrap();
        }
        copy.shard = shard;
        let swapped = cas::swap(&log.store, &layout::manifest(shard), None, copy).await;
        assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    }
    if shards > 1 {
        name_shards(&log.store, shards).await;
    }
    log
}

async fn name_shards(store: &Store, shards: u32) {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await.unwrap().unwrap();
    let next = found.state.grow(shards, 7).unwrap().unwrap();
    let swapped = cas::swap(store, layout::BUFFER, Some(&found.version), next).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

/// Every row once from every shard.
fn all(log: &Log, shards: u64) -> BTreeMap<String, u64> {
    let rows = log.rows().into_iter();
    rows.map(|(row, times)| (row, times * shards)).collect()
}

/// The number of shards of each owner.
async fn owners(store: &Store, shards: u32) -> BTreeMap<String, usize> {
    let mut owners = BTreeMap::new();
    for shard in 0..shards {
        let found = cas::read::<Cursor>(store, &layout::cursor(shard, "default")).await;
        let ownership = found.unwrap().map(|found| found.state.ownership);
        if let Some(Ownership::Held { owner, .. }) = ownership {
            *owners.entry(owner).or_insert(0) += 1;
        }
    }
    owners
}

async fn divided(log: &Log, shards: u32, expected: &[(&str, usize)]) {
    let expected: BTreeMap<String, usize> = expected.iter().map(|(who, n)| ((*who).to_owned(), *n)).collect();
    eventually("the shards are divided", async || {
        owners(&log.store, shards).await == expected
    })
    .await;
}

async fn members(store: &Store) -> Option<cas::Snapshot<Members>> {
    cas::read(store, &layout::members("default")).await.unwrap()
}

/// A process that lives and takes nothing.
async fn beat(store: &Store, instance: &str) {
    loop {
        let found = members(store).await;
        let before = found.as_ref().map(|found| &found.state);
        let before = before
            .cloned()
            .unwrap_or_else(|| Members::new(uuid::Uuid::from_u128(42)));
        let version = found.map(|found| found.version);
        let next = before.beat(instance, []).stamped(7);
        if let Swap::Committed(_) =
            cas::swap(store, &layout::members("default"), version.as_ref(), next).await
        {
            return;
        }
    }
}

async fn two(log: &Log, shards: u32, table: &Arc<Table>) -> (Running, Running) {
    let a = run(&log.store, process("a"), table);
    divided(log, shards, &[("a", shards as usize)]).await;
    let b = run(&log.store, process("b"), table);
    let half = shards as usize / 2;
    divided(log, shards, &[("a", half), ("b", half)]).await;
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_joins_gets_its_share_and_rows_arrive_once() {
    let log = buffer(6, 30).await;
    let table = Table::open("table");
    let (a, b) = two(&log, 6, &table).await;
    let c = run(&log.store, process("c"), &table);
    divided(&log, 6, &[("a", 2), ("b", 2), ("c", 2)]).await;
    table.has(6 * 30).await;
    for each in [a, b, c] {
        each.stop().await.unwrap();
    }
    assert_eq!(table.rows(), all(&log, 6));
    assert!(members(&log.store).await.unwrap().state.beats.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_others_take_the_shards_of_a_process_that_stops() {
    let log = buffer(4, 3).await;
    let table = Table::open("table");
    let (a, b) = two(&log, 4, &table).await;
    let stopped = Instant::now();
    b.stop().await.unwrap();
    divided(&log, 4, &[("a", 4)]).await;
    assert!(stopped.elapsed() < LEASE / 5, "{:?}", stopped.elapsed());
    a.stop().await.unwrap();
    assert_eq!(table.rows(), all(&log, 4));
}

#[tokio::test(start_paused = true)]
async fn the_others_take_the_shards_of_a_process_that_dies_within_a_lease() {
    let log = buffer(4, 3).await;
    let table = Table::open("table");
    let machine = Machine::with_one_thread();
    let a = start_on(&machine, &log.store, process("a"), &table);
    divided(&log, 4, &[("a", 4)]).await;
    let b = run(&log.store, process("b"), &table);
    divided(&log, 4, &[("a", 2), ("b", 2)]).await;
    let died = Instant::now();
    b.crash().await;
    // Its leases run out by the wall clock, which does not follow tokio's.
    tokio::time::sleep(LEASE).await;
    machine.pause(LEASE);
    divided(&log, 4, &[("a", 4)]).await;
    assert!(
        died.elapsed() <= LEASE + Duration::from_secs(2),
        "they are taken after {:?}",
        died.elapsed()
    );
    a.stop().await.unwrap();
    assert_eq!(table.rows(), all(&log, 4));
}

/// It has no right to the sink, for instance, or hangs.
#[tokio::test(start_paused = true)]
async fn a_member_that_takes_nothing_keeps_no_shard_from_the_others() {
    let log = buffer(4, 3).await;
    let store = log.store.clone();
    let ghost = tokio::spawn(async move {
        loop {
            beat(&store, "ghost").await;
            tokio::time::sleep(LEASE / 3).await;
        }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let table = Table::open("table");
    let a = run(&log.store, process("a"), &table);
    divided(&log, 4, &[("a", 2)]).await;
    divided(&log, 4, &[("a", 4)]).await;
    table.has(12).await;
    for _ in 0..16 {
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(owners(&log.store, 4).await, BTreeMap::from([("a".to_owned(), 4)]));
    }
    ghost.abort();
    a.stop().await.unwrap();
    assert_eq!(table.rows(), all(&log, 4));
}

/// Neither damage nor another buffer's list stops the work, and the processes write the list anew.
#[tokio::test(start_paused = true)]
async fn a_damaged_list_is_written_anew() {
    let log = buffer(4, 3).await;
    let key = layout::members("default");
    log.store
        .put_if_absent(&key, vec!["damaged".into()])
        .await
        .unwrap();
    let table = Table::open("table");
    let (a, b) = two(&log, 4, &table).await;
    let found = members(&log.store).await.unwrap();
    let damaged = log
        .store
        .compare_and_set(&key, Some(&found.version), "damaged".into())
        .await;
    assert!(matches!(damaged, Cas::Committed(_) | Cas::Mismatch));
    tokio::time::sleep(3 * LEASE).await;
    divided(&log, 4, &[("a", 2), ("b", 2)]).await;
    for each in [a, b] {
        each.stop().await.unwrap();
    }
    assert_eq!(table.rows(), all(&log, 4));
}

#[tokio::test(start_paused = true)]
async fn one_shard_needs_no_list() {
    let log = buffer(1, 3).await;
    let table = Table::open("table");
    let a = run(&log.store, process("a"), &table);
    divided(&log, 1, &[("a", 1)]).await;
    let b = run(&log.store, process("b"), &table);
    tokio::time::sleep(3 * LEASE).await;
    assert_eq!(owners(&log.store, 1).await, BTreeMap::from([("a".to_owned(), 1)]));
    assert!(members(&log.store).await.is_none());
    for each in [a, b] {
        each.stop().await.unwrap();
    }
}

/// Processes of a newer program keep it, and divide the shards by it.
#[tokio::test(start_paused = true)]
async fn the_list_of_a_newer_program_is_left_alone() {
    let log = buffer(2, 3).await;
    let key = layout::members("default");
    let mut newer = cas::Object::encode(&Members::new(uuid::Uuid::from_u128(42))).to_vec();
    newer[4] += 1;
    log.store
        .put_if_absent(&key, vec![newer.clone().into()])
        .await
        .unwrap();
    let table = Table::open("table");
    let a = run(&log.store, process("a"), &table);
    divided(&log, 2, &[("a", 2)]).await;
    table.has(6).await;
    tokio::time::sleep(3 * LEASE).await;
    let kept = log.store.get(&key).await.unwrap().map(|found| found.bytes);
    assert_eq!(kept.as_deref(), Some(&newer[..]), "the newer list is gone");
    a.stop().await.unwrap();
    assert_eq!(table.rows(), all(&log, 2));
}

/// A standby that has never owned the shard has seen the consumer, too: it does not begin it again.
#[tokio::test(start_paused = true)]
async fn a_standby_ends_with_its_removed_consumer() {
    let log = buffer(2, 3).await;
    let table = Table::open("table");
    let (a, b) = two(&log, 2, &table).await;
    let c = run(&log.store, process("c"), &table);
    tokio::time::sleep(LEASE).await;
    let c_owns = owners(&log.store, 2).await.contains_key("c");
    assert!(!c_owns, "there are two shards");
    log.remove_from(1, "default").await;
    log.remove("default").await;
    for (name, each) in [("a", a), ("b", b), ("c", c)] {
        let ended = tokio::time::timeout(3 * LEASE, each.task).await;
        let ended = ended.unwrap_or_else(|_| panic!("{name} goes on without its consumer"));
        let ended = ended.unwrap();
        assert!(matches!(ended, Err(ConsumeError::Removed { .. })), "{ended:?}");
    }
    for shard in 0..2 {
        let found = cas::read::<Cursor>(&log.store, &layout::cursor(shard, "default")).await;
        let removed = found.unwrap().unwrap().state.is_removed();
        assert!(removed, "shard {shard} keeps its log for a removed consumer");
    }
}

/// A process may write the list after the removal, before it notices.
#[tokio::test(start_paused = true)]
async fn garbage_collection_deletes_the_lists_of_removed_consumers_alone() {
    let log = buffer(2, 3).await;
    let table = Table::open("table");
    let (a, b) = two(&log, 2, &table).await;
    for consumer in ["removed", "unknown"] {
        let list = Members::new(uuid::Uuid::from_u128(42)).beat("a", []);
        let written = cas::create_once(&log.store, &layout::members(consumer), list).await;
        written.unwrap();
    }
    let policy = config("x").policy("table", 1);
    let tombstone = Cursor::new(uuid::Uuid::from_u128(42), 0, "removed", 0, policy).remove();
    let written = cas::create_once(&log.store, &layout::cursor(0, "removed"), tombstone).await;
    written.unwrap();
    let config = GcConfig {
        interval: Duration::from_secs(1),
        grace: Duration::from_secs(1),
        max_age: None,
    };
    let mut gc = GarbageCollector::new(log.store.clone(), config, &mut Registry::default());
    let lists = async || {
        let mut found = Vec::new();
        for consumer in ["default", "removed", "unknown"] {
            let list = log.store.get(&layout::members(consumer)).await.unwrap();
            found.extend(list.map(|_| consumer));
        }
        found
    };
    assert_eq!(gc.round(true).await.unwrap().member_lists, 2);
    assert_eq!(lists().await, ["default", "removed", "unknown"], "a dry round");
    assert_eq!(gc.round(false).await.unwrap().member_lists, 2);
    assert_eq!(lists().await, ["default"], "the lists after the round");
    assert_eq!(gc.round(false).await.unwrap().member_lists, 0);
    for each in [a, b] {
        each.stop().await.unwrap();
    }
}

/// A process that has seen the growth gives a shard to one that has not.
#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_know_of_a_growth_learns_of_it_from_a_free_shard() {
    let log = buffer(2, 3).await;
    let table = Table::open("table");
    let at_once = Config {
        growth_interval: Duration::from_secs(2),
        ..process("a")
    };
    let late = Config {
        growth_interval: Duration::from_secs(3_600),
        ..process("b")
    };
    let a = run(&log.store, at_once, &table);
    divided(&log, 2, &[("a", 2)]).await;
    let b = run(&log.store, late, &table);
    divided(&log, 2, &[("a", 1), ("b", 1)]).await;
    name_shards(&log.store, 3).await;
    let mut free = Duration::ZERO;
    let grown = Instant::now();
    while grown.elapsed() < 4 * LEASE {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let owned: usize = owners(&log.store, 2).await.values().sum();
        free += Duration::from_millis(100) * u32::from(owned < 2);
    }
    assert!(free > Duration::ZERO, "no shard moved");
    assert!(free < LEASE / 3, "a shard had no owner for {free:?}");
    divided(&log, 3, &[("a", 1), ("b", 2)]).await;
    for each in [a, b] {
        each.stop().await.unwrap();
    }
    assert_eq!(table.rows(), all(&log, 2));
}
