//! Requests to a ClickHouse server other than INSERTs. This file checks and creates the tables at the start.

mod ask;
mod counts;
mod settle;
mod ttl;

use crate::config::{Columns, Config};
use crate::failure::classify;
use crate::presence::{Ask, all_servers};
use crate::schema::ddl::Object;
use crate::schema::distributed::Distributed;
use crate::schema::judge::{self, Fault, Found, Known};
use crate::schema::partition::{Partitioning, Sources, Terms};
use crate::schema::{self, Table, literal};
use crate::settings::{self, Clients};
use clickhouse::query::Query;
use clickhouse::{Client, Row};
use millpond_consumer::SinkError;
use std::time::Duration;
use tracing::warn;
pub(crate) use ttl::RowTtl;

/// A server and the settings of the tables on it.
pub(crate) struct Server {
    pub(crate) client: Client,
    /// For INSERTs of chunks.
    pub(crate) inserting: Client,
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

impl Server {
    /// Connects to the server that the settings name.
    pub(crate) async fn connect(mut config: Config) -> Result<Self, SinkError> {
        let Clients { asking, inserting } = settings::connect(&mut config).await?;
        Ok(Server {
            client: asking,
            inserting,
            config,
        })
    }

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
        let mut faults = judge::faults(&self.config, table, &found);
        faults.extend(self.row_policy(table).await?);
        if !faults.is_empty() {
            return Ok(Checked::Unfit(faults));
        }
        let behind = Distributed::parse(&engine.engine_full);
        if let Some(fault) = self.sharding(table, behind.as_ref(), &found).await? {
            return Ok(Checked::Unfit(vec![fault]));
        }
        let partitioning = match self.partitioning(table, &engine, &found).await? {
            Ok(partitioning) => partitioning,
            Err(fault) => return Ok(Checked::Unfit(vec![fault])),
        };
        let ask = self.ask_of(table, &engine.engine, behind).await?;
        let ttl = RowTtl::of(table, &engine.engine_full, &found);
        let known = Known {
            ask,
            ttl: self.usable_ttl(ttl).await?,
            ..self.known(engine, partitioning).await?
        };
        Ok(Checked::Fits(known))
    }

    /// Chooses the strategy of questions by the engine.
    async fn ask_of(
        &self,
        table: Table,
        engine: &str,
        behind: Option<Distributed>,
    ) -> Result<Ask, SinkError> {
        if self.config.columns == Columns::None {
            return Ok(Ask::Never);
        }
        let path = table.path(&self.config);
        let tokens = "only deduplication tokens keep rows from being stored twice";
        if judge::keeps_rows(engine) {
            return Ok(if judge::is_replicated(engine) {
                Ask::Replicas
            } else {
                Ask::Here
            });
        }
        let Some(behind) = behind else {
            warn!(
                "table {path} has engine {engine}, which does not keep every row as it was inserted: {tokens}"
            );
            return Ok(Ask::Never);
        };
        let Distributed {
            cluster,
            database,
            table,
            ..
        } = &behind;
        let sql = format!(
            "SELECT DISTINCT engine FROM {} WHERE database = {} AND name = {}",
            all_servers(cluster, "system", "tables"),
            literal(database),
            literal(table)
        );
        let engines: Result<Vec<String>, SinkError> =
            self.all("asking for the engines behind a table", &sql).await;
        let reason = match engines {
            Ok(engines) if !engines.is_empty() && engines.iter().all(|engine| judge::keeps_rows(engine)) => {
                return Ok(Ask::Behind(behind));
            }
            Ok(engines) => format!("the tables behind it have engines {engines:?}"),
            Err(SinkError::Transient(reason)) => return Err(SinkError::Transient(reason)),
            Err(error) => error.to_string(),
        };
        warn!("cannot ask table {path} which rows it has ({reason}): {tokens}");
        Ok(Ask::Never)
    }

    /// Finds a row policy that hides rows: the sink would send them again.
    async fn row_policy(&self, table: Table) -> Result<Option<Fault>, SinkError> {
        if self.config.columns == Columns::None {
            return Ok(None);
        }
        let sql = format!(
            "SELECT name FROM system.row_policies WHERE database = {} AND table IN ({}, '') \
             AND ifNull(select_filter, '1') NOT IN ('1', 'true') \
             AND (has(apply_to_list, currentUser()) OR hasAny(apply_to_list, currentRoles()) \
             OR apply_to_all AND NOT has(apply_to_except, currentUser()) AND NOT hasAny(apply_to_except, currentRoles()))",
            literal(&self.config.database),
            literal(table.name(&self.config))
        );
        let policies = match self.all::<String>("reading row policies", &sql).await {
            // Without the right to read policies, the check after the first chunk finds hidden rows.
            Err(SinkError::Schema(_)) => return Ok(None),
            policies => policies?,
        };
        Ok(policies.first().map(|policy| Fault {
            what: format!(
                "row policy {policy} hides rows of table {} from this user, so that they would be sent again",
                table.path(&self.config)
            ),
            mend: "exempt this user from the policy (ALTER ROW POLICY … TO ALL EXCEPT …)".to_owned(),
        }))
    }

    /// Finds a sharding key by which a row that is sent again can go to another shard.
    async fn sharding(
        &self,
        table: Table,
        behind: Option<&Distributed>,
        found: &[Found],
    ) -> Result<Option<Fault>, SinkError> {
        let Some(Distributed {
            cluster,
            sharding_key,
            ..
        }) = behind
        else {
            return Ok(None);
        };
        if sharding_key.is_empty() {
            let sql = format!(
                "SELECT uniqExact(shard_num) FROM system.clusters WHERE cluster = {}",
                literal(cluster)
            );
            let shards: u64 = self.one("counting the shards behind a table", &sql).await?;
            return Ok((shards > 1).then(|| Fault {
                what: format!(
                    "table {} has {shards} shards and no sharding key, so that a row that is sent again can go to \
                     another shard",
                    table.path(&self.config)
                ),
                mend: "create the table again with a sharding key that depends on the row alone, such as \
                       cityHash64(TraceId)"
                    .to_owned(),
            }));
        }
        let terms = self.terms(sharding_key).await?;
        let sources = self.sources(Sources::of_expression(terms), table, found).await?;
        let volatile = self.volatile(sources.functions.iter()).await?;
        Ok(sources.shard_fault(&self.config, table, &volatile))
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
            ask: Ask::Never,
            ttl: None,
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
        let sources = self.sources(Sources::new(found), table, found).await?;
        let volatile = self.volatile(sources.functions.iter()).await?;
        if let Some(fault) = sources.fault(&self.config, table, &volatile) {
            return Ok(Err(fault));
        }
        self.partitions(&sources, table.time(), key, found).await.map(Ok)
    }

    /// Adds the inputs of computed columns.
    async fn sources(
        &self,
        mut sources: Sources,
        table: Table,
        found: &[Found],
    ) -> Result<Sources, SinkError> {
        while let Some(computed) = sources.next(&self.config, table, found) {
            let terms = self.terms(&computed.expression).await?;
            sources.add(computed, terms);
        }
        Ok(sources)
    }

    async fn terms(&self, expression: &str) -> Result<Terms, SinkError> {
        let sql = format!("EXPLAIN AST SELECT {expression}");
        let tree: Vec<String> = self.all("reading an expression", &sql).await?;
        Ok(Terms::of_tree(&tree))
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
        let outcome = self.in_time(request).await;
        outcome.map_err(|error| self.failed(what, &error))
    }

    async fn in_time<T>(
        &self,
        request: impl Future<Output = clickhouse::error::Result<T>>,
    ) -> clickhouse::error::Result<T> {
        let timeout = Duration::from_secs(self.config.timeout_seconds);
        let outcome = tokio::time::timeout(timeout, request).await;
        outcome.unwrap_or(Err(clickhouse::error::Error::TimedOut))
    }

    /// A failed question refuses no rows.
    fn failed(&self, what: &str, error: &clickhouse::error::Error) -> SinkError {
        match classify(&format!("{what} at {}", self.config.url), error) {
            SinkError::Refused(reason) => SinkError::Schema(reason),
            error => error,
        }
    }
}
