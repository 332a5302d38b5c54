//! Searches one bound of the model from the command line.
#![expect(clippy::disallowed_methods, reason = "shows how long a search takes")]

use anyhow::bail;
use clap::{Args, ValueEnum};
use millpond_simulation::{Bounds, System};
use stateright::report::WriteReporter;
use stateright::{Checker, HasDiscoveries, Model};
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Instant;

#[derive(Clone, Copy, ValueEnum)]
enum Scope {
    /// Producers and the garbage collector.
    Commit,
    /// Producers that crash or are forgotten.
    Forgotten,
    /// Owners of a cursor.
    Delivery,
    /// Owners that crash or release the cursor.
    Takeover,
    /// Owners whose cursor an operator resets.
    Operated,
    /// Owners whose sink refuses rows.
    Refused,
    /// All actors.
    Whole,
}

/// The arguments of a search.
#[derive(Args)]
pub(crate) struct Search {
    /// Initial bounds; the flags change them.
    scope: Scope,
    /// Search breadth first: finds the shortest path to a violation, but takes more memory.
    #[arg(long)]
    shortest: bool,
    /// Records of each segment of each producer, as in 1,1/2.
    #[arg(long)]
    segments: Option<String>,
    /// Entries of a full tail.
    #[arg(long)]
    tail_max: Option<usize>,
    /// Number of sequences after the end of the log to plan in advance.
    #[arg(long)]
    ahead: Option<u64>,
    /// Batches in flight.
    #[arg(long)]
    max_in_flight: Option<u32>,
    /// Give the second owner a different policy.
    #[arg(long)]
    policies_differ: Option<bool>,
    /// Owners that compete for the cursor.
    #[arg(long)]
    owners: Option<usize>,
    /// Steps of the clock.
    #[arg(long)]
    ticks: Option<u8>,
    /// Rounds of the garbage collector.
    #[arg(long)]
    rounds: Option<u8>,
    /// Openings of the cursor.
    #[arg(long)]
    epochs: Option<u8>,
    /// Swaps by producers with an unreported outcome.
    #[arg(long)]
    producer_faults: Option<u8>,
    /// Swaps by owners with an unreported outcome.
    #[arg(long)]
    owner_faults: Option<u8>,
    /// Swaps by the garbage collector with an unreported outcome.
    #[arg(long)]
    gc_faults: Option<u8>,
    /// Crashes of producers.
    #[arg(long)]
    producer_crashes: Option<u8>,
    /// Crashes of owners.
    #[arg(long)]
    owner_crashes: Option<u8>,
    /// Releases of the cursor.
    #[arg(long)]
    releases: Option<u8>,
    /// Tokens that the sink records without their rows.
    #[arg(long)]
    poisons: Option<u8>,
    /// Resets of the cursor.
    #[arg(long)]
    resets: Option<u8>,
    /// Removals of the cursor.
    #[arg(long)]
    removals: Option<u8>,
    /// Skips of a segment.
    #[arg(long)]
    skips: Option<u8>,
    /// Numbers of the segments with rows that the sink refuses, as in 0,2.
    #[arg(long, value_delimiter = ',')]
    forbidden: Option<Vec<u8>>,
    /// Fixes of the sink.
    #[arg(long)]
    repairs: Option<u8>,
    /// Registrations that make the table forget all others.
    #[arg(long)]
    expiries: Option<u8>,
}

impl Search {
    fn bounds(&self) -> anyhow::Result<Bounds> {
        let from = match self.scope {
            Scope::Commit => Bounds::commit(),
            Scope::Forgotten => Bounds::forgotten(),
            Scope::Delivery => Bounds::delivery(),
            Scope::Takeover => Bounds::takeover(),
            Scope::Operated => Bounds::operated(),
            Scope::Refused => Bounds::refused(),
            Scope::Whole => Bounds::whole(),
        };
        let segments = match &self.segments {
            None => from.segments,
            Some(given) => given
                .split('/')
                .map(|one| one.split(',').map(str::parse).collect())
                .collect::<Result<_, _>>()?,
        };
        Ok(Bounds {
            segments,
            policies_differ: self.policies_differ.unwrap_or(from.policies_differ),
            owners: self.owners.unwrap_or(from.owners),
            tail_max: self.tail_max.unwrap_or(from.tail_max),
            ahead: self.ahead.unwrap_or(from.ahead),
            max_in_flight: self.max_in_flight.unwrap_or(from.max_in_flight),
            ticks: self.ticks.unwrap_or(from.ticks),
            rounds: self.rounds.unwrap_or(from.rounds),
            epochs: self.epochs.unwrap_or(from.epochs),
            producer_faults: self.producer_faults.unwrap_or(from.producer_faults),
            owner_faults: self.owner_faults.unwrap_or(from.owner_faults),
            gc_faults: self.gc_faults.unwrap_or(from.gc_faults),
            producer_crashes: self.producer_crashes.unwrap_or(from.producer_crashes),
            owner_crashes: self.owner_crashes.unwrap_or(from.owner_crashes),
            releases: self.releases.unwrap_or(from.releases),
            poisons: self.poisons.unwrap_or(from.poisons),
            resets: self.resets.unwrap_or(from.resets),
            removals: self.removals.unwrap_or(from.removals),
            skips: self.skips.unwrap_or(from.skips),
            forbidden: self.forbidden.clone().unwrap_or(from.forbidden),
            repairs: self.repairs.unwrap_or(from.repairs),
            expiries: self.expiries.unwrap_or(from.expiries),
        })
    }
}

/// Searches every state of the protocols within a bound, or until it finds a violation.
pub(crate) fn run(arguments: &Search) -> anyhow::Result<()> {
    let system = System {
        bounds: arguments.bounds()?,
    };
    println!("{system:?}");
    let builder = system
        .checker()
        .threads(available_parallelism().map_or(1, NonZero::get))
        .finish_when(HasDiscoveries::AnyFailures);
    if arguments.shortest {
        search(builder.spawn_bfs())
    } else {
        search(builder.spawn_dfs())
    }
}

fn search(checker: impl Checker<System>) -> anyhow::Result<()> {
    let started = Instant::now();
    let checker = checker.report(&mut WriteReporter::new(&mut std::io::stdout()));
    println!(
        "{} states in {:.1} s",
        checker.unique_state_count(),
        started.elapsed().as_secs_f64()
    );
    let properties = checker.model().properties();
    let mut wrong = 0;
    for property in properties {
        let found = checker.discovery(property.name);
        if property.expectation.discovery_is_failure() == found.is_some() {
            wrong += 1;
            match found {
                None => println!("never reached: {}", property.name),
                Some(path) => {
                    println!("violated: {}", property.name);
                    for action in path.into_actions() {
                        println!("  {action:?}");
                    }
                }
            }
        }
    }
    if wrong > 0 {
        bail!("{wrong} properties do not hold within this bound");
    }
    Ok(())
}
