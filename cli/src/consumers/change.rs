//! An operator's changes to a cursor: reset, remove, skip. Each is one swap, and a reset or a removal also ends the consumer's
//! repair: both would insert the same missing rows.

use super::{Hand, Target, read_log};
use crate::clock::now_ms;
use crate::inspect;
use crate::output::say;
use anyhow::{Context, bail, ensure};
use millpond_clickhouse::keeps_identities;
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::cursor::{Ownership, Skip};
use millpond_manifest::{BatchingPolicy, Cursor, Log, Manifest, layout};
use millpond_storage::{Fetched, Store, Version};
use std::io::{BufRead, IsTerminal, Write};

/// How often a swap is tried again that an owner's own swaps keep from happening.
const SWAPS_MAX: u32 = 10;

/// The risks that an operator has accepted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consent {
    pub(super) yes: bool,
    pub(super) may_duplicate: bool,
}

impl Consent {
    /// Asks for what is missing.
    fn ask(self, hand: &Hand, changes: &[(u32, u64, Cursor)]) -> anyhow::Result<()> {
        let consumer = &hand.consumer;
        let lacking = changes
            .iter()
            .find(|(.., cursor)| !keeps_identities(&cursor.policy.sink));
        if let Some((.., cursor)) = lacking {
            ensure!(
                self.may_duplicate,
                "{consumer} writes to {}, which does not keep the identities of rows: a reset inserts rows again whose tokens \
                 ClickHouse has forgotten; use --may-duplicate to accept that",
                cursor.policy.sink
            );
        }
        if self.yes {
            return Ok(());
        }
        ensure!(
            std::io::stdin().is_terminal(),
            "a reset brings back rows that a mutation or a person removed from the table, and perhaps rows that a TTL removed: \
             confirm it with --yes"
        );
        for (shard, position, _) in changes {
            eprintln!("{consumer} in shard {shard:04} goes on from sequence {position}.");
        }
        eprintln!("Rows that the table has are not inserted again.");
        eprintln!("Rows that a mutation or a person removed come back, and so may rows that a TTL removed.");
        eprint!("Reset {consumer}? [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was changed");
        Ok(())
    }
}

pub(super) async fn reset(hand: &Hand, to: Target, consent: Consent) -> anyhow::Result<()> {
    layout::check_reader_name(&hand.consumer)?;
    let store = hand.store.open(false).await?;
    // Find every position before the first change, so that a bad one changes nothing.
    let mut changes = Vec::new();
    for (shard, cursor) in hand.cursors(&store).await? {
        // Only a time needs the pages. A reset must be able to move past a page that cannot be read.
        let log = match to {
            Target::Time(_) => read_log(&store, shard).await?,
            _ => cas::read::<Manifest>(&store, &layout::manifest(shard))
                .await?
                .map(|found| Log::new(found.state)),
        };
        let Some(log) = log else {
            continue;
        };
        if matches!(to, Target::Sequence(_)) && !changes.is_empty() {
            bail!("a sequence belongs to one shard: say which with --shard");
        }
        changes.push((shard, to.position(&log)?, cursor));
    }
    let positions = changes
        .iter()
        .map(|(shard, position, cursor)| (*shard, *position, cursor.state.clone()));
    consent.ask(hand, &positions.collect::<Vec<_>>())?;
    for (shard, position, cursor) in changes {
        supersede(&store, hand, shard, &cursor, |cursor| cursor.reset(position)).await?;
        // Change the other shards even if standard output is closed.
        let _ = say!(
            "{} in shard {shard:04} goes on from sequence {position}, and inserts what its table lacks from there on",
            hand.consumer
        );
    }
    Ok(())
}

pub(super) async fn remove(hand: &Hand) -> anyhow::Result<()> {
    let store = hand.store.open(false).await?;
    for (shard, found) in removable(hand, &store).await? {
        match found {
            Found::Cursor(cursor) => supersede(&store, hand, shard, &cursor, Cursor::remove).await?,
            Found::Damaged(version) => {
                let tombstone = from_scratch(&store, shard, &hand.consumer).await?;
                swap(&store, &version, tombstone).await?;
                end_repair(&store, hand, shard).await?;
            }
        }
        // Change the other shards even if standard output is closed.
        let _ = say!("{} is removed from shard {shard:04}", hand.consumer);
    }
    Ok(())
}

/// A cursor to remove.
enum Found {
    Cursor(Box<Snapshot<Cursor>>),
    /// The cursor cannot be read.
    Damaged(Version),
}

/// The cursors that may be removed. With force, they need not be readable.
async fn removable(hand: &Hand, store: &Store) -> anyhow::Result<Vec<(u32, Found)>> {
    if !hand.force {
        let cursors = hand.cursors(store).await?.into_iter();
        let found = cursors.map(|(shard, cursor)| (shard, Found::Cursor(Box::new(cursor))));
        return Ok(found.collect());
    }
    let mut there = Vec::new();
    for shard in hand.shards(store).await? {
        match inspect::cursor(store, shard, &hand.consumer).await {
            Ok(found) => there.extend(found.map(|found| (shard, Found::Cursor(Box::new(found))))),
            Err(ReadError::Format { key, .. }) => {
                let version = match store.get_at_most(&key, None, 0).await? {
                    Fetched::Changed(found) => Some(found.version),
                    Fetched::TooLarge { version, .. } => Some(version),
                    Fetched::Absent | Fetched::Unchanged => None,
                };
                there.extend(version.map(|version| (shard, Found::Damaged(version))));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if there.is_empty() {
        return Err(hand.unknown(store));
    }
    Ok(there)
}

/// A tombstone where nobody knows what was sent: the next consumer of the name waits for all requests and asks for all rows.
async fn from_scratch(store: &Store, shard: u32, consumer: &str) -> anyhow::Result<Cursor> {
    let buffer = inspect::buffer(store).await?;
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
    let mut cursor = Cursor::new(buffer.id, shard, consumer, 0, policy).remove();
    cursor.unsettled = true;
    cursor.lease_ms = u64::try_from(usual.lease.as_millis())?;
    // Tokens of the lost cursor had a generation that nobody knows.
    cursor.generation = u64::from(rand::random::<u32>());
    Ok(cursor)
}

/// Swaps a cursor for one that sends its rows anew, and ends its repair.
async fn supersede(
    store: &Store,
    hand: &Hand,
    shard: u32,
    before: &Snapshot<Cursor>,
    change: impl Fn(&Cursor) -> Cursor,
) -> anyhow::Result<()> {
    let repair = read_repair(store, hand, shard).await?;
    if let Some(held) = repair.as_ref().and_then(|repair| repair.state.held_at(now_ms()))
        && !hand.force
    {
        bail!(
            "{} repairs {} in shard {shard:04}: stop it first, or use --force",
            held.owner,
            hand.consumer
        );
    }
    let mut next = change(&before.state);
    if let Some(repair) = repair.map(|repair| repair.state).filter(may_be_sending) {
        unsettle(&mut next, &repair);
    }
    let covered = next.unsettled.then_some(next.lease_ms);
    swap(store, &before.version, next).await?;
    // A repair that began meanwhile has not seen the change.
    if let Some(ended) = end_repair(store, hand, shard).await?
        && may_be_sending(&ended)
        && covered.is_none_or(|lease_ms| lease_ms < ended.lease_ms)
    {
        let key = layout::cursor(shard, &hand.consumer);
        for _ in 0..SWAPS_MAX {
            let found = cas::read::<Cursor>(store, &key).await?;
            let found = found.with_context(|| format!("{key} was deleted meanwhile"))?;
            let mut next = found.state.clone();
            unsettle(&mut next, &ended);
            if swap(store, &found.version, next).await.is_ok() {
                return Ok(());
            }
        }
        bail!(
            "a repair of {} began meanwhile: run this command again",
            hand.consumer
        );
    }
    Ok(())
}

/// Whether requests under this cursor's tokens may be under way.
fn may_be_sending(cursor: &Cursor) -> bool {
    let clean = matches!(cursor.ownership, Ownership::Released | Ownership::Removed);
    cursor.unsettled || !clean
}

/// The next owner waits for the requests of the other cursor's owners.
fn unsettle(cursor: &mut Cursor, other: &Cursor) {
    cursor.unsettled = true;
    cursor.lease_ms = cursor.lease_ms.max(other.lease_ms);
}

async fn read_repair(store: &Store, hand: &Hand, shard: u32) -> Result<Option<Snapshot<Cursor>>, ReadError> {
    cas::read(store, &layout::cursor(shard, &layout::repair(&hand.consumer))).await
}

/// Ends a repair of the consumer, and returns its cursor as it was.
async fn end_repair(store: &Store, hand: &Hand, shard: u32) -> anyhow::Result<Option<Cursor>> {
    for _ in 0..SWAPS_MAX {
        let found = read_repair(store, hand, shard).await?;
        let Some(found) = found.filter(|found| !found.state.is_removed()) else {
            return Ok(None);
        };
        if swap(store, &found.version, found.state.remove()).await.is_ok() {
            let _ = say!(
                "the unfinished repair of {} in shard {shard:04} is given up",
                hand.consumer
            );
            return Ok(Some(found.state));
        }
    }
    bail!(
        "the repair of {} in shard {shard:04} could not be ended: stop it, and run this command again",
        hand.consumer
    )
}

/// Swaps a cursor. Reads it again if the outcome is unknown.
async fn swap(store: &Store, before: &Version, next: Cursor) -> anyhow::Result<()> {
    let next = next.stamped(rand::random());
    let (stamp, shard) = (next.stamp, next.shard);
    let key = layout::cursor(shard, &next.consumer);
    match cas::swap(store, &key, Some(before), next).await {
        Swap::Committed(_) => Ok(()),
        Swap::Mismatch => {
            bail!("the cursor in shard {shard:04} changed meanwhile: its owner lives; try again")
        }
        Swap::Unknown(error) => {
            let found = cas::read::<Cursor>(store, &key).await?;
            if found.is_some_and(|found| found.state.stamp == stamp) {
                return Ok(());
            }
            Err(error).with_context(|| format!("it is not known whether the cursor in shard {shard:04} was changed; look with `millpond consumer list`"))
        }
    }
}

pub(super) async fn leave_out(store: &Store, consumer: &str, shard: u32, skip: Skip) -> anyhow::Result<()> {
    layout::check_consumer_name(consumer)?;
    let log = read_log(store, shard)
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
    let cursor = inspect::cursor(store, shard, consumer).await?;
    let before = cursor.with_context(|| format!("no consumer {consumer} has read shard {shard:04}"))?;
    let mut next = before.state.clone();
    let sequence = skip.sequence;
    next.skip(skip)?;
    let fenced = before
        .state
        .held_at(now_ms())
        .filter(|_| !next.is_of(&before.state));
    swap(store, &before.version, next).await?;
    say!(
        "{consumer} leaves out {} records of segment {} (sequence {sequence})",
        part.records,
        entry.segment
    )?;
    if let Some(held) = fenced {
        say!(
            "rows of that segment may have been sent, so {} was fenced: the next owner asks the table before it sends the rest",
            held.owner
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
