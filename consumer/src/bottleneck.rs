//! Finds the bottleneck of a consumer that falls behind: the resource that was in use to its limit while the backlog
//! grew. Pure: the caller takes the samples, at a constant interval.

use prometheus_client::encoding::EncodeLabelValue;
use std::collections::VecDeque;

/// The samples that one finding rests on: a minute at one per second.
pub(crate) const SAMPLES: usize = 60;

/// The least growth of the backlog that counts, in bytes of the store, and the reciprocal of its least share.
const GROWTH_BYTES: u64 = 64 << 10;
const GROWTH_SHARE: u64 = 10;

/// A resource of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
pub(crate) enum Resource {
    /// The sink rejects chunks, which are sent again.
    sink,
    /// Batches wait for memory.
    memory,
    /// Every writer has an INSERT in flight.
    writers,
    /// Every decoder has a batch.
    decoders,
    /// Every fetcher has a request in flight.
    fetchers,
}

impl Resource {
    /// All resources. A shortage of one makes those after it look short, too: decoders wait for writers, for instance.
    pub(crate) const ALL: [Resource; 5] = [
        Resource::sink,
        Resource::memory,
        Resource::writers,
        Resource::decoders,
        Resource::fetchers,
    ];
}

/// The state of a consumer at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Bytes in the store that are committed and not in the sink, of all shards that the process owns.
    pub(crate) backlog_bytes: u64,
    /// Records and raw bytes that the sink has taken since the start.
    pub(crate) records: u64,
    pub(crate) raw_bytes: u64,
    /// The resources in use to their limit.
    pub(crate) exhausted: Vec<Resource>,
}

/// A change of the bottleneck.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    Begins(Finding),
    Ends,
}

/// The consumer falls behind because of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    pub(crate) resource: Resource,
    /// The number of samples with the resource in use to its limit, of [`SAMPLES`].
    pub(crate) exhausted: usize,
    /// The least backlog in the first and in the second half of the samples, in bytes of the store.
    pub(crate) backlog_bytes: [u64; 2],
    /// Records and raw bytes that the sink took per interval between samples.
    pub(crate) records: f64,
    pub(crate) raw_bytes: f64,
}

/// The newest samples, and the bottleneck that they show.
#[derive(Debug, Default)]
pub(crate) struct Bottleneck {
    samples: VecDeque<Sample>,
    found: Option<Resource>,
}

impl Bottleneck {
    /// Takes the next sample. Returns whether a bottleneck begins or ends with it.
    pub(crate) fn observe(&mut self, sample: Sample) -> Option<Change> {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if self.samples.len() < SAMPLES {
            return None;
        }
        match self.found {
            None => {
                let finding = self.finding()?;
                self.found = Some(finding.resource);
                Some(Change::Begins(finding))
            }
            // It ends later than it would not begin, so that a load at the limit does not fill the log.
            Some(resource) => {
                let [before, now] = self.least_backlog();
                let over = now <= before || 2 * self.exhausted(resource) < SAMPLES;
                over.then(|| {
                    self.found = None;
                    Change::Ends
                })
            }
        }
    }

    fn finding(&self) -> Option<Finding> {
        let backlog_bytes = self.least_backlog();
        let [before, now] = backlog_bytes;
        if now < before.saturating_add(GROWTH_BYTES.max(before / GROWTH_SHARE)) {
            return None;
        }
        let short = |resource: &Resource| 5 * self.exhausted(*resource) >= 4 * SAMPLES;
        let resource = Resource::ALL.into_iter().find(short)?;
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        #[expect(clippy::cast_precision_loss, reason = "for reading")]
        let per_interval = |before: u64, now: u64| now.saturating_sub(before) as f64 / (SAMPLES - 1) as f64;
        Some(Finding {
            resource,
            exhausted: self.exhausted(resource),
            backlog_bytes,
            records: per_interval(first.records, last.records),
            raw_bytes: per_interval(first.raw_bytes, last.raw_bytes),
        })
    }

    /// The least backlog in each half of the samples: each segment that arrives adds to the backlog for a moment.
    fn least_backlog(&self) -> [u64; 2] {
        let least = |samples: &mut dyn Iterator<Item = &Sample>| {
            samples.map(|sample| sample.backlog_bytes).min().unwrap_or(0)
        };
        [
            least(&mut self.samples.iter().take(SAMPLES / 2)),
            least(&mut self.samples.iter().skip(SAMPLES / 2)),
        ]
    }

    fn exhausted(&self, resource: Resource) -> usize {
        let short = |sample: &&Sample| sample.exhausted.contains(&resource);
        self.samples.iter().filter(short).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Observes a backlog that changes by these bytes per sample. Returns the changes with the numbers of their samples.
    fn observe(
        bottleneck: &mut Bottleneck,
        samples: usize,
        backlog: impl Fn(u64) -> u64,
        exhausted: &[Resource],
    ) -> Vec<(u64, Change)> {
        let samples = (0..samples as u64).map(|at| {
            let sample = Sample {
                backlog_bytes: backlog(at),
                records: 1_000 * at,
                raw_bytes: MIB * at,
                exhausted: exhausted.to_vec(),
            };
            (at, sample)
        });
        samples
            .filter_map(|(at, sample)| Some((at, bottleneck.observe(sample)?)))
            .collect()
    }

    #[test]
    fn the_first_short_resource_is_the_bottleneck_of_a_backlog_that_grows() {
        let short = [Resource::decoders, Resource::writers];
        let changes = observe(&mut Bottleneck::default(), 200, |at| MIB * at, &short);
        let finding = Finding {
            resource: Resource::writers,
            exhausted: SAMPLES,
            backlog_bytes: [0, 30 * MIB],
            records: 1_000.0,
            raw_bytes: 1_048_576.0,
        };
        assert_eq!(changes, [(59, Change::Begins(finding))]);
    }

    #[test]
    fn busy_writers_that_keep_up_or_catch_up_are_no_bottleneck() {
        let short = [Resource::writers];
        // Every third sample finds a segment that has just arrived.
        let saw = |at: u64| if at.is_multiple_of(3) { 50 * MIB } else { MIB };
        for backlog in [&saw as &dyn Fn(u64) -> u64, &|at| 1_000 * MIB - at * MIB, &|at| {
            500 * MIB + at * MIB / 3
        }] {
            let changes = observe(&mut Bottleneck::default(), 300, backlog, &short);
            assert_eq!(changes, [], "{}", backlog(1));
        }
    }

    #[test]
    fn a_backlog_that_grows_without_a_short_resource_has_none() {
        assert_eq!(observe(&mut Bottleneck::default(), 300, |at| MIB * at, &[]), []);
    }

    #[test]
    fn a_bottleneck_ends_with_the_growth_and_may_return() {
        let short = [Resource::memory];
        let mut bottleneck = Bottleneck::default();
        let begins = |changes: &[(u64, Change)]| matches!(changes, [(_, Change::Begins(_))]);
        assert!(begins(&observe(&mut bottleneck, 60, |at| MIB * at, &short)));
        let ends = observe(&mut bottleneck, 60, |_| 60 * MIB, &short);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].1, Change::Ends);
        assert!(begins(&observe(
            &mut bottleneck,
            60,
            |at| 60 * MIB + 2 * MIB * at,
            &short
        )));
        let ends = observe(&mut bottleneck, 60, |at| 180 * MIB + 2 * MIB * at, &[]);
        assert_eq!(ends[0], (30, Change::Ends), "the memory suffices again");
    }
}
