//! What is asked of a ClickHouse server beside INSERTs: at the start, and about a chunk in doubt.

use crate::config::Config;
use crate::failure::classify;
use crate::schema::{self, Found, Table};
use clickhouse::query::Query;
use clickhouse::{Client, Row};
use millpond_consumer::{BatchId, SinkError};
use std::time::Duration;
use tracing::warn;

/// A server and the settings of the tables on it.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) config: Config,
}

/// What the server said of a table that it has.
#[derive(Debug)]
pub(crate) struct Known {
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

/// The rows of some chunks or pieces of one batch, by Millpond's columns.
const CHUNKS: &str = "_millpond_batch = ? AND _millpond_chunk IN ? AND _millpond_source = ?";

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

    /// Makes what is missing of the database and of these tables.
    pub(crate) async fn create(&self, tables: &[Table], version: (u32, u32)) -> Result<(), SinkError> {
        let database = &self.config.database;
        self.run(
            &format!("creating database {}", schema::identifier(database)),
            &schema::create_database(&self.config),
        )
        .await?;
        for &table in tables {
            let what = format!("creating table {}", table.path(&self.config));
            self.run(&what, &schema::create_table(&self.config, table, version))
                .await?;
        }
        if tables.contains(&Table::Traces) {
            let what = format!(
                "creating table {} and its view",
                schema::lookup_path(&self.config)
            );
            self.run(&what, &schema::create_lookup(&self.config)).await?;
            self.run(&what, &schema::create_view(&self.config)).await?;
        }
        Ok(())
    }

    async fn run(&self, what: &str, sql: &str) -> Result<(), SinkError> {
        self.within(what, self.client.query_raw(sql).execute()).await
    }

    /// Checks a table's columns and learns how it deduplicates.
    pub(crate) async fn check(&self, table: Table) -> Result<Known, SinkError> {
        let name = table.name(&self.config);
        let found = self.columns(name).await?;
        if found.is_empty() {
            return Err(SinkError::Schema(format!(
                "there is no table {}: create it, or let `create` be true",
                table.path(&self.config)
            )));
        }
        let faults = schema::faults(&self.config, table, &found);
        if !faults.is_empty() {
            return Err(SinkError::Schema(faults.join("; ")));
        }
        let mut key = found.iter().filter(|column| column.is_in_partition_key != 0);
        let partitioned_by_time = key.all(|column| column.name == table.time());
        let known = self.known(name, partitioned_by_time).await?;
        known.ok_or_else(|| SinkError::Transient(format!("table {} has just gone", table.path(&self.config))))
    }

    /// The traces' table of times, if there is one.
    pub(crate) async fn lookup(&self) -> Result<Option<Known>, SinkError> {
        self.known(&schema::lookup(&self.config), true).await
    }

    async fn known(&self, table: &str, partitioned_by_time: bool) -> Result<Option<Known>, SinkError> {
        let sql = "SELECT engine, engine_full FROM system.tables WHERE database = ? AND name = ?";
        let query = self.about_table(sql, table);
        let found = self
            .within("reading a table's engine", query.fetch_optional())
            .await?;
        let Some(Engine { engine, engine_full }) = found else {
            return Ok(None);
        };
        let setting = schema::window_setting(&engine);
        let sql =
            format!("SELECT toUInt64(any(value)) FROM system.merge_tree_settings WHERE name = '{setting}'");
        let default_window = self
            .one("reading the server's deduplication window", &sql)
            .await?;
        Ok(Some(Known {
            partitioned_by_time: partitioned_by_time && schema::lands_by_partition(&engine),
            engine,
            engine_full,
            default_window,
        }))
    }

    async fn columns(&self, table: &str) -> Result<Vec<Found>, SinkError> {
        let sql = "SELECT name, type, default_kind, is_in_partition_key FROM system.columns \
                   WHERE database = ? AND table = ?";
        let query = self.about_table(sql, table);
        self.within("reading a table's columns", query.fetch_all()).await
    }

    fn about_table(&self, sql: &str, table: &str) -> Query {
        self.client.query(sql).bind(&self.config.database).bind(table)
    }

    /// A replica that lags would seem to lack rows that another one has taken. Who may not tell it to catch up has the token alone
    /// for that case.
    pub(crate) async fn catch_up(&self, table: Table, known: &Known) -> Result<(), SinkError> {
        let Some(sql) = schema::sync_replica(&self.config, table, &known.engine) else {
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

    /// How many rows of these chunks or pieces of a batch their table has.
    pub(crate) async fn rows_of(
        &self,
        table: Table,
        id: &BatchId,
        numbers: &[u32],
    ) -> Result<u64, SinkError> {
        let query = self.about_chunks("count()", table, id, numbers);
        self.within("counting the rows of a chunk in doubt", query.fetch_one())
            .await
    }

    /// The distinct times of those rows, in ticks.
    pub(crate) async fn times_of(
        &self,
        table: Table,
        id: &BatchId,
        numbers: &[u32],
    ) -> Result<Vec<i64>, SinkError> {
        let query = self.about_chunks(&format!("DISTINCT {}", table.ticks()), table, id, numbers);
        self.within(
            "asking which rows of a chunk in doubt are there",
            query.fetch_all(),
        )
        .await
    }

    fn about_chunks(&self, what: &str, table: Table, id: &BatchId, numbers: &[u32]) -> Query {
        let sql = format!("SELECT {what} FROM {} WHERE {CHUNKS}", table.path(&self.config));
        self.bind_chunks(self.client.query(&sql), id, numbers)
    }

    fn bind_chunks(&self, query: Query, id: &BatchId, numbers: &[u32]) -> Query {
        // A shard that is left out would look as if it had none of the rows.
        let query = query.with_setting("skip_unavailable_shards", "0");
        query.bind(id.low).bind(numbers).bind(id.source())
    }

    /// Adds what the traces' table of times lacks of the traces of these chunks or pieces: a view fills it after the
    /// spans have landed, so that an attempt may have died in between. Traces that it has with the same times are left alone.
    pub(crate) async fn mend_lookup(&self, id: &BatchId, numbers: &[u32]) -> Result<(), SinkError> {
        let config = &self.config;
        let lookup = schema::lookup_path(config);
        let rows = schema::lookup_rows(config, &format!("{CHUNKS} AND TraceId != ''"));
        let traces = Table::Traces.path(config);
        let sql = format!(
            "INSERT INTO {lookup} (TraceId, Start, End)\n\
             SELECT TraceId, toDateTime(Start), toDateTime(End) FROM ({rows})\n\
             WHERE (TraceId, toDateTime(Start), toDateTime(End)) NOT IN (\
             SELECT TraceId, Start, End FROM {lookup} WHERE TraceId IN (\
             SELECT TraceId FROM {traces} WHERE {CHUNKS}))"
        );
        let query = self.bind_chunks(self.client.query(&sql), id, numbers);
        let query = self.bind_chunks(query, id, numbers);
        let query = query
            .with_setting("async_insert", "0")
            .with_setting("insert_distributed_sync", "1")
            .with_setting("max_partitions_per_insert_block", "0");
        self.within(&format!("completing {lookup}"), query.execute())
            .await
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
