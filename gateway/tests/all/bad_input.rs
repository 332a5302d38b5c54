//! Malformed, oversized and truncated input: each gets an error that explains the problem, nothing hangs, and no memory
//! is kept.

use std::io::Write;
use std::time::Duration;

use crate::common::{PATIENCE, Pieces, SHORT, framed, logs, logs_of, producer_config, start};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::join_all;
use millpond_gateway::Config;
use millpond_storage::unreliable::On;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

const GZIP: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
const ZSTD: &[(&str, &str)] = &[("grpc-encoding", "zstd")];

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// Compresses like a client that does not know the length in advance.
fn zstd(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder");
    encoder.window_log(window_log).expect("a window");
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_otlp_is_invalid_argument_and_says_where() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut request = logs(3).encode_to_vec();
    request.truncate(request.len() - 1);
    for (headers, message) in [
        (&[][..], framed(false, &request)),
        (GZIP, framed(true, &gzip(&request))),
        (ZSTD, framed(true, &zstd(&request, 20))),
    ] {
        let status = gateway.send(headers, Pieces::of(message)).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status.message().contains("resource_logs[0]") && status.message().contains("byte"),
            "{status}"
        );
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_cut_at_any_byte_is_refused_and_in_any_pieces_accepted() {
    let gateway = start(producer_config(), Config::default()).await;
    let message = framed(false, &logs(2).encode_to_vec());
    for length in 0..message.len() {
        let status = gateway.send(&[], Pieces::of(message[..length].to_vec())).await;
        assert_eq!(
            status.code(),
            Code::InvalidArgument,
            "{length} of {} bytes",
            message.len()
        );
    }
    let status = gateway.send(&[], Pieces::bytewise(&message)).await;
    assert_eq!(status.code(), Code::Ok, "{status}");
    let mut two = message.clone();
    two.extend_from_slice(&message);
    let status = gateway.send(&[], Pieces::of(two)).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bytes_that_are_cut_or_wrong_are_refused() {
    let gateway = start(producer_config(), Config::default()).await;
    let request = logs(20).encode_to_vec();
    for (headers, compressed) in [(GZIP, gzip(&request)), (ZSTD, zstd(&request, 20))] {
        for length in 0..compressed.len() {
            let status = gateway
                .send(headers, Pieces::of(framed(true, &compressed[..length])))
                .await;
            assert_eq!(
                status.code(),
                Code::InvalidArgument,
                "{headers:?} {length}: {status}"
            );
        }
        let status = gateway.send(headers, Pieces::of(framed(true, &request))).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("malformed"), "{status}");
    }
    let status = gateway.send(&[], Pieces::of(framed(true, &gzip(&request)))).await;
    assert_eq!(status.code(), Code::Internal, "{status}");
    let mut message = framed(false, &request);
    message[0] = 2;
    let status = gateway.send(&[], Pieces::of(message)).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_long_is_refused_for_good_at_the_limit_and_no_sooner() {
    let request = logs_of(10, 10_000).encode_to_vec();
    let config = |max_message_bytes| Config {
        max_message_bytes,
        ..Config::default()
    };
    let all = [
        (&[][..], framed(false, &request)),
        (GZIP, framed(true, &gzip(&request))),
        (ZSTD, framed(true, &zstd(&request, 20))),
    ];
    let exact = start(producer_config(), config(request.len())).await;
    for (headers, message) in &all {
        let status = exact.send(headers, Pieces::of(message.clone())).await;
        assert_eq!(status.code(), Code::Ok, "{status}");
    }
    let short = start(producer_config(), config(request.len() - 1)).await;
    for (headers, message) in &all {
        let status = short.send(headers, Pieces::of(message.clone())).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("message too large"), "{status}");
    }
    short.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_promises_gigabytes_costs_nothing() {
    let gateway = start(producer_config(), Config::default()).await;
    let status = gateway
        .send(&[], Pieces::stalling(vec![0, 0xff, 0xff, 0xff, 0xff]))
        .await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("4294967295 bytes"), "{status}");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_are_refused_within_the_budget() {
    // 256 MiB against a budget of 16 MiB.
    let zeros = vec![0; 256 << 20];
    let gateway = start(producer_config(), Config::default()).await;
    for (headers, bomb) in [(GZIP, gzip(&zeros)), (ZSTD, zstd(&zeros, 20))] {
        assert!(zeros.len() / bomb.len() > 100);
        let status = gateway.send(headers, Pieces::of(framed(true, &bomb))).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(
            status.message().contains("message too large: more than"),
            "{status}"
        );
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zstd_window_of_128_mib_is_refused() {
    let gateway = start(producer_config(), Config::default()).await;
    let status = gateway
        .send(
            ZSTD,
            Pieces::of(framed(true, &zstd(&logs(1000).encode_to_vec(), 27))),
        )
        .await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let status = gateway
        .send(
            ZSTD,
            Pieces::of(framed(true, &zstd(&logs(1000).encode_to_vec(), 23))),
        )
        .await;
    assert_eq!(status.code(), Code::Ok, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stalls_in_mid_body_is_given_up() {
    let config = Config {
        read_timeout: SHORT,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let message = framed(false, &logs(100).encode_to_vec());
    let stalls = [0, 3, message.len() / 2, message.len()].map(async |length| {
        let status = gateway
            .send(&[], Pieces::stalling(message[..length].to_vec()))
            .await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().contains(&format!("{length} bytes")), "{status}");
    });
    join_all(stalls).await;
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_does_not_speak_http2_is_closed() {
    let config = Config {
        handshake_timeout: SHORT,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let noise: Vec<u8> = (0u32..4096)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0])
        .collect();
    let connections = [
        &b""[..],
        b"PRI",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &noise,
        &PREFACE[..23],
    ]
    .map(async |bytes| {
        let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
        stream.write_all(bytes).await.expect("written");
        let mut answer = Vec::new();
        // Closed, or reset with unread data.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .expect("an end");
        if bytes.starts_with(b"GET") {
            let answer = String::from_utf8(answer).expect("text");
            assert!(
                answer.starts_with("HTTP/1.1 505 ") && answer.contains("--listen-http"),
                "{answer}"
            );
        }
    });
    join_all(connections).await;
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stalls_in_mid_frame_is_closed() {
    let short = Duration::from_millis(50);
    let config = Config {
        keepalive_interval: short,
        keepalive_timeout: short,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
    stream.write_all(PREFACE).await.expect("written");
    stream
        .write_all(b"\x00\xff\xff\x09 the frame goes on")
        .await
        .expect("written");
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_more_takes_the_place_of_an_idle_one_but_not_of_one_at_work() {
    let gateway = start(
        producer_config(),
        Config {
            max_connections: 1,
            ..Config::default()
        },
    )
    .await;
    let refused = |reason: &str| {
        let line = format!(
            "millpond_gateway_connections_refused_total{{transport=\"grpc\",reason=\"{reason}\"}} 1\n"
        );
        assert!(gateway.metrics().contains(&line), "{}", gateway.metrics());
    };
    let mut idle = TcpStream::connect(gateway.address).await.expect("a connection");
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(1)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    ended(&mut idle).await;
    refused("evicted");

    let mut another = TcpStream::connect(gateway.address).await.expect("a connection");
    ended(&mut another).await;
    refused("too_many");
    commit.release();
    timeout(PATIENCE, export)
        .await
        .expect("an answer")
        .expect("no panic")
        .expect("success");
}

async fn ended(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an end");
}
