//! Puts the state of a stream together again: the snapshots that the cursor names, and the keys of the log after them.

use super::keys::{PartKeys, ROW_BYTES};
use super::state::{KeyLimit, Of, State, TooManyKeys};
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
use std::collections::BTreeSet;
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
        }
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
pub(crate) async fn restore(
    shard: &Shard,
    source: &Source,
    limit: KeyLimit,
    to: u64,
) -> Result<(State, u64), ConsumeError> {
    let of = Of {
        buffer_id: shard.claim.buffer_id,
        shard: shard.claim.shard,
        consumer: shard.claim.consumer.clone(),
        stream: source.stream.clone(),
        setting: source.setting.clone(),
        since: source.of.since,
    };
    let named = shard.worker.snapshots_named;
    // From the environment, so that a seed of the simulation always gives the same run.
    let secret = shard.worker.environment.random_u128();
    let mut state = State::new(of, source.of.medians_from, limit, named, secret);
    if let Some(name) = source.of.snapshot {
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

/// Reads the keys of the log from the state on. Returns the uncompressed bytes of their parts.
async fn replay(shard: &Shard, source: &Source, state: &mut State, to: u64) -> Result<u64, ConsumeError> {
    let trimmed = |at: u64, first: u64| {
        source.lost(
            shard,
            format!("the log is needed from sequence {at} on, and retention has trimmed it below {first}"),
        )
    };
    let mut log = read_log_to(shard, source, to).await?;
    let mut at = state.next();
    if log.first_sequence > at {
        return Err(trimmed(at, log.first_sequence));
    }
    let Some(index) = log.stream_index(&source.stream) else {
        state.pass(to);
        return Ok(0);
    };
    let mut raw_bytes = 0_u64;
    while at < to {
        let missing = log.missing(at).filter(|page| page.first < to).cloned();
        if let Some(reference) = missing.filter(|page| page.first <= at)
            && let Some(first) = load(shard, &mut log, &reference).await?
        {
            return Err(trimmed(at, first));
        }
        let end = log.horizon(at).min(to);
        let parts = log.parts(index, at).take_while(|(sequence, ..)| *sequence < end);
        let parts = parts.filter(|(sequence, ..)| !source.skipped.contains(sequence));
        let parts = parts.inspect(|(.., part)| raw_bytes = raw_bytes.saturating_add(part.raw_len));
        let encoding = log.streams[index as usize].encoding;
        let wanted =
            parts.map(|(sequence, entry, part)| Wanted::of(shard.claim.shard, sequence, entry, part));
        let reads = wanted.map(|wanted| keys(shard, source, encoding, wanted));
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(PARTS_AT_A_TIME);
        loop {
            let (part, _memory) = match reads.try_next().await {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(ConsumeError::Lost { key, sequence }) => {
                    return Err(match shard.gone(&key, sequence).await? {
                        ConsumeError::Trimmed { sequence, first, .. } => trimmed(sequence, first),
                        other => other,
                    });
                }
                Err(error) => return Err(error),
            };
            state.part(&part).map_err(|full| too_many(&source.stream, full))?;
        }
        at = end;
        log.unload(|page| page.last >= at);
    }
    state.pass(to);
    Ok(raw_bytes)
}

/// The memory of a part that is read for its keys.
fn memory(wanted: &Wanted) -> u64 {
    let bytes = wanted.length.saturating_add(wanted.part.raw_len);
    bytes.saturating_add(wanted.part.records.saturating_mul(ROW_BYTES))
}

/// Reads the keys of one part. Their memory is reserved until somebody has decided about them.
async fn keys(
    shard: &Shard,
    source: &Source,
    encoding: millpond_segment::Encoding,
    wanted: Wanted,
) -> Result<(PartKeys, Reservation), ConsumeError> {
    let worker = &shard.worker;
    // The parts ask in their order, so the first one never waits for a later one.
    let memory = worker.memory.reserve_at_most(memory(&wanted)).await;
    let sequence = wanted.part.sequence;
    let part = worker.fetch(shard.claim.shard, wanted, None).await?;
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
    let _decoder = worker.decoders.acquire().await.expect("never closed");
    let (sink, paths) = (worker.sink.clone(), source.setting.key.clone());
    let id = batch.id.to_string();
    let found = blocking::compute(&*worker.environment, move || sink.keys(&batch, &paths)).await;
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
