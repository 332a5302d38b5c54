//! ClickHouse's HTTP interface with the users and settings of this program.

use std::io::{Read as _, Write as _};

use crate::support::Server;

#[test]
fn the_interface_is_clickhouses_own() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    for path in ["/ping", "/play", "/dashboard"] {
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        assert!(!server.raw(request.as_bytes()).ok().is_empty(), "{path}");
    }
    let failed = server.post("", b"SELECT * FROM nowhere");
    assert_eq!((failed.status, failed.code()), (404, 60));
    assert_eq!(server.post("nonsense=1", b"SELECT 1").code(), 115);
    let query = server.post("query_id=mine", b"SELECT query_id() FORMAT TSV");
    assert_eq!(query.header("X-ClickHouse-Query-Id"), Some("mine"));
    assert!(query.header("X-ClickHouse-Summary").is_some());
    assert_eq!(query.ok(), "mine\n");
}

#[test]
fn a_running_query_can_be_killed_by_its_id() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    std::thread::scope(|scope| {
        let sql = b"SELECT sleepEachRow(0.1) FROM system.numbers SETTINGS max_block_size = 1 FORMAT Null";
        let endless = scope.spawn(|| server.post("query_id=endless", sql));
        while server
            .post("", b"KILL QUERY WHERE query_id = 'endless' SYNC")
            .ok()
            .is_empty()
        {
            assert!(!endless.is_finished(), "{:?}", endless.join());
        }
        assert_eq!(endless.join().unwrap().code(), 394);
    });
}

#[test]
fn a_body_that_ends_early_inserts_nothing() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let table = b"CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a";
    server.post("", table).ok();
    let head = "POST /?query=INSERT+INTO+t+FORMAT+TSV HTTP/1.1\r\nHost: x\r\n";
    for body in [
        "Content-Length: 100\r\n\r\n1\tx\n2\ty\n",
        "Transfer-Encoding: chunked\r\n\r\n4\r\n1\tx\n\r\n",
    ] {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A reset counts as an error here.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{body}");
    }
    assert_eq!(server.post("", b"SELECT count() FROM t").ok(), "0\n");
}

#[test]
fn users_and_settings_come_from_files() {
    let data = tempfile::tempdir().unwrap();
    let (users, config) = (data.path().join("given-users"), data.path().join("given-config"));
    let given = "<clickhouse>
        <profiles><looker><readonly>1</readonly></looker></profiles>
        <users>
            <writer><password>secret</password><networks><ip>127.0.0.1</ip></networks></writer>
            <reader><password>other</password><networks><ip>127.0.0.1</ip></networks><profile>looker</profile></reader>
        </users>
    </clickhouse>";
    std::fs::write(&users, given).unwrap();
    std::fs::write(
        &config,
        "<clickhouse><macros><zone>a</zone></macros></clickhouse>",
    )
    .unwrap();
    let (users, config) = (users.to_str().unwrap(), config.to_str().unwrap());
    let server = Server::start(data.path(), &["--users", users, "--config", config]);

    let macros = server.post("user=writer&password=secret", b"SELECT getMacro('zone')");
    assert_eq!(macros.ok(), "a\n");
    server
        .post(
            "user=writer&password=secret",
            b"CREATE TABLE t (a UInt8) ENGINE = Memory",
        )
        .ok();
    assert_eq!(server.post("", b"SELECT * FROM t").code(), 497);
    assert_eq!(
        server.post("user=reader&password=secret", b"SELECT 1").code(),
        516
    );
    let reader = "user=reader&password=other";
    assert_eq!(server.post(reader, b"SELECT currentUser()").ok(), "reader\n");
    assert_eq!(server.post(reader, b"CREATE DATABASE d").code(), 164);
}
