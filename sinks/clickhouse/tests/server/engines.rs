//! Tables that do not keep every row as it was inserted.

use crate::support::{NEW_YEAR, Proxy, Server, at, batch, chunk, open, write_again};
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::{Found, Presence, Sink as _};

#[tokio::test]
async fn an_engine_that_merges_rows_away_is_not_asked() {
    let server = Server::start();
    let config = Config {
        signals: vec![Signal::Logs],
        ..server.config()
    };
    for engine in ["ReplacingMergeTree", "SummingMergeTree", "AggregatingMergeTree"] {
        ClickHouse::open(config.clone()).await.unwrap();
        let made = server.ask("SHOW CREATE TABLE otel.otel_logs").await;
        server.run("DROP TABLE otel.otel_logs").await;
        server
            .run(&made.replace("ENGINE = MergeTree", &format!("ENGINE = {engine}")))
            .await;
        let sink = open(config.clone()).await;
        let batch = batch(1, &[at([NEW_YEAR; 3])]);
        let chunk = chunk(&sink, &batch);
        let presence = sink.presence(&batch.id.source(), &chunk).await.unwrap();
        assert_eq!(presence, Presence::Unknown, "{engine}");
        for _ in 0..2 {
            let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
            assert_eq!(found, Found::Nothing, "{engine}");
        }
        server.run("DROP TABLE otel.otel_logs").await;
    }
}

/// The embedded engine has no row policies, so the query for them runs against a table with some.
#[tokio::test]
async fn row_policies_that_hide_rows_are_found() {
    let server = Server::start();
    let proxy = Proxy::start(&server).await;
    let config = Config {
        urls: vec![proxy.url.clone()],
        signals: vec![Signal::Logs],
        ..server.config()
    };
    open(config).await;
    let requests = proxy.requests();
    let start = requests.find("SELECT name FROM system.row_policies").unwrap();
    let question = requests[start..].split("POST ").next().unwrap().trim();
    let columns = "SELECT arrayStringConcat(groupArray(concat(name, ' ', type)), ', ') FROM system.columns \
                   WHERE database = 'system' AND table = 'row_policies' AND NOT startsWith(type, 'Enum')";
    let columns = server.ask(columns).await;
    server
        .run(&format!("CREATE TABLE otel.policies ({columns}) ENGINE = Memory"))
        .await;
    for (name, table, filter, all, to, except) in [
        ("another table's", "otel_traces", "'x'", 1, "[]", "[]"),
        ("shows all", "otel_logs", "'1'", 1, "[]", "[]"),
        ("no filter", "otel_logs", "NULL", 1, "[]", "[]"),
        ("others", "otel_logs", "'x'", 0, "['somebody']", "[]"),
        ("not for us", "otel_logs", "'x'", 1, "[]", "[currentUser()]"),
        ("a: all", "otel_logs", "'x'", 1, "[]", "['somebody']"),
        ("b: us", "otel_logs", "'x'", 0, "[currentUser()]", "[]"),
        ("c: the database", "", "'x'", 1, "[]", "[]"),
    ] {
        server
            .run(&format!(
                "INSERT INTO otel.policies (name, database, table, select_filter, apply_to_all, apply_to_list, apply_to_except) \
                 SELECT '{}', 'otel', '{table}', {filter}, {all}, {to}::Array(String), {except}::Array(String)",
                name.replace('\'', "\\'")
            ))
            .await;
    }
    let question = question.replace("system.row_policies", "otel.policies");
    assert_eq!(
        server.ask(&format!("{question} ORDER BY name")).await,
        "a: all\nb: us\nc: the database"
    );
}
