//! The garbage collector: the only part that deletes. A round first advances the manifest's beginning and its orphan
//! floor. Then it deletes objects that this manifest does not refer to and no later one can. A round may stop anywhere,
//! and many may run at once: the next round of any collector finishes the work.

mod members;
mod needs;
mod recognition;
mod unique;

use futures::{StreamExt, stream};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::{Buffer, Manifest, Page, PageReference, layout};
use millpond_runtime::{Environment, SystemEnvironment};
use millpond_storage::{ErrorKind, Store};
pub use needs::CURSORS_AT_A_TIME;
use needs::{KnownCursors, Needs};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use recognition::Recognized;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use ulid::Ulid;
use uuid::Uuid;

/// The settings of a garbage collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcConfig {
    /// The interval between rounds.
    pub interval: Duration,
    /// The minimum age of an unreferenced object before the collector deletes it. A producer whose segment waits longer
    /// for its commit must upload it again.
    pub grace: Duration,
    /// Trim segments that were committed longer ago than this, read or not. `None`: never.
    pub max_age: Option<Duration>,
}

/// The reasons that stop a round. The next round starts afresh.
#[derive(Debug, Error)]
pub enum CollectError {
    /// The store did not answer, or an object is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A page that the manifest refers to is missing.
    #[error("{0} is in the manifest but not in the store: nothing of this shard is deleted until it is back")]
    PageGone(String),
    /// The page differs from the one that the manifest refers to.
    #[error("{key}: {wrong}: nothing of this shard is deleted until it is back")]
    WrongPage {
        /// The page's key.
        key: String,
        /// The defect.
        wrong: millpond_manifest::log::WrongPage,
    },
    /// The manifest is that of another buffer: somebody put it in the wrong place.
    #[error("{0} is of another buffer: nothing of this shard is deleted until the right one is back")]
    OtherBuffer(String),
    /// Other writers kept changing the manifest, or the outcome of a swap is unknown.
    #[error("the manifest of shard {0:04} could not be changed; another round will try again")]
    Contended(u32),
}

impl From<millpond_storage::Error> for CollectError {
    fn from(error: millpond_storage::Error) -> Self {
        CollectError::Read(error.into())
    }
}

/// The changes of a round, or of a dry round those that it would make.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Collected {
    /// Sequences trimmed from the log.
    pub trimmed_sequences: u64,
    /// Trimmed sequences that some consumer had not read: retention dropped them.
    pub unread_sequences: u64,
    /// Segments deleted.
    pub segments: u64,
    /// Bytes of the deleted segments.
    pub bytes: u64,
    /// Pages deleted.
    pub pages: u64,
    /// Lists of processes deleted, of removed consumers.
    pub member_lists: u64,
    /// Snapshots of deduplications deleted.
    pub unique_snapshots: u64,
    /// The unreadable cursors, each as its key and the reason. A round trims their shards only by retention.
    pub unreadable_cursors: Vec<String>,
}

impl Collected {
    fn add(&mut self, other: Collected) {
        self.trimmed_sequences += other.trimmed_sequences;
        self.unread_sequences += other.unread_sequences;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.pages += other.pages;
        self.member_lists += other.member_lists;
        self.unique_snapshots += other.unique_snapshots;
        self.unreadable_cursors.extend(other.unreadable_cursors);
    }
}

/// The progress of a round over all shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// The number of shards that it has finished.
    pub shards_done: u32,
    /// The number of shards in the buffer.
    pub shards: u32,
    /// The number of objects that it has deleted.
    pub deleted: u64,
    /// The number of objects that it has found and deletes.
    pub found: u64,
}

/// Counts the steps of a round and reports each.
struct Progress<'a> {
    step: Step,
    report: &'a (dyn Fn(Step) + Sync),
}

impl Progress<'_> {
    fn moved(&mut self, change: impl FnOnce(&mut Step)) {
        change(&mut self.step);
        (self.report)(self.step);
    }
}

#[derive(Debug, Clone, Default)]
struct Metrics {
    trimmed_sequences: Counter,
    unread_sequences: Counter,
    segments: Counter,
    bytes: Counter,
    pages: Counter,
    failures: Counter,
    unreadable_cursors: Gauge,
}

/// Collects a buffer's garbage.
pub struct GarbageCollector {
    store: Store,
    config: GcConfig,
    environment: Arc<dyn Environment>,
    metrics: Metrics,
    /// The segments of each referenced page. Pages are immutable, so the collector reads each once.
    pages: HashMap<(u32, Ulid), Vec<Ulid>>,
    /// The buffer of the round.
    buffer_id: Uuid,
}

/// The maximum number of parallel deletions.
const DELETES_AT_A_TIME: usize = 16;

/// The maximum number of swaps in a round.
const SWAPS_MAX: u32 = 10;

/// The decision how far to trim the log of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trim {
    /// The new beginning of the log.
    to: u64,
    /// Some consumer needs everything from this sequence on.
    needed: u64,
}

/// Trims sequences that every consumer has read, and those that retention drops. Without consumers, only retention
/// trims. The same holds with an unreadable cursor: its consumer may need everything. Only retention trims what was committed after the
/// consumers were listed.
fn trim(log: &Manifest, needs: &Needs, committed_before_ms: Option<u64>) -> Trim {
    let known = needs.from.filter(|_| needs.unreadable.is_empty());
    let needed = known.unwrap_or(log.first_sequence);
    let too_old = committed_before_ms.map_or(log.first_sequence, |cutoff| {
        // A page gets its name after all of its segments are committed.
        let pages = log
            .pages
            .iter()
            .take_while(|page| page.page.timestamp_ms() < cutoff);
        match log.pages.get(pages.count()) {
            Some(kept) => kept.first,
            None => {
                let old = log.tail.iter().take_while(|entry| entry.committed_at_ms < cutoff);
                log.tail_start() + old.count() as u64
            }
        }
    });
    Trim {
        to: needed
            .min(needs.listed_at)
            .max(too_old)
            .clamp(log.first_sequence, log.next_sequence),
        needed,
    }
}

/// Returns the reason why a single object cannot be read, or an error that concerns the store as a whole. A store may deny one object for
/// good: a lifecycle rule has archived it, or its key for encryption is gone.
fn unreadable(error: ReadError) -> Result<String, CollectError> {
    match error {
        ReadError::Format { .. } => Ok(error.to_string()),
        ReadError::Store(denied) if denied.kind() == ErrorKind::Denied => Ok(denied.to_string()),
        ReadError::Store(error) => Err(error.into()),
    }
}

fn tell_unreadable(done: &Collected) {
    for damaged in &done.unreadable_cursors {
        warn!("a shard's log is not trimmed: {damaged}");
    }
}

impl GarbageCollector {
    /// A garbage collector whose metrics, `millpond_gc_…`, go to `registry`.
    pub fn new(store: Store, config: GcConfig, registry: &mut Registry) -> GarbageCollector {
        let metrics = Metrics::default();
        let to = registry.sub_registry_with_prefix("millpond_gc");
        let counters = [
            (
                "trimmed_sequences",
                "Sequences that left the log",
                &metrics.trimmed_sequences,
            ),
            (
                "unread_sequences",
                "Sequences that retention dropped before a consumer had read them",
                &metrics.unread_sequences,
            ),
            ("deleted_segments", "Segments deleted", &metrics.segments),
            ("deleted_bytes", "Bytes of segments deleted", &metrics.bytes),
            ("deleted_pages", "Pages deleted", &metrics.pages),
            ("failures", "Rounds that could not be finished", &metrics.failures),
        ];
        for (name, help, counter) in counters {
            to.register(name, help, counter.clone());
        }
        to.register(
            "unreadable_cursors",
            "Cursors that the last round could not read or compare with the log, or that have read another one: the logs of their shards are \
             not trimmed",
            metrics.unreadable_cursors.clone(),
        );
        GarbageCollector {
            store,
            config,
            environment: Arc::new(SystemEnvironment),
            metrics,
            pages: HashMap::new(),
            buffer_id: Uuid::nil(),
        }
    }

    /// Replaces the clock and the random numbers.
    #[must_use]
    pub fn with_environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Runs a round every interval until `shutdown`. Logs and counts failures, and retries in the next round.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // Start up to a quarter of the interval early, so that the collectors do not all run at once.
            let early = self.config.interval.mul_f64(self.environment.fraction() / 4.0);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.config.interval - early) => {}
            }
            let round = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                round = self.round(false) => round,
            };
            if let Ok(done) = &round {
                tell_unreadable(done);
            }
            match round {
                Ok(done) if done.is_nothing() => {}
                Ok(done) => info!(
                    trimmed_sequences = done.trimmed_sequences,
                    segments = done.segments,
                    bytes = done.bytes,
                    pages = done.pages,
                    member_lists = done.member_lists,
                    unique_snapshots = done.unique_snapshots,
                    "collected garbage"
                ),
                Err(error) => {
                    self.metrics.failures.inc();
                    warn!("collecting garbage: {error}");
                }
            }
        }
    }

    /// Runs one round over all shards. `dry`: change nothing, and return what a round would delete.
    pub async fn round(&mut self, dry: bool) -> Result<Collected, CollectError> {
        self.round_with_progress(dry, &|_| {}).await
    }

    /// Like [`round`](Self::round), and reports each step.
    pub async fn round_with_progress(
        &mut self,
        dry: bool,
        report: &(dyn Fn(Step) + Sync),
    ) -> Result<Collected, CollectError> {
        let step = Step::default();
        let mut progress = Progress { step, report };
        let mut all = Collected::default();
        let Some(buffer) = cas::read::<Buffer>(&self.store, layout::BUFFER).await? else {
            return Ok(all);
        };
        self.buffer_id = buffer.state.id;
        let mut failed = None;
        progress.moved(|step| step.shards = buffer.state.shards);
        for shard in 0..buffer.state.shards {
            let mut done = Collected::default();
            // A failing shard does not stop the others.
            if let Err(error) = self.collect(shard, dry, &mut done, &mut progress).await {
                failed = Some(error);
            }
            all.add(done);
            match self.collect_unique(shard, dry).await {
                Ok(snapshots) => all.unique_snapshots += snapshots,
                Err(error) => failed = Some(error),
            }
            progress.moved(|step| step.shards_done += 1);
        }
        let unreadable = all.unreadable_cursors.len();
        self.metrics
            .unreadable_cursors
            .set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        // With one shard there is nothing to divide, and no list.
        if buffer.state.shards > 1 {
            match self.collect_members(dry).await {
                Ok(lists) => all.member_lists = lists,
                Err(error) => failed = Some(error),
            }
        }
        let Some(error) = failed else { return Ok(all) };
        // The error has no room for them.
        tell_unreadable(&all);
        Err(error)
    }

    async fn collect(
        &mut self,
        shard: u32,
        dry: bool,
        done: &mut Collected,
        progress: &mut Progress<'_>,
    ) -> Result<(), CollectError> {
        let unusable = &mut done.unreadable_cursors;
        if !dry {
            let Some((log, would)) = self.advance(shard, true, unusable).await? else {
                return Ok(());
            };
            if !self.is_worth_it(&log, &would).await {
                return Ok(());
            }
        }
        let garbage = loop {
            let unusable = &mut done.unreadable_cursors;
            let Some((log, advanced)) = self.advance(shard, dry, unusable).await? else {
                return Ok(());
            };
            done.add(advanced);
            match self.garbage(&log).await {
                // Another garbage collector has trimmed further meanwhile, and deleted the page.
                Err(CollectError::PageGone(key)) if !self.refers_to(shard, &key).await? => {}
                garbage => break garbage?,
            }
        };
        done.segments = garbage.segments.len() as u64;
        done.bytes = garbage.segments.iter().map(|(_, size)| size).sum();
        done.pages = garbage.pages.len() as u64;
        if !dry {
            let segments = garbage.segments.into_iter().map(|(key, _)| key);
            progress.moved(|step| step.found += done.segments + done.pages);
            self.delete(segments.chain(garbage.pages), progress).await?;
            self.metrics.segments.inc_by(done.segments);
            self.metrics.bytes.inc_by(done.bytes);
            self.metrics.pages.inc_by(done.pages);
        }
        Ok(())
    }

    /// Returns true if a round would trim or delete anything. In a shard where nothing happens, the orphan floor alone
    /// does not justify a new manifest, which every consumer would read.
    async fn is_worth_it(&mut self, log: &Manifest, would: &Collected) -> bool {
        if would.trimmed_sequences > 0 {
            return true;
        }
        // The round itself reports an error.
        let garbage = self.garbage(log).await;
        garbage.map_or(true, |garbage| !garbage.is_empty())
    }

    /// Reads a shard's manifest, or returns `None` if it does not exist.
    async fn log(&self, shard: u32) -> Result<Option<Snapshot<Manifest>>, CollectError> {
        let key = layout::manifest(shard);
        match cas::read::<Manifest>(&self.store, &key).await? {
            Some(found) if found.state.buffer_id != self.buffer_id => Err(CollectError::OtherBuffer(key)),
            found => Ok(found),
        }
    }

    /// Returns true if the current manifest refers to the page with this key.
    async fn refers_to(&self, shard: u32, key: &str) -> Result<bool, CollectError> {
        let found = cas::read::<Manifest>(&self.store, &layout::manifest(shard)).await?;
        Ok(found.is_some_and(|found| {
            let mut pages = found.state.pages.iter();
            pages.any(|page| layout::page(shard, page.first, page.page) == key)
        }))
    }

    /// Advances the log's beginning and the orphan floor. Returns the log, and what the round changes about it. The log is in force, except
    /// in a dry round. `unusable`: the cursors that cannot be read or have read another log, each as its key and the reason.
    ///
    /// `None`: nobody has committed to the shard yet, or its log is not the one that its consumers have read. Nothing of it is deleted then,
    /// because somebody may put the right one back.
    async fn advance(
        &mut self,
        shard: u32,
        dry: bool,
        unusable: &mut Vec<String>,
    ) -> Result<Option<(Manifest, Collected)>, CollectError> {
        let key = layout::manifest(shard);
        let mut known = KnownCursors::default();
        for _ in 0..SWAPS_MAX {
            // Each attempt finds them again.
            unusable.clear();
            let Some(found) = self.log(shard).await? else {
                return Ok(None);
            };
            let mut needs = Needs {
                listed_at: found.state.next_sequence,
                ..self.needs(shard, &mut known).await?
            };
            let Snapshot { state, version, .. } = match self.recognize(found, &needs).await? {
                Recognized::Yes(log, unknown) => {
                    needs.unreadable.extend(unknown);
                    *log
                }
                Recognized::No(why) => {
                    *unusable = why;
                    return Ok(None);
                }
                Recognized::Absent => return Ok(None),
            };
            unusable.clone_from(&needs.unreadable);
            let now_ms = self.environment.now_ms();
            let before =
                |age: Duration| now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            let trim = trim(&state, &needs, self.config.max_age.map(before));
            let next = state.collect(trim.to, before(self.config.grace));
            let done = Collected {
                trimmed_sequences: next.first_sequence - state.first_sequence,
                unread_sequences: trim.to.saturating_sub(trim.needed.max(state.first_sequence)),
                ..Collected::default()
            };
            if dry || next == state {
                return Ok(Some((next, done)));
            }
            let next = next.stamped(self.environment.random());
            // Read again after an unknown outcome, as after a mismatch: trimming twice is harmless.
            if let Swap::Committed(snapshot) = cas::swap(&self.store, &key, Some(&version), next).await {
                self.metrics.trimmed_sequences.inc_by(done.trimmed_sequences);
                self.metrics.unread_sequences.inc_by(done.unread_sequences);
                let read = needs.from.is_some() || !needs.unreadable.is_empty();
                if done.unread_sequences > 0 && read {
                    warn!(
                        shard,
                        "retention dropped {} sequences (up to {}) that a consumer had not read",
                        done.unread_sequences,
                        trim.to
                    );
                }
                return Ok(Some((snapshot.state, done)));
            }
        }
        Err(CollectError::Contended(shard))
    }

    /// Returns the objects that were named before the floor and that the log does not refer to. Nothing can refer to
    /// them later.
    async fn garbage(&mut self, log: &Manifest) -> Result<Garbage, CollectError> {
        let mut garbage = Garbage::default();
        // Millpond deletes only objects that bear its names.
        let below = |key: &str, named: &dyn Fn(Ulid) -> Option<String>| {
            let name = Ulid::from_string(key.rsplit(['/', '-']).next()?).ok()?;
            let ours = named(name).is_some_and(|named| named == key);
            (ours && name.timestamp_ms() < log.orphan_floor_ms).then_some(name)
        };
        let mut segments = Vec::new();
        for found in self.store.list(&layout::segments(log.shard)).await? {
            let name = below(&found.key, &|name| Some(layout::segment(log.shard, name)));
            segments.extend(name.map(|name| (name, found.key, found.size)));
        }
        if !segments.is_empty() {
            let live = self.live(log).await?;
            segments.retain(|(name, ..)| !live.contains(name));
        }
        garbage.segments = segments.into_iter().map(|(_, key, size)| (key, size)).collect();
        let referred: HashSet<Ulid> = log.pages.iter().map(|page| page.page).collect();
        for found in self.store.list(&layout::pages(log.shard)).await? {
            let first = || found.key.rsplit('/').next()?.split('-').next()?.parse().ok();
            let name = below(&found.key, &|name| Some(layout::page(log.shard, first()?, name)));
            if name.is_some_and(|name| !referred.contains(&name)) {
                garbage.pages.push(found.key);
            }
        }
        Ok(garbage)
    }

    /// The segments that the log refers to.
    async fn live(&mut self, log: &Manifest) -> Result<HashSet<Ulid>, CollectError> {
        let referred: HashSet<Ulid> = log.pages.iter().map(|page| page.page).collect();
        self.pages
            .retain(|(shard, page), _| *shard != log.shard || referred.contains(page));
        let mut live: HashSet<Ulid> = log.tail.iter().map(|entry| entry.segment).collect();
        for reference in &log.pages {
            let gone = log.first_sequence.saturating_sub(reference.first);
            let segments = self.segments_of(log, reference).await?;
            live.extend(segments.iter().skip(usize::try_from(gone).unwrap_or(usize::MAX)));
        }
        Ok(live)
    }

    /// The segments of a page that the log refers to.
    async fn segments_of(
        &mut self,
        log: &Manifest,
        reference: &PageReference,
    ) -> Result<&[Ulid], CollectError> {
        let known = match self.pages.entry((log.shard, reference.page)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let key = layout::page(log.shard, reference.first, reference.page);
                let Some(page) = cas::read::<Page>(&self.store, &key).await? else {
                    return Err(CollectError::PageGone(key));
                };
                log.check_page(reference, &page.state)
                    .map_err(|wrong| CollectError::WrongPage { key, wrong })?;
                let segments = page.state.entries.iter().map(|entry| entry.segment);
                unknown.insert(segments.collect())
            }
        };
        Ok(known)
    }

    async fn delete(
        &self,
        keys: impl Iterator<Item = String>,
        progress: &mut Progress<'_>,
    ) -> Result<(), CollectError> {
        let deletions = keys.map(|key| async move { self.store.delete(&key).await });
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETES_AT_A_TIME);
        let mut failed = Ok(());
        while let Some(deleted) = deletions.next().await {
            progress.moved(|step| step.deleted += u64::from(deleted.is_ok()));
            failed = failed.and(deleted);
        }
        Ok(failed?)
    }
}

impl Collected {
    /// Returns true if the round changed nothing.
    fn is_nothing(&self) -> bool {
        let Collected {
            trimmed_sequences,
            unread_sequences,
            segments,
            bytes: _,
            pages,
            member_lists,
            unique_snapshots,
            unreadable_cursors: _,
        } = self;
        let counts = [
            trimmed_sequences,
            unread_sequences,
            segments,
            pages,
            member_lists,
            unique_snapshots,
        ];
        counts.iter().all(|count| **count == 0)
    }
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.pages.is_empty()
    }
}

/// The keys to delete.
#[derive(Debug, Default)]
struct Garbage {
    segments: Vec<(String, u64)>,
    pages: Vec<String>,
}
