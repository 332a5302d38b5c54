//! The bounds of a search.

/// The bounds of a search. Every count applies to the whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// For each producer, the number of records in each of its segments.
    pub segments: Vec<Vec<u64>>,
    /// Owners that compete for the cursor.
    pub owners: usize,
    /// Number of entries at which a tail is sealed.
    pub tail_max: usize,
    /// Number of sequences after the end of the log that owners plan in advance.
    pub ahead: u64,
    /// Batches in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// True if the second owner is configured with another policy than the first.
    pub policies_differ: bool,
    /// Steps of the clock.
    pub ticks: u8,
    /// Rounds of the garbage collector.
    pub rounds: u8,
    /// Openings of the cursor.
    pub epochs: u8,
    /// Swaps by producers with an unreported outcome.
    pub producer_faults: u8,
    /// Swaps by owners with an unreported outcome.
    pub owner_faults: u8,
    /// Swaps by the garbage collector with an unreported outcome.
    pub gc_faults: u8,
    /// Crashes of producers.
    pub producer_crashes: u8,
    /// Crashes of owners.
    pub owner_crashes: u8,
    /// Releases of the cursor.
    pub releases: u8,
    /// Tokens that the sink records without their rows.
    pub poisons: u8,
    /// Resets of the cursor to the beginning, by an operator.
    pub resets: u8,
    /// Removals of the cursor, by an operator.
    pub removals: u8,
    /// Skips of a segment by an operator.
    pub skips: u8,
    /// Numbers of the segments with rows that the sink refuses.
    pub forbidden: Vec<u8>,
    /// Fixes of the sink, after which it accepts every row.
    pub repairs: u8,
    /// Registrations that make the table forget all other producers.
    pub expiries: u8,
}

impl Bounds {
    const NOTHING: Bounds = Bounds {
        segments: Vec::new(),
        owners: 0,
        tail_max: 2,
        ahead: 0,
        max_in_flight: 2,
        policies_differ: false,
        ticks: 0,
        rounds: 0,
        epochs: 0,
        producer_faults: 0,
        owner_faults: 0,
        gc_faults: 0,
        producer_crashes: 0,
        owner_crashes: 0,
        releases: 0,
        poisons: 0,
        resets: 0,
        removals: 0,
        skips: 0,
        forbidden: Vec::new(),
        repairs: 0,
        expiries: 0,
    };

    /// Commits of two producers against each other and a garbage collector, with sealing and without readers.
    pub fn commit() -> Bounds {
        Bounds {
            segments: vec![vec![1, 1], vec![1]],
            tail_max: 1,
            ticks: 1,
            rounds: 1,
            producer_faults: 1,
            gc_faults: 1,
            ..Bounds::NOTHING
        }
    }

    /// Producers that crash, or that the table forgets.
    pub fn forgotten() -> Bounds {
        Bounds {
            segments: vec![vec![1], vec![1]],
            gc_faults: 0,
            producer_crashes: 1,
            expiries: 1,
            ..Bounds::commit()
        }
    }

    /// Two owners of a cursor, with small and large segments of one producer.
    pub fn delivery() -> Bounds {
        Bounds {
            segments: vec![vec![1, 1, 2]],
            owners: 2,
            epochs: 3,
            owner_faults: 1,
            ..Bounds::NOTHING
        }
    }

    /// Two owners that crash, or release the cursor to each other.
    pub fn takeover() -> Bounds {
        Bounds {
            segments: vec![vec![1, 2]],
            tail_max: 1,
            owner_crashes: 1,
            releases: 1,
            epochs: 2,
            ..Bounds::delivery()
        }
    }

    /// Owners whose cursor an operator resets, with a sink that loses rows.
    pub fn operated() -> Bounds {
        Bounds {
            segments: vec![vec![1, 1]],
            owner_faults: 0,
            poisons: 1,
            resets: 1,
            epochs: 4,
            ..Bounds::delivery()
        }
    }

    /// Owners that bisect refused chunks, with a sink that is fixed meanwhile.
    pub fn refused() -> Bounds {
        Bounds {
            segments: vec![vec![1, 1]],
            owner_faults: 1,
            epochs: 2,
            forbidden: vec![0],
            repairs: 1,
            ..Bounds::delivery()
        }
    }

    /// All actors together: two producers, two owners and the garbage collector.
    pub fn whole() -> Bounds {
        Bounds {
            segments: vec![vec![1], vec![2]],
            owners: 2,
            tail_max: 1,
            max_in_flight: 1,
            ticks: 1,
            rounds: 1,
            epochs: 2,
            ..Bounds::NOTHING
        }
    }

    /// The number of records in a segment; segments are numbered across all producers.
    pub fn records(&self, segment: u8) -> u64 {
        let all = self.segments.iter().flatten();
        all.copied().nth(segment.into()).unwrap_or(1)
    }

    /// The number of a producer's segment.
    pub fn number(&self, producer: usize, segment: u8) -> u8 {
        let before: usize = self.segments.iter().take(producer).map(Vec::len).sum();
        u8::try_from(before).unwrap_or(u8::MAX).saturating_add(segment)
    }
}
