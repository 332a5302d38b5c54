//! The settings that say which of ClickHouse's tables rows are in, the same for every command.

use millpond_clickhouse::{Columns, Signal};

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

    /// The user's password. Give it as the variable: flags can be seen by other users of the machine.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    pub(crate) clickhouse_password: Option<String>,

    /// Millpond's own columns in the tables: `all`, or `none` for the exporter's schema as it is, which gives up
    /// asking the table which chunks it has.
    #[arg(long, env = "MILLPOND_COLUMNS", value_name = "all|none", default_value = "all", value_parser = columns)]
    pub(crate) columns: Columns,
}

impl TableArgs {
    /// The sink's settings for these tables of the server at `url`.
    pub(crate) fn at(&self, url: &str) -> millpond_clickhouse::Config {
        millpond_clickhouse::Config {
            url: url.to_owned(),
            user: self.clickhouse_user.clone(),
            password: self.clickhouse_password.clone(),
            database: self.database.clone(),
            signals: self.signals.clone(),
            logs_table: self.logs_table.clone(),
            traces_table: self.traces_table.clone(),
            gauge_table: self.gauge_table.clone(),
            sum_table: self.sum_table.clone(),
            histogram_table: self.histogram_table.clone(),
            exponential_histogram_table: self.exponential_histogram_table.clone(),
            summary_table: self.summary_table.clone(),
            columns: self.columns,
            ..millpond_clickhouse::Config::default()
        }
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
