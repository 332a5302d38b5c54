//! Events over real connections: the rows that reach the log, the answers, and who may write to which stream.

use std::fs;

use crate::common::http::{Answer, JSON, LOGS, compressed};
use crate::common::log::rows;
use crate::common::{PATIENCE, Pieces, Running, producer_config, secured, start};
use hyper::{Method, StatusCode, Version};
use millpond_gateway::rows::ROW_BYTES_MAX;
use millpond_gateway::{Config, SecurityFiles};
use millpond_segment::Encoding;
use millpond_storage::unreliable::On;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

const SIGNUP: &str = "/v1/streams/events.signup";
const NDJSON: &str = "application/x-ndjson";

fn content(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), JSON, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error} in {answer:?}"))
}

async fn post(gateway: &Running, path: &str, content_type: &str, body: &str) -> (u16, Value) {
    let answer = gateway
        .post(path, content_type, &[], Pieces::sized(body.to_owned()))
        .await;
    (answer.status.as_u16(), content(&answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_in_the_log_byte_for_byte_in_every_form_and_compression_over_both_versions() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut sent = Vec::new();
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for encoding in ["", "identity", "gzip", "zstd"] {
            for (content_type, body) in [
                (NDJSON, "{\"n\": 1.50}\r\n\n{\"s\":\"é\\u00e9\"}\n"),
                (
                    "Application/NDJSON; charset=utf-8",
                    "{\"n\": 1.50}\n{\"s\":\"é\\u00e9\"}",
                ),
                (JSON, "[{\"n\": 1.50},\n {\"s\":\"é\\u00e9\"}]"),
                ("", "{\"n\": 1.50}\n{\"s\":\"é\\u00e9\"}\n"),
            ] {
                let headers = [("content-encoding", encoding)];
                let headers = if encoding.is_empty() { &[][..] } else { &headers };
                let body = compressed(encoding, body.as_bytes());
                let body = if sent.len() % 2 == 0 {
                    Pieces::of(body)
                } else {
                    Pieces::sized(body)
                };
                let request = gateway.request(Method::POST, SIGNUP, content_type, headers, body);
                let answer = gateway.ask(version, request).await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
                assert_eq!(content(&answer), json!({"accepted": 2}));
                sent.push("{\"n\": 1.50}\n{\"s\":\"é\\u00e9\"}".to_owned());
            }
        }
    }
    let pretty = "{\n  \"a\": [\n    1\n  ]\n}";
    assert_eq!(
        post(&gateway, SIGNUP, JSON, pretty).await,
        (200, json!({"accepted": 1}))
    );
    sent.push(pretty.to_owned());
    assert_eq!(rows(&gateway, "events.signup").await, (sent, 65));
    let of = "{transport=\"http\",signal=\"events\"";
    let metrics = gateway.metrics();
    for line in [
        format!("millpond_gateway_requests_total{of},code=\"OK\"}} 33\n"),
        format!("millpond_gateway_records_total{of}}} 65\n"),
        "millpond_gateway_rejected_rows_total 0\n".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line} not in {metrics}");
    }
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_rows_are_rejected_one_by_one_or_all_rows_with_them() {
    let gateway = start(producer_config(), Config::default()).await;
    let body = "{\"a\":1}\n{\"a\":}\n{\"b\":2}\n";
    let errors = json!([{"line": 2, "column": 6, "reason": "malformed JSON: expected value"}]);
    let (status, answer) = post(&gateway, &format!("{SIGNUP}?on_error=refuse"), NDJSON, body).await;
    assert_eq!(
        (status, &answer["accepted"], &answer["errors"]),
        (400, &json!(0), &errors)
    );
    assert!(
        answer["error"]
            .as_str()
            .expect("a text")
            .contains("on_error=refuse")
    );

    let answer = post(&gateway, &format!("{SIGNUP}?on_error=skip"), NDJSON, body).await;
    assert_eq!(
        answer,
        (200, json!({"accepted": 2, "rejected": 1, "errors": errors}))
    );

    let (status, answer) = post(&gateway, SIGNUP, JSON, "[{\"c\":3},\n{\"c\"}, {\"d\":4}]").await;
    assert_eq!(
        (status, &answer["accepted"], &answer["unread_bytes"]),
        (200, &json!(1), &json!(15))
    );
    let reason = answer["errors"][0]["reason"].as_str().expect("a text");
    assert!(reason.contains("the rest of the body is not read"), "{reason}");

    let (status, answer) = post(&gateway, SIGNUP, NDJSON, &"7\n".repeat(50)).await;
    assert_eq!((status, &answer["rejected"]), (400, &json!(50)));
    assert_eq!(answer["errors"].as_array().expect("a list").len(), 20);

    // Only what a client was told is accepted is in the log.
    let in_log = rows(&gateway, "events.signup").await;
    assert_eq!(
        in_log,
        (vec!["{\"a\":1}\n{\"b\":2}".into(), "{\"c\":3}".into()], 3),
        "the log has what was accepted"
    );
    let metrics = gateway.metrics();
    assert!(
        metrics.contains("millpond_gateway_rejected_rows_total 53\n"),
        "{metrics}"
    );
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_at_the_limit_is_accepted_and_a_longer_one_rejected() {
    let gateway = start(producer_config(), Config::default()).await;
    let row = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8));
    let body = format!("{}\n{}", row(ROW_BYTES_MAX), row(ROW_BYTES_MAX + 1));
    let (status, answer) = post(&gateway, SIGNUP, NDJSON, &body).await;
    assert_eq!(
        (status, &answer["accepted"], &answer["rejected"]),
        (200, &json!(1), &json!(1))
    );
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_wrong_get_their_status_and_a_reason() {
    let gateway = start(producer_config(), Config::default()).await;
    let long_name = format!("/v1/streams/{}", "x".repeat(101));
    for (method, path, content_type, status, header, words) in [
        (
            Method::GET,
            SIGNUP,
            NDJSON,
            405,
            ("allow", "POST"),
            "takes POST, not GET",
        ),
        (
            Method::POST,
            SIGNUP,
            "text/csv",
            415,
            (
                "accept-post",
                "application/json, application/x-ndjson, application/ndjson",
            ),
            "text/csv is not supported",
        ),
        (
            Method::POST,
            "/v1/streams/a?table=x",
            NDJSON,
            400,
            ("", ""),
            "table=x is unknown",
        ),
        (Method::POST, "/v1/streams/", NDJSON, 400, ("", ""), "stream name"),
        (
            Method::POST,
            "/v1/streams/a/b",
            NDJSON,
            400,
            ("", ""),
            "stream name",
        ),
        (
            Method::POST,
            "/v1/streams/%61",
            NDJSON,
            400,
            ("", ""),
            "stream name",
        ),
        (Method::POST, &long_name, NDJSON, 400, ("", ""), "stream name"),
        (
            Method::POST,
            "/v1/streams/otlp.logs",
            NDJSON,
            409,
            ("", ""),
            "POST to /v1/logs",
        ),
        (
            Method::POST,
            "/v1/streams/acme.otlp.logs",
            NDJSON,
            409,
            ("", ""),
            "POST to /v1/logs",
        ),
    ] {
        let request = gateway.request(method, path, content_type, &[], Pieces::sized("{}"));
        let answer = gateway.ask(Version::HTTP_11, request).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
        let content = content(&answer);
        let error = content["error"].as_str().expect("a text");
        assert!(
            error.to_lowercase().contains(words) || error.contains(words),
            "{error}"
        );
        assert_eq!(answer.header(header.0), header.1);
    }
    for body in ["", "\n \n"] {
        let (status, answer) = post(&gateway, SIGNUP, NDJSON, body).await;
        assert_eq!(
            (status, answer["error"].as_str()),
            (400, Some("the body is empty; send at least one JSON object"))
        );
    }
    assert_eq!(
        post(&gateway, SIGNUP, JSON, "[]").await,
        (200, json!({"accepted": 0}))
    );
    assert_eq!(rows(&gateway, "events.signup").await, (vec![], 0));
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_those_of_otlp() {
    let config = Config {
        max_message_bytes: 1_000,
        read_timeout: std::time::Duration::from_millis(200),
        ..Config::default()
    };
    let gateway = start(producer_config(), config).await;
    let body = format!("{{\"a\":\"{}\"}}", "x".repeat(1_000));
    for encoding in ["identity", "gzip", "zstd"] {
        let headers = [("content-encoding", encoding)];
        let body = compressed(encoding, body.as_bytes());
        let answer = gateway.post(SIGNUP, NDJSON, &headers, Pieces::of(body)).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{encoding}");
        assert!(
            content(&answer)["error"]
                .as_str()
                .expect("a text")
                .contains("message too large")
        );
    }
    let answer = gateway
        .post(SIGNUP, NDJSON, &[("content-encoding", "br")], Pieces::sized("{}"))
        .await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(answer.header("accept-encoding"), "gzip, zstd, identity");
    let answer = gateway
        .post(
            SIGNUP,
            NDJSON,
            &[("content-encoding", "gzip")],
            Pieces::sized("{}"),
        )
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    let answer = gateway.post(SIGNUP, NDJSON, &[], Pieces::stalling("{}")).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT, "{answer:?}");

    let budget = gateway.producers.budget();
    let everything = budget.reserve(budget.limit()).await.expect("all of it");
    let answer = gateway.post(SIGNUP, NDJSON, &[], Pieces::sized("{}")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("retry-after"), "1");
    drop(everything);
    gateway.assert_well().await;
    gateway.producers.drain(PATIENCE).await.expect("drained");
    let answer = gateway.post(SIGNUP, NDJSON, &[], Pieces::sized("{}")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert!(content(&answer)["error"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn success_comes_only_after_the_commit() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    let post = gateway.post(SIGNUP, NDJSON, &[], Pieces::sized("{}"));
    let held = async {
        timeout(PATIENCE, commit.arrived()).await.expect("a commit");
        let line = "millpond_gateway_records_total{transport=\"http\",signal=\"events\"} 0\n";
        let metrics = gateway.metrics();
        assert!(metrics.contains(line), "{metrics}");
        commit.release();
    };
    let (answer, ()) = tokio::join!(post, held);
    assert_eq!(content(&answer), json!({"accepted": 1}));
}

const AGENTS: &str = "agents-token-0123456789abcdef";
const ACME: &str = "acme-token-0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_writes_to_streams_of_its_prefix_and_no_other_token_does() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tokens.toml");
    let tokens = format!(
        "[[token]]\nname = \"agents\"\ntoken = \"{AGENTS}\"\n[[token]]\nname = \"acme\"\ntoken = \"{ACME}\"\nprefix = \"acme\"\n"
    );
    fs::write(&path, tokens).expect("written");
    let files = SecurityFiles {
        tls: None,
        tokens: Some(path),
    };
    let gateway = secured(producer_config(), Config::default(), &files).await;
    let send = async |token: &str, path: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", &authorization[..])];
        let answer = gateway.post(path, NDJSON, &headers, Pieces::sized("{}")).await;
        (answer.status.as_u16(), content(&answer)["error"].to_string())
    };
    assert_eq!(send(ACME, "/v1/streams/signup").await.0, 200);
    assert_eq!(send(AGENTS, "/v1/streams/signup").await.0, 200);
    for path in ["/v1/streams/acme.signup", "/v1/streams/acme"] {
        let (status, error) = send(AGENTS, path).await;
        assert_eq!(status, 403, "another token wrote to {path}");
        assert!(
            error.contains("belongs to the tokens with prefix acme"),
            "{error}"
        );
    }
    // With its prefix, the name is too long.
    let name = format!("/v1/streams/{}", "x".repeat(96));
    assert_eq!(
        (send(AGENTS, &name).await.0, send(ACME, &name).await.0),
        (200, 400)
    );

    let stranger = gateway.request(Method::POST, SIGNUP, NDJSON, &[], Pieces::stalling("{}"));
    let answer = gateway.ask(Version::HTTP_2, stranger).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    assert!(content(&answer)["error"].is_string());
    for stream in ["acme.signup", "signup"] {
        assert_eq!(
            rows(&gateway, stream).await,
            (vec!["{}".to_owned()], 1),
            "{stream}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_another_encoding_is_409_and_keeps_its_own() {
    let gateway = start(producer_config(), Config::default()).await;
    let append = millpond_producer::Append {
        stream: "events.signup".into(),
        encoding: Encoding::Otlp,
        payload: "".into(),
        records: 1,
        received_at_us: 1,
        reservation: gateway.producers.budget().reserve(1).await.expect("a byte"),
    };
    gateway.producers.append(append).await.expect("committed");
    let (status, answer) = post(&gateway, SIGNUP, NDJSON, "{}").await;
    assert_eq!(status, 409, "{answer}");
    let error = answer["error"].as_str().expect("a text");
    assert!(
        error.contains("stream events.signup holds otlp messages, not ndjson"),
        "{error}"
    );
    assert_eq!(
        gateway
            .post("/v1/logs", JSON, &[], Pieces::sized(LOGS))
            .await
            .status,
        StatusCode::OK
    );
}
