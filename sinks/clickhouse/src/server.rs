//! What is asked of a ClickHouse server beside INSERTs: at the start, and about a chunk in doubt.

use crate::config::Config;
use crate::failure::classify;
use crate::schema::{self, Found};
use clickhouse::query::Query;
use clickhouse::{Client, Row};
use millpond_consumer::{BatchId, SinkError};
use std::time::Duration;
use tracing::warn;

/// A server and the settings of the table on it.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) config: Config,
}

/// What the server said of a table that fits.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) engine: String,
    pub(crate) engine_full: String,
    /// The server's deduplication window for tables of this engine that name none.
    pub(crate) default_window: u64,
    /// What lands of a chunk lands by partitions, and a row's partition follows from its timestamp alone.
    pub(crate) partitioned_by_time: bool,
}

#[derive(Row, serde::Deserialize)]
struct Engine {
    engine: String,
    engine_full: String,
}

impl Server {
    pub(crate) async fn version(&self) -> Result<(u32, u32), SinkError> {
        let version: String = self.one("asking for the version", "SELECT version()").await?;
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => Ok((major, minor)),
            _ => Err(SinkError::Schema(format!(
                "{} answers version {version:?}, which is none of ClickHouse's",
                self.config.url
            ))),
        }
    }

    pub(crate) async fn create(&self, version: (u32, u32)) -> Result<(), SinkError> {
        for sql in [
            schema::create_database(&self.config),
            schema::create_table(&self.config, version),
        ] {
            let what = format!("creating table {}", schema::table(&self.config));
            self.within(&what, self.client.query_raw(&sql).execute()).await?;
        }
        Ok(())
    }

    /// Checks the table's columns and learns how it deduplicates.
    pub(crate) async fn table(&self) -> Result<Table, SinkError> {
        let found = self.columns().await?;
        if found.is_empty() {
            let table = schema::table(&self.config);
            return Err(SinkError::Schema(format!(
                "there is no table {table}: create it, or let `create` be true"
            )));
        }
        let faults = schema::faults(&self.config, &found);
        if !faults.is_empty() {
            return Err(SinkError::Schema(faults.join("; ")));
        }
        let sql = "SELECT engine, engine_full FROM system.tables WHERE database = ? AND name = ?";
        let query = self.about_table(sql);
        let Engine { engine, engine_full } = self
            .within("reading the table's engine", query.fetch_one())
            .await?;
        let setting = schema::window_setting(&engine);
        let sql =
            format!("SELECT toUInt64(any(value)) FROM system.merge_tree_settings WHERE name = '{setting}'");
        let default_window = self
            .one("reading the server's deduplication window", &sql)
            .await?;
        let mut key = found.iter().filter(|column| column.is_in_partition_key != 0);
        Ok(Table {
            partitioned_by_time: schema::lands_by_partition(&engine)
                && key.all(|column| column.name == schema::EXPORTER[0].name),
            engine,
            engine_full,
            default_window,
        })
    }

    async fn columns(&self) -> Result<Vec<Found>, SinkError> {
        let sql = "SELECT name, type, default_kind, is_in_partition_key FROM system.columns \
                   WHERE database = ? AND table = ?";
        let query = self.about_table(sql);
        self.within("reading the table's columns", query.fetch_all())
            .await
    }

    fn about_table(&self, sql: &str) -> Query {
        let Config { database, table, .. } = &self.config;
        self.client.query(sql).bind(database).bind(table)
    }

    /// A replica that lags would seem to lack rows that another one has taken. Who may not tell it to catch up has the token alone
    /// for that case.
    pub(crate) async fn catch_up(&self, table: &Table) -> Result<(), SinkError> {
        let Some(sql) = schema::sync_replica(&self.config, &table.engine) else {
            return Ok(());
        };
        let caught_up = self.within(
            "waiting for the replica to catch up",
            self.client.query_raw(&sql).execute(),
        );
        match caught_up.await {
            Err(SinkError::Schema(reason)) => {
                warn!("a chunk in doubt is looked for on a replica that may lag: {reason}");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// How many rows of these chunks or pieces of a batch the table has.
    pub(crate) async fn rows_of(&self, id: &BatchId, numbers: &[u32]) -> Result<u64, SinkError> {
        let query = self.about_chunks("count()", id, numbers);
        self.within("counting the rows of a chunk in doubt", query.fetch_one())
            .await
    }

    /// The distinct timestamps of those rows, in nanoseconds.
    pub(crate) async fn times_of(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<i64>, SinkError> {
        let query = self.about_chunks("DISTINCT toUnixTimestamp64Nano(Timestamp)", id, numbers);
        self.within(
            "asking which rows of a chunk in doubt are there",
            query.fetch_all(),
        )
        .await
    }

    fn about_chunks(&self, what: &str, id: &BatchId, numbers: &[u32]) -> Query {
        let table = schema::table(&self.config);
        let sql = format!(
            "SELECT {what} FROM {table} WHERE _millpond_batch = ? AND _millpond_chunk IN ? AND _millpond_source = ?"
        );
        // A shard that is left out would look as if it had none of the rows.
        let query = self
            .client
            .query(&sql)
            .with_setting("skip_unavailable_shards", "0");
        query.bind(id.low).bind(numbers).bind(id.source())
    }

    async fn one<T>(&self, what: &str, sql: &str) -> Result<T, SinkError>
    where
        T: clickhouse::RowOwned + clickhouse::RowRead,
    {
        self.within(what, self.client.query_raw(sql).fetch_one()).await
    }

    async fn within<T>(
        &self,
        what: &str,
        request: impl Future<Output = clickhouse::error::Result<T>>,
    ) -> Result<T, SinkError> {
        let timeout = Duration::from_secs(self.config.timeout_seconds);
        let outcome = tokio::time::timeout(timeout, request)
            .await
            .unwrap_or(Err(clickhouse::error::Error::TimedOut));
        outcome.map_err(|error| classify(&format!("{what} at {}", self.config.url), &error))
    }
}
