//! `millpond buffer shards N`: adds shards to a live buffer. It never shrinks one, and never touches a cursor that an owner has opened.
//!
//! Every consumer gets a cursor at sequence 0 in each new shard before the buffer object names the shard, because a producer writes only to
//! shards that the object names. A run may stop anywhere, and any number may run at once: the same command completes the growth.

use anyhow::{Context, anyhow, bail};
use millpond_manifest::cas::{self, ReadError, Snapshot, Swap};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Buffer, Cursor, layout};
use millpond_runtime::{Backoff, Environment as _, SystemEnvironment};
use millpond_storage::Store;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use crate::buffer::NO_BUFFER;

/// Attempts to swap an object that others change meanwhile.
pub(crate) const SWAPS_MAX: u32 = 10;

/// Between two attempts whose outcomes are unknown.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
}

/// A growth that was made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Grown {
    /// The number of shards before.
    pub before: u32,
    /// The number of shards now.
    pub shards: u32,
    /// The cursors that this run began, of all consumers and shards.
    pub cursors_begun: u64,
}

/// Grows the buffer to this number of shards. With the number that it has already, completes a growth that was interrupted.
///
/// # Errors
/// There is no buffer, it has more shards, a consumer's cursor in shard 0 cannot be read, a consumer drops repeated events of a stream
/// that is not routed, or the store fails.
pub async fn grow(store: &Store, shards: u32) -> anyhow::Result<Grown> {
    let (mut before, mut unknown) = (None, None);
    let mut cursors_begun = 0;
    let mut backoff = backoff();
    for _ in 0..SWAPS_MAX {
        let found = read(store).await?;
        let from = *before.get_or_insert(found.state.shards);
        let next = found.state.grow(shards, SystemEnvironment.random())?;
        // An interrupted growth may have left any shard but the first without cursors.
        let first_new = if from < shards { from } else { 1 };
        if next.is_some() {
            check_routes(&registers(store).await?, &found.state)?;
        }
        cursors_begun += begin_consumers(store, &found.state, first_new..shards).await?;
        let Some(next) = next else {
            return Ok(Grown {
                before: from,
                shards,
                cursors_begun,
            });
        };
        // After each outcome the next round reads the object. If it has the shards now, that round completes the growth: it begins the
        // consumers that started meanwhile and took the buffer for the smaller one.
        if let Swap::Unknown(error) = cas::swap(store, layout::BUFFER, Some(&found.version), next).await {
            unknown = Some(error);
            backoff.pause(&SystemEnvironment).await;
        }
    }
    Err(unconfirmed(layout::BUFFER, unknown))
}

/// The error after the last attempt to change an object.
pub(crate) fn unconfirmed(key: &str, unknown: Option<millpond_storage::Error>) -> anyhow::Error {
    match unknown {
        Some(error) => {
            anyhow!("the store does not confirm the change of {key}: {error}: run this command again")
        }
        None => anyhow!("others keep changing {key}: run this command again"),
    }
}

pub(crate) async fn read(store: &Store) -> anyhow::Result<Snapshot<Buffer>> {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await?;
    found.with_context(|| format!("there is no buffer at {}: {NO_BUFFER}", store.url()))
}

/// Refuses a growth that would end a consumer: the rows of a key would be in several shards.
fn check_routes(registers: &[Cursor], buffer: &Buffer) -> anyhow::Result<()> {
    for Cursor { consumer, unique, .. } in registers {
        for (stream, of) in unique {
            let Some(setting) = &of.setting else { continue };
            let route = buffer.routed.get(&**stream);
            if route.is_none_or(|route| route.key != setting.key) {
                bail!(
                    "consumer {consumer} drops repeated events of stream {stream} by {}, and gateways do not route its rows by that key: \
                     with more shards the consumer would exit. First run `millpond buffer route --unique FILE` with the consumer's file; \
                     for a consumer that is not used any more, `millpond consumer remove {consumer}`",
                    setting.key.join(", ")
                );
            }
        }
    }
    Ok(())
}

/// Begins every consumer of shard 0 at sequence 0 of these shards, unless it has a cursor there. Returns the number of new cursors.
async fn begin_consumers(store: &Store, buffer: &Buffer, shards: Range<u32>) -> anyhow::Result<u64> {
    let registers = registers(store).await?;
    let living: BTreeSet<&str> = registers.iter().map(|it| it.consumer.as_str()).collect();
    let mut begun = 0;
    for shard in shards {
        for register in &registers {
            // A consumer that began with this shard makes its own cursor there, where --from says.
            if register.shards <= shard && begin(store, buffer, shard, register).await? {
                begun += 1;
            }
        }
        end_removed(store, shard, &living).await?;
    }
    Ok(begun)
}

/// The cursors in shard 0 of all consumers: living, held, released or abandoned.
async fn registers(store: &Store) -> anyhow::Result<Vec<Cursor>> {
    let mut registers = Vec::new();
    for (key, consumer) in consumers(store, 0).await? {
        match cas::read::<Cursor>(store, &key).await {
            Ok(found) => registers.extend(found.map(|found| found.state).filter(|it| !it.is_removed())),
            Err(damaged @ ReadError::Format { .. }) => bail!(
                "{damaged}: the buffer does not grow, because consumer {consumer} would miss the data of the new shards; repair the \
                 cursor, or give the consumer up with `millpond consumer remove {consumer} --force`"
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(registers)
}

/// The keys of the consumers' cursors in a shard with the consumers' names. Repairs read no new data.
async fn consumers(store: &Store, shard: u32) -> anyhow::Result<Vec<(String, String)>> {
    let listed = store.list(&layout::consumers(shard)).await?;
    let names = listed.into_iter().filter_map(|found| {
        let consumer = layout::reader_of_cursor(shard, &found.key)?.to_owned();
        Some((found.key, consumer))
    });
    Ok(names.collect())
}

/// Begins a consumer in a shard. Returns false if it has a cursor there.
async fn begin(store: &Store, buffer: &Buffer, shard: u32, register: &Cursor) -> anyhow::Result<bool> {
    let key = layout::cursor(shard, &register.consumer);
    let (mut unknown, mut backoff) = (None, backoff());
    for _ in 0..SWAPS_MAX {
        // A cursor that cannot be read is its consumer's: it ends with the reason, and the log is kept for it.
        let found = match cas::read::<Cursor>(store, &key).await {
            Err(ReadError::Format { .. }) => return Ok(false),
            found => found?,
        };
        let policy = register.policy.clone();
        let cursor = match &found {
            Some(found) if found.state.buffer_id != buffer.id => bail!(
                "{key} belongs to buffer {}, not to {}: delete it if that buffer is gone",
                found.state.buffer_id,
                buffer.id
            ),
            Some(found) if !found.state.is_removed() => return Ok(false),
            Some(tombstone) => tombstone.state.begin_again(0, policy),
            None => Cursor::new(buffer.id, shard, &register.consumer, 0, policy),
        };
        let version = found.map(|found| found.version);
        let next = cursor.stamped(SystemEnvironment.random());
        match cas::swap(store, &key, version.as_ref(), next).await {
            Swap::Committed(_) => return Ok(true),
            // Another growth, or the consumer, was first: the next read shows it.
            Swap::Mismatch => {}
            Swap::Unknown(error) => {
                unknown = Some(error);
                backoff.pause(&SystemEnvironment).await;
            }
        }
    }
    Err(unconfirmed(&key, unknown))
}

/// Ends the cursors that a growth began for consumers that were removed meanwhile: nobody would ever open them, and they would keep the log.
async fn end_removed(store: &Store, shard: u32, living: &BTreeSet<&str>) -> anyhow::Result<()> {
    for (key, consumer) in consumers(store, shard).await? {
        if living.contains(consumer.as_str()) {
            continue;
        }
        let Ok(found) = cas::read::<Cursor>(store, &key).await else {
            continue;
        };
        let Some(found) = found.filter(|found| never_opened(&found.state)) else {
            continue;
        };
        // The consumer may have begun again since the registers were read.
        let register = cas::read::<Cursor>(store, &layout::cursor(0, &consumer)).await?;
        if register.is_none_or(|register| register.state.is_removed()) {
            let next = found.state.remove().stamped(SystemEnvironment.random());
            // A lost race or answer leaves a cursor that the next run or `millpond consumer remove` ends.
            let _ = cas::swap(store, &key, Some(&found.version), next).await;
        }
    }
    Ok(())
}

/// Returns true if no owner has opened the cursor since it began.
fn never_opened(cursor: &Cursor) -> bool {
    cursor.ownership == Ownership::Released && cursor.opening == 0 && cursor.streams.is_empty()
}

#[cfg(test)]
mod tests;
