//! A gateway's producer with its port for others.

#![allow(unreachable_pub, reason = "a module of tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millpond_manifest::{Manifest, ProducerId, Snapshot, cas, layout};
use millpond_peer::{Client, Identity, Server, ServerConfig};
use millpond_producer::{
    Append, Config, LeaderAddress, PeerAnswer, PeerRequest, Peering, Producer, Records, StreamBlock,
};
use millpond_runtime::SystemEnvironment;
use millpond_segment::{BlockBuilder, Compressor, Encoding};
use millpond_storage::Store;
use object_store::memory::InMemory;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const STREAM: &str = "events.test";

/// A gateway's producer, and its port for others.
pub struct Node {
    pub producer: Producer,
    pub identity: Arc<Identity>,
    pub address: String,
}

pub fn store() -> Store {
    Store::over(Arc::new(InMemory::new()), "buffer")
}

impl Node {
    pub async fn start(store: &Store, config: ServerConfig) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Arc::new(Identity::new().unwrap());
        let peering = Peering {
            peers: Arc::new(Client::new(Arc::clone(&identity))),
            certificate: identity.fingerprint(),
            address: Some(address.as_str().into()),
            forward_below: Peering::FORWARD_BELOW,
        };
        let settings = Config {
            linger: Duration::from_millis(20),
            memory_limit: 64 << 20,
            ..Config::default()
        };
        let environment = Arc::new(SystemEnvironment);
        let mut registry = Registry::default();
        let started =
            Producer::start_with(environment, store.clone(), settings, Some(peering), &mut registry);
        let producer = started.await.unwrap();
        let server = Server::new(producer.clone(), &identity, config).unwrap();
        tokio::spawn(server.serve(listener, CancellationToken::new()));
        Node {
            producer,
            identity,
            address,
        }
    }

    pub fn address(&self) -> LeaderAddress {
        LeaderAddress {
            address: self.address.clone(),
            certificate: self.identity.fingerprint(),
        }
    }

    pub async fn append(&self, payload: &str) -> u64 {
        let append = Append {
            stream: STREAM.into(),
            encoding: Encoding::Ndjson,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            records: 1,
            received_at_us: 1,
            reservation: self.producer.budget().nothing(),
        };
        self.producer.append(append).await.unwrap().sequence
    }
}

pub async fn manifest(store: &Store) -> Manifest {
    let found: Option<Snapshot<Manifest>> = cas::read(store, &layout::manifest(0)).await.unwrap();
    found.unwrap().state
}

/// A leader, and a process that has registered and asks by hand.
pub async fn leader_and_member(store: &Store, config: ServerConfig) -> (Node, ProducerId, Client) {
    let leader = Node::start(store, config).await;
    leader.append("first").await;
    let identity = Arc::new(Identity::new().unwrap());
    let id = ProducerId([7; 16]);
    change(store, |manifest| {
        *manifest = manifest.register(id, 0);
        manifest.certify(id, Some(identity.fingerprint()));
    })
    .await;
    (leader, id, Client::new(identity))
}

pub async fn change(store: &Store, mut change: impl FnMut(&mut Manifest)) {
    let key = layout::manifest(0);
    loop {
        let found: Snapshot<Manifest> = cas::read(store, &key).await.unwrap().unwrap();
        let mut state = found.state;
        change(&mut state);
        let swapped = cas::swap(store, &key, Some(&found.version), state.stamped(99)).await;
        if matches!(swapped, cas::Swap::Committed(_)) {
            return;
        }
    }
}

pub fn request(producer: ProducerId, number: u64, payload: &str) -> PeerRequest {
    let mut block = BlockBuilder::new(1);
    block.push(1, payload.as_bytes()).unwrap();
    let block = StreamBlock {
        stream: STREAM.into(),
        encoding: Encoding::Ndjson,
        block: Compressor::new(1).unwrap().compress(&block, 1).unwrap(),
    };
    PeerRequest {
        producer,
        number,
        records: Records::Blocks(vec![block]),
        clients: Vec::new(),
    }
}

pub fn committed(answer: &Result<PeerAnswer, String>) -> u64 {
    match answer {
        Ok(PeerAnswer::Committed(commit)) => commit.first_sequence,
        other => panic!("{other:?}"),
    }
}
