use super::*;
use clap::Parser;
use millpond_manifest::Buffer;
use millpond_manifest::cursor::Opening;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    hand: Hand,
}

fn hand(flags: &[&'static str]) -> Hand {
    let words = ["test", "e2e", "--buffer", "memory:///"];
    Flags::parse_from(words.iter().chain(flags)).hand
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
        take_over: false,
    };
    let cursor = Cursor::new(Default::default(), 0, name, 0, policy.clone());
    cursor.open(&opening).expect("nobody holds it").state
}

fn released(name: &str) -> Cursor {
    let mut cursor = opened(name, 1);
    cursor.release();
    cursor
}

/// A store with the consumer's cursor, released, and its repair's.
async fn store(repair: Cursor) -> (Store, Snapshot<Cursor>) {
    let store = Store::memory();
    let buffer = Buffer {
        id: Default::default(),
        shards: 1,
    };
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

async fn reset(store: &Store, hand: &Hand, before: &Snapshot<Cursor>) -> anyhow::Result<()> {
    supersede(store, hand, 0, before, |cursor| cursor.reset(3)).await
}

#[tokio::test]
async fn a_reset_beside_a_repair_is_refused_and_ends_it_by_force() {
    let (store, before) = store(opened("e2e.repair", now_ms())).await;
    let refused = reset(&store, &hand(&[]), &before).await.unwrap_err().to_string();
    assert!(refused.contains("somebody repairs e2e"), "{refused}");
    assert_eq!(read(&store, "e2e").await.state, before.state);

    reset(&store, &hand(&["--force"]), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!(
        (consumer.start, consumer.unsettled, consumer.lease_ms),
        (3, true, 60_000)
    );
    let repair = read(&store, "e2e.repair").await.state;
    assert!(repair.is_removed() && repair.unsettled);
}

#[tokio::test]
async fn a_reset_ends_a_repair_that_was_killed() {
    let (store, before) = store(opened("e2e.repair", 1)).await;
    reset(&store, &hand(&[]), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!((consumer.unsettled, consumer.lease_ms), (true, 60_000));
    assert!(read(&store, "e2e.repair").await.state.is_removed());
}

#[tokio::test]
async fn a_repair_that_was_given_up_unsettled_counts() {
    let (store, before) = store(opened("e2e.repair", 1).remove()).await;
    reset(&store, &hand(&[]), &before).await.unwrap();
    let consumer = read(&store, "e2e").await.state;
    assert_eq!((consumer.unsettled, consumer.lease_ms), (true, 60_000));
}

#[tokio::test]
async fn a_finished_repair_is_nothing_to_wait_for() {
    for repair in [released("e2e.repair").remove(), released("e2e.repair")] {
        let (store, before) = store(repair).await;
        reset(&store, &hand(&[]), &before).await.unwrap();
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
    let forced = hand(&["--force"]);
    let found = removable(&forced, &store).await.unwrap();
    let [(0, Found::Damaged(version))] = &found[..] else {
        panic!("{} found", found.len())
    };
    let tombstone = from_scratch(&store, 0, "e2e").await.unwrap();
    swap(&store, version, tombstone).await.unwrap();
    let tombstone = read(&store, "e2e").await.state;
    assert!(tombstone.is_removed() && tombstone.unsettled && tombstone.lease_ms > 0);
    assert!(inspect::cursor(&store, 0, "e2e").await.unwrap().is_none());
    let listed = inspect::cursors(&store, 0).await.unwrap();
    assert_eq!(listed.len(), 1, "a tombstone is no consumer");
    assert!(removable(&forced, &store).await.is_err());
}

#[test]
fn a_reset_without_identities_needs_more_than_a_yes() {
    let yes = Consent {
        yes: true,
        may_duplicate: false,
    };
    let mut cursor = released("e2e");
    cursor.policy = policy("clickhouse:otel.otel_logs;columns=none");
    let changes = [(0, 3, cursor)];
    let refused = yes.ask(&hand(&[]), &changes).unwrap_err().to_string();
    assert!(refused.contains("--may-duplicate"), "{refused}");
    let both = Consent {
        may_duplicate: true,
        ..yes
    };
    both.ask(&hand(&[]), &changes).unwrap();
    yes.ask(&hand(&[]), &[(0, 3, released("e2e"))]).unwrap();
}
