//! OTLP/HTTP over real connections: accepted requests, answers, and errors for clients at the wrong port.

use std::time::Duration;

use crate::common::http::{Answer, JSON, LOGS, METRICS, PROTOBUF, TRACES, compressed};
use crate::common::{EXPORT, PATIENCE, Pieces, framed, grpc_status, logs, producer_config, start};
use hyper::{Method, StatusCode, Version};
use millpond_gateway::Config;
use millpond_otlp::{Signal, protobuf_of_json};
use millpond_storage::unreliable::On;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

const SIGNALS: [(Signal, &str, &str); 3] = [
    (Signal::Logs, "/v1/logs", LOGS),
    (Signal::Traces, "/v1/traces", TRACES),
    (Signal::Metrics, "/v1/metrics", METRICS),
];

fn protobuf(signal: Signal, json: &str) -> Vec<u8> {
    protobuf_of_json(signal, json.as_bytes(), json.len()).expect("OTLP/JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_is_taken_in_every_form_and_compression_over_both_versions() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut sent = 0;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for encoding in ["", "identity", "gzip", "zstd"] {
            for (signal, path, json) in SIGNALS {
                for (content_type, bytes, success) in [
                    ("application/x-protobuf", protobuf(signal, json), ""),
                    ("Application/JSON; charset=utf-8", json.into(), "{}"),
                ] {
                    let headers = [("content-encoding", encoding)];
                    let headers = if encoding.is_empty() { &[][..] } else { &headers };
                    let body = compressed(encoding, &bytes);
                    let body = if sent % 2 == 0 {
                        Pieces::of(body)
                    } else {
                        Pieces::sized(body)
                    };
                    let request = gateway.request(Method::POST, path, content_type, headers, body);
                    let answer = gateway.ask(version, request).await;
                    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
                    assert_eq!(answer.body, success);
                    let same = content_type
                        .to_lowercase()
                        .starts_with(answer.header("content-type"));
                    assert!(same && !answer.header("content-type").is_empty(), "{answer:?}");
                    sent += 1;
                }
            }
        }
    }
    let metrics = gateway.metrics();
    for (signal, _, json) in SIGNALS {
        let of = format!("{{transport=\"http\",signal=\"{}\"", signal.name());
        let raw = 16 * protobuf(signal, json).len();
        for line in [
            format!("millpond_gateway_requests_total{of},code=\"OK\"}} 16\n"),
            format!("millpond_gateway_records_total{of}}} 16\n"),
            format!("millpond_gateway_raw_bytes_total{of}}} {raw}\n"),
        ] {
            assert!(metrics.contains(&line), "{line} not in {metrics}");
        }
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn success_comes_only_after_the_commit() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let post = gateway.post("/v1/logs", JSON, &[], Pieces::sized(LOGS));
    let held = async {
        timeout(PATIENCE, commit.arrived()).await.expect("a commit");
        let line = "millpond_gateway_requests_in_flight{transport=\"http\"} 1\n";
        let metrics = gateway.metrics();
        assert!(metrics.contains(line), "{metrics}");
        commit.release();
    };
    let (answer, ()) = tokio::join!(post, held);
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_records_succeeds() {
    let gateway = start(producer_config(), Config::default()).await;
    for (content_type, body) in [
        (JSON, "{}"),
        (JSON, r#" {"resourceLogs": [ {"scopeLogs": []} ]} "#),
        (PROTOBUF, ""),
    ] {
        for body in [Pieces::of(body), Pieces::sized(body)] {
            let answer = gateway.post("/v1/logs", content_type, &[], body).await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        }
    }
    gateway.assert_well().await;
}

fn assert_retry(answer: &Answer, status: StatusCode, seconds: &str, words: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("retry-after"), seconds, "{answer:?}");
    let (message, field) = answer.refusal();
    assert!(message.contains(words), "{message}");
    assert_eq!(field, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_budget_is_429_with_retry_after_in_the_form_of_the_request_and_passes() {
    let config = Config {
        retry_after: Duration::from_millis(1_500),
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let budget = gateway.producers.budget();
    let everything = budget.reserve(budget.limit()).await.expect("all of it");
    for (content_type, body) in [(JSON, LOGS.into()), (PROTOBUF, protobuf(Signal::Logs, LOGS))] {
        let answer = gateway
            .post("/v1/logs", content_type, &[], Pieces::sized(body))
            .await;
        assert_eq!(answer.header("content-type"), content_type);
        assert_retry(
            &answer,
            StatusCode::TOO_MANY_REQUESTS,
            "2",
            "over the memory limit",
        );
    }
    drop(everything);
    let answer = gateway.post("/v1/logs", JSON, &[], Pieces::sized(LOGS)).await;
    assert_eq!(answer.status, StatusCode::OK);
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_both_ports_count_towards_the_limit() {
    let config = Config {
        max_requests: 1,
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let mut client = gateway.client();
    let export = tokio::spawn(async move { client.export(logs(1)).await });
    timeout(PATIENCE, commit.arrived()).await.expect("a commit");
    let answer = gateway.post("/v1/logs", JSON, &[], Pieces::sized(LOGS)).await;
    assert_retry(&answer, StatusCode::TOO_MANY_REQUESTS, "1", "max_requests");
    commit.release();
    let answer = timeout(PATIENCE, export).await.expect("an answer");
    answer.expect("no panic").expect("success");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_is_closed_is_503() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.producers.drain(PATIENCE).await.expect("drained");
    let answer = gateway.post("/v1/traces", JSON, &[], Pieces::sized(TRACES)).await;
    assert_retry(&answer, StatusCode::SERVICE_UNAVAILABLE, "1", "");
}

/// Every refusal is a Status, in JSON unless the request was protobuf.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_no_exports_get_a_hint() {
    let gateway = start(producer_config(), Config::default()).await;
    for (method, path, content_type, status, header, words) in [
        (Method::POST, "/v1/spans", JSON, 404, ("", ""), "/v1/traces"),
        (Method::POST, "/", PROTOBUF, 404, ("", ""), "/v1/traces"),
        (Method::GET, "/favicon.ico", "", 404, ("", ""), "/v1/traces"),
        (
            Method::GET,
            "/v1/logs",
            "",
            405,
            ("allow", "POST"),
            "takes POST, not GET",
        ),
        (
            Method::PUT,
            "/v1/logs",
            PROTOBUF,
            405,
            ("allow", "POST"),
            "takes POST, not PUT",
        ),
        (
            Method::POST,
            "/v1/logs",
            "",
            415,
            ("accept-post", "application/x-protobuf, application/json"),
            "missing",
        ),
        (
            Method::POST,
            "/v1/logs",
            "text/plain",
            415,
            ("accept-post", "application/x-protobuf, application/json"),
            "text/plain is not supported",
        ),
    ] {
        let request = gateway.request(method, path, content_type, &[], Pieces::sized(LOGS));
        let answer = gateway.ask(Version::HTTP_11, request).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
        let form = if content_type == PROTOBUF { PROTOBUF } else { JSON };
        assert_eq!(answer.header("content-type"), form);
        let (message, _) = answer.refusal();
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.header(header.0), header.1);
    }
    for encodings in [
        &[("content-encoding", "snappy")][..],
        &[("content-encoding", "gzip"); 2],
        &[("content-encoding", "gzip, zstd")],
    ] {
        let answer = gateway
            .post("/v1/logs", JSON, encodings, Pieces::sized(LOGS))
            .await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(answer.header("accept-encoding"), "gzip, zstd, identity");
        assert!(
            answer.refusal().0.contains("is not supported; use one of"),
            "{answer:?}"
        );
    }
    let request = gateway.request(Method::GET, "/", "", &[], Pieces::sized(""));
    let answer = gateway.ask(Version::HTTP_2, request).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(
        answer.body.windows(8).any(|word| word == b"/v1/logs"),
        "{answer:?}"
    );
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_at_the_wrong_port_gets_a_hint() {
    let gateway = start(producer_config(), Config::default()).await;
    let body = Pieces::of(framed(false, &logs(1).encode_to_vec()));
    let request = gateway.request(Method::POST, EXPORT, "application/grpc", &[], body);
    let answer = gateway.ask(Version::HTTP_2, request).await;
    let status = tonic::Status::from_header_map(&answer.headers).expect("a gRPC status");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("--listen,"), "{status}");

    let response = gateway.send_to("/v1/logs", PROTOBUF, &[], Pieces::of("")).await;
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let status = grpc_status(
        gateway
            .send_to("/v1/logs", "application/grpc", &[], Pieces::of(""))
            .await,
    )
    .await;
    assert_eq!(status.code(), Code::Unimplemented);

    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
    stream
        .write_all(b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        .await
        .expect("written");
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an end");
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("HTTP/1.1 505 ") && answer.contains("--listen-http"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_kept_between_requests_and_does_not_hold_up_a_drain() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut stream = TcpStream::connect(gateway.http_address)
        .await
        .expect("a connection");
    for _ in 0..2 {
        let request = format!(
            "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\r\n{LOGS}",
            LOGS.len()
        );
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n{}") {
            let mut some = [0; 1024];
            let read = timeout(PATIENCE, stream.read(&mut some)).await.expect("bytes");
            answer.extend_from_slice(&some[..read.expect("bytes")]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    gateway.shutdown.cancel();
    let served = timeout(PATIENCE, gateway.served).await.expect("an end");
    served.expect("no panic").expect("drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_what_is_in_flight() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let post = gateway.post("/v1/metrics", JSON, &[], Pieces::sized(METRICS));
    let drain = async {
        timeout(PATIENCE, commit.arrived()).await.expect("a commit");
        gateway.shutdown.cancel();
        let refused = async {
            while TcpStream::connect(gateway.http_address).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, refused).await.expect("no more connections");
        commit.release();
    };
    let (answer, ()) = tokio::join!(post, drain);
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let served = timeout(PATIENCE, gateway.served).await.expect("an end");
    served.expect("no panic").expect("drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented() {
    let gateway = start(producer_config(), Config::default()).await;
    gateway.assert_well().await;
    let documented = include_str!("../../../design/gateway.md");
    let text = gateway.metrics();
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| name.starts_with("millpond_gateway_"))
        .collect();
    assert_eq!(names.len(), 10, "{text}");
    for name in names {
        let is_documented = documented.contains(&format!("`{name}"));
        assert!(is_documented, "{name} is not in design/gateway.md");
    }
}
