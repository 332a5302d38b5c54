//! OTLP/HTTP with malformed, oversized and truncated input. Each gets the error of the specification, nothing hangs,
//! and no memory is kept.

use crate::common::http::{JSON, LOGS, PROTOBUF, compressed};
use crate::common::{PATIENCE, Pieces, Running, SHORT, logs, logs_of, producer_config, start};
use futures::future::join_all;
use hyper::StatusCode;
use millpond_gateway::Config;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn refusal(
    gateway: &Running,
    content_type: &str,
    encoding: &str,
    body: Pieces,
) -> (StatusCode, String, Option<String>) {
    let headers = [("content-encoding", encoding)];
    let answer = gateway.post("/v1/logs", content_type, &headers, body).await;
    assert_eq!(answer.header("content-type"), content_type, "{answer:?}");
    assert_eq!(answer.header("retry-after"), "", "{answer:?}");
    let (message, field) = answer.refusal();
    (answer.status, message, field)
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_otlp_is_400_and_says_where() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut request = logs(3).encode_to_vec();
    request.truncate(request.len() - 1);
    let json = LOGS.replace("\"eee19b7ec3c1b174\"", "\"7uGbfsPBsXQ=\"");
    for encoding in ["identity", "gzip", "zstd"] {
        let body = Pieces::sized(compressed(encoding, &request));
        let (status, message, field) = refusal(&gateway, PROTOBUF, encoding, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(message.contains("byte"), "{message}");
        assert_eq!(field.as_deref(), Some("resource_logs[0]"));

        let body = Pieces::sized(compressed(encoding, json.as_bytes()));
        let (status, message, field) = refusal(&gateway, JSON, encoding, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(message.contains("hexadecimal"), "{message}");
        let path = "resourceLogs[0].scopeLogs[0].logRecords[0].spanId";
        assert_eq!(field.as_deref(), Some(path));
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_cut_at_any_byte_is_refused_and_in_any_pieces_accepted() {
    let gateway = start(producer_config(), Config::default()).await;
    for length in 0..LOGS.len() {
        let body = Pieces::of(&LOGS.as_bytes()[..length]);
        let (status, message, _) = refusal(&gateway, JSON, "identity", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{length}: {message}");
    }
    let body = Pieces::bytewise(LOGS.as_bytes());
    let answer = gateway.post("/v1/logs", JSON, &[], body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bytes_that_are_cut_or_wrong_are_400() {
    let gateway = start(producer_config(), Config::default()).await;
    let request = logs(20).encode_to_vec();
    for encoding in ["gzip", "zstd"] {
        let whole = compressed(encoding, &request);
        for bytes in [&whole[..whole.len() - 1], &whole[..10], &request] {
            let body = Pieces::sized(bytes.to_vec());
            let (status, message, _) = refusal(&gateway, PROTOBUF, encoding, body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
            assert!(message.contains("malformed"), "{message}");
        }
    }
    gateway.assert_well().await;
}

/// A record whose body has no escapes, so that its JSON and protobuf forms can have the same length.
fn json_of(length: usize) -> Vec<u8> {
    let json = format!(
        r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{{"stringValue":"{}"}}}}]}}]}}]}}"#,
        "x".repeat(length)
    );
    json.into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn too_long_is_413_at_the_limit_and_no_sooner() {
    for (content_type, request) in [
        (PROTOBUF, logs_of(10, 10_000).encode_to_vec()),
        (JSON, json_of(100_000)),
    ] {
        let with_limit = |max_message_bytes| Config {
            max_message_bytes,
            ..Config::default()
        };
        let exact = start(producer_config(), with_limit(request.len())).await;
        let short = start(producer_config(), with_limit(request.len() - 1)).await;
        for encoding in ["identity", "gzip", "zstd"] {
            let body = compressed(encoding, &request);
            for body in
                [|body| Pieces::sized(body), |body: Vec<u8>| Pieces::of(body)].map(|of| of(body.clone()))
            {
                let answer = exact
                    .post("/v1/logs", content_type, &[("content-encoding", encoding)], body)
                    .await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            }
            for body in [Pieces::sized(body.clone()), Pieces::of(body)] {
                let (status, message, field) = refusal(&short, content_type, encoding, body).await;
                assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
                assert!(message.contains("message too large"), "{message}");
                assert!(
                    message.contains(&format!("limit is {}", request.len() - 1)),
                    "{message}"
                );
                assert_eq!(field, None);
            }
        }
        exact.assert_well().await;
        short.assert_well().await;
    }
}

/// Each zero is two bytes of JSON and eight of protobuf.
#[tokio::test(flavor = "multi_thread")]
async fn json_that_is_longer_as_protobuf_is_taken_or_413() {
    let zeros = vec!["0"; 50_000].join(",");
    let json = format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"histogram":{{"dataPoints":[{{"explicitBounds":[{zeros}]}}]}}}}]}}]}}]}}"#
    );
    for (max_message_bytes, expected) in [
        (1 << 20, StatusCode::OK),
        (4 * json.len() - 1_000, StatusCode::PAYLOAD_TOO_LARGE),
        (json.len(), StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let config = Config {
            max_message_bytes,
            ..Config::default()
        };
        let gateway = start(producer_config(), config).await;
        let answer = gateway
            .post("/v1/metrics", JSON, &[], Pieces::sized(json.clone()))
            .await;
        assert_eq!(answer.status, expected, "{max_message_bytes} {answer:?}");
        if expected != StatusCode::OK {
            assert!(answer.refusal().0.contains("as protobuf"), "{answer:?}");
        }
        gateway.assert_well().await;
    }
}

/// Both forms of a message are briefly in memory, each with a reservation. The free memory suffices for one, so the
/// gateway never finds out that the JSON does not end.
#[tokio::test(flavor = "multi_thread")]
async fn json_and_its_protobuf_are_both_drawn_from_the_budget() {
    let gateway = start(producer_config(), Config::default()).await;
    let length = 3 << 20;
    let mut json = json_of(length);
    json.pop();
    let budget = gateway.producers.budget();
    let others = budget.reserve(budget.limit() - length - (1 << 20));
    let others = others.await.expect("all but what one of them takes");
    let answer = gateway
        .post("/v1/logs", JSON, &[], Pieces::sized(json.clone()))
        .await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
    drop(others);
    let (status, message, _) = refusal(&gateway, JSON, "identity", Pieces::sized(json)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_are_refused_within_the_budget() {
    let zeros = vec![b' '; 256 << 20];
    let gateway = start(producer_config(), Config::default()).await;
    for encoding in ["gzip", "zstd"] {
        let body = Pieces::sized(compressed(encoding, &zeros));
        let (status, message, _) = refusal(&gateway, JSON, encoding, body).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{message}");
    }
    gateway.assert_well().await;
}

/// The unread body blocks such a client, and closing the connection resets it. It would mistake the refusal for an
/// outage and send the same bytes again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_all_before_it_reads_gets_its_answer() {
    let config = Config {
        max_message_bytes: 8 << 20,
        ..Config::default()
    };
    let producer = millpond_producer::Config {
        memory_limit: 64 << 20,
        ..producer_config()
    };
    let gateway = start(producer, config).await;
    let length = 24 << 20;
    for path in ["/v1/logs", "/v1/nothing"] {
        let mut stream = TcpStream::connect(gateway.http_address)
            .await
            .expect("a connection");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        let sent = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&vec![b' '; length]).await
        };
        timeout(PATIENCE, sent).await.expect("taken").expect("not reset");
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer))
            .await
            .expect("an end")
            .expect("not reset");
        let status = if path == "/v1/logs" { "413 " } else { "404 " };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_expect_100_continue_is_refused_at_once() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut stream = TcpStream::connect(gateway.http_address)
        .await
        .expect("a connection");
    let head = format!(
        "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: 999999999\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("an end")
        .expect("not reset");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    gateway.assert_well().await;
}

/// A retry may be faster, and 504 is OTLP's retryable code for a deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stalls_in_mid_body_is_504() {
    let config = Config {
        read_timeout: SHORT,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let stalls = [0, 1, LOGS.len()].map(async |length| {
        let body = Pieces::stalling(&LOGS.as_bytes()[..length]);
        let (status, message, _) = refusal(&gateway, JSON, "identity", body).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
        assert!(message.contains("not complete after"), "{message}");
    });
    join_all(stalls).await;
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_in_mid_body_keeps_nothing() {
    let gateway = start(producer_config(), Config::default()).await;
    for framing in [
        "content-length: 1000\r\n\r\n{\"res",
        "transfer-encoding: chunked\r\n\r\n5\r\n{\"res",
    ] {
        let mut stream = TcpStream::connect(gateway.http_address)
            .await
            .expect("a connection");
        let head = format!("POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\n{framing}");
        stream.write_all(head.as_bytes()).await.expect("written");
        stream.shutdown().await.expect("shut down");
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .expect("an end");
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_or_half_of_its_headers_is_closed() {
    let config = Config {
        handshake_timeout: SHORT,
        http1_header_timeout: SHORT,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let connections = [
        &b""[..],
        b"PRI * HTTP",
        b"P",
        b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncont",
        b"\x16\x03\x01 a TLS client's hello",
    ]
    .map(async |bytes| {
        let mut stream = TcpStream::connect(gateway.http_address)
            .await
            .expect("a connection");
        stream.write_all(bytes).await.expect("written");
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .expect("an end");
    });
    join_all(connections).await;
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_over_the_limit_are_431() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut stream = TcpStream::connect(gateway.http_address)
        .await
        .expect("a connection");
    let mut head = String::from("POST /v1/logs HTTP/1.1\r\nhost: x\r\nauthorization: ");
    // Stay at the limit, so that no data is unread when the connection closes.
    head.extend(std::iter::repeat_n('x', (16 << 10) - head.len()));
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an end");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    gateway.assert_well().await;
}
