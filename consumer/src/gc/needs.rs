//! The part of a shard's log that its consumers still need, by their cursors. It reads, and never changes anything.

use super::recognition::HasRead;
use super::{CollectError, GarbageCollector, unreadable};
use millpond_manifest::cas;
use millpond_manifest::{Cursor, layout};
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

/// What a cursor says about the log of its shard.
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

/// The cursors that were read for earlier swaps, by key, each with the version that the same read returned.
#[derive(Debug, Default)]
pub(super) struct KnownCursors(HashMap<String, (Version, Standing)>);

impl GarbageCollector {
    /// Lists the cursors of a shard, and reads those that are not known in the version that the list shows. It reads one at a time: one
    /// consumer's credentials may suffice to write many, and each may be large.
    ///
    /// A consumer with a cursor in the first shard and none in this one needs everything here: it has not noticed yet that the buffer
    /// has grown.
    pub(super) async fn needs(&self, shard: u32, known: &mut KnownCursors) -> Result<Needs, CollectError> {
        let mut needs = Needs::default();
        let mut here = BTreeSet::new();
        for found in self.store.list(&layout::consumers(shard)).await? {
            if !found.key.ends_with("/cursor") {
                continue;
            }
            match self.standing(&found, known).await? {
                // A removed consumer needs nothing.
                Standing::Removed => continue,
                Standing::Living { from, read } => {
                    needs.read.push(read);
                    needs.from = Some(needs.from.map_or(from, |least| least.min(from)));
                }
                Standing::Foreign(why) | Standing::Unreadable(why) => needs.unreadable.push(why),
            }
            here.insert(found.key);
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
        for found in self.store.list(&layout::consumers(0)).await? {
            let Some(name) = layout::reader_of_cursor(0, &found.key) else {
                continue;
            };
            if cursors.contains(&layout::cursor(shard, name)) {
                continue;
            }
            match self.standing(&found, known).await? {
                Standing::Removed => {}
                Standing::Living { .. } | Standing::Foreign(_) => return Ok(true),
                Standing::Unreadable(why) => needs.unreadable.push(why),
            }
        }
        Ok(false)
    }

    /// The standing of a listed cursor: as it was when it was listed, if it was known then, or as it is now.
    async fn standing(&self, found: &Listed, known: &mut KnownCursors) -> Result<Standing, CollectError> {
        if let Some((version, standing)) = known.0.get(&found.key)
            && found.is_at(version)
        {
            return Ok(standing.clone());
        }
        let (version, standing) = match cas::read_with_version::<Cursor>(&self.store, &found.key).await {
            Ok(Some((version, Ok(cursor)))) => (version, self.standing_of(&found.key, &cursor)),
            Ok(Some((version, Err(damaged)))) => (version, Standing::Unreadable(unreadable(damaged)?)),
            // Somebody has deleted it since.
            Ok(None) => return Ok(Standing::Removed),
            Err(error) => return Ok(Standing::Unreadable(unreadable(error.into())?)),
        };
        known.0.insert(found.key.clone(), (version, standing.clone()));
        Ok(standing)
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
