//! The tables by themselves: their DDL in print, made on a server, or looked at there.

use crate::config::{Config, Indexes};
use crate::schema::ddl::{Object, TEXT_INDEXES};
pub use crate::schema::judge::Fault;
use crate::server::{Checked, Server};
use millpond_consumer::SinkError;
use std::fmt::Write as _;

/// Of a database, a table or a view: how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it is, and its full name, quoted.
    pub what: String,
    /// Whether nothing can be written without it: a trace's spans are there without its times.
    pub needed: bool,
    /// How it is.
    pub state: State,
}

/// How a database, a table or a view is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was missing and has just been made.
    Created,
    /// It is there and takes our rows.
    Fits,
    /// It is not there.
    Missing,
    /// It is there, and these keep us from writing to it.
    Unfit(Vec<Fault>),
}

/// Everything that makes the database and the tables of the signals that are taken, as a script. Talks to no server, so that
/// with [`Indexes::Exporter`] it is what suits a server since 26.2.
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
        let _ = writeln!(script, "{};\n", object.create(config, TEXT_INDEXES));
    }
    script.truncate(script.trim_end().len());
    script.push('\n');
    script
}

/// Makes what is missing (on a cluster, on whichever of its servers), and looks at everything.
///
/// # Errors
/// `Transient` when the server cannot be reached or cannot answer now, `Schema` when it does not let us in or does not take the DDL.
pub async fn create(config: Config) -> Result<Vec<Report>, SinkError> {
    let server = Server::connect(config).await?;
    let version = server.version().await?;
    let objects = Object::all(&server.config.tables());
    let there = server.existing(&objects).await?;
    let missing = objects
        .iter()
        .copied()
        .filter(|object| server.config.cluster.is_some() || !there.contains(object));
    server.create(&missing.collect::<Vec<_>>(), version).await?;
    let mut reports = look_at_all(&server, &objects).await?;
    for (report, object) in reports.iter_mut().zip(&objects) {
        if !there.contains(object) && report.state == State::Fits {
            report.state = State::Created;
        }
    }
    Ok(reports)
}

/// Looks at everything; makes nothing.
///
/// # Errors
/// As [`create`].
pub async fn inspect(config: Config) -> Result<Vec<Report>, SinkError> {
    let server = Server::connect(config).await?;
    server.version().await?;
    let objects = Object::all(&server.config.tables());
    look_at_all(&server, &objects).await
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
        reports.push(Report {
            what: object.title(&server.config),
            needed: !matches!(object, Object::Lookup | Object::View),
            state,
        });
    }
    Ok(reports)
}
