//! The port for other producers, over real connections: who gets what, and what hostile clients can do.

use crate::support::{Node, change, committed, leader_and_member, manifest, request, store};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::server::conn as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use millpond_manifest::{ClientClaim, ClientId, Fingerprint, Numbers, ProducerId};
use millpond_peer::{Client, Identity, ServerConfig, foreign};
use millpond_producer::{LeaderAddress, PeerAnswer, PeerCommit, PeerRefusal, PeerRequest, Peers, Records};
use millpond_segment::Encoding;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn two_gateways_share_commits_over_a_real_connection() {
    let store = store();
    let leader = Node::start(&store, ServerConfig::default()).await;
    leader.append("leads").await;
    let follower = Node::start(&store, ServerConfig::default()).await;
    for number in 0..5 {
        follower.append(&format!("number {number}")).await;
    }
    let state = manifest(&store).await;
    assert!(state.leader.as_ref().unwrap().shared >= 4, "{:?}", state.leader);
    assert_eq!(state.leader.unwrap().address, leader.address);
}

#[tokio::test]
async fn a_repeated_request_gets_the_answer_of_the_first() {
    let store = store();
    let (leader, id, client) = leader_and_member(&store, ServerConfig::default()).await;
    let address = leader.address();
    let (one, two) = tokio::join!(
        client.ask(&address, request(id, 1, "once")),
        client.ask(&address, request(id, 1, "once")),
    );
    let sequence = committed(&one);
    assert_eq!(committed(&two), sequence);
    let replayed = client.ask(&leader.address(), request(id, 1, "once")).await;
    assert_eq!(committed(&replayed), sequence);
    assert_eq!(manifest(&store).await.producer(id).unwrap().commit, 1);
    let later = client.ask(&leader.address(), request(id, 2, "two")).await;
    assert!(committed(&later) > sequence);
    // Too old: its place in the log is forgotten.
    let stale = client.ask(&leader.address(), request(id, 1, "once")).await;
    assert!(
        matches!(stale, Ok(PeerAnswer::Refused(PeerRefusal::Invalid(_)))),
        "{stale:?}"
    );
    let gap = client.ask(&leader.address(), request(id, 9, "nine")).await;
    assert!(
        matches!(gap, Ok(PeerAnswer::Refused(PeerRefusal::Invalid(_)))),
        "{gap:?}"
    );
    assert_eq!(manifest(&store).await.producer(id).unwrap().commit, 2);
}

#[tokio::test]
async fn a_stranger_gets_nothing() {
    let store = store();
    let (leader, id, member) = leader_and_member(&store, ServerConfig::default()).await;
    let next = manifest(&store).await.next_sequence;
    // Another key than the one that the manifest has for this id.
    let stranger = Client::new(Arc::new(Identity::new().unwrap()));
    let answer = stranger
        .ask(&leader.address(), request(id, 1, "x"))
        .await
        .unwrap_err();
    assert!(answer.contains("does not vouch"), "{answer}");
    // An id that nobody has registered.
    let answer = stranger
        .ask(&leader.address(), request(ProducerId([8; 16]), 1, "x"))
        .await;
    assert!(answer.unwrap_err().contains("403"));
    // A server with another key than the leader's is not asked at all.
    let wrong = LeaderAddress {
        certificate: Fingerprint([0; 32]),
        ..leader.address()
    };
    let answer = member.ask(&wrong, request(id, 1, "x")).await.unwrap_err();
    assert!(answer.contains("certificate"), "{answer}");
    assert_eq!(manifest(&store).await.next_sequence, next);
    // The manifest forgets the member.
    change(&store, |manifest| manifest.producers.retain(|row| row.id != id)).await;
    leader.append("makes the leader look").await;
    let answer = member
        .ask(&leader.address(), request(id, 1, "x"))
        .await
        .unwrap_err();
    assert!(answer.contains("403"), "{answer}");
}

#[tokio::test]
async fn a_member_that_registered_later_is_found_in_the_manifest() {
    let store = store();
    let (leader, ..) = leader_and_member(&store, ServerConfig::default()).await;
    let identity = Arc::new(Identity::new().unwrap());
    let id = ProducerId([9; 16]);
    change(&store, |manifest| {
        *manifest = manifest.register(id, 0);
        manifest.certify(id, Some(identity.fingerprint()));
    })
    .await;
    let answer = Client::new(identity)
        .ask(&leader.address(), request(id, 1, "x"))
        .await;
    committed(&answer);
}

#[tokio::test]
async fn a_member_can_only_ask_for_itself_and_within_the_limits() {
    let store = store();
    let config = ServerConfig {
        max_request_bytes: 10_000,
        ..ServerConfig::default()
    };
    let (leader, id, client) = leader_and_member(&store, config).await;
    let mut state = 1_u32;
    let noise: String = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        char::from(b'0' + state.to_le_bytes()[1] % 64)
    })
    .take(60_000)
    .collect();
    let answer = client
        .ask(&leader.address(), request(id, 1, &noise))
        .await
        .unwrap_err();
    assert!(answer.contains("413"), "{answer}");
    // A block that was damaged on its way.
    let mut damaged = request(id, 1, "x");
    if let Records::Blocks(blocks) = &mut damaged.records {
        let mut bytes = blocks[0].block.bytes.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        blocks[0].block.bytes = bytes.into();
    }
    let answer = client.ask(&leader.address(), damaged).await.unwrap_err();
    assert!(answer.contains("400") && answer.contains("checksum"), "{answer}");
    // A stream of another encoding spoils nobody's segment.
    let mut other = request(id, 1, "x");
    if let Records::Blocks(blocks) = &mut other.records {
        blocks[0].encoding = Encoding::Otlp;
    }
    let address = leader.address();
    let (answer, own) = tokio::join!(client.ask(&address, other), leader.append("goes on"));
    assert!(
        matches!(answer, Ok(PeerAnswer::Refused(PeerRefusal::Invalid(_)))),
        "{answer:?}"
    );
    assert!(own > 0);
    let nothing = PeerRequest {
        records: Records::Blocks(Vec::new()),
        ..request(id, 1, "x")
    };
    let answer = client.ask(&leader.address(), nothing).await;
    assert!(
        matches!(answer, Ok(PeerAnswer::Refused(PeerRefusal::Invalid(_)))),
        "{answer:?}"
    );
    committed(&client.ask(&leader.address(), request(id, 1, "x")).await);
}

#[tokio::test]
async fn a_member_pays_for_what_its_request_takes_in_memory() {
    let store = store();
    let (leader, id, client) = leader_and_member(&store, ServerConfig::default()).await;
    let mut tiny = request(id, 1, "x");
    if let Records::Blocks(blocks) = &mut tiny.records {
        let block = &mut blocks[0];
        block.stream = "".into();
        block.block.bytes = Bytes::new();
        block.block.records = 0;
        block.block.first_received_at_us = 0;
        block.block.last_received_at_us = 0;
        // Less than 2 MiB as a request, and more than a hundred as structures.
        *blocks = vec![block.clone(); 500_000];
    }
    let answer = client.ask(&leader.address(), tiny).await;
    assert_eq!(answer, Ok(PeerAnswer::Refused(PeerRefusal::OverBudget)));
    committed(&client.ask(&leader.address(), request(id, 1, "x")).await);
}

#[tokio::test]
async fn slow_and_silent_connections_do_not_keep_a_member_out() {
    let store = store();
    let config = ServerConfig {
        max_connections: 50,
        ..ServerConfig::default()
    };
    let (leader, id, client) = leader_and_member(&store, config).await;
    let mut silent = Vec::new();
    for number in 0..500_u32 {
        if let Ok(mut stream) = TcpStream::connect(&leader.address).await {
            if number % 2 == 0 {
                // The start of a TLS record that never ends.
                let _ = stream.write_all(&[22, 3, 1, 2, 0, 1]).await;
            }
            silent.push(stream);
        }
    }
    for number in 1..=3 {
        committed(&client.ask(&leader.address(), request(id, number, "x")).await);
    }
    assert_eq!(silent.len(), 500);
}

#[tokio::test]
async fn plaintext_gets_no_answer() {
    let store = store();
    let (leader, ..) = leader_and_member(&store, ServerConfig::default()).await;
    let stream = TcpStream::connect(&leader.address).await.unwrap();
    let opened = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let Ok((mut send, connection)) = opened else {
        return;
    };
    let driver = tokio::spawn(connection);
    let request = Request::post("http://millpond/v1/commit")
        .body(Full::new(Bytes::new()))
        .unwrap();
    if let Ok(response) = send.send_request(request).await {
        assert_ne!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await;
        panic!("plaintext was answered: {body:?}");
    }
    driver.abort();
}

fn numbered(client: u8, numbers: Numbers) -> ClientClaim {
    ClientClaim {
        client: ClientId([client; 16]),
        numbers,
        checksum: 3,
        segment: 0,
        source: None,
    }
}

#[tokio::test]
async fn numbered_requests_reach_the_log_with_their_clients() {
    let store = store();
    let (leader, id, client) = leader_and_member(&store, ServerConfig::default()).await;
    let sequence = Numbers::Sequence {
        epoch: 2,
        first: 0,
        count: 5,
    };
    let all = PeerRequest {
        clients: vec![
            numbered(1, Numbers::Counted { number: 1 }),
            numbered(2, sequence),
            numbered(3, Numbers::Once),
        ],
        ..request(id, 1, "x")
    };
    let place = committed(&client.ask(&leader.address(), all).await);
    let state = manifest(&store).await;
    let rows = state.clients.iter().chain(&state.keys);
    let rows: Vec<_> = rows
        .map(|row| (row.epoch, row.last, row.sequence, row.checksum))
        .collect();
    assert_eq!(rows, [(0, 1, place, 3), (2, 5, place, 3), (0, 1, place, 3)]);
    // One of them again: nothing of the request is in the log.
    let again = PeerRequest {
        clients: vec![numbered(4, Numbers::Once), numbered(3, Numbers::Once)],
        ..request(id, 2, "y")
    };
    let refused = client.ask(&leader.address(), again).await;
    assert_eq!(refused, Ok(PeerAnswer::Refused(PeerRefusal::Client)));
    let state = manifest(&store).await;
    assert_eq!((state.producer(id).unwrap().commit, state.keys.len()), (1, 1));
}

/// A leader of a version that knows one path, and answers each request on it.
async fn older_leader() -> LeaderAddress {
    let identity = Identity::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let leader = LeaderAddress {
        address: listener.local_addr().unwrap().to_string(),
        certificate: identity.fingerprint(),
    };
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = foreign::accept(&identity, stream).await.unwrap();
        let answer = service_fn(|request: Request<Incoming>| async move {
            let commit = PeerCommit {
                first_sequence: 9,
                closes: None,
            };
            let body = foreign::encode_reply(&PeerAnswer::Committed(commit));
            let mut response = Response::new(Full::new(body));
            if request.uri().path() != "/v1/commit" {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            Ok::<_, Infallible>(response)
        });
        let served = server::http2::Builder::new(TokioExecutor::new());
        let _ = served.serve_connection(TokioIo::new(stream), answer).await;
    });
    leader
}

#[tokio::test]
async fn a_leader_of_an_older_version_gets_no_numbered_request() {
    let leader = older_leader().await;
    let client = Client::new(Arc::new(Identity::new().unwrap()));
    let plain = request(ProducerId([7; 16]), 1, "x");
    let with_client = PeerRequest {
        clients: vec![numbered(1, Numbers::Once)],
        ..plain.clone()
    };
    let answer = client.ask(&leader, with_client).await;
    assert_eq!(answer, Ok(PeerAnswer::Refused(PeerRefusal::Unnumbered)));
    assert_eq!(committed(&client.ask(&leader, plain).await), 9);
}
