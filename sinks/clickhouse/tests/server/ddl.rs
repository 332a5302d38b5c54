//! The DDL for every setting. The engine runs it if it can; otherwise its parser accepts it (the embedded engine has
//! neither replicas nor clusters).

use crate::support::{Server, open};
use millpond_clickhouse::{Columns, Config, tables};

const PARTITIONS: [&str; 5] = ["none", "hour", "day", "month", "toMonday({time})"];

/// The statements of a script.
fn statements(script: &str) -> Vec<&str> {
    let statements: Vec<&str> = script.split(";\n").map(str::trim).collect();
    statements.into_iter().filter(|sql| !sql.is_empty()).collect()
}

/// Each statement as the server's parser formats it.
async fn parsed(server: &Server, statements: &[&str]) -> Vec<String> {
    let quoted = statements.iter().map(|sql| {
        let escaped = sql.replace('\\', "\\\\").replace('\'', "\\'");
        format!("formatQuerySingleLine('{escaped}')")
    });
    let quoted: Vec<String> = quoted.collect();
    let answer = server
        .ask(&format!("SELECT arrayJoin([{}])", quoted.join(", ")))
        .await;
    answer.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn all_of_it_is_sql() {
    let server = Server::start();
    for engine in [
        "MergeTree",
        "ReplicatedMergeTree",
        "ReplicatedMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')",
        "SharedMergeTree",
    ] {
        for cluster in [None, Some("{cluster}")] {
            for partition_by in PARTITIONS {
                let config = Config {
                    engine: engine.parse().unwrap(),
                    cluster: cluster.map(str::to_owned),
                    partition_by: partition_by.parse().unwrap(),
                    ttl_seconds: 86_400,
                    ..server.config()
                };
                let script = tables::script(&config);
                let statements = statements(&script);
                let parsed = parsed(&server, &statements).await;
                assert_eq!(parsed.len(), 1 + 7 + 2);
                for sql in parsed {
                    assert_eq!(sql.contains("ON CLUSTER"), cluster.is_some(), "{sql}");
                }
            }
        }
    }
    // The engine does not use these settings, but it knows them.
    let known = "SELECT count() FROM system.merge_tree_settings WHERE name IN \
                 ('replicated_deduplication_window', 'replicated_deduplication_window_seconds')";
    assert_eq!(server.ask(known).await, "2");
}

/// A client that runs the printed script creates the same tables as the sink.
#[tokio::test]
async fn the_script_makes_the_tables_that_we_make() {
    let server = Server::start();
    let definitions = "SELECT create_table_query FROM system.tables WHERE database = 'otel' ORDER BY name";
    for (number, partition_by) in PARTITIONS.into_iter().enumerate() {
        let (columns, ttl_seconds) = [(Columns::All, 0), (Columns::None, 7_200)][number % 2];
        let config = Config {
            partition_by: partition_by.parse().unwrap(),
            columns,
            ttl_seconds,
            ..server.config()
        };
        for sql in statements(&tables::script(&config)) {
            server.run(sql).await;
        }
        let printed = server.ask(definitions).await;
        assert_eq!(printed.lines().count(), 7 + 2);
        let config = Config {
            create: false,
            ..config
        };
        open(config.clone()).await;
        server.run("DROP DATABASE otel").await;
        tables::create(config).await.unwrap();
        assert_eq!(server.ask(definitions).await, printed);
        server.run("DROP DATABASE otel").await;
    }
}
