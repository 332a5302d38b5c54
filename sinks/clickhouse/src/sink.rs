//! The sink itself: checked tables, and requests to the server. One attempt each.

use crate::addresses::Addresses;
use crate::chunks::{self, Workspace};
use crate::client::{Client, Error};
use crate::config::{Columns, Config};
use crate::events::{EventTable, Plan};
use crate::failure::{classify, names_a_view};
use crate::node::{Node, Target};
use crate::presence::{self, Ask, Compared, Span};
use crate::recovery;
use crate::schema::judge::InDoubt;
use crate::schema::{self, Table};
use crate::sorting::Sorting;
use crate::workspaces::Workspaces;
use async_trait::async_trait;
use millpond_consumer::{
    Attempt, Batch, BatchingPolicy, Chunk, Cut, Opened, PartKeys, Presence, Programs, Record, RowId, Settled,
    Sink, SinkError, SinkTable,
};
use millpond_otlp::Signal;
use millpond_runtime::{Environment as _, SystemEnvironment, blocking};
use millpond_segment::{Encoding, Spare};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{error, info, warn};

/// The version of the mapping from messages to rows and chunks. It changes with either.
pub const SCHEMA_VERSION: u32 = 2;

/// ClickHouse as a [`Sink`].
pub struct ClickHouse {
    name: String,
    config: Config,
    pub(crate) addresses: Addresses,
    tables: Vec<SinkTable>,
    /// The plans of [`Config::event_tables`], in their order.
    plans: Vec<Arc<Plan>>,
    sorting: Arc<Sorting>,
    warned: OnceLock<()>,
    workspaces: Workspaces,
    spare: Spare,
    filtered: Family<StreamLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StreamLabel {
    stream: String,
}

impl fmt::Debug for ClickHouse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClickHouse")
            .field("name", &self.name)
            .field("url", &self.addresses.in_use().server.url)
            .finish_non_exhaustive()
    }
}

impl ClickHouse {
    /// Connects to all addresses, creates missing tables (if the settings say so), and checks the tables of the
    /// accepted signals. One address that answers is enough.
    ///
    /// # Errors
    /// `Schema` if a table does not fit, with each faulty column and its fix, if the server denies access, or if the
    /// addresses do not have the same tables; `Transient` if no server can be reached or can answer now.
    pub async fn open(config: Config) -> Result<Self, SinkError> {
        check_events(&config)?;
        let addresses = Addresses::open(config.clone()).await?;
        let targets = &addresses.in_use().tables;
        let plans: Vec<Arc<Plan>> = targets
            .iter()
            .filter_map(|target| target.known.plan.clone())
            .collect();
        for ((table, events), plan) in config.events().zip(&plans) {
            let left = &plan.left_to_server;
            if !left.is_empty() {
                info!(
                    "table {} of stream {}: the server fills {} by DEFAULT",
                    table.path(&config),
                    events.stream,
                    left.join(", ")
                );
            }
        }
        let keys = targets
            .iter()
            .filter_map(|target| Some((target.table, target.known.sorting_key.as_ref()?)));
        let sorting = Arc::new(Sorting::new(keys));
        Ok(Self {
            plans,
            sorting,
            name: name(&config),
            tables: addresses.in_use().identify().await?,
            addresses,
            config,
            warned: OnceLock::new(),
            workspaces: Workspaces::default(),
            spare: Spare::default(),
            filtered: Family::default(),
        })
    }

    /// Registers the address in use, the number of changes, and the events that programs drop.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.addresses.register_metrics(registry);
        let registry = registry.sub_registry_with_prefix("millpond_consumer");
        registry.register(
            "filtered",
            "Events that the program of their stream dropped (--transform)",
            self.filtered.clone(),
        );
        // `increase()` does not see a counter that first appears with the value 1.
        for events in &self.config.event_tables {
            drop(self.filtered(&events.stream));
        }
    }

    /// The tables that may forget a token too early under this policy, each with its remedy.
    pub fn window_warnings(&self, policy: &BatchingPolicy) -> Vec<String> {
        let in_doubt = InDoubt::of(policy);
        let config = &self.config;
        let mut warnings = BTreeSet::new();
        // Replicas of a table may have different windows.
        for node in self.addresses.checked() {
            let tables = node.tables.iter();
            let tables = tables.map(|target| (target.table.path(config), &target.known));
            let lookup = node
                .lookup
                .iter()
                .map(|known| (schema::lookup_path(config), known));
            let tables = tables.chain(lookup);
            let faults = tables.filter_map(|(path, known)| known.window_fault(config, &path, in_doubt));
            warnings.extend(faults.map(|fault| fault.to_string()));
        }
        warnings.into_iter().collect()
    }

    /// The table of a stream of events, and the way to its columns.
    pub(crate) fn event(&self, stream: &str) -> Option<(Table, &Plan)> {
        let mut events = self.config.events().zip(&self.plans);
        events.find_map(|((table, events), plan)| (events.stream == stream).then_some((table, &**plan)))
    }

    fn filtered(&self, stream: &str) -> Counter {
        let stream = stream.to_owned();
        self.filtered.get_or_create_owned(&StreamLabel { stream })
    }

    pub(crate) fn with_workspace<T>(
        &self,
        batch: &Batch,
        work: impl FnOnce(&mut Workspace) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let made = || {
            let workspace = Workspace::new()?.sorting(Arc::clone(&self.sorting));
            let workspace = workspace.sharing(self.spare.clone());
            workspace.compressing(self.config.compression)
        };
        let bytes = batch.parts.iter().map(|part| part.raw_len).sum();
        self.workspaces
            .lend(bytes, made, work)
            .map_err(|error| SinkError::Transient(format!("no memory for a zstd decompressor: {error}")))?
    }
}

/// Refuses settings of events that contradict each other.
fn check_events(config: &Config) -> Result<(), SinkError> {
    if config.event_tables.len() > EVENT_TABLES_MAX {
        return Err(SinkError::Schema(format!(
            "there are {} tables for events: a consumer takes {EVENT_TABLES_MAX}",
            config.event_tables.len()
        )));
    }
    let mut streams = BTreeSet::new();
    let mut tables: BTreeSet<&str> = Table::ALL.iter().map(|table| table.name(config)).collect();
    for EventTable { stream, table, .. } in &config.event_tables {
        // A cursor has the names of streams with programs.
        millpond_segment::check_stream_name(stream)
            .map_err(|error| SinkError::Schema(format!("the tables for events: {error}")))?;
        if Signal::of_stream(stream).is_some() {
            return Err(SinkError::Schema(format!(
                "stream {stream} is for OTLP, whose tables have options of their own: leave it out of the tables for events"
            )));
        }
        if !streams.insert(stream) {
            return Err(SinkError::Schema(format!(
                "stream {stream} has two tables for events: give it one"
            )));
        }
        if !tables.insert(table.as_str()) {
            return Err(SinkError::Schema(format!(
                "table {table} of stream {stream} has another stream: give each stream a separate table"
            )));
        }
    }
    Ok(())
}

/// As many streams of events as a shard has room for.
const EVENT_TABLES_MAX: usize = 256;

/// The end of a sink's name if its tables do not keep the identities of their rows.
const COLUMNS_NONE: &str = ";columns=none";

/// Returns true if the tables of the sink with this name keep the identities of their rows. The cursor has the name, so
/// a reset does not have to ask a server.
pub fn keeps_identities(sink: &str) -> bool {
    !sink.ends_with(COLUMNS_NONE)
}

/// The sink's name: the destination of rows, and so part of their identity. It leaves out tables with default names,
/// except that of logs.
fn name(config: &Config) -> String {
    let usual = Config::default();
    let mut name = format!("clickhouse:{}.{}", config.database, config.logs_table);
    for table in &Table::ALL[1..] {
        if table.name(config) != table.name(&usual) {
            name.push_str(&format!(",{}={}", table.key(), table.name(config)));
        }
    }
    for (_, EventTable { stream, table, .. }) in config.events() {
        name.push_str(&format!(",{stream}={table}"));
    }
    if config.columns == Columns::None {
        name.push_str(COLUMNS_NONE);
    }
    name
}

#[async_trait]
impl Sink for ClickHouse {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema_version(&self) -> u32 {
        SCHEMA_VERSION
    }

    /// As the address in use had them at the start.
    fn tables(&self) -> Vec<SinkTable> {
        self.tables.clone()
    }

    fn programs(&self) -> Programs {
        let events = self.config.event_tables.iter();
        let programs = events.filter_map(|events| {
            let transform = events.transform.as_ref()?;
            Some((events.stream.clone(), transform.hash()))
        });
        programs.collect()
    }

    fn accepts(&self, stream: &str, encoding: Encoding) -> bool {
        if encoding == Encoding::Ndjson {
            return self.event(stream).is_some();
        }
        let signal = Signal::of_stream(stream);
        encoding == Encoding::Otlp && signal.is_some_and(|signal| self.config.signals.contains(&signal))
    }

    fn chunks(
        &self,
        batch: &Batch,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError> {
        self.chunks_of(batch, Opened::default(), policy, emit)
    }

    fn chunks_of(
        &self,
        batch: &Batch,
        opened: Opened,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError> {
        self.warned.get_or_init(|| {
            for warning in self.window_warnings(policy) {
                warn!("{warning}");
            }
        });
        let now_ms = SystemEnvironment.now_us() / 1_000;
        let columns = self.config.columns;
        let filtered = self.filtered(&batch.id.stream);
        let event = self.event(&batch.id.stream).map(|(table, plan)| chunks::Event {
            table,
            plan,
            filtered,
            opened,
        });
        self.with_workspace(batch, |workspace| {
            chunks::cut(batch, policy, columns, event, now_ms, workspace, emit)
        })
    }

    fn keys(&self, batch: &Batch, paths: &[String]) -> Result<Vec<PartKeys>, SinkError> {
        self.with_workspace(batch, |workspace| chunks::keys(batch, paths, workspace))
    }

    fn open(&self, batch: &Batch, paths: &[String]) -> Result<(Vec<PartKeys>, Opened), SinkError> {
        self.with_workspace(batch, |workspace| chunks::open(batch, paths, workspace))
    }

    fn some(&self, chunk: &Chunk, rows: &[u64]) -> Chunk {
        let places: Vec<usize> = rows
            .iter()
            .map(|&row| usize::try_from(row).expect("a chunk is in memory"))
            .collect();
        let block = recovery::some(&chunk.body, &places);
        Chunk {
            index: chunk.index,
            table: chunk.table,
            rows: block.rows,
            raw_bytes: block.raw_bytes,
            body: block.body,
            received: chunk.received(rows),
        }
    }

    fn records(&self, batch: &Batch, ids: &[RowId]) -> Result<Vec<Record>, SinkError> {
        self.with_workspace(batch, |workspace| chunks::records(batch, ids, workspace))
    }

    async fn insert(&self, chunk: &Chunk, attempt: &Attempt) -> Result<(), SinkError> {
        let Attempt {
            token,
            query_id,
            first,
        } = attempt;
        let node = self.addresses.node().await;
        let target = node.target(chunk)?;
        let client = node.server.inserting.clone();
        let client = client
            .with_setting("insert_deduplication_token", token)
            .with_setting("query_id", query_id);
        // A server behind another address may have got other columns since.
        let own = self.plans.iter().zip(self.config.events());
        let planned = own.filter(|(_, (table, _))| *table == target.table);
        let planned = planned.map(|(plan, (table, _))| plan.insert(&self.config, &table.path(&self.config)));
        let insert = planned.last().unwrap_or_else(|| target.insert.clone());
        if let Err(error) = client.insert(&insert, &chunk.body).await {
            node.server.note(&error);
            let (table, rows, url) = (target.table.path(&self.config), chunk.rows, &node.server.url);
            let failed = classify(
                &format!("inserting {rows} rows into {table} as {token} at {url}"),
                &error,
            );
            return Err(node.refused_by_table(target, chunk, &error, failed).await);
        }
        if *first && !target.proved.load(Ordering::Relaxed) {
            // The rows have arrived. A server that cannot answer now does not make them doubtful; a later chunk is the
            // proof.
            match node.prove(target, token, chunk).await {
                Err(SinkError::Transient(reason)) => warn!("{reason}"),
                proved => proved?,
            }
        }
        Ok(())
    }

    async fn ready(&self) {
        self.addresses.node().await;
    }

    async fn presence(&self, source: &str, chunk: &Chunk) -> Result<Presence, SinkError> {
        let node = self.addresses.node().await;
        let target = node.target(chunk)?;
        if target.known.ask == Ask::Never {
            return Ok(Presence::Unknown);
        }
        let (rows, certain) = node.lacks(target, source, chunk).await?;
        Ok(Presence::Lacks { rows, certain })
    }

    async fn complete(&self, source: &str, chunk: &Chunk) -> Result<(), SinkError> {
        let node = self.addresses.node().await;
        let target = node.target(chunk)?;
        if target.table != Table::Traces || node.lookup.is_none() || target.known.ask == Ask::Never {
            return Ok(());
        }
        let span = Span::new(target.table, chunk, &ticks(target.table, chunk).await);
        node.server
            .complete_lookup(&target.known.ask, source, &span)
            .await
    }

    fn attempt_max(&self) -> Duration {
        Duration::from_secs(self.config.timeout_seconds)
    }

    async fn end_requests(&self, of: &str) {
        let node = self.addresses.node().await;
        let asks = node.asks();
        // A statement for a cluster waits for every server of it.
        if asks.iter().all(|ask| **ask == Ask::Here) && self.config.cluster.is_none() {
            // If they cannot be ended now, the table's window must suffice.
            let _ = node.server.settle(&asks, of, None, &[]).await;
        }
    }

    async fn settle(&self, of: &str, spared: Option<&str>) -> Result<Settled, SinkError> {
        let node = self.addresses.node().await;
        let others = self.addresses.others(&node.server.url);
        let others: Vec<&Client> = others.map(|address| &address.client).collect();
        node.server.settle(&node.asks(), of, spared, &others).await
    }
}

impl Node {
    fn target(&self, chunk: &Chunk) -> Result<&Target, SinkError> {
        let found = self
            .tables
            .iter()
            .find(|target| target.table.number() == chunk.table);
        found.ok_or_else(|| SinkError::Schema(format!("there is no table number {}", chunk.table)))
    }

    /// Returns the places of the rows that the chunk's table lacks, and whether this holds for all replicas. Leaves out
    /// rows that the table's TTL removes. A row that only some replicas have is lacking, but not certainly: a token
    /// other than the first would store it twice.
    async fn lacks(
        &self,
        target: &Target,
        source: &str,
        chunk: &Chunk,
    ) -> Result<(Vec<u64>, bool), SinkError> {
        let Target { table, known, .. } = target;
        let times = ticks(*table, chunk).await;
        let span = Span::new(*table, chunk, &times);
        let (there, certain) = self.server.there(*table, &known.ask, source, &span).await?;
        let Compared {
            mut lacks,
            partial,
            repeated,
        } = presence::compare(chunk, there, known.ask.copies());
        for (sequence, rows) in repeated {
            let table = table.path(&self.server.config);
            error!("table {table} has {rows} surplus rows of sequence {sequence} of {source}");
        }
        if let Some(ttl) = known.ttl.as_ref().filter(|_| !lacks.is_empty()) {
            let time = |row: &u64| times[usize::try_from(*row).expect("a chunk is in memory")];
            let expired = self.server.expired(ttl, lacks.iter().map(time).collect()).await?;
            lacks.retain(|row| !expired.contains(&time(row)));
        }
        Ok((lacks, certain && !partial))
    }

    /// Turns a refusal into a schema fault if a view behind the table refused the rows, because then the table has
    /// them.
    ///
    /// The rows decide and not the text, which may quote them: a record that claims to come from a view would otherwise
    /// cause endless retries. The text counts only if views exist and no server can be asked for the rows.
    async fn refused_by_table(
        &self,
        target: &Target,
        chunk: &Chunk,
        error: &Error,
        failed: SinkError,
    ) -> SinkError {
        let SinkError::Refused(reason) = failed else {
            return failed;
        };
        let ask = &target.known.ask;
        match self.server.has_views(target.table, ask).await {
            Ok(false) => return SinkError::Refused(reason),
            Err(SinkError::Transient(unasked)) => {
                return SinkError::Transient(format!("{reason}; {unasked}"));
            }
            // A user who may not read system.tables may have views.
            Ok(true) | Err(_) => {}
        }
        let source = recovery::source(&chunk.body).filter(|_| *ask != Ask::Never);
        if let Some(source) = source {
            match self.lacks(target, &source, chunk).await {
                Ok((rows, _)) if rows.is_empty() => return SinkError::Schema(reason),
                Ok((_, true)) => return SinkError::Refused(reason),
                Err(SinkError::Transient(unasked)) => {
                    return SinkError::Transient(format!("{reason}; {unasked}"));
                }
                Ok((_, false)) | Err(_) => {}
            }
        }
        if names_a_view(error) {
            SinkError::Schema(reason)
        } else {
            SinkError::Refused(reason)
        }
    }

    /// Checks once for each table that it has the rows of a chunk that it has just taken.
    async fn prove(&self, target: &Target, token: &str, chunk: &Chunk) -> Result<(), SinkError> {
        if target.known.ask != Ask::Never
            && let Some(source) = recovery::source(&chunk.body)
        {
            let (rows, certain) = self.lacks(target, &source, chunk).await?;
            if certain && !rows.is_empty() {
                return Err(SinkError::Schema(format!(
                    "table {} has taken {} rows as {token} and lacks {} of them: a row policy hides them, or something \
                     deletes or merges rows",
                    target.table.path(&self.server.config),
                    chunk.rows,
                    rows.len()
                )));
            }
        }
        target.proved.store(true, Ordering::Relaxed);
        Ok(())
    }
}

async fn ticks(table: Table, chunk: &Chunk) -> Vec<i64> {
    let chunk = chunk.clone();
    blocking::compute(&SystemEnvironment, move || presence::ticks(table, &chunk)).await
}
