//! A second consumer of the same tables: whoever starts it is told, and nothing is there twice.

use crate::support::{Log, Machine, Running, Table, config, eventually, read_by, start, start_on};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::Cursor;
use millpond_manifest::{Buffer, cas, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Fault, Faults, HeldRequest, On, S3Latency, WriteFaults};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

fn named(consumer: &str) -> Config {
    Config {
        consumer: consumer.to_owned(),
        ..config(consumer)
    }
}

/// A table that can be told from others.
fn table(identity: &str) -> Arc<Table> {
    let table = Table::open(identity);
    table.identify(&[identity]);
    table
}

/// A machine whose clock shows a time after the end of every claim of the others.
fn ahead() -> Machine {
    let machine = Machine::new();
    machine.pause(Duration::from_secs(3_600));
    machine
}

/// Starts a consumer whose next such request for its cursor waits for the test.
async fn start_until(log: &Log, on: On, consumer: &str, table: &Arc<Table>) -> (Running, HeldRequest) {
    let (store, network) = log.store.behind(Faults::default());
    let held = network.hold(on, &format!("{consumer}/cursor"));
    let running = start(&store, named(consumer), table);
    (running, arrives(held).await)
}

async fn arrives(mut request: HeldRequest) -> HeldRequest {
    request.arrived().await;
    request
}

async fn fails(consumer: Running) -> String {
    match consumer.task.await.unwrap() {
        Err(error @ ConsumeError::SharedTables { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The state of each consumer's cursor.
async fn cursors(log: &Log, names: &[&str]) -> BTreeMap<String, Option<Cursor>> {
    let mut cursors = BTreeMap::new();
    for name in names {
        cursors.insert((*name).to_owned(), log.cursor(name).await);
    }
    cursors
}

async fn is_checked(log: &Log, consumer: &str) {
    eventually("its tables are checked", async || {
        let cursor = log.cursor(consumer).await;
        cursor.is_some_and(|cursor| !cursor.tables.tables.is_empty() && cursor.tables.claim.is_none())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_second_consumer_of_a_table_does_not_start() {
    let mut log = Log::new(Store::memory()).await;
    let table = table("one");
    log.commit(&[3]).await;
    let first = start(&log.store, named("a"), &table);
    read_by(&log, "a", 1).await;
    let said = fails(start(&log.store, named("b"), &table)).await;
    assert_eq!(
        said,
        "consumer b would write to table one, and consumer a of this buffer writes there already, so that every record would be \
         there twice: continue a with --consumer a, give this one another database (--database), or start it with --share-tables \
         if the two read different streams; `millpond consumer remove a` if a will not come back"
    );
    assert_eq!(log.cursor("b").await, None);
    first.stop().await.unwrap();
    // Nor while the first is away.
    fails(start(&log.store, named("b"), &table)).await;
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn it_starts_with_other_tables_or_where_the_first_was_removed() {
    let mut log = Log::new(Store::memory()).await;
    let (one, two) = (table("one"), table("two"));
    log.commit(&[3]).await;
    let first = start(&log.store, named("a"), &one);
    read_by(&log, "a", 1).await;
    let second = start(&log.store, named("b"), &two);
    read_by(&log, "b", 1).await;
    second.stop().await.unwrap();
    first.stop().await.unwrap();
    log.remove("a").await;
    let third = start(&log.store, named("c"), &one);
    read_by(&log, "c", 1).await;
    third.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_was_told_to_share_does_and_need_not_be_told_again() {
    let mut log = Log::new(Store::memory()).await;
    let table = table("one");
    let shares = Config {
        share_tables: true,
        ..named("b")
    };
    log.commit(&[3]).await;
    let first = start(&log.store, named("a"), &table);
    read_by(&log, "a", 1).await;
    for config in [shares, named("b")] {
        let second = start(&log.store, config, &table);
        log.commit(&[1]).await;
        read_by(&log, "b", log.rows().len() as u64 - 2).await;
        second.stop().await.unwrap();
        assert!(log.cursor("b").await.unwrap().tables.shared);
    }
    first.stop().await.unwrap();
    let again = start(&log.store, named("a"), &table);
    is_checked(&log, "a").await;
    again.stop().await.unwrap();
}

/// It may go back to its own.
#[tokio::test(start_paused = true)]
async fn a_consumer_does_not_move_to_a_table_of_another() {
    let mut log = Log::new(Store::memory()).await;
    let (one, two) = (table("one"), table("two"));
    log.commit(&[3]).await;
    for (name, table) in [("a", &one), ("b", &two)] {
        let consumer = start(&log.store, named(name), table);
        read_by(&log, name, 1).await;
        consumer.stop().await.unwrap();
    }
    let before = log.cursor("b").await.unwrap();
    fails(start(&log.store, named("b"), &one)).await;
    assert_eq!(log.cursor("b").await.unwrap(), before);
    log.commit(&[1]).await;
    let second = start(&log.store, named("b"), &two);
    read_by(&log, "b", 2).await;
    second.stop().await.unwrap();
}

/// Neither sees the other before it has made its cursor.
#[tokio::test(start_paused = true)]
async fn of_two_first_starts_at_once_one_goes_on() {
    for first in ["a", "b"] {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[3]).await;
        let (store, network) = log.store.behind(Faults::default());
        let table = table("one");
        let second = if first == "a" { "b" } else { "a" };
        let mut creations = Vec::new();
        let mut consumers = Vec::new();
        for name in [first, second] {
            let mut creation = network.hold(On::Create, "cursor");
            consumers.push(start(&store, named(name), &table));
            creation.arrived().await;
            creations.push(creation);
        }
        // Both have looked once, and look again when both have made their cursors.
        let mut looks = Vec::new();
        for creation in creations {
            let mut look = network.hold(On::List, "consumers");
            creation.release();
            look.arrived().await;
            looks.push(look);
        }
        looks.into_iter().for_each(HeldRequest::release);
        let (other, one) = (consumers.pop().unwrap(), consumers.pop().unwrap());
        let (a, b) = if first == "a" { (one, other) } else { (other, one) };
        let said = fails(b).await;
        assert!(
            said.starts_with("consumer b would write to table one, and consumer a"),
            "{said}"
        );
        read_by(&log, "a", 1).await;
        a.stop().await.unwrap();
        let cursors = cursors(&log, &["a", "b"]).await;
        assert!(cursors["b"].as_ref().unwrap().is_removed());
        assert_eq!(table.rows(), log.rows());
    }
}

/// The lesser name waits for the greater one, which looked before there was anything to see.
#[tokio::test(start_paused = true)]
async fn whoever_has_looked_in_time_goes_on_whatever_its_name() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = table("one");
    let (lesser, creation) = start_until(&log, On::Create, "a", &table).await;
    // It has claimed the table and looked, and cannot make its claim firm.
    let (greater, confirmation) = start_until(&log, On::Update, "b", &table).await;
    creation.release();
    eventually("the lesser has made its cursor", async || {
        log.cursor("a").await.is_some()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!lesser.task.is_finished(), "it cannot know yet");
    assert_eq!(table.rows().len(), 0);
    confirmation.release();
    fails(lesser).await;
    read_by(&log, "b", 1).await;
    greater.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// It has claimed the table. Nobody waits for it after its claim has expired, and it looks again when it returns.
#[tokio::test(start_paused = true)]
async fn a_crash_before_the_claim_is_firm_takes_no_table_and_keeps_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = table("one");
    let (crashes, firm) = start_until(&log, On::Update, "a", &table).await;
    crashes.crash().await;
    drop(firm);
    // Garbage collection keeps nothing for a tombstone.
    assert!(log.cursor("a").await.unwrap().is_removed());
    let later = ahead();
    let other = start_on(&later, &log.store, named("b"), &table);
    read_by(&log, "b", 1).await;
    fails(start(&log.store, named("a"), &table)).await;
    other.stop().await.unwrap();
    let refused = log.cursor("a").await.unwrap();
    assert!(refused.is_removed() && refused.tables.claim.is_none());
    assert_eq!(table.rows(), log.rows());
}

/// Its clock or its network was slow: nobody waited for its claim any more, and it did not know.
#[tokio::test(start_paused = true)]
async fn a_claim_that_another_has_ignored_gives_no_table() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = table("one");
    let (slow, firm) = start_until(&log, On::Update, "a", &table).await;
    let other = start_on(&ahead(), &log.store, named("b"), &table);
    read_by(&log, "b", 1).await;
    firm.release();
    fails(slow).await;
    other.stop().await.unwrap();
    assert!(log.cursor("a").await.unwrap().is_removed());
    assert_eq!(table.rows(), log.rows());
}

/// By its clock the claim ends in ten days.
#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_a_lease_for_a_claim_that_does_not_change() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = table("one");
    let mut firm = network.hold(On::Update, "b/cursor");
    let machine = Machine::new();
    machine.pause(Duration::from_secs(10 * 86_400));
    let crashes = start_on(&machine, &store, named("b"), &table);
    firm.arrived().await;
    crashes.crash().await;
    drop(firm);
    let lesser = Config {
        lease: Duration::from_secs(10),
        ..named("a")
    };
    let lesser = start(&log.store, lesser, &table);
    eventually("it waits", async || !lesser.readiness.waiting_for().is_empty()).await;
    let waits = lesser.readiness.waiting_for().join("; ");
    assert!(
        waits.contains("expires in 10 s") && waits.contains("`millpond consumer remove b`"),
        "{waits}"
    );
    read_by(&log, "a", 1).await;
    lesser.stop().await.unwrap();
}

/// From then on only an operator ends it, because it may already have looked for the last time.
#[tokio::test(start_paused = true)]
async fn nobody_ignores_a_firm_claim() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = table("one");
    let (firm, mut taken) = (
        network.hold(On::Update, "b/cursor"),
        network.hold(On::Update, "b/cursor"),
    );
    let slow = start(&store, named("b"), &table);
    arrives(firm).await.release();
    taken.arrived().await;
    let error = fails(start_on(&ahead(), &log.store, named("a"), &table)).await;
    assert!(
        error.contains("consumer b of this buffer asks for it too"),
        "{error}"
    );
    taken.release();
    read_by(&log, "b", 1).await;
    slow.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_consumer_renews_its_claim_and_names_the_other() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = table("one");
    let (greater, firm) = start_until(&log, On::Update, "b", &table).await;
    let machine = Machine::new();
    let lesser = start_on(&machine, &log.store, named("a"), &table);
    eventually("it waits", async || !lesser.readiness.waiting_for().is_empty()).await;
    let [waits] = &lesser.readiness.waiting_for()[..] else {
        panic!("one wait")
    };
    assert!(
        waits.starts_with("tables of consumer a: consumer b asks for table one too: it has them or gives up, or its claim expires in "),
        "{waits}"
    );
    let expires = async || log.cursor("a").await.unwrap().tables.claim.unwrap().expires_at_ms;
    let first = expires().await;
    machine.pause(Duration::from_secs(40));
    eventually("it renews its claim", async || expires().await > first).await;
    assert_eq!(table.rows().len(), 0);
    firm.release();
    fails(lesser).await;
    read_by(&log, "b", 1).await;
    greater.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_stops_while_it_waits_leaves_no_claim() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = table("one");
    let (greater, firm) = start_until(&log, On::Update, "b", &table).await;
    let lesser = start(&log.store, named("a"), &table);
    eventually("it waits", async || !lesser.readiness.waiting_for().is_empty()).await;
    lesser.stop().await.unwrap();
    assert_eq!(log.cursor("a").await.unwrap().tables.claim, None);
    firm.release();
    read_by(&log, "b", 1).await;
    greater.stop().await.unwrap();
}

/// While a consumer with data asks for another table, it keeps its own.
#[tokio::test(start_paused = true)]
async fn a_claim_gives_no_earlier_table_away_and_no_position() {
    let mut log = Log::new(Store::memory()).await;
    let (one, two) = (table("one"), table("two"));
    log.commit(&[3]).await;
    let first = start(&log.store, named("b"), &two);
    read_by(&log, "b", 1).await;
    first.stop().await.unwrap();
    let (store, network) = log.store.behind(Faults::default());
    let claim = network.hold(On::Update, "b/cursor");
    let mut firm = network.hold(On::Update, "b/cursor");
    let moves = start(&store, named("b"), &one);
    arrives(claim).await.release();
    firm.arrived().await;
    log.reset("b", 1).await;
    let error = fails(start_on(&ahead(), &log.store, named("c"), &two)).await;
    assert!(
        error.contains("consumer b of this buffer writes there already"),
        "{error}"
    );
    let other = start_on(&ahead(), &log.store, named("a"), &one);
    read_by(&log, "a", 1).await;
    firm.release();
    fails(moves).await;
    other.stop().await.unwrap();
    let cursor = log.cursor("b").await.unwrap();
    assert_eq!((cursor.is_removed(), cursor.next("any")), (false, 1));
    assert_eq!(cursor.tables.tables[0].name, "two");
}

/// It was told for one table, and nobody else has the other.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_shares_does_so_for_good() {
    let mut log = Log::new(Store::memory()).await;
    let (one, two) = (table("one"), table("two"));
    let shares = Config {
        share_tables: true,
        ..named("b")
    };
    log.commit(&[3]).await;
    let first = start(&log.store, named("a"), &one);
    read_by(&log, "a", 1).await;
    for (config, table) in [(shares, &one), (named("b"), &two), (named("b"), &one)] {
        let second = start(&log.store, config, table);
        log.commit(&[1]).await;
        read_by(&log, "b", log.rows().len() as u64 - 2).await;
        second.stop().await.unwrap();
        assert!(log.cursor("b").await.unwrap().tables.shared);
    }
    first.stop().await.unwrap();
}

/// A store with a buffer of two shards.
async fn two_shards() -> Store {
    let store = Store::memory();
    let id = Uuid::from_u128(42);
    let buffer = Buffer::new(id, 2);
    cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
    store
}

/// Each would get the table in one shard and lose it in the other.
#[tokio::test(start_paused = true)]
async fn the_first_shard_decides_for_all() {
    let store = two_shards().await;
    let table = table("one");
    let (slow, network) = store.behind(Faults::default());
    let mut claim = network.hold(On::Create, "shards/0000/consumers/a/cursor");
    let lesser = start(&slow, named("a"), &table);
    claim.arrived().await;
    let greater = start(&store, named("b"), &table);
    let cursor = async |shard, consumer| {
        let key = layout::cursor(shard, consumer);
        cas::read::<Cursor>(&store, &key)
            .await
            .unwrap()
            .map(|found| found.state)
    };
    eventually("it owns both shards", async || {
        let both = (cursor(0, "b").await, cursor(1, "b").await);
        matches!(both, (Some(one), Some(other)) if one.epoch + other.epoch == 2)
    })
    .await;
    assert!(cursor(1, "a").await.is_none());
    claim.release();
    fails(lesser).await;
    assert!(cursor(1, "a").await.is_none());
    greater.stop().await.unwrap();
}

/// It slept before it opened its cursor in the second shard, and another consumer may have the table now.
#[tokio::test(start_paused = true)]
async fn a_removed_consumer_begins_in_no_other_shard() {
    let store = two_shards().await;
    let (slow, network) = store.behind(Faults::default());
    let mut opening = network.hold(On::Create, "shards/0001/consumers/a/cursor");
    let mut first = network.hold(On::Get, "shards/0001/manifest");
    let sleeps = start(&slow, named("a"), &table("one"));
    first.arrived().await;
    let key = layout::cursor(0, "a");
    eventually("it owns the first shard", async || {
        let found = cas::read::<Cursor>(&store, &key).await.unwrap();
        found.is_some_and(|found| found.state.epoch > 0)
    })
    .await;
    let found = cas::read::<Cursor>(&store, &key).await.unwrap().unwrap();
    let removed = cas::swap(&store, &key, Some(&found.version), found.state.remove()).await;
    assert!(matches!(removed, cas::Swap::Committed(_)), "{removed:?}");
    first.release();
    eventually("it ends", async || sleeps.task.is_finished()).await;
    let created = timeout(Duration::ZERO, opening.arrived()).await;
    assert!(created.is_err(), "it begins in the second shard");
}

/// It was admitted with a table, and slept until another consumer had that.
#[tokio::test(start_paused = true)]
async fn a_standby_of_a_removed_consumer_does_not_write_to_tables_of_another() {
    let mut log = Log::new(Store::memory()).await;
    let (one, two) = (table("one"), table("two"));
    log.commit(&[3]).await;
    let (slow, network) = log.store.behind(Faults::default());
    let [firm, taken, mut opening] = [(); 3].map(|()| network.hold(On::Update, "a/cursor"));
    let sleeps = start(&slow, named("a"), &one);
    for request in [firm, taken] {
        arrives(request).await.release();
    }
    opening.arrived().await;
    log.remove("a").await;
    let again = start(&log.store, named("a"), &two);
    read_by(&log, "a", 1).await;
    again.stop().await.unwrap();
    let other = start(&log.store, named("b"), &one);
    read_by(&log, "b", 1).await;
    opening.release();
    eventually("it ends", async || sleeps.task.is_finished()).await;
    let ended = sleeps.task.await.unwrap();
    assert!(matches!(ended, Err(ConsumeError::Removed { .. })), "{ended:?}");
    other.stop().await.unwrap();
}

/// An older program owned its cursor while it stood by.
#[tokio::test(start_paused = true)]
async fn an_owner_writes_down_tables_that_an_older_program_dropped() {
    let mut log = Log::new(Store::memory()).await;
    let table = table("one");
    log.commit(&[3]).await;
    let (slow, network) = log.store.behind(Faults::default());
    let [firm, taken, mut opening] = [(); 3].map(|()| network.hold(On::Update, "a/cursor"));
    let stands_by = start(&slow, named("a"), &table);
    for request in [firm, taken] {
        arrives(request).await.release();
    }
    opening.arrived().await;
    log.change_cursor("a", |cursor| Cursor {
        tables: Default::default(),
        ..cursor.clone()
    })
    .await;
    opening.release();
    read_by(&log, "a", 1).await;
    assert_eq!(log.cursor("a").await.unwrap().tables.tables[0].name, "one");
    stands_by.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_claim_is_not_asked_all_the_time() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (store, network) = log.store.behind(Faults {
        write: WriteFaults {
            lost: 1.0,
            ..WriteFaults::default()
        },
        latency: Some(S3Latency::default()),
        ..Faults::default()
    });
    let asks = start(&store, named("a"), &table("one"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lost = network.injected().lost;
    assert!((5..100).contains(&lost), "{lost} claims in a minute");
    asks.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_may_not_be_read_hides_no_other() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (one, two) = (table("one"), table("two"));
    for (name, table) in [("a", &one), ("b", &two)] {
        let consumer = start(&log.store, named(name), table);
        read_by(&log, name, 1).await;
        consumer.stop().await.unwrap();
    }
    let (store, network) = log.store.behind(Faults::default());
    // As many as it looks.
    for _ in 0..3 {
        network.once(On::Get, "a/cursor", Fault::Denied);
    }
    let refused = start(&store, named("c"), &two);
    eventually("it ends", async || refused.task.is_finished()).await;
    fails(refused).await;
}

/// It has batches in doubt that only its earlier sink can write.
#[tokio::test(start_paused = true)]
async fn settings_that_cannot_write_take_no_table() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let first = start(&log.store, named("a"), &table("one"));
    read_by(&log, "a", 1).await;
    first.crash().await;
    let before = log.cursor("a").await.unwrap();
    let two = table("two");
    let moves = start(&log.store, named("a"), &two).task.await.unwrap();
    assert!(matches!(moves, Err(ConsumeError::PinnedSink { .. })), "{moves:?}");
    assert_eq!(log.cursor("a").await.unwrap(), before);
    let other = start(&log.store, named("b"), &two);
    read_by(&log, "b", 1).await;
    other.stop().await.unwrap();
}

/// The owner may still release the cursor, as in an upgrade that changes the schema.
#[tokio::test(start_paused = true)]
async fn a_standby_with_other_settings_waits_for_the_owner() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let owner = start(&log.store, named("a"), &table("one"));
    read_by(&log, "a", 1).await;
    let upgraded = Config {
        consumer: "a".to_owned(),
        ..config("upgraded")
    };
    let standby = start(&log.store, upgraded, &table("two"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!standby.task.is_finished());
    owner.stop().await.unwrap();
    log.commit(&[1]).await;
    read_by(&log, "a", 2).await;
    standby.stop().await.unwrap();
}

/// A server joins the cluster of a table that both have.
#[tokio::test(start_paused = true)]
async fn a_shared_table_may_gain_an_identity() {
    for restarts in [["a", "b"], ["b", "a"]] {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[3]).await;
        let table = table("one");
        let shares = Config {
            share_tables: true,
            ..named("b")
        };
        for (name, config) in [("a", named("a")), ("b", shares)] {
            let consumer = start(&log.store, config, &table);
            read_by(&log, name, 1).await;
            consumer.stop().await.unwrap();
        }
        table.identify(&["one", "joined"]);
        for name in restarts {
            let consumer = start(&log.store, named(name), &table);
            eventually("the new identity is known", async || {
                let cursor = log.cursor(name).await.unwrap();
                cursor.tables.tables[0].identities.contains("joined")
            })
            .await;
            consumer.stop().await.unwrap();
        }
    }
}

/// A person made it a path to another consumer's table.
#[tokio::test(start_paused = true)]
async fn a_known_table_that_leads_to_a_table_of_another_is_noticed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (one, two) = (table("one"), table("two"));
    for (name, table) in [("a", &one), ("b", &two)] {
        let consumer = start(&log.store, named(name), table);
        read_by(&log, name, 1).await;
        consumer.stop().await.unwrap();
    }
    two.identify(&["two", "one"]);
    let refused = start(&log.store, named("b"), &two);
    eventually("it ends", async || refused.task.is_finished()).await;
    fails(refused).await;
    two.identify(&["two", "three"]);
    let consumer = start(&log.store, named("b"), &two);
    eventually("the new identity is known", async || {
        let cursor = log.cursor("b").await.unwrap();
        cursor.tables.tables[0].identities.contains("three")
    })
    .await;
    consumer.stop().await.unwrap();
}

/// A program that did not know of this wrote no tables down.
#[tokio::test(start_paused = true)]
async fn the_cursor_of_an_older_program_goes_on() {
    let mut log = Log::new(Store::memory()).await;
    let table = table("one");
    log.commit(&[3]).await;
    for name in ["a", "b"] {
        let shares = Config {
            share_tables: true,
            ..named(name)
        };
        let consumer = start(&log.store, shares, &table);
        read_by(&log, name, 1).await;
        consumer.stop().await.unwrap();
        log.change_cursor(name, |cursor| Cursor {
            tables: Default::default(),
            ..cursor.clone()
        })
        .await;
    }
    for name in ["a", "b"] {
        let consumer = start(&log.store, named(name), &table);
        is_checked(&log, name).await;
        consumer.stop().await.unwrap();
    }
}
