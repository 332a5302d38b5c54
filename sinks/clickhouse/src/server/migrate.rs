//! The statements that make an existing table fit.

use super::{Checked, Server};
use crate::schema::ddl::{Object, SEQUENCE_INDEX};
use crate::schema::judge::{self, Fault, InDoubt};
use crate::schema::{SEQUENCE, lookup, lookup_path};
use millpond_consumer::SinkError;

/// What an existing table needs.
pub(crate) struct Needs {
    /// One ALTER for the columns, and one for the deduplication window.
    pub(crate) statements: Vec<String>,
    /// What no ALTER can change.
    pub(crate) manual: Vec<Fault>,
}

impl Server {
    /// What a table or the trace lookup table needs. `None` if it does not exist.
    pub(crate) async fn needs(&self, object: Object) -> Result<Option<Needs>, SinkError> {
        let (path, checked) = match object {
            Object::Table(table) => (table.path(&self.config), self.check(table).await?),
            Object::Lookup => (lookup_path(&self.config), self.check_lookup().await?),
            Object::Database | Object::View => return Ok(None),
        };
        let faults = match checked {
            Checked::Missing => return Ok(None),
            Checked::Fits(_) => Vec::new(),
            Checked::Unfit(faults) => faults,
        };
        let (alters, manual): (Vec<Fault>, Vec<Fault>) = faults
            .into_iter()
            .partition(|fault| fault.action(&self.config, &path).is_some());
        let mut actions: Vec<String> = alters
            .iter()
            .filter_map(|fault| Some(fault.action(&self.config, &path)?.to_owned()))
            .collect();
        if self.lacks_index(object, &alters).await? {
            actions.push(format!("ADD INDEX IF NOT EXISTS {SEQUENCE_INDEX}"));
        }
        let mut statements = Vec::new();
        if !actions.is_empty() {
            statements.push(format!(
                "{}{}",
                judge::alter(&self.config, &path),
                actions.join(", ")
            ));
        }
        let window = self.window(object).await?;
        statements.extend(
            window
                .filter(|fault| fault.action(&self.config, &path).is_some())
                .map(|fault| fault.remedy),
        );
        Ok(Some(Needs { statements, manual }))
    }

    /// True if the table gets the sequence column now and its engine has skip indexes. Questions about rows use the index.
    async fn lacks_index(&self, object: Object, faults: &[Fault]) -> Result<bool, SinkError> {
        if !faults.iter().any(|fault| fault.missing == Some(SEQUENCE)) {
            return Ok(false);
        }
        let engine = self.engine(&object.name(&self.config)).await?;
        Ok(engine.is_some_and(|engine| judge::lands_by_partition(&engine.engine)))
    }

    /// A deduplication window that is too small for the default batching policy.
    pub(crate) async fn window(&self, object: Object) -> Result<Option<Fault>, SinkError> {
        let (name, path) = match object {
            Object::Table(table) => (table.name(&self.config).to_owned(), table.path(&self.config)),
            Object::Lookup => (lookup(&self.config), lookup_path(&self.config)),
            Object::Database | Object::View => return Ok(None),
        };
        let Some(engine) = self.engine(&name).await? else {
            return Ok(None);
        };
        let found = self.columns(&name).await?;
        if found.is_empty() {
            // Hidden from the user, which its check reports.
            return Ok(None);
        }
        let partitioning = match object {
            Object::Table(table) => match self.partitioning(table, &engine, &found).await? {
                Ok(partitioning) => partitioning,
                // A fault of the table, which its check reports.
                Err(_) => return Ok(None),
            },
            _ => self.lookup_partitioning(&engine, &found).await?,
        };
        let known = self.known(engine, partitioning).await?;
        let policy = millpond_consumer::Config::default().policy("", 0);
        Ok(known.window_fault(&self.config, &path, InDoubt::of(&policy)))
    }
}
