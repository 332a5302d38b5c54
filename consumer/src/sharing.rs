//! Looks for other consumers of the sink's tables before this one sends anything: whoever starts a second consumer with the
//! settings of the first would have every record twice. `millpond_manifest::tables` decides. A guard for people: consumers are
//! correct without it.

use crate::claim::Claim;
use crate::error::ConsumeError;
use crate::owner::{Outcome, Owned};
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::tables::Claimed;
use millpond_manifest::{Cursor, SinkTables, layout};
use millpond_runtime::{Backoff, Level};
use millpond_storage::ErrorKind;
use std::time::Duration;
use tracing::warn;

/// The pause between two looks at a consumer that starts at the same time.
const LOOK: Duration = Duration::from_millis(100);

impl Claim {
    /// The tables for the cursor that this owner opens. `fresh`: it has none yet.
    pub(crate) fn tables_for(&self, cursor: &Cursor, fresh: bool) -> SinkTables {
        let ours = SinkTables {
            tables: self.tables.clone(),
            unchecked: false,
            shared: self.share_tables,
        };
        let changes = fresh || cursor.tables.unchecked || ours.adds_to(&cursor.tables);
        SinkTables {
            unchecked: changes && !self.share_tables && !ours.tables.is_empty(),
            // They were shared when the cursor was made.
            shared: self.share_tables || (!changes && cursor.tables.shared),
            ..ours
        }
    }

    /// Fails if another consumer writes to one of these tables. Returns whether another one that starts at the same time still
    /// looks, so that this one has to look again.
    ///
    /// # Errors
    /// `SharedTables`, and for a damaged object of the buffer.
    pub(crate) async fn look_for_others(
        &self,
        tables: &SinkTables,
        opened: bool,
    ) -> Result<bool, ConsumeError> {
        let others = self.other_cursors().await?;
        match tables.claim(&self.consumer, &others, opened, self.environment.now_ms()) {
            Claimed::Free => Ok(false),
            Claimed::Wait(_) => Ok(true),
            Claimed::Taken(other, table) => Err(ConsumeError::SharedTables {
                consumer: self.consumer.clone(),
                other: other.consumer.clone(),
                table: table.name.clone(),
            }),
        }
    }

    /// The readable cursors of the shard. Waits for the store for as long as it takes.
    async fn other_cursors(&self) -> Result<Vec<Cursor>, ConsumeError> {
        let folder = layout::consumers(self.shard);
        let what = format!("listing {folder}");
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            match self.list_cursors(&folder).await {
                Ok(cursors) => {
                    self.readiness.goes_on(&what);
                    return Ok(cursors);
                }
                Err(error) if error.kind() == ErrorKind::Denied => {
                    warn!("{error}: nobody looks for other consumers of the same tables");
                    self.readiness.goes_on(&what);
                    return Ok(Vec::new());
                }
                Err(error) => self.readiness.waits(&what, error, Level::Warn),
            }
            backoff.pause(&*self.environment).await;
        }
    }

    async fn list_cursors(&self, folder: &str) -> Result<Vec<Cursor>, millpond_storage::Error> {
        let mut cursors = Vec::new();
        for found in self.store.list(folder).await? {
            if !found.key.ends_with("/cursor") || found.key == self.key() {
                continue;
            }
            match cas::read::<Cursor>(&self.store, &found.key).await {
                Ok(cursor) => cursors.extend(cursor.map(|found| found.state)),
                Err(ReadError::Format { key, wrong }) => {
                    warn!("{key}: {wrong}: its consumer may write to the same tables");
                }
                Err(ReadError::Store(error)) => return Err(error),
            }
        }
        Ok(cursors)
    }

    /// Looks again now that others can see this cursor, and marks it as checked. `None`: another owner has the cursor.
    ///
    /// # Errors
    /// As [`look_for_others`](Self::look_for_others); the cursor is then as if this process had not opened it.
    pub(crate) async fn check_tables(
        &self,
        mut owned: Box<Owned>,
    ) -> Result<Option<Box<Owned>>, ConsumeError> {
        while owned.durable.state.tables.unchecked {
            match self.look_for_others(&owned.durable.state.tables, true).await {
                Ok(false) => {}
                Ok(true) => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                Err(taken) => {
                    self.give_way(*owned).await;
                    return Err(taken);
                }
            }
            let mut next = owned.durable.state.clone();
            next.tables.unchecked = false;
            next.renew(
                self.environment.now_ms(),
                u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            );
            match self.swap(owned.durable.clone(), next).await? {
                Outcome::Ours(durable) => owned.durable = *durable,
                Outcome::Fenced { .. } => return Ok(None),
                Outcome::Removed => return Err(self.removed()),
            }
        }
        Ok(Some(owned))
    }

    /// Gives the cursor back as it was found. A cursor that nothing was ever planned or acknowledged in is removed.
    async fn give_way(&self, owned: Owned) {
        if owned.durable.state.streams.is_empty() && owned.earlier.is_none() {
            return self.forgo(owned).await;
        }
        let mut next = owned.durable.state.clone();
        next.tables = owned.earlier.unwrap_or_default();
        next.release();
        if self.swap(owned.durable, next).await.is_err() {
            warn!(
                shard = self.shard,
                "the cursor could not be given back: the next owner waits for the lease"
            );
        }
    }

    /// Removes a cursor whose owner has sent nothing in this term.
    pub(crate) async fn forgo(&self, owned: Owned) {
        let mut state = owned.durable.state.clone();
        state.release();
        let mut tombstone = state.remove();
        if !owned.in_doubt && !owned.durable.state.unsettled {
            tombstone.settle();
        }
        if self.swap(owned.durable, tombstone).await.is_err() {
            warn!(
                shard = self.shard,
                "the cursor {} could not be removed", self.cursor
            );
        }
    }
}
