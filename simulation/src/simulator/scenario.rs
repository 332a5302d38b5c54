//! The parameters of a seed: the number of actors, and the frequency of faults. Each seed omits some faults, so that
//! constant noise hides nothing.

use millpond_storage::unreliable::{Faults, S3Latency, WriteFaults};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use std::ops::Range;
use std::time::Duration;

/// The parameters of one run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) shards: u32,
    /// Streams that clients send to.
    pub(crate) streams: usize,
    /// Concurrent producers; another one follows each when it ends.
    pub(crate) producers: usize,
    /// Clients of each producer.
    pub(crate) clients: usize,
    /// Messages that a client sends before the answer to the first.
    pub(crate) pipelined: usize,
    /// A client's longest pause between messages.
    pub(crate) pause_max: Duration,
    pub(crate) consumers: usize,
    /// Consumers beyond those that all ask for one table. They begin at any time.
    pub(crate) rivals: usize,
    /// The rival that is told to share the table.
    pub(crate) sharing: Option<usize>,
    /// Concurrent owners of each consumer.
    pub(crate) owners: usize,
    pub(crate) gcs: usize,
    /// Duration of the faults.
    pub(crate) trouble: Duration,
    pub(crate) tail_max: usize,
    pub(crate) grace: Duration,
    pub(crate) retention: Option<Duration>,
    pub(crate) lease: Duration,
    /// The policies of the owners; each owner picks one.
    pub(crate) policies: Vec<Rules>,
    /// One in this many owners takes the cursor by force; 0: none.
    pub(crate) forces: u32,
    pub(crate) request_timeout: Duration,
    /// Probability that a request to the store fails in some way.
    pub(crate) fault: f64,
    pub(crate) late_by_max: Duration,
    pub(crate) latency: bool,
    /// Probability that a write to the sink fails.
    pub(crate) sink_fault: f64,
    /// Partitions of the table.
    pub(crate) partitions: usize,
    /// True if the table records tokens. If not, owners never overlap, and no request outlives its sender.
    pub(crate) window: bool,
    /// The table forgets tokens as soon as the protocol allows.
    pub(crate) tokens_forgotten: bool,
    /// The table may record a token and lose its rows.
    pub(crate) poisons: bool,
    /// The table is certain which rows it lacks.
    pub(crate) certain: bool,
    /// Operators reset, skip, remove and delete.
    pub(crate) operators: bool,
    /// The table permanently refuses about one row in this many.
    pub(crate) forbidden: Option<u32>,
    /// Maximum duration of a stall; zero: no stalls.
    pub(crate) stall_max: Duration,
    /// Maximum duration of outages of the store and the sink; zero: none.
    pub(crate) outage_max: Duration,
    /// Clocks jump by this or a tenth of it, in either direction; zero: never.
    pub(crate) jump_max: Duration,
    /// Manifests forget producers, as if thousands of others wrote to their shards.
    pub(crate) forgets: bool,
    /// The windows within which consumers drop repetitions; each owner picks one, and none of zero length. Empty: they drop none.
    pub(crate) windows: Vec<Duration>,
    /// The number of new keys after which an owner stores them.
    pub(crate) snapshot_keys: u64,
    /// The number of snapshots from which on the next one merges some.
    pub(crate) snapshots_named: usize,
    /// The shortest and the longest time between two snapshots of a silent stream.
    pub(crate) snapshot_interval: [Duration; 2],
    /// The shortest time that the keys of a silent stream stay in memory.
    pub(crate) keys_rest: Duration,
}

/// The settings of an owner that decide which rows are sent under which token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) batch_records: u64,
    pub(crate) chunk_rows: u64,
    pub(crate) max_in_flight: u32,
}

/// Longer than a producer's expiry: still no single clock makes a manifest forget a producer.
const DAY_AND_MORE: Duration = seconds(30 * 3_600);

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Scenario {
    pub(crate) fn draw(rng: &mut StdRng) -> Scenario {
        let owners = rng.random_range(1..=2);
        let (consumers, rivals) = (of(rng, &[1, 1, 2]), of(rng, &[0, 0, 2, 3]));
        let forces = of(rng, &[0, 2, 4]);
        let window = owners > 1 || !one_in(rng, 4);
        let certain = !one_in(rng, 5);
        let policies = (0..of(rng, &[1, 3])).map(|_| Rules::draw(rng)).collect();
        Scenario {
            shards: of(rng, &[1, 1, 2]),
            streams: rng.random_range(1..=3),
            producers: rng.random_range(1..=3),
            clients: rng.random_range(1..=2),
            pipelined: rng.random_range(1..=4),
            pause_max: of(rng, &[millis(300), millis(900), seconds(3)]),
            consumers,
            rivals,
            sharing: (rivals > 0 && one_in(rng, 4)).then(|| consumers + rng.random_range(0..rivals)),
            owners,
            gcs: rng.random_range(1..=2),
            trouble: seconds(rng.random_range(3..11)),
            tail_max: rng.random_range(1..=5),
            grace: of(rng, &[millis(500), seconds(3), seconds(60)]),
            retention: one_in(rng, 6).then(|| millis(rng.random_range(100..4_000))),
            lease: of(rng, &[seconds(1), seconds(3)]),
            policies,
            forces,
            request_timeout: of(rng, &[millis(500), seconds(2), seconds(30)]),
            fault: of(rng, &[0.0, 0.02, 0.05, 0.12]),
            late_by_max: of(rng, &[millis(50), seconds(1), seconds(8)]),
            latency: one_in(rng, 2),
            sink_fault: of(rng, &[0.0, 0.1, 0.4]),
            partitions: rng.random_range(1..=3),
            window,
            tokens_forgotten: one_in(rng, 2),
            // An owner that cannot be certain which rows the table has relies on successful answers.
            poisons: window && certain && one_in(rng, 2),
            certain,
            operators: one_in(rng, 2),
            forbidden: of(rng, &[None, None, Some(7), Some(40)]),
            stall_max: of(rng, &[seconds(0), seconds(2), seconds(9)]),
            outage_max: of(rng, &[seconds(0), seconds(3)]),
            jump_max: of(
                rng,
                &[seconds(0), seconds(8), seconds(3_600), DAY_AND_MORE, DAY_AND_MORE],
            ),
            forgets: one_in(rng, 3),
            windows: Vec::new(),
            snapshot_keys: 0,
            snapshots_named: 0,
            snapshot_interval: [Duration::ZERO; 2],
            keys_rest: Duration::ZERO,
        }
    }

    /// Drops repetitions in some scenarios in which nobody moves a cursor. `rng` is apart, so that other seeds stay what they were.
    pub(crate) fn unique(self, rng: &mut StdRng) -> Scenario {
        if self.shards > 1 || self.operators || self.retention.is_some() || !one_in(rng, 2) {
            return self;
        }
        let windows = [seconds(0), seconds(1), seconds(2), seconds(6), seconds(100)];
        let windows = (0..of(rng, &[1, 1, 2])).map(|_| of(rng, &windows));
        Scenario {
            windows: windows.collect(),
            snapshot_keys: of(rng, &[1, 4, 16, 1_000]),
            snapshots_named: of(rng, &[1, 2, 5, 3_072]),
            // Streams are silent for seconds.
            snapshot_interval: of(rng, &[[millis(50), millis(400)], [seconds(60), seconds(3_600)]]),
            keys_rest: of(rng, &[seconds(0), seconds(2), seconds(600)]),
            ..self
        }
    }

    /// The network faults of one process.
    pub(crate) fn faults(&self, rng: &mut StdRng) -> Faults {
        Faults {
            seed: rng.random(),
            write: WriteFaults {
                late_by_max: self.late_by_max,
                ..WriteFaults::each(self.fault)
            },
            read_error: self.fault,
            latency: self.latency.then(S3Latency::default),
        }
    }
}

impl Rules {
    fn draw(rng: &mut StdRng) -> Rules {
        Rules {
            batch_records: of(rng, &[2, 5, 12, 60]),
            chunk_rows: of(rng, &[1, 3, 1_000]),
            max_in_flight: rng.random_range(1..=5),
        }
    }
}

/// Picks one of these.
pub(crate) fn of<T: Copy>(rng: &mut impl Rng, these: &[T]) -> T {
    *these.choose(rng).expect("there are some")
}

pub(crate) fn one_in(rng: &mut impl Rng, times: u32) -> bool {
    times > 0 && rng.random_range(0..times) == 0
}

/// A random duration in whole milliseconds, up to this one.
pub(crate) fn up_to(rng: &mut impl Rng, most: Duration) -> Duration {
    millis(rng.random_range(0..=u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
}

/// A random duration in whole milliseconds.
pub(crate) fn between(rng: &mut impl Rng, times: Range<u64>) -> Duration {
    millis(rng.random_range(times))
}
