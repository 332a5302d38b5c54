//! What is made of settings, and what is said of tables.

use super::*;

fn found(config: &Config) -> Vec<Found> {
    found_of(config, Table::Logs)
}

fn found_of(config: &Config, table: Table) -> Vec<Found> {
    table
        .filled(config.columns)
        .map(|column| Found {
            name: column.name.to_owned(),
            kind: column.kind.to_owned(),
            default_kind: String::new(),
            is_in_partition_key: 0,
        })
        .collect()
}

#[test]
fn names_are_quoted_whatever_is_in_them() {
    assert_eq!(identifier("otel_logs"), "`otel_logs`");
    assert_eq!(
        identifier("a`; DROP TABLE x; --\\"),
        "`a\\`; DROP TABLE x; --\\\\`"
    );
}

#[test]
fn a_table_that_fits_has_no_fault() {
    let config = Config::default();
    assert_eq!(
        faults(&config, Table::Logs, &found(&config)),
        Vec::<String>::new()
    );
    let mut zoned = found(&config);
    zoned[0].kind = "DateTime64(9, 'Europe/Berlin')".to_owned();
    zoned.push(Found {
        name: "Mine".into(),
        kind: "UInt8".into(),
        default_kind: String::new(),
        is_in_partition_key: 0,
    });
    assert_eq!(faults(&config, Table::Logs, &zoned), Vec::<String>::new());
}

#[test]
fn every_table_fits_as_we_make_it_whatever_its_time_zone() {
    let config = Config::default();
    for table in Table::ALL {
        let mut columns = found_of(&config, table);
        assert_eq!(faults(&config, table, &columns), Vec::<String>::new());
        for column in &mut columns {
            column.kind = column.kind.replace("DateTime64(9)", "DateTime64(9, 'UTC')");
            if column.kind.ends_with("DateTime") || column.kind.ends_with("DateTime)") {
                column.kind = column.kind.replace("DateTime", "DateTime('Asia/Tokyo')");
            }
        }
        assert_eq!(faults(&config, table, &columns), Vec::<String>::new());
        for column in &mut columns {
            column.kind = column.kind.replace("(String)", "(FixedString(1))");
        }
        assert!(!faults(&config, table, &columns).is_empty(), "{table:?}");
    }
}

#[test]
fn a_table_has_its_place_among_all() {
    for (number, table) in (0..).zip(Table::ALL) {
        assert_eq!(table.number(), number);
    }
}

#[test]
fn a_fault_names_the_column_and_what_mends_it() {
    let config = Config::default();
    let mut columns = found(&config);
    columns.retain(|column| column.name != "EventName");
    columns[0].kind = "DateTime64(3)".to_owned();
    columns[1].default_kind = "MATERIALIZED".to_owned();
    assert_eq!(
        faults(&config, Table::Logs, &columns),
        [
            "column Timestamp of table `otel`.`otel_logs` has type DateTime64(3) where DateTime64(9) is expected: \
             ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `Timestamp` DateTime64(9)",
            "column TraceId of table `otel`.`otel_logs` is MATERIALIZED and cannot be written: \
             ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `TraceId` REMOVE MATERIALIZED",
            "table `otel`.`otel_logs` has no column EventName (expected type String): \
             ALTER TABLE `otel`.`otel_logs` ADD COLUMN `EventName` String \
             COMMENT 'Event name for log records representing events' CODEC(ZSTD(1))",
        ]
    );
}

#[test]
fn the_exporters_own_table_fits_without_our_columns() {
    let theirs = Config {
        columns: Columns::None,
        ..Config::default()
    };
    let columns = found(&theirs);
    assert_eq!(faults(&theirs, Table::Logs, &columns), Vec::<String>::new());
    assert_eq!(
        faults(&Config::default(), Table::Logs, &columns).len(),
        MILLPOND.len()
    );
}

#[test]
fn indexes_are_those_of_the_exporter_unless_told_otherwise() {
    let sql = |indexes, server| {
        create_table(
            &Config {
                indexes,
                ..Config::default()
            },
            Table::Logs,
            server,
        )
    };
    for (indexes, server, text, bloom) in [
        (Indexes::Exporter, (26, 2), 8, 0),
        (Indexes::Exporter, (26, 1), 0, 7),
        (Indexes::Exporter, (25, 12), 0, 7),
        (Indexes::Text, (25, 8), 8, 0),
        (Indexes::Bloom, (26, 9), 0, 7),
        (Indexes::None, (26, 9), 0, 0),
    ] {
        let sql = sql(indexes, server);
        assert_eq!(sql.matches("TYPE text(").count(), text, "{indexes:?} {server:?}");
        assert_eq!(
            sql.matches("TYPE bloom_filter(").count(),
            bloom,
            "{indexes:?} {server:?}"
        );
    }
}

#[test]
fn a_ttl_is_in_the_largest_unit_that_fits() {
    for (seconds, unit) in [
        (0, None),
        (86_400 * 3, Some("toIntervalDay(3)")),
        (3_600 * 25, Some("toIntervalHour(25)")),
        (90 * 60, Some("toIntervalMinute(90)")),
        (61, Some("toIntervalSecond(61)")),
    ] {
        let sql = create_table(
            &Config {
                ttl_seconds: seconds,
                ..Config::default()
            },
            Table::Logs,
            (26, 2),
        );
        let ttl = sql
            .lines()
            .find_map(|line| line.strip_prefix("TTL toDateTime(Timestamp) + "));
        assert_eq!(ttl, unit);
    }
}

/// The embedded engine has no replicas: this is what is sent to a server that has.
#[test]
fn a_replica_is_told_to_catch_up() {
    let config = Config::default();
    assert_eq!(
        sync_replica(&config, Table::Traces, "ReplicatedMergeTree").as_deref(),
        Some("SYSTEM SYNC REPLICA `otel`.`otel_traces` LIGHTWEIGHT")
    );
    assert!(sync_replica(&config, Table::Logs, "SharedMergeTree").is_some());
    assert!(
        ["MergeTree", "Distributed"]
            .iter()
            .all(|engine| sync_replica(&config, Table::Logs, engine).is_none())
    );
}

#[test]
fn only_a_merge_tree_is_known_to_land_by_partitions() {
    assert!(
        ["MergeTree", "ReplicatedMergeTree", "SharedMergeTree"]
            .iter()
            .all(|engine| lands_by_partition(engine))
    );
    assert!(
        ["Distributed", "Buffer", "Null"]
            .iter()
            .all(|engine| !lands_by_partition(engine))
    );
}

#[test]
fn a_window_that_is_too_small_is_warned_of() {
    let table = Table::Logs.path(&Config::default());
    let warn = |engine: &str, full: &str, default| window_warning(&table, engine, full, default, 400);
    let ours =
        "MergeTree ORDER BY x SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 10000";
    assert_eq!(warn("MergeTree", ours, 0), None);
    assert_eq!(warn("MergeTree", "MergeTree ORDER BY x", 1000), None);
    assert_eq!(
        warn("ReplicatedMergeTree", "ReplicatedMergeTree ORDER BY x", 10_000),
        None
    );
    let warning = warn(
        "MergeTree",
        "MergeTree ORDER BY x SETTINGS index_granularity = 8192",
        0,
    )
    .unwrap();
    assert!(
        warning.ends_with(
            "ALTER TABLE `otel`.`otel_logs` MODIFY SETTING non_replicated_deduplication_window = 10000"
        ),
        "{warning}"
    );
    assert!(warn("Distributed", "Distributed('c', 'd', 't')", 0).is_some());
}
