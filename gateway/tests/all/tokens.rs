//! Bearer tokens: which requests are authorized, where their records go, and token changes at run time.

use std::fs;
use std::path::PathBuf;

use crate::common::http::{JSON, LOGS, PROTOBUF};
use crate::common::{PATIENCE, Pieces, Running, framed, logs, producer_config, secured};
use hyper::StatusCode;
use millpond_gateway::{Config, SecurityFiles};
use prost::Message;
use tempfile::TempDir;
use tonic::Code;

const AGENTS: &str = "agents-token-0123456789abcdef";
const ACME: &str = "acme-token-0123456789abcdef";

fn entry(name: &str, token: &str, rest: &str) -> String {
    format!("[[token]]\nname = \"{name}\"\ntoken = \"{token}\"\n{rest}\n")
}

/// A gateway and its tokens file, in a directory that lives as long.
async fn gateway(tokens: &str) -> (Running, PathBuf, TempDir) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tokens.toml");
    fs::write(&path, tokens).expect("written");
    let files = SecurityFiles {
        tls: None,
        tokens: Some(path.clone()),
    };
    let gateway = secured(producer_config(), Config::default(), &files).await;
    (gateway, path, directory)
}

fn body() -> Pieces {
    Pieces::of(framed(false, &logs(1).encode_to_vec()))
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

async fn code(gateway: &Running, authorization: &[&str]) -> (Code, String) {
    let headers: Vec<_> = authorization
        .iter()
        .map(|value| ("authorization", *value))
        .collect();
    let status = gateway.send(&headers, body()).await;
    (status.code(), status.message().to_owned())
}

fn assert_metric(gateway: &Running, line: &str) {
    let text = gateway.metrics();
    assert!(text.contains(&format!("{line}\n")), "{line} not in {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_needs_one_token_of_the_file() {
    let (gateway, _, _directory) = gateway(&entry("agents", AGENTS, "")).await;
    let right = bearer(AGENTS);
    for scheme in [
        &right,
        &right.replace("Bearer", "bearer"),
        &right.replace("Bearer", "BEARER"),
    ] {
        assert_eq!(code(&gateway, &[scheme]).await.0, Code::Ok, "{scheme}");
    }
    for (wrong, reason) in [
        (&[][..], "no bearer token"),
        (&[&bearer(ACME)[..]], "does not know this bearer token"),
        (&[&right[..right.len() - 1]], "does not know this bearer token"),
        (&[&right, &right], "must occur once"),
        (&[AGENTS], "must occur once"),
        (&[&format!("Basic {AGENTS}")], "must occur once"),
    ] {
        let (code, text) = code(&gateway, wrong).await;
        assert_eq!(code, Code::Unauthenticated, "{wrong:?}");
        assert!(text.contains(reason) && !text.contains("0123456789"), "{text}");
    }
    for line in [
        "millpond_gateway_requests_denied_total{reason=\"missing\"} 1",
        "millpond_gateway_requests_denied_total{reason=\"malformed\"} 3",
        "millpond_gateway_requests_denied_total{reason=\"unknown\"} 2",
        "millpond_gateway_requests_total{transport=\"grpc\",signal=\"logs\",code=\"UNAUTHENTICATED\"} 6",
        "millpond_gateway_token_records_total{token=\"agents\"} 3",
    ] {
        assert_metric(&gateway, line);
    }
}

/// The answer waits neither for the body, which never ends, nor for memory, which is exhausted.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_token_is_refused_before_anything_is_read_or_reserved() {
    let (gateway, _, _directory) = gateway(&entry("agents", AGENTS, "")).await;
    let budget = gateway.producers.budget();
    let everything = budget.reserve(budget.limit()).await.expect("all of it");
    let endless = || Pieces::stalling(framed(false, &logs(1).encode_to_vec()));
    let status = gateway.send(&[], endless()).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    let right = bearer(AGENTS);
    let status = gateway.send(&[("authorization", &right)], endless()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(everything);
    // Strangers do not learn which methods exist.
    let unknown = gateway.send_to("/nothing", "application/grpc", &[], body()).await;
    assert_eq!(
        crate::common::grpc_status(unknown).await.code(),
        Code::Unauthenticated
    );
}

/// Returns true if the manifest has a stream of this name.
async fn has_stream(gateway: &Running, name: &str) -> bool {
    let manifest = gateway
        .store
        .get("shards/0000/manifest")
        .await
        .expect("the store answers")
        .expect("a manifest");
    // In protobuf a string follows its length. Without the length, the search would match a prefix of a longer name.
    let length = u8::try_from(name.len()).expect("a short name");
    let wanted = [&[length], name.as_bytes()].concat();
    manifest.bytes.windows(wanted.len()).any(|bytes| bytes == wanted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_part_of_the_stream() {
    let tokens = entry("agents", AGENTS, "") + &entry("acme", ACME, "prefix = \"acme\"");
    let (gateway, _, _directory) = gateway(&tokens).await;
    assert_eq!(code(&gateway, &[&bearer(ACME)]).await.0, Code::Ok);
    assert!(has_stream(&gateway, "acme.otlp.logs").await);
    assert!(!has_stream(&gateway, "otlp.logs").await);
    assert_eq!(code(&gateway, &[&bearer(AGENTS)]).await.0, Code::Ok);
    assert!(has_stream(&gateway, "otlp.logs").await);
    for name in ["acme", "agents"] {
        assert_metric(
            &gateway,
            &format!("millpond_gateway_token_records_total{{token=\"{name}\"}} 1"),
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_a_refusal_is_401_with_a_challenge() {
    let (gateway, _, _directory) = gateway(&entry("acme", ACME, "prefix = \"acme\"")).await;
    let right = bearer(ACME);
    for (authorization, challenge, reason) in [
        (None, "Bearer", "no bearer token"),
        (Some(ACME), "Bearer error=\"invalid_request\"", "must occur once"),
        (
            Some("Bearer none"),
            "Bearer error=\"invalid_token\"",
            "does not know this bearer token",
        ),
    ] {
        let headers: Vec<_> = authorization
            .map(|value| ("authorization", value))
            .into_iter()
            .collect();
        for (form, body) in [
            (JSON, Pieces::of(LOGS)),
            (PROTOBUF, Pieces::of(logs(1).encode_to_vec())),
        ] {
            let answer = gateway.post("/v1/logs", form, &headers, body).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
            assert_eq!(answer.header("www-authenticate"), challenge);
            let (text, _) = answer.refusal();
            assert!(text.contains(reason), "{text}");
        }
    }
    let headers = [("authorization", &right[..])];
    let answer = gateway.post("/v1/logs", JSON, &headers, Pieces::of(LOGS)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(has_stream(&gateway, "acme.otlp.logs").await);
    for line in [
        "millpond_gateway_requests_total{transport=\"http\",signal=\"logs\",code=\"UNAUTHENTICATED\"} 6",
        "millpond_gateway_token_records_total{token=\"acme\"} 1",
    ] {
        assert_metric(&gateway, line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_and_go_on_connections_that_stay() {
    let (gateway, path, _directory) = gateway(&entry("agents", AGENTS, "")).await;
    let mut channel = gateway.client();
    let mut export = async |token: &str| {
        let mut request = tonic::Request::new(logs(1));
        let value = bearer(token).parse().expect("a header");
        request.metadata_mut().insert("authorization", value);
        let answer = tokio::time::timeout(PATIENCE, channel.export(request)).await;
        answer
            .expect("an answer")
            .map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(
        [export(AGENTS).await, export(ACME).await],
        [Code::Ok, Code::Unauthenticated]
    );

    fs::write(&path, entry("agents", AGENTS, "") + &entry("acme", ACME, "")).expect("written");
    gateway.security.reload(false).await;
    assert_eq!([export(AGENTS).await, export(ACME).await], [Code::Ok, Code::Ok]);

    fs::write(&path, "[[token]]\nname = \"acme\"\n").expect("written");
    gateway.security.reload(false).await;
    assert_metric(&gateway, "millpond_gateway_reload_failing{files=\"tokens\"} 1");
    assert_eq!([export(AGENTS).await, export(ACME).await], [Code::Ok, Code::Ok]);

    fs::write(&path, entry("acme", ACME, "")).expect("written");
    gateway.security.reload(false).await;
    assert_eq!(
        [export(AGENTS).await, export(ACME).await],
        [Code::Unauthenticated, Code::Ok]
    );
    for line in [
        "millpond_gateway_reload_failing{files=\"tokens\"} 0",
        "millpond_gateway_reloads_total{files=\"tokens\",outcome=\"success\"} 2",
        "millpond_gateway_reloads_total{files=\"tokens\",outcome=\"failure\"} 1",
        "millpond_gateway_token_records_total{token=\"acme\"} 3",
    ] {
        assert_metric(&gateway, line);
    }
    assert!(!gateway.metrics().contains("token=\"agents\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_security_is_documented() {
    let (gateway, _, _directory) = gateway(&entry("agents", AGENTS, "")).await;
    let documented = include_str!("../../../design/security.md");
    let text = gateway.metrics();
    let of_security = ["connections_refused", "denied", "token_", "tls_", "reload"];
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| of_security.iter().any(|part| name.contains(part)))
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(
            documented.contains(&format!("`{name}")),
            "{name} is not in design/security.md"
        );
    }
}
