//! Commits that seal a full tail into a page. Whatever the outcome of the page's upload and of the swap, the log is
//! complete and in order when read through its pages, and the manifest stays small.

use std::time::Duration;

use crate::support::{START_MS, Seeded, World, append, append_until_acknowledged, config, not_once};
use futures::future::join_all;
use millpond_manifest::Object;
use millpond_producer::{Config, Producer};
use millpond_storage::unreliable::{Fault, Faults, On, WriteFaults};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix} {number}")).collect()
}

async fn producer(world: &World, tail_max: usize, seed: u64) -> (Producer, Registry) {
    let config = Config { tail_max, ..config() };
    let mut registry = Registry::default();
    let environment = Seeded::standing(seed);
    let producer = Producer::start_in(environment, world.store.clone(), config, &mut registry).await;
    (producer.unwrap(), registry)
}

/// Returns the number of pages that a producer has added to the log, by its own count.
fn pages(registry: &Registry) -> usize {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let counted = text
        .lines()
        .find_map(|line| line.strip_prefix("millpond_producer_pages_total "));
    counted.unwrap().parse().unwrap()
}

/// Scripts the upload of a page: it is the second object that is created, after the segment.
fn on_page(world: &World, fault: Option<Fault>) {
    if let Some(fault) = fault {
        drop(world.controls.hold(On::Create, ""));
        world.controls.once(On::Create, "", fault);
    }
}

const OUTCOMES: [Option<Fault>; 5] = [
    None,
    Some(Fault::LandsUnreported),
    Some(Fault::Lost),
    Some(Fault::LandsLate(Duration::from_secs(2))),
    Some(Fault::Hangs),
];

#[tokio::test(start_paused = true)]
async fn the_manifest_stays_small_however_long_the_log() {
    let world = World::new();
    let (producer, registry) = producer(&world, 4, 1).await;
    let messages = names("message", 200);
    let mut largest = 0;
    for message in &messages {
        append(&producer, message).await.unwrap();
        let state = world.manifest().await.state;
        assert!(state.tail.len() <= 4, "{} entries", state.tail.len());
        // The reference is the cost of a page.
        largest = largest.max(state.encode().len().saturating_sub(64 * state.pages.len()));
    }
    assert_eq!(world.log().await, messages);
    let state = world.manifest().await.state;
    assert!(
        state.pages.iter().all(|page| page.last - page.first == 3),
        "{:?}",
        state.pages
    );
    assert_eq!((state.pages.len(), pages(&registry)), (49, 49));
    assert!(largest < 1_000, "{largest} bytes");
    assert_eq!(
        world.honest.list("shards/0000/pages").await.unwrap().len(),
        49,
        "one page too many"
    );
}

#[tokio::test(start_paused = true)]
async fn the_upload_of_a_page_and_the_swap_after_it_may_have_each_of_their_outcomes() {
    for upload in OUTCOMES {
        for swap in OUTCOMES {
            let story = format!("{upload:?}, {swap:?}");
            let world = World::new();
            let (producer, registry) = producer(&world, 2, 1).await;
            append(&producer, "a").await.unwrap();
            append(&producer, "b").await.unwrap();
            on_page(&world, upload);
            if let Some(fault) = swap {
                world.controls.once(On::Update, "manifest", fault);
            }
            for message in ["c", "d", "e"] {
                append(&producer, message).await.unwrap();
            }
            world.controls.settled().await;
            assert_eq!(world.controls.unused(), 0, "{story}");
            assert_eq!(world.log().await, ["a", "b", "c", "d", "e"], "{story}");
            let state = world.manifest().await.state;
            assert_eq!((state.pages.len(), state.tail.len()), (2, 1), "{story}");
            assert_eq!(pages(&registry), 2, "{story}");
            let stored = world.honest.list("shards/0000/pages").await.unwrap();
            assert_eq!(stored.len(), 2, "{story}: one page too many");
        }
    }
}

/// Both producers seal the same tail: one page is in the log, the other is an orphan.
#[tokio::test(start_paused = true)]
async fn two_producers_that_seal_at_once_lose_nothing() {
    let world = World::new();
    let (one, counts_one) = producer(&world, 2, 1).await;
    let (two, counts_two) = producer(&world, 2, 2).await;
    append(&two, "a").await.unwrap();
    append(&one, "b").await.unwrap();
    // The first producer has uploaded its page when the second overtakes it.
    let mut held = world.controls.hold(On::Update, "manifest");
    let overtakes = async {
        held.arrived().await;
        append(&two, "c").await.unwrap();
        append(&two, "d").await.unwrap();
        held.release();
    };
    let (first, ()) = tokio::join!(append(&one, "e"), overtakes);
    first.unwrap();
    assert_eq!(world.log().await, ["a", "b", "c", "d", "e"]);
    assert_eq!((pages(&counts_one), pages(&counts_two)), (1, 1));
    assert_eq!(world.honest.list("shards/0000/pages").await.unwrap().len(), 3);
}

/// A garbage collector may delete a page that no manifest refers to. The producer replaces it, and the old one never
/// joins the log.
#[tokio::test(start_paused = true)]
async fn a_page_that_fell_below_the_orphan_floor_before_its_swap_is_replaced() {
    let floor_ms = START_MS + 60_000;
    let collect = async |world: &World| {
        world
            .change_manifest(|manifest| manifest.orphan_floor_ms = floor_ms)
            .await;
        for page in world.honest.list("shards/0000/pages").await.unwrap() {
            world.honest.delete(&page.key).await.unwrap();
        }
    };
    for late in [false, true] {
        let world = World::new();
        let (producer, registry) = producer(&world, 2, 1).await;
        append(&producer, "a").await.unwrap();
        append(&producer, "b").await.unwrap();
        if late {
            // The upload reports a failure, and lands after everything else.
            drop(world.controls.hold(On::Create, ""));
            let mut upload = world.controls.detain(On::Create, "");
            let others = async {
                upload.arrived().await;
                collect(&world).await;
            };
            let (committed, ()) = tokio::join!(append(&producer, "c"), others);
            committed.unwrap();
            upload.release();
            world.controls.settled().await;
        } else {
            let mut swap = world.controls.hold(On::Update, "manifest");
            let others = async {
                swap.arrived().await;
                collect(&world).await;
                swap.release();
            };
            let (committed, ()) = tokio::join!(append(&producer, "c"), others);
            committed.unwrap();
        }
        append(&producer, "d").await.unwrap();
        assert_eq!(world.log().await, ["a", "b", "c", "d"], "late {late}");
        let state = world.manifest().await.state;
        assert!(
            state
                .pages
                .iter()
                .all(|page| page.page.timestamp_ms() >= floor_ms),
            "late {late}"
        );
        assert_eq!(pages(&registry), state.pages.len(), "late {late}");
    }
}

#[tokio::test(start_paused = true)]
async fn random_faults_and_a_rising_floor_lose_nothing_and_double_nothing_across_pages() {
    for seed in 0..30_u64 {
        let world = World::new();
        let tail_max = usize::try_from(1 + seed % 4).unwrap();
        let producers = [
            producer(&world, tail_max, 2 * seed).await,
            producer(&world, tail_max, 2 * seed + 1).await,
        ];
        world.controls.set_faults(Faults {
            seed,
            write: WriteFaults {
                late_by_max: Duration::from_secs(2),
                ..WriteFaults::each(0.12)
            },
            read_error: 0.2,
            latency: None,
        });
        let messages = [names("first", 25), names("second", 25)];
        let clients = producers
            .iter()
            .zip(&messages)
            .map(|((producer, _), messages)| async move {
                for message in messages {
                    append_until_acknowledged(producer, message).await;
                }
            });
        let gc = async {
            for step in 1..=4 {
                tokio::time::sleep(Duration::from_millis(700)).await;
                let floor_ms = START_MS + step * 1_000;
                world
                    .change_manifest(|manifest| {
                        manifest.orphan_floor_ms = manifest.orphan_floor_ms.max(floor_ms);
                    })
                    .await;
            }
        };
        tokio::join!(join_all(clients), gc);
        world.controls.heal();
        world.controls.settled().await;
        let (log, state) = (world.log().await, world.manifest().await.state);
        assert_eq!(not_once(&log, &messages.concat()), [].into(), "seed {seed}");
        for (name, messages) in ["first", "second"].iter().zip(&messages) {
            let order: Vec<_> = log.iter().filter(|m| m.starts_with(name)).cloned().collect();
            assert_eq!(order, *messages, "seed {seed}");
        }
        let counted: usize = producers.iter().map(|(_, registry)| pages(registry)).sum();
        assert_eq!(counted, state.pages.len(), "seed {seed}");
        assert!(
            state.tail.len() <= tail_max + 2,
            "seed {seed}: {} entries",
            state.tail.len()
        );
    }
}
