//! Asks for the sink's tables before this process opens any cursor: whoever starts a second consumer with the settings of the
//! first would have every record twice. `millpond_manifest::admission` decides each step. A guard for people: consumers are
//! correct without it.

use crate::claim::Claim;
use crate::error::ConsumeError;
use crate::reading::read_patiently;
use crate::shard::{Admitted, Shard};
use millpond_manifest::admission::{Request, Sight, Stage, Step, look};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::{Cursor, SinkTable, TableClaim, layout};
use millpond_runtime::{Backoff, Level};
use millpond_storage::ErrorKind;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;

/// The first and the longest pause between two looks at a consumer that asks for the same tables.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);

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
    /// The claims that this process waits for, by consumer, and the uptime at which it first saw each as it is.
    watched: BTreeMap<String, (TableClaim, Duration)>,
    /// As in [`Request::renewed`].
    renewed: Option<u64>,
    /// Between looks at a consumer that asks for the same tables.
    looks: Backoff,
    /// After a swap that the store refused or did not report.
    backoff: Backoff,
}

impl Shard {
    /// Waits until the consumer has the tables of its sink. `None`: the shutdown came first.
    ///
    /// # Errors
    /// `SharedTables` if another consumer has one of them, `Repair` if a repaired consumer does not write to one, and for a damaged
    /// object of the buffer.
    pub(crate) async fn ask_for_tables(&self) -> Result<Option<Admitted>, ConsumeError> {
        if self.config.repair.is_some() {
            self.claim.check_repaired_tables().await?;
            return Ok(Some(Admitted::Unasked));
        }
        if !self.claim.tells_tables() {
            return Ok(Some(Admitted::Unasked));
        }
        let mut attempt = Attempt {
            shard: self,
            cursor: None,
            begins: false,
            free: None,
            claimed: None,
            watched: BTreeMap::new(),
            renewed: None,
            looks: Backoff::new(LOOK, (self.claim.lease / 8).clamp(LOOK, LOOK_MAX)),
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
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
        if let Some(found) = &self.cursor {
            claim.check_rule_before_asking(&found.state)?;
        }
        loop {
            let request = Request {
                tables: &claim.tables,
                share: claim.share_tables,
                now_ms: claim.environment.now_ms(),
                lease_ms: u64::try_from(claim.lease.as_millis()).unwrap_or(u64::MAX),
                id: claim.environment.random(),
                renewed: self.renewed,
                policy: &claim.policy,
            };
            let mut known = self.known();
            if known.tables.claim.as_ref().map(|claim| claim.id) != self.claimed {
                self.end_unchanged(&mut known);
            }
            match known.admission(&request, self.free) {
                Step::Admitted => return Ok(()),
                Step::Swap(next) => self.swap(*next).await?,
                Step::Look(stage, tables) => self.look(stage, &tables).await?,
                Step::Wait(until_ms) => {
                    let reason = "another process of this consumer asks for other tables";
                    claim.waits_for_tables(reason, until_ms, "");
                    self.looks.pause(&*claim.environment).await;
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

    /// Ends the lease of a claim that has stood unchanged for a lease by this process's own clock: the clock that wrote it may have
    /// been days ahead. A firm claim stands all the same.
    fn end_unchanged(&mut self, other: &mut Cursor) {
        let (lease, now) = (self.shard.claim.lease, self.shard.claim.environment.uptime());
        let Some(claim) = &mut other.tables.claim else {
            self.watched.remove(&other.consumer);
            return;
        };
        match self.watched.get(&other.consumer) {
            Some((seen, since)) if seen == claim => {
                if now.saturating_sub(*since) >= lease {
                    claim.expires_at_ms = 0;
                }
            }
            _ => {
                self.watched.insert(other.consumer.clone(), (claim.clone(), now));
            }
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
            next.shards = claim.shards;
        }
        self.claimed = next
            .tables
            .claim
            .as_ref()
            .map_or(self.claimed, |claim| Some(claim.id));
        let claims = next.tables.claim.as_ref().map(|claim| claim.id);
        let next = next.stamped(claim.environment.random());
        let ours = next.stamp;
        let version = self.cursor.as_ref().map(|found| found.version.clone());
        match cas::swap(&claim.store, &claim.key(), version.as_ref(), next).await {
            Swap::Committed(snapshot) => {
                self.backoff.reset();
                self.renewed = claims;
                self.cursor = Some(snapshot);
            }
            Swap::Mismatch => {
                claim.metrics.cursor_conflicts.inc();
                self.backoff.pause(&*claim.environment).await;
                self.read().await?;
            }
            Swap::Unknown(error) => {
                claim.metrics.cursor_unknown.inc();
                claim.readiness.waits(&claim.tables_wait(), error, Level::Warn);
                self.backoff.pause(&*claim.environment).await;
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
        self.renewed = None;
        let mut others = claim.other_cursors().await?;
        for other in &mut others {
            self.end_unchanged(other);
        }
        match look(&self.known(), stage, tables, &others, claim.environment.now_ms()) {
            Sight::Free => self.free = Some(stage),
            Sight::Wait(other, table, until_ms) => {
                let other_name = &other.consumer;
                let reason = format!("consumer {other_name} asks for table {} too", table.name);
                // If the other consumer has a position, the command would remove that, too.
                let advice = match other.is_removed() {
                    true => {
                        format!("; `millpond consumer remove {other_name}` ends its claim if it is gone")
                    }
                    false => String::new(),
                };
                claim.waits_for_tables(&reason, until_ms, &advice);
                self.looks.pause(&*claim.environment).await;
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
        self.backoff.reset();
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
    /// The sink can tell its tables from others.
    fn tells_tables(&self) -> bool {
        self.tables.iter().any(|table| !table.identities.is_empty())
    }

    /// Returns true if the register in the first shard no longer gives this process its tables. An operator removes the register
    /// last, and others may have its tables from then on.
    pub(crate) async fn lost_register(&self) -> Result<bool, ConsumeError> {
        if !self.tells_tables() {
            return Ok(false);
        }
        let found = self.register().await?;
        let admits = |register: &Cursor| {
            !register.is_removed() && register.still_admits(&self.tables, self.share_tables).is_some()
        };
        Ok(!found.is_some_and(|register| admits(&register)))
    }

    pub(crate) async fn register(&self) -> Result<Option<Cursor>, ConsumeError> {
        let key = layout::cursor(0, &self.consumer);
        let found = read_patiently::<Cursor>(&self.store, &key, &self.readiness, &*self.environment).await?;
        Ok(found.map(|found| found.state))
    }

    /// Refuses a repair of tables that the consumer does not write to: every row would look missing.
    async fn check_repaired_tables(&self) -> Result<(), ConsumeError> {
        let register = self.register().await?;
        let stranger = register.as_ref().and_then(|it| it.tables.stranger(&self.tables));
        match stranger {
            Some(table) => Err(self.unrepairable(format!(
                "the consumer does not write to table {}: repair the tables of its own settings (--database). If somebody has replaced \
                 the table, start the consumer once before the repair",
                table.name
            ))),
            None => Ok(()),
        }
    }

    fn tables_wait(&self) -> String {
        format!("tables of consumer {}", self.consumer)
    }

    fn waits_for_tables(&self, reason: &str, until_ms: u64, advice: &str) {
        let left = Duration::from_millis(until_ms.saturating_sub(self.environment.now_ms()));
        // A claim that stands unchanged for longer is ignored.
        let left = left.min(self.lease).as_millis().div_ceil(1_000);
        let reason = format!("{reason}: it has them or gives up, or its claim expires in {left} s{advice}");
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
                Err(ReadError::Store(error)) if error.kind() == ErrorKind::Denied => {
                    warn!("{error}: its consumer may write to the same tables");
                }
                Err(ReadError::Store(error)) => return Err(error),
            }
        }
        Ok(cursors)
    }
}
