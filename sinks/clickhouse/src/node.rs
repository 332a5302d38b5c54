//! One address, checked: its server, and the tables that rows go to.

use crate::config::Config;
use crate::presence::Ask;
use crate::same::{self, Tables};
use crate::schema::ddl::Object;
use crate::schema::judge::Known;
use crate::schema::{self, Table};
use crate::server::{Checked, Named, Server};
use millpond_consumer::SinkError;
use std::sync::atomic::AtomicBool;
use tracing::info;

/// An address whose tables fit.
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) version: (u32, u32),
    pub(crate) tables: Vec<Target>,
    /// The traces' table of times, where there is one.
    pub(crate) lookup: Option<Known>,
    /// What its tables are, where there are other addresses to compare them with.
    pub(crate) same: Option<Tables>,
}

/// A table that is written to.
pub(crate) struct Target {
    pub(crate) table: Table,
    pub(crate) insert: String,
    pub(crate) known: Known,
    /// It had all rows of a chunk that was sent to it.
    pub(crate) proved: AtomicBool,
}

impl Node {
    /// Connects, creates what is missing (if the settings say so), and checks the tables of the signals that are taken.
    ///
    /// # Errors
    /// `Schema` when a table does not fit, naming each column at fault with what mends it, or when the server
    /// does not let us in; `Transient` when it cannot be reached or cannot answer now.
    pub(crate) async fn open(config: &Config, url: &str, create: bool) -> Result<Self, SinkError> {
        let server = Server::connect(config.clone(), url).await?;
        let version = server.version().await?;
        let wanted = server.config.tables();
        if create {
            create_missing(&server, &wanted, version).await?;
        }
        let mut tables = Vec::with_capacity(wanted.len());
        let mut faults = Vec::new();
        for &table in &wanted {
            match server.check(table).await? {
                Checked::Fits(known) => tables.push(Target {
                    table,
                    insert: schema::insert(&server.config, table),
                    known,
                    proved: AtomicBool::new(false),
                }),
                Checked::Missing => faults.push(format!(
                    "there is no table {} at {} that the user sees: create it (`millpond tables create`, or your own as \
                     `millpond tables print` has it), or grant SELECT and INSERT on it",
                    table.path(&server.config),
                    server.url
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

    pub(crate) fn asks(&self) -> Vec<&Ask> {
        self.tables.iter().map(|target| &target.known.ask).collect()
    }
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
