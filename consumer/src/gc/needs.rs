//! The part of a shard's log that its consumers still need, by their cursors. It reads, and never changes anything.

use super::recognition::HasRead;
use super::{CollectError, GarbageCollector, unreadable};
use futures::{StreamExt, stream};
use millpond_manifest::cas::{self, Object, ReadError};
use millpond_manifest::{Cursor, FormatError, layout};
use millpond_storage::{Listed, Version};
use std::collections::{BTreeSet, HashMap};

/// The part of a shard's log that its consumers still need.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// The end of the log as it was read before the consumers were listed. A consumer that appeared meanwhile may need everything from
    /// there on.
    pub(super) listed_at: u64,
    /// Some consumer needs everything from this sequence on. `None` without consumers.
    pub(super) from: Option<u64>,
    /// Cursors that cannot be read: key and reason.
    pub(super) unreadable: Vec<String>,
    /// The parts of the log that its consumers have read.
    pub(super) read: Vec<HasRead>,
}

/// How far a consumer has come in a shard, by its cursor.
#[derive(Debug, Clone)]
enum Standing {
    /// Its consumer was removed, and needs nothing.
    Removed,
    /// Its consumer lives.
    Living {
        /// It needs everything from this sequence on.
        from: u64,
        /// It has read this part.
        read: HasRead,
    },
    /// It is of another buffer: key and reason.
    Foreign(String),
    /// It cannot be read: key and reason.
    Unreadable(String),
}

/// A cursor that was read, with the version that the same read returned. Without one it counts for one attempt only.
#[derive(Debug)]
struct Known {
    version: Option<Version>,
    standing: Standing,
}

/// The cursors that were read for this swap and earlier ones, by key.
#[derive(Debug, Default)]
pub(super) struct KnownCursors(HashMap<String, Known>);

impl KnownCursors {
    /// Returns true if a cursor is known in the version that a list shows.
    fn has(&self, found: &Listed) -> bool {
        let version = self.0.get(&found.key).and_then(|known| known.version.as_ref());
        version.is_some_and(|version| found.is_at(version))
    }
}

/// The maximum number of cursors that are read in parallel.
pub const CURSORS_AT_A_TIME: usize = 16;

/// The maximum bytes of a cursor that is read beside others: many times the usual size. One consumer's credentials may suffice to write many
/// large ones.
const READ_BESIDE_OTHERS_MAX: u64 = 64 << 10;

/// Returns true if a cursor was not read because of its size, and is not larger than a cursor may be.
fn is_just_large(damaged: &ReadError) -> bool {
    match damaged {
        ReadError::Format {
            wrong: FormatError::TooLarge { bytes, .. },
            ..
        } => *bytes <= Cursor::BYTES_MAX,
        _ => false,
    }
}

impl GarbageCollector {
    /// Lists the cursors of a shard, and reads those that are not known in the version that the list shows.
    ///
    /// A consumer with a cursor in the first shard and none in this one needs everything here: it has not noticed yet that the buffer
    /// has grown.
    pub(super) async fn needs(&self, shard: u32, known: &mut KnownCursors) -> Result<Needs, CollectError> {
        let mut needs = Needs::default();
        let mut here = BTreeSet::new();
        let mut listed = self.store.list_with_versions(&layout::consumers(shard)).await?;
        listed.retain(|found| found.key.ends_with("/cursor"));
        for (key, standing) in self.standings(listed, known).await? {
            match standing {
                // A removed consumer needs nothing.
                Standing::Removed => continue,
                Standing::Living { from, read } => {
                    needs.read.push(read);
                    needs.from = Some(needs.from.map_or(from, |least| least.min(from)));
                }
                Standing::Foreign(why) | Standing::Unreadable(why) => needs.unreadable.push(why),
            }
            here.insert(key);
        }
        // Listed second: a consumer makes its cursor in the first shard before any other, and loses it after the others. A tombstone
        // here may be of an earlier life of a consumer that has begun again there.
        if shard > 0 && self.missing(shard, &here, &mut needs, known).await? {
            needs.from = Some(0);
        }
        Ok(needs)
    }

    /// Returns true if a consumer of the first shard has no cursor among these of another shard.
    async fn missing(
        &self,
        shard: u32,
        cursors: &BTreeSet<String>,
        needs: &mut Needs,
        known: &mut KnownCursors,
    ) -> Result<bool, CollectError> {
        let mut listed = self.store.list_with_versions(&layout::consumers(0)).await?;
        listed.retain(|found| {
            let name = layout::reader_of_cursor(0, &found.key);
            name.is_some_and(|name| !cursors.contains(&layout::cursor(shard, name)))
        });
        let mut is_missing = false;
        for (_, standing) in self.standings(listed, known).await? {
            match standing {
                Standing::Removed => {}
                Standing::Living { .. } | Standing::Foreign(_) => is_missing = true,
                Standing::Unreadable(why) => needs.unreadable.push(why),
            }
        }
        Ok(is_missing)
    }

    /// The standing of each listed cursor: as it was when it was listed, if it is known in that version, or as it is now.
    async fn standings(
        &self,
        listed: Vec<Listed>,
        known: &mut KnownCursors,
    ) -> Result<Vec<(String, Standing)>, CollectError> {
        let changed = listed.iter().filter(|found| !known.has(found)).cloned();
        let (small, mut large): (Vec<_>, Vec<_>) =
            changed.partition(|found| found.size <= READ_BESIDE_OTHERS_MAX);
        let reads = small.into_iter().map(|found| async move {
            let read = self.read(&found, READ_BESIDE_OTHERS_MAX).await;
            (found, read)
        });
        let mut reads = stream::iter(reads).buffered(CURSORS_AT_A_TIME);
        while let Some((found, read)) = reads.next().await {
            match read? {
                Some(read) => drop(known.0.insert(found.key, read)),
                None => large.push(found),
            }
        }
        for found in large {
            if let Some(read) = self.read(&found, Cursor::BYTES_MAX).await? {
                known.0.insert(found.key, read);
            }
        }
        let standings = listed.into_iter().map(|found| {
            let Some(Known { standing, .. }) = known.0.get(&found.key) else {
                unreachable!("{}: it was read", found.key)
            };
            (found.key, standing.clone())
        });
        Ok(standings.collect())
    }

    /// Reads a listed cursor. `None`: it has more than `bytes_max` bytes, and not more than a cursor may have.
    async fn read(&self, found: &Listed, bytes_max: u64) -> Result<Option<Known>, CollectError> {
        let read = cas::read_with_version::<Cursor>(&self.store, &found.key, bytes_max).await;
        let (version, standing) = match read {
            Ok(Some((version, Ok(cursor)))) => (Some(version), self.standing_of(&found.key, &cursor)),
            Ok(Some((_, Err(damaged)))) if is_just_large(&damaged) => return Ok(None),
            Ok(Some((version, Err(damaged)))) => (Some(version), Standing::Unreadable(unreadable(damaged)?)),
            // Somebody has deleted it since, which the next round's list shows, or a cache has an old answer.
            Ok(None) => {
                let key = &found.key;
                let absent = format!("{key}: the store lists it, and a read does not find it");
                (None, Standing::Unreadable(absent))
            }
            Err(error) => (None, Standing::Unreadable(unreadable(error.into())?)),
        };
        Ok(Some(Known { version, standing }))
    }

    fn standing_of(&self, key: &str, cursor: &Cursor) -> Standing {
        if cursor.buffer_id != self.buffer_id {
            return Standing::Foreign(format!("{key}: it is of another buffer"));
        }
        match cursor.is_removed() {
            true => Standing::Removed,
            false => Standing::Living {
                from: cursor.needs(),
                read: HasRead::of(key, cursor),
            },
        }
    }
}
