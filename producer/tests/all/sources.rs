//! Bridges read a partition and append its records with their offsets. Whoever reads them, and whatever the store does,
//! the log has each record once and in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Seeded, World, config, message, segments};
use futures::future::join_all;
use millpond_manifest::{Manifest, SourceRow, cas, layout};
use millpond_producer::{
    AppendError, ClientId, ClientRefusal, Committed, Config, Numbered, Numbers, Producer, SourcePartition,
    Submitted,
};
use millpond_storage::Store;
use millpond_storage::unreliable::{Fault, Faults, On, Outage};
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

const DRAIN: Duration = Duration::from_secs(600);

fn of(partition: u32) -> Arc<SourcePartition> {
    Arc::new(SourcePartition {
        source: "cluster".into(),
        topic: "orders".into(),
        partition,
        stream: "events".into(),
    })
}

/// Offsets of a position that was never set anew.
fn offsets(partition: u32, from: u64, to: u64) -> Numbered {
    Numbered {
        client: ClientId([u8::try_from(partition).unwrap(); 16]),
        numbers: Numbers::Offsets {
            incarnation: 0,
            from,
            to,
        },
        checksum: 0,
        source: Some(of(partition)),
    }
}

/// Begins partition 0 at this offset.
pub(crate) async fn place(world: &World, next: u64) {
    place_partition(world, 0, next).await;
}

async fn place_partition(world: &World, partition: u32, next: u64) {
    world
        .change_manifest(|manifest| {
            let row = SourceRow {
                of: of(partition),
                shard: 0,
                incarnation: 0,
                next,
                seen_at_ms: 0,
            };
            *manifest = manifest.set_source(None, row).unwrap();
        })
        .await;
}

/// Appends a message with records of partition 0.
pub(crate) async fn send(
    producer: &Producer,
    payload: &str,
    from: u64,
    to: u64,
) -> Result<Committed, AppendError> {
    let append = message(producer, payload);
    let submitted = producer.submit_numbered(append, offsets(0, from, to)).await?;
    submitted.committed().await
}

async fn position(world: &World) -> Option<u64> {
    world.manifest().await.state.position(&of(0))
}

/// A config whose segments take all that comes within the linger.
fn together() -> Config {
    Config {
        segment_raw_bytes: 1 << 20,
        ..config()
    }
}

#[tokio::test(start_paused = true)]
async fn records_and_position_are_committed_together() {
    let world = World::new();
    let producer = world.producer(together(), 1).await;
    place(&world, 3).await;
    let (a, b) = tokio::join!(send(&producer, "a", 3, 5), send(&producer, "b", 5, 90));
    assert_eq!(a.unwrap().sequence, b.unwrap().sequence);
    assert_eq!(position(&world).await, Some(90));
    assert_eq!(world.log().await, ["a", "b"]);
}

/// A bridge stands still, another takes its partition over, and the first continues.
#[tokio::test(start_paused = true)]
async fn records_that_another_bridge_has_committed_are_refused_and_the_rest_of_the_segment_stays() {
    let world = World::new();
    let (first, second) = (
        world.producer(together(), 1).await,
        world.producer(together(), 2).await,
    );
    place(&world, 0).await;
    place_partition(&world, 1, 0).await;
    send(&first, "a", 0, 2).await.unwrap();
    let other = second
        .submit_numbered(message(&second, "other"), offsets(1, 0, 4))
        .await
        .unwrap();
    let (again, later, other) = tokio::join!(
        send(&second, "a", 0, 2),
        send(&second, "b", 2, 3),
        other.committed()
    );
    let refused = AppendError::Client(ClientRefusal::Position { next: Some(2) });
    assert_eq!(again, Err(refused));
    assert!(later.is_ok() && other.is_ok(), "{later:?} {other:?}");
    assert_eq!(world.log().await, ["a", "other", "b"]);
}

/// A bridge has given up on the answers about offsets 5 to 9, and reads from the position again.
#[tokio::test(start_paused = true)]
async fn offsets_that_lie_before_others_in_a_segment_are_judged_before_them() {
    let world = World::new();
    let producer = world.producer(together(), 1).await;
    place(&world, 0).await;
    let of_other_reader = Numbered {
        client: ClientId([9; 16]),
        ..offsets(0, 5, 9)
    };
    let later = producer
        .submit_numbered(message(&producer, "later"), of_other_reader)
        .await
        .unwrap();
    let (again, later) = tokio::join!(send(&producer, "again", 0, 5), later.committed());
    assert!(again.is_ok(), "{again:?}");
    let refused = AppendError::Client(ClientRefusal::Position { next: Some(0) });
    assert_eq!(later, Err(refused));
    assert_eq!(world.log().await, ["again"]);
    assert_eq!(position(&world).await, Some(5));
}

/// A bridge stands still with records of a topic that is then made again. The position begins anew where theirs begin.
#[tokio::test(start_paused = true)]
async fn old_records_do_not_enter_after_the_position_was_set_anew() {
    let world = World::new();
    let (store, controls) = world.honest.behind(Faults::default());
    let environment = Seeded::running(Instant::now(), 1);
    let mut registry = Registry::default();
    let frozen = Producer::start_in(environment, store, config(), &mut registry)
        .await
        .unwrap();
    let other = world.producer(config(), 2).await;
    place(&world, 0).await;
    controls.set_outage(Some(Outage::Hangs));
    let append = message(&frozen, "of the old topic");
    let old = frozen.submit_numbered(append, offsets(0, 0, 5)).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    send(&other, "a", 0, 9).await.unwrap();
    let again = |manifest: &mut Manifest| {
        let row = manifest.source(&of(0)).unwrap().clone();
        let again = SourceRow {
            next: 0,
            ..row.clone()
        };
        *manifest = manifest.set_source(Some(&row), again).unwrap();
    };
    world.change_manifest(again).await;
    controls.heal();
    let refused = AppendError::Client(ClientRefusal::SetAnew);
    assert_eq!(old.committed().await, Err(refused));
    assert_eq!(world.log().await, ["a"]);
    assert_eq!(position(&world).await, Some(0));
}

/// The producer takes the manifest of its last commit for the one in force.
#[tokio::test(start_paused = true)]
async fn a_position_that_an_old_manifest_lacks_is_no_answer() {
    let world = World::new();
    let (first, second) = (
        world.producer(config(), 1).await,
        world.producer(config(), 2).await,
    );
    place(&world, 0).await;
    send(&first, "a", 0, 2).await.unwrap();
    send(&second, "b", 2, 4).await.unwrap();
    let third = send(&first, "c", 4, 6).await;
    assert!(third.is_ok(), "{third:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unreported_commit_is_found_and_not_refused() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    place(&world, 0).await;
    for (fault, payload, from) in [
        (Fault::LandsUnreported, "a", 0),
        (Fault::Repeated(Duration::from_millis(1)), "b", 2),
    ] {
        world.controls.once(On::Update, "manifest", fault);
        send(&producer, payload, from, from + 2).await.unwrap();
        assert_eq!(world.controls.unused(), 0);
    }
    assert_eq!(world.log().await, ["a", "b"]);
}

const DURATION: Duration = Duration::from_secs(30);
const LATE_BY_MAX: Duration = Duration::from_secs(3);

/// The partition leaves offsets out, as a compacted one does.
fn has_record(offset: u64) -> bool {
    offset % 7 != 3 && offset % 50 > 3
}

/// Reads from a position: the payload of some offsets, and the position after them.
fn read(from: u64, count: u64) -> (String, u64) {
    let offsets: Vec<u64> = (from..)
        .filter(|offset| has_record(*offset))
        .take(usize::try_from(count).unwrap())
        .collect();
    let payload: Vec<String> = offsets.iter().map(|offset| format!("{offset:06}")).collect();
    (payload.join(" "), offsets.last().unwrap() + 1)
}

/// Reads the position in the manifest, and appends from there until it is refused or fails.
async fn bridge(store: &Store, producer: &Producer, rng: &mut StdRng, until: Instant) {
    while Instant::now() < until {
        let found = cas::read::<Manifest>(store, &layout::manifest(0)).await;
        let Ok(Some(found)) = found else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut at = found
            .state
            .position(&of(0))
            .expect("a position is never forgotten");
        let mut in_flight: VecDeque<Submitted> = VecDeque::new();
        while Instant::now() < until {
            while in_flight.len() < 4 {
                let (payload, to) = read(at, rng.random_range(1..6));
                let append = message(producer, &payload);
                let Ok(submitted) = producer.submit_numbered(append, offsets(0, at, to)).await else {
                    break;
                };
                in_flight.push_back(submitted);
                at = to;
            }
            let Some(oldest) = in_flight.pop_front() else {
                break;
            };
            let patience = Duration::from_millis(rng.random_range(1_000..20_000));
            if !matches!(timeout(patience, oldest.committed()).await, Ok(Ok(_))) {
                break;
            }
        }
    }
}

/// Runs one bridge after another. Each is killed, or freezes and continues when others have the partition.
async fn bridges(world: &World, start: Instant, mut rng: StdRng) {
    let mut frozen = Vec::new();
    while start.elapsed() < DURATION {
        let (store, controls, config) = world.faulty(&mut rng, LATE_BY_MAX);
        let environment = Seeded::running(start, rng.random());
        let started = Producer::start_in(environment, store.clone(), config, &mut Registry::default()).await;
        let Ok(producer) = started else { continue };
        let until = Instant::now() + Duration::from_millis(rng.random_range(0..6_000));
        bridge(&store, &producer, &mut rng, until).await;
        controls.set_outage(Some(Outage::Hangs));
        frozen.push((producer, controls));
        if rng.random() {
            let (producer, controls) = frozen.remove(rng.random_range(0..frozen.len()));
            controls.heal();
            let drained = producer.drain(DRAIN).await;
            assert!(drained.is_ok(), "{drained:?}");
        }
    }
    for (producer, controls) in frozen {
        controls.heal();
        producer.drain(DRAIN).await.unwrap();
    }
}

async fn run(seed: u64) -> usize {
    let world = World::new();
    let first = world.producer(config(), seed).await;
    first.drain(DRAIN).await.unwrap();
    place(&world, 11).await;
    let start = Instant::now();
    let mut rng = StdRng::seed_from_u64(seed);
    let all = (0..3).map(|_| bridges(&world, start, StdRng::seed_from_u64(rng.random())));
    join_all(all).await;
    sleep(LATE_BY_MAX * 2).await;
    let end = position(&world).await.unwrap();
    let log = segments(&world.honest).await.concat().join(" ");
    let found: Vec<&str> = log.split_whitespace().collect();
    let expected: Vec<String> = (11..end)
        .filter(|offset| has_record(*offset))
        .map(|offset| format!("{offset:06}"))
        .collect();
    assert_eq!(
        found, expected,
        "seed {seed}: each offset below {end} is in the log once"
    );
    found.len()
}

#[tokio::test(start_paused = true)]
async fn every_offset_is_in_the_log_once_whoever_reads_it_and_whoever_dies() {
    let mut records = 0;
    for seed in 0..20 {
        records += run(seed).await;
    }
    println!("{records} records");
    assert!(records > 1_000, "{records}");
}
