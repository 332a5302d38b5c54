//! The sink's settings, each with its default and reason.

mod made;

use crate::schema::Table;
pub use made::{Engine, PartitionBy};
use millpond_otlp::Signal;

/// Where rows go, and into what kind of table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// ClickHouse's HTTP interface, on one or several replicas of the tables. The sink uses one at a time, the first one first. Default
    /// `http://127.0.0.1:8123`. The parameters of a URL are settings of every request to it.
    pub urls: Vec<String>,
    /// The user. Default: none given, which is the server's `default`.
    pub user: Option<String>,
    /// The user's password. Default: none.
    pub password: Option<String>,
    /// The database. Default `otel`; the exporter's is `default`, which nobody wants to fill.
    pub database: String,
    /// The signals that are taken. Default all. Those that are not need no table, and nothing is kept for them.
    pub signals: Vec<Signal>,
    /// The table for logs. Default `otel_logs`, as the exporter's.
    pub logs_table: String,
    /// The table for spans; those by which a trace's time is found begin with its name. Default `otel_traces`, as
    /// the exporter's.
    pub traces_table: String,
    /// The table for gauges. Default `otel_metrics_gauge`, as the exporter's.
    pub gauge_table: String,
    /// The table for sums. Default `otel_metrics_sum`, as the exporter's.
    pub sum_table: String,
    /// The table for histograms. Default `otel_metrics_histogram`, as the exporter's.
    pub histogram_table: String,
    /// The table for exponential histograms. Default `otel_metrics_exponential_histogram`, as the exporter's.
    pub exponential_histogram_table: String,
    /// The table for summaries. Default `otel_metrics_summary`, as the exporter's.
    pub summary_table: String,
    /// The cluster whose servers all have the tables: they are made, and mended, `ON CLUSTER`. Default none.
    pub cluster: Option<String>,
    /// Create database and tables when they are missing. Default true.
    pub create: bool,
    /// Millpond's own columns: `all` (default), or `none` for the exporter's schema as it is, which gives up
    /// asking the table which chunks it has.
    pub columns: Columns,
    /// The engine of a table that we create. Default `MergeTree`, as the exporter's.
    pub engine: Engine,
    /// What is one partition of a table that we create. Default a day, as the exporter's.
    pub partition_by: PartitionBy,
    /// Indexes of a table that we create. Default `exporter`.
    pub indexes: Indexes,
    /// How long a table that we create keeps rows, by their timestamp, in seconds. Default 0: for ever.
    pub ttl_seconds: u64,
    /// The same of one signal's tables, where it is another.
    pub ttl_seconds_of: Vec<(Signal, u64)>,
    /// The longest that one request may take, in seconds, at the server too. Default 300: an insert waits for the server's
    /// materialized views and replicas.
    pub timeout_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            urls: vec!["http://127.0.0.1:8123".to_owned()],
            user: None,
            password: None,
            database: "otel".to_owned(),
            signals: Signal::ALL.to_vec(),
            logs_table: "otel_logs".to_owned(),
            traces_table: "otel_traces".to_owned(),
            gauge_table: "otel_metrics_gauge".to_owned(),
            sum_table: "otel_metrics_sum".to_owned(),
            histogram_table: "otel_metrics_histogram".to_owned(),
            exponential_histogram_table: "otel_metrics_exponential_histogram".to_owned(),
            summary_table: "otel_metrics_summary".to_owned(),
            cluster: None,
            create: true,
            columns: Columns::All,
            engine: Engine::default(),
            partition_by: PartitionBy::default(),
            indexes: Indexes::Exporter,
            ttl_seconds: 0,
            ttl_seconds_of: Vec::new(),
            timeout_seconds: 300,
        }
    }
}

impl Config {
    /// The tables of the signals that are taken.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let taken = |table: &Table| self.signals.contains(&table.signal());
        Table::ALL.into_iter().filter(taken).collect()
    }

    /// Whether rows may go to more than one address.
    pub(crate) fn has_several_urls(&self) -> bool {
        self.urls.len() > 1
    }

    pub(crate) fn ttl_seconds_of(&self, signal: Signal) -> u64 {
        let own = self.ttl_seconds_of.iter().find(|(of, _)| *of == signal);
        own.map_or(self.ttl_seconds, |(_, seconds)| *seconds)
    }
}

/// Which of Millpond's own columns there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All of them.
    All,
    /// None.
    None,
}

/// The indexes of a table that we create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// What the Collector's exporter makes: `text` on servers since 26.2, `bloom` before.
    Exporter,
    /// Bloom filters. They cost the server about half of what text indexes do.
    Bloom,
    /// Text indexes.
    Text,
    /// None.
    None,
}
