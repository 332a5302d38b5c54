//! ClickHouse's HTTP interface, request by request.

use std::io::{Read as _, Write as _};

use crate::support::{Answer, Server};

fn server() -> (tempfile::TempDir, Server) {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &["--max-body", "8"]);
    server
        .post(
            "",
            b"CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a",
        )
        .ok();
    (data, server)
}

fn count(server: &Server) -> String {
    server.post("", b"SELECT count() FROM t").ok().trim().to_owned()
}

#[test]
fn health_checks_answer_ok() {
    let (_data, server) = server();
    for path in ["/ping", "/", "/replicas_status"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(server.raw(request.as_bytes()).ok(), "Ok.\n", "{path}");
    }
    let elsewhere = server.raw(b"GET /elsewhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(elsewhere.status, 404);
}

#[test]
fn sql_comes_in_the_parameter_the_body_or_both() {
    let (_data, server) = server();
    assert_eq!(server.request("GET", "query=SELECT%201", "", b"").ok(), "1\n");
    assert_eq!(server.post("", b"SELECT 2").ok(), "2\n");
    assert_eq!(server.post("query=SELECT%203,", b"4").ok(), "3\t4\n");
    server
        .post("query=INSERT+INTO+t+VALUES+(1,'x'),", b"(2, upper('y'))")
        .ok();
    server
        .post("query=INSERT+INTO+t+FORMAT+JSONEachRow", b"{\"a\":3}")
        .ok();
    server.post("query=INSERT+INTO+t+(b,a)", b"('z', 4)").ok();
    server
        .post("query=INSERT+INTO+t&default_format=CSV", b"5,\"c\n\nc\"")
        .ok();
    server
        .request(
            "POST",
            "query=INSERT+INTO+t",
            "X-ClickHouse-Format: TSV\r\n",
            b"6\td\n",
        )
        .ok();
    server
        .post("", b"INSERT INTO t FORMAT RowBinary\n\n\0\0\0\0\0\0\0\x02\n\n")
        .ok();
    server.post("", b"INSERT INTO t SELECT 7, 's'").ok();
    let rows = server
        .post("default_format=CSV", b"SELECT * FROM t ORDER BY a")
        .ok();
    assert_eq!(
        rows,
        "1,\"x\"\n2,\"Y\"\n3,\"\"\n4,\"z\"\n5,\"c\n\nc\"\n6,\"d\"\n7,\"s\"\n10,\"\n\n\"\n"
    );
}

#[test]
fn the_headers_say_what_the_answer_is() {
    let (_data, server) = server();
    let answer = server.post("query_id=me", b"SELECT 1 AS x FORMAT JSONEachRow");
    assert_eq!(answer.ok(), "{\"x\":1}\n");
    assert_eq!(answer.header("X-ClickHouse-Query-Id"), Some("me"));
    assert_eq!(answer.header("X-ClickHouse-Format"), Some("JSONEachRow"));
    assert!(answer.header("X-ClickHouse-Server-Display-Name").is_some());
    let timezone = server.post("", b"SELECT timezone()").ok();
    assert_eq!(answer.header("X-ClickHouse-Timezone"), Some(timezone.trim()));
    let inserted = server.post("query=INSERT+INTO+t+FORMAT+TSV", b"1\tx\n2\ty\n");
    let summary: serde_json::Value =
        serde_json::from_str(inserted.header("X-ClickHouse-Summary").unwrap()).unwrap();
    assert_eq!(
        (&summary["written_rows"], &summary["result_rows"]),
        (&"2".into(), &"2".into())
    );
    assert_eq!(inserted.header("Content-Length"), Some("0"));
    let read = server.post("", b"SELECT * FROM t");
    assert!(
        read.header("X-ClickHouse-Summary")
            .unwrap()
            .contains("\"read_rows\":\"2\"")
    );
}

#[test]
fn exceptions_have_clickhouses_status_code_and_text() {
    let (_data, server) = server();
    for (sql, status, code) in [
        ("SELECT * FROM nowhere", 404, 60),
        ("SELECT * FROM nowhere.t", 404, 81),
        ("SELECT nothing", 404, 47),
        ("SELECT 1 FORMAT Nonsense", 404, 73),
        ("SELEC 1", 400, 62),
        ("SELECT 1; SELECT 2", 400, 62),
        ("", 400, 62),
        ("INSERT INTO t FORMAT JSONEachRow {\"a\":\"x\"}", 400, 27),
        ("INSERT INTO nowhere VALUES (1)", 404, 60),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT 1 SETTINGS nonsense = 1", 404, 115),
    ] {
        let answer = server.post("", sql.as_bytes());
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{sql}: {}",
            answer.text()
        );
        assert!(
            answer
                .text()
                .starts_with(&format!("Code: {code}. DB::Exception: ")),
            "{}",
            answer.text()
        );
        assert!(
            answer.text().ends_with("(official build))\n"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(server.post("database=nowhere", b"SELECT 1").code(), 81);
    assert_eq!(server.request("GET", "query=DROP+TABLE+t", "", b"").code(), 164);
    assert_eq!(
        server
            .request("GET", "query=INSERT+INTO+t+VALUES+(1,'')", "", b"")
            .code(),
        164
    );
    assert_eq!(count(&server), "0");
}

#[test]
fn settings_hold_for_one_request_and_unknown_ones_are_refused() {
    let (_data, server) = server();
    let setting = b"SELECT value FROM system.settings WHERE name = 'max_block_size'";
    let default = server.post("", setting).ok();
    assert_eq!(server.post("max_block_size=17", setting).ok(), "17\n");
    server.post("", b"SET max_block_size = 18").ok();
    assert_eq!(server.post("", setting).ok(), default);
    assert_eq!(server.post("nonsense=1", b"SELECT 1").code(), 115);
    assert_eq!(server.post("max_block_size=many", b"SELECT 1").code(), 27);
    assert_eq!(server.post("max_block_size%3D1,x=1", b"SELECT 1").code(), 115);
    server.post("", b"CREATE DATABASE `d``b`").ok();
    assert_eq!(
        server.post("database=d%60b", b"SELECT currentDatabase()").ok(),
        "d`b\n"
    );
    assert_eq!(server.post("", b"SELECT currentDatabase()").ok(), "default\n");
}

#[test]
fn users_and_sessions_are_accepted_and_mean_nothing() {
    let (_data, server) = server();
    let headers =
        "X-ClickHouse-User: me\r\nX-ClickHouse-Key: secret\r\nAuthorization: Basic bWU6c2VjcmV0\r\n";
    let parameters = "user=me&password=p&session_id=s&session_timeout=60&role=r&quota_key=q";
    assert_eq!(
        server
            .request("POST", parameters, headers, b"SELECT currentUser()")
            .ok(),
        "default\n"
    );
}

#[test]
fn parameters_are_values_not_sql() {
    let (_data, server) = server();
    let sql = b"SELECT {x:String} || '!', {n:Array(UInt8)}";
    let answer = server.post(
        "param_x=%27%29%3B+DROP+TABLE+t%3B&param_n=[1,2]&default_format=CSV",
        sql,
    );
    assert_eq!(answer.ok(), "\"'); DROP TABLE t;!\",\"[1,2]\"\n");
    server
        .post(
            "param_t=t&param_v=x&query=INSERT+INTO+{t:Identifier}+FORMAT+TSV",
            b"1\tx",
        )
        .ok();
    assert_eq!(count(&server), "1");
    assert_eq!(server.post("", b"SELECT {y:UInt8}").code(), 456);
}

#[test]
fn a_form_with_a_file_is_refused() {
    let (_data, server) = server();
    let form = "--b\r\nContent-Disposition: form-data; name=\"ext\"; filename=\"x\"\r\n\r\n1\r\n--b--\r\n";
    let headers = "Content-Type: multipart/form-data; boundary=b\r\n";
    let answer = server.request("POST", "query=SELECT+*+FROM+ext", headers, form.as_bytes());
    assert_eq!((answer.status, answer.code()), (501, 48));
}

#[test]
fn formats_with_a_header_have_it_once_however_many_blocks_there_are() {
    let (_data, server) = server();
    for (format, header) in [
        ("CSVWithNames", "\"number\"\n"),
        ("TSVWithNamesAndTypes", "number\nUInt64\n"),
        ("JSONCompactEachRowWithNames", "[\"number\"]\n"),
        ("TSV", ""),
    ] {
        let sql = format!("SELECT number FROM numbers(300000) FORMAT {format}");
        let text = server
            .post("max_block_size=1000&wait_end_of_query=1", sql.as_bytes())
            .ok();
        assert!(text.starts_with(header), "{format}");
        assert_eq!(text.lines().count(), 300_000 + header.lines().count(), "{format}");
        let none = server.post("", sql.replace("300000", "0").as_bytes()).ok();
        assert_eq!(none, header, "{format}");
    }
    for format in ["JSON", "Parquet", "ArrowStream", "XML", "Values", "PrettyCompact"] {
        let sql = format!("SELECT number FROM numbers(3000) FORMAT {format}");
        let once = server.post("max_block_size=100000&max_threads=1", sql.as_bytes());
        let blocks = server.post("max_block_size=100&max_threads=1", sql.as_bytes());
        assert_eq!((once.status, blocks.status), (200, 200), "{format}");
        if format == "JSON" {
            let rows: serde_json::Value = serde_json::from_slice(&blocks.body).unwrap();
            assert_eq!(rows["data"].as_array().unwrap().len(), 3000);
        }
    }
    let totals = "SELECT number % 2 AS k, count() FROM numbers(4) GROUP BY k WITH TOTALS ORDER BY k";
    assert_eq!(server.post("", totals.as_bytes()).ok(), "0\t2\n1\t2\n\n0\t4\n");
}

fn curl(server: &Server, arguments: &[&str]) -> (Option<i32>, Vec<u8>) {
    let mut command = std::process::Command::new("curl");
    let output = command
        .arg("-sS")
        .args(arguments)
        .arg(server.url())
        .output()
        .expect("curl is installed");
    (output.status.code(), output.stdout)
}

#[test]
fn content_encodings_work_both_ways() {
    let (_data, server) = server();
    let sql = "SELECT number FROM numbers(100000)";
    let plain = curl(&server, &["--data-binary", sql]);
    assert_eq!(plain.0, Some(0));
    for encoding in ["gzip", "deflate", "zstd"] {
        let header = format!("Accept-Encoding: {encoding}");
        let answer = server.request("POST", "", &format!("{header}\r\n"), sql.as_bytes());
        assert_eq!(answer.header("Content-Encoding"), Some(encoding));
        // curl decodes zstd only where it was built with it, so gzip and deflate are left to it.
        if encoding != "zstd" {
            assert_eq!(
                curl(&server, &["--compressed", "-H", &header, "--data-binary", sql]),
                plain
            );
        }
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"INSERT INTO t FORMAT TSV\n1\tx\n2\ty\n").unwrap();
    let gzip = gzip.finish().unwrap();
    server
        .request("POST", "", "Content-Encoding: gzip\r\n", &gzip)
        .ok();
    assert_eq!(count(&server), "2");
    let cut = server.request("POST", "", "Content-Encoding: gzip\r\n", &gzip[..gzip.len() - 4]);
    assert_eq!((cut.status, cut.code()), (400, 271));
    let unknown = server.request("POST", "", "Content-Encoding: br\r\n", b"SELECT 1");
    assert_eq!(unknown.code(), 89);
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(&mut std::io::repeat(b' ').take(9 << 20), &mut bomb).unwrap();
    let bomb = server.request("POST", "", "Content-Encoding: gzip\r\n", &bomb.finish().unwrap());
    assert_eq!((bomb.status, bomb.code()), (413, 307));
    assert_eq!(count(&server), "2");
}

#[test]
fn a_frame_with_a_wrong_checksum_inserts_nothing() {
    let (_data, server) = server();
    let answer = server.post("compress=1&default_format=TSV", b"SELECT 1, 'x'");
    assert_eq!(answer.status, 200);
    let frame = answer.body;
    let target = "decompress=1&query=INSERT+INTO+t+FORMAT+TSV";
    server.post(target, &frame).ok();
    assert_eq!(count(&server), "1");
    let mut wrong = frame.clone();
    wrong[0] ^= 1;
    let refused = server.post(target, &wrong);
    assert_eq!((refused.status, refused.code()), (400, 40));
    let cut = server.post(target, &[&frame[..], &frame[..frame.len() - 1]].concat());
    assert_eq!((cut.status, cut.code()), (400, 33));
    assert_eq!(count(&server), "1");
}

/// Sends a request whose body ends early, and whatever answer there is.
fn die_in_mid_body(server: &Server, request: &[u8]) {
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // A reset is as good as an error here.
    let _ = stream.read_to_end(&mut answer);
    assert!(
        !answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[test]
fn a_body_that_ends_early_inserts_nothing() {
    let (_data, server) = server();
    let head = "POST /?query=INSERT+INTO+t+FORMAT+TSV HTTP/1.1\r\nHost: x\r\n";
    die_in_mid_body(
        &server,
        format!("{head}Content-Length: 100\r\n\r\n1\tx\n2\ty\n").as_bytes(),
    );
    die_in_mid_body(
        &server,
        format!("{head}Transfer-Encoding: chunked\r\n\r\n4\r\n1\tx\n\r\n").as_bytes(),
    );
    assert_eq!(count(&server), "0");
    let whole = format!(
        "{head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1\tx\n\r\n4\r\n2\ty\n\r\n0\r\n\r\n"
    );
    server.raw(whole.as_bytes()).ok();
    assert_eq!(count(&server), "2");
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let (_data, server) = server();
    let large = vec![b' '; (8 << 20) + 1];
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server may answer and close before all is sent.
    let _ = stream.write_all(&large);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 413"),
        "{answer}"
    );
    assert_eq!(count(&server), "0");
}

#[test]
fn a_client_that_leaves_ends_its_query() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &["--workers", "1"]);
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let sql = "SELECT number FROM system.numbers";
        let request = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{sql}",
            sql.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
    }
    // The only worker is free again.
    assert_eq!(server.post("", b"SELECT 1").ok(), "1\n");
}

#[test]
fn a_late_exception_is_in_the_stream_and_the_stream_is_cut() {
    let (_data, server) = server();
    let sql = "SELECT throwIf(number = 2000000), number FROM numbers(3000000)";
    let answer: Answer = server.post("", sql.as_bytes());
    assert_eq!(answer.status, 200);
    let tag = answer.header("X-ClickHouse-Exception-Tag").unwrap().to_owned();
    let text = answer.text();
    assert!(
        text.contains(&format!("__exception__\r\n{tag}\r\nCode: 395.")),
        "{}",
        &text[text.len() - 400..]
    );
    assert!(
        !text.ends_with("\r\n0\r\n\r\n"),
        "the chunked body must have no end"
    );
    let (status, _) = curl(&server, &["--data-binary", sql, "-o", "/dev/null"]);
    assert_eq!(status, Some(18), "curl: partial file");
    let whole = server.post(
        "wait_end_of_query=1",
        b"SELECT throwIf(number = 500000), number FROM numbers(600000)",
    );
    assert_eq!((whole.status, whole.code()), (500, 395));
}
