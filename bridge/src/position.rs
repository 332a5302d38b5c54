//! The positions of partitions in the manifests: finds them, and enters new ones without records. A shard's producer moves
//! them afterwards, together with the records.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use millpond_manifest::{
    Manifest, ReadError, Snapshot, SourcePartition, SourceRefusal, SourceRow, Swap, cas, layout,
};
use millpond_producer::{Past, Producer};
use millpond_runtime::Environment;
use millpond_storage::Store;
use tokio::time::Instant;

/// The number of attempts to enter a row while others change the manifest.
const ATTEMPTS: usize = 20;

/// A position that the manifest has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Claims on other incarnations are void.
    pub(crate) incarnation: u64,
    /// The offset of the next record.
    pub(crate) next: u64,
}

impl Position {
    fn of(row: &SourceRow) -> Position {
        Position {
            incarnation: row.incarnation,
            next: row.next,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.next)
    }
}

/// Why a position cannot be found or entered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PositionError {
    /// The store does not answer, or the manifest is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The outcome of a swap is unknown, or others were always first.
    #[error("the position of {of} could not be written: {reason}")]
    Busy {
        /// The partition.
        of: Arc<SourcePartition>,
        /// The last attempt.
        reason: String,
    },
    /// The store is asked again later.
    #[error("the store does not answer")]
    NoAnswer,
    /// A store, or a cache before it, may show earlier manifests again. Nothing follows from their positions.
    #[error("the store shows an earlier version of {0} than before")]
    Past(String),
    /// The manifest refuses the row.
    #[error("the position of {of} cannot be entered: {refusal}")]
    Refused {
        /// The partition.
        of: Arc<SourcePartition>,
        /// The reason.
        refusal: SourceRefusal,
    },
    /// Its records are in another shard.
    #[error("the records of {of} are in shard {shard}: run its bridges with --shard {shard}")]
    OtherShard {
        /// The partition.
        of: Arc<SourcePartition>,
        /// The shard.
        shard: u32,
    },
    /// The shard has no manifest, although its producer has registered there.
    #[error("shard {0} has no manifest")]
    NoManifest(u32),
}

impl PositionError {
    /// Returns true if the shard takes no further partition.
    pub(crate) fn is_full(&self) -> bool {
        let PositionError::Refused { refusal, .. } = self else {
            return false;
        };
        *refusal == SourceRefusal::Full
    }

    /// Returns true if only an operator can help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            PositionError::Refused { .. } | PositionError::OtherShard { .. }
        )
    }
}

/// The positions of one shard.
#[derive(Clone)]
pub(crate) struct Positions {
    pub(crate) store: Store,
    pub(crate) shard: u32,
    pub(crate) environment: Arc<dyn Environment>,
    /// It knows the manifests that it has committed.
    pub(crate) producer: Producer,
    pub(crate) seen: Arc<Mutex<BTreeMap<u32, Seen>>>,
}

/// The manifests of a shard that were seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The number of the latest one.
    latest: u64,
    /// The producer had taken this one when the store was found to show earlier ones for good.
    void: u64,
    past: Past,
}

impl Seen {
    /// Returns true if the manifest of this number may be taken. `producers`: the number of the one that the producer took.
    fn takes(&mut self, number: u64, producers: u64, now: Instant) -> bool {
        if producers != self.void {
            self.latest = self.latest.max(producers);
        }
        if number < self.latest {
            if !self.past.shown(now) {
                return false;
            }
            self.void = producers;
        }
        self.latest = number;
        self.past.ends();
        true
    }
}

impl Positions {
    /// The manifest of the shard.
    pub(crate) async fn manifest(&self) -> Result<Manifest, PositionError> {
        Ok(self.read(self.shard).await?.state)
    }

    async fn read(&self, shard: u32) -> Result<Snapshot<Manifest>, PositionError> {
        let found = self.look(shard).await?;
        found.ok_or(PositionError::NoManifest(shard))
    }

    /// Reads a manifest, and refuses one that is earlier than one that was seen.
    async fn look(&self, shard: u32) -> Result<Option<Snapshot<Manifest>>, PositionError> {
        let key = layout::manifest(shard);
        let found = cas::read::<Manifest>(&self.store, &key).await?;
        let number = found.as_ref().map_or(0, |found| found.state.stamp.version);
        match self.takes(shard, number) {
            true => Ok(found),
            false => Err(PositionError::Past(key)),
        }
    }

    fn takes(&self, shard: u32, number: u64) -> bool {
        let producers = match shard == self.shard {
            true => self.producer.manifest_version(),
            false => 0,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.entry(shard)
            .or_default()
            .takes(number, producers, Instant::now())
    }

    /// The position of a partition. `None`: no shard has one. Fails if its records are in another shard.
    pub(crate) async fn find(
        &self,
        manifest: &Manifest,
        of: &Arc<SourcePartition>,
    ) -> Result<Option<Position>, PositionError> {
        let own = manifest.source(of).filter(|row| row.shard == self.shard);
        if let Some(row) = own {
            return Ok(Some(Position::of(row)));
        }
        // Bridges of all shards meet in shard 0.
        let first = match manifest.shard {
            0 => manifest.source(of).cloned(),
            _ => match self.look(0).await? {
                Some(found) => found.state.source(of).cloned(),
                None => None,
            },
        };
        match first {
            Some(row) if row.shard != self.shard => Err(PositionError::OtherShard {
                of: Arc::clone(of),
                shard: row.shard,
            }),
            _ => Ok(None),
        }
    }

    /// Enters the first position of a partition. Another bridge may be first: returns the position in force.
    pub(crate) async fn begin(
        &self,
        of: &Arc<SourcePartition>,
        next: u64,
    ) -> Result<Position, PositionError> {
        if self.shard != 0 {
            // From now on no bridge begins the partition in another shard.
            let pointer = self.set(0, None, self.row(of, self.shard, 0)).await?;
            if pointer.shard != self.shard {
                return Err(PositionError::OtherShard {
                    of: Arc::clone(of),
                    shard: pointer.shard,
                });
            }
        }
        let row = self.set(self.shard, None, self.row(of, self.shard, next)).await?;
        match row.shard == self.shard {
            true => Ok(Position::of(&row)),
            false => Err(PositionError::OtherShard {
                of: Arc::clone(of),
                shard: row.shard,
            }),
        }
    }

    /// Moves a position over a gap. Returns the position in force.
    pub(crate) async fn jump(
        &self,
        of: &Arc<SourcePartition>,
        from: Position,
        to: u64,
    ) -> Result<Position, PositionError> {
        let row = self
            .set(self.shard, Some(from), self.row(of, self.shard, to))
            .await?;
        Ok(Position::of(&row))
    }

    fn row(&self, of: &Arc<SourcePartition>, shard: u32, next: u64) -> SourceRow {
        SourceRow {
            of: Arc::clone(of),
            shard,
            incarnation: 0,
            next,
            seen_at_ms: self.environment.now_ms(),
        }
    }

    /// Swaps a row in if the present one has this position. Returns the row in force, whoever wrote it.
    async fn set(
        &self,
        shard: u32,
        expected: Option<Position>,
        row: SourceRow,
    ) -> Result<SourceRow, PositionError> {
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            let found = match self.look(shard).await? {
                Some(found) => found,
                None => self.create(shard).await?,
            };
            let present = found.state.source(&row.of);
            if present.map(Position::of) != expected {
                let missing = || PositionError::Refused {
                    of: Arc::clone(&row.of),
                    refusal: SourceRefusal::Moved(None),
                };
                return present.cloned().ok_or_else(missing);
            }
            let next = found.state.set_source(present, row.clone());
            let next = next.map_err(|refusal| PositionError::Refused {
                of: Arc::clone(&row.of),
                refusal,
            })?;
            let key = layout::manifest(shard);
            let next = next.stamped(self.environment.random());
            reason = match cas::swap(&self.store, &key, Some(&found.version), next).await {
                Swap::Committed(now) => {
                    self.takes(shard, now.state.stamp.version);
                    return Ok(now.state.source(&row.of).cloned().unwrap_or(row));
                }
                // The next look shows what became of it.
                Swap::Mismatch => "other producers were first".to_owned(),
                Swap::Unknown(error) => error.to_string(),
            };
        }
        Err(PositionError::Busy {
            of: Arc::clone(&row.of),
            reason,
        })
    }

    /// Makes the manifest of shard 0, which no producer has opened yet.
    async fn create(&self, shard: u32) -> Result<Snapshot<Manifest>, PositionError> {
        let own = self.read(self.shard).await?;
        let new = Manifest::new(own.state.buffer_id, shard).stamped(self.environment.random());
        // Whoever is first: the next read shows it.
        let _ = cas::swap(&self.store, &layout::manifest(shard), None, new).await;
        self.read(shard).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_producer::{Append, Config};
    use millpond_runtime::SystemEnvironment;
    use millpond_segment::Encoding;
    use prometheus_client::registry::Registry;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    async fn positions() -> Positions {
        let store = Store::memory();
        let config = Config {
            linger: Duration::from_millis(1),
            ..Config::default()
        };
        let producer = Producer::start(store.clone(), config, &mut Registry::default()).await;
        let producer = producer.unwrap();
        Positions {
            store,
            shard: producer.shard(),
            environment: Arc::new(SystemEnvironment),
            producer,
            seen: Arc::default(),
        }
    }

    fn partition() -> Arc<SourcePartition> {
        Arc::new(SourcePartition {
            source: "cluster".into(),
            topic: "orders".into(),
            partition: 0,
            stream: "orders".into(),
        })
    }

    async fn stored(positions: &Positions) -> Snapshot<Manifest> {
        let found = cas::read(&positions.store, &layout::manifest(positions.shard)).await;
        found.unwrap().unwrap()
    }

    /// The store shows this manifest.
    async fn put(positions: &Positions, manifest: &Manifest) {
        let (key, found) = (layout::manifest(positions.shard), stored(positions).await);
        let swap = cas::swap(&positions.store, &key, Some(&found.version), manifest.clone()).await;
        assert!(matches!(swap, Swap::Committed(_)), "{swap:?}");
    }

    async fn find(positions: &Positions) -> Result<u64, PositionError> {
        let manifest = positions.manifest().await?;
        let found = positions.find(&manifest, &partition()).await?;
        Ok(found.unwrap().next)
    }

    #[tokio::test(start_paused = true)]
    async fn no_position_comes_from_an_earlier_manifest() {
        let positions = positions().await;
        let at = positions.begin(&partition(), 5).await.unwrap();
        let old = stored(&positions).await.state;
        positions.jump(&partition(), at, 9).await.unwrap();
        let newest = stored(&positions).await.state;
        put(&positions, &old).await;
        for _ in 0..5 {
            let found = find(&positions).await;
            assert!(matches!(found, Err(PositionError::Past(_))), "{found:?}");
            let at = positions.begin(&partition(), 5).await;
            assert!(matches!(at, Err(PositionError::Past(_))), "{at:?}");
            tokio::time::sleep(5 * SECOND).await;
        }
        put(&positions, &newest).await;
        assert_eq!(find(&positions).await.unwrap(), 9);
    }

    /// The bridge has not read what its producer has committed.
    #[tokio::test(start_paused = true)]
    async fn what_the_producer_has_committed_counts() {
        let positions = positions().await;
        positions.begin(&partition(), 5).await.unwrap();
        let old = stored(&positions).await.state;
        let message = Append {
            stream: "events".into(),
            encoding: Encoding::Ndjson,
            received_at_us: 1,
            records: 1,
            payload: "{}\n".into(),
            reservation: positions.producer.budget().nothing(),
        };
        positions.producer.append(message).await.unwrap();
        put(&positions, &old).await;
        // Reads that are far apart say nothing about the time between them.
        for pause in [3_600, 3_600, 5, 5, 5, 5, 5, 5] {
            let found = find(&positions).await;
            assert!(matches!(found, Err(PositionError::Past(_))), "{found:?}");
            tokio::time::sleep(pause * SECOND).await;
        }
        // Somebody restored the manifest.
        for _ in 0..3 {
            assert_eq!(find(&positions).await.unwrap(), 5);
            tokio::time::sleep(5 * SECOND).await;
        }
    }
}
