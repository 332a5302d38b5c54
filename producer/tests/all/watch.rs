//! A leader that consumers watch, in virtual time: it shows what the store has, and nothing that may never be there.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Seeded, World, append, append_until_acknowledged, config};
use async_trait::async_trait;
use millpond_manifest::{Fingerprint, Manifest, Object};
use millpond_producer::{
    LeaderAddress, PeerAnswer, PeerRefusal, PeerRequest, Peering, Peers, Producer, Watcher,
};
use millpond_storage::unreliable::{Fault, Faults, On, WriteFaults};
use prometheus_client::registry::Registry;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// Nobody else is there.
struct Alone;

#[async_trait]
impl Peers for Alone {
    async fn ask(&self, _: &LeaderAddress, _: PeerRequest) -> Result<PeerAnswer, String> {
        Err("connection refused".to_owned())
    }
}

async fn leader(world: &World, number: u8) -> Producer {
    let peering = Peering {
        peers: Arc::new(Alone),
        certificate: Fingerprint([number; 32]),
        address: Some(format!("10.0.0.{number}:4319").into()),
        forward_below: 0,
    };
    let environment = Seeded::standing(number.into());
    let (store, mut registry) = (world.store.clone(), Registry::default());
    let started = Producer::start_with(environment, store, config(), Some(peering), &mut registry);
    let producer = started.await.unwrap();
    append_until_acknowledged(&producer, "leads").await;
    producer
}

async fn shown(watcher: &Watcher, newer_than: u64) -> Result<Manifest, PeerRefusal> {
    let bytes = watcher.next(newer_than).await?;
    Ok(Manifest::decode(&bytes).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_shown_when_the_store_has_confirmed_it() {
    let world = World::new();
    let leader = leader(&world, 1).await;
    let watcher = leader.watch();
    let first = shown(&watcher, 0).await.unwrap();
    assert_eq!(first, world.manifest().await.state);
    let mut swap = world.controls.hold(On::Update, "manifest");
    let (appended, ()) = tokio::join!(append(&leader, "waits"), async {
        swap.arrived().await;
        let early = timeout(5 * SECOND, shown(&watcher, first.stamp.version)).await;
        assert!(early.is_err(), "shown before its swap was answered: {early:?}");
        swap.release();
    });
    appended.unwrap();
    let second = shown(&watcher, first.stamp.version).await.unwrap();
    assert_eq!(second, world.manifest().await.state);
    assert_eq!(second.next_sequence, first.next_sequence + 1);
}

#[tokio::test(start_paused = true)]
async fn a_commit_with_an_unknown_outcome_is_shown_when_a_read_finds_it() {
    for fault in [
        Fault::Lost,
        Fault::LandsUnreported,
        Fault::LandsLate(2 * SECOND),
        Fault::Repeated(SECOND),
    ] {
        let world = World::new();
        let leader = leader(&world, 1).await;
        let watcher = leader.watch();
        let mut version = shown(&watcher, 0).await.unwrap().stamp.version;
        world.controls.once(On::Update, "manifest", fault);
        let (appended, seen) = tokio::join!(append(&leader, "in doubt"), async {
            loop {
                let state = shown(&watcher, version).await.unwrap();
                let stored = world.manifest().await.state;
                assert!(
                    state.stamp.version <= stored.stamp.version,
                    "{fault:?}: nobody has this state"
                );
                assert!(
                    state.stamp.version < stored.stamp.version || state == stored,
                    "{fault:?}"
                );
                version = state.stamp.version;
                if state.next_sequence == 2 {
                    break state;
                }
            }
        });
        appended.unwrap();
        assert_eq!(seen.next_sequence, 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_state_that_is_shown_is_one_of_the_stores() {
    for seed in 0..20 {
        let world = World::new();
        let leader = leader(&world, 1).await;
        world.controls.set_faults(Faults {
            seed,
            write: WriteFaults::each(0.06),
            ..Faults::default()
        });
        let watcher = leader.watch();
        let watch = async {
            let mut version = 0;
            loop {
                let state = shown(&watcher, version).await.unwrap();
                let stored = world.manifest().await.state;
                assert!(state.stamp.version > version, "seed {seed}");
                assert!(
                    state.stamp.version <= stored.stamp.version,
                    "seed {seed}: nobody has this state"
                );
                assert!(
                    state.stamp.version < stored.stamp.version || state == stored,
                    "seed {seed}"
                );
                version = state.stamp.version;
            }
        };
        let load = async {
            for number in 0..40 {
                append_until_acknowledged(&leader, &format!("{number}")).await;
            }
        };
        tokio::select! {
            biased;
            () = load => {}
            () = watch => unreachable!(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watches_end_when_another_producer_leads_or_the_leader_stops() {
    let world = World::new();
    let first = leader(&world, 1).await;
    let watcher = first.watch();
    let version = shown(&watcher, 0).await.unwrap().stamp.version;
    let id = world.manifest().await.state.producers[0].id;
    world
        .change_manifest(|manifest| {
            let other = millpond_manifest::ProducerId([9; 16]);
            *manifest = manifest.register(other, 1);
            manifest.certify(other, Some(Fingerprint([9; 32])));
            manifest.take_lead(other, "10.0.0.9:4319");
        })
        .await;
    let (ended, appended) = tokio::join!(shown(&watcher, version), append(&first, "meets it"));
    appended.unwrap();
    assert_eq!(ended.unwrap_err(), PeerRefusal::NotLeading);
    world
        .change_manifest(|manifest| manifest.take_lead(id, "10.0.0.1:4319"))
        .await;
    append(&first, "leads again").await.unwrap();
    let version = shown(&watcher, 0).await.unwrap().stamp.version;
    let (ended, drained) = tokio::join!(shown(&watcher, version + 10), async {
        sleep(SECOND).await;
        first.drain(10 * SECOND).await
    });
    assert_eq!(ended.unwrap_err(), PeerRefusal::Leaving);
    drained.unwrap();
}
