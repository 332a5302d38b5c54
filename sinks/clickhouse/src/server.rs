//! Requests to a ClickHouse server other than INSERTs. This file checks and creates the tables at the start.

mod ask;
mod counts;
mod migrate;
mod places;
mod same;
mod settle;
mod ttl;

use crate::client::{Client, Error};
use crate::config::{Columns, Config};
use crate::events::Plan;
use crate::failure::{classify, is_away, is_exception, shown};
use crate::presence::{Ask, all_servers};
use crate::rights::ACCESS_DENIED;
use crate::schema::ddl::Object;
use crate::schema::distributed::Distributed;
use crate::schema::judge::{self, Fault, Found, Known};
use crate::schema::partition::{Partitioning, Sources, Terms};
use crate::schema::{self, Table, literal};
use crate::settings::{self, Clients};
use crate::sorting::{KeyColumn, SortingKey};
pub(crate) use migrate::Needs;
use millpond_consumer::SinkError;
pub(crate) use same::Named;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;
pub(crate) use ttl::RowTtl;

/// A server and the settings of the tables on it.
pub(crate) struct Server {
    pub(crate) client: Client,
    /// The client for INSERTs of chunks.
    pub(crate) inserting: Client,
    pub(crate) config: Config,
    /// The server's address without parameters.
    pub(crate) url: String,
    /// The reason not to use this server, since the last check.
    away: Mutex<Option<String>>,
}

#[derive(serde::Deserialize)]
struct Engine {
    engine: String,
    engine_full: String,
    partition_key: String,
    sorting_key: String,
}

/// The state of a table for rows.
#[derive(Debug)]
pub(crate) enum Checked {
    Fits(Known),
    Missing,
    Unfit(Vec<Fault>),
}

impl Server {
    /// Connects to the server at an address.
    pub(crate) async fn connect(config: Config, url: &str) -> Result<Self, SinkError> {
        let (url, Clients { asking, inserting }) = settings::connect(&config, url).await?;
        Ok(Server {
            client: asking,
            inserting,
            config,
            url,
            away: Mutex::default(),
        })
    }

    /// Returns the reason to use another server instead of this one.
    pub(crate) fn away(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.clone()
    }

    /// Records that the server answers.
    pub(crate) fn is_back(&self) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records a failure that another server may not have.
    pub(crate) fn note(&self, error: &Error) {
        if is_away(error) {
            *self.away.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown(error));
        }
    }

    pub(crate) async fn version(&self) -> Result<(u32, u32), SinkError> {
        let version: String = self.one("asking for the version", "SELECT version()").await?;
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => Ok((major, minor)),
            _ => Err(SinkError::Schema(format!(
                "{} answers version {version:?}, which is none of ClickHouse's",
                self.url
            ))),
        }
    }

    /// The server's clock.
    pub(crate) async fn now_ms(&self) -> Result<i64, SinkError> {
        let sql = "SELECT toUnixTimestamp64Milli(now64(3))";
        self.one("asking for the time", sql).await
    }

    /// Checks that the server answers and that none of the sink's tables is read-only there.
    pub(crate) async fn check_writable(&self) -> Result<(), SinkError> {
        let objects = Object::all(&self.config.tables());
        let names: Vec<String> = objects
            .iter()
            .map(|object| literal(&object.name(&self.config)))
            .collect();
        let sql = format!(
            "SELECT count() FROM system.replicas WHERE is_readonly AND database = {} AND has([{}], table)",
            literal(&self.config.database),
            names.join(", ")
        );
        match self.one::<u64>("asking for read-only tables", &sql).await {
            // A missing privilege proves nothing.
            Ok(0) | Err(SinkError::Schema(_)) => Ok(()),
            Ok(_) => Err(SinkError::Transient(format!(
                "{}: tables are read-only",
                self.url
            ))),
            Err(error) => Err(error),
        }
    }

    /// Returns those of the objects that the server has.
    pub(crate) async fn existing(&self, objects: &[Object]) -> Result<Vec<Object>, SinkError> {
        // Not all tables: a database can have any number of them.
        let wanted = objects.iter().filter(|object| **object != Object::Database);
        let wanted: Vec<String> = wanted.map(|object| literal(&object.name(&self.config))).collect();
        let database = literal(&self.config.database);
        let sql = format!(
            "SELECT name FROM system.tables WHERE database = {database} AND has([{}], name) \
             UNION ALL SELECT concat('database ', name) FROM system.databases WHERE name = {database}",
            wanted.join(", ")
        );
        let names: Vec<String> = self.all("asking which tables there are", &sql).await?;
        let is_there = |object: &Object| {
            let name = match object {
                Object::Database => format!("database {}", self.config.database),
                object => object.name(&self.config),
            };
            names.contains(&name)
        };
        Ok(objects.iter().copied().filter(is_there).collect())
    }

    /// Creates these objects.
    pub(crate) async fn create(&self, objects: &[Object], version: (u32, u32)) -> Result<(), SinkError> {
        self.check_replicates(objects)?;
        for object in objects {
            if *object == Object::View && matches!(self.check_lookup().await?, Checked::Unfit(_)) {
                // The view cannot be created; the fault of its table says why.
                continue;
            }
            let title = object.title(&self.config);
            let Some(sql) = object.create(&self.config, version) else {
                continue;
            };
            match self.client.execute(&sql).await {
                // A user sees only what it has rights to.
                Err(error) if is_exception(&error, ACCESS_DENIED) => {
                    return Err(SinkError::Schema(format!(
                        "{title} at {} is missing or hidden from the user; if it exists, grant SELECT and INSERT on it, otherwise \
                         create it as another user (`millpond tables create`): {}",
                        self.url,
                        shown(&error)
                    )));
                }
                created => self.failing(&format!("creating {title}"), created)?,
            }
        }
        Ok(())
    }

    /// Executes a statement. `what` says what it does, for errors.
    pub(crate) async fn run(&self, what: &str, sql: &str) -> Result<(), SinkError> {
        self.failing(what, self.client.execute(sql).await)
    }

    /// Refuses to create tables at one of several addresses that would not be replicas of each other.
    fn check_replicates(&self, missing: &[Object]) -> Result<(), SinkError> {
        let config = &self.config;
        let Some(first) = missing.first().filter(|_| config.has_several_urls()) else {
            return Ok(());
        };
        if config.engine.is_replicated() && (config.engine.has_path() || config.cluster.is_some()) {
            return Ok(());
        }
        Err(SinkError::Schema(format!(
            "there is no {} at {}, and engine {} would make a separate table at each address: give --engine \
             \"ReplicatedMergeTree('/clickhouse/tables/{{shard}}/{{database}}/{{table}}', '{{replica}}')\" or --cluster with a \
             replicated engine, create the tables, or give one address",
            first.title(config),
            self.url,
            config.engine
        )))
    }

    /// Checks if a table takes the sink's rows, and how it deduplicates.
    pub(crate) async fn check(&self, table: Table) -> Result<Checked, SinkError> {
        let name = table.name(&self.config);
        let found = self.columns(name).await?;
        let Some(engine) = self.engine(name).await? else {
            return Ok(Checked::Missing);
        };
        if found.is_empty() {
            return Ok(Checked::Unfit(vec![judge::hidden(&table.path(&self.config))]));
        }
        let mut faults = judge::faults(&self.config, table, &found);
        let plan = match self.plan(table, &found) {
            Ok(plan) => plan,
            Err(of_columns) => {
                faults.extend(of_columns);
                None
            }
        };
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
        let sorting_key = match &plan {
            Some(plan) => SortingKey::parse(&engine.sorting_key, &|name| plan.key_column(name), &found),
            None => SortingKey::parse(&engine.sorting_key, &KeyColumn::of_table(table), &found),
        };
        let known = Known {
            ask,
            ttl: self.usable_ttl(ttl).await?,
            plan,
            sorting_key,
            ..self.known(engine, partitioning).await?
        };
        Ok(Checked::Fits(known))
    }

    /// The way from rows of events to a table with these columns; `None` for a table of a signal.
    fn plan(&self, table: Table, found: &[Found]) -> Result<Option<Arc<Plan>>, Vec<Fault>> {
        let Some((_, events)) = self.config.events().find(|(of, _)| *of == table) else {
            return Ok(None);
        };
        let path = table.path(&self.config);
        Plan::new(events, &path, found).map(|plan| Some(Arc::new(plan)))
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
        let what = "asking for the engines behind a table";
        let engines: Result<Vec<String>, Error> = self.client.values(&sql).await;
        if let Err(error) = &engines
            && is_exception(error, ACCESS_DENIED)
        {
            return Ok(Ask::Denied(self.failed(what, error).to_string()));
        }
        let engines = self.failing(what, engines);
        let reason = match engines {
            Ok(engines) if !engines.is_empty() && engines.iter().all(|engine| judge::keeps_rows(engine)) => {
                match self.copies(cluster, &engines).await? {
                    Some(copies) => return Ok(Ask::Behind(Box::new(behind), copies)),
                    None => format!("the shards of cluster {cluster} have different numbers of replicas"),
                }
            }
            Ok(engines) => format!("the tables behind it have engines {engines:?}"),
            Err(SinkError::Transient(reason)) => return Err(SinkError::Transient(reason)),
            Err(error) => error.to_string(),
        };
        warn!("cannot ask table {path} which rows it has ({reason}): {tokens}");
        Ok(Ask::Never)
    }

    /// The number of servers of each shard to which a Distributed table writes a row itself: more than one where
    /// `internal_replication` is off and the tables behind it do not replicate. `None` if the shards differ in it.
    async fn copies(&self, cluster: &str, engines: &[String]) -> Result<Option<usize>, SinkError> {
        if engines.iter().any(|engine| judge::is_replicated(engine)) {
            return Ok(Some(1));
        }
        let sql = format!(
            "SELECT DISTINCT if(any(internal_replication) = 1, 1, uniqExact(host_address, port)) FROM system.clusters \
             WHERE cluster = {} GROUP BY shard_num",
            schema::cluster_name(cluster)
        );
        match self.all("counting the replicas behind a table", &sql).await {
            Ok(copies) if copies.len() > 1 => Ok(None),
            Ok(copies) => Ok(copies.first().copied().or(Some(1))),
            // Older servers have no such column.
            Err(SinkError::Schema(reason)) => {
                warn!("assumes that the shards of cluster {cluster} replicate by themselves: {reason}");
                Ok(Some(1))
            }
            Err(error) => Err(error),
        }
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
        Ok(policies.first().map(|policy| Fault::new(format!(
                "row policy {policy} hides rows of table {} from this user, so that they would be sent again",
                table.path(&self.config)
            ), "exempt this user from the policy (ALTER ROW POLICY … TO ALL EXCEPT …)")))
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
                schema::cluster_name(cluster)
            );
            let shards: u64 = self.one("counting the shards behind a table", &sql).await?;
            return Ok((shards > 1).then(|| Fault::new(format!(
                    "table {} has {shards} shards and no sharding key, so that a row that is sent again can go to \
                     another shard",
                    table.path(&self.config)
                ), "create the table again with a sharding key that depends on the row alone, such as \
                       cityHash64(TraceId)")));
        }
        let terms = self.terms(sharding_key).await?;
        let sources = self.sources(Sources::of_expression(terms), table, found).await?;
        let volatile = self.volatile(sources.functions.iter()).await?;
        Ok(sources.shard_fault(&self.config, table, &volatile))
    }

    /// Checks the trace lookup table, which the view fills.
    pub(crate) async fn check_lookup(&self) -> Result<Checked, SinkError> {
        let name = schema::lookup(&self.config);
        let found = self.columns(&name).await?;
        let Some(engine) = self.engine(&name).await? else {
            return Ok(Checked::Missing);
        };
        if found.is_empty() {
            return Ok(Checked::Unfit(vec![judge::hidden(&schema::lookup_path(
                &self.config,
            ))]));
        }
        let faults = judge::lookup_faults(&self.config, &found);
        if !faults.is_empty() {
            return Ok(Checked::Unfit(faults));
        }
        let partitioning = self.lookup_partitioning(&engine, &found).await?;
        self.known(engine, partitioning).await.map(Checked::Fits)
    }

    async fn lookup_partitioning(&self, engine: &Engine, found: &[Found]) -> Result<Partitioning, SinkError> {
        match engine.partition_key.as_str() {
            _ if !judge::lands_by_partition(&engine.engine) => Ok(Partitioning::Elsewhere),
            "" => Ok(Partitioning::Whole),
            key => {
                self.partitions(&Sources::of_key(found), "Start", key, found)
                    .await
            }
        }
    }

    async fn engine(&self, table: &str) -> Result<Option<Engine>, SinkError> {
        let sql = format!(
            "SELECT engine, engine_full, partition_key, sorting_key FROM system.tables WHERE {}",
            self.about_table("name", table)
        );
        let mut engines = self.failing("reading a table's engine", self.client.rows(&sql).await)?;
        Ok(engines.pop())
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
            plan: None,
            sorting_key: None,
        })
    }

    /// Returns the inputs of a row's partition; the server parses the expressions. Returns a fault if it does not
    /// depend on the row alone.
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
        match table.time() {
            Some(time) => self.partitions(&sources, time, key, found).await.map(Ok),
            None => Ok(Ok(Partitioning::Rows { key: key.clone() })),
        }
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

    /// Returns those of the functions whose value changes between calls.
    async fn volatile(&self, functions: impl Iterator<Item = &String>) -> Result<Vec<String>, SinkError> {
        let names: Vec<&String> = functions.collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // The name of the column depends on the version.
        let names: Vec<String> = names.into_iter().map(|name| literal(name)).collect();
        let sql = format!(
            "SELECT lower(name) FROM system.functions \
             WHERE lower(name) IN ({}) AND ifNull(COLUMNS('^(is_|)deterministic$'), 1) = 0 ORDER BY 1",
            names.join(", ")
        );
        self.all("asking which functions are deterministic", &sql).await
    }

    async fn columns(&self, table: &str) -> Result<Vec<Found>, SinkError> {
        let sql = format!(
            "SELECT name, type, default_kind, default_expression, is_in_partition_key FROM system.columns WHERE {}",
            self.about_table("table", table)
        );
        self.failing("reading a table's columns", self.client.rows(&sql).await)
    }

    /// Reports whether a table, or one behind it, has materialized views.
    pub(crate) async fn has_views(&self, table: Table, ask: &Ask) -> Result<bool, SinkError> {
        let (from, database, name) = match ask {
            Ask::Behind(behind, _) => (
                all_servers(&behind.cluster, "system", "tables"),
                behind.database.as_str(),
                behind.table.as_str(),
            ),
            _ => (
                "system.tables".to_owned(),
                self.config.database.as_str(),
                table.name(&self.config),
            ),
        };
        let of = |database: &str, name: &str| {
            format!("(database = {} AND name = {})", literal(database), literal(name))
        };
        let sql = format!(
            "SELECT sum(length(dependencies_table)) FROM {from} WHERE {}",
            of(database, name)
        );
        let behind: u64 = self.one("looking for views of a table", &sql).await?;
        if behind > 0 || !matches!(ask, Ask::Behind(..)) {
            return Ok(behind > 0);
        }
        let sql = format!(
            "SELECT sum(length(dependencies_table)) FROM system.tables WHERE {}",
            of(&self.config.database, table.name(&self.config))
        );
        let before: u64 = self.one("looking for views of a table", &sql).await?;
        Ok(before > 0)
    }

    pub(super) fn about_table(&self, column: &str, table: &str) -> String {
        format!(
            "database = {} AND {column} = {}",
            literal(&self.config.database),
            literal(table)
        )
    }

    /// Asks for one value.
    async fn one<T: DeserializeOwned>(&self, what: &str, sql: &str) -> Result<T, SinkError> {
        self.failing(what, self.client.value(sql).await)
    }

    /// Asks for the values of one column.
    pub(super) async fn all<T: DeserializeOwned>(&self, what: &str, sql: &str) -> Result<Vec<T>, SinkError> {
        self.failing(what, self.client.values(sql).await)
    }

    fn failing<T>(&self, what: &str, outcome: Result<T, Error>) -> Result<T, SinkError> {
        outcome.map_err(|error| self.failed(what, &error))
    }

    /// A failed query does not refuse rows.
    fn failed(&self, what: &str, error: &Error) -> SinkError {
        self.note(error);
        match classify(&format!("{what} at {}", self.url), error) {
            SinkError::Refused(reason) => SinkError::Schema(reason),
            error => error,
        }
    }
}
