//! The settings that say which of ClickHouse's tables rows are in, and how those are made: the same for every command.

use crate::units::Time;
use anyhow::{Context, ensure};
use millpond_clickhouse::{Columns, Engine, Indexes, PartitionBy, Signal};
use std::path::PathBuf;

/// Where ClickHouse is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClickHouseArgs {
    /// ClickHouse's HTTP interface, e.g. http://127.0.0.1:8123. Repeat it, or separate the URLs by commas, for several replicas of the
    /// same tables: one is in use at a time, and the next one takes its place when it is away. Write a comma in a URL as %2C.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE",
        value_name = "URL",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) clickhouse: Vec<String>,
}

/// Which tables, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TableArgs {
    /// The database that rows go to; it is made when missing.
    #[arg(long, env = "MILLPOND_DATABASE", value_name = "NAME", default_value = "otel")]
    pub(crate) database: String,

    /// The table for logs; it is made when missing, as the Collector's clickhouseexporter makes it.
    #[arg(
        long,
        env = "MILLPOND_LOGS_TABLE",
        value_name = "NAME",
        default_value = "otel_logs"
    )]
    pub(crate) logs_table: String,

    /// The table for spans; it is made when missing, with `<name>_trace_id_ts`, by which a trace's time is found, and the
    /// view that fills that.
    #[arg(
        long,
        env = "MILLPOND_TRACES_TABLE",
        value_name = "NAME",
        default_value = "otel_traces"
    )]
    pub(crate) traces_table: String,

    /// The table for gauges.
    #[arg(
        long,
        env = "MILLPOND_GAUGE_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_gauge"
    )]
    pub(crate) gauge_table: String,

    /// The table for sums.
    #[arg(
        long,
        env = "MILLPOND_SUM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_sum"
    )]
    pub(crate) sum_table: String,

    /// The table for histograms.
    #[arg(
        long,
        env = "MILLPOND_HISTOGRAM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_histogram"
    )]
    pub(crate) histogram_table: String,

    /// The table for exponential histograms.
    #[arg(
        long,
        env = "MILLPOND_EXPONENTIAL_HISTOGRAM_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_exponential_histogram"
    )]
    pub(crate) exponential_histogram_table: String,

    /// The table for summaries.
    #[arg(
        long,
        env = "MILLPOND_SUMMARY_TABLE",
        value_name = "NAME",
        default_value = "otel_metrics_summary"
    )]
    pub(crate) summary_table: String,

    /// The cluster whose servers all have the tables: they are made `ON CLUSTER` this.
    #[arg(long, env = "MILLPOND_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// What is taken: `logs`, `traces`, `metrics`. What is not needs no table, and the buffer keeps nothing for this
    /// consumer of it.
    #[arg(
        long,
        env = "MILLPOND_SIGNALS",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "logs,traces,metrics",
        value_parser = signal
    )]
    pub(crate) signals: Vec<Signal>,

    /// ClickHouse's user. Without it the server's default user.
    #[arg(long, env = "MILLPOND_CLICKHOUSE_USER", value_name = "NAME")]
    pub(crate) clickhouse_user: Option<String>,

    /// The user's password, here or in the variable. `settings::check_secrets` refuses it as a flag.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE_PASSWORD",
        value_name = "PASSWORD",
        hide = true,
        hide_env_values = true
    )]
    pub(crate) clickhouse_password: Option<String>,

    /// A file with the user's password; a line break at its end is left out. MILLPOND_CLICKHOUSE_PASSWORD and the settings file take
    /// the password itself. No flag does: other users of the machine can see flags.
    #[arg(long, env = "MILLPOND_CLICKHOUSE_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) clickhouse_password_file: Option<PathBuf>,

    /// Millpond's own columns in the tables: `all`, or `none` for the exporter's schema as it is. They hold each row's identity,
    /// by which the consumer asks a table which rows it has. With `none` a row is inserted exactly once only while ClickHouse
    /// remembers its token (the deduplication window), and nothing can be compared or repaired.
    #[arg(long, env = "MILLPOND_COLUMNS", value_name = "all|none", default_value = "all", value_parser = columns)]
    pub(crate) columns: Columns,

    /// The longest that ClickHouse works on one INSERT. After a reset, a skip or a removal the consumer waits for as long where it
    /// cannot end earlier INSERTs with KILL QUERY.
    #[arg(long, env = "MILLPOND_INSERT_TIMEOUT", value_name = "TIME", default_value = "300s", value_parser = whole_seconds)]
    pub(crate) insert_timeout: Time,
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
    /// When the password's file cannot be read, or there is a password beside it.
    pub(crate) fn at(&self, urls: &[String]) -> anyhow::Result<millpond_clickhouse::Config> {
        Ok(millpond_clickhouse::Config {
            urls: urls.to_vec(),
            user: self.clickhouse_user.clone(),
            password: self.password()?,
            database: self.database.clone(),
            signals: self.signals.clone(),
            logs_table: self.logs_table.clone(),
            traces_table: self.traces_table.clone(),
            gauge_table: self.gauge_table.clone(),
            sum_table: self.sum_table.clone(),
            histogram_table: self.histogram_table.clone(),
            exponential_histogram_table: self.exponential_histogram_table.clone(),
            summary_table: self.summary_table.clone(),
            cluster: self.cluster.clone(),
            columns: self.columns,
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
            "there is a password beside --clickhouse-password-file: give one of them"
        );
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("--clickhouse-password-file {}: cannot be read", file.display()))?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Some(password.strip_suffix('\r').unwrap_or(password).to_owned()))
    }
}

/// How a table is made that is missing. Of one that is there, nothing is changed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MakingArgs {
    /// The engine of a table that is made: `MergeTree`, `ReplicatedMergeTree`, `SharedMergeTree`, with parameters in brackets
    /// where it takes any.
    #[arg(
        long,
        env = "MILLPOND_ENGINE",
        value_name = "ENGINE",
        default_value = "MergeTree"
    )]
    pub(crate) engine: Engine,

    /// What is one partition of a table that is made: a `day`, as the exporter has it, `none` (the whole table), an `hour`, a
    /// `month`, or an expression with {time} for the table's time, such as `toMonday({time})`.
    #[arg(
        long,
        env = "MILLPOND_PARTITION_BY",
        value_name = "PARTITION",
        default_value = "day"
    )]
    pub(crate) partition_by: PartitionBy,

    /// Indexes of a table that is made: `exporter` (what the Collector's makes on this server), `bloom`, `text`
    /// or `none`. Text indexes cost the server 1.4 to 2 times as much a row.
    #[arg(long, env = "MILLPOND_INDEXES", value_name = "KIND", default_value = "exporter", value_parser = indexes)]
    pub(crate) indexes: Indexes,

    /// How long a table that is made keeps rows; 0s for ever.
    #[arg(long, env = "MILLPOND_TTL", value_name = "TIME", default_value = "0s")]
    pub(crate) ttl: Time,

    /// The same for logs, where it is not as --ttl says.
    #[arg(long, env = "MILLPOND_LOGS_TTL", value_name = "TIME")]
    pub(crate) logs_ttl: Option<Time>,

    /// The same for traces.
    #[arg(long, env = "MILLPOND_TRACES_TTL", value_name = "TIME")]
    pub(crate) traces_ttl: Option<Time>,

    /// The same for metrics.
    #[arg(long, env = "MILLPOND_METRICS_TTL", value_name = "TIME")]
    pub(crate) metrics_ttl: Option<Time>,
}

impl MakingArgs {
    /// These, in the sink's settings.
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

fn columns(text: &str) -> Result<Columns, String> {
    match text {
        "all" => Ok(Columns::All),
        "none" => Ok(Columns::None),
        _ => Err("use all or none".into()),
    }
}

fn signal(text: &str) -> Result<Signal, String> {
    let found = Signal::ALL.into_iter().find(|signal| signal.name() == text);
    found.ok_or_else(|| "use logs, traces or metrics, with commas between them".into())
}
