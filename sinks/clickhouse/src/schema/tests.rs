//! DDL for settings, and faults and warnings for tables.

use super::ddl::Object;
use super::judge::*;
use super::partition::{Partitioning, Sources, Terms};
use super::*;
use crate::config::{Indexes, PartitionBy};

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
            default_expression: String::new(),
            is_in_partition_key: 0,
        })
        .collect()
}

fn create_table(config: &Config, table: Table, server: (u32, u32)) -> String {
    Object::Table(table).create(config, server).unwrap()
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
    assert_eq!(faults(&config, Table::Logs, &found(&config)), Vec::<Fault>::new());
    let mut zoned = found(&config);
    zoned[0].kind = "DateTime64(9, 'Europe/Berlin')".to_owned();
    zoned.push(Found {
        name: "Mine".into(),
        kind: "UInt8".into(),
        default_kind: String::new(),
        default_expression: String::new(),
        is_in_partition_key: 0,
    });
    assert_eq!(faults(&config, Table::Logs, &zoned), Vec::<Fault>::new());
}

#[test]
fn every_table_fits_as_we_make_it_whatever_its_time_zone() {
    let config = Config::default();
    for table in Table::ALL {
        let mut columns = found_of(&config, table);
        assert_eq!(faults(&config, table, &columns), Vec::<Fault>::new());
        for column in &mut columns {
            column.kind = column.kind.replace("DateTime64(9)", "DateTime64(9, 'UTC')");
            if column.kind.ends_with("DateTime") || column.kind.ends_with("DateTime)") {
                column.kind = column.kind.replace("DateTime", "DateTime('Asia/Tokyo')");
            }
        }
        assert_eq!(faults(&config, table, &columns), Vec::<Fault>::new());
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
fn a_fault_names_the_column_and_its_remedy() {
    let config = Config::default();
    let mut columns = found(&config);
    columns.retain(|column| column.name != "EventName");
    columns[0].kind = "DateTime64(3)".to_owned();
    columns[1].default_kind = "MATERIALIZED".to_owned();
    let faults: Vec<String> = faults(&config, Table::Logs, &columns)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        faults,
        [
            "column Timestamp of table `otel`.`otel_logs` has type DateTime64(3) where DateTime64(9) is expected: \
             ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `Timestamp` DateTime64(9)",
            "column TraceId of table `otel`.`otel_logs` is MATERIALIZED and cannot be written: \
             ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `TraceId` REMOVE MATERIALIZED",
            "table `otel`.`otel_logs` has no column EventName (expected type String): \
             ALTER TABLE `otel`.`otel_logs` ADD COLUMN IF NOT EXISTS `EventName` String \
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
    assert_eq!(faults(&theirs, Table::Logs, &columns), Vec::<Fault>::new());
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

/// The embedded engine has no replicas: this is the statement for a server that has.
#[test]
fn a_replica_is_told_to_catch_up() {
    let config = Config::default();
    assert_eq!(
        sync_replica(&config, Table::Traces),
        "SYSTEM SYNC REPLICA `otel`.`otel_traces` LIGHTWEIGHT"
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

fn known(engine: &str, engine_full: &str, default_window: u64, partitioning: Partitioning) -> Known {
    Known {
        engine: engine.to_owned(),
        engine_full: engine_full.to_owned(),
        default_window,
        partitioning,
        ask: crate::presence::Ask::Here,
        ttl: None,
        plan: None,
        sorting_key: None,
    }
}

/// The warning for 8 chunks of 50 days.
fn warning(known: &Known) -> Option<String> {
    let config = Config::default();
    let in_doubt = InDoubt { chunks: 8, days: 50 };
    known
        .window_fault(&config, &Table::Logs.path(&config), in_doubt)
        .map(|fault| fault.to_string())
}

#[test]
fn a_window_that_is_too_small_causes_a_warning() {
    let warn =
        |engine, full, default| warning(&known(engine, full, default, Partitioning::Time { a_day: 1 }));
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
}

#[test]
fn the_window_that_is_needed_follows_from_the_partitions() {
    let needs =
        |partitioning, window| warning(&known("MergeTree", "MergeTree", window, partitioning)).is_some();
    for (partitioning, needed) in [
        (Partitioning::Whole, 8),
        (Partitioning::Time { a_day: 1 }, 400),
        (Partitioning::Time { a_day: 24 }, 9_600),
    ] {
        assert!(needs(partitioning.clone(), needed - 1), "{partitioning:?}");
        assert!(!needs(partitioning.clone(), needed), "{partitioning:?}");
    }
    // As many partitions as rows: no window is certainly large enough.
    let rows = Partitioning::Rows {
        key: "(toDate(Timestamp), ServiceName)".to_owned(),
    };
    let reason = warning(&known("MergeTree", "MergeTree", 1_000_000, rows)).unwrap();
    assert!(reason.contains(
        "partitioned by (toDate(Timestamp), ServiceName), which does not depend on the time alone"
    ));
    let reason = warning(&known(
        "Distributed",
        "Distributed('c', 'd', 't')",
        0,
        Partitioning::Elsewhere,
    ))
    .unwrap();
    assert!(
        reason.contains("a deduplication window of at least 400"),
        "{reason}"
    );
}

/// A message of `bytes` under the policy of a replay: one chunk, of as many days as it can have records.
#[test]
fn a_replayed_message_needs_no_more_than_its_days() {
    let config = Config::default();
    let known = known("MergeTree", "MergeTree", 0, Partitioning::Time { a_day: 1 });
    let recommended = |days| {
        let fault = known.window_fault(&config, "t", InDoubt { chunks: 1, days });
        recommendation(&fault.expect("no window suffices"))
    };
    assert_eq!(recommended(300), 10_000);
    assert_eq!(recommended(u64::MAX), 106_752, "the days between 1970 and 2262");
}

/// The number at the end of a warning's ALTER statement.
fn recommendation(fault: &Fault) -> u64 {
    let (_, window) = fault.remedy.rsplit_once(" = ").expect("an ALTER statement");
    window.parse().expect("a number")
}

proptest::proptest! {
    /// The recommended window ends the warning, is sufficient, and exceeds neither the need nor the usual window.
    #[test]
    fn a_recommended_window_suffices(
        window in 0..200_000_u64,
        chunks in 1..=u64::from(u32::MAX),
        days in 1..=u64::MAX,
        a_day in proptest::sample::select(vec![None, Some(1), Some(24)]),
        engine in proptest::sample::select(vec!["MergeTree", "ReplicatedMergeTree"]),
    ) {
        let partitioning = a_day.map_or(Partitioning::Whole, |a_day| Partitioning::Time { a_day });
        let config = Config::default();
        let in_doubt = InDoubt { chunks, days };
        let warn = |window: u64| {
            let full = format!("{engine} ORDER BY x SETTINGS {} = {window}", window_setting(engine));
            known(engine, &full, 0, partitioning.clone()).window_fault(&config, "t", in_doubt)
        };
        let needed = chunks * a_day.map_or(1, |a_day| days.min(106_752) * a_day);
        match warn(window) {
            None => proptest::prop_assert!(window >= needed),
            Some(fault) => {
                let recommended = recommendation(&fault);
                proptest::prop_assert!(window < needed && needed <= recommended);
                proptest::prop_assert_eq!(recommended, needed.max(10_000));
                proptest::prop_assert_eq!(warn(recommended), None);
            }
        }
    }
}

/// The answer to `EXPLAIN AST SELECT toDate(Timestamp) + length('Identifier x'), NOW()`.
const TREE: &str = r"SelectWithUnionQuery (children 1)
 ExpressionList (children 1)
  SelectQuery (children 1)
   ExpressionList (children 2)
    Function plus (children 1)
     ExpressionList (children 2)
      Function toDate (children 1)
       ExpressionList (children 1)
        Identifier Timestamp
      Function length (children 1)
       ExpressionList (children 1)
        Literal \'Identifier x\'
    Function NOW (children 1)
     ExpressionList";

#[test]
fn an_expression_is_known_by_its_columns_and_functions() {
    let lines: Vec<String> = TREE.lines().map(str::to_owned).collect();
    let terms = Terms::of_tree(&lines);
    assert!(terms.columns.iter().eq(["Timestamp"]));
    assert!(terms.functions.iter().eq(["length", "now", "plus", "todate"]));
}

/// The sources of a logs table with these additional columns, the names of the key's columns, and the inputs of the
/// expressions.
fn sources(own: &[(&str, &str, &[&str])], key: &[&str]) -> Sources {
    let config = Config::default();
    let mut columns = found(&config);
    columns.extend(own.iter().map(|(name, expression, _)| Found {
        name: (*name).to_owned(),
        kind: "Date".to_owned(),
        default_kind: "DEFAULT".to_owned(),
        default_expression: (*expression).to_owned(),
        is_in_partition_key: 0,
    }));
    for column in &mut columns {
        column.is_in_partition_key = u8::from(key.contains(&column.name.as_str()));
    }
    let mut sources = Sources::new(&columns);
    while let Some(computed) = sources.next(&config, Table::Logs, &columns) {
        let of = own.iter().find(|(name, ..)| *name == computed.name).unwrap().2;
        let columns = of.iter().map(|name| (*name).to_owned()).collect();
        let terms = Terms {
            columns,
            ..Terms::default()
        };
        sources.add(computed, terms);
    }
    sources
}

#[test]
fn a_partition_is_of_the_time_also_by_way_of_computed_columns() {
    assert!(sources(&[], &["Timestamp"]).only_time("Timestamp"));
    assert!(sources(&[("Day", "toDate(Timestamp)", &["Timestamp"])], &["Day"]).only_time("Timestamp"));
    let nested: [(&str, &str, &[&str]); 3] = [
        ("Month", "toStartOfMonth(Day)", &["Day"]),
        ("Day", "toDate(Seconds)", &["Seconds", "Day"]),
        ("Seconds", "toDateTime(Timestamp)", &["Timestamp"]),
    ];
    let found = sources(&nested, &["Month", "Timestamp"]);
    assert!(found.only_time("Timestamp"));
    assert_eq!(found.computed.len(), 3);
    assert!(!sources(&[], &["Timestamp", "ServiceName"]).only_time("Timestamp"));
    let mixed: [(&str, &str, &[&str]); 1] = [("Tenant", "…", &["Timestamp", "ResourceAttributes"])];
    assert!(!sources(&mixed, &["Tenant"]).only_time("Timestamp"));
    assert!(!sources(&[("Odd", "…", &["Events.Name"])], &["Odd"]).only_time("Timestamp"));
    // The same for every row.
    assert!(sources(&[("Fixed", "", &[])], &["Fixed"]).only_time("Timestamp"));
}

#[test]
fn a_partition_that_changes_when_a_row_is_sent_again_is_a_fault() {
    let config = Config::default();
    let fault = |sources: &Sources, volatile: &[&str]| {
        let volatile: Vec<String> = volatile.iter().map(|name| (*name).to_owned()).collect();
        sources.fault(&config, Table::Logs, &volatile)
    };
    let by_time = sources(&[], &["Timestamp"]);
    assert_eq!(fault(&by_time, &[]), None);
    let reason = fault(&by_time, &["now"]).unwrap().what;
    assert!(
        reason.contains("table `otel`.`otel_logs` depend on now()"),
        "{reason}"
    );
    let inserted = sources(&[], &["Timestamp", "_millpond_inserted_at"]);
    let reason = fault(&inserted, &[]).unwrap().what;
    assert!(reason.contains("depend on _millpond_inserted_at"), "{reason}");
    assert_eq!(fault(&sources(&[], &["_millpond_received_at"]), &[]), None);
}

/// Every engine, with and without a cluster, every kind of partition, with and without a TTL.
#[test]
fn created_tables_follow_the_settings() {
    let mut seen = 0;
    for engine in [
        "MergeTree",
        "ReplicatedMergeTree('/t/{shard}/{table}', '{replica}')",
        "SharedMergeTree",
    ] {
        for cluster in [None, Some("main`s")] {
            for (partition_by, partition) in [
                ("none", None),
                ("hour", Some("PARTITION BY toStartOfHour(TIME)")),
                ("day", Some("PARTITION BY toDate(TIME)")),
                ("month", Some("PARTITION BY toYYYYMM(TIME)")),
                ("toMonday({time})", Some("PARTITION BY toMonday(TIME)")),
            ] {
                for ttl_seconds in [0, 3_600] {
                    let config = Config {
                        engine: engine.parse().unwrap(),
                        cluster: cluster.map(str::to_owned),
                        partition_by: partition_by.parse().unwrap(),
                        ttl_seconds,
                        ..Config::default()
                    };
                    for object in Object::all(&Table::ALL) {
                        check_made(
                            &config,
                            object,
                            &object.create(&config, (26, 2)).unwrap(),
                            partition,
                        );
                        seen += 1;
                    }
                }
            }
        }
    }
    assert_eq!(seen, 3 * 2 * 5 * 2 * (1 + 7 + 2));
}

fn check_made(config: &Config, object: Object, sql: &str, partition: Option<&str>) {
    let cluster = config.cluster.as_ref().map(|_| " ON CLUSTER `main\\`s`");
    assert_eq!(
        sql.matches(" ON CLUSTER `main\\`s`").count(),
        usize::from(cluster.is_some()),
        "{sql}"
    );
    let head = sql.lines().next().unwrap();
    let name = object.title(config);
    let name = name.split_once(' ').unwrap().1;
    assert!(
        head.contains(&format!(" IF NOT EXISTS {name}{}", cluster.unwrap_or(""))),
        "{head}"
    );
    let time = match object {
        Object::Table(table) => table.time().unwrap(),
        Object::Lookup => "Start",
        Object::Database | Object::View => return,
    };
    let lines: Vec<&str> = sql.lines().collect();
    let starting = |word: &str| lines.iter().find(|line| line.starts_with(word)).copied();
    assert_eq!(starting("ENGINE").unwrap(), format!("ENGINE = {}", config.engine));
    let partition = partition.map(|partition| partition.replace("TIME", time));
    assert_eq!(starting("PARTITION BY"), partition.as_deref());
    let ttl = (config.ttl_seconds > 0).then(|| format!("TTL toDateTime({time}) + toIntervalHour(1)"));
    assert_eq!(starting("TTL"), ttl.as_deref());
    let window = if config.partition_by == PartitionBy::Hour {
        20_000
    } else {
        10_000
    };
    let parts = if partition.is_some() {
        ", ttl_only_drop_parts = 1"
    } else {
        ""
    };
    let tokens = match config.engine.to_string().as_str() {
        "MergeTree" => format!("non_replicated_deduplication_window = {window}, fsync_after_insert = 1"),
        _ => format!(
            "replicated_deduplication_window = {window}, replicated_deduplication_window_seconds = 604800"
        ),
    };
    assert_eq!(
        starting("SETTINGS").unwrap(),
        format!("SETTINGS index_granularity = 8192{parts}, {tokens}")
    );
}

#[test]
fn each_signal_can_have_its_own_ttl() {
    let config = Config {
        ttl_seconds: 86_400,
        ttl_seconds_of: vec![(Signal::Traces, 7_200), (Signal::Metrics, 0)],
        ..Config::default()
    };
    let ttl = |object: Object| {
        let sql = object.create(&config, (26, 2)).unwrap();
        sql.lines()
            .find_map(|line| line.strip_prefix("TTL ").map(str::to_owned))
    };
    assert_eq!(
        ttl(Object::Table(Table::Logs)).as_deref(),
        Some("toDateTime(Timestamp) + toIntervalDay(1)")
    );
    assert_eq!(
        ttl(Object::Table(Table::Traces)).as_deref(),
        Some("toDateTime(Timestamp) + toIntervalHour(2)")
    );
    assert_eq!(
        ttl(Object::Lookup).as_deref(),
        Some("toDateTime(Start) + toIntervalHour(2)")
    );
    assert_eq!(ttl(Object::Table(Table::Sum)), None);
}

#[test]
fn the_remedy_for_a_clusters_table_covers_all_servers() {
    let config = Config {
        cluster: Some("main".to_owned()),
        ..Config::default()
    };
    let mut columns = found(&config);
    columns.remove(0);
    columns[0].kind = "UInt8".to_owned();
    columns[1].default_kind = "ALIAS".to_owned();
    for fault in faults(&config, Table::Logs, &columns) {
        assert!(
            fault
                .remedy
                .starts_with("ALTER TABLE `otel`.`otel_logs` ON CLUSTER `main` "),
            "{fault}"
        );
    }
}
