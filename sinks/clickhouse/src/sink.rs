//! The sink itself: checked tables, and requests to the server. One attempt each.

use crate::chunks::{self, Workspace};
use crate::config::{Columns, Config};
use crate::failure::classify;
use crate::recovery;
use crate::schema::ddl::Object;
use crate::schema::judge::{InDoubt, Known};
use crate::schema::{self, Table};
use crate::server::{Checked, Server};
use async_trait::async_trait;
use bytes::Bytes;
use clickhouse::{Client, Compression};
use millpond_consumer::{Batch, BatchId, Chunk, Cut, Found, Record, Rule, Sink, SinkError, piece};
use millpond_otlp::Signal;
use millpond_segment::Encoding;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::{debug, info, warn};

/// The version of the mapping from messages to rows and chunks. Changed with either.
pub const SCHEMA_VERSION: u32 = 1;

/// What makes one INSERT one block under one token, whatever the server's defaults are
/// (`design/clickhouse-sink.md` has the reason of each).
const PINNED: [(&str, &str); 10] = [
    ("async_insert", "0"),
    ("insert_deduplicate", "1"),
    ("insert_distributed_sync", "1"),
    ("deduplicate_blocks_in_dependent_materialized_views", "1"),
    ("max_insert_block_size", "1048449"),
    ("min_insert_block_size_rows", "0"),
    ("min_insert_block_size_bytes", "0"),
    ("max_insert_threads", "1"),
    ("max_partitions_per_insert_block", "0"),
    ("wait_end_of_query", "1"),
];

/// ClickHouse as a [`Sink`].
pub struct ClickHouse {
    name: String,
    inserting: Client,
    server: Server,
    tables: Vec<Target>,
    /// The traces' table of times, where there is one.
    lookup: Option<Known>,
    warned: OnceLock<()>,
    workspaces: Mutex<Vec<Workspace>>,
}

/// A table that is written to.
struct Target {
    table: Table,
    insert: String,
    known: Known,
}

impl fmt::Debug for ClickHouse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClickHouse")
            .field("name", &self.name)
            .field("url", &self.server.config.url)
            .finish_non_exhaustive()
    }
}

impl ClickHouse {
    /// Connects, creates what is missing (if the settings say so), and checks the tables of the signals that are taken.
    ///
    /// # Errors
    /// `Schema` when a table does not fit, naming each column at fault with what mends it, or when the server
    /// does not let us in; `Transient` when it cannot be reached or cannot answer now.
    pub async fn open(config: Config) -> Result<Self, SinkError> {
        let server = connect(config)?;
        let version = server.version().await?;
        let wanted = server.config.tables();
        if server.config.create {
            let objects = Object::all(&wanted);
            let there = server.existing(&objects).await?;
            let missing: Vec<Object> = objects
                .into_iter()
                .filter(|object| !there.contains(object))
                .collect();
            server.create(&missing, version).await?;
        }
        let mut tables = Vec::with_capacity(wanted.len());
        let mut faults = Vec::new();
        for &table in &wanted {
            match server.check(table).await? {
                Checked::Fits(known) => tables.push(Target {
                    table,
                    insert: schema::insert(&server.config, table),
                    known,
                }),
                Checked::Missing => faults.push(format!(
                    "there is no table {}: make it (`millpond tables create`, or of your own as `millpond tables print` \
                     has it)",
                    table.path(&server.config)
                )),
                Checked::Unfit(found) => faults.extend(found.iter().map(ToString::to_string)),
            }
        }
        let mut lookup = None;
        if wanted.contains(&Table::Traces) {
            match server.check_lookup().await? {
                Checked::Fits(known) => lookup = Some(known),
                Checked::Missing => {}
                Checked::Unfit(found) => faults.extend(found.iter().map(ToString::to_string)),
            }
        }
        if !faults.is_empty() {
            return Err(SinkError::Schema(faults.join("; ")));
        }
        let names: Vec<String> = wanted.iter().map(|table| table.path(&server.config)).collect();
        info!(tables = %names.join(", "), server = %format!("{}.{}", version.0, version.1), "the tables fit");
        Ok(Self {
            name: name(&server.config),
            inserting: inserting(server.client.clone()),
            server,
            tables,
            lookup,
            warned: OnceLock::new(),
            workspaces: Mutex::default(),
        })
    }

    /// Which tables may forget a token too early under this rule, and what mends each. Tokens times partitions
    /// can be in doubt at once: every batch in flight, at its target size.
    pub fn window_warnings(&self, rule: &Rule) -> Vec<String> {
        let chunks = rule
            .batch_records
            .div_ceil(rule.chunk_rows.max(1))
            .max(rule.batch_bytes.div_ceil(rule.chunk_bytes.max(1)))
            .max(1);
        let in_doubt = InDoubt {
            chunks: chunks.saturating_mul(rule.max_in_flight.into()),
            days: rule.max_partitions_per_chunk.into(),
        };
        let config = &self.server.config;
        let tables = self
            .tables
            .iter()
            .map(|target| (target.table.path(config), &target.known));
        let lookup = self
            .lookup
            .iter()
            .map(|known| (schema::lookup_path(config), known));
        tables
            .chain(lookup)
            .filter_map(|(path, known)| known.window_warning(config, &path, in_doubt))
            .collect()
    }

    fn target(&self, chunk: &Chunk) -> Result<&Target, SinkError> {
        let found = self
            .tables
            .iter()
            .find(|target| target.table.number() == chunk.table);
        found.ok_or_else(|| SinkError::Schema(format!("there is no table number {}", chunk.table)))
    }

    /// One INSERT of one block.
    async fn insert(&self, target: &Target, token: &str, rows: u64, body: &[Bytes]) -> Result<(), SinkError> {
        let config = &self.server.config;
        let timeout = Some(Duration::from_secs(config.timeout_seconds));
        let mut insert = self
            .inserting
            .insert_formatted_with(target.insert.clone())
            .with_timeouts(timeout, timeout)
            .with_setting("insert_deduplication_token", token);
        let failed = |error| {
            let table = target.table.path(config);
            classify(&format!("inserting {rows} rows into {table} as {token}"), &error)
        };
        for frame in body {
            insert.send(frame.clone()).await.map_err(failed)?;
        }
        insert.end().await.map_err(failed)
    }

    fn workspace(&self) -> Result<Workspace, SinkError> {
        let kept = self
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        kept.map_or_else(Workspace::new, Ok)
            .map_err(|error| SinkError::Transient(format!("no memory for a zstd decompressor: {error}")))
    }

    fn put_back(&self, workspace: Workspace) {
        let mut kept = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(workspace);
    }
}

/// A client of the server that the settings name. Nothing is sent yet.
pub(crate) fn connect(config: Config) -> Result<Server, SinkError> {
    let url = check_url(&config.url)?;
    let mut client = Client::default()
        .with_url(url)
        .with_product_info("millpond", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &config.user {
        client = client.with_user(user);
    }
    if let Some(password) = &config.password {
        client = client.with_password(password);
    }
    Ok(Server { client, config })
}

/// The sink's name: where rows go, and so part of their identity. Tables of the usual names are not named, but for
/// that of logs.
fn name(config: &Config) -> String {
    let usual = Config::default();
    let mut name = format!("clickhouse:{}.{}", config.database, config.logs_table);
    for table in &Table::ALL[1..] {
        if table.name(config) != table.name(&usual) {
            name.push_str(&format!(",{}={}", table.key(), table.name(config)));
        }
    }
    name
}

/// The client for INSERTs: the settings that must never be missing, and bodies that are compressed already.
fn inserting(client: Client) -> Client {
    PINNED
        .into_iter()
        .fold(
            client.with_compression(Compression::None),
            |client, (name, value)| client.with_setting(name, value),
        )
        .with_setting("decompress", "1")
}

/// Only what the client would report in a way that nobody understands, or would put into logs.
fn check_url(url: &str) -> Result<&str, SinkError> {
    let advice = match url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
    {
        None | Some("") => "give its HTTP interface, such as http://127.0.0.1:8123",
        Some(rest) if rest.split('/').next().is_some_and(|host| host.contains('@')) => {
            return Err(SinkError::Schema(
                "the URL of ClickHouse has a user in it: give user and password as settings of their own"
                    .to_owned(),
            ));
        }
        Some(_) => return Ok(url),
    };
    Err(SinkError::Schema(format!(
        "{url:?} is not the URL of a ClickHouse server: {advice}"
    )))
}

#[async_trait]
impl Sink for ClickHouse {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema_version(&self) -> u32 {
        SCHEMA_VERSION
    }

    fn accepts(&self, stream: &str, encoding: Encoding) -> bool {
        let signal = Signal::of_stream(stream);
        encoding == Encoding::Otlp
            && signal.is_some_and(|signal| self.server.config.signals.contains(&signal))
    }

    fn chunks(&self, batch: &Batch, rule: &Rule, emit: &mut dyn FnMut(Cut) -> bool) -> Result<(), SinkError> {
        self.warned.get_or_init(|| {
            for warning in self.window_warnings(rule) {
                warn!("{warning}");
            }
        });
        let mut workspace = self.workspace()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let outcome = chunks::cut(
            batch,
            rule,
            self.server.config.columns,
            now_ms,
            &mut workspace,
            emit,
        );
        self.put_back(workspace);
        outcome
    }

    fn piece(&self, chunk: &Chunk, rows: Range<u64>, number: u32) -> Chunk {
        let row = |row: u64| usize::try_from(row).expect("a chunk is in memory");
        let block = recovery::piece(&chunk.body, row(rows.start)..row(rows.end), number);
        Chunk {
            index: number,
            table: chunk.table,
            rows: block.rows,
            raw_bytes: block.raw_bytes,
            body: block.body,
            received: chunk.received(&rows),
        }
    }

    fn records(&self, batch: &Batch, places: &[u64]) -> Result<Vec<Record>, SinkError> {
        let mut workspace = self.workspace()?;
        let found = chunks::records(batch, places, &mut workspace);
        self.put_back(workspace);
        found
    }

    async fn write(&self, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError> {
        let target = self.target(chunk)?;
        let token = id.token(chunk.index);
        self.insert(target, &token, chunk.rows, &chunk.body).await
    }

    async fn write_again(&self, id: &BatchId, chunk: &Chunk) -> Result<Found, SinkError> {
        if self.server.config.columns == Columns::None {
            return self.write(id, chunk).await.map(|()| Found::Nothing);
        }
        // Of what a piece was cut from, part may have landed before the rest was refused.
        let numbers: Vec<u32> = piece::lineage(chunk.index).collect();
        let found = self.write_missing(id, chunk, &numbers).await?;
        if self.target(chunk)?.table == Table::Traces && self.lookup.is_some() {
            self.server.mend_lookup(id, &numbers).await?;
        }
        Ok(found)
    }
}

impl ClickHouse {
    /// Writes what its table lacks of a chunk, which has rows under these numbers, its own and of what it was cut from.
    async fn write_missing(&self, id: &BatchId, chunk: &Chunk, numbers: &[u32]) -> Result<Found, SinkError> {
        let target = self.target(chunk)?;
        let (table, token) = (target.table, id.token(chunk.index));
        self.server.catch_up(table, &target.known).await?;
        let there = self.server.rows_of(table, id, numbers).await?;
        if there == 0 {
            return self.write(id, chunk).await.map(|()| Found::Nothing);
        }
        let own = if numbers.len() == 1 {
            there
        } else {
            self.server.rows_of(table, id, &[chunk.index]).await?
        };
        if own >= chunk.rows {
            debug!("{token}: its {} rows are in the table", chunk.rows);
            return Ok(Found::All);
        }
        if !target.known.partitioning.by_time() {
            if there > own {
                return Err(SinkError::Schema(format!(
                    "{token}: {there} rows of the chunk that it is a piece of are in {}, whose partition key is not of \
                     the time alone, so that nobody can tell which: delete those of _millpond_source '{}' with \
                     _millpond_batch {} and _millpond_chunk in {numbers:?}",
                    table.path(&self.server.config),
                    id.source(),
                    id.low
                )));
            }
            warn!(
                "{token}: {there} of its {} rows are in the table, and its partition key is not of the time alone: all \
                 are sent, and what is there is recognised by the token",
                chunk.rows
            );
            return self.write(id, chunk).await.map(|()| Found::Some);
        }
        let times = self.server.times_of(table, id, numbers).await?;
        let times: HashSet<i64> = times.into_iter().collect();
        let body = chunk.body.clone();
        let missing = tokio::task::spawn_blocking(move || recovery::without(&body, table, &times));
        let (body, rows) = missing
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        if rows == 0 {
            // Somebody has deleted some rows since: a partition that is there was inserted whole.
            return Ok(Found::All);
        }
        info!(
            "{token}: some of its {} rows are in the table; sending the {rows} of the partitions that it lacks",
            chunk.rows
        );
        self.insert(target, &token, rows, &body)
            .await
            .map(|()| Found::Some)
    }
}
