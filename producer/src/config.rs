//! A producer's settings, with the defaults and their reasons.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use millpond_manifest::buffer::SHARDS_MAX;
use millpond_manifest::manifest::ENTRIES_MAX;
use millpond_segment::Limits;

use crate::commit::COMMIT_SEGMENTS_MAX;

/// The maximum of the default number of encoders. With as many, half of the default memory limit is in use at all times.
/// 64 encoders compress more than a network carries.
const ENCODERS_MAX: usize = 64;

/// The settings for batching and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The maximum time from a segment's first message to its closing, and over time the least between two segments that
    /// are not full: a segment closes earlier while every caller waits (`early_close.rs`). A segment that was full
    /// before may wait for the rest of this time for others that share its commit; the upload does not count.
    /// Default 1 s: with S3's 60 ms per PUT this is most of the latency, and one PUT and one CAS per second is a
    /// producer's minimum cost. 0 commits every message at once.
    pub linger: Duration,
    /// Compressed bytes at which a segment closes (16 MiB: beyond that a PUT becomes slower, not cheaper).
    pub segment_bytes: usize,
    /// Raw bytes at which a segment closes (128 MiB), for content that compresses extremely well.
    pub segment_raw_bytes: usize,
    /// Raw bytes of a block (1 MiB: larger blocks compress no better).
    pub block_bytes: usize,
    /// Maximum number of parallel uploads (4: enough for 64 MiB in flight).
    pub max_uploads: usize,
    /// zstd level (1: the fastest; 3 takes half as much CPU again for 6 % fewer bytes).
    pub compression_level: i32,
    /// Bytes that the producer and all others that share its [`Budget`](millpond_runtime::Budget) may hold (256 MiB).
    pub memory_limit: usize,
    /// The maximum time that a caller waits for budget (10 s: within the patience of OTLP clients). 0: reject at once.
    pub max_wait: Duration,
    /// Maximum number of blocks compressed in parallel (the number of cores, at most 64).
    pub encoders: usize,
    /// The shard to write to. `None`: a random shard.
    pub shard: Option<u32>,
    /// The number of shards of a new buffer (1).
    pub shards_when_created: u32,
    /// The number of entries in the manifest at which the next commit seals them into a page (2,048: a manifest of
    /// about 120 KB). At most 3,072.
    pub tail_max: usize,
    /// How often a process with [`Producers`](crate::Producers) looks whether the buffer has grown (1 min: one GET without a body).
    pub growth_interval: Duration,
    /// How long [`start`](crate::Producer::start) tries to reach the store (30 s).
    pub start_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(1),
            segment_bytes: 16 << 20,
            segment_raw_bytes: 128 << 20,
            block_bytes: 1 << 20,
            max_uploads: 4,
            compression_level: 1,
            memory_limit: 256 << 20,
            max_wait: Duration::from_secs(10),
            encoders: std::thread::available_parallelism().map_or(1, |cores| cores.get().min(ENCODERS_MAX)),
            shard: None,
            shards_when_created: 1,
            tail_max: millpond_manifest::manifest::TAIL_MAX,
            growth_interval: Duration::from_secs(60),
            start_timeout: Duration::from_secs(30),
        }
    }
}

/// The maximum of [`Config::tail_max`]. A tail with one entry less takes another commit before it is sealed, and readers
/// must accept the result. A leader's commit may exceed its usual number of segments by those of a follower.
const TAIL_MAX_MAX: u64 = (ENTRIES_MAX - 2 * COMMIT_SEGMENTS_MAX) as u64;

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {found}: {rule}")]
pub struct ConfigError {
    /// The setting's name.
    pub setting: &'static str,
    /// The setting's value.
    pub found: String,
    /// The valid values.
    pub rule: &'static str,
}

impl Config {
    /// The number of reused block-size buffers: one in each encoder and one that fills.
    pub(crate) fn block_buffers(&self) -> usize {
        self.encoders + 1
    }

    /// The memory held at all times: the block buffers, and for each encoder the space to compress a block into.
    pub(crate) fn working_memory(&self) -> usize {
        (self.encoders + self.block_buffers()) * self.block_bytes
    }

    /// Checks every setting. Returns an error for the first invalid one.
    pub fn check(&self) -> Result<(), ConfigError> {
        const MIB_512: u64 = 512 << 20;
        let block_max = Limits::default().block_raw_max;
        let in_bytes = "use 1 byte to 512 MiB";
        within(
            "block_bytes",
            self.block_bytes,
            1..=block_max,
            "use 1 byte to 64 MiB",
        )?;
        within("segment_bytes", self.segment_bytes, 1..=MIB_512, in_bytes)?;
        within("segment_raw_bytes", self.segment_raw_bytes, 1..=MIB_512, in_bytes)?;
        let blocks = self.segment_raw_bytes / self.block_bytes;
        let rule = "use at most 30,000 blocks in a segment";
        within("segment_raw_bytes / block_bytes", blocks, 0..=30_000, rule)?;
        within("tail_max", self.tail_max, 1..=TAIL_MAX_MAX, "use 1 to 3,072")?;
        within("max_uploads", self.max_uploads, 1..=1_024, "use 1 to 1024")?;
        within("encoders", self.encoders, 1..=1_024, "use 1 to 1024")?;
        within("compression_level", self.compression_level, 1..=22, "use 1 to 22")?;
        let rule = "use 0 to 9,999, or leave it out";
        within(
            "shard",
            self.shard.unwrap_or(0),
            0..=u64::from(SHARDS_MAX) - 1,
            rule,
        )?;
        let rule = "use 1 to 10,000";
        within(
            "shards",
            self.shards_when_created,
            1..=u64::from(SHARDS_MAX),
            rule,
        )?;
        let least = (self.working_memory() + self.block_bytes) as u64;
        let rule = "use at least (2 × encoders + 2) × block_bytes: the encoders hold all but one of them at all times";
        let most = u64::from(u32::MAX) * 256;
        within("memory_limit", self.memory_limit, least..=most, rule)?;
        if self.start_timeout.is_zero() {
            return Err(ConfigError {
                setting: "start_timeout",
                found: "0s".into(),
                rule: "use a time above zero, like 1s",
            });
        }
        Ok(())
    }
}

fn within<T: Copy + Display + TryInto<u64>>(
    setting: &'static str,
    found: T,
    range: RangeInclusive<u64>,
    rule: &'static str,
) -> Result<(), ConfigError> {
    // A negative number is outside all ranges.
    if found.try_into().is_ok_and(|found| range.contains(&found)) {
        return Ok(());
    }
    let found = found.to_string();
    Err(ConfigError { setting, found, rule })
}
