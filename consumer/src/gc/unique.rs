//! Snapshots of deduplications that no cursor names any more. `design/deduplication.md` says why nobody can name them later.

use super::{CollectError, GarbageCollector, unreadable};
use millpond_manifest::cas;
use millpond_manifest::{Cursor, UniqueReference, UniqueSnapshot, layout};
use std::collections::{BTreeMap, BTreeSet};

/// The snapshots of one stream of a consumer: their keys by name.
type Found = BTreeMap<UniqueReference, String>;

impl GarbageCollector {
    /// Deletes the snapshots of a shard that are before the one that the cursor names, and are not a part of it. `dry`: only
    /// counts them.
    pub(super) async fn collect_unique(&self, shard: u32, dry: bool) -> Result<u64, CollectError> {
        let mut consumers: BTreeMap<String, BTreeMap<String, Found>> = BTreeMap::new();
        // Listed before the cursors are read: whoever wrote these snapshots had opened the cursor that is read, or an earlier one.
        for found in self.store.list(&layout::consumers(shard)).await? {
            if let Some((consumer, stream, next, id)) = layout::parse_unique(shard, &found.key) {
                let streams = consumers.entry(consumer.to_owned()).or_default();
                let snapshots = streams.entry(stream.to_owned()).or_default();
                snapshots.insert(UniqueReference { next, id }, found.key.clone());
            }
        }
        let mut deleted = 0;
        for (consumer, streams) in consumers {
            let cursor = match cas::read::<Cursor>(&self.store, &layout::cursor(shard, &consumer)).await {
                Ok(Some(cursor)) if cursor.state.buffer_id == self.buffer_id => cursor.state,
                // Its consumer may need them.
                Ok(_) => continue,
                Err(error) => {
                    unreadable(error)?;
                    continue;
                }
            };
            for (stream, snapshots) in streams {
                for key in self.forgotten(&cursor, &stream, snapshots).await? {
                    if !dry {
                        self.store.delete(&key).await?;
                    }
                    deleted += 1;
                }
            }
        }
        Ok(deleted)
    }

    /// The keys of the snapshots that nobody will name.
    async fn forgotten(
        &self,
        cursor: &Cursor,
        stream: &str,
        mut snapshots: Found,
    ) -> Result<Vec<String>, CollectError> {
        let Some((_, of)) = cursor.deduplicates(stream).filter(|_| !cursor.is_removed()) else {
            return Ok(snapshots.into_values().collect());
        };
        let Some(named) = of.snapshot else {
            // The owner may be about to name one.
            return Ok(Vec::new());
        };
        let key = layout::unique(cursor.shard, &cursor.consumer, stream, named.next, named.id);
        let snapshot = match cas::read::<UniqueSnapshot>(&self.store, &key).await {
            Ok(Some(snapshot)) => snapshot.state,
            // Another round may have read a newer cursor.
            Ok(None) => return Ok(Vec::new()),
            Err(error) => {
                unreadable(error)?;
                return Ok(Vec::new());
            }
        };
        let mut kept: BTreeSet<UniqueReference> =
            snapshot.earlier.iter().map(|earlier| earlier.reference).collect();
        kept.insert(named);
        snapshots.retain(|name, _| name.next <= named.next && !kept.contains(name));
        Ok(snapshots.into_values().collect())
    }
}
