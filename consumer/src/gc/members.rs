//! The lists of the processes of consumers that are removed. No promise depends on a list: a process whose list is deleted writes it anew.

use super::{CollectError, GarbageCollector, unreadable};
use millpond_manifest::cas;
use millpond_manifest::{Cursor, layout};

impl GarbageCollector {
    /// Deletes the lists of consumers without a cursor in the first shard: an operator removed the cursor, and a process wrote the list
    /// before it noticed. `dry`: only counts them.
    pub(super) async fn collect_members(&self, dry: bool) -> Result<u64, CollectError> {
        let mut deleted = 0;
        for found in self.store.list(&layout::consumers(0)).await? {
            let Some(consumer) = layout::consumer_of_members(&found.key) else {
                continue;
            };
            let register = match cas::read::<Cursor>(&self.store, &layout::cursor(0, consumer)).await {
                Ok(register) => register,
                // Its consumer may live.
                Err(error) => {
                    unreadable(error)?;
                    continue;
                }
            };
            let lives = register.is_some_and(|register| !register.state.is_removed());
            if lives {
                continue;
            }
            if !dry {
                self.store.delete(&found.key).await?;
            }
            deleted += 1;
        }
        Ok(deleted)
    }
}
