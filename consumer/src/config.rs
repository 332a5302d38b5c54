//! The consumer's settings: one default each, with its reason.

use crate::repair::Repair;
use crate::streams::StreamPattern;
use crate::unique::{BYTES_PER_KEY, Times};
use millpond_manifest::cursor::UniqueSettings;
use millpond_manifest::{BatchingPolicy, layout};
use millpond_runtime::Budget;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The consumer's settings. The defaults suit one ClickHouse server and segments from a few gateways.
#[derive(Debug, Clone)]
pub struct Config {
    /// The consumer's name: consumers with different names read the buffer independently.
    pub consumer: String,
    /// The streams to consume, of those that the sink accepts: a stream that matches any pattern.
    pub streams: Vec<StreamPattern>,
    /// Where its first start begins. Ignored if it has a cursor.
    pub start: Start,
    /// This process's name as an owner. An owner that returns under its old name does not wait for its old lease to
    /// expire, so use stable names only where two processes never share one.
    pub instance: String,
    /// How long a silent owner keeps a cursor.
    pub lease: Duration,
    /// Take the cursors at once, whoever owns them.
    pub take_over: bool,
    /// The interval at which the consumer polls the manifest.
    pub poll_interval: Duration,
    /// The interval at which the consumer looks for new shards of the buffer. Default 1 min: one GET without a body.
    pub growth_interval: Duration,
    /// The interval at which acknowledgements become durable when there is nothing to plan. After a third of it without
    /// a finished batch they become durable sooner. Default 5 s: a successor asks the sink about at most these batches.
    pub ack_interval: Duration,
    /// Memory limit for the batches in flight, in bytes.
    pub memory_limit: u64,
    /// Ranged GETs in parallel.
    pub fetchers: usize,
    /// Batches decoded in parallel.
    pub decoders: usize,
    /// INSERTs in parallel.
    pub writers: usize,
    /// The time that a stopping consumer gives the work it has begun.
    pub drain_timeout: Duration,
    /// Target number of records in a batch.
    pub batch_records: u64,
    /// Target size of a batch in raw bytes.
    pub batch_bytes: u64,
    /// Maximum rows per INSERT.
    pub chunk_rows: u64,
    /// Maximum uncompressed bytes per INSERT.
    pub chunk_bytes: u64,
    /// Maximum partitions per INSERT.
    pub max_partitions_per_chunk: u32,
    /// Maximum batches of a stream in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// Maximum dead letters per batch, not counting events that do not fit their table. Beyond it the rows are not to blame, and the
    /// consumer ends. With 0 it ends at any.
    pub dead_letters_max: usize,
    /// The streams whose repeated events are dropped, with the settings for that.
    pub unique: UniqueSettings,
    /// The name of the file with these settings, for errors.
    pub unique_file: String,
    /// The part of `memory_limit` that the keys of these streams take, in bytes. Default 128 MiB: 3.3 million keys.
    pub unique_memory: u64,
    /// The number of new keys after which the deduplication of a stream writes a snapshot. Default 65,536: 1.5 MiB.
    pub snapshot_keys: u64,
    /// The number of uncompressed bytes of a stream after which its deduplication writes a snapshot, though few keys are new: a successor
    /// reads them again before its first batch. Default 256 MiB.
    pub snapshot_bytes: u64,
    /// From this number of snapshots on, the next one of a stream merges the smallest. Default 3,072, of the 4,096 that a snapshot may name.
    pub snapshots_named: usize,
    /// The shortest and the longest time between two snapshots of a stream with few new keys. Default one minute and four hours. With the
    /// longest window and time, a snapshot names 2,333 others.
    pub snapshot_interval: [Duration; 2],
    /// The keys of a silent stream leave the memory after its window, and not before this time. Default ten minutes.
    pub keys_rest: Duration,
    /// Write to tables that another consumer of the buffer writes to.
    pub share_tables: bool,
    /// Compare these ranges with the sink and insert the missing rows, instead of consuming.
    pub repair: Option<Repair>,
}

/// Where a consumer's first start begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At the oldest segment that the buffer keeps.
    #[default]
    Earliest,
    /// After the newest segment.
    Latest,
    /// At the first segment that was committed at this time (unix ms) or later, by the clocks of the producers.
    Time(u64),
    /// At this sequence, or where the log begins or ends if it does not have it.
    Sequence(u64),
}

impl Default for Config {
    fn default() -> Self {
        Config {
            consumer: "default".into(),
            streams: vec![StreamPattern::any()],
            start: Start::Earliest,
            instance: "default".into(),
            lease: Duration::from_secs(15),
            take_over: false,
            poll_interval: Duration::from_millis(250),
            growth_interval: Duration::from_secs(60),
            ack_interval: Duration::from_secs(5),
            memory_limit: 512 << 20,
            fetchers: 8,
            decoders: std::thread::available_parallelism().map_or(2, usize::from),
            writers: 2,
            drain_timeout: Duration::from_secs(30),
            batch_records: 100_000,
            batch_bytes: 64 << 20,
            chunk_rows: 100_000,
            chunk_bytes: 64 << 20,
            max_partitions_per_chunk: 50,
            max_in_flight: 16,
            dead_letters_max: 100,
            unique: UniqueSettings::new(),
            unique_file: "FILE".to_owned(),
            unique_memory: 128 << 20,
            snapshot_keys: 65_536,
            snapshot_bytes: 256 << 20,
            // The longest window with few keys has 2,333.
            snapshots_named: 3_072,
            snapshot_interval: [Duration::from_secs(60), Duration::from_secs(4 * 3_600)],
            keys_rest: Duration::from_secs(600),
            share_tables: false,
            repair: None,
        }
    }
}

impl Config {
    /// The budget of the batches in flight, which wait for it as long as it takes.
    pub(crate) fn memory(&self) -> Budget {
        let keys = match self.unique.is_empty() {
            true => 0,
            false => self.unique_memory,
        };
        let limit = self.memory_limit.saturating_sub(keys);
        // A budget of 0 bytes would hold back no batch.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Budget::new(limit, Duration::MAX)
    }

    /// The number of keys that the deduplication may remember.
    pub(crate) fn unique_keys(&self) -> u64 {
        self.unique_memory / BYTES_PER_KEY
    }

    /// When these keys are stored, and when they leave the memory.
    pub(crate) fn key_times(&self) -> Times {
        Times {
            interval: self.snapshot_interval,
            rest: self.keys_rest,
        }
    }

    /// The settings for repeated events. A repair refuses rows that may be some.
    pub(crate) fn unique_settings(&self) -> UniqueSettings {
        match &self.repair {
            Some(_) => UniqueSettings::new(),
            None => self.unique.clone(),
        }
    }

    /// Returns an error for the first invalid setting for repeated events.
    pub(crate) fn check_unique(&self) -> Result<(), String> {
        if self.unique.is_empty() {
            return Ok(());
        }
        for (stream, setting) in &self.unique {
            let wrong = |reason: String| format!("--unique: stream {stream}: {reason}");
            millpond_segment::check_stream_name(stream).map_err(|error| wrong(error.to_string()))?;
            setting.check().map_err(wrong)?;
        }
        let (keys, all) = (self.unique_memory, self.memory_limit);
        if keys < BYTES_PER_KEY || keys > all / 4 * 3 {
            return Err(format!(
                "--unique-memory is a part of --memory-limit: of {all} bytes it may be {BYTES_PER_KEY} to {}, and it is {keys}",
                all / 4 * 3
            ));
        }
        let [min, max] = self.snapshot_interval;
        if min.is_zero() || min > max {
            return Err(format!(
                "the time between two snapshots of keys is {min:?} to {max:?}: the first must be positive and not longer than the second"
            ));
        }
        Ok(())
    }

    /// The name of this consumer's cursors.
    pub(crate) fn cursor(&self) -> String {
        match &self.repair {
            Some(_) => layout::repair(&self.consumer),
            None => self.consumer.clone(),
        }
    }

    /// The range to repair in a shard. `None`: this is not a repair, or not of this shard.
    pub(crate) fn repair_of(&self, shard: u32) -> Option<&RangeInclusive<u64>> {
        self.repair.as_ref()?.ranges.get(&shard)
    }

    /// The batching policy that this configuration sets.
    pub fn policy(&self, sink: &str, schema_version: u32) -> BatchingPolicy {
        BatchingPolicy {
            batch_records: self.batch_records,
            batch_bytes: self.batch_bytes,
            chunk_rows: self.chunk_rows,
            chunk_bytes: self.chunk_bytes,
            max_partitions_per_chunk: self.max_partitions_per_chunk,
            max_in_flight: self.max_in_flight,
            sink: sink.to_owned(),
            schema_version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_manifest::UniqueSetting;

    #[test]
    fn the_time_between_two_snapshots_of_keys_is_positive_and_in_order() {
        let of = |min: u64, max: u64| {
            let setting = UniqueSetting {
                key: vec!["id".into()],
                window_ms: 3_600_000,
            };
            let config = Config {
                unique: [("events".to_owned(), setting)].into(),
                snapshot_interval: [min, max].map(Duration::from_secs),
                ..Config::default()
            };
            config.check_unique()
        };
        assert_eq!(of(1, 1), Ok(()));
        for (min, max) in [(0, 1), (2, 1)] {
            let error = of(min, max).unwrap_err();
            assert!(error.contains(&format!("is {min}")), "{error}");
        }
    }
}
