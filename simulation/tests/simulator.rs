//! Runs the real pipeline through many seeds, and checks that a seed always gives the same run.

use clap::ValueEnum;
use millpond_simulation::simulator::{Event, first_difference, run, run_all};
use std::num::NonZero;
use std::thread::available_parallelism;

/// The number of runs in every `cargo test`; `make simulate` runs more.
const SEEDS: u64 = 2_000;
/// The number of runs that are repeated.
const REPEATED: u64 = 20;

#[test]
fn a_seed_is_the_same_run_each_time() {
    let mut hashes = Vec::new();
    for seed in 0..REPEATED {
        let (one, other) = (run(seed, true), run(seed, true));
        if let Some((line, one, other)) = first_difference(&one, &other) {
            panic!("seed {seed} is not the same run twice; line {line}:\n{one}\n{other}");
        }
        // The hash without a recorded trace equals the hash with one.
        let hashed = run(seed, false);
        assert_eq!(hashed.trace.lines, Vec::<String>::new());
        assert_eq!(one.trace.hash, hashed.trace.hash, "seed {seed}");
        assert_eq!(
            (&one.counts, one.trace.events),
            (&hashed.counts, hashed.trace.events)
        );
        hashes.push(one.trace.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len() as u64, REPEATED, "other seeds are other runs");
}

/// In the first, an owner gave up that was suspended while it read keys, and was succeeded meanwhile. In the second, the deletion of
/// a snapshot arrived after another setting had begun.
#[test]
fn seeds_that_violated_a_promise_once_do_not_do_so_again() {
    for seed in [10_064_192_836, 25_970_848_709] {
        let run = run(seed, false);
        assert!(run.violation.is_none(), "{:?}", run.violation);
    }
}

#[test]
fn every_promise_holds_for_every_seed() {
    let threads = available_parallelism().map_or(1, NonZero::get);
    let summary = run_all(0..SEEDS, threads);
    print!("{}", summary.counts);
    if let Some(failed) = summary.failed {
        let violation = failed.violation.expect("that is why it failed");
        let last = failed.trace.lines.len().saturating_sub(40);
        for line in &failed.trace.lines[last..] {
            eprintln!("{line}");
        }
        panic!(
            "seed {} violates {violation}; all of it: millpond-simulation run --seed {} --trace",
            failed.seed, failed.seed
        );
    }
    assert_eq!(summary.seeds, SEEDS);
    // The runs include every fault, except those that need two rare events at once.
    let usual = Event::value_variants()
        .iter()
        .filter(|event| **event != Event::UnknownOutcome);
    for event in usual {
        assert!(summary.counts.of(*event) > 0, "{event:?} never happened");
    }
}
