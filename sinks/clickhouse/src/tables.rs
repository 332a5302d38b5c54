//! Operations on the tables alone: print their DDL, create them on a server, or inspect them.

use crate::config::{Config, Indexes};
use crate::node::{Node, Target};
use crate::presence::Ask;
use crate::schema::ddl::{Object, TEXT_INDEXES};
pub use crate::schema::judge::Fault;
use crate::server::{Checked, Needs, Server};
use millpond_consumer::SinkError;
use millpond_runtime::{Environment as _, SystemEnvironment};
use std::fmt::Write as _;
use std::time::Duration;

/// The state of a database, a table or a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its kind and its full, quoted name.
    pub what: String,
    /// True if writing requires it. The trace lookup table is optional.
    pub needed: bool,
    /// Its state.
    pub state: State,
    /// A deduplication window that is too small for the default batching settings: the table fits, and a consumer warns.
    pub window: Option<Fault>,
}

/// How a database, a table or a view is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was missing and has just been created.
    Created,
    /// It exists and fits.
    Fits,
    /// It does not exist.
    Missing,
    /// It exists, but these faults prevent writing to it.
    Unfit(Vec<Fault>),
}

/// A script that creates the database and the tables of the consumed signals. It contacts no server, so
/// [`Indexes::Exporter`] means the indexes for servers since 26.2.
pub fn script(config: &Config) -> String {
    let mut script = String::new();
    if config.indexes == Indexes::Exporter {
        let (major, minor) = TEXT_INDEXES;
        let _ = writeln!(
            script,
            "-- For ClickHouse {major}.{minor} and later; an older one has no text indexes (--indexes bloom).\n"
        );
    }
    for object in Object::all(&config.tables()) {
        if let Some(sql) = object.create(config, TEXT_INDEXES) {
            let _ = writeln!(script, "{sql};\n");
        }
    }
    script.truncate(script.trim_end().len());
    script.push('\n');
    script
}

/// Makes what is missing at each address (on a cluster, on whichever of its servers), and looks at everything.
///
/// # Errors
/// `Transient` when a server cannot be reached or cannot answer now, `Schema` when it does not let us in or does not take the DDL, or
/// when the tables would not be replicas of each other.
pub async fn create(config: Config) -> Result<Vec<Report>, SinkError> {
    let mut reports = Vec::new();
    for url in &config.urls {
        let server = Server::connect(config.clone(), url).await?;
        let version = server.version().await?;
        let objects = Object::all(&config.tables());
        let there = server.existing(&objects).await?;
        let missing: Vec<Object> = objects
            .iter()
            .copied()
            .filter(|object| config.cluster.is_some() || !there.contains(object))
            .collect();
        server.create(&missing, version).await?;
        let mut here = look_at_all(&server, &objects).await?;
        for (report, object) in here.iter_mut().zip(&objects) {
            if !there.contains(object) && report.state == State::Fits {
                report.state = State::Created;
            }
        }
        if config.has_several_urls() {
            for report in &mut here {
                report.what = format!("{} at {}", report.what, server.url);
            }
        }
        reports.extend(here);
    }
    Ok(reports)
}

/// Looks at everything at the first address; makes nothing.
///
/// # Errors
/// As [`create`].
pub async fn inspect(config: Config) -> Result<Vec<Report>, SinkError> {
    let url = config.urls.first().cloned().unwrap_or_default();
    let server = Server::connect(config, &url).await?;
    server.version().await?;
    let objects = Object::all(&server.config.tables());
    look_at_all(&server, &objects).await
}

/// A server whose tables fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its address without parameters.
    pub url: String,
    /// Its version.
    pub version: (u32, u32),
    /// How far its clock is ahead of this machine's, in milliseconds.
    pub clock_ms: i64,
    /// Why it is not certain which rows a table has, for each table of which it is not.
    pub uncertain: Vec<String>,
}

/// The longest that a replica may take to catch up before that is worth a word.
const CAUGHT_UP: Duration = Duration::from_secs(10);

/// Looks at the server at the first address, whose tables must be there and fit.
///
/// # Errors
/// As [`create`].
pub async fn look(config: Config) -> Result<Seen, SinkError> {
    let url = config.urls.first().cloned().unwrap_or_default();
    let Node {
        server,
        version,
        tables,
        ..
    } = Node::open(&config, &url, false).await?;
    let before = SystemEnvironment.now_us();
    let theirs = server.now_ms().await?;
    let after = SystemEnvironment.now_us();
    // The server looked at its clock between the two, at an unknown time.
    let ours_ms = (before + (after - before).max(0) / 2) / 1_000;
    let mut uncertain = Vec::new();
    for Target { table, known, .. } in tables {
        if known.ask == Ask::Never {
            continue;
        }
        let path = table.path(&config);
        match tokio::time::timeout(CAUGHT_UP, server.is_certain(table, &known.ask)).await {
            Ok(certain) => {
                if !certain? {
                    uncertain.push(format!(
                        "it is not certain which rows the replica of {path} at {} lacks",
                        server.url
                    ));
                }
            }
            Err(_) => uncertain.push(format!(
                "the replica of {path} at {} has not caught up within {} s",
                server.url,
                CAUGHT_UP.as_secs()
            )),
        }
    }
    Ok(Seen {
        url: server.url.clone(),
        version,
        clock_ms: theirs - ours_ms,
        uncertain,
    })
}

/// What an existing table needs to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The server's address, without parameters.
    pub url: String,
    /// The table's kind and its full, quoted name.
    pub what: String,
    /// ALTER statements.
    pub statements: Vec<String>,
    /// What no ALTER can change.
    pub manual: Vec<Fault>,
}

/// The result of [`migrate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Each table that needed something.
    pub tables: Vec<Migration>,
    /// Tables that do not exist, with their addresses.
    pub missing: Vec<String>,
    /// What tables still need after the statements ran; empty in a dry run.
    pub left: Vec<Migration>,
}

/// Makes existing tables fit, at each address: adds missing columns, changes types, widens deduplication windows. Existing rows stay as
/// they are and get no identity. A dry run executes nothing.
///
/// # Errors
/// As [`create`].
pub async fn migrate(config: Config, dry_run: bool) -> Result<Migrated, SinkError> {
    let mut migrated = Migrated::default();
    for url in &config.urls {
        let server = Server::connect(config.clone(), url).await?;
        server.version().await?;
        let (tables, missing) = needs(&server).await?;
        migrated.missing.extend(missing);
        if !dry_run {
            for Migration { what, statements, .. } in &tables {
                for statement in statements {
                    server.run(&format!("changing {what}"), statement).await?;
                }
            }
            if !tables.is_empty() {
                migrated.left.extend(needs(&server).await?.0);
            }
        }
        migrated.tables.extend(tables);
    }
    Ok(migrated)
}

/// The tables of a server that need something, and those that do not exist.
async fn needs(server: &Server) -> Result<(Vec<Migration>, Vec<String>), SinkError> {
    let (mut needing, mut missing) = (Vec::new(), Vec::new());
    for object in Object::all(&server.config.tables()) {
        let what = object.title(&server.config);
        match server.needs(object).await? {
            Some(Needs { statements, manual }) if !(statements.is_empty() && manual.is_empty()) => needing
                .push(Migration {
                    url: server.url.clone(),
                    what,
                    statements,
                    manual,
                }),
            None if matches!(object, Object::Table(_)) => missing.push(format!("{what} at {}", server.url)),
            Some(_) | None => {}
        }
    }
    Ok((needing, missing))
}

async fn look_at_all(server: &Server, objects: &[Object]) -> Result<Vec<Report>, SinkError> {
    let there = server.existing(objects).await?;
    let mut reports = Vec::with_capacity(objects.len());
    for object in objects {
        let checked = match object {
            Object::Table(table) => Some(server.check(*table).await?),
            Object::Lookup => Some(server.check_lookup().await?),
            Object::Database | Object::View => None,
        };
        let state = match checked {
            Some(Checked::Fits(_)) => State::Fits,
            Some(Checked::Unfit(faults)) => State::Unfit(faults),
            None if there.contains(object) => State::Fits,
            Some(Checked::Missing) | None => State::Missing,
        };
        let window = match &state {
            State::Fits => server.window(*object).await?,
            _ => None,
        };
        reports.push(Report {
            window,
            what: object.title(&server.config),
            needed: !matches!(object, Object::Lookup | Object::View),
            state,
        });
    }
    Ok(reports)
}
