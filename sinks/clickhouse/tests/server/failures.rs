//! The classification of failures: transient, the table's, or the rows'.

use crate::support::{self, NEW_YEAR, Server, at, batch, chunk, write_again};
use millpond_clickhouse::{ClickHouse, Config};
use millpond_consumer::SinkError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

async fn write(sink: &ClickHouse) -> SinkError {
    let batch = batch(1, &[at([NEW_YEAR])]);
    support::write(sink, &batch.id, &chunk(sink, &batch))
        .await
        .unwrap_err()
}

#[tokio::test]
async fn a_server_that_is_down_is_a_transient_error() {
    let mut server = Server::start();
    let sink = server.open().await;
    server.kill();
    let error = write(&sink).await;
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("inserting 1 rows into `otel`.`otel_logs` as millpond/2/"),
        "{error}"
    );
    let error = ClickHouse::open(server.config()).await.unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    assert!(error.to_string().contains(&server.url), "{error}");
}

#[tokio::test]
async fn too_many_parts_are_a_transient_error() {
    let server = Server::start();
    let sink = server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING parts_to_throw_insert = 1")
        .await;
    let other = batch(2, &[at([NEW_YEAR])]);
    support::write(&sink, &other.id, &chunk(&sink, &other))
        .await
        .unwrap();
    let error = write(&sink).await;
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    assert!(error.to_string().contains("Code: 252"), "{error}");
    server
        .run("ALTER TABLE otel.otel_logs RESET SETTING parts_to_throw_insert")
        .await;
    let batch = batch(1, &[at([NEW_YEAR])]);
    write_again(&sink, &batch.id, &chunk(&sink, &batch))
        .await
        .unwrap();
    assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "2");
}

#[tokio::test]
async fn a_missing_or_changed_table_is_a_schema_error() {
    let server = Server::start();
    let sink = server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs DROP COLUMN EventName")
        .await;
    let error = write(&sink).await;
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    assert!(error.to_string().contains("EventName"), "{error}");
    server.run("DROP TABLE otel.otel_logs").await;
    let error = write(&sink).await;
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    assert!(error.to_string().contains("Code: 60"), "{error}");
}

#[tokio::test]
async fn rows_that_the_table_forbids_are_refused() {
    let server = Server::start();
    let sink = server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs ADD CONSTRAINT tidy CHECK Body != '0'")
        .await;
    let error = write(&sink).await;
    assert!(matches!(error, SinkError::Refused(_)), "{error}");
    assert!(error.to_string().contains("tidy"), "{error}");
}

/// Waiting for such a row would stop its stream until somebody changes the table.
#[tokio::test]
async fn rows_from_which_the_table_cannot_compute_a_column_are_refused() {
    let server = Server::start();
    let sink = server.open().await;
    for (code, kind, expression) in [
        (25, "Array(String)", r"CAST('[\'\\x' || Body, 'Array(String)')"),
        (26, "Array(String)", "CAST('[x' || Body, 'Array(String)')"),
        (27, "Array(UInt8)", "CAST('[' || Body, 'Array(UInt8)')"),
        (32, "UInt16", "toUInt16(LogAttributes['absent'])"),
        (
            32,
            "Decimal(9, 2)",
            "CAST(LogAttributes['absent'], 'Decimal(9, 2)')",
        ),
        (130, "Array(UInt8)", "CAST(Body, 'Array(UInt8)')"),
        (467, "Bool", "toBool(Body || 'x')"),
        (691, "Enum8('a' = 1)", "Body || 'x'"),
    ] {
        server
            .run(&format!(
                "ALTER TABLE otel.otel_logs ADD COLUMN computed {kind} MATERIALIZED {expression}"
            ))
            .await;
        let error = write(&sink).await;
        assert!(matches!(error, SinkError::Refused(_)), "{expression}: {error}");
        assert!(error.to_string().contains(&format!("Code: {code}.")), "{error}");
        server
            .run("ALTER TABLE otel.otel_logs DROP COLUMN computed")
            .await;
    }
}

/// A peer that answers every request with this text, or never. The embedded server has no users and no proxy in front
/// of it, so this peer sends their answers.
async fn answers(answer: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let Some(answer) = &answer else {
                silent.push(stream);
                continue;
            };
            let mut request = vec![0; 1 << 16];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

async fn open(url: String, timeout_seconds: u64) -> SinkError {
    let config = Config {
        urls: vec![url],
        timeout_seconds,
        ..Config::default()
    };
    ClickHouse::open(config).await.unwrap_err()
}

#[tokio::test]
async fn a_proxy_without_a_server_is_a_transient_error() {
    for status in [
        "502 Bad Gateway",
        "503 Service Unavailable",
        "429 Too Many Requests",
    ] {
        let error = open(answers(Some(http(status, "<html>sorry</html>"))).await, 30).await;
        assert!(matches!(error, SinkError::Transient(_)), "{status}: {error}");
    }
    // A server that stops closes its connections.
    let error = open(answers(Some(String::new())).await, 30).await;
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
}

#[tokio::test]
async fn another_service_at_the_address_is_not_waited_for() {
    for (status, body) in [
        ("200 OK", "<html>\nwelcome</html>"),
        ("302 Found", ""),
        ("400 Bad Request", "<Error><Code>InvalidArgument</Code></Error>"),
        ("404 Not Found", "page not found"),
        ("405 Method Not Allowed", "no"),
    ] {
        let error = open(answers(Some(http(status, body))).await, 30).await;
        assert!(matches!(error, SinkError::Schema(_)), "{status}: {error}");
        let text = error.to_string();
        assert!(text.contains("is not ClickHouse's HTTP interface"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[tokio::test]
async fn an_address_that_speaks_another_protocol_is_not_waited_for() {
    // Redis; a TLS server's alert; HTTP/2's first frame.
    for answer in [
        "-ERR unknown command 'POST'\r\n",
        "\x15\x03\x01\0\x02\x02\x16",
        "\0\0\0\x04\0\0\0\0\0",
    ] {
        expect_no_http(&open(answers(Some(answer.into())).await, 30).await);
    }
}

#[tokio::test]
async fn an_address_that_greets_its_clients_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
            open.push(stream);
        }
    });
    // Its greeting arrives before or after the request.
    for _ in 0..20 {
        expect_no_http(&open(url.clone(), 30).await);
    }
}

fn expect_no_http(error: &SinkError) {
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("is not ClickHouse's HTTP interface (the answer is not HTTP; for TLS give https://)"),
        "{text}"
    );
}

fn http(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_for_now() {
    let error = open(answers(None).await, 1).await;
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    assert!(error.to_string().contains("timeout"), "{error}");
}

#[tokio::test]
async fn wrong_credentials_are_a_lasting_error() {
    let exception = "Code: 516. DB::Exception: millpond: Authentication failed: password is incorrect, or there is no \
                     user with such name. (AUTHENTICATION_FAILED) (version 26.7.2.1)\n";
    let error = open(answers(Some(http("403 Forbidden", exception))).await, 30).await;
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    assert!(error.to_string().contains("Authentication failed"), "{error}");
}

#[tokio::test]
async fn an_invalid_url_is_a_schema_error() {
    for url in ["localhost:8123", "http://", "http://me:secret@localhost:8123"] {
        let error = open(url.into(), 1).await;
        assert!(matches!(error, SinkError::Schema(_)), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
