//! One round of garbage collection.

use crate::buffer::buffer;
use millpond_consumer::gc::{Collected, GarbageCollector, GcConfig, Step};
use millpond_storage::Store;
use prometheus_client::registry::Registry;

/// Collects the garbage of all shards, and reports each step. A dry run deletes nothing.
///
/// # Errors
/// There is no buffer, or the store fails.
pub async fn round(
    store: Store,
    config: GcConfig,
    dry_run: bool,
    report: impl Fn(Step) + Sync,
) -> anyhow::Result<Collected> {
    // Without a buffer, a mistyped URL would look like a buffer without garbage.
    buffer(&store).await?;
    let mut gc = GarbageCollector::new(store, config, &mut Registry::default());
    Ok(gc.round_with_progress(dry_run, &report).await?)
}
