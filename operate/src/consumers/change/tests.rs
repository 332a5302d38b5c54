use super::*;
use millpond_manifest::cursor::{NO_UNIQUE, Opening};
use millpond_manifest::{Buffer, TableClaim};
use millpond_runtime::SystemEnvironment;

fn selection(force: bool) -> Selection {
    Selection {
        consumer: "e2e".into(),
        shard: None,
        force,
    }
}

fn policy(sink: &str) -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1,
        chunk_rows: 1,
        chunk_bytes: 1,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: sink.into(),
        schema_version: 2,
    }
}

/// A cursor of this name that was opened at a time (unix ms), for a minute.
fn opened(name: &str, now_ms: u64) -> Cursor {
    let policy = policy("clickhouse:otel.otel_logs");
    let opening = Opening {
        owner: "somebody",
        id: 7,
        now_ms,
        lease_ms: 60_000,
        policy: &policy,
        unique: &NO_UNIQUE,
        take_over: false,
    };
    let cursor = Cursor::new(Default::default(), 0, name, 0, policy.clone());
    cursor.open(&opening).expect("nobody holds it").state
}

fn released(name: &str) -> Cursor {
    let mut cursor = opened(name, 1);
    cursor.release(0);
    cursor
}

/// A store with the consumer's cursor, released, and its repair's.
async fn store(repair: Cursor) -> (Store, Snapshot<Cursor>) {
    let store = Store::memory();
    let buffer = Buffer::new(Default::default(), 1);
    cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
    for cursor in [released("e2e"), repair] {
        let key = layout::cursor(0, &cursor.consumer);
        assert!(matches!(
            cas::swap(&store, &key, None, cursor).await,
            Swap::Committed(_)
        ));
    }
    let consumer = read(&store, "e2e").await;
    (store, consumer)
}

async fn read(store: &Store, name: &str) -> Snapshot<Cursor> {
    cas::read(store, &layout::cursor(0, name)).await.unwrap().unwrap()
}

async fn reset_to_3(
    store: &Store,
    selection: &Selection,
    before: &Snapshot<Cursor>,
) -> anyhow::Result<Changed> {
    supersede(store, selection, 0, before, |cursor| cursor.reset(3)).await
}

#[tokio::test]
async fn a_reset_beside_a_repair_is_refused_and_ends_it_by_force() {
    let (store, before) = store(opened("e2e.repair", SystemEnvironment.now_ms())).await;
    let refused = reset_to_3(&store, &selection(false), &before)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("somebody repairs e2e"), "{refused}");
    assert_eq!(read(&store, "e2e").await.state, before.state);

    reset_to_3(&store, &selection(true), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!(
        (consumer.start, consumer.unsettled, consumer.lease_ms),
        (3, true, 60_000)
    );
    let repair = read(&store, "e2e.repair").await.state;
    assert!(repair.is_removed() && repair.unsettled);
}

#[tokio::test]
async fn a_reset_needs_a_log() {
    let (store, _) = store(opened("e2e.repair", 1).remove()).await;
    let plan = async || {
        let planned = plan_reset(&store, &selection(true), Target::Earliest).await;
        planned.unwrap_err().to_string()
    };
    let refused = plan().await;
    assert!(refused.contains("nothing has been committed yet"), "{refused}");
    let before = read(&store, "e2e").await;
    let read_to_3 = before.state.reset(3);
    let swapped = cas::swap(
        &store,
        &layout::cursor(0, "e2e"),
        Some(&before.version),
        read_to_3,
    )
    .await;
    assert!(matches!(swapped, Swap::Committed(_)));
    let refused = plan().await;
    assert!(
        refused.contains("shard 0000 has no manifest, and e2e has read up to sequence 3"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_reset_ends_a_repair_that_was_killed() {
    let (store, before) = store(opened("e2e.repair", 1)).await;
    reset_to_3(&store, &selection(false), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!((consumer.unsettled, consumer.lease_ms), (true, 60_000));
    assert!(read(&store, "e2e.repair").await.state.is_removed());
}

#[tokio::test]
async fn a_repair_that_was_given_up_unsettled_counts() {
    let (store, before) = store(opened("e2e.repair", 1).remove()).await;
    reset_to_3(&store, &selection(false), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!((consumer.unsettled, consumer.lease_ms), (true, 60_000));
}

#[tokio::test]
async fn a_finished_repair_is_nothing_to_wait_for() {
    for repair in [released("e2e.repair").remove(), released("e2e.repair")] {
        let (store, before) = store(repair).await;
        reset_to_3(&store, &selection(false), &before).await.unwrap();
        assert_eq!(read(&store, "e2e").await.state.lease_ms, 0);
        assert!(read(&store, "e2e.repair").await.state.is_removed());
    }
}

#[tokio::test]
async fn a_cursor_that_cannot_be_read_becomes_a_tombstone() {
    let (store, _) = store(released("e2e.repair")).await;
    let key = layout::cursor(0, "e2e");
    store.delete(&key).await.unwrap();
    store
        .put_if_absent(&key, vec![b"damaged".as_slice().into()])
        .await
        .unwrap();
    let forced = selection(true);
    let found = plan_removal(&store, &forced).await.unwrap();
    let [
        removal @ Removal {
            before: Before::Damaged(_),
            ..
        },
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    let changed = remove(&store, &forced, removal).await.unwrap();
    assert!(changed.repair_ended);
    let tombstone = read(&store, "e2e").await.state;
    assert!(tombstone.is_removed() && tombstone.unsettled && tombstone.lease_ms > 0);
    assert_eq!(
        tombstone.deduplicated_below, SENT_UNKNOWN,
        "nobody knows which rows the lost cursor had dropped"
    );
    assert!(buffer::cursor(&store, 0, "e2e").await.unwrap().is_none());
    let listed = buffer::cursors(&store, 0).await.unwrap();
    assert!(listed.is_empty(), "a tombstone is no consumer: {listed:?}");
    assert!(plan_removal(&store, &forced).await.is_err());
}

#[tokio::test]
async fn a_consumer_that_died_while_it_asked_for_tables_is_removed() {
    let mut asks = Cursor::unborn(Default::default(), 0, "asks", policy("clickhouse:otel.otel_logs"));
    asks.tables.claim = Some(TableClaim {
        id: 1,
        tables: Vec::new(),
        expires_at_ms: 1,
        firm: true,
    });
    let (store, _) = store(asks).await;
    let selection = Selection {
        consumer: "asks".into(),
        ..selection(false)
    };
    for removal in plan_removal(&store, &selection).await.unwrap() {
        remove(&store, &selection, &removal).await.unwrap();
    }
    let removed = read(&store, "asks").await.state;
    assert!(removed.is_removed() && removed.tables.claim.is_none());
    assert!(
        plan_removal(&store, &selection).await.is_err(),
        "nothing is left of it"
    );
}

/// A store with two shards and a cursor of the consumer in each, the first as given.
async fn two_shards(first: Cursor) -> (Store, Selection) {
    let store = Store::memory();
    let buffer = Buffer::new(Default::default(), 2);
    cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
    let second = Cursor {
        shard: 1,
        ..released("e2e")
    };
    for cursor in [first, second] {
        let key = layout::cursor(cursor.shard, "e2e");
        let created = cas::swap(&store, &key, None, cursor).await;
        assert!(matches!(created, Swap::Committed(_)));
    }
    (store, selection(false))
}

/// The cursor in the first shard names the tables of both.
#[tokio::test]
async fn the_register_of_tables_is_removed_last() {
    let mut asks = Cursor::unborn(Default::default(), 0, "e2e", policy("clickhouse:otel.otel_logs"));
    asks.tables.claim = Some(TableClaim {
        id: 1,
        tables: Vec::new(),
        expires_at_ms: 1,
        firm: false,
    });
    for first in [released("e2e"), asks] {
        let (store, all) = two_shards(first).await;
        for force in [false, true] {
            let all = Selection { force, ..all.clone() };
            let planned = plan_removal(&store, &all).await.unwrap();
            let shards: Vec<u32> = planned.iter().map(|removal| removal.shard).collect();
            assert_eq!(shards, [1, 0]);
            let first = Selection {
                shard: Some(0),
                ..all.clone()
            };
            let refused = plan_removal(&store, &first).await.unwrap_err().to_string();
            assert!(
                refused.contains("e2e has a cursor in shard 0001 too"),
                "{refused}"
            );
        }
        for shard in [1, 0] {
            let one = Selection {
                shard: Some(shard),
                ..all.clone()
            };
            for removal in plan_removal(&store, &one).await.unwrap() {
                remove(&store, &one, &removal).await.unwrap();
            }
        }
        assert!(plan_removal(&store, &all).await.is_err(), "nothing is left of it");
    }
}

/// Its owner renews its lease all the time.
#[tokio::test]
async fn a_removal_by_force_follows_a_cursor_that_changes() {
    for force in [false, true] {
        let (store, _) = store(released("e2e.repair")).await;
        let selection = selection(force);
        let planned = plan_removal(&store, &selection).await.unwrap();
        let found = read(&store, "e2e").await;
        swap(&store, &found.version, found.state.clone()).await.unwrap();
        let removed = remove(&store, &selection, &planned[0]).await;
        match force {
            true => assert!(removed.is_ok()),
            false => {
                let refused = removed.unwrap_err().to_string();
                assert!(refused.contains("changed meanwhile"), "{refused}");
            }
        }
        assert_eq!(read(&store, "e2e").await.state.is_removed(), force);
    }
}

/// A process that starts meanwhile takes a tombstone for the end of an earlier consumer.
#[tokio::test]
async fn a_shard_that_began_again_during_the_removal_is_reported() {
    let (store, all) = two_shards(released("e2e")).await;
    for removal in plan_removal(&store, &all).await.unwrap() {
        remove(&store, &all, &removal).await.unwrap();
    }
    check_removed(&store, &all).await.unwrap();
    for shard in [1, 0] {
        let key = layout::cursor(shard, "e2e");
        let tombstone = cas::read::<Cursor>(&store, &key).await.unwrap().unwrap();
        let again = tombstone
            .state
            .begin_again(0, policy("clickhouse:otel.otel_logs"));
        swap(&store, &tombstone.version, again).await.unwrap();
        let checked = check_removed(&store, &all).await;
        match shard {
            1 => {
                let left = checked.unwrap_err().to_string();
                assert!(left.contains("e2e began again in shard 0001"), "{left}");
            }
            // Somebody has started the consumer again since.
            _ => checked.unwrap(),
        }
    }
}

#[tokio::test]
async fn the_list_of_processes_goes_with_the_register() {
    let (store, _) = store(released("e2e.repair")).await;
    let key = layout::members("e2e");
    let list = millpond_manifest::Members::new(Default::default()).beat("a", []);
    cas::create_once(&store, &key, list).await.unwrap();
    let is_there = async || store.get(&key).await.unwrap().is_some();
    let elsewhere = Selection {
        shard: Some(1),
        ..selection(false)
    };
    forget_processes(&store, &elsewhere).await.unwrap();
    assert!(is_there().await, "the consumer lives in the first shard");
    let repair = Selection {
        consumer: "e2e.repair".into(),
        ..selection(false)
    };
    forget_processes(&store, &repair).await.unwrap();
    assert!(is_there().await, "the consumer outlives its repair");
    for _ in 0..2 {
        forget_processes(&store, &selection(false)).await.unwrap();
        assert!(!is_there().await);
    }
}
