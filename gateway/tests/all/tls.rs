//! TLS: which clients get a connection, the errors of the others, and certificate changes at run time.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::http::LOGS;
use crate::common::pki::{Ca, Leaf, UNTIL};
use crate::common::{PATIENCE, Running, SHORT, logs, producer_config, secured, start};
use futures::future::join_all;
use millpond_gateway::{Config, Security, SecurityFiles, TlsFiles};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use prometheus_client::registry::Registry;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// The files of a gateway, which a test may change.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new(server: &Leaf) -> Place {
        let place = Place {
            directory: TempDir::new().expect("a directory"),
        };
        place.write("cert.pem", &server.certificate);
        place.write("key.pem", &server.key);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn files(&self, client_ca: Option<&Ca>) -> SecurityFiles {
        if let Some(ca) = client_ca {
            self.write("client-ca.pem", &ca.pem());
        }
        SecurityFiles {
            tls: Some(TlsFiles {
                certificate: self.path("cert.pem"),
                key: self.path("key.pem"),
                client_ca: client_ca.map(|_| self.path("client-ca.pem")),
            }),
            tokens: None,
        }
    }
}

async fn gateway(files: &SecurityFiles) -> Running {
    secured(producer_config(), Config::default(), files).await
}

/// A client that trusts `ca`, on a new connection.
fn client(gateway: &Running, ca: &Ca, identity: Option<&Leaf>) -> LogsServiceClient<Channel> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca.pem()));
    if let Some(leaf) = identity {
        tls = tls.identity(Identity::from_pem(&leaf.certificate, &leaf.key));
    }
    let channel = Endpoint::from_shared(format!("https://{}", gateway.address))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .expect("an endpoint")
        .connect_lazy();
    LogsServiceClient::new(channel)
}

async fn succeeds(client: &mut LogsServiceClient<Channel>) {
    timeout(PATIENCE, client.export(logs(1)))
        .await
        .expect("an answer")
        .expect("success");
}

async fn fails(mut client: LogsServiceClient<Channel>) {
    timeout(PATIENCE, client.export(logs(1)))
        .await
        .expect("an answer")
        .expect_err("no connection");
}

/// Waits for at least this many connections refused for this reason: a client may retry by itself.
async fn until_refused(gateway: &Running, reason: &str, connections: u64) {
    let counted = async {
        while refused(gateway, reason) < connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(PATIENCE, counted).await.is_err() {
        panic!("not {connections} {reason} in {}", gateway.metrics());
    }
}

fn refused(gateway: &Running, reason: &str) -> u64 {
    let metric =
        format!("millpond_gateway_connections_refused_total{{transport=\"grpc\",reason=\"{reason}\"}} ");
    let text = gateway.metrics();
    let count = text.lines().find_map(|line| line.strip_prefix(&metric));
    count.expect("the metric").parse().expect("a count")
}

async fn until_nothing_is_held(gateway: &Running) {
    let nothing = async {
        while gateway.producers.budget().held() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, nothing).await.expect("all memory given back");
}

/// Reads until the gateway closes the connection.
async fn read_all(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the connection is closed");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_trust_the_certificate_are_served_and_plain_text_is_not() {
    let (ca, other) = (Ca::new("ours"), Ca::new("another"));
    let place = Place::new(&ca.server());
    let gateway = gateway(&place.files(None)).await;
    let mut trusting = client(&gateway, &ca, None);
    succeeds(&mut trusting).await;
    // An unrequested client certificate is harmless.
    succeeds(&mut client(&gateway, &ca, Some(&other.client()))).await;
    fails(client(&gateway, &other, None)).await;
    until_refused(&gateway, "distrust", 1).await;
    fails(gateway.client()).await;
    until_refused(&gateway, "clear", 1).await;
    succeeds(&mut trusting).await;
    drop(trusting);
    until_nothing_is_held(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_ca_of_clients_a_client_needs_a_certificate_of_it_that_is_valid() {
    let (ca, clients, other) = (Ca::new("servers"), Ca::new("clients"), Ca::new("another"));
    let place = Place::new(&ca.server());
    let gateway = gateway(&place.files(Some(&clients))).await;
    succeeds(&mut client(&gateway, &ca, Some(&clients.client()))).await;
    let expired = clients.expired(ExtendedKeyUsagePurpose::ClientAuth);
    // A server certificate is not valid for clients.
    for identity in [
        None,
        Some(other.client()),
        Some(ca.client()),
        Some(expired),
        Some(clients.server()),
    ] {
        let before = refused(&gateway, "certificate");
        fails(client(&gateway, &ca, identity.as_ref())).await;
        until_refused(&gateway, "certificate", before + 1).await;
    }
    until_nothing_is_held(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_to_a_tls_port_gets_an_explanation() {
    let place = Place::new(&Ca::new("ours").server());
    let gateway = gateway(&place.files(None)).await;
    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
    stream
        .write_all(b"POST /v1/logs HTTP/1.1\r\n\r\n")
        .await
        .expect("written");
    let answer = String::from_utf8(read_all(&mut stream).await).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(
        head.contains(&format!("content-length: {}", body.len())),
        "{answer}"
    );
    assert!(body.contains("https://"), "{answer}");
    until_refused(&gateway, "clear", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_to_a_port_in_clear_is_closed_at_once() {
    let gateway = start(producer_config(), Config::default()).await;
    fails(client(&gateway, &Ca::new("any"), None)).await;
    until_refused(&gateway, "tls", 1).await;
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_stalls_is_closed_and_gives_its_memory_back() {
    let place = Place::new(&Ca::new("ours").server());
    let config = Config {
        handshake_timeout: SHORT,
        ..Config::default()
    };
    let gateway = secured(producer_config(), config, &place.files(None)).await;
    // Nothing; half of a record header; the header of a 16 KiB record.
    let stalls = [&b""[..], &[22, 3], &[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]];
    let connections = stalls.map(async |begun| {
        let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
        stream.write_all(begun).await.expect("written");
        assert_eq!(read_all(&mut stream).await, b"");
    });
    join_all(connections).await;
    until_refused(&gateway, "slow", 3).await;
    until_nothing_is_held(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_only_begins_like_tls_is_closed_at_once() {
    let place = Place::new(&Ca::new("ours").server());
    let gateway = gateway(&place.files(None)).await;
    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
    stream.write_all(&[22; 64]).await.expect("written");
    read_all(&mut stream).await;
    until_refused(&gateway, "handshake", 1).await;
    until_nothing_is_held(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_port_offers_what_it_speaks() {
    let ca = Ca::new("ours");
    let place = Place::new(&ca.server());
    let gateway = gateway(&place.files(None)).await;
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(ca.pem().as_bytes()).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    for (address, protocol, spoken) in [
        (gateway.address, "http/1.1", false),
        (gateway.address, "h2", true),
        (gateway.http_address, "http/1.1", true),
        (gateway.http_address, "h2", true),
    ] {
        config.alpn_protocols = vec![protocol.into()];
        let stream = TcpStream::connect(address).await.expect("a connection");
        let connected = TlsConnector::from(Arc::new(config.clone())).connect(name.clone(), stream);
        let connected = timeout(PATIENCE, connected).await.expect("an answer");
        let Ok(mut stream) = connected else {
            assert!(!spoken, "{protocol} at {address}");
            continue;
        };
        let negotiated = stream.get_ref().1.alpn_protocol();
        assert_eq!(negotiated, Some(protocol.as_bytes()));
        if protocol == "http/1.1" {
            let request = format!(
                "POST /v1/logs HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{LOGS}",
                LOGS.len()
            );
            stream.write_all(request.as_bytes()).await.expect("written");
            let answer = read_all(&mut stream).await;
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{answer:?}");
        }
    }
    until_refused(&gateway, "handshake", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_takes_memory_from_the_budget_and_is_refused_when_there_is_none() {
    let ca = Ca::new("ours");
    let place = Place::new(&ca.server());
    let config = Config {
        // HTTP/2's minimum, which is in no budget: only TLS holds memory.
        connection_window_bytes: 65_535,
        ..Config::default()
    };
    let gateway = secured(producer_config(), config, &place.files(None)).await;
    let budget = gateway.producers.budget();
    let mut first = client(&gateway, &ca, None);
    succeeds(&mut first).await;
    let for_the_connection = async {
        // The request's memory is released after its answer.
        while budget.held() != 48 << 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, for_the_connection)
        .await
        .expect("the request's memory given back");

    let rest = budget
        .reserve(budget.limit() - budget.held())
        .await
        .expect("the rest");
    fails(client(&gateway, &ca, None)).await;
    until_refused(&gateway, "no_memory", 1).await;
    drop(rest);
    // The first connection has survived.
    succeeds(&mut first).await;
    succeeds(&mut client(&gateway, &ca, None)).await;
    drop(first);
    until_nothing_is_held(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_for_new_connections_and_the_old_ones_live_on() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let place = Place::new(&old.server());
    let gateway = gateway(&place.files(None)).await;
    let mut before = client(&gateway, &old, None);
    succeeds(&mut before).await;

    let leaf = new.server();
    place.write("cert.pem", &leaf.certificate);
    place.write("key.pem", &leaf.key);
    succeeds(&mut client(&gateway, &old, None)).await;
    gateway.security.reload(false).await;
    succeeds(&mut client(&gateway, &new, None)).await;
    fails(client(&gateway, &old, None)).await;
    // It trusts only the old CA, so it could not have reconnected.
    succeeds(&mut before).await;
    assert_metrics(&gateway, [1, 0, 0], UNTIL);
}

/// Reloads that succeeded, reloads that failed, whether the last one failed, and the certificate's expiry.
fn assert_metrics(gateway: &Running, [success, failure, failing]: [u32; 3], until: u64) {
    let text = gateway.metrics();
    for line in [
        format!("millpond_gateway_reloads_total{{files=\"tls\",outcome=\"success\"}} {success}\n"),
        format!("millpond_gateway_reloads_total{{files=\"tls\",outcome=\"failure\"}} {failure}\n"),
        format!("millpond_gateway_reload_failing{{files=\"tls\"}} {failing}\n"),
        format!("millpond_gateway_tls_certificate_expiry_seconds {until}\n"),
    ] {
        assert!(text.contains(&line), "{line} not in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_files_leave_the_old_certificate_in_force() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let (old_leaf, new_leaf) = (old.server(), new.server());
    let place = Place::new(&old_leaf);
    let gateway = gateway(&place.files(None)).await;
    for (failures, text) in [&new_leaf.certificate, "no certificate", ""]
        .into_iter()
        .enumerate()
    {
        place.write("cert.pem", text);
        for _ in 0..2 {
            gateway.security.reload(false).await;
        }
        let failures = u32::try_from(failures + 1).expect("few");
        assert_metrics(&gateway, [0, failures, 1], UNTIL);
        succeeds(&mut client(&gateway, &old, None)).await;
    }
    place.write("cert.pem", &old_leaf.certificate);
    gateway.security.reload(false).await;
    assert_metrics(&gateway, [0, 3, 0], UNTIL);

    fs::remove_file(place.path("key.pem")).expect("removed");
    gateway.security.reload(false).await;
    assert_metrics(&gateway, [0, 4, 1], UNTIL);
    succeeds(&mut client(&gateway, &old, None)).await;

    place.write("cert.pem", &new_leaf.certificate);
    place.write("key.pem", &new_leaf.key);
    gateway.security.reload(false).await;
    assert_metrics(&gateway, [1, 4, 0], UNTIL);
    succeeds(&mut client(&gateway, &new, None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_of_clients_can_be_taken_away() {
    let (ca, gone, next) = (Ca::new("servers"), Ca::new("gone"), Ca::new("next"));
    let place = Place::new(&ca.server());
    let gateway = gateway(&place.files(Some(&gone))).await;
    let client = |of: &Ca| client(&gateway, &ca, Some(&of.client()));
    succeeds(&mut client(&gone)).await;
    place.write("client-ca.pem", &format!("{}{}", gone.pem(), next.pem()));
    gateway.security.reload(false).await;
    succeeds(&mut client(&gone)).await;
    succeeds(&mut client(&next)).await;
    place.write("client-ca.pem", &next.pem());
    gateway.security.reload(false).await;
    succeeds(&mut client(&next)).await;
    fails(client(&gone)).await;
    until_refused(&gateway, "certificate", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_expired_is_served_and_shown() {
    let ca = Ca::new("ours");
    let place = Place::new(&ca.expired(ExtendedKeyUsagePurpose::ServerAuth));
    let gateway = gateway(&place.files(None)).await;
    fails(client(&gateway, &ca, None)).await;
    until_refused(&gateway, "distrust", 1).await;
    assert_metrics(&gateway, [0, 0, 0], 978_307_200);
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_what_is_wrong_and_no_key_is_shown() {
    let (ca, other) = (Ca::new("ours"), Ca::new("another"));
    let leaf = ca.server();
    let secret = leaf.key.lines().nth(1).expect("a line of the key").to_owned();
    let cut = leaf.key.lines().take(2).collect::<Vec<_>>().join("\n");
    for (file, text, expected) in [
        ("cert.pem", None, "--tls-cert"),
        ("key.pem", None, "--tls-key"),
        ("client-ca.pem", None, "--tls-client-ca"),
        ("cert.pem", Some(&leaf.key), "it contains no certificate"),
        (
            "cert.pem",
            Some(&other.server().certificate),
            "it is not the key of the certificate",
        ),
        (
            "key.pem",
            Some(&leaf.certificate),
            "it contains no readable private key",
        ),
        ("key.pem", Some(&cut), "it contains no readable private key"),
        (
            "key.pem",
            Some(&leaf.key.replace("BEGIN", "BEGUN")),
            "it contains no readable private key",
        ),
        (
            "key.pem",
            Some(&other.server().key),
            "it is not the key of the certificate in --tls-cert",
        ),
        (
            "client-ca.pem",
            Some(&"CA".to_owned()),
            "it contains no certificate",
        ),
    ] {
        let place = Place::new(&leaf);
        let files = place.files(Some(&ca));
        match text {
            Some(text) => place.write(file, text),
            None => fs::remove_file(place.path(file)).expect("removed"),
        }
        let refused = Security::load(&files, &mut Registry::default()).expect_err("refused");
        let message = refused.to_string();
        assert!(message.contains(expected), "{message}");
        let named = message.contains(&place.path(file).display().to_string());
        assert!(named, "{message}");
        assert!(!message.contains(&secret), "{message}");
    }
}
