//! Runs seeds of the simulation from the command line.
#![expect(clippy::disallowed_methods, reason = "shows how long the runs take")]

use anyhow::{Context, bail, ensure};
use clap::Args;
use millpond_simulation::simulator::{self, Run, Summary, first_difference};
use std::num::NonZero;
use std::ops::Range;
use std::str::FromStr;
use std::thread::available_parallelism;
use std::time::Instant;

/// The arguments of a run.
#[derive(Args)]
pub(crate) struct Simulate {
    /// Range of seeds; the end is exclusive.
    #[arg(long, value_name = "FIRST..END", default_value = "0..1000")]
    seeds: Seeds,
    /// Run one seed twice and compare its traces.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print the trace of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of seeds to run concurrently [default: number of cores].
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Clone)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = anyhow::Error;

    fn from_str(given: &str) -> anyhow::Result<Self> {
        let (first, end) = given.split_once("..").context("give them as 0..1000")?;
        let seeds = first.parse()?..end.parse()?;
        ensure!(!seeds.is_empty(), "{given} is an empty range");
        Ok(Seeds(seeds))
    }
}

/// Fails if a run violates a promise, and prints the seed and the promise.
pub(crate) fn run(arguments: &Simulate) -> anyhow::Result<()> {
    match arguments.seed {
        Some(seed) => replay(seed, arguments.trace),
        None => {
            let threads = arguments
                .threads
                .unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get));
            run_many(&arguments.seeds.0, threads)
        }
    }
}

fn replay(seed: u64, show: bool) -> anyhow::Result<()> {
    let (one, other) = (simulator::run(seed, true), simulator::run(seed, true));
    if show {
        one.trace.lines.iter().for_each(|line| println!("{line}"));
    }
    if let Some((line, one, other)) = first_difference(&one, &other) {
        bail!("seed {seed} gives two different runs; line {line}:\n{one}\n{other}");
    }
    println!(
        "{}seed {seed}: {} events, trace {:016x}",
        one.counts, one.trace.events, one.trace.hash
    );
    verdict(Some(&one))
}

fn run_many(seeds: &Range<u64>, threads: usize) -> anyhow::Result<()> {
    let started = Instant::now();
    let Summary {
        seeds,
        events,
        counts,
        failed,
    } = simulator::run_all(seeds.clone(), threads);
    let seconds = started.elapsed().as_secs_f64();
    print!("{counts}");
    println!("{events:>12} events");
    println!("{seeds:>12} seeds in {seconds:.1} s on {threads} threads");
    verdict(failed.as_ref())
}

fn verdict(run: Option<&Run>) -> anyhow::Result<()> {
    match run.and_then(|run| run.violation.as_ref().map(|violation| (run.seed, violation))) {
        Some((seed, violation)) => bail!(
            "seed {seed} violates {violation}\nto reproduce: cargo run --release -p millpond-simulation -- run --seed {seed} --trace"
        ),
        None => Ok(()),
    }
}
