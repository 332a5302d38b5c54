//! The garbage collector: the only one that deletes. A round moves the manifest's beginning and its orphan floor forward, and
//! deletes after that, and only what that manifest can neither refer to nor ever will. It may stop anywhere, and many may
//! run at once: the next round of any of them finishes.

use crate::environment::{Environment, now_ms};
use futures::{StreamExt, stream};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{Buffer, Cursor, Manifest, Page, layout};
use millpond_storage::Store;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use ulid::Ulid;

/// How a garbage collector goes about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcConfig {
    /// How often it looks.
    pub interval: Duration,
    /// How old an object must be that no manifest refers to before it is deleted: a producer whose segment has waited
    /// longer for its commit has to upload it again.
    pub grace: Duration,
    /// Committed longer ago than this, a segment goes although a consumer has not read it. `None`: never.
    pub max_age: Option<Duration>,
}

/// Why a round could not be finished. The next one begins anew.
#[derive(Debug, Error)]
pub enum CollectError {
    /// The store did not answer, or an object is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A page that the manifest refers to is gone.
    #[error("{0} is in the manifest but not in the store: nothing of this shard is deleted until it is back")]
    PageGone(String),
    /// A page is another one than the manifest refers to.
    #[error("{key}: {wrong}: nothing of this shard is deleted until it is back")]
    WrongPage {
        /// The page's key.
        key: String,
        /// What is wrong.
        wrong: millpond_manifest::log::WrongPage,
    },
    /// Others changed the manifest all the time, or the store did not say what became of a swap.
    #[error("the manifest of shard {0:04} could not be changed; another round will try again")]
    Contended(u32),
}

impl From<millpond_storage::Error> for CollectError {
    fn from(error: millpond_storage::Error) -> Self {
        CollectError::Read(error.into())
    }
}

/// What a round did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Collected {
    /// Sequences that left the log.
    pub trimmed_sequences: u64,
    /// Of these, sequences that some consumer had not read: retention dropped them.
    pub unread_sequences: u64,
    /// Segments deleted.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pages deleted.
    pub pages: u64,
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
        self.unreadable_cursors.extend(other.unreadable_cursors);
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
    /// What the pages that are referred to hold: they never change, so each is read once.
    pages: HashMap<Ulid, Vec<Ulid>>,
}

/// Deletions under way at a time.
const DELETES_AT_A_TIME: usize = 16;

/// Swaps that are tried in a round.
const SWAPS_MAX: u32 = 10;

/// How far the log of a shard may be trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trim {
    /// The log may begin here.
    to: u64,
    /// Some consumer needs everything from here on.
    needed: u64,
}

/// The part of a shard's log that its consumers still need.
#[derive(Debug, Default)]
struct Needs {
    /// Some consumer needs everything from here on; none where there are no consumers.
    from: Option<u64>,
    /// Cursors that cannot be read: key and reason.
    unreadable: Vec<String>,
}

/// Trims sequences that every consumer has read, and those that retention drops. Without consumers, or with an unreadable cursor whose
/// consumer may need everything, only retention trims.
fn trim(log: &Manifest, needs: &Needs, committed_before_ms: Option<u64>) -> Trim {
    let known = needs.from.filter(|_| needs.unreadable.is_empty());
    let needed = known.unwrap_or(log.first_sequence);
    let too_old = committed_before_ms.map_or(log.first_sequence, |cutoff| {
        // A page was named when all of it had been committed.
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
        to: needed.max(too_old).clamp(log.first_sequence, log.next_sequence),
        needed,
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
            "Cursors that the last round could not read: the logs of their shards are not trimmed",
            metrics.unreadable_cursors.clone(),
        );
        GarbageCollector {
            store,
            config,
            environment: Arc::new(crate::SystemEnvironment),
            metrics,
            pages: HashMap::new(),
        }
    }

    /// Replaces the clock and the random numbers.
    #[must_use]
    pub fn with_environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// A round every interval until `shutdown`. What fails is logged, counted and tried again.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // Not all garbage collectors at once: up to a quarter earlier.
            let early = self
                .config
                .interval
                .mul_f64((self.environment.random() % 1024) as f64 / 4096.0);
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
                for damaged in &done.unreadable_cursors {
                    warn!("a shard's log is not trimmed: {damaged}");
                }
            }
            match round {
                Ok(done) if done.is_nothing() => {}
                Ok(done) => info!(
                    trimmed_sequences = done.trimmed_sequences,
                    segments = done.segments,
                    bytes = done.bytes,
                    pages = done.pages,
                    "collected garbage"
                ),
                Err(error) => {
                    self.metrics.failures.inc();
                    warn!("collecting garbage: {error}");
                }
            }
        }
    }

    /// One round over all shards. `dry`: nothing is changed; the result is what would be deleted.
    pub async fn round(&mut self, dry: bool) -> Result<Collected, CollectError> {
        let mut all = Collected::default();
        let Some(buffer) = cas::read::<Buffer>(&self.store, layout::BUFFER).await? else {
            return Ok(all);
        };
        let mut failed = None;
        for shard in 0..buffer.state.shards {
            match self.collect(shard, dry).await {
                Ok(done) => all.add(done),
                // One shard's trouble is not the others'.
                Err(error) => failed = Some(error),
            }
        }
        let unreadable = all.unreadable_cursors.len();
        self.metrics
            .unreadable_cursors
            .set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        failed.map_or(Ok(all), Err)
    }

    async fn collect(&mut self, shard: u32, dry: bool) -> Result<Collected, CollectError> {
        let mut done = Collected::default();
        if !dry {
            match self.advance(shard, true).await? {
                None => return Ok(done),
                Some((log, would)) if !self.is_worth_it(&log, &would).await => {
                    done.unreadable_cursors = would.unreadable_cursors;
                    return Ok(done);
                }
                Some(_) => {}
            }
        }
        let garbage = loop {
            let Some((log, advanced)) = self.advance(shard, dry).await? else {
                return Ok(done);
            };
            // Found again in each turn.
            done.unreadable_cursors.clear();
            done.add(advanced);
            match self.garbage(&log).await {
                // Another garbage collector has gone on meanwhile, and deleted what it trimmed.
                Err(CollectError::PageGone(key)) if !self.refers_to(shard, &key).await? => {}
                garbage => break garbage?,
            }
        };
        done.segments = garbage.segments.len() as u64;
        done.bytes = garbage.segments.iter().map(|(_, size)| size).sum();
        done.pages = garbage.pages.len() as u64;
        if !dry {
            let segments = garbage.segments.into_iter().map(|(key, _)| key);
            self.delete(segments.chain(garbage.pages)).await?;
            self.metrics.segments.inc_by(done.segments);
            self.metrics.bytes.inc_by(done.bytes);
            self.metrics.pages.inc_by(done.pages);
        }
        Ok(done)
    }

    /// Whether a round would trim or delete anything. In a shard where nothing happens the orphan floor alone is not worth a
    /// new manifest, which every consumer would read.
    async fn is_worth_it(&mut self, log: &Manifest, would: &Collected) -> bool {
        if would.trimmed_sequences > 0 {
            return true;
        }
        // What is in the way is the round's own to find.
        let garbage = self.garbage(log).await;
        garbage.map_or(true, |garbage| !garbage.is_empty())
    }

    /// Whether the manifest, as it is now, refers to the page with this key.
    async fn refers_to(&self, shard: u32, key: &str) -> Result<bool, CollectError> {
        let found = cas::read::<Manifest>(&self.store, &layout::manifest(shard)).await?;
        Ok(found.is_some_and(|found| {
            let mut pages = found.state.pages.iter();
            pages.any(|page| layout::page(shard, page.first, page.page) == key)
        }))
    }

    /// Moves the log's beginning and the orphan floor forward. The state returned is in force (but for a dry round).
    async fn advance(&self, shard: u32, dry: bool) -> Result<Option<(Manifest, Collected)>, CollectError> {
        let key = layout::manifest(shard);
        for _ in 0..SWAPS_MAX {
            let Some(found) = cas::read::<Manifest>(&self.store, &key).await? else {
                return Ok(None);
            };
            let Snapshot { state, version, .. } = found;
            let now_ms = now_ms(&*self.environment);
            let before =
                |age: Duration| now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            let needs = self.needs(shard).await?;
            let trim = trim(&state, &needs, self.config.max_age.map(before));
            let next = state.collect(trim.to, before(self.config.grace));
            let done = Collected {
                trimmed_sequences: next.first_sequence - state.first_sequence,
                unread_sequences: trim.to.saturating_sub(trim.needed.max(state.first_sequence)),
                unreadable_cursors: needs.unreadable.clone(),
                ..Collected::default()
            };
            if dry || next == state || planted::is(Bug::DeleteBeforeTrim) {
                return Ok(Some((next, done)));
            }
            let next = next.stamped(self.environment.random());
            // An outcome that is not known is read again, like a mismatch: doing it twice does no harm.
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

    /// Asks every cursor of a shard, one at a time: a consumer's key may be enough to write many, and each may be large.
    async fn needs(&self, shard: u32) -> Result<Needs, CollectError> {
        let mut needs = Needs::default();
        for found in self.store.list(&layout::consumers(shard)).await? {
            if !found.key.ends_with("/cursor") {
                continue;
            }
            match cas::read::<Cursor>(&self.store, &found.key).await {
                // A consumer that was removed needs nothing.
                Ok(Some(cursor)) if !cursor.state.is_removed() => {
                    let from = cursor.state.needs();
                    needs.from = Some(needs.from.map_or(from, |least| least.min(from)));
                }
                Ok(_) => {}
                Err(damaged @ ReadError::Format { .. }) => needs.unreadable.push(damaged.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(needs)
    }

    /// What is named before the floor and not referred to: nothing can refer to it any more.
    async fn garbage(&mut self, log: &Manifest) -> Result<Garbage, CollectError> {
        let mut garbage = Garbage::default();
        // What is not named as Millpond names it is not Millpond's to delete.
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
        self.pages.retain(|page, _| referred.contains(page));
        let mut live: HashSet<Ulid> = log.tail.iter().map(|entry| entry.segment).collect();
        for reference in &log.pages {
            if !self.pages.contains_key(&reference.page) {
                let key = layout::page(log.shard, reference.first, reference.page);
                let Some(page) = cas::read::<Page>(&self.store, &key).await? else {
                    return Err(CollectError::PageGone(key));
                };
                log.check_page(reference, &page.state)
                    .map_err(|wrong| CollectError::WrongPage { key, wrong })?;
                let segments = page.state.entries.iter().map(|entry| entry.segment);
                self.pages.insert(reference.page, segments.collect());
            }
            let gone = log.first_sequence.saturating_sub(reference.first);
            let segments = &self.pages[&reference.page];
            live.extend(segments.iter().skip(usize::try_from(gone).unwrap_or(usize::MAX)));
        }
        Ok(live)
    }

    async fn delete(&self, keys: impl Iterator<Item = String>) -> Result<(), CollectError> {
        let deletions = keys.map(|key| async move { self.store.delete(&key).await });
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETES_AT_A_TIME);
        let mut failed = Ok(());
        while let Some(deleted) = deletions.next().await {
            failed = failed.and(deleted);
        }
        Ok(failed?)
    }
}

impl Collected {
    /// Reports whether the round changed nothing.
    fn is_nothing(&self) -> bool {
        let Collected {
            trimmed_sequences,
            unread_sequences,
            segments,
            bytes: _,
            pages,
            unreadable_cursors: _,
        } = self;
        *trimmed_sequences == 0 && *unread_sequences == 0 && *segments == 0 && *pages == 0
    }
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.pages.is_empty()
    }
}

/// Keys of what can go.
#[derive(Debug, Default)]
struct Garbage {
    segments: Vec<(String, u64)>,
    pages: Vec<String>,
}
