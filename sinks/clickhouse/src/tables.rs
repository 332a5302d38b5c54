//! Operations on the tables alone: print their DDL, create them on a server, or inspect them.

use crate::config::{Config, Indexes};
use crate::schema::ddl::{Object, TEXT_INDEXES};
pub use crate::schema::judge::Fault;
use crate::server::{Checked, Server};
use millpond_consumer::SinkError;
use std::fmt::Write as _;

/// The state of a database, a table or a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its kind and its full, quoted name.
    pub what: String,
    /// Whether writing requires it. The trace lookup table is optional.
    pub needed: bool,
    /// Its state.
    pub state: State,
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
        let _ = writeln!(script, "{};\n", object.create(config, TEXT_INDEXES));
    }
    script.truncate(script.trim_end().len());
    script.push('\n');
    script
}

/// Creates what is missing (on a cluster, on any of its servers), and inspects everything.
///
/// # Errors
/// `Transient` if the server cannot be reached or cannot answer now, `Schema` if it denies access or rejects the DDL.
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

/// Inspects everything and creates nothing.
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
