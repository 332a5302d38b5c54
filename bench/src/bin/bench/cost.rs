//! The cost of a record: CPU time of each process per million records, next to zstd alone on the same bytes, and the
//! end-to-end throughput of this machine in records per second.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::time::Instant;

use crate::clickhouse;
use crate::floor::{self, Floor};
use crate::report::Spread;
use crate::stack::{self, Peaks, Settings, Stack};
use millpond_load::process::{Process, ended_cpu_seconds};

/// Time limit of the load. It allows 20,000 records per second for the default number, far below any machine's
/// throughput.
const LOAD_PATIENCE: Duration = Duration::from_secs(60);

/// Results of all repeats with one kind of index. Times are CPU-seconds per million records.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    /// Indexes of the table: `bloom`, or `exporter`, the default, which is `text` on this engine. With `by merges`, INSERTs do
    /// not build them.
    pub(crate) indexes: &'static str,
    pub(crate) bodies: String,
    pub(crate) records: u64,
    pub(crate) raw_bytes_per_record: f64,
    pub(crate) stored_bytes_per_record: f64,
    /// From the first record sent to the last one written, all on this machine.
    pub(crate) records_per_second: Spread,
    pub(crate) zstd1: Spread,
    pub(crate) zstd_decompress: Spread,
    pub(crate) gateway: Spread,
    pub(crate) gateway_over_zstd1: Spread,
    pub(crate) consumer: Spread,
    pub(crate) consumer_records_per_core_second: Spread,
    /// The engine, until the last record is written.
    pub(crate) engine: Spread,
    /// The engine, until its merges are done.
    pub(crate) engine_merged: Spread,
    pub(crate) load: Spread,
    /// Peak memory.
    pub(crate) gateway_mib: Spread,
    pub(crate) consumer_mib: Spread,
}

/// One repeat. Times are CPU-seconds per million records.
pub(crate) struct Run {
    bodies: String,
    seconds: f64,
    floor: Floor,
    pub(crate) gateway: f64,
    pub(crate) consumer: f64,
    pub(crate) memory: Peaks,
    /// The spans and the metric points that they told of themselves.
    pub(crate) told: [f64; 2],
    engine: f64,
    engine_merged: f64,
    load: f64,
}

const INDEXES: [(&str, Settings); 4] = [
    ("bloom", consumer(&["--indexes", "bloom"])),
    ("exporter", consumer(&["--indexes", "exporter"])),
    (
        "bloom, by merges",
        consumer(&["--indexes", "bloom", "--skip-indexes", "merge"]),
    ),
    (
        "exporter, by merges",
        consumer(&["--indexes", "exporter", "--skip-indexes", "merge"]),
    ),
];

const fn consumer(flags: &'static [&'static str]) -> Settings {
    Settings {
        consumer: flags,
        ..Settings::PLAIN
    }
}

/// Alternates repeats of the kinds, so that a machine that gets slower slows both.
pub(crate) async fn measure(bodies: Option<&Path>, records: u64, repeats: u32) -> anyhow::Result<Vec<Cost>> {
    let mut runs = INDEXES.map(|_| Vec::new());
    for repeat in 1..=repeats {
        for ((indexes, settings), runs) in INDEXES.iter().zip(&mut runs) {
            let run = run(bodies, records, *settings).await?;
            println!(
                "cost, indexes {indexes}, {repeat} of {repeats}: {:.0} records/s, gateway {:.2} s per million, consumer {:.2}, engine {:.2}, zstd-1 {:.2}",
                million(records) * 1e6 / run.seconds,
                run.gateway,
                run.consumer,
                run.engine_merged,
                run.floor.compress_seconds / million(records),
            );
            runs.push(run);
        }
    }
    let kinds = INDEXES.iter().zip(&runs);
    Ok(kinds
        .map(|((indexes, _), runs)| summary(indexes, records, runs))
        .collect())
}

/// Sends and delivers the records once.
pub(crate) async fn run(bodies: Option<&Path>, records: u64, settings: Settings) -> anyhow::Result<Run> {
    let stack = Stack::start(settings).await?;
    let gateway = &stack
        .gateways
        .first()
        .context("a stack without a gateway")?
        .process;
    let processes = [gateway, &stack.consumer, &stack.engine];
    let before = cpu(processes)?;
    let load_before = ended_cpu_seconds()?;
    let began = Instant::now();
    let load = stack.load(
        bodies,
        &["--records", &records.to_string(), "--records-per-request", "1000"],
    )?;
    let sent = stack::sent(load, LOAD_PATIENCE).await?;
    let load = ended_cpu_seconds()? - load_before;
    stack.delivered(sent.records_acknowledged).await?;
    let seconds = began.elapsed().as_secs_f64();
    let after = cpu(processes)?;

    clickhouse::rest(stack.clickhouse).await?;
    let merged = stack.engine.cpu_seconds()?;
    let floor = floor::measure(&stack.buffer())?;
    anyhow::ensure!(
        floor.raw_bytes == sent.raw_bytes,
        "{} bytes were sent, but the buffer has {}",
        sent.raw_bytes,
        floor.raw_bytes
    );
    clickhouse::check_exact(stack.clickhouse, records).await?;
    let per_million = |after: f64, before: f64| (after - before) / million(records);
    let load = per_million(load, 0.0);
    Ok(Run {
        bodies: sent.bodies,
        seconds,
        floor,
        gateway: per_million(after[0], before[0]),
        consumer: per_million(after[1], before[1]),
        engine: per_million(after[2], before[2]),
        engine_merged: per_million(merged, before[2]),
        load,
        memory: stack.peak_memory()?,
        told: stack.stop().await?,
    })
}

fn cpu(processes: [&Process; 3]) -> anyhow::Result<[f64; 3]> {
    let [gateway, consumer, engine] = processes.map(Process::cpu_seconds);
    Ok([gateway?, consumer?, engine?])
}

fn million(records: u64) -> f64 {
    records as f64 / 1e6
}

fn summary(indexes: &'static str, records: u64, runs: &[Run]) -> Cost {
    let spread = |figure: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(figure).collect());
    let zstd1 = |run: &Run| run.floor.compress_seconds / million(records);
    let first = |figure: fn(&Floor) -> u64| runs.first().map_or(0, |run| figure(&run.floor));
    Cost {
        indexes,
        bodies: runs.first().map_or_else(String::new, |run| run.bodies.clone()),
        records,
        raw_bytes_per_record: first(|floor| floor.raw_bytes) as f64 / records as f64,
        stored_bytes_per_record: first(|floor| floor.stored_bytes) as f64 / records as f64,
        records_per_second: spread(&|run| records as f64 / run.seconds),
        zstd1: spread(&zstd1),
        zstd_decompress: spread(&|run| run.floor.decompress_seconds / million(records)),
        gateway: spread(&|run| run.gateway),
        gateway_over_zstd1: spread(&|run| run.gateway / zstd1(run)),
        consumer: spread(&|run| run.consumer),
        consumer_records_per_core_second: spread(&|run| 1e6 / run.consumer),
        engine: spread(&|run| run.engine),
        engine_merged: spread(&|run| run.engine_merged),
        load: spread(&|run| run.load),
        gateway_mib: spread(&|run| run.memory.gateway_mib),
        consumer_mib: spread(&|run| run.memory.consumer_mib),
    }
}
