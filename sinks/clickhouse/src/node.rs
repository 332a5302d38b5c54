//! One checked address: its server, and the tables for rows.

use crate::config::Config;
use crate::presence::Ask;
use crate::same::{self, Tables};
use crate::schema::ddl::Object;
use crate::schema::judge::Known;
use crate::schema::{self, Table};
use crate::server::{Checked, Named, Server};
use crate::unfit::Unfit;
use millpond_consumer::{SinkError, SinkTable};
use std::sync::atomic::AtomicBool;
use tracing::info;

/// An address whose tables fit.
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) version: (u32, u32),
    pub(crate) tables: Vec<Target>,
    /// The trace lookup table, if there is one.
    pub(crate) lookup: Option<Known>,
    /// The properties of its tables, to compare with those at other addresses.
    pub(crate) same: Option<Tables>,
}

/// A table that the sink writes to.
pub(crate) struct Target {
    pub(crate) table: Table,
    pub(crate) insert: String,
    pub(crate) known: Known,
    /// True if the table had all rows of a chunk that it was sent.
    pub(crate) proved: AtomicBool,
}

impl Node {
    /// Connects, creates missing tables (if the settings say so), and checks the tables of the accepted signals.
    ///
    /// # Errors
    /// `Schema` if a table does not fit, with each faulty column and its fix, or if the server denies access;
    /// `Transient` if the server cannot be reached or cannot answer now.
    pub(crate) async fn open(config: &Config, url: &str, create: bool) -> Result<Self, SinkError> {
        let server = Server::connect(config.clone(), url).await?;
        let version = server.version().await?;
        let wanted = server.config.tables();
        if create {
            create_missing(&server, &wanted, version).await?;
        }
        let mut tables = Vec::with_capacity(wanted.len());
        let mut unfit = Unfit::default();
        for &table in &wanted {
            match server.check(table).await? {
                Checked::Fits(Known {
                    ask: Ask::Denied(reason),
                    ..
                }) => return Err(denied(&table.path(&server.config), &reason)),
                Checked::Fits(known) => tables.push(Target {
                    table,
                    insert: schema::insert(&server.config, table),
                    known,
                    proved: AtomicBool::new(false),
                }),
                Checked::Missing => unfit.missing.push(table.path(&server.config)),
                Checked::Unfit(faults) => unfit.faults.push((table.path(&server.config), faults)),
            }
        }
        let mut lookup = None;
        if wanted.contains(&Table::Traces) {
            match server.check_lookup().await? {
                Checked::Fits(known) => lookup = Some(known),
                Checked::Missing => {}
                Checked::Unfit(faults) => unfit.faults.push((schema::lookup_path(&server.config), faults)),
            }
        }
        if let Some(summary) = unfit.summary(&server.url) {
            return Err(SinkError::Schema(summary));
        }
        let names: Vec<String> = wanted.iter().map(|table| table.path(&server.config)).collect();
        let mut node = Node {
            server,
            version,
            tables,
            lookup,
            same: None,
        };
        if config.has_several_urls() {
            node.same = Some(node.describe().await?);
        }
        info!(
            tables = %names.join(", "),
            address = %node.server.url,
            server = %format!("{}.{}", version.0, version.1),
            "the tables fit"
        );
        Ok(node)
    }

    async fn describe(&self) -> Result<Tables, SinkError> {
        let config = &self.server.config;
        let targets = self.tables.iter().map(|target| Named {
            path: target.table.path(config),
            name: target.table.name(config).to_owned(),
            known: &target.known,
        });
        let lookup = self.lookup.iter().map(|known| Named {
            path: schema::lookup_path(config),
            name: schema::lookup(config),
            known,
        });
        let tables = self
            .server
            .tables(&targets.chain(lookup).collect::<Vec<_>>())
            .await?;
        match same::alone(&self.server.url, &tables) {
            Some(fault) => Err(SinkError::Schema(fault)),
            None => Ok(tables),
        }
    }

    /// The tables that rows go to, for other consumers of them.
    pub(crate) async fn identify(&self) -> Result<Vec<SinkTable>, SinkError> {
        let config = &self.server.config;
        let targets = self.tables.iter();
        let named: Vec<(&str, &Known)> = targets
            .map(|target| (target.table.name(config), &target.known))
            .collect();
        let identities = self.server.identities_of(&named).await?;
        let tables = named.iter().zip(identities);
        let table = |((name, _), identities): (&(&str, &Known), _)| {
            SinkTable::new(&format!("{}.{name}", config.database), identities)
        };
        Ok(tables.map(table).collect())
    }

    pub(crate) fn asks(&self) -> Vec<&Ask> {
        self.tables.iter().map(|target| &target.known.ask).collect()
    }
}

/// A reset would store every row twice, and nobody reads a warning at the start by then.
fn denied(path: &str, reason: &str) -> SinkError {
    SinkError::Schema(format!(
        "the user has no right to ask the servers behind table {path} which rows they have, so a reset would store every row twice: {reason}"
    ))
}

async fn create_missing(server: &Server, wanted: &[Table], version: (u32, u32)) -> Result<(), SinkError> {
    let objects = Object::all(wanted);
    let there = server.existing(&objects).await?;
    let missing: Vec<Object> = objects
        .into_iter()
        .filter(|object| !there.contains(object))
        .collect();
    server.create(&missing, version).await
}
