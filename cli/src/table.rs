//! The settings of ClickHouse and its tables, the same for every command.

use crate::event_tables;
use crate::password;
use crate::transforms;
use crate::units::Time;
use anyhow::ensure;
use millpond_clickhouse::{Columns, Compression, Engine, Indexes, PartitionBy, Signal, SkipIndexes};
use std::path::PathBuf;

/// The address of ClickHouse.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClickHouseArgs {
    /// ClickHouse's HTTP interface, such as http://127.0.0.1:8123. Repeat it, or separate URLs with commas, for several replicas of the
    /// same tables. One replica is in use at a time; during its outage the next one takes its place. Write a comma in a URL as %2C.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE",
        value_name = "URL",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) clickhouse: Vec<String>,
}

/// The tables and the user.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TableArgs {
    /// Database of the tables. A consumer creates it if it is missing.
    #[arg(long, env = "MILLPOND_DATABASE", value_name = "NAME", default_value = "otel")]
    pub(crate) database: String,

    /// Table for logs. A consumer creates it if it is missing, like the Collector's clickhouseexporter.
    #[arg(
        long,
        env = "MILLPOND_LOGS_TABLE",
        value_name = "NAME",
        default_value = "otel_logs"
    )]
    pub(crate) logs_table: String,

    /// Table for spans. A consumer creates it if it is missing, with `<name>_trace_id_ts` for lookups of a trace's time, and the
    /// view that fills the latter.
    #[arg(
        long,
        env = "MILLPOND_TRACES_TABLE",
        value_name = "NAME",
        default_value = "otel_traces"
    )]
    pub(crate) traces_table: String,

    /// Table for gauges.
    #[arg(
        long,
        env = "MILLPOND_GAUGE_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_gauge"
    )]
    pub(crate) gauge_table: String,

    /// Table for sums.
    #[arg(
        long,
        env = "MILLPOND_SUM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_sum"
    )]
    pub(crate) sum_table: String,

    /// Table for histograms.
    #[arg(
        long,
        env = "MILLPOND_HISTOGRAM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_histogram"
    )]
    pub(crate) histogram_table: String,

    /// Table for exponential histograms.
    #[arg(
        long,
        env = "MILLPOND_EXPONENTIAL_HISTOGRAM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_exponential_histogram"
    )]
    pub(crate) exponential_histogram_table: String,

    /// Table for summaries.
    #[arg(
        long,
        env = "MILLPOND_SUMMARY_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_summary"
    )]
    pub(crate) summary_table: String,

    /// Cluster on whose servers a consumer creates the tables (`ON CLUSTER`).
    #[arg(long, env = "MILLPOND_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// Signals to write: `logs`, `traces`, `metrics`. The others need no table, and the buffer does not keep them for this
    /// consumer.
    #[arg(
        long,
        env = "MILLPOND_SIGNALS",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "logs,traces,metrics",
        value_parser = signal
    )]
    pub(crate) signals: Vec<Signal>,

    /// TOML file with a table for each stream of JSON events that the consumer reads (docs/event-tables.md). Without it, the consumer
    /// passes over all events.
    #[arg(long, env = "MILLPOND_EVENT_TABLES", value_name = "FILE")]
    pub(crate) event_tables: Option<PathBuf>,

    /// TOML file with a VRL program for each stream of events whose events it drops, renames or computes before they go to their
    /// table (docs/transforms.md).
    #[arg(long, env = "MILLPOND_TRANSFORM", value_name = "FILE")]
    pub(crate) transform: Option<PathBuf>,

    /// ClickHouse user. Default: the server's default user.
    #[arg(long, env = "MILLPOND_CLICKHOUSE_USER", value_name = "NAME")]
    pub(crate) clickhouse_user: Option<String>,

    /// The user's password. `settings::check_secrets` rejects it as a flag.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE_PASSWORD",
        value_name = "PASSWORD",
        hide = true,
        hide_env_values = true
    )]
    pub(crate) clickhouse_password: Option<String>,

    /// File with the user's password. A line break at its end does not count. MILLPOND_CLICKHOUSE_PASSWORD and the settings file take
    /// the password itself. No flag does, since other users of the machine can see flags.
    #[arg(long, env = "MILLPOND_CLICKHOUSE_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) clickhouse_password_file: Option<PathBuf>,

    /// Millpond's columns in the tables: `all`, or `none` for the exporter's plain schema. They hold each row's identity, by which
    /// the consumer asks a table for the rows that it has. With `none`, exactly-once depends on ClickHouse's deduplication
    /// window alone, and tables can be neither compared nor repaired.
    #[arg(long, env = "MILLPOND_COLUMNS", value_name = "all|none", default_value = "all", value_parser = columns)]
    pub(crate) columns: Columns,

    /// Maximum time for ClickHouse to execute one INSERT. After a reset, a skip or a removal, the consumer waits this long where it
    /// cannot end earlier INSERTs with KILL QUERY.
    #[arg(long, env = "MILLPOND_INSERT_TIMEOUT", value_name = "TIME", default_value = "300s", value_parser = whole_seconds)]
    pub(crate) insert_timeout: Time,

    /// When ClickHouse builds the indexes of new rows: with each `insert`, or with the first `merge` of their part. With `merge` INSERTs
    /// cost the server less, and queries read the newest parts without indexes.
    #[arg(long, env = "MILLPOND_SKIP_INDEXES", value_name = "insert|merge", default_value = "insert", value_parser = skip_indexes)]
    pub(crate) skip_indexes: SkipIndexes,

    /// Compression of INSERTs on their way to ClickHouse: `lz4`, `zstd` (half the bytes, for a network that is slow or paid by the byte),
    /// or `none` (for a server on the same machine). Tables keep their own codecs.
    #[arg(long, env = "MILLPOND_INSERT_COMPRESSION", value_name = "lz4|zstd|none", default_value = "lz4", value_parser = compression)]
    pub(crate) insert_compression: Compression,
}

fn whole_seconds(text: &str) -> Result<Time, String> {
    let time: Time = text.parse()?;
    match time.0.as_secs() {
        0 => Err("write 1s or more".to_owned()),
        _ => Ok(time),
    }
}

impl TableArgs {
    /// The sink's settings for these tables of the servers at `urls`.
    ///
    /// # Errors
    /// The password's file cannot be read, or a password is given as well.
    pub(crate) fn at(&self, urls: &[String]) -> anyhow::Result<millpond_clickhouse::Config> {
        let mut event_tables = match &self.event_tables {
            Some(file) => event_tables::read(file)?,
            None => Vec::new(),
        };
        if let Some(file) = &self.transform {
            transforms::read(file, &mut event_tables)?;
        }
        Ok(millpond_clickhouse::Config {
            urls: urls.to_vec(),
            user: self.clickhouse_user.clone(),
            password: self.password()?,
            database: self.database.clone(),
            signals: self.signals.clone(),
            event_tables,
            logs_table: self.logs_table.clone(),
            traces_table: self.traces_table.clone(),
            gauge_table: self.gauge_table.clone(),
            sum_table: self.sum_table.clone(),
            histogram_table: self.histogram_table.clone(),
            exponential_histogram_table: self.exponential_histogram_table.clone(),
            summary_table: self.summary_table.clone(),
            cluster: self.cluster.clone(),
            columns: self.columns,
            skip_indexes: self.skip_indexes,
            compression: self.insert_compression,
            timeout_seconds: self.insert_timeout.0.as_secs(),
            ..millpond_clickhouse::Config::default()
        })
    }

    fn password(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.clickhouse_password_file else {
            return Ok(self.clickhouse_password.clone());
        };
        ensure!(
            self.clickhouse_password.is_none(),
            "a password is given as well as --clickhouse-password-file: give one of them"
        );
        password::read("--clickhouse-password-file", file).map(Some)
    }
}

/// Settings of missing tables. Existing tables stay as they are.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MakingArgs {
    /// Engine of a new table: `MergeTree`, `ReplicatedMergeTree` or `SharedMergeTree`, with its parameters in brackets if it
    /// takes any.
    #[arg(
        long,
        env = "MILLPOND_ENGINE",
        value_name = "ENGINE",
        default_value = "MergeTree"
    )]
    pub(crate) engine: Engine,

    /// Partitions of a new table: one per `day`, like the exporter's, `hour` or `month`, `none` for the whole table, or an
    /// expression with {time} for the table's time, such as `toMonday({time})`.
    #[arg(
        long,
        env = "MILLPOND_PARTITION_BY",
        value_name = "PARTITION",
        default_value = "day"
    )]
    pub(crate) partition_by: PartitionBy,

    /// Indexes of a new table: `exporter` (those that the Collector's exporter creates on this server), `bloom`, `text` or
    /// `none`. Text indexes raise the server's cost per row by a factor of 1.4 to 2.
    #[arg(long, env = "MILLPOND_INDEXES", value_name = "KIND", default_value = "exporter", value_parser = indexes)]
    pub(crate) indexes: Indexes,

    /// TTL of the rows in a new table. 0s keeps them forever.
    #[arg(long, env = "MILLPOND_TTL", value_name = "TIME", default_value = "0s")]
    pub(crate) ttl: Time,

    /// TTL for logs. Default: --ttl.
    #[arg(long, env = "MILLPOND_LOGS_TTL", value_name = "TIME")]
    pub(crate) logs_ttl: Option<Time>,

    /// TTL for traces. Default: --ttl.
    #[arg(long, env = "MILLPOND_TRACES_TTL", value_name = "TIME")]
    pub(crate) traces_ttl: Option<Time>,

    /// TTL for metrics. Default: --ttl.
    #[arg(long, env = "MILLPOND_METRICS_TTL", value_name = "TIME")]
    pub(crate) metrics_ttl: Option<Time>,
}

impl MakingArgs {
    /// Adds these settings to the sink's.
    pub(crate) fn of(&self, config: millpond_clickhouse::Config) -> millpond_clickhouse::Config {
        let own = [
            (Signal::Logs, &self.logs_ttl),
            (Signal::Traces, &self.traces_ttl),
            (Signal::Metrics, &self.metrics_ttl),
        ];
        let own = own
            .into_iter()
            .filter_map(|(signal, ttl)| Some((signal, ttl.as_ref()?.0.as_secs())));
        millpond_clickhouse::Config {
            engine: self.engine.clone(),
            partition_by: self.partition_by.clone(),
            indexes: self.indexes,
            ttl_seconds: self.ttl.0.as_secs(),
            ttl_seconds_of: own.collect(),
            ..config
        }
    }
}

fn indexes(text: &str) -> Result<Indexes, String> {
    match text {
        "exporter" => Ok(Indexes::Exporter),
        "bloom" => Ok(Indexes::Bloom),
        "text" => Ok(Indexes::Text),
        "none" => Ok(Indexes::None),
        _ => Err("use exporter, bloom, text or none".into()),
    }
}

fn skip_indexes(text: &str) -> Result<SkipIndexes, String> {
    match text {
        "insert" => Ok(SkipIndexes::Insert),
        "merge" => Ok(SkipIndexes::Merge),
        _ => Err("use insert or merge".into()),
    }
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        "none" => Ok(Compression::None),
        _ => Err("use lz4, zstd or none".into()),
    }
}

fn columns(text: &str) -> Result<Columns, String> {
    match text {
        "all" => Ok(Columns::All),
        "none" => Ok(Columns::None),
        _ => Err("use all or none".into()),
    }
}

fn signal(text: &str) -> Result<Signal, String> {
    Signal::of_name(text).ok_or_else(|| "use logs, traces or metrics, with commas between them".into())
}
