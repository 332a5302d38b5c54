//! What is asked of a ClickHouse server beside INSERTs: at the start, and about a chunk in doubt.

use crate::config::Config;
use crate::failure::classify;
use crate::schema::ddl::{Object, lookup_rows};
use crate::schema::judge::{self, Fault, Found, Known};
use crate::schema::partition::{Partitioning, Sources, Terms};
use crate::schema::{self, Table};
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

#[derive(Row, serde::Deserialize)]
struct Engine {
    engine: String,
    engine_full: String,
    partition_key: String,
}

/// How a table is that rows are to go to.
#[derive(Debug)]
pub(crate) enum Checked {
    Fits(Known),
    Missing,
    Unfit(Vec<Fault>),
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

    /// Those of the objects that the server has.
    pub(crate) async fn existing(&self, objects: &[Object]) -> Result<Vec<Object>, SinkError> {
        let sql = "SELECT name FROM system.tables WHERE database = ? \
                   UNION ALL SELECT concat('database ', name) FROM system.databases WHERE name = ?";
        let query = self.about_table(sql, &self.config.database);
        let names: Vec<String> = self
            .within("asking which tables there are", query.fetch_all())
            .await?;
        let is_there = |object: &Object| {
            let name = match object {
                Object::Database => format!("database {}", self.config.database),
                object => object.name(&self.config),
            };
            names.contains(&name)
        };
        Ok(objects.iter().copied().filter(is_there).collect())
    }

    /// Makes these.
    pub(crate) async fn create(&self, objects: &[Object], version: (u32, u32)) -> Result<(), SinkError> {
        for object in objects {
            if *object == Object::View && matches!(self.check_lookup().await?, Checked::Unfit(_)) {
                // It could not be made; what is wrong is said of its table.
                continue;
            }
            let what = format!("creating {}", object.title(&self.config));
            let sql = object.create(&self.config, version);
            self.within(&what, self.client.query_raw(&sql).execute()).await?;
        }
        Ok(())
    }

    /// Whether a table takes our rows, and how it deduplicates.
    pub(crate) async fn check(&self, table: Table) -> Result<Checked, SinkError> {
        let name = table.name(&self.config);
        let found = self.columns(name).await?;
        let Some(engine) = self.engine(name).await? else {
            return Ok(Checked::Missing);
        };
        let faults = judge::faults(&self.config, table, &found);
        if !faults.is_empty() {
            return Ok(Checked::Unfit(faults));
        }
        match self.partitioning(table, &engine, &found).await? {
            Ok(partitioning) => self.known(engine, partitioning).await.map(Checked::Fits),
            Err(fault) => Ok(Checked::Unfit(vec![fault])),
        }
    }

    /// The same of the traces' table of times, which the view fills.
    pub(crate) async fn check_lookup(&self) -> Result<Checked, SinkError> {
        let name = schema::lookup(&self.config);
        let found = self.columns(&name).await?;
        let Some(engine) = self.engine(&name).await? else {
            return Ok(Checked::Missing);
        };
        let faults = judge::lookup_faults(&self.config, &found);
        if !faults.is_empty() {
            return Ok(Checked::Unfit(faults));
        }
        let partitioning = match engine.partition_key.as_str() {
            _ if !judge::lands_by_partition(&engine.engine) => Partitioning::Elsewhere,
            "" => Partitioning::Whole,
            key => {
                let sources = Sources::of_key(&found);
                self.partitions(&sources, "Start", key, &found).await?
            }
        };
        self.known(engine, partitioning).await.map(Checked::Fits)
    }

    async fn engine(&self, table: &str) -> Result<Option<Engine>, SinkError> {
        let sql =
            "SELECT engine, engine_full, partition_key FROM system.tables WHERE database = ? AND name = ?";
        let query = self.about_table(sql, table);
        self.within("reading a table's engine", query.fetch_optional())
            .await
    }

    async fn known(&self, engine: Engine, partitioning: Partitioning) -> Result<Known, SinkError> {
        let Engine {
            engine, engine_full, ..
        } = engine;
        let setting = judge::window_setting(&engine);
        let sql =
            format!("SELECT toUInt64(any(value)) FROM system.merge_tree_settings WHERE name = '{setting}'");
        let default_window = self
            .one("reading the server's deduplication window", &sql)
            .await?;
        Ok(Known {
            engine,
            engine_full,
            default_window,
            partitioning,
        })
    }

    /// What a row's partition follows from; the server takes the expressions apart. A fault when it is not of the row itself.
    async fn partitioning(
        &self,
        table: Table,
        engine: &Engine,
        found: &[Found],
    ) -> Result<Result<Partitioning, Fault>, SinkError> {
        if !judge::lands_by_partition(&engine.engine) {
            return Ok(Ok(Partitioning::Elsewhere));
        }
        let key = &engine.partition_key;
        if key.is_empty() {
            return Ok(Ok(Partitioning::Whole));
        }
        let mut sources = Sources::new(found);
        while let Some(computed) = sources.next(&self.config, table, found) {
            let sql = format!("EXPLAIN AST SELECT {}", computed.expression);
            let tree: Vec<String> = self.all("reading a column's expression", &sql).await?;
            sources.add(computed, Terms::of_tree(&tree));
        }
        let volatile = self.volatile(sources.functions.iter()).await?;
        if let Some(fault) = sources.fault(&self.config, table, &volatile) {
            return Ok(Err(fault));
        }
        self.partitions(&sources, table.time(), key, found).await.map(Ok)
    }

    async fn partitions(
        &self,
        sources: &Sources,
        time: &str,
        key: &str,
        found: &[Found],
    ) -> Result<Partitioning, SinkError> {
        if !sources.only_time(time) {
            return Ok(Partitioning::Rows { key: key.to_owned() });
        }
        let sql = sources.partitions_of_a_day(time, key, found);
        let a_day = self.one("counting the partitions of a day", &sql).await?;
        Ok(Partitioning::Time { a_day })
    }

    /// Those of the functions that give another value the next time they are called.
    async fn volatile(&self, functions: impl Iterator<Item = &String>) -> Result<Vec<String>, SinkError> {
        let names: Vec<&String> = functions.collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // The column's name is not the same in all versions.
        let sql = "SELECT lower(name) FROM system.functions \
                   WHERE lower(name) IN ? AND ifNull(COLUMNS('^(is_|)deterministic$'), 1) = 0 ORDER BY 1";
        let query = self.client.query(sql).bind(names);
        self.within("asking which functions are deterministic", query.fetch_all())
            .await
    }

    async fn columns(&self, table: &str) -> Result<Vec<Found>, SinkError> {
        let sql = "SELECT name, type, default_kind, default_expression, is_in_partition_key FROM system.columns \
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
        let Some(sql) = judge::sync_replica(&self.config, table, &known.engine) else {
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
    ///
    /// Where both tables are Distributed, each subquery is answered once, for all shards (`GLOBAL`; without it the server refuses the query, or asks
    /// each shard for its own rows alone), and one server compares all times, instead of each shard its own.
    pub(crate) async fn mend_lookup(&self, id: &BatchId, numbers: &[u32]) -> Result<(), SinkError> {
        let config = &self.config;
        let lookup = schema::lookup_path(config);
        let rows = lookup_rows(config, &format!("{CHUNKS} AND TraceId != ''"));
        let traces = Table::Traces.path(config);
        let sql = format!(
            "INSERT INTO {lookup} (TraceId, Start, End)\n\
             SELECT TraceId, toDateTime(Start), toDateTime(End) FROM ({rows})\n\
             WHERE (TraceId, toDateTime(Start), toDateTime(End)) GLOBAL NOT IN (\
             SELECT TraceId, Start, End FROM {lookup} WHERE TraceId GLOBAL IN (\
             SELECT TraceId FROM {traces} WHERE {CHUNKS}))"
        );
        let query = self.bind_chunks(self.client.query(&sql), id, numbers);
        let query = self.bind_chunks(query, id, numbers);
        let query = query
            .with_setting("async_insert", "0")
            .with_setting("insert_distributed_sync", "1")
            .with_setting("parallel_distributed_insert_select", "0")
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

    async fn all<T>(&self, what: &str, sql: &str) -> Result<Vec<T>, SinkError>
    where
        T: clickhouse::RowOwned + clickhouse::RowRead,
    {
        self.within(what, self.client.query_raw(sql).fetch_all()).await
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
