//! The requests to replicas behind a load balancer. A stub answers for all of them.
#![expect(clippy::disallowed_methods, reason = "serves a socket from a thread")]

use super::*;
use crate::client::Client;
use crate::config::Config;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// An answer of the stub.
pub(in crate::server) enum Answer {
    /// No rows.
    Empty,
    /// These, as JSON.
    Rows(&'static str),
    Exception(u32),
}

use Answer::{Empty, Exception, Rows};

/// Starts a stub. Returns its URL and the requests that it sees.
pub(in crate::server) fn stand_in(
    answer: impl Fn(&str) -> Answer + Send + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read(&mut stream);
            let (status, body) = match answer(&request) {
                Empty => ("200 OK", Vec::new()),
                Rows(rows) => ("200 OK", rows.as_bytes().to_vec()),
                Exception(code) => {
                    let text = format!("Code: {code}. DB::Exception: no. (NO) (version 26.7)");
                    ("500 Internal Server Error", text.into_bytes())
                }
            };
            log.lock().unwrap().push(request);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    (url, seen)
}

/// Head and body.
fn read(stream: &mut std::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                (name.eq_ignore_ascii_case("content-length")).then(|| value.parse().unwrap())
            });
            if body.len() >= length.unwrap_or(0_usize) {
                return text;
            }
        }
        let length = stream.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..length]);
    }
}

pub(in crate::server) fn server_of(config: Config, url: String) -> Server {
    let client = Client::new(&config, &url).unwrap();
    Server {
        client: client.clone(),
        inserting: client,
        config,
        url,
        away: Mutex::default(),
    }
}

/// Asks replicas. Returns whether the answer is certain, and all requests.
async fn ask(cluster: Option<&str>, answer: impl Fn(&str) -> Answer + Send + 'static) -> (bool, Vec<String>) {
    let (url, seen) = stand_in(answer);
    let config = Config {
        urls: vec![url.clone()],
        cluster: cluster.map(str::to_owned),
        ..Config::default()
    };
    let server = server_of(config, url);
    let question = |from: &ReadFrom| from.numbers("1");
    let here = question(&ReadFrom::table("t"));
    let asked = server.asked::<There>(Table::Logs, &Ask::Replicas, here, &question);
    let (rows, certain) = asked.await.unwrap();
    assert!(rows.is_empty());
    let seen = seen.lock().unwrap();
    (certain, seen.clone())
}

fn parameter(request: &str, name: &str) -> Option<String> {
    let line = request.lines().next()?;
    let mut parameters = line.split(['?', '&', ' ']);
    parameters.find_map(|parameter| Some(parameter.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[tokio::test]
async fn the_replica_that_was_told_to_catch_up_answers() {
    let (certain, requests) = ask(None, |_| Empty).await;
    let [sync, question] = requests.try_into().unwrap();
    assert!(certain);
    assert!(
        sync.ends_with("SYSTEM SYNC REPLICA `otel`.`otel_logs` LIGHTWEIGHT"),
        "{sync}"
    );
    let session = parameter(&sync, "session_id").unwrap();
    assert_eq!(parameter(&question, "session_id"), Some(session));
    assert_eq!(parameter(&question, "session_check").as_deref(), Some("1"));
    assert_eq!(parameter(&sync, "session_check"), None);
}

/// Another server does not know the session.
fn other_server(request: &str) -> Answer {
    match parameter(request, "session_check") {
        Some(_) => Exception(SESSION_NOT_FOUND),
        None => Empty,
    }
}

#[tokio::test]
async fn an_answer_without_the_session_is_not_certain() {
    let (certain, requests) = ask(None, other_server).await;
    assert!(!certain);
    assert_eq!(requests.len(), 2 * SESSIONS + 1);
    let sessions = requests
        .iter()
        .filter_map(|request| parameter(request, "session_id"));
    let distinct: std::collections::BTreeSet<String> = sessions.collect();
    assert_eq!(distinct.len(), SESSIONS);
    assert!(requests.last().unwrap().contains("FROM t WHERE"));
    let (certain, requests) = ask(Some("main"), other_server).await;
    assert!(certain);
    assert_eq!(requests.len(), 2 * SESSIONS + 1);
    let last = requests.last().unwrap();
    assert!(
        last.contains("FROM clusterAllReplicas('main', `otel`, `otel_logs`)"),
        "{last}"
    );
}

#[tokio::test]
async fn a_user_who_may_not_sync_asks_all_replicas_or_knows_nothing_for_certain() {
    let denied = |request: &str| match request.contains("SYNC REPLICA") {
        true => Exception(497),
        false => Empty,
    };
    for (cluster, expected) in [(Some("main"), true), (None, false)] {
        let (certain, requests) = ask(cluster, denied).await;
        assert_eq!((certain, requests.len()), (expected, 2), "{cluster:?}");
    }
    let all_denied = |request: &str| match request.contains("SYNC REPLICA") || request.contains("clusterAll")
    {
        true => Exception(497),
        false => Empty,
    };
    let (certain, requests) = ask(Some("main"), all_denied).await;
    assert_eq!((certain, requests.len()), (false, 3));
}
