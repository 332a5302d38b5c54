//! Guarantees of every store behind a bad network: no reported write is lost, nothing happens twice, and reading again
//! resolves every outcome.

use crate::{Ground, Kind, WRITERS, concurrent_appends, content, patiently};
use bytes::Bytes;
use millpond_storage::unreliable::{Controls, Faults, Unreliable, WriteFaults};
use millpond_storage::{Created, SelfTestError, Store};
use object_store::memory::InMemory;
use std::sync::Arc;

/// The same store through a network that fails a third of the writes and a tenth of the reads.
fn behind_faults(ground: &Ground, seed: u64) -> (Store, Controls) {
    ground.store.behind(Faults {
        seed,
        write: WriteFaults::each(0.1),
        read_error: 0.1,
        latency: None,
    })
}

async fn every_invariant_holds(kind: Kind) {
    let ground = Ground::new(kind).await;
    for seed in [1, 2] {
        let (store, controls) = behind_faults(&ground, seed);
        appends_happen_once(&store, &format!("{seed}/log")).await;
        one_creation_wins(&store, &controls, &format!("{seed}/race")).await;
        everything_reported_is_there(&store, &controls, &format!("{seed}/objects")).await;
        controls.settled().await;
    }
    let (store, controls) = ground.store.behind(Faults {
        seed: 3,
        // Low enough that eight attempts get every answer.
        write: WriteFaults::each(0.02),
        read_error: 0.02,
        latency: None,
    });
    assert_eq!(store.self_test().await, Ok(()));
    controls.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    every_invariant_holds(Kind::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file() {
    every_invariant_holds(Kind::File).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn minio() {
    every_invariant_holds(Kind::Minio).await;
}

async fn appends_happen_once(store: &Store, key: &str) {
    let unknown = concurrent_appends(std::slice::from_ref(store), key, 4).await;
    assert!(unknown > 0, "no fault happened");
}

async fn one_creation_wins(store: &Store, controls: &Controls, folder: &str) {
    for round in 0..5 {
        let key = format!("{folder}/{round}");
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (store, key) = (store.clone(), key.clone());
            writers.spawn(async move {
                let body = Bytes::from(format!("by {writer}"));
                let put = || store.put_if_absent(&key, vec![body.clone()]);
                (patiently(put).await, body)
            });
        }
        let claims = writers.join_all().await;
        controls.settled().await;
        let found = content(store, &key).await.expect("one of them wrote it");
        let winners: Vec<_> = claims
            .iter()
            .filter(|(claim, _)| *claim == Created::New)
            .collect();
        // The winner may get "existed", if its own write was reported as an error.
        assert!(winners.len() <= 1, "{claims:?}");
        assert!(winners.iter().all(|(_, body)| *body == found), "{claims:?}");
        assert!(claims.iter().any(|(_, body)| *body == found));
    }
}

async fn everything_reported_is_there(store: &Store, controls: &Controls, folder: &str) {
    let keys: Vec<_> = (0..100).map(|i| format!("{folder}/{i:03}")).collect();
    for key in &keys {
        patiently(|| store.put_if_absent(key, vec![key.clone().into()])).await;
    }
    for key in &keys {
        assert_eq!(content(store, key).await, Some(key.clone().into()));
        let size = patiently(|| store.head(key)).await.expect("there").size;
        let half = patiently(|| store.get_range(key, 0..size / 2)).await;
        let wanted = Bytes::copy_from_slice(&key.as_bytes()[..key.len() / 2]);
        assert_eq!(half, Some(wanted));
    }
    let listed = patiently(|| store.list(folder)).await;
    assert!(listed.iter().map(|object| &object.key).eq(&keys));
    for key in &keys {
        patiently(|| store.delete(key)).await;
    }
    controls.settled().await;
    assert_eq!(patiently(|| store.list(folder)).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_network_makes_a_good_store_look_unfit() {
    let mut tests = tokio::task::JoinSet::new();
    for seed in 0..48u32 {
        // Up to three failures in four writes.
        let probability = f64::from(seed % 8) / 28.0;
        let faults = Faults {
            seed: u64::from(seed),
            write: WriteFaults::each(probability),
            read_error: probability,
            latency: None,
        };
        tests.spawn(async move {
            let unreliable = Unreliable::new(Arc::new(InMemory::new()), faults);
            let verdict = Store::over(Arc::new(unreliable), "").self_test().await;
            (seed, verdict)
        });
    }
    for (seed, verdict) in tests.join_all().await {
        assert!(
            matches!(verdict, Ok(()) | Err(SelfTestError::Unanswered(_))),
            "seed {seed}: {verdict:?}"
        );
        assert!(seed % 8 != 0 || verdict.is_ok());
    }
}
