//! The objects that `open` creates, and its report on an existing table.

use crate::support::{Server, open, policy};
use millpond_clickhouse::tables::{self, Report, State};
use millpond_clickhouse::{ClickHouse, Columns, Config, Indexes, Signal};
use millpond_consumer::{Sink as _, SinkError};
use millpond_segment::Encoding;

const DEFINITION: &str =
    "SELECT create_table_query FROM system.tables WHERE database = 'otel' AND name = 'otel_logs'";

/// The server's form of the DDL of clickhouseexporter v0.161.0 with a TTL of 72 hours.
const EXPORTER_TEXT: &str = include_str!("../../testdata/exporter-table-text.sql");
const EXPORTER_BLOOM: &str = include_str!("../../testdata/exporter-table-bloom.sql");

const WINDOW: &str = ", non_replicated_deduplication_window = 10000, fsync_after_insert = 1";

#[tokio::test]
async fn a_missing_table_is_made_as_the_exporter_makes_it() {
    let server = Server::start();
    let (head, indexes) = EXPORTER_TEXT.split_once(", INDEX ").unwrap();
    let (_, tail) = indexes.split_once(") ENGINE").unwrap();
    let without = format!("{head}) ENGINE{tail}");
    for (indexes, expected) in [
        (Indexes::Exporter, EXPORTER_TEXT),
        (Indexes::Text, EXPORTER_TEXT),
        (Indexes::Bloom, EXPORTER_BLOOM),
        (Indexes::None, &without),
    ] {
        let config = Config {
            columns: Columns::None,
            indexes,
            ttl_seconds: 72 * 3600,
            ..server.config()
        };
        open(config).await;
        let made = server.ask(DEFINITION).await;
        assert_eq!(made, format!("{}{WINDOW}", expected.trim_end()), "{indexes:?}");
        server.run("DROP TABLE otel.otel_logs").await;
    }
}

#[tokio::test]
async fn our_columns_come_after_the_exporters() {
    let server = Server::start();
    server.open().await;
    let made = server.ask(DEFINITION).await;
    let columns = made.split_once(" (").unwrap().1;
    let theirs = EXPORTER_TEXT.split_once(" (").unwrap().1;
    let (their_columns, their_indexes) = theirs.split_once(", INDEX").unwrap();
    let (their_indexes, _) = their_indexes.split_once(") ENGINE").unwrap();
    let ours = "`_millpond_received_at` DateTime64(6) COMMENT 'When the buffer received the record' \
                CODEC(Delta(8), ZSTD(1)), \
                `_millpond_inserted_at` DateTime64(3) COMMENT 'When the row was encoded for its insert' \
                CODEC(Delta(8), ZSTD(1)), \
                `_millpond_source` LowCardinality(String) \
                COMMENT 'Buffer, shard, stream and consumer that the row came through' CODEC(ZSTD(1)), \
                `_millpond_sequence` UInt64 COMMENT 'Sequence of the segment that the record is in' \
                CODEC(Delta(8), ZSTD(1)), \
                `_millpond_record` UInt32 \
                COMMENT 'Number of the record among those of its stream in the segment' CODEC(Delta(4), ZSTD(1)), \
                INDEX _millpond_sequence_range _millpond_sequence TYPE minmax GRANULARITY 1";
    assert_eq!(
        columns,
        format!(
            "{their_columns}, {ours}, INDEX{their_indexes}) ENGINE = MergeTree PARTITION BY toDate(Timestamp) \
             ORDER BY (toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp) \
             SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1{WINDOW}"
        )
    );
    // A table that the sink created fits too.
    server.open().await;
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_an_error_and_can_be_migrated() {
    let server = Server::start();
    server.open().await;
    for sql in [
        "ALTER TABLE otel.otel_logs DROP COLUMN _millpond_record",
        "ALTER TABLE otel.otel_logs DROP COLUMN EventName",
        "ALTER TABLE otel.otel_logs MODIFY COLUMN ScopeName LowCardinality(String)",
    ] {
        server.run(sql).await;
    }
    let Err(SinkError::Schema(error)) = ClickHouse::open(server.config()).await else {
        panic!("the table does not fit")
    };
    let url = server.config().urls.remove(0);
    assert_eq!(
        error,
        format!(
            "tables at {url} do not fit:\n  \
             `otel`.`otel_logs` lacks the columns EventName, _millpond_record\n  \
             column ScopeName of table `otel`.`otel_logs` has type LowCardinality(String) where String is expected\n\
             change them with `millpond tables migrate` and the same --clickhouse, --database and table options \
             (with --dry-run it prints the statements)"
        )
    );
    let dry = tables::migrate(server.config(), true).await.unwrap();
    let done = tables::migrate(server.config(), false).await.unwrap();
    assert_eq!(dry.tables, done.tables);
    assert_eq!((done.missing, done.left), (vec![], vec![]));
    let [migration] = done.tables.try_into().unwrap();
    assert_eq!(migration.what, "table `otel`.`otel_logs`");
    assert_eq!(
        migration.statements,
        [
            "ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `ScopeName` String, \
             ADD COLUMN IF NOT EXISTS `EventName` String COMMENT 'Event name for log records representing events' CODEC(ZSTD(1)), \
             ADD COLUMN IF NOT EXISTS `_millpond_record` UInt32 \
             COMMENT 'Number of the record among those of its stream in the segment' CODEC(Delta(4), ZSTD(1))",
        ]
    );
    server.open().await;
}

#[tokio::test]
async fn without_permission_to_create_no_table_is_created() {
    let server = Server::start();
    let config = Config {
        create: false,
        signals: vec![Signal::Logs],
        ..server.config()
    };
    let error = ClickHouse::open(config).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "there is no table `otel`.`otel_logs` at {} that the user sees: create it (`millpond tables create`, or your own as \
             `millpond tables print` has it), or grant SELECT and INSERT on it",
            server.url
        )
    );
    let databases = server
        .ask("SELECT count() FROM system.databases WHERE name = 'otel'")
        .await;
    assert_eq!(databases, "0");
}

#[tokio::test]
async fn a_window_that_is_too_small_causes_a_warning_with_its_remedy() {
    let server = Server::start();
    assert_eq!(
        server.open().await.window_warnings(&policy()),
        Vec::<String>::new()
    );
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 799")
        .await;
    let [warning] = server.open().await.window_warnings(&policy()).try_into().unwrap();
    // 16 batches of one chunk over 50 partitions each.
    assert!(
        warning.contains("remembers 799 inserts where 800 can be in doubt"),
        "{warning}"
    );
    server.run(&warning[warning.find("ALTER").unwrap()..]).await;
    assert_eq!(
        server.open().await.window_warnings(&policy()),
        Vec::<String>::new()
    );
    // An operator's table has no window at all.
    server
        .run("ALTER TABLE otel.otel_logs RESET SETTING non_replicated_deduplication_window")
        .await;
    let [warning] = server.open().await.window_warnings(&policy()).try_into().unwrap();
    assert!(warning.contains("remembers 0 inserts"), "{warning}");
}

#[tokio::test]
async fn only_the_tables_of_what_is_taken_are_made() {
    let server = Server::start();
    let tables = "SELECT name FROM system.tables WHERE database = 'otel' ORDER BY name";
    let config = Config {
        signals: vec![Signal::Metrics],
        ..server.config()
    };
    let sink = open(config).await;
    assert_eq!(
        server.ask(tables).await,
        "otel_metrics_exponential_histogram\notel_metrics_gauge\notel_metrics_histogram\notel_metrics_sum\n\
         otel_metrics_summary"
    );
    for signal in Signal::ALL {
        assert_eq!(
            sink.accepts(signal.stream(), Encoding::Otlp),
            signal == Signal::Metrics
        );
        assert!(!sink.accepts(signal.stream(), Encoding::Ndjson));
    }
    assert!(!sink.accepts("otlp.profiles", Encoding::Otlp));
    let sink = server.open().await;
    assert_eq!(server.ask(tables).await.lines().count(), 5 + 1 + 3);
    assert!(
        Signal::ALL
            .iter()
            .all(|signal| sink.accepts(signal.stream(), Encoding::Otlp))
    );
}

#[tokio::test]
async fn tables_of_other_names_are_part_of_the_sinks_name() {
    let server = Server::start();
    assert_eq!(server.open().await.name(), "clickhouse:otel.otel_logs");
    let config = Config {
        traces_table: "spans".into(),
        sum_table: "sums".into(),
        ..server.config()
    };
    let sink = open(config).await;
    assert_eq!(sink.name(), "clickhouse:otel.otel_logs,traces=spans,sum=sums");
    let view = "SELECT count() FROM system.tables WHERE name = 'spans_trace_id_ts_mv'";
    assert_eq!(server.ask(view).await, "1");
}

/// The view's table stores repetitions of its source, unless it remembers tokens too.
#[tokio::test]
async fn the_table_of_trace_times_needs_its_own_window() {
    let server = Server::start();
    server.open().await;
    server
        .run("ALTER TABLE otel.otel_traces_trace_id_ts RESET SETTING non_replicated_deduplication_window")
        .await;
    let [warning] = server.open().await.window_warnings(&policy()).try_into().unwrap();
    assert!(
        warning.starts_with("table `otel`.`otel_traces_trace_id_ts` remembers 0 inserts"),
        "{warning}"
    );
    server.run(&warning[warning.find("ALTER").unwrap()..]).await;
    assert_eq!(
        server.open().await.window_warnings(&policy()),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn missing_tables_are_created_and_existing_ones_are_checked() {
    let server = Server::start();
    let config = Config {
        signals: vec![Signal::Logs, Signal::Traces],
        ..server.config()
    };
    let all = [
        "database `otel`",
        "table `otel`.`otel_logs`",
        "table `otel`.`otel_traces`",
        "table `otel`.`otel_traces_trace_id_ts`",
        "view `otel`.`otel_traces_trace_id_ts_mv`",
    ];
    let each =
        |state: State| -> Vec<(&str, State)> { all.iter().map(|what| (*what, state.clone())).collect() };
    let found = |reports: Vec<Report>| -> Vec<(String, State)> {
        reports
            .into_iter()
            .map(|report| (report.what, report.state))
            .collect()
    };
    let named = |states: Vec<(&str, State)>| -> Vec<(String, State)> {
        states
            .into_iter()
            .map(|(what, state)| (what.to_owned(), state))
            .collect()
    };
    let looked = tables::inspect(config.clone()).await.unwrap();
    assert_eq!(found(looked), named(each(State::Missing)));
    let made = tables::create(config.clone()).await.unwrap();
    assert_eq!(found(made), named(each(State::Created)));
    let again = tables::create(config.clone()).await.unwrap();
    assert_eq!(found(again), named(each(State::Fits)));

    for sql in [
        "DROP VIEW otel.otel_traces_trace_id_ts_mv",
        "ALTER TABLE otel.otel_traces DROP COLUMN TraceState",
        "ALTER TABLE otel.otel_traces_trace_id_ts DROP COLUMN End",
    ] {
        server.run(sql).await;
    }
    let reports = tables::create(config.clone()).await.unwrap();
    assert_eq!(reports[1].state, State::Fits);
    // Its target table lacks a column that the view would write.
    assert_eq!(reports[4].state, State::Missing);
    for (report, column) in [(&reports[2], "TraceState"), (&reports[3], "End")] {
        let State::Unfit(faults) = &report.state else {
            panic!("{report:?}")
        };
        let [fault] = faults.as_slice() else {
            panic!("{faults:?}")
        };
        assert!(
            fault.what.contains(&format!("has no column {column} ")),
            "{fault}"
        );
        server.run(&fault.remedy).await;
    }
    let repaired = tables::create(config.clone()).await.unwrap();
    assert_eq!(repaired[4].state, State::Created);
    let repaired = tables::inspect(config).await.unwrap();
    assert_eq!(found(repaired), named(each(State::Fits)));
}

/// A user without the right to create tables can still write to existing ones.
#[tokio::test]
async fn existing_tables_are_not_created_again() {
    let server = Server::start();
    server.open().await;
    let proxy = crate::support::Proxy::start(&server).await;
    let config = Config {
        urls: vec![proxy.url.clone()],
        ..server.config()
    };
    open(config.clone()).await;
    assert!(!proxy.requests().contains("CREATE "));
    server.run("DROP TABLE otel.otel_metrics_sum").await;
    open(config).await;
    assert_eq!(proxy.requests().matches("CREATE ").count(), 1);
}
