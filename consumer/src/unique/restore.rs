//! Puts the state of a stream together again: the snapshots that the cursor names, and the keys of the log after them.

use super::keys::{PartKeys, ROW_BYTES};
use super::limit::{KeyLimit, TooManyKeys};
use super::state::{Of, State};
use crate::error::ConsumeError;
use crate::reading::{BEHIND_WAIT, NOT_YET, read_patiently};
use crate::shard::{PageRead, Shard};
use crate::sink::{Batch, BatchId};
use crate::work::Wanted;
use futures::{StreamExt, TryStreamExt, stream};
use millpond_manifest::cursor::{Deduplication, Seen};
use millpond_manifest::log::Continuity;
use millpond_manifest::{Cursor, Log, PageReference, UniqueReference, UniqueSetting, UniqueSnapshot, layout};
use millpond_runtime::{Backoff, Level, Reservation, blocking};
use millpond_segment::Encoding;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::info;

/// Parts to read ahead.
const PARTS_AT_A_TIME: usize = 4;

/// Snapshots to read ahead, and the keys in them.
const SNAPSHOTS_AT_A_TIME: u64 = 16;
const KEYS_AT_A_TIME: u64 = 1 << 18;

/// The source of a state.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) stream: String,
    pub(crate) setting: UniqueSetting,
    pub(crate) of: Deduplication,
    /// Parts of the stream that an operator left out.
    pub(crate) skipped: BTreeSet<u64>,
    /// A reset to this sequence passes over no records that any stream has left to read. For people.
    pub(crate) next: u64,
    /// The newest segment that the consumer has seen.
    pub(crate) seen: Option<Seen>,
    pub(super) progress: Progress,
}

/// The progress of a state that is put together. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Progress(Arc<Mutex<Steps>>);

#[derive(Debug)]
struct Steps {
    /// The last step forward.
    last: Instant,
    /// Parts that this process has no memory or no decoder for, or that it decodes.
    queued: usize,
    /// Parts that wait for the store, or for others before them to get its answers.
    asked: usize,
}

impl Progress {
    fn new() -> Progress {
        Progress(Arc::new(Mutex::new(Steps {
            last: Instant::now(),
            queued: 0,
            asked: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last(&self) -> Instant {
        self.lock().last
    }

    pub(super) fn goes_on(&self) {
        self.lock().last = Instant::now();
    }

    /// Why there was no step forward for this long.
    pub(super) fn standstill(&self, time: Duration) -> String {
        let Steps { queued, asked, .. } = *self.lock();
        let seconds = time.as_secs();
        match queued > 0 && asked == 0 {
            true => format!(
                "batches held the memory to load them (--memory-limit), or all decoders, for {seconds} s"
            ),
            false => format!("the store gave nothing new for {seconds} s"),
        }
    }

    /// Waits for something of this process.
    async fn queue<T>(&self, wait: impl Future<Output = T>) -> T {
        self.lock().queued += 1;
        let done = wait.await;
        let mut steps = self.lock();
        steps.queued -= 1;
        // The store owes nothing so far.
        if steps.asked == 0 {
            steps.last = Instant::now();
        }
        done
    }

    /// Waits for an answer of the store.
    async fn ask<T>(&self, request: impl Future<Output = T>) -> T {
        {
            let mut steps = self.lock();
            if steps.asked == 0 {
                steps.last = Instant::now();
            }
            steps.asked += 1;
        }
        let answer = request.await;
        self.lock().asked -= 1;
        answer
    }
}

impl Source {
    pub(crate) fn new(stream: &str, setting: &UniqueSetting, of: &Deduplication, cursor: &Cursor) -> Source {
        let skipped = cursor.skipped.iter().filter(|skip| skip.stream == stream);
        Source {
            stream: stream.to_owned(),
            setting: setting.clone(),
            of: of.clone(),
            skipped: skipped.map(|skip| skip.sequence).collect(),
            next: cursor.hindmost(),
            seen: cursor.seen,
            progress: Progress::new(),
        }
    }

    /// The stream of these keys.
    pub(super) fn of(&self, shard: &Shard) -> Of {
        Of {
            buffer_id: shard.claim.buffer_id,
            shard: shard.claim.shard,
            consumer: shard.claim.consumer.clone(),
            stream: self.stream.clone(),
            setting: self.setting.clone(),
            since: self.of.since,
        }
    }

    fn trimmed(&self, shard: &Shard, at: u64, first: u64) -> ConsumeError {
        self.lost(
            shard,
            format!("the log is needed from sequence {at} on, and retention has trimmed it below {first}"),
        )
    }

    fn lost(&self, shard: &Shard, reason: String) -> ConsumeError {
        ConsumeError::UniqueLost {
            consumer: shard.claim.consumer.clone(),
            shard: shard.claim.shard,
            stream: self.stream.clone(),
            reason,
            next: self.next,
        }
    }
}

/// The error for a limit that is too small.
pub(crate) fn too_many(stream: &str, TooManyKeys { max }: TooManyKeys) -> ConsumeError {
    ConsumeError::UniqueMemory {
        stream: stream.to_owned(),
        keys: max,
        bytes: max * super::BYTES_PER_KEY,
    }
}

/// Returns the state before the sequence `to`, and the uncompressed bytes of the log that it was read from, besides the snapshots.
/// `newest` names the last one.
pub(crate) async fn restore(
    shard: &Shard,
    source: &Source,
    newest: Option<UniqueReference>,
    limit: KeyLimit,
    to: u64,
) -> Result<(State, u64), ConsumeError> {
    let of = source.of(shard);
    let named = shard.worker.snapshots_named;
    // From the environment, so that a seed of the simulation always gives the same run.
    let secret = shard.worker.environment.random_u128();
    let mut state = State::new(of, source.of.medians_from, limit, named, secret);
    if let Some(name) = newest {
        let newest = snapshot(shard, source, state.of(), name).await?;
        state.resume(&newest, name);
        let most = newest
            .earlier
            .iter()
            .map(|earlier| earlier.keys)
            .max()
            .unwrap_or(0);
        let at_a_time = (KEYS_AT_A_TIME / most.max(1)).clamp(1, SNAPSHOTS_AT_A_TIME);
        let of = state.of().clone();
        let reads = newest.earlier.iter();
        let reads = reads.map(|earlier| snapshot(shard, source, &of, earlier.reference));
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(usize::try_from(at_a_time).unwrap_or(1));
        while let Some(earlier) = reads.try_next().await? {
            state
                .load(&earlier.entries)
                .map_err(|full| too_many(&source.stream, full))?;
        }
        state
            .load(&newest.entries)
            .map_err(|full| too_many(&source.stream, full))?;
    }
    let from = state.next();
    let raw_bytes = match from < to {
        true => replay(shard, source, &mut state, to).await?,
        false => 0,
    };
    info!(
        shard = shard.claim.shard,
        stream = source.stream,
        keys = state.keys(),
        read_from = from,
        "remembers the keys before sequence {to}"
    );
    Ok((state, raw_bytes))
}

/// Reads a snapshot that the cursor names, directly or through another one.
pub(super) async fn snapshot(
    shard: &Shard,
    source: &Source,
    of: &Of,
    name: UniqueReference,
) -> Result<UniqueSnapshot, ConsumeError> {
    let claim = &shard.claim;
    let key = layout::unique(claim.shard, &claim.consumer, &source.stream, name.next, name.id);
    let found =
        read_patiently::<UniqueSnapshot>(&claim.store, &key, &claim.readiness, &*claim.environment).await?;
    let Some(found) = found else {
        return Err(source.lost(shard, format!("{key} is not in the store: restore it")));
    };
    let found = found.state;
    let own = Of {
        buffer_id: found.buffer_id,
        shard: found.shard,
        consumer: found.consumer.clone(),
        stream: found.stream.clone(),
        setting: found.setting.clone(),
        since: found.since,
    };
    if own != *of || found.next != name.next {
        return Err(source.lost(
            shard,
            format!("{key} belongs to another consumer or setting: restore it"),
        ));
    }
    source.progress.goes_on();
    Ok(found)
}

/// Reads the log, which is known to reach the sequence `to`. The owner may know that from a leader, and the store may return
/// older states for a while, or those of a log that somebody has restored.
async fn read_log_to(shard: &Shard, source: &Source, to: u64) -> Result<Log, ConsumeError> {
    let key = layout::manifest(shard.claim.shard);
    let what = format!("reading {key} for the keys of {}", source.stream);
    let mut behind_since = None;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let found = shard.read_log().await?;
        let reached = found.as_ref().map_or(0, |found| found.state.next_sequence);
        if let Some(found) = found.filter(|_| reached >= to) {
            let mut log = Log::new(found.state);
            if is_read(shard, source, &mut log).await? {
                source.progress.goes_on();
                shard.claim.readiness.goes_on(&what);
                return Ok(log);
            }
        }
        if behind_since.get_or_insert_with(Instant::now).elapsed() >= BEHIND_WAIT {
            return Err(source.lost(
                shard,
                format!("the log of the store ends at {reached} and is needed up to {to}, or is not the one that was read"),
            ));
        }
        shard.claim.readiness.waits(&what, NOT_YET, Level::Warn);
        backoff.pause(&*shard.claim.environment).await;
    }
}

/// Returns true if the log is the one that the consumer has read.
async fn is_read(shard: &Shard, source: &Source, log: &mut Log) -> Result<bool, ConsumeError> {
    loop {
        let page = match log.continuity(0, source.seen) {
            Continuity::Same => return Ok(true),
            Continuity::Short | Continuity::Other { .. } => return Ok(false),
            Continuity::Unread(page) => page.clone(),
        };
        if load(shard, log, &page).await?.is_some() {
            // The log that was read begins later by now.
            return Ok(false);
        }
        source.progress.goes_on();
    }
}

/// Loads a page. Returns the beginning of the log if retention has trimmed the page.
async fn load(shard: &Shard, log: &mut Log, reference: &PageReference) -> Result<Option<u64>, ConsumeError> {
    match shard.read_page(reference).await? {
        PageRead::Page(page) => {
            log.load(reference, page)
                .map(|()| None)
                .map_err(|wrong| ConsumeError::WrongPage {
                    key: layout::page(log.shard, reference.first, reference.page),
                    wrong,
                })
        }
        PageRead::Trimmed(newer) => Ok(Some(newer.state.first_sequence)),
    }
}

/// The log between two sequences, a piece at a time: as much as is known after a page was read.
struct Pieces<'a> {
    shard: &'a Shard,
    source: &'a Source,
    log: Log,
    at: u64,
    to: u64,
}

impl<'a> Pieces<'a> {
    async fn begin(
        shard: &'a Shard,
        source: &'a Source,
        at: u64,
        to: u64,
    ) -> Result<Pieces<'a>, ConsumeError> {
        let log = read_log_to(shard, source, to).await?;
        match log.first_sequence > at {
            true => Err(source.trimmed(shard, at, log.first_sequence)),
            false => Ok(Pieces {
                shard,
                source,
                log,
                at,
                to,
            }),
        }
    }

    /// Reads the page of the next piece, and returns the piece's end. `None` at the end of all.
    async fn read(&mut self) -> Result<Option<u64>, ConsumeError> {
        if self.at >= self.to {
            return Ok(None);
        }
        let missing = self.log.missing(self.at).filter(|page| page.first < self.to);
        if let Some(reference) = missing.cloned().filter(|page| page.first <= self.at)
            && let Some(first) = load(self.shard, &mut self.log, &reference).await?
        {
            return Err(self.source.trimmed(self.shard, self.at, first));
        }
        self.source.progress.goes_on();
        Ok(Some(self.log.horizon(self.at).min(self.to)))
    }

    /// The stream's place in the log, and its encoding. `None` if it has no part.
    fn stream(&self) -> Option<(u32, Encoding)> {
        let index = self.log.stream_index(&self.source.stream)?;
        Some((index, self.log.streams[index as usize].encoding))
    }

    /// A stream's parts in the piece that ends before `end`, without those that an operator left out.
    fn parts(&self, stream: u32, end: u64) -> impl Iterator<Item = Wanted> {
        let parts = self.log.parts(stream, self.at);
        let parts = parts.take_while(move |(sequence, ..)| *sequence < end);
        let parts = parts.filter(|(sequence, ..)| !self.source.skipped.contains(sequence));
        parts.map(|(sequence, entry, part)| Wanted::of(self.shard.claim.shard, sequence, entry, part))
    }

    fn pass(&mut self, end: u64) {
        self.at = end;
        self.log.unload(|page| page.last >= end);
    }
}

/// Returns true if the log has a part of the stream from one sequence to before another.
pub(super) async fn has_parts(
    shard: &Shard,
    source: &Source,
    from: u64,
    to: u64,
) -> Result<bool, ConsumeError> {
    let mut pieces = Pieces::begin(shard, source, from, to).await?;
    let Some((stream, _)) = pieces.stream() else {
        return Ok(false);
    };
    while let Some(end) = pieces.read().await? {
        if pieces.parts(stream, end).next().is_some() {
            return Ok(true);
        }
        pieces.pass(end);
    }
    Ok(false)
}

/// Reads the keys of the log from the state on. Returns the uncompressed bytes of their parts.
async fn replay(shard: &Shard, source: &Source, state: &mut State, to: u64) -> Result<u64, ConsumeError> {
    let mut pieces = Pieces::begin(shard, source, state.next(), to).await?;
    let Some((index, encoding)) = pieces.stream() else {
        state.pass(to);
        return Ok(0);
    };
    let mut raw_bytes = 0_u64;
    while let Some(end) = pieces.read().await? {
        let parts = pieces.parts(index, end);
        let parts = parts.inspect(|wanted| raw_bytes = raw_bytes.saturating_add(wanted.part.raw_len));
        let reads = parts.map(|wanted| keys(shard, source, encoding, wanted));
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(PARTS_AT_A_TIME);
        loop {
            let (part, _memory) = match reads.try_next().await {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(ConsumeError::Lost { key, sequence }) => {
                    // Nobody would take the memory that the others wait for.
                    drop(reads);
                    return Err(match shard.gone(&key, sequence).await? {
                        ConsumeError::Trimmed { sequence, first, .. } => {
                            source.trimmed(shard, sequence, first)
                        }
                        other => other,
                    });
                }
                Err(error) => return Err(error),
            };
            state.part(&part).map_err(|full| too_many(&source.stream, full))?;
        }
        pieces.pass(end);
    }
    state.pass(to);
    Ok(raw_bytes)
}

/// The memory of a part that is read for its keys.
fn memory(wanted: &Wanted) -> u64 {
    let bytes = wanted.length.saturating_add(wanted.part.raw_len);
    bytes.saturating_add(wanted.part.records.saturating_mul(ROW_BYTES))
}

/// Reads the keys of one part. Their memory is reserved until somebody has decided about them, or until the decoder is done with them if
/// nobody wants them any more.
async fn keys(
    shard: &Shard,
    source: &Source,
    encoding: Encoding,
    wanted: Wanted,
) -> Result<(PartKeys, Reservation), ConsumeError> {
    let worker = &shard.worker;
    // The parts ask in their order, so the first one never waits for a later one.
    let reserved = worker.memory.reserve_at_most(memory(&wanted));
    let memory = source.progress.queue(reserved).await;
    let sequence = wanted.part.sequence;
    let fetched = worker.fetch(shard.claim.shard, wanted, None, &shard.claim.readiness);
    let part = source.progress.ask(fetched).await?;
    source.progress.goes_on();
    let batch = Batch {
        id: BatchId {
            buffer_id: shard.claim.buffer_id,
            shard: shard.claim.shard,
            stream: source.stream.clone(),
            consumer: shard.claim.consumer.clone(),
            cursor: shard.claim.cursor.clone(),
            generation: 0,
            sink: worker.sink.name().to_owned(),
            low: sequence,
            high: sequence,
            schema_version: worker.sink.schema_version(),
        },
        encoding,
        parts: vec![part],
    };
    let decoder = source.progress.queue(worker.decoders.clone().acquire_owned());
    let decoder = decoder.await.expect("never closed");
    let (sink, paths) = (worker.sink.clone(), source.setting.key.clone());
    let id = batch.id.to_string();
    // A thread that reads keys goes on when the attempt is cancelled.
    let decoding = blocking::compute(&*worker.environment, move || {
        (sink.keys(&batch, &paths), memory, decoder)
    });
    let (found, memory, _decoder) = source.progress.queue(decoding).await;
    let mut found = found.map_err(|error| ConsumeError::Refused {
        batch: id,
        reason: error.to_string(),
    })?;
    let found = found.pop().unwrap_or(PartKeys {
        sequence,
        ..PartKeys::default()
    });
    Ok((found, memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Part;
    use bytes::Bytes;
    use futures::FutureExt as _;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn a_standstill_is_the_stores_only_while_it_owes_an_answer() {
        let progress = Progress::new();
        let never = std::future::pending::<()>;
        let after = |seconds| sleep(Duration::from_secs(seconds));
        let blames_store = || progress.standstill(Duration::from_secs(90)).contains("store");
        let idle = || progress.last().elapsed().as_secs();
        assert!(blames_store());
        // A part waits for memory, and a decoder for another one.
        let mut first = Box::pin(progress.queue(never()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(!blames_store());
        progress.queue(after(80)).await;
        assert_eq!(idle(), 0);
        after(10).await;
        // The store owes an answer since the first of two requests.
        let mut request = Box::pin(progress.ask(never()));
        assert!(request.as_mut().now_or_never().is_none());
        assert!(blames_store());
        assert_eq!(idle(), 0);
        progress.queue(after(30)).await;
        progress.ask(after(30)).await;
        assert_eq!(idle(), 60);
    }

    #[test]
    fn the_keys_of_tiny_rows_are_paid_for() {
        let wanted = Wanted {
            key: "segment".into(),
            length: 1_000,
            part: Part {
                sequence: 7,
                first_record: 0,
                segment: ulid::Ulid::nil(),
                offset: 8,
                data: Bytes::new(),
                raw_len: 900_000,
                records: 100_000,
                dropped: Default::default(),
            },
        };
        let bytes = memory(&wanted);
        assert!(bytes >= 901_000 + 100_000 * 40, "{bytes} bytes are reserved");
    }
}
