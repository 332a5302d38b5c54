//! What a seed has in store: how many there are of each, and how often what goes wrong. Each seed leaves some of it out, so
//! that nothing hides behind what happens all the time.

use millpond_storage::unreliable::{Faults, S3Latency, WriteFaults};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use std::ops::Range;
use std::time::Duration;

/// The numbers of one run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) shards: u32,
    /// Streams that clients send to.
    pub(crate) streams: usize,
    /// Producers at a time; each is followed by another when it ends.
    pub(crate) producers: usize,
    /// Clients of each producer.
    pub(crate) clients: usize,
    /// Messages that a client sends without waiting for the first one's answer.
    pub(crate) pipelined: usize,
    /// A client's longest pause between messages.
    pub(crate) pause_max: Duration,
    pub(crate) consumers: usize,
    /// Owners at a time of each consumer.
    pub(crate) owners: usize,
    pub(crate) gcs: usize,
    /// How long things go wrong.
    pub(crate) trouble: Duration,
    pub(crate) tail_max: usize,
    pub(crate) grace: Duration,
    pub(crate) retention: Option<Duration>,
    pub(crate) lease: Duration,
    /// Rules that owners are configured with: any of them, if there are several.
    pub(crate) policies: Vec<Rules>,
    /// One in so many owners takes the cursor by force; 0: none.
    pub(crate) forces: u32,
    pub(crate) request_timeout: Duration,
    /// That a request to the store goes wrong in one of the ways there are.
    pub(crate) fault: f64,
    pub(crate) late_by_max: Duration,
    pub(crate) latency: bool,
    /// That a write to the sink goes wrong.
    pub(crate) sink_fault: f64,
    /// Partitions of the table.
    pub(crate) partitions: usize,
    /// Whether the table records tokens. If not, nobody overlaps with his successor, and no request outlives its sender.
    pub(crate) window: bool,
    /// The table forgets tokens as soon as the protocol permits.
    pub(crate) tokens_forgotten: bool,
    /// The table may record a token and lose its rows.
    pub(crate) poisons: bool,
    /// The table is certain of the rows that it says it lacks.
    pub(crate) certain: bool,
    /// Operators reset, skip, remove and delete.
    pub(crate) operators: bool,
    /// The table refuses about one row in so many, for good.
    pub(crate) forbidden: Option<u32>,
    /// Processes that stall do so for so long at most; zero: none does.
    pub(crate) stall_max: Duration,
    /// Outages of the store and of the sink last so long at most; zero: there are none.
    pub(crate) outage_max: Duration,
    /// Clocks jump by so much or a tenth of it, either way; zero: they do not.
    pub(crate) jump_max: Duration,
    /// Manifests forget producers, as if thousands of others wrote to their shards.
    pub(crate) forgets: bool,
}

/// What of an owner's settings decides which rows are sent under which token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) batch_records: u64,
    pub(crate) chunk_rows: u64,
    pub(crate) max_in_flight: u32,
}

/// Longer than a producer's age in a table that is too large: still no clock alone makes a manifest forget anybody.
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
            consumers: of(rng, &[1, 1, 2]),
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
            // An owner that cannot be certain which rows the table has believes its successes.
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
        }
    }

    /// The network of one process.
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

/// One of these.
pub(crate) fn of<T: Copy>(rng: &mut impl Rng, these: &[T]) -> T {
    *these.choose(rng).expect("there are some")
}

pub(crate) fn one_in(rng: &mut impl Rng, times: u32) -> bool {
    times > 0 && rng.random_range(0..times) == 0
}

/// A time of whole milliseconds up to this one.
pub(crate) fn up_to(rng: &mut impl Rng, most: Duration) -> Duration {
    millis(rng.random_range(0..=u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
}

/// A time of whole milliseconds.
pub(crate) fn between(rng: &mut impl Rng, times: Range<u64>) -> Duration {
    millis(rng.random_range(times))
}
