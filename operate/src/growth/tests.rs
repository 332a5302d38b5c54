use super::*;
use millpond_manifest::buffer::CannotGrow;
use millpond_manifest::cursor::{NO_UNIQUE, Opening};
use millpond_manifest::{BatchingPolicy, UniqueSetting};
use millpond_storage::unreliable::{Controls, Fault, Faults, On, Unreliable};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(42);

fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1,
        chunk_rows: 1,
        chunk_bytes: 1,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}

/// A store with a bad network, and the same store with a good one.
struct World {
    store: Store,
    controls: Controls,
    honest: Store,
}

/// A consumer that is released, held, abandoned or removed, and began at the end of its log.
async fn put(store: &Store, consumer: &str, shard: u32, change: impl Fn(&mut Cursor)) {
    let mut cursor = Cursor::new(ID, shard, consumer, 17, policy());
    cursor.shards = 1;
    change(&mut cursor);
    let swapped = cas::swap(store, &layout::cursor(shard, consumer), None, cursor).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

const LIVING: [&str; 3] = ["abandoned", "held", "released"];

fn hold(cursor: &mut Cursor) {
    let policy = policy();
    let opening = Opening {
        owner: "somebody",
        id: 7,
        now_ms: 1,
        lease_ms: u64::MAX,
        policy: &policy,
        unique: &NO_UNIQUE,
        take_over: false,
    };
    *cursor = cursor.open(&opening).unwrap().state;
}

async fn world() -> World {
    let objects = Arc::new(InMemory::new());
    let unreliable = Unreliable::new(objects.clone(), Faults::default());
    let world = World {
        controls: unreliable.controls(),
        store: Store::over(Arc::new(unreliable), "buffer"),
        honest: Store::over(objects, "buffer"),
    };
    let buffer = Buffer::new(ID, 1);
    cas::create_once(&world.honest, layout::BUFFER, buffer)
        .await
        .unwrap();
    put(&world.honest, "released", 0, |_| {}).await;
    put(&world.honest, "held", 0, hold).await;
    put(&world.honest, "abandoned", 0, |cursor| {
        cursor.ownership = Ownership::Abandoned;
    })
    .await;
    put(&world.honest, "removed", 0, |cursor| *cursor = cursor.remove()).await;
    put(&world.honest, "released.repair", 0, |_| {}).await;
    world
}

impl World {
    async fn shards(&self) -> u32 {
        read(&self.honest).await.unwrap().state.shards
    }

    async fn cursor(&self, shard: u32, consumer: &str) -> Option<Cursor> {
        let found = cas::read::<Cursor>(&self.honest, &layout::cursor(shard, consumer)).await;
        found.unwrap().map(|found| found.state)
    }

    /// Producers may write to the shards that the object names: every consumer needs them from the beginning.
    async fn check(&self, when: &str) {
        for shard in 1..self.shards().await {
            for consumer in LIVING {
                let cursor = self.cursor(shard, consumer).await;
                let begins = cursor.map(|cursor| (cursor.start, cursor.needs(), cursor.is_removed()));
                assert_eq!(begins, Some((0, 0, false)), "{when}: {consumer} in shard {shard}");
            }
        }
    }

    async fn check_whole(&self, shards: u32, when: &str) {
        assert_eq!(self.shards().await, shards, "{when}");
        self.check(when).await;
        let all = self.honest.list("shards").await.unwrap();
        let new = all.iter().filter(|found| !found.key.starts_with("shards/0000/"));
        assert_eq!(new.count(), LIVING.len() * (shards as usize - 1), "{when}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_begins_every_living_consumer_in_every_new_shard() {
    let world = world().await;
    let grown = grow(&world.store, 3).await.unwrap();
    let (before, shards, cursors_begun) = (1, 3, 6);
    assert_eq!(
        grown,
        Grown {
            before,
            shards,
            cursors_begun
        }
    );
    world.check_whole(3, "grown").await;
    let held = world.cursor(0, "held").await.unwrap();
    assert_eq!(held.opening, 7, "the owner keeps its cursor");
    // Again, and further.
    assert_eq!(grow(&world.store, 3).await.unwrap().cursors_begun, 0);
    assert_eq!(grow(&world.store, 4).await.unwrap().cursors_begun, 3);
    world.check_whole(4, "grown again").await;
}

#[tokio::test(start_paused = true)]
async fn a_buffer_does_not_shrink() {
    let world = world().await;
    grow(&world.store, 3).await.unwrap();
    let error = grow(&world.store, 2).await.unwrap_err();
    let expected = CannotGrow::Shrinks { has: 3, asked: 2 };
    assert_eq!(error.downcast_ref(), Some(&expected), "{error}");
    world.check_whole(3, "not shrunk").await;
    let missing = grow(&Store::memory(), 2).await.unwrap_err().to_string();
    assert!(
        missing.starts_with("there is no buffer at memory:///"),
        "{missing}"
    );
}

/// Each outcome of each write, and a crash before and after it. Whenever the object names a shard, the cursors are there.
#[tokio::test(start_paused = true)]
async fn no_outcome_of_a_write_leaves_a_shard_without_its_cursors() {
    let late = Duration::from_secs(5);
    let faults = [
        Fault::Lost,
        Fault::LandsUnreported,
        Fault::LandsLate(late),
        Fault::Repeated(late),
        Fault::Denied,
    ];
    let mut keys: Vec<String> = [1, 2]
        .into_iter()
        .flat_map(|shard| LIVING.map(|consumer| layout::cursor(shard, consumer)))
        .collect();
    keys.push(layout::BUFFER.to_owned());
    for fault in faults {
        for key in &keys {
            let when = format!("{key}: {fault:?}");
            let world = world().await;
            world.controls.once(On::Put, key, fault);
            let made = grow(&world.store, 3).await;
            assert_eq!(world.controls.unused(), 0, "{when}");
            world.check(&when).await;
            if fault != Fault::Denied {
                made.expect(&when);
            }
            tokio::time::sleep(2 * late).await;
            world.check(&when).await;
            grow(&world.store, 3).await.expect(&when);
            world.check_whole(3, &when).await;
        }
    }
}

/// The process dies at each of its writes in turn. The write never lands, or an attempt before it lands after the death.
#[tokio::test(start_paused = true)]
async fn no_crash_leaves_a_shard_without_its_cursors() {
    let cursors = [1, 2].map(|shard| LIVING.map(|consumer| layout::cursor(shard, consumer)));
    let mut keys = cursors.concat();
    keys.push(layout::BUFFER.to_owned());
    for key in &keys {
        for lands in [false, true] {
            let when = format!("{key}, lands: {lands}");
            let world = world().await;
            let late = lands.then(|| world.controls.detain(On::Put, key));
            let held = world.controls.hold(On::Put, key);
            let growth = tokio::spawn({
                let store = world.store.clone();
                async move { grow(&store, 3).await }
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            growth.abort();
            assert!(growth.await.is_err_and(|error| error.is_cancelled()), "{when}");
            assert_eq!(world.controls.unused(), 0, "{when}");
            drop((late, held));
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.check(&when).await;
            world.controls.heal();
            grow(&world.store, 3).await.expect(&when);
            world.check_whole(3, &when).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_denies_every_write_ends_the_growth_with_its_reason() {
    for key in [layout::cursor(1, "held"), layout::BUFFER.to_owned()] {
        let world = world().await;
        for _ in 0..SWAPS_MAX {
            world.controls.once(On::Put, &key, Fault::Denied);
        }
        let error = grow(&world.store, 2).await.unwrap_err();
        assert!(format!("{error:#}").contains("403 AccessDenied"), "{error:#}");
        assert_eq!(world.shards().await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn two_growths_at_once_end_with_the_larger_number() {
    for pause in 0..12 {
        let world = world().await;
        // The smaller one sleeps at one of its writes while the larger one runs.
        let keys = [1, 2].map(|shard| LIVING.map(|consumer| layout::cursor(shard, consumer)));
        let mut keys = keys.concat();
        keys.push(layout::BUFFER.to_owned());
        let key = &keys[pause % keys.len()];
        let held = world.controls.hold(On::Put, key);
        let smaller = tokio::spawn({
            let store = world.store.clone();
            async move { grow(&store, 3).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let honest = world.honest.clone();
        grow(&honest, 5).await.unwrap();
        held.release();
        let smaller = smaller.await.unwrap();
        if let Err(error) = smaller {
            let expected = CannotGrow::Shrinks { has: 5, asked: 3 };
            assert_eq!(error.downcast_ref(), Some(&expected), "{error}");
        }
        world.check_whole(5, key).await;
    }
}

/// The consumer starts after the list of consumers, and takes the buffer for one of a single shard.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_starts_during_a_growth_is_begun_too() {
    let world = world().await;
    let held = world.controls.hold(On::Put, layout::BUFFER);
    let growth = tokio::spawn({
        let store = world.store.clone();
        async move { grow(&store, 2).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    put(&world.honest, "young", 0, |_| {}).await;
    // This one has seen the grown buffer: it begins by itself where --from says.
    put(&world.honest, "younger", 0, |cursor| cursor.shards = 2).await;
    held.release();
    growth.await.unwrap().unwrap();
    assert_eq!(world.cursor(1, "young").await.unwrap().needs(), 0);
    assert_eq!(world.cursor(1, "younger").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_removed_during_a_growth_leaves_nothing_that_keeps_the_log() {
    let world = world().await;
    let held = world.controls.hold(On::Put, layout::BUFFER);
    let growth = tokio::spawn({
        let store = world.store.clone();
        async move { grow(&store, 2).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let key = layout::cursor(0, "released");
    let found = cas::read::<Cursor>(&world.honest, &key).await.unwrap().unwrap();
    let removed = cas::swap(&world.honest, &key, Some(&found.version), found.state.remove()).await;
    assert!(matches!(removed, Swap::Committed(_)), "{removed:?}");
    held.release();
    growth.await.unwrap().unwrap();
    assert!(world.cursor(1, "released").await.unwrap().is_removed());
    // The name begins again, and the buffer grows again.
    let found = cas::read::<Cursor>(&world.honest, &key).await.unwrap().unwrap();
    let again = Cursor {
        shards: 1,
        ..found.state.begin_again(17, policy())
    };
    let began = cas::swap(&world.honest, &key, Some(&found.version), again).await;
    assert!(matches!(began, Swap::Committed(_)), "{began:?}");
    grow(&world.store, 2).await.unwrap();
    world.check_whole(2, "begun again").await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_cannot_be_read_stops_the_growth_with_its_key_and_the_remedy() {
    let world = world().await;
    let key = layout::cursor(0, "damaged");
    world
        .honest
        .put_if_absent(&key, vec![b"damaged".to_vec().into()])
        .await
        .unwrap();
    let error = grow(&world.store, 2).await.unwrap_err().to_string();
    assert!(error.starts_with(&key), "{error}");
    assert!(
        error.contains("`millpond consumer remove damaged --force`"),
        "{error}"
    );
    assert_eq!(world.shards().await, 1);
    let listed = world.honest.list("shards/0001").await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_another_buffer_in_a_new_shard_stops_the_growth() {
    let world = world().await;
    let id = Uuid::from_u128(43);
    put(&world.honest, "released", 1, |cursor| cursor.buffer_id = id).await;
    let error = grow(&world.store, 2).await.unwrap_err().to_string();
    assert!(
        error.contains("shards/0001/consumers/released/cursor belongs to buffer"),
        "{error}"
    );
    assert_eq!(world.shards().await, 1);
}

/// With more shards it would exit, and the rows of its keys would already be in several shards.
#[tokio::test]
async fn a_buffer_does_not_grow_past_a_consumer_that_compares_the_rows_of_one_shard() {
    let world = world().await;
    let setting = UniqueSetting {
        key: vec!["event_id".to_owned()],
        window_ms: 1_000,
    };
    let unique = [("events.order".to_owned(), setting)].into();
    put(&world.honest, "drops", 0, |cursor| {
        let policy = policy();
        let opening = Opening {
            owner: "somebody",
            id: 7,
            now_ms: 1,
            lease_ms: 1,
            policy: &policy,
            unique: &unique,
            take_over: false,
        };
        *cursor = cursor.open(&opening).unwrap().state;
    })
    .await;
    let refused = grow(&world.store, 2).await.unwrap_err().to_string();
    assert!(
        refused.contains("consumer drops drops repeated events of stream events.order by event_id"),
        "{refused}"
    );
    assert!(
        refused.contains("millpond buffer route --unique FILE"),
        "{refused}"
    );
    assert_eq!(world.shards().await, 1);
    let other = [("events.order".to_owned(), vec!["id".to_owned()])];
    crate::routes::route(&world.store, &other, None).await.unwrap();
    assert!(
        grow(&world.store, 2).await.is_err(),
        "it is routed by another key"
    );
    crate::routes::unroute(&world.store, &["events.order".to_owned()])
        .await
        .unwrap();
    let right = [("events.order".to_owned(), vec!["event_id".to_owned()])];
    crate::routes::route(&world.store, &right, None).await.unwrap();
    assert_eq!(grow(&world.store, 2).await.unwrap().shards, 2);
}
