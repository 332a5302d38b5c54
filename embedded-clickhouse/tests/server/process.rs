//! The process: persistence, shutdown, and start failures.

use std::process::Command;

use crate::support::Server;

#[test]
fn data_survive_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path(), &[]);
    server.post("", b"CREATE DATABASE d").ok();
    server
        .post("", b"CREATE TABLE d.t (a UInt64) ENGINE = MergeTree ORDER BY a")
        .ok();
    for round in 0..5 {
        let sql = format!(
            "INSERT INTO d.t SELECT number FROM numbers({}, 1000)",
            round * 1000
        );
        server.post("", sql.as_bytes()).ok();
        server.kill();
        server = Server::start(data.path(), &[]);
        let rows = server.post("", b"SELECT count(), uniqExact(a) FROM d.t").ok();
        assert_eq!(rows, format!("{0}\t{0}\n", (round + 1) * 1000));
    }
}

#[test]
fn tokens_survive_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path(), &[]);
    let table = b"CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a
        SETTINGS non_replicated_deduplication_window = 100";
    server.post("", table).ok();
    for _ in 0..2 {
        server
            .post(
                "query=INSERT+INTO+t+FORMAT+TSV&insert_deduplication_token=x",
                b"1\n2\n",
            )
            .ok();
        server.kill();
        server = Server::start(data.path(), &[]);
    }
    assert_eq!(server.post("", b"SELECT count() FROM t").ok(), "2\n");
}

#[test]
fn a_signal_lets_the_running_query_finish() {
    for signal in ["TERM", "INT"] {
        let data = tempfile::tempdir().unwrap();
        let server = Server::start(data.path(), &[]);
        let (answer, status) = std::thread::scope(|scope| {
            let query = scope.spawn(|| server.post("", b"SELECT 'begun', sleepEachRow(1) FROM numbers(3)"));
            let running = b"SELECT count() FROM system.processes WHERE query LIKE '%begun%' AND query NOT LIKE '%processes%'";
            while server.post("", running).ok() != "1\n" {}
            server.signal(signal);
            (query.join().unwrap(), ())
        });
        assert_eq!(answer.ok(), "begun\t0\n".repeat(3), "{status:?}");
        assert!(server.terminated().success());
    }
}

#[test]
fn a_signal_ends_what_would_never_finish() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    std::thread::scope(|scope| {
        // A query that takes days before it returns anything, and a request that never ends.
        let sql = "SELECT 'begun', sum(sleepEachRow(0.5)) FROM numbers(1000000)
            SETTINGS max_block_size = 1, max_threads = 1 FORMAT JSON";
        scope.spawn(|| server.try_raw(&post(sql.len(), sql)));
        scope.spawn(|| server.try_raw(&post(1000, "SELECT ")));
        let running = b"SELECT count() FROM system.processes WHERE query LIKE '%begun%' AND query NOT LIKE '%processes%'";
        while server.post("", running).ok() != "1\n" {}
        server.signal("TERM");
    });
    assert!(server.terminated().success());
}

fn post(length: usize, body: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[test]
fn unusable_flags_are_refused_with_a_sentence() {
    let data = tempfile::tempdir().unwrap();
    let holds_the_folder = Server::start(data.path(), &[]);
    let other = tempfile::tempdir().unwrap();
    let taken = holds_the_folder.address.clone();
    let broken = other.path().join("broken.xml");
    std::fs::write(&broken, "<clickhouse><http_port>").unwrap();
    for (flags, expected) in [
        (
            vec!["--libchdb", "/nonexistent/libchdb.so"],
            "scripts/install-libchdb.sh",
        ),
        (vec!["--listen", "0.0.0.0:0"], "--insecure-listen"),
        (vec!["--listen", &taken], "cannot listen on"),
        (
            vec!["--users", "/nonexistent/users.xml"],
            "/nonexistent/users.xml",
        ),
        (
            vec!["--config", broken.to_str().unwrap()],
            "ClickHouse did not start",
        ),
        (vec!["--libchdb", "/dev/null"], "libchdb"),
        (
            vec!["--path", data.path().to_str().unwrap()],
            "another embedded-clickhouse uses",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embedded-clickhouse"));
        if !flags.contains(&"--path") {
            command.arg("--path").arg(other.path());
        }
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let output = command.args(&flags).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && message.contains(expected),
            "{flags:?}: {message}"
        );
    }
}

#[test]
fn a_crash_is_reported_on_stderr() {
    use std::os::unix::process::ExitStatusExt as _;

    let data = tempfile::tempdir().unwrap();
    for (name, number) in [("ABRT", 6), ("SEGV", 11)] {
        let file = data.path().join(name);
        let stderr = std::fs::File::create(&file).unwrap();
        let server = Server::start_with(data.path(), &[], stderr.into());
        server.signal(name);
        assert_eq!(server.terminated().signal(), Some(number));
        let message = std::fs::read_to_string(&file).unwrap();
        assert!(message.contains(&format!("(SIG{name})")), "{message}");
    }
}
