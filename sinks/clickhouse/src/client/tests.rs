//! Requests to a malicious server, or to one that is not ClickHouse.
#![expect(clippy::disallowed_methods, reason = "serves a socket from a thread")]

use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

/// The maximum unread data in the kernel's buffers of a connection.
const IN_BUFFERS: usize = 32 << 20;

/// Answers one request with a head and then `pieces`, until they end or the client disconnects. Returns the number of
/// sent bytes.
fn hostile(
    head: &'static str,
    pieces: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> (Client, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 1 << 16];
        let _ = stream.read(&mut request).unwrap();
        let mut sent = 0;
        for piece in std::iter::once(head.as_bytes().to_vec()).chain(pieces) {
            match stream.write(&piece) {
                Ok(length) => sent += length,
                Err(_) => break,
            }
        }
        sent
    });
    (Client::new(&Config::default(), &url).unwrap(), sent)
}

/// Returns the number of bytes of an answer that were sent before the client disconnected.
async fn taken(client: Client, sent: JoinHandle<usize>) -> usize {
    drop(client);
    tokio::task::spawn_blocking(|| sent.join().unwrap())
        .await
        .unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
const REFUSED: &str =
    "HTTP/1.1 500 Internal Server Error\r\nX-ClickHouse-Exception-Code: 60\r\nConnection: close\r\n\r\n";

fn for_ever(piece: &[u8]) -> impl Iterator<Item = Vec<u8>> + Send + 'static + use<> {
    std::iter::repeat(piece.repeat((1 << 16) / piece.len()))
}

#[tokio::test]
async fn a_length_in_an_answer_allocates_nothing() {
    // As RowBinary: 2,147,483,647 columns, whose names and types alone would take 51 GB.
    for answer in [
        &b"\xff\xff\xff\xff\x07"[..],
        b"\xff\xff\xff\xff\x07\n",
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ] {
        let (client, _) = hostile(OK, std::iter::once(answer.to_vec()));
        let error = client.values::<String>("SELECT version()").await.unwrap_err();
        assert!(
            matches!(error, Error::Answer(AnswerError::Unreadable(_))),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    for piece in [&b"[1]\n"[..], b"[", b"x", b"x\n", b"\n"] {
        let (client, sent) = hostile(OK, for_ever(piece));
        let error = client.values::<u64>("SELECT 1").await.unwrap_err();
        assert!(
            matches!(error, Error::Answer(AnswerError::TooLarge(_))),
            "{error}"
        );
        let sent = taken(client, sent).await;
        assert!(sent < ANSWER_BYTES_MAX + IN_BUFFERS, "{sent} bytes were taken");
    }
}

#[tokio::test]
async fn an_endless_error_is_cut_and_keeps_its_code() {
    let (client, sent) = hostile(REFUSED, for_ever(b"x"));
    let error = client.values::<u64>("SELECT 1").await.unwrap_err();
    let Error::Exception { code: 60, text } = error else {
        panic!("{error}")
    };
    assert_eq!(text.len(), answer::ERROR_BYTES_MAX);
    let sent = taken(client, sent).await;
    assert!(sent < IN_BUFFERS, "{sent} bytes were taken");
}

#[tokio::test]
async fn the_answer_to_a_statement_has_a_limit_too() {
    let (client, _) = hostile(OK, for_ever(b"x"));
    let error = client.execute("SYSTEM SYNC REPLICA t").await.unwrap_err();
    assert!(
        matches!(error, Error::Answer(AnswerError::TooLarge(_))),
        "{error}"
    );
    let (client, _) = hostile(OK, for_ever(b"x"));
    let body = [Bytes::from_static(b"x")];
    let error = client
        .insert("INSERT INTO t FORMAT Native", &body)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Answer(AnswerError::TooLarge(_))),
        "{error}"
    );
}

#[tokio::test]
async fn a_statement_that_fails_late_has_failed() {
    let text = "\r\n__exception__\r\ntagtagtag\r\nCode: 241. DB::Exception: too much. (X)\n30 tagtagtag\r\n__exception__\r\n";
    let (client, _) = hostile(OK, std::iter::once(text.as_bytes().to_vec()));
    let error = client.execute("SELECT 1").await.unwrap_err();
    assert!(matches!(error, Error::Exception { code: 241, .. }), "{error}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let head = "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (client, _) = hostile(head, std::iter::empty());
    let error = client.execute("SELECT 1").await.unwrap_err();
    assert!(matches!(error, Error::Status { status: 307, .. }), "{error}");
}

#[tokio::test]
async fn an_error_shows_neither_url_nor_token() {
    // Nobody listens at a port that is taken and no more than that.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}", taken.local_addr().unwrap());
    let client = Client::new(&Config::default(), &url)
        .unwrap()
        .with_setting("role", "hidden");
    let error = client.execute("SELECT 1").await.unwrap_err().to_string();
    assert!(error.starts_with("network error: "), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}
