//! The sink's settings, each with its default and reason.

mod made;

use crate::events::EventTable;
use crate::schema::Table;
pub use made::{Engine, PartitionBy};
use millpond_otlp::Signal;

/// The destination of rows, and the kind of its tables.
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
    /// The signals to consume. Default all. The others need no table, and nothing is kept for them.
    pub signals: Vec<Signal>,
    /// The table for logs. Default `otel_logs`, as in the exporter.
    pub logs_table: String,
    /// The table for spans, and the prefix of the tables that find a trace's time. Default `otel_traces`, as in the
    /// exporter.
    pub traces_table: String,
    /// The table for gauges. Default `otel_metrics_gauge`, as in the exporter.
    pub gauge_table: String,
    /// The table for sums. Default `otel_metrics_sum`, as in the exporter.
    pub sum_table: String,
    /// The table for histograms. Default `otel_metrics_histogram`, as in the exporter.
    pub histogram_table: String,
    /// The table for exponential histograms. Default `otel_metrics_exponential_histogram`, as in the exporter.
    pub exponential_histogram_table: String,
    /// The table for summaries. Default `otel_metrics_summary`, as in the exporter.
    pub summary_table: String,
    /// The tables for streams of events. Default none. The sink never creates them.
    pub event_tables: Vec<EventTable>,
    /// The cluster whose servers all have the tables. DDL runs `ON CLUSTER`. Default none.
    pub cluster: Option<String>,
    /// Create a missing database and missing tables. Default true.
    pub create: bool,
    /// Millpond's own columns: `all` (default), or `none` for the exporter's unchanged schema. Without them, the table
    /// cannot tell which chunks it has.
    pub columns: Columns,
    /// The engine of new tables. Default `MergeTree`, as in the exporter.
    pub engine: Engine,
    /// The partitions of new tables. Default one per day, as in the exporter.
    pub partition_by: PartitionBy,
    /// The indexes of new tables. Default `exporter`.
    pub indexes: Indexes,
    /// Retention of rows in new tables, by their timestamp, in seconds. Default 0: forever.
    pub ttl_seconds: u64,
    /// Different retention for single signals.
    pub ttl_seconds_of: Vec<(Signal, u64)>,
    /// When the server builds the indexes of new rows. Default with the INSERT, as ClickHouse does.
    pub skip_indexes: SkipIndexes,
    /// The compression of INSERTs on their way to the server. Default LZ4.
    pub compression: Compression,
    /// Time limit of one request in seconds, enforced by the server too. Default 300: an insert waits for the server's
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
            event_tables: Vec::new(),
            cluster: None,
            create: true,
            columns: Columns::All,
            engine: Engine::default(),
            partition_by: PartitionBy::default(),
            indexes: Indexes::Exporter,
            ttl_seconds: 0,
            ttl_seconds_of: Vec::new(),
            skip_indexes: SkipIndexes::Insert,
            compression: Compression::default(),
            timeout_seconds: 300,
        }
    }
}

impl Config {
    /// The tables of the consumed signals, then those of events.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let taken = |table: &Table| {
            table
                .signal()
                .is_some_and(|signal| self.signals.contains(&signal))
        };
        let signals = Table::ALL.into_iter().filter(taken);
        signals.chain(self.events().map(|(table, _)| table)).collect()
    }

    /// The tables of events with their settings.
    pub(crate) fn events(&self) -> impl Iterator<Item = (Table, &EventTable)> {
        (0..).map(Table::Event).zip(&self.event_tables)
    }

    /// Returns true if rows may go to more than one address.
    pub(crate) fn has_several_urls(&self) -> bool {
        self.urls.len() > 1
    }

    pub(crate) fn ttl_seconds_of(&self, signal: Signal) -> u64 {
        let own = self.ttl_seconds_of.iter().find(|(of, _)| *of == signal);
        own.map_or(self.ttl_seconds, |(_, seconds)| *seconds)
    }
}

/// The selection of Millpond's own columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All of them.
    All,
    /// None.
    None,
}

/// When the server builds the skip indexes of new rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipIndexes {
    /// With each INSERT, unless the user's profile or the URL says otherwise.
    Insert,
    /// With the first merge. Queries read parts that are not merged yet without indexes.
    Merge,
}

/// The compression of INSERTs on their way to the server. Tables keep their own codecs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// LZ4: fast at both ends.
    #[default]
    Lz4,
    /// zstd at level 1: half the bytes of LZ4, for networks that are slow or paid by the byte.
    Zstd,
    /// None: for a server on the same machine.
    None,
}

/// The indexes of new tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// As the Collector's exporter: `text` on servers since 26.2, `bloom` before.
    Exporter,
    /// Bloom filters. They cost the server about half as much as text indexes.
    Bloom,
    /// Text indexes.
    Text,
    /// None.
    None,
}
