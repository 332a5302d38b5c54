//! The sink's settings, each with its default and reason.

use serde::{Deserialize, Serialize};

/// Where rows go, and into what kind of table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// ClickHouse's HTTP interface. Default `http://127.0.0.1:8123`.
    pub url: String,
    /// The user. Default: none given, which is the server's `default`.
    pub user: Option<String>,
    /// The user's password. Default: none.
    pub password: Option<String>,
    /// The database. Default `otel`; the exporter's is `default`, which nobody wants to fill.
    pub database: String,
    /// The table for logs. Default `otel_logs`, as the exporter's.
    pub table: String,
    /// Create database and table when they are missing. Default true.
    pub create: bool,
    /// Millpond's own columns: `all` (default), or `none` for the exporter's schema as it is, which gives up
    /// asking the table which chunks it has.
    pub columns: Columns,
    /// Indexes of a table that we create. Default `exporter`.
    pub indexes: Indexes,
    /// How long a table that we create keeps rows, by their timestamp, in seconds. Default 0: for ever.
    pub ttl_seconds: u64,
    /// The longest that one request may be stuck, in seconds. Default 300: an insert waits for the server's
    /// materialized views and replicas.
    pub timeout_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8123".to_owned(),
            user: None,
            password: None,
            database: "otel".to_owned(),
            table: "otel_logs".to_owned(),
            create: true,
            columns: Columns::All,
            indexes: Indexes::Exporter,
            ttl_seconds: 0,
            timeout_seconds: 300,
        }
    }
}

/// Which of Millpond's own columns there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Columns {
    /// All of them.
    All,
    /// None.
    None,
}

/// The indexes of a table that we create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
