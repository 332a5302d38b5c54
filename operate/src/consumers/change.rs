//! An operator's changes to a cursor: reset, remove, skip. Each is one swap. A reset or a removal also ends the consumer's
//! repair: both would insert the same missing rows.

use super::Selection;
use crate::Target;
use crate::buffer::{self, read_log, read_log_of, read_tail};
use anyhow::{Context, bail};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::cursor::{SENT_UNKNOWN, Skip};
use millpond_manifest::{BatchingPolicy, Cursor, Log, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::{Fetched, Store, Version};
use ulid::Ulid;

/// Attempts to swap a cursor that its owner changes meanwhile.
const SWAPS_MAX: u32 = 10;

/// A reset of a cursor that is not made yet.
#[derive(Debug)]
pub struct Reset {
    /// The shard.
    pub shard: u32,
    /// The new position.
    pub position: u64,
    /// The name of the consumer's sink.
    pub sink: String,
    /// The streams with records below the new position that the consumer has not acknowledged, and the number of these. `None`: a page
    /// cannot be read.
    pub passed_over: Option<Vec<(String, u64)>>,
    before: Snapshot<Cursor>,
}

/// The removal of a cursor that is not made yet.
#[derive(Debug)]
pub struct Removal {
    /// The shard.
    pub shard: u32,
    before: Before,
}

#[derive(Debug)]
enum Before {
    Cursor(Box<Snapshot<Cursor>>),
    /// The cursor cannot be read.
    Damaged(Version),
}

/// A reset or a removal that was made.
#[derive(Debug, PartialEq, Eq)]
pub struct Changed {
    /// It ended an unfinished repair of the consumer.
    pub repair_ended: bool,
}

/// Finds the position of every cursor, so that a bad one changes nothing.
///
/// # Errors
/// There is no such cursor, position or log, or a cursor's owner is running.
pub async fn plan_reset(store: &Store, selection: &Selection, to: Target) -> anyhow::Result<Vec<Reset>> {
    layout::check_reader_name(&selection.consumer)?;
    let mut resets = Vec::new();
    for (shard, before) in selection.cursors(store).await? {
        // Only a time needs the pages. A reset must be able to move past a page that cannot be read.
        let log = match to {
            Target::Time(_) => read_log(store, shard).await?,
            _ => read_tail(store, shard).await?,
        };
        let Some(log) = log else {
            match before.state.furthest() {
                // Nobody has committed to it yet.
                0 => continue,
                read => bail!(
                    "shard {shard:04} has no manifest, and {} has read up to sequence {read} of it: restore the manifest, or reset the \
                     consumer once gateways have begun a new one",
                    selection.consumer
                ),
            }
        };
        if to.is_sequence() && !resets.is_empty() {
            bail!("a sequence belongs to one shard: select it with --shard");
        }
        let position = to.position(&log)?;
        resets.push(Reset {
            shard,
            position,
            sink: before.state.policy.sink.clone(),
            passed_over: passed_over(store, log, &before.state, position).await,
            before,
        });
    }
    if resets.is_empty() {
        bail!(
            "nothing has been committed yet, so {} has no position to reset",
            selection.consumer
        );
    }
    Ok(resets)
}

/// Counts the records of each stream from the consumer's position up to the new one. `None`: a page that has some cannot be read.
async fn passed_over(
    store: &Store,
    mut log: Log,
    cursor: &Cursor,
    position: u64,
) -> Option<Vec<(String, u64)>> {
    let positions = log.streams.iter().map(|stream| cursor.next(&stream.name));
    let Some(hindmost) = positions.min().filter(|hindmost| *hindmost < position) else {
        return Some(Vec::new());
    };
    while let Some(page) = log
        .missing(hindmost)
        .filter(|page| page.first < position)
        .cloned()
    {
        buffer::load(store, &mut log, &page).await.ok()?;
    }
    // Pages behind the new position count in both.
    let streams = (0_u32..).zip(&log.streams).map(|(index, stream)| {
        let unread = log.records(index, cursor.next(&stream.name));
        (
            stream.name.clone(),
            unread.saturating_sub(log.records(index, position)),
        )
    });
    Some(streams.filter(|(_, records)| *records > 0).collect())
}

/// Resets a cursor.
///
/// # Errors
/// The cursor changed meanwhile, or a repair is running.
pub async fn reset(store: &Store, selection: &Selection, reset: &Reset) -> anyhow::Result<Changed> {
    supersede(store, selection, reset.shard, &reset.before, |cursor| {
        cursor.reset(reset.position)
    })
    .await
}

/// Finds the cursors to remove, in the order in which to remove them. With force, they need not be readable.
///
/// The register of the consumer's tables, in the first shard, comes last: while another shard has a cursor, its owner writes.
///
/// # Errors
/// There is no such cursor, a cursor's owner is running, or the first shard is selected and others have cursors.
pub async fn plan_removal(store: &Store, selection: &Selection) -> anyhow::Result<Vec<Removal>> {
    let removal = |shard, cursor| Removal {
        shard,
        before: Before::Cursor(Box::new(cursor)),
    };
    let claiming = claiming(store, selection).await;
    let mut there = match selection.force {
        true => removable(store, selection).await?,
        false => {
            let cursors = selection.there(store).await?.into_iter();
            cursors.map(|(shard, cursor)| removal(shard, cursor)).collect()
        }
    };
    there.extend(claiming.map(|claims| removal(0, claims)));
    if there.is_empty() {
        return Err(selection.unknown(store));
    }
    let is_repair = layout::repaired_by(&selection.consumer).is_some();
    if selection.shard == Some(0) && !is_repair {
        let all = Selection {
            shard: None,
            force: true,
            ..selection.clone()
        };
        if let Some(other) = removable(store, &all).await?.iter().find(|other| other.shard > 0) {
            bail!(
                "{} has a cursor in shard {:04} too, and its cursor in shard 0000 names the tables of all shards: remove the others \
                 first, or all of them without --shard",
                selection.consumer,
                other.shard
            );
        }
    }
    there.sort_by_key(|removal| std::cmp::Reverse(removal.shard));
    Ok(there)
}

/// Finds the selected cursors, whoever owns them. They need not be readable.
async fn removable(store: &Store, selection: &Selection) -> anyhow::Result<Vec<Removal>> {
    let mut there = Vec::new();
    for shard in selection.shards(store).await? {
        match buffer::cursor(store, shard, &selection.consumer).await {
            Ok(found) => there.extend(found.map(|found| Removal {
                shard,
                before: Before::Cursor(Box::new(found)),
            })),
            Err(ReadError::Format { key, .. }) => {
                let version = match store.get_at_most(&key, None, 0).await? {
                    Fetched::Changed(found) => Some(found.version),
                    Fetched::TooLarge { version, .. } => Some(version),
                    Fetched::Absent | Fetched::Unchanged => None,
                };
                there.extend(version.map(|version| Removal {
                    shard,
                    before: Before::Damaged(version),
                }));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(there)
}

/// The register of a consumer that has no cursor and asks for tables: its process may have died, and others may not have them.
async fn claiming(store: &Store, selection: &Selection) -> Option<Snapshot<Cursor>> {
    let key = layout::cursor(0, &selection.consumer);
    // A register that cannot be read is removed like every other cursor.
    let found = cas::read::<Cursor>(store, &key).await.ok()??;
    let asks = found.state.is_removed() && found.state.tables.claim.is_some();
    (asks && selection.shard.is_none_or(|shard| shard == 0)).then_some(found)
}

/// Removes a cursor.
///
/// # Errors
/// The cursor changed meanwhile, or a repair is running.
pub async fn remove(store: &Store, selection: &Selection, removal: &Removal) -> anyhow::Result<Changed> {
    let shard = removal.shard;
    match &removal.before {
        Before::Cursor(cursor) => supersede(store, selection, shard, cursor, Cursor::remove).await,
        Before::Damaged(version) => {
            let tombstone = from_scratch(store, shard, &selection.consumer).await?;
            swap(store, version, tombstone).await?;
            let repair_ended = end_repair(store, selection, shard).await?.is_some();
            Ok(Changed { repair_ended })
        }
    }
}

/// Deletes the list of the consumer's processes, after its cursors. Before them, a process that divides the shards would write it anew.
///
/// # Errors
/// The store fails.
pub async fn forget_processes(store: &Store, selection: &Selection) -> anyhow::Result<()> {
    let consumer = &selection.consumer;
    // The first shard is the last to go. A repair has no list.
    if selection.shard.is_some_and(|shard| shard > 0) || layout::check_reader_name(consumer).is_err() {
        return Ok(());
    }
    let key = layout::members(consumer);
    let deleted = store.delete(&key).await;
    deleted.with_context(|| {
        format!("{consumer} is removed, but {key} cannot be deleted: garbage collection deletes it")
    })
}

/// Finds cursors that were made while the consumer was removed: a process that started meanwhile began in another shard before it
/// found that its register was gone.
///
/// # Errors
/// There are such cursors.
pub async fn check_removed(store: &Store, selection: &Selection) -> anyhow::Result<()> {
    let consumer = &selection.consumer;
    // A consumer with a register was started again after the removal.
    if selection.shard.is_some() || buffer::cursor(store, 0, consumer).await?.is_some() {
        return Ok(());
    }
    if let Some(Removal { shard, .. }) = removable(store, selection).await?.first() {
        bail!(
            "{consumer} began again in shard {shard:04} while it was removed: stop its processes, and run this command again with \
             --force"
        );
    }
    Ok(())
}

/// A tombstone in place of a lost cursor: the next consumer of the name waits for all requests, and asks for all rows.
async fn from_scratch(store: &Store, shard: u32, consumer: &str) -> anyhow::Result<Cursor> {
    let own = buffer::buffer(store).await?;
    let usual = millpond_consumer::Config::default();
    let policy = BatchingPolicy {
        batch_records: usual.batch_records,
        batch_bytes: usual.batch_bytes,
        chunk_rows: usual.chunk_rows,
        chunk_bytes: usual.chunk_bytes,
        max_partitions_per_chunk: usual.max_partitions_per_chunk,
        max_in_flight: usual.max_in_flight,
        sink: String::new(),
        schema_version: 0,
    };
    let mut cursor = Cursor::new(own.id, shard, consumer, 0, policy).remove();
    cursor.unsettled = true;
    // So are the settings under which it dropped repeated events.
    cursor.deduplicated_below = SENT_UNKNOWN;
    cursor.lease_ms = u64::try_from(usual.lease.as_millis())?;
    // The generation of the lost cursor's tokens is unknown.
    cursor.generation = u64::from(SystemEnvironment.random_u32());
    Ok(cursor)
}

/// Swaps a cursor for one that sends its rows anew, and ends its repair. With force, its owner may change it meanwhile.
async fn supersede(
    store: &Store,
    selection: &Selection,
    shard: u32,
    before: &Snapshot<Cursor>,
    change: impl Fn(&Cursor) -> Cursor,
) -> anyhow::Result<Changed> {
    let mut before = before.clone();
    for _ in 1..SWAPS_MAX {
        let made = supersede_once(store, selection, shard, &before, &change).await;
        match made {
            Err(error) if selection.force && error.is::<ChangedMeanwhile>() => {
                let found = buffer::cursor(store, shard, &selection.consumer).await?;
                before = found.ok_or(error)?;
            }
            made => return made,
        }
    }
    supersede_once(store, selection, shard, &before, &change).await
}

/// The cursor is no longer the one that the change was made from.
#[derive(Debug, thiserror::Error)]
#[error("the cursor in shard {0:04} changed meanwhile: its owner is running; try again")]
struct ChangedMeanwhile(u32);

async fn supersede_once(
    store: &Store,
    selection: &Selection,
    shard: u32,
    before: &Snapshot<Cursor>,
    change: impl Fn(&Cursor) -> Cursor,
) -> anyhow::Result<Changed> {
    let repair = read_repair(store, selection, shard).await?;
    if let Some(held) = repair
        .as_ref()
        .and_then(|repair| repair.state.held_at(SystemEnvironment.now_ms()))
        && !selection.force
    {
        bail!(
            "{} repairs {} in shard {shard:04}: stop it first, or use --force",
            held.owner,
            selection.consumer
        );
    }
    let mut next = change(&before.state);
    if let Some(repair) = repair.map(|repair| repair.state).filter(may_be_sending) {
        unsettle(&mut next, &repair);
    }
    let covered = next.unsettled.then_some(next.lease_ms);
    swap(store, &before.version, next).await?;
    let ended = end_repair(store, selection, shard).await?;
    let repair_ended = ended.is_some();
    // A repair that began meanwhile has not seen the change.
    if let Some(ended) = ended
        && may_be_sending(&ended)
        && covered.is_none_or(|lease_ms| lease_ms < ended.lease_ms)
    {
        let key = layout::cursor(shard, &selection.consumer);
        for _ in 0..SWAPS_MAX {
            let found = cas::read::<Cursor>(store, &key).await?;
            let found = found.with_context(|| format!("{key} was deleted meanwhile"))?;
            let mut next = found.state.clone();
            unsettle(&mut next, &ended);
            if swap(store, &found.version, next).await.is_ok() {
                return Ok(Changed { repair_ended });
            }
        }
        bail!(
            "a repair of {} began meanwhile and was given up: run this command again",
            selection.consumer
        );
    }
    Ok(Changed { repair_ended })
}

/// Returns true if requests with this cursor's tokens may be in flight.
fn may_be_sending(cursor: &Cursor) -> bool {
    cursor.unsettled || !cursor.is_clean()
}

/// The next owner waits for the requests of the other cursor's owners.
fn unsettle(cursor: &mut Cursor, other: &Cursor) {
    cursor.unsettled = true;
    cursor.lease_ms = cursor.lease_ms.max(other.lease_ms);
}

async fn read_repair(
    store: &Store,
    selection: &Selection,
    shard: u32,
) -> Result<Option<Snapshot<Cursor>>, ReadError> {
    cas::read(
        store,
        &layout::cursor(shard, &layout::repair(&selection.consumer)),
    )
    .await
}

/// Ends a repair of the consumer, and returns its cursor as it was.
async fn end_repair(store: &Store, selection: &Selection, shard: u32) -> anyhow::Result<Option<Cursor>> {
    for _ in 0..SWAPS_MAX {
        let found = read_repair(store, selection, shard).await?;
        let Some(found) = found.filter(|found| !found.state.is_removed()) else {
            return Ok(None);
        };
        if swap(store, &found.version, found.state.remove()).await.is_ok() {
            return Ok(Some(found.state));
        }
    }
    bail!(
        "the repair of {} in shard {shard:04} could not be ended: stop it, and run this command again",
        selection.consumer
    )
}

/// Swaps a cursor. Reads it again if the outcome is unknown.
async fn swap(store: &Store, before: &Version, next: Cursor) -> anyhow::Result<()> {
    let next = next.stamped(SystemEnvironment.random());
    let (stamp, shard) = (next.stamp, next.shard);
    let key = layout::cursor(shard, &next.consumer);
    match cas::swap(store, &key, Some(before), next).await {
        Swap::Committed(_) => Ok(()),
        Swap::Mismatch => Err(ChangedMeanwhile(shard).into()),
        Swap::Unknown(error) => {
            let found = cas::read::<Cursor>(store, &key).await?;
            if found.is_some_and(|found| found.state.stamp == stamp) {
                return Ok(());
            }
            Err(error).with_context(|| format!("the store did not say whether the cursor in shard {shard:04} changed: check with `millpond consumer list`"))
        }
    }
}

/// A skip that was made.
#[derive(Debug)]
pub struct Skipped {
    /// Records that the consumer leaves out.
    pub records: u64,
    /// The segment.
    pub segment: Ulid,
    /// The owner that the skip fenced, since it may have sent rows of the segment.
    pub fenced: Option<String>,
}

/// Makes a consumer leave out one stream's part of a segment.
///
/// # Errors
/// There is no such part or consumer, or the cursor changed meanwhile.
pub async fn skip(
    store: &Store,
    consumer: &str,
    shard: u32,
    stream: String,
    sequence: u64,
    reason: String,
) -> anyhow::Result<Skipped> {
    let skip = Skip {
        stream,
        sequence,
        at_ms: SystemEnvironment.now_ms(),
        reason,
    };
    layout::check_consumer_name(consumer)?;
    // Another page may be damaged, too.
    let log = read_log_of(store, shard, &(skip.sequence..=skip.sequence))
        .await?
        .with_context(|| format!("shard {shard:04} has no manifest"))?;
    let index = log.stream_index(&skip.stream);
    let index = index.with_context(|| format!("shard {shard:04} has no stream {}", skip.stream))?;
    let found = log
        .parts(index, skip.sequence)
        .next()
        .filter(|(sequence, ..)| *sequence == skip.sequence);
    let (_, entry, part) = found.with_context(|| {
        format!(
            "sequence {} of shard {shard:04} has no {}",
            skip.sequence, skip.stream
        )
    })?;
    let cursor = buffer::cursor(store, shard, consumer).await?;
    let before = cursor.with_context(|| format!("no consumer {consumer} has read shard {shard:04}"))?;
    let mut next = before.state.clone();
    next.skip(skip)?;
    let fenced = before
        .state
        .held_at(SystemEnvironment.now_ms())
        .filter(|_| !next.is_of(&before.state));
    swap(store, &before.version, next).await?;
    Ok(Skipped {
        records: part.records,
        segment: entry.segment,
        fenced: fenced.map(|held| held.owner.clone()),
    })
}

#[cfg(test)]
mod tests;
