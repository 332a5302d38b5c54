//! The port for consumers, over real connections: who hears of commits, and what hostile clients can do.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Node, change, committed, leader_and_member, manifest, request, store};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use millpond_consumer::{Leaders, WatchError, WatchedLeader};
use millpond_manifest::{
    BatchingPolicy, Buffer, Cursor, Fingerprint, Manifest, Object, ProducerId, Snapshot, cas, layout,
};
use millpond_peer::{Client, Identity, ServerConfig, WatchClient, foreign};
use millpond_producer::{CURSOR_MEMORY, Peers};
use millpond_storage::Store;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// A consumer's process that owns a cursor in the shard.
async fn consumer(store: &Store, name: &str) -> (Arc<Identity>, WatchClient) {
    let identity = Arc::new(Identity::new().unwrap());
    cursor(store, 0, name, &identity).await;
    (Arc::clone(&identity), WatchClient::new(identity))
}

/// Writes the cursor of a consumer that this identity owns.
pub(crate) async fn cursor(store: &Store, shard: u32, name: &str, identity: &Identity) -> Cursor {
    let buffer: Snapshot<Buffer> = cas::read(store, layout::BUFFER).await.unwrap().unwrap();
    let policy = BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1,
        chunk_rows: 1,
        chunk_bytes: 1,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: "test".into(),
        schema_version: 1,
    };
    let mut cursor = Cursor::new(buffer.state.id, shard, name, 0, policy);
    cursor.certificate = Some(identity.fingerprint());
    let cursor = cursor.stamped(1);
    let swapped = cas::swap(store, &layout::cursor(shard, name), None, cursor.clone()).await;
    assert!(matches!(swapped, cas::Swap::Committed(_)));
    cursor
}

impl Node {
    fn watched(&self) -> WatchedLeader {
        WatchedLeader {
            shard: 0,
            address: self.address.clone(),
            certificate: self.identity.fingerprint(),
        }
    }
}

async fn watch(
    client: &WatchClient,
    leader: &Node,
    name: &str,
    newer_than: u64,
) -> Result<Manifest, WatchError> {
    let mut connection = client.connect(&leader.watched()).await.unwrap();
    let bytes = connection.watch(name, newer_than).await?;
    Ok(Manifest::decode(&bytes).unwrap())
}

fn refused(answer: Result<Manifest, WatchError>, status: &str) {
    match answer {
        Err(WatchError::Refused(reason)) => assert!(reason.contains(status), "{reason}"),
        other => panic!("{other:?} instead of {status}"),
    }
}

#[tokio::test]
async fn a_consumer_hears_of_commits() {
    let store = store();
    let leader = Node::start(&store, ServerConfig::default()).await;
    leader.append("leads").await;
    let (_, client) = consumer(&store, "default").await;
    let mut connection = client.connect(&leader.watched()).await.unwrap();
    let first = connection.watch("default", 0).await.unwrap();
    assert_eq!(Manifest::decode(&first).unwrap(), manifest(&store).await);
    let mut known = manifest(&store).await;
    for number in 0..5 {
        let text = format!("number {number}");
        let (heard, sequence) = tokio::join!(
            connection.watch("default", known.stamp.version),
            leader.append(&text),
        );
        let heard = Manifest::decode(&heard.unwrap()).unwrap();
        assert!(heard.stamp.version > known.stamp.version);
        assert_eq!(heard.next_sequence, sequence + 1);
        assert_eq!(heard, manifest(&store).await);
        known = heard;
    }
}

/// Its consumer polls. A request that waits for so much memory would keep all others waiting.
#[tokio::test]
async fn a_cursor_is_read_only_if_its_memory_is_free() {
    let store = store();
    let leader = Node::start(&store, ServerConfig::default()).await;
    leader.append("leads").await;
    let (_, client) = consumer(&store, "default").await;
    let budget = leader.producer.budget();
    let held = budget.try_reserve(budget.limit() - budget.held() - CURSOR_MEMORY + 1);
    assert!(held.is_some());
    let others = async {
        loop {
            assert!(
                budget.try_reserve(1).is_some(),
                "others wait for the memory of a cursor"
            );
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        answer = watch(&client, &leader, "default", 0) => refused(answer, "503"),
        () = others => {}
    }
    drop(held);
    sleep(Duration::from_secs(1)).await;
    watch(&client, &leader, "default", 0).await.unwrap();
}

#[tokio::test]
async fn only_the_owner_of_a_cursor_may_watch_and_only_as_its_consumer() {
    let store = store();
    let (leader, id, member) = leader_and_member(&store, ServerConfig::default()).await;
    let (identity, client) = consumer(&store, "default").await;
    watch(&client, &leader, "default", 0).await.unwrap();
    // No cursor, another consumer's cursor, the certificate of another process.
    refused(watch(&client, &leader, "nobody", 0).await, "403");
    let (_, other) = consumer(&store, "other").await;
    refused(watch(&client, &leader, "other", 0).await, "403");
    watch(&other, &leader, "other", 0).await.unwrap();
    let stranger = WatchClient::new(Arc::new(Identity::new().unwrap()));
    refused(watch(&stranger, &leader, "default", 0).await, "403");
    // Names that would make another key.
    for name in ["default.repair", "../0000/consumers/default", "default/cursor"] {
        refused(watch(&client, &leader, name, 0).await, "400");
    }
    // The certificate of a producer, even of the leader.
    refused(
        watch(
            &WatchClient::new(Arc::clone(&leader.identity)),
            &leader,
            "default",
            0,
        )
        .await,
        "403",
    );
    // A consumer's certificate commits nothing: neither as a producer nor under any other id.
    let next = manifest(&store).await.next_sequence;
    let commits = Client::new(identity);
    for producer in [id, ProducerId([0; 16])] {
        let answer = commits.ask(&leader.address(), request(producer, 1, "x")).await;
        assert!(answer.unwrap_err().contains("403"));
    }
    assert_eq!(manifest(&store).await.next_sequence, next);
    // A server with another key than the leader's is not asked at all.
    let wrong = WatchedLeader {
        certificate: Fingerprint([0; 32]),
        ..leader.watched()
    };
    let error = client.connect(&wrong).await.err().unwrap();
    assert!(error.contains("certificate"), "{error}");
    committed(&member.ask(&leader.address(), request(id, 1, "x")).await);
}

#[tokio::test]
async fn a_cursor_that_was_taken_over_vouches_for_its_new_owner_alone() {
    let store = store();
    let leader = Node::start(&store, ServerConfig::default()).await;
    leader.append("leads").await;
    let (_, client) = consumer(&store, "default").await;
    watch(&client, &leader, "default", 0).await.unwrap();
    let identity = Arc::new(Identity::new().unwrap());
    let key = layout::cursor(0, "default");
    let found: Snapshot<Cursor> = cas::read(&store, &key).await.unwrap().unwrap();
    let mut taken = found.state;
    taken.certificate = Some(identity.fingerprint());
    let swapped = cas::swap(&store, &key, Some(&found.version), taken.stamped(2)).await;
    assert!(matches!(swapped, cas::Swap::Committed(_)));
    watch(&WatchClient::new(identity), &leader, "default", 0)
        .await
        .unwrap();
    refused(watch(&client, &leader, "default", 0).await, "403");
}

#[tokio::test]
async fn watches_end_when_the_leader_stops_or_leads_no_more() {
    let store = store();
    let (leader, id, _) = leader_and_member(&store, ServerConfig::default()).await;
    let (_, client) = consumer(&store, "default").await;
    let version = watch(&client, &leader, "default", 0).await.unwrap().stamp.version;
    let (ended, ()) = tokio::join!(watch(&client, &leader, "default", version), async {
        change(&store, |manifest| manifest.take_lead(id, "127.0.0.1:1")).await;
        leader.append("meets the other leader").await;
    });
    // The append may commit first, because the leader met another state.
    let ended = match ended {
        Ok(manifest) => watch(&client, &leader, "default", manifest.stamp.version).await,
        ended => ended,
    };
    assert_eq!(ended, Err(WatchError::NotLeading));
    change(&store, |manifest| manifest.leader = None).await;
    leader.append("meets that nobody leads").await;
    leader.append("leads again").await;
    let version = watch(&client, &leader, "default", 0).await.unwrap().stamp.version;
    let (ended, drained) = tokio::join!(
        watch(&client, &leader, "default", version + 10),
        leader.producer.drain(Duration::from_secs(10)),
    );
    assert_eq!(ended, Err(WatchError::NotLeading));
    drained.unwrap();
}

/// A connection by hand, with these settings.
async fn by_hand(
    leader: &Node,
    identity: &Identity,
    builder: &mut http2::Builder<TokioExecutor>,
) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(&leader.address).await.unwrap();
    let stream = foreign::connect(identity, leader.identity.fingerprint(), stream)
        .await
        .unwrap();
    let (send, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    send
}

fn watch_request(name: &str, newer_than: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post("https://millpond/v1/watch")
        .header("millpond-consumer", name)
        .header("millpond-newer-than", newer_than)
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

#[tokio::test]
async fn malformed_and_oversized_watches_are_refused() {
    let store = store();
    let leader = Node::start(&store, ServerConfig::default()).await;
    leader.append("leads").await;
    let (identity, _) = consumer(&store, "default").await;
    let mut send = by_hand(&leader, &identity, &mut http2::Builder::new(TokioExecutor::new())).await;
    let long = "x".repeat(2_000);
    for (request, expected) in [
        (watch_request("default", "-1", ""), StatusCode::BAD_REQUEST),
        (
            watch_request("default", "18446744073709551616", ""),
            StatusCode::BAD_REQUEST,
        ),
        (watch_request(&long, "0", ""), StatusCode::BAD_REQUEST),
        (
            watch_request("default", "0", "a body"),
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (watch_request("default", "0", ""), StatusCode::OK),
    ] {
        let response = send.send_request(request).await.unwrap();
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_dropped_and_its_copy_with_it() {
    let store = store();
    let config = ServerConfig {
        patience: Duration::from_millis(500),
        ..ServerConfig::default()
    };
    let leader = Node::start(&store, config).await;
    leader.append("leads").await;
    let (identity, client) = consumer(&store, "default").await;
    // A manifest that is larger than a window of nothing.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let mut send = by_hand(&leader, &identity, &mut builder).await;
    let response = send
        .send_request(watch_request("default", "0", ""))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await;
    assert!(body.is_err(), "{body:?}");
    let sequence = leader.append("goes on").await;
    let heard = watch(&client, &leader, "default", 0).await.unwrap();
    assert_eq!(heard.next_sequence, sequence + 1);
}

#[tokio::test]
async fn many_watchers_keep_neither_a_member_nor_a_consumer_out() {
    let store = store();
    let config = ServerConfig {
        max_watchers: 8,
        ..ServerConfig::default()
    };
    let (leader, id, member) = leader_and_member(&store, config).await;
    let (_, client) = consumer(&store, "crowd").await;
    let version = manifest(&store).await.stamp.version;
    let mut crowd = Vec::new();
    for _ in 0..8 {
        let mut connection = client.connect(&leader.watched()).await.unwrap();
        connection.watch("crowd", 0).await.unwrap();
        crowd.push(connection);
    }
    // There is a place for no more of them, and one as soon as one has gone.
    refused(watch(&client, &leader, "crowd", 0).await, "503");
    crowd.pop();
    let mut good = client.connect(&leader.watched()).await.unwrap();
    while let Err(refused) = good.watch("crowd", 0).await {
        assert!(matches!(refused, WatchError::Refused(_)), "{refused:?}");
        tokio::task::yield_now().await;
    }
    let waiting: Vec<_> = crowd
        .into_iter()
        .map(|mut connection| tokio::spawn(async move { connection.watch("crowd", version).await }))
        .collect();
    let address = leader.address();
    let (heard, answer) = tokio::join!(
        good.watch("crowd", version),
        member.ask(&address, request(id, 1, "x")),
    );
    committed(&answer);
    assert!(Manifest::decode(&heard.unwrap()).unwrap().stamp.version > version);
    for waited in waiting {
        let heard = waited.await.unwrap().unwrap();
        assert!(Manifest::decode(&heard).unwrap().stamp.version > version);
    }
}
