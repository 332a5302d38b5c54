//! `make bench`: runs the released programs as processes with real log lines and measures them. It prints only
//! measurements of this run; the required bounds decide the exit code. A run counts only if it delivered every record
//! exactly once.

mod backlog;
mod clickhouse;
mod cost;
mod floor;
mod gateways;
mod latency;
mod levels;
mod memory;
mod report;
mod shape;
mod stack;
mod telemetry;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, ValueEnum};
use report::Results;
use tokio::signal::unix::{SignalKind, signal};

/// Measure the pipeline and compare the results with the required bounds.
#[derive(Debug, Parser)]
struct Flags {
    /// Records of each repeat of the part "cost".
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "short")]
    records: u64,

    /// Repeats of the parts "cost", "backlog" and "telemetry": the median counts.
    #[arg(long, default_value_t = 3, conflicts_with = "short")]
    repeats: u32,

    /// Run each part once, for a few seconds, and judge nothing: shows that the benchmark itself works.
    #[arg(long)]
    short: bool,

    /// Only these parts [default: cost,latency,memory].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,

    /// Numbers of gateways of the part "gateways" [default: 1,4,16,48].
    #[arg(long, value_delimiter = ',')]
    gateways: Vec<usize>,

    /// Let each gateway of the part "gateways" commit for itself.
    #[arg(long)]
    without_leader: bool,

    /// Small segments of the part "backlog", of 100 records each.
    #[arg(long, default_value_t = 10_000, conflicts_with = "short")]
    segments: u64,

    /// A folder of *.log files whose lines become log bodies [default: the load generator's].
    #[arg(long, env = "MILLPOND_LOGHUB")]
    bodies: Option<PathBuf>,

    /// Folder for the JSON results.
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

/// How long the parts about latency measure.
const MEASURED: Duration = Duration::from_secs(20);

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU per record, and end-to-end records per second.
    Cost,
    /// Latency and requests at a steady rate over a store with S3's latency.
    Latency,
    /// Latency at 10 %, 50 % and 90 % of the machine's capacity, by stage. Takes 5 minutes.
    Levels,
    /// Peak memory while ClickHouse is stopped.
    Memory,
    /// Request latency, row latency and requests to the store with 1 to 48 gateways. Takes 15 minutes.
    Gateways,
    /// The rate at which a consumer drains a backlog of small segments. Takes 10 minutes.
    Backlog,
    /// CPU per record with Millpond's own metrics and traces. Takes 4 minutes.
    Telemetry,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    millpond_load::process::kill_on_panic();
    let outcome = tokio::select! {
        outcome = run(Flags::parse()) => outcome,
        stopped = stopped() => stopped,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bound held.
async fn run(flags: Flags) -> anyhow::Result<bool> {
    let wanted = |part| match &flags.only[..] {
        [] => matches!(part, Part::Cost | Part::Latency | Part::Memory),
        parts => parts.contains(&part),
    };
    let bodies = flags.bodies.as_deref();
    let (records, repeats, measured, stall) = if flags.short {
        (20_000, 1, Duration::from_secs(2), Duration::from_secs(2))
    } else {
        (flags.records, flags.repeats, MEASURED, memory::STALL)
    };
    let mut results = Results::begin();
    if wanted(Part::Cost) {
        results.cost = cost::measure(bodies, records, repeats).await?;
    }
    if wanted(Part::Latency) {
        results.latency = latency::measure(bodies, measured).await?;
    }
    if wanted(Part::Levels) {
        results.levels = levels::measure(bodies, measured).await?;
    }
    if wanted(Part::Memory) {
        results.memory = Some(memory::measure(bodies, stall).await?);
    }
    if wanted(Part::Gateways) {
        results.gateways = gateways::measure(&flags, measured).await?;
    }
    if wanted(Part::Backlog) {
        let segments = if flags.short { 100 } else { flags.segments };
        results.backlog = backlog::measure(bodies, segments, repeats).await?;
    }
    if wanted(Part::Telemetry) {
        results.telemetry = telemetry::measure(bodies, records, repeats).await?;
    }
    if !flags.short {
        results.judge();
    }
    println!("\n{results}");
    let file = results.write(&flags.results)?;
    println!("\nwritten to {}", file.display());
    Ok(results.held())
}

/// Fails on SIGINT or SIGTERM, so that the children end with this program.
async fn stopped() -> anyhow::Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    bail!("interrupted; no results written")
}
