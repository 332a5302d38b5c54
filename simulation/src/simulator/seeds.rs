//! Runs many seeds on all cores, each on its own thread.

use super::record::Counts;
use super::{Run, run};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Total number of events.
    pub events: u64,
    /// Total counts.
    pub counts: Counts,
    /// The lowest failing seed, run again with its trace.
    pub failed: Option<Run>,
}

/// Runs seeds in order on this many threads, until one violates a promise.
pub fn run_all(seeds: Range<u64>, threads: usize) -> Summary {
    let next = Mutex::new(seeds);
    let summary = Mutex::new(Summary::default());
    let work = || {
        loop {
            let Some(seed) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else {
                return;
            };
            let run = run(seed, false);
            let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.seeds += 1;
            summary.events += run.trace.events;
            summary.counts.add(&run.counts);
            if run.violation.is_some() {
                // Runs of lower seeds in progress finish.
                next.lock().unwrap_or_else(PoisonError::into_inner).start = u64::MAX;
                if summary.failed.as_ref().is_none_or(|failed| seed < failed.seed) {
                    summary.failed = Some(run);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failed = summary.failed.map(|failed| run(failed.seed, true));
    summary
}

/// The first line in which two traces differ: its number, and both versions.
pub fn first_difference<'a>(one: &'a Run, other: &'a Run) -> Option<(usize, &'a str, &'a str)> {
    let (one, other) = (&one.trace.lines, &other.trace.lines);
    let line = |lines: &'a [String], at: usize| lines.get(at).map_or("(the end)", String::as_str);
    let at = (0..one.len().max(other.len())).find(|at| one.get(*at) != other.get(*at))?;
    Some((at + 1, line(one, at), line(other, at)))
}
