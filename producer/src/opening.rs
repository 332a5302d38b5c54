//! What the producers of a process share, and how the first of them finds the buffer and its shard.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Buffer, KnownBuffer, ReadError, cas, layout};
use millpond_runtime::{Backoff, Budget, Environment, Level, Readiness};
use millpond_storage::{ErrorKind, Store};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::encoder::Encoders;
use crate::metrics::Metrics;
use crate::{Config, StartError};

/// The wait of a producer that opens its buffer, as the log shows it.
const OPEN: &str = "waiting for the store (open)";

/// The parts that all producers of a process share: one budget pays for what they hold, and one set of encoders and metrics serves them.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) budget: Budget,
    pub(crate) encoders: Encoders,
    pub(crate) metrics: Metrics,
}

/// Where a producer writes.
pub(crate) struct Place {
    pub(crate) buffer: Buffer,
    pub(crate) shard: u32,
}

impl Common {
    /// Registers the metrics. The config has been checked.
    pub(crate) fn new(
        environment: Arc<dyn Environment>,
        store: Store,
        config: Config,
        registry: &mut Registry,
    ) -> Common {
        let budget = Budget::new(config.memory_limit - config.working_memory(), config.max_wait);
        let metrics = Metrics::register(registry, &budget);
        let encoders = Encoders::new(&config, environment.clone(), metrics.clone());
        Common {
            environment,
            store,
            config,
            budget,
            encoders,
            metrics,
        }
    }
}

/// Reads the buffer object, or creates it. Waits for an unavailable store until `give_up_at`.
pub(crate) async fn open_buffer(
    environment: &dyn Environment,
    store: &Store,
    config: &Config,
    give_up_at: Instant,
    readiness: &Readiness,
) -> Result<KnownBuffer, StartError> {
    let new = Buffer::new(environment.uuid(), config.shards_when_created);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
    loop {
        let opened = match cas::read(store, layout::BUFFER).await {
            Ok(Some(found)) => Ok(found.into()),
            Ok(None) => {
                let created = cas::create_once(store, layout::BUFFER, new.clone()).await;
                created.map(KnownBuffer::from)
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok(buffer) => {
                readiness.goes_on(OPEN);
                return Ok(buffer);
            }
            Err(ReadError::Store(error))
                if error.kind() == ErrorKind::Transient && Instant::now() < give_up_at =>
            {
                readiness.waits(OPEN, error, Level::Warn);
                backoff.pause(environment).await;
            }
            Err(wrong) => {
                return Err(StartError::Buffer {
                    url: store.url().to_owned(),
                    wrong,
                });
            }
        }
    }
}

/// The shard of a new producer.
pub(crate) fn choose_shard(
    environment: &dyn Environment,
    store: &Store,
    config: &Config,
    shards: u32,
) -> Result<u32, StartError> {
    let shard = config.shard.unwrap_or_else(|| environment.below(shards));
    if shard < shards {
        return Ok(shard);
    }
    Err(StartError::NoSuchShard {
        url: store.url().to_owned(),
        shard,
        shards,
    })
}
