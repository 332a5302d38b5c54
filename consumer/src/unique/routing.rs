//! The shards of keys. A stage knows the keys of its shard alone, so with several shards gateways must route the rows by key. The consumer
//! counts rows that are elsewhere: nothing compares them with the rows of their shard.

use super::keys::PartKeys;
use crate::metrics::{Metrics, label};
use millpond_manifest::{Route, Routes};
use millpond_runtime::Environment;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::warn;

/// The time between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(600);

/// The number of rows that are not in the shard of their key.
pub(crate) fn misrouted(route: &Route, shard: u32, parts: &[PartKeys]) -> usize {
    let rows = parts.iter().flat_map(|part| &part.keys);
    rows.filter(|row| route.shard_of(row.key) != shard).count()
}

/// The routes of the buffer, as last seen.
#[derive(Debug)]
pub(crate) struct Routing {
    routes: Mutex<Routes>,
    warned_at: Mutex<Option<Duration>>,
}

impl Routing {
    pub(crate) fn new(routes: Routes) -> Routing {
        Routing {
            routes: routes.into(),
            warned_at: Mutex::default(),
        }
    }

    pub(crate) fn set(&self, routes: Routes) {
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = routes;
    }

    pub(crate) fn route(&self, stream: &str) -> Option<Arc<Route>> {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.get(stream).cloned()
    }

    /// Counts the [`misrouted`] rows of a batch.
    pub(crate) fn count(
        &self,
        (stream, shard): (&str, u32),
        misrouted: usize,
        metrics: &Metrics,
        environment: &dyn Environment,
    ) {
        if misrouted == 0 {
            return;
        }
        metrics
            .unique_misrouted
            .get_or_create(&label(stream))
            .inc_by(misrouted as u64);
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = environment.uptime();
        if warned_at.is_none_or(|before| now >= before + WARN_INTERVAL) {
            *warned_at = Some(now);
            warn!(
                stream,
                shard,
                rows = misrouted,
                "rows are not in the shard of their key, so their repetitions may pass: they came before the route of the stream, or from a \
                 gateway that had not noticed it or is older, or from a bridge or SDK; millpond_consumer_unique_misrouted_total counts them"
            );
        }
    }
}
