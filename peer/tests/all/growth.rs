//! A leader whose buffer grows: it hands its shard over, and leads the new one at the same port.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millpond_consumer::{Leaders, WatchError, WatchedLeader};
use millpond_manifest::{Buffer, Cursor, Leader, Manifest, Object, Snapshot, cas, layout};
use millpond_peer::{Client, Identity, Server, ServerConfig, WatchClient};
use millpond_producer::{Append, Config, NewPeering, Peering, Producers};
use millpond_runtime::{Environment, SystemEnvironment};
use millpond_segment::Encoding;
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::store;
use crate::watch::cursor;

/// A longer wait means that something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The system's clocks, and random numbers from the upper half: a process moves whenever it may.
struct Restless;

impl Environment for Restless {
    fn now_us(&self) -> i64 {
        SystemEnvironment.now_us()
    }

    fn uptime(&self) -> Duration {
        SystemEnvironment.uptime()
    }

    fn random(&self) -> u64 {
        SystemEnvironment.random() | 1 << 63
    }
}

struct Process {
    producers: Producers,
    identity: Arc<Identity>,
    address: String,
}

impl Process {
    async fn start(store: &Store, shard: Option<u32>) -> Process {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Arc::new(Identity::new().unwrap());
        let config = Config {
            linger: Duration::from_millis(20),
            memory_limit: 64 << 20,
            shard,
            growth_interval: Duration::from_millis(50),
            ..Config::default()
        };
        let peering: NewPeering = {
            let (identity, address) = (Arc::clone(&identity), address.clone());
            Arc::new(move || Peering {
                peers: Arc::new(Client::new(Arc::clone(&identity))),
                certificate: identity.fingerprint(),
                address: Some(address.as_str().into()),
                forward_below: Peering::FORWARD_BELOW,
            })
        };
        let mut registry = Registry::default();
        let started = Producers::start(
            Arc::new(Restless),
            store.clone(),
            config,
            Some(peering),
            &mut registry,
        );
        let producers = started.await.unwrap();
        let server = Server::new(producers.clone(), &identity, ServerConfig::default()).unwrap();
        tokio::spawn(server.serve(listener, CancellationToken::new()));
        let following = producers.clone();
        tokio::spawn(async move { following.follow_growth().await });
        Process {
            producers,
            identity,
            address,
        }
    }

    async fn append(&self) {
        let append = Append {
            stream: "events.test".into(),
            encoding: Encoding::Ndjson,
            payload: Bytes::from_static(b"{}"),
            records: 1,
            received_at_us: 1,
            reservation: self.producers.budget().nothing(),
        };
        self.producers.append(append).await.unwrap();
    }

    fn watched(&self, shard: u32) -> WatchedLeader {
        WatchedLeader {
            shard,
            address: self.address.clone(),
            certificate: self.identity.fingerprint(),
        }
    }
}

async fn leader(store: &Store, shard: u32) -> Option<Leader> {
    let found: Option<Snapshot<Manifest>> = cas::read(store, &layout::manifest(shard)).await.unwrap();
    found.and_then(|found| found.state.leader)
}

/// Appends until the shard's manifest names a leader at this address.
async fn leads(process: &Process, store: &Store, shard: u32) {
    let leads = async {
        while leader(store, shard)
            .await
            .is_none_or(|it| it.address != process.address)
        {
            process.append().await;
        }
    };
    timeout(PATIENCE, leads).await.expect("it leads");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_moves_hands_its_shard_over_and_leads_the_new_one() {
    let store = store();
    let mover = Process::start(&store, None).await;
    leads(&mover, &store, 0).await;
    let stays = Process::start(&store, Some(0)).await;
    stays.append().await;
    let identity = Arc::new(Identity::new().unwrap());
    for shard in [0, 1] {
        let cursor: Cursor = cursor(&store, shard, "watcher", &identity).await;
        assert_eq!(cursor.shard, shard);
    }

    let found: Snapshot<Buffer> = cas::read(&store, layout::BUFFER).await.unwrap().unwrap();
    let grown = found.state.grow(2, 7).unwrap().unwrap();
    let swapped = cas::swap(&store, layout::BUFFER, Some(&found.version), grown).await;
    assert!(matches!(swapped, cas::Swap::Committed(_)));
    let moves = async {
        while mover.producers.shard() != 1 {
            stays.append().await;
        }
    };
    timeout(PATIENCE, moves).await.expect("it moves");
    leads(&stays, &store, 0).await;
    leads(&mover, &store, 1).await;

    // The port commits for a follower in the new shard, and shows each shard's own manifest or none.
    let follower = Process::start(&store, Some(1)).await;
    let before = leader(&store, 1).await.unwrap().shared;
    let follows = async {
        while leader(&store, 1).await.is_some_and(|it| it.shared == before) {
            follower.append().await;
        }
    };
    timeout(PATIENCE, follows)
        .await
        .expect("the leader commits for it");
    let watcher = WatchClient::new(identity);
    let mut connection = watcher.connect(&mover.watched(1)).await.unwrap();
    let bytes = connection.watch("watcher", 0).await.unwrap();
    assert_eq!(Manifest::decode(&bytes).unwrap().shard, 1);
    let gone = async {
        let mut connection = watcher.connect(&mover.watched(0)).await.unwrap();
        while connection.watch("watcher", 0).await != Err(WatchError::NotLeading) {
            sleep(Duration::from_millis(5)).await;
            connection = watcher.connect(&mover.watched(0)).await.unwrap();
        }
    };
    timeout(PATIENCE, gone)
        .await
        .expect("it leads the old shard no more");
}
