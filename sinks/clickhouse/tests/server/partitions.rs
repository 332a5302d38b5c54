//! Tables whose partitions are not days, and tables of operators: the sink completes a chunk that landed in part, and
//! rejects tables where it could not.

use crate::support::{DAY, NEW_YEAR, Server, at, batch, chunk, open, policy, write, write_again};
use millpond_clickhouse::tables::{self, State};
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::SinkError;

const HOUR: u64 = DAY / 24;

/// Only logs.
fn logs(server: &Server) -> Config {
    Config {
        signals: vec![Signal::Logs],
        ..server.config()
    }
}

/// Two rows of every third hour of a day and a half.
fn times() -> impl Iterator<Item = u64> {
    (0..24).map(|row| NEW_YEAR + row % 12 * 3 * HOUR + row)
}

/// The table's rows of the batch, and the number of distinct ones.
const WHOLE: &str =
    "SELECT count(), uniqExact(Body), sum(toUInt64(Body)) FROM otel.otel_logs WHERE _millpond_sequence = 1";

/// Writes a chunk, makes the table forget it, drops a partition, and sends the chunk as one in doubt.
async fn lose_and_repair(server: &Server, config: &Config) {
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 1")
        .await;
    let sink = open(config.clone()).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    let whole = server.ask(WHOLE).await;
    assert_eq!(whole, "24\t24\t276");
    let other = crate::support::batch(2, &[at(times())]);
    let other_chunk = crate::support::chunk(&sink, &other);
    write(&sink, &other.id, &other_chunk).await.unwrap();
    let partitions = "SELECT DISTINCT _partition_id FROM otel.otel_logs ORDER BY 1";
    let partitions = server.ask(partitions).await;
    let partitions: Vec<&str> = partitions.lines().collect();
    // Every second partition: an INSERT that died may have left any of them.
    for partition in partitions.iter().skip(1).step_by(2) {
        server
            .run(&format!(
                "ALTER TABLE otel.otel_logs DROP PARTITION ID '{partition}'"
            ))
            .await;
    }
    if partitions.len() > 1 {
        assert_ne!(server.ask(WHOLE).await, whole);
    }
    for _ in 0..2 {
        write_again(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask(WHOLE).await, whole);
    }
    // The table did not recognise the chunk by its token.
    write(&sink, &batch.id, &chunk).await.unwrap();
    assert_ne!(server.ask(WHOLE).await, whole);
}

#[tokio::test]
async fn a_chunk_that_landed_in_part_is_completed_whatever_a_partition_is() {
    let server = Server::start();
    for (partition_by, partitions) in [
        ("none", 1),
        ("hour", 12),
        ("day", 2),
        ("month", 1),
        ("toMonday({time})", 1),
        ("(toDate({time}), toHour({time}) % 5)", 9),
    ] {
        let config = Config {
            partition_by: partition_by.parse().unwrap(),
            ..logs(&server)
        };
        open(config.clone()).await;
        lose_and_repair(&server, &config).await;
        let count = server
            .ask("SELECT uniqExact(_partition_id) FROM otel.otel_logs")
            .await;
        assert_eq!(count, partitions.to_string(), "{partition_by}");
        server.run("DROP TABLE otel.otel_logs").await;
    }
}

#[tokio::test]
async fn a_table_of_ours_remembers_tokens_of_all_its_partitions() {
    let server = Server::start();
    for (partition_by, needed) in [("none", 16), ("day", 16 * 50), ("hour", 16 * 50 * 24)] {
        let config = Config {
            partition_by: partition_by.parse().unwrap(),
            ..server.config()
        };
        let sink = open(config.clone()).await;
        assert_eq!(
            sink.window_warnings(&policy()),
            Vec::<String>::new(),
            "{partition_by}"
        );
        for table in ["otel_logs", "otel_metrics_sum", "otel_traces_trace_id_ts"] {
            let window = format!("non_replicated_deduplication_window = {}", needed - 1);
            server
                .run(&format!("ALTER TABLE otel.{table} MODIFY SETTING {window}"))
                .await;
        }
        let warnings = ClickHouse::open(config).await.unwrap().window_warnings(&policy());
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        for warning in warnings {
            assert!(
                warning.contains(&format!("where {needed} can be in doubt")),
                "{warning}"
            );
        }
        server.run("DROP DATABASE otel").await;
    }
}

/// An operator's logs table: more columns, some computed, and other keys.
fn own(more: &str, partition_by: &str) -> String {
    let made = tables::script(&Config {
        signals: vec![Signal::Logs],
        ..Config::default()
    });
    let start = made.find("CREATE TABLE").unwrap();
    let (columns, _) = made[start..].split_once("\n)\nENGINE").unwrap();
    format!(
        "{columns},\n{more}\n) ENGINE = MergeTree PARTITION BY {partition_by} \
         ORDER BY (ServiceName, Seconds, Timestamp) SETTINGS non_replicated_deduplication_window = 10000"
    )
}

const SECONDS: &str = "Seconds DateTime DEFAULT toDateTime(Timestamp)";

#[tokio::test]
async fn a_custom_table_is_filled_and_repaired_like_ours() {
    let server = Server::start();
    server.run("CREATE DATABASE otel").await;
    let more = format!(
        "{SECONDS}, Tenant LowCardinality(String) DEFAULT ResourceAttributes['service.name'], Note String, \
         Size UInt64 MATERIALIZED length(Body), Day Date ALIAS toDate(Timestamp), \
         INDEX idx_size Size TYPE minmax GRANULARITY 1"
    );
    for partition_by in ["toDate(Seconds)", "toStartOfHour(Seconds)"] {
        server.run(&own(&more, partition_by)).await;
        let [_, report] = tables::create(logs(&server)).await.unwrap().try_into().unwrap();
        assert_eq!(report.state, State::Fits);
        lose_and_repair(&server, &logs(&server)).await;
        let computed = "SELECT countIf(Tenant != 'shop' OR Seconds != toDateTime(Timestamp) OR Size != length(Body) \
                        OR Note != '') FROM otel.otel_logs";
        assert_eq!(server.ask(computed).await, "0");
        server.run("DROP TABLE otel.otel_logs").await;
    }
}

#[tokio::test]
async fn a_partition_key_beyond_the_time_warns_and_is_repaired_like_any() {
    let server = Server::start();
    server.run("CREATE DATABASE otel").await;
    server.run(&own(SECONDS, "(toDate(Seconds), ServiceName)")).await;
    let sink = open(logs(&server)).await;
    let [warning] = sink.window_warnings(&policy()).try_into().unwrap();
    assert!(
        warning.contains(
            "is partitioned by (toDate(Seconds), ServiceName), which does not depend on the time alone"
        ),
        "{warning}"
    );
    lose_and_repair(&server, &logs(&server)).await;
}

#[tokio::test]
async fn a_partition_that_is_not_of_the_rows_is_refused() {
    let server = Server::start();
    server.run("CREATE DATABASE otel").await;
    for (more, partition_by, of) in [
        ("Arrived Date DEFAULT today()", "Arrived", "today()"),
        (
            "Arrived Date DEFAULT toDate(Clock), Clock DateTime MATERIALIZED NOW() + 1",
            "(toDate(Timestamp), Arrived)",
            "now()",
        ),
        ("Bucket UInt8 DEFAULT rand() % 8", "Bucket", "rand()"),
        (
            "Unused UInt8",
            "toDate(_millpond_inserted_at)",
            "_millpond_inserted_at",
        ),
    ] {
        server
            .run(&own(&format!("{SECONDS}, {more}"), partition_by))
            .await;
        let Err(SinkError::Schema(error)) = ClickHouse::open(logs(&server)).await else {
            panic!("{partition_by} is not a valid partition key")
        };
        let message =
            format!("the partitions of table `otel`.`otel_logs` depend on {of}, which changes when");
        assert!(error.contains(&message), "{error}");
        let [_, report] = tables::create(logs(&server)).await.unwrap().try_into().unwrap();
        assert!(matches!(report.state, State::Unfit(_)), "{report:?}");
        server.run("DROP TABLE otel.otel_logs").await;
    }
    // As a column it is harmless.
    server
        .run(&own(
            &format!("{SECONDS}, Arrived DateTime DEFAULT now()"),
            "toDate(Timestamp)",
        ))
        .await;
    open(logs(&server)).await;
}
