//! Asks for the sink's tables before this process opens any cursor: whoever starts a second consumer with the settings of the
//! first would have every record twice. `millpond_manifest::admission` decides each step. A guard for people: consumers are
//! correct without it.

use crate::claim::Claim;
use crate::error::ConsumeError;
use crate::shard::{Admitted, Shard};
use millpond_manifest::admission::{Request, Sight, Stage, Step, look};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::{Cursor, SinkTable, layout};
use millpond_runtime::{Backoff, Level};
use millpond_storage::ErrorKind;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;

/// The pause between two looks at a consumer that asks for the same tables.
const LOOK: Duration = Duration::from_millis(100);

/// The time that a stopping process takes at most to withdraw its claim.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// An attempt to get tables.
struct Attempt<'a> {
    shard: &'a Shard,
    cursor: Option<Snapshot<Cursor>>,
    /// This process made the cursor.
    begins: bool,
    /// The last look that found nobody.
    free: Option<Stage>,
    /// The id of the claim that this process made or shares.
    claimed: Option<u64>,
}

impl Shard {
    /// Waits until the consumer has the tables of its sink. `None`: the shutdown came first.
    ///
    /// # Errors
    /// `SharedTables` if another consumer has one of them, and for a damaged object of the buffer.
    pub(crate) async fn ask_for_tables(&self) -> Result<Option<Admitted>, ConsumeError> {
        let told = self.claim.tables.iter().any(|table| !table.identities.is_empty());
        if self.config.repair.is_some() || !told {
            return Ok(Some(Admitted::Unasked));
        }
        let mut attempt = Attempt {
            shard: self,
            cursor: None,
            begins: false,
            free: None,
            claimed: None,
        };
        let asked = tokio::select! {
            biased;
            asked = attempt.ask() => Some(asked),
            () = self.shutdown.cancelled() => None,
        };
        if !matches!(asked, Some(Ok(()))) && timeout(LAST_WORDS, attempt.withdraw()).await.is_err() {
            warn!("the claim to the tables could not be withdrawn: others wait until it expires");
        }
        self.claim.readiness.goes_on(&self.claim.tables_wait());
        let admitted = if attempt.begins {
            Admitted::Begins
        } else {
            Admitted::Continues
        };
        asked.map_or(Ok(None), |asked| asked.map(|()| Some(admitted)))
    }
}

impl Attempt<'_> {
    async fn ask(&mut self) -> Result<(), ConsumeError> {
        let claim = &self.shard.claim;
        self.read().await?;
        loop {
            let request = Request {
                tables: &claim.tables,
                share: claim.share_tables,
                now_ms: claim.environment.now_ms(),
                lease_ms: u64::try_from(claim.lease.as_millis()).unwrap_or(u64::MAX),
                id: claim.environment.random(),
                policy: &claim.policy,
            };
            match self.known().admission(&request, self.free) {
                Step::Admitted => return Ok(()),
                Step::Swap(next) => self.swap(*next).await?,
                Step::Look(stage, tables) => self.look(stage, &tables).await?,
                Step::Wait(until_ms) => {
                    claim
                        .waits_for_tables("another process of this consumer asks for other tables", until_ms);
                    tokio::time::sleep(LOOK).await;
                    self.read().await?;
                }
            }
        }
    }

    fn known(&self) -> Cursor {
        let claim = &self.shard.claim;
        match &self.cursor {
            Some(found) => found.state.clone(),
            None => Cursor::unborn(
                claim.buffer_id,
                claim.shard,
                &claim.consumer,
                claim.policy.clone(),
            ),
        }
    }

    /// Returns true if the consumer has a cursor that is no tombstone.
    fn has_cursor(&self) -> bool {
        let found = self.cursor.as_ref();
        found.is_some_and(|found| !found.state.is_removed())
    }

    async fn read(&mut self) -> Result<(), ConsumeError> {
        let claim = &self.shard.claim;
        let had_cursor = self.has_cursor();
        self.cursor = claim.read().await?;
        if let Some(found) = &self.cursor {
            claim.check_buffer(&found.state)?;
        }
        if had_cursor && !self.has_cursor() {
            return Err(claim.removed());
        }
        Ok(())
    }

    async fn swap(&mut self, mut next: Cursor) -> Result<(), ConsumeError> {
        let claim = &self.shard.claim;
        let begins = !self.has_cursor() && !next.is_removed();
        if begins {
            let log = self.shard.read_log().await?;
            next.start = self
                .shard
                .first_sequence(log.as_ref().map(|log| &log.state), false)
                .await?;
        }
        self.claimed = next
            .tables
            .claim
            .as_ref()
            .map_or(self.claimed, |claim| Some(claim.id));
        let next = next.stamped(claim.environment.random());
        let ours = next.stamp;
        let version = self.cursor.as_ref().map(|found| found.version.clone());
        match cas::swap(&claim.store, &claim.key(), version.as_ref(), next).await {
            Swap::Committed(snapshot) => self.cursor = Some(snapshot),
            Swap::Mismatch => {
                claim.metrics.cursor_conflicts.inc();
                self.read().await?;
            }
            Swap::Unknown(error) => {
                claim.metrics.cursor_unknown.inc();
                claim.readiness.waits(&claim.tables_wait(), error, Level::Warn);
                self.read().await?;
            }
        }
        let found = self.cursor.as_ref();
        self.begins |= begins && found.is_some_and(|found| found.state.stamp == ours);
        Ok(())
    }

    async fn look(&mut self, stage: Stage, tables: &[SinkTable]) -> Result<(), ConsumeError> {
        let claim = &self.shard.claim;
        if let Stage::Claimed(id) | Stage::Firm(id) = stage {
            self.claimed = Some(id);
        }
        let others = claim.other_cursors().await?;
        match look(
            &claim.consumer,
            stage,
            tables,
            &others,
            claim.environment.now_ms(),
        ) {
            Sight::Free => self.free = Some(stage),
            Sight::Wait(other, table, until_ms) => {
                let reason = format!("consumer {} asks for table {} too", other.consumer, table.name);
                claim.waits_for_tables(&reason, until_ms);
                tokio::time::sleep(LOOK).await;
                self.read().await?;
            }
            Sight::Taken(other, table) => {
                return Err(ConsumeError::SharedTables {
                    consumer: claim.consumer.clone(),
                    other: other.consumer.clone(),
                    table: table.name.clone(),
                    asks: !table.is_among(&other.tables.tables),
                });
            }
        }
        Ok(())
    }

    /// Withdraws the claim, if it still stands and this process made or shares it.
    async fn withdraw(&mut self) {
        let Some(id) = self.claimed else { return };
        while self.read().await.is_ok() {
            let known = self.known();
            if known.tables.claim.as_ref().is_none_or(|claim| claim.id != id)
                || self.swap(known.without_claim()).await.is_err()
            {
                return;
            }
        }
    }
}

impl Claim {
    fn tables_wait(&self) -> String {
        format!("tables of consumer {}", self.consumer)
    }

    fn waits_for_tables(&self, reason: &str, until_ms: u64) {
        let left = until_ms.saturating_sub(self.environment.now_ms()).div_ceil(1_000);
        let reason = format!("{reason}: it has them, gives up, or is ignored in {left} s at the latest");
        self.readiness.waits(&self.tables_wait(), reason, Level::Warn);
    }

    /// The readable cursors of other consumers in the shard. Waits for the store for as long as it takes.
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
}
