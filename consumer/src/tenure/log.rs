//! The log as the owner of a cursor sees it: reads the manifest, keeps the pages loaded that it needs next, and exports
//! the consumer's lag. It decides nothing.

use super::Tenure;
use crate::discovery::{Continuation, Fallback, continuation};
use crate::error::ConsumeError;
use crate::schedule::begins;
use crate::shard::{PageRead, Shard};
use crate::start::is_ahead;
use futures::future::{BoxFuture, FutureExt};
use millpond_manifest::cas::{self, ReadError, Reread, Snapshot};
use millpond_manifest::{Cursor, Log, Manifest, Page, PageReference, layout};
use millpond_runtime::Level;
use millpond_storage::Version;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, warn};

/// The log as last read.
pub(crate) struct Known {
    pub(super) log: Log,
    /// The state that this process last read from the store: the one for conditional requests. The log may be newer.
    stored: Version,
    /// The number of its version.
    stored_version: u64,
}

impl Known {
    pub(crate) fn new(snapshot: Snapshot<Manifest>) -> Known {
        Known {
            stored_version: snapshot.state.stamp.version,
            log: Log::new(snapshot.state),
            stored: snapshot.version,
        }
    }

    /// Returns true if a leader sent the log, and the store has not confirmed it yet.
    pub(super) fn is_hearsay(&self) -> bool {
        self.log.stamp.version > self.stored_version
    }

    fn load(&mut self, reference: &PageReference, page: Arc<Page>) -> Result<(), ConsumeError> {
        let key = layout::page(self.log.shard, reference.first, reference.page);
        self.log
            .load(reference, page)
            .map_err(|wrong| ConsumeError::WrongPage { key, wrong })
    }
}

/// The number of pages to keep loaded for each stream, from its position on.
const PAGES_AHEAD: usize = 2;

/// The time after which a page that could not be read is read again.
const PAGE_AGAIN: Duration = Duration::from_secs(60);

/// A page that could not be read. The term ends when nothing is left to do before it and in others.
pub(super) struct Unreadable {
    page: PageReference,
    pub(super) why: ConsumeError,
    pub(super) again_at: Instant,
}

/// The wait for such a page. The reason names the object.
fn horizon(page: &PageReference) -> String {
    format!("the log from sequence {} on", page.first)
}

pub(super) type Loading<'a> = BoxFuture<'a, (PageReference, Result<PageRead, ConsumeError>)>;
pub(super) type Reading = BoxFuture<'static, Result<Reread<Manifest>, ReadError>>;

impl Tenure<'_> {
    pub(super) fn begin_read(&mut self) {
        if self.reading.is_some() || Instant::now() < self.poll_at {
            return;
        }
        let store = self.shard.claim.store.clone();
        let key = layout::manifest(self.shard.claim.shard);
        let known = self.log.as_ref().map(|known| known.stored.clone());
        self.read_knowing = self.log.as_ref().map_or(0, |known| known.log.stamp.version);
        let read = async move {
            match known {
                None => {
                    let found = cas::read::<Manifest>(&store, &key).await?;
                    Ok(found.map_or(Reread::Absent, Reread::Changed))
                }
                Some(known) => cas::read_if_changed(&store, &key, &known).await,
            }
        };
        self.reading = Some(read.boxed());
    }

    pub(super) fn read(&mut self, outcome: Result<Reread<Manifest>, ReadError>) -> Result<(), ConsumeError> {
        self.poll_at = Instant::now() + self.discovery.poll_interval();
        let what = format!("reading {}", layout::manifest(self.shard.claim.shard));
        match outcome {
            Ok(news) => {
                let behind = match news {
                    Reread::Changed(news) => self.found(news)?,
                    Reread::Unchanged => self.unconfirmed().map(|known| known.stored_version),
                    // Nobody deletes a manifest: this is another bucket, or a copy from before the first commit.
                    Reread::Absent if self.log.is_none() => {
                        self.no_manifest(&what);
                        return Ok(());
                    }
                    Reread::Absent => Some(0),
                };
                // The answer to a request from before the leader's news may be older than these.
                match behind.filter(|found| *found < self.read_knowing || !self.is_hearsay()) {
                    Some(found) => self.store_is_behind(&what, found)?,
                    None => {
                        self.behind_since = None;
                        let log_end = self.log.as_ref().map_or(0, |known| known.log.next_sequence);
                        match is_ahead(self.read_up_to(), log_end) {
                            Some(reason) => self.shard.claim.readiness.waits(&what, reason, Level::Warn),
                            None => self.shard.claim.readiness.goes_on(&what),
                        }
                    }
                }
                self.show_backlog();
                Ok(())
            }
            Err(ReadError::Format { key, wrong }) => Err(ConsumeError::Format { key, wrong }),
            Err(ReadError::Store(error)) => {
                self.shard.claim.readiness.waits(&what, error, Level::Warn);
                Ok(())
            }
        }
    }

    /// Handles a store without a manifest, of which this owner has seen none either. That is normal before the first commit only.
    fn no_manifest(&self, what: &str) {
        let (read, readiness) = (self.durable.state.furthest(), &self.shard.claim.readiness);
        if read == 0 {
            return readiness.goes_on(what);
        }
        let reason =
            format!("the store has no manifest, and this consumer has read up to sequence {read} of it");
        readiness.waits(what, reason, Level::Warn);
    }

    fn is_hearsay(&self) -> bool {
        self.unconfirmed().is_some()
    }

    /// The log that a leader sent and the store has not confirmed.
    fn unconfirmed(&self) -> Option<&Known> {
        self.log.as_ref().filter(|known| known.is_hearsay())
    }

    /// Takes note of a state of the store. Returns its version if the known log is newer, or of another past. A batch that was sent from
    /// the known log would otherwise be sent in part, or not count as sent when this owner releases the cursor.
    fn found(&mut self, news: Snapshot<Manifest>) -> Result<Option<u64>, ConsumeError> {
        self.shard.check_log(&news.state)?;
        let stamp = news.state.stamp;
        let Some(known) = self.log.as_mut() else {
            self.shard
                .warn_if_ahead(self.read_up_to(), news.state.next_sequence);
            self.log = Some(Known::new(news));
            self.see_leader();
            return Ok(None);
        };
        let is_same = stamp == known.log.stamp;
        let contradicts = !is_same
            && (stamp.version == known.log.stamp.version
                || continuation(&known.log, &news.state) == Continuation::Contradicted);
        // The store's word against its own is a restored manifest, its word against a leader's is the leader's fault.
        if stamp.version < known.log.stamp.version || (contradicts && !known.is_hearsay()) {
            // Nothing that was planned from the newer log is taken back.
            return Ok(Some(stamp.version));
        }
        let shown = known.log.stamp.version;
        let is_first = news.state.next_sequence > known.log.next_sequence;
        (known.stored, known.stored_version) = (news.version, stamp.version);
        if !is_same {
            self.advance(news.state);
        }
        if contradicts {
            error!(
                shard = self.shard.claim.shard,
                "the store never had version {shown} of the manifest, which the leader showed"
            );
            let reason = format!(
                "version {} in the store excludes its version {shown}",
                stamp.version
            );
            self.stop_watching(Fallback::contradicted, &reason);
        } else if is_first {
            self.discovery.found_first(stamp.version, Instant::now());
        }
        Ok(None)
    }

    /// Moves on to a later state of the log. Unless it shows that it continues the known one, the owner recognizes it anew: somebody may have
    /// restored the manifest while this machine stood still, or a leader was wrong.
    pub(super) fn advance(&mut self, state: Manifest) {
        let Some(known) = self.log.take() else { return };
        if continuation(&known.log, &state) != Continuation::Shown {
            self.recognized = false;
        }
        let came = state.next_sequence.saturating_sub(known.log.next_sequence);
        // A change by the garbage collector adds no segments.
        if came > 0 {
            self.one_by_one = came == 1;
        }
        self.log = Some(Known {
            log: known.log.advanced(state),
            ..known
        });
        self.see_leader();
    }

    /// Keeps the pages loaded that the positions and the batches in flight need next, and no others.
    pub(super) fn begin_load(&mut self) {
        self.forget_unreadable();
        let Some(known) = &self.log else { return };
        if known.log.pages.is_empty() {
            return;
        }
        let worker = &self.shard.worker;
        let accepted = known
            .log
            .streams
            .iter()
            .filter(|s| worker.takes(&s.name, s.encoding));
        let mut wanted = Vec::new();
        wanted.extend(self.recognizes_by(&known.log).cloned());
        for stream in accepted {
            let cursor = &self.durable.state;
            let next = begins(cursor, &known.log, &stream.name);
            let from = known.log.pages.partition_point(|page| page.last < next);
            let through = self.schedule.reaches(cursor, &known.log, &stream.name);
            let ahead = (0..).zip(&known.log.pages[from..]).take_while(|(place, page)| {
                *place < PAGES_AHEAD || through.is_some_and(|through| page.first <= through)
            });
            wanted.extend(ahead.map(|(_, page)| page.clone()));
        }
        let Some(known) = &mut self.log else { return };
        known.log.unload(|page| wanted.contains(page));
        if self.loading.is_some() {
            return;
        }
        let unreadable = |page: &PageReference| self.unreadable.contains_key(&page.first);
        let missing = wanted
            .into_iter()
            .find(|page| !known.log.is_loaded(page) && !unreadable(page));
        let shard = self.shard;
        self.loading = missing.map(|page| {
            async move {
                let read = shard.read_page(&page).await;
                (page, read)
            }
            .boxed()
        });
    }

    /// Forgets pages that could not be read when it is time to read them again, or when the log has trimmed them.
    fn forget_unreadable(&mut self) {
        let pages = self.log.as_ref().map_or(&[][..], |known| &known.log.pages);
        let claim = &self.shard.claim;
        self.unreadable.retain(|_, Unreadable { page, again_at, .. }| {
            let stays = Instant::now() < *again_at && pages.contains(page);
            if !stays {
                claim.readiness.goes_on(&horizon(page));
            }
            stays
        });
    }

    pub(super) fn loaded(
        &mut self,
        reference: &PageReference,
        read: Result<PageRead, ConsumeError>,
    ) -> Result<(), ConsumeError> {
        // If the page has left the log meanwhile, the outcome does not matter.
        let Some(known) = self.log.as_mut().filter(|k| k.log.pages.contains(reference)) else {
            return Ok(());
        };
        let loaded = match read {
            Ok(PageRead::Page(page)) => known.load(reference, page),
            // Only the owner's copy of the manifest refers to the page.
            Ok(PageRead::Trimmed(log)) => {
                // A read under way may return an older manifest.
                self.reading = None;
                self.read_knowing = self.log.as_ref().map_or(0, |known| known.log.stamp.version);
                return self.read(Ok(Reread::Changed(*log)));
            }
            Err(why) => Err(why),
        };
        if let Err(why) = loaded {
            // The batches before it need not suffer, and the operator may move the consumer past it.
            let readiness = &self.shard.claim.readiness;
            readiness.waits(&horizon(reference), &why, Level::Error);
            let unreadable = Unreadable {
                page: reference.clone(),
                why,
                again_at: Instant::now() + PAGE_AGAIN,
            };
            self.unreadable.insert(reference.first, unreadable);
        }
        Ok(())
    }

    /// Warns if retention dropped sequences that this consumer had not read.
    pub(super) fn warn_of_trimmed(&mut self) {
        let Some(Known { log, .. }) = &self.log else {
            return;
        };
        // The store may have positions by now that this owner does not know.
        if self.swapping.is_some() || !self.term.lease.runs() {
            return;
        }
        if std::mem::replace(&mut self.trimmed, log.first_sequence) == log.first_sequence {
            return;
        }
        let (cursor, worker) = (&self.durable.state, &self.shard.worker);
        for stream in &log.streams {
            let next = unread_from(cursor, &stream.name);
            if next < log.first_sequence && worker.takes(&stream.name, stream.encoding) {
                // If a part of a planned batch is gone, the whole batch is.
                let first = log.first_sequence.max(begins(cursor, log, &stream.name));
                warn!(
                    shard = self.shard.claim.shard,
                    stream = stream.name,
                    "sequences {next}..{first} were trimmed before this consumer had read them: what was in them is lost to it"
                );
            }
        }
    }

    pub(super) fn show_backlog(&self) {
        let Shard { claim, worker, .. } = self.shard;
        let now_ms = claim.environment.now_ms();
        self.for_each_stream(|log, index, stream| {
            let reached = self.schedule.reached(&self.durable.state, log, index, stream);
            let lag = log.lag(index, reached);
            worker.metrics.show_backlog(claim.shard, stream, &lag, now_ms);
        });
    }

    pub(super) fn forget_backlog(&self) {
        let Shard { claim, worker, .. } = self.shard;
        self.for_each_stream(|_, _, stream| worker.metrics.forget_backlog(claim.shard, stream));
    }

    /// Calls `each` for every stream that this consumer takes.
    fn for_each_stream(&self, mut each: impl FnMut(&Log, u32, &str)) {
        let Some(Known { log, .. }) = &self.log else {
            return;
        };
        let worker = &self.shard.worker;
        let streams = (0_u32..).zip(&log.streams);
        for (index, stream) in streams.filter(|(_, s)| worker.takes(&s.name, s.encoding)) {
            each(log, index, &stream.name);
        }
    }
}

/// The first sequence of a stream that the consumer may not have read. A stream without a position is new: an owner that moves
/// any position writes one for every stream that it has seen, so the others begin after all positions.
fn unread_from(cursor: &Cursor, stream: &str) -> u64 {
    let positions = || cursor.streams.values().map(|stream| stream.next);
    let position = cursor.streams.get(stream).map(|stream| stream.next);
    position.or_else(|| positions().max()).unwrap_or(cursor.start)
}

#[cfg(test)]
mod tests {
    use super::unread_from;
    use millpond_manifest::{BatchingPolicy, Cursor};
    use uuid::Uuid;

    #[test]
    fn a_new_stream_begins_after_what_was_read_of_the_others() {
        let policy = BatchingPolicy {
            batch_records: 1,
            batch_bytes: 1,
            chunk_rows: 1,
            chunk_bytes: 1,
            max_partitions_per_chunk: 1,
            max_in_flight: 1,
            sink: String::new(),
            schema_version: 1,
        };
        let mut cursor = Cursor::new(Uuid::nil(), 0, "default", 2, policy);
        assert_eq!(unread_from(&cursor, "new"), 2, "nothing is read yet");
        cursor.acknowledge("slow", 5).unwrap();
        cursor.acknowledge("old", 9).unwrap();
        assert_eq!(unread_from(&cursor, "slow"), 5);
        assert_eq!(
            unread_from(&cursor, "new"),
            9,
            "the trimmed sequences have nothing of it"
        );
    }
}
