//! Catching up: a consumer that starts with a backlog of many small segments, and with the same records in few large ones, by
//! the number of its writers. All runs read the same buffer, each with an empty ClickHouse and under another consumer's name.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::clickhouse;
use crate::report::Spread;
use crate::stack::{self, Gateway, Reader, Settings};
use millpond_load::metrics::Scrape;
use millpond_load::ports::sets_of_free_addresses;

/// The numbers of writers.
const WRITERS: [usize; 3] = [1, 2, 4];
/// Records of a small segment: each request fills one.
const RECORDS_PER_SEGMENT: u64 = 100;
const LOAD_PATIENCE: Duration = Duration::from_secs(300);
/// A backlog that is not drained by then never is.
const DRAIN_PATIENCE: Duration = Duration::from_secs(300);
/// Interval of looks at the consumer and at the table's parts.
const LOOK: Duration = Duration::from_millis(100);

/// The size of the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Segments {
    /// A gateway closes one with each request.
    Small,
    /// A gateway's default.
    Full,
}

impl Segments {
    /// The flags of the gateway, and the records of a request.
    fn flags(self) -> (&'static [&'static str], u64) {
        match self {
            Segments::Small => (
                &["--segment-raw-bytes", "4KiB", "--linger", "10ms"],
                RECORDS_PER_SEGMENT,
            ),
            Segments::Full => (&[], 1_000),
        }
    }
}

/// All repeats with one backlog and number of writers.
#[derive(Debug, Serialize)]
pub(crate) struct Backlog {
    pub(crate) size: Segments,
    pub(crate) segments: f64,
    pub(crate) records: u64,
    pub(crate) writers: usize,
    /// From the start of the consumer's process to the last record.
    pub(crate) seconds: Spread,
    pub(crate) records_per_second: Spread,
    /// CPU-seconds per million records.
    pub(crate) consumer: Spread,
    pub(crate) engine: Spread,
    /// Most parts of the table at a time, of all repeats.
    pub(crate) parts: u64,
    /// INSERTs that ClickHouse delayed or rejected for their number, of all repeats.
    pub(crate) throttled_inserts: u64,
    /// Peak resident memory in bytes, of all repeats.
    pub(crate) consumer_memory: u64,
}

/// One repeat.
struct Run {
    seconds: f64,
    consumer: f64,
    engine: f64,
    parts: u64,
    throttled_inserts: u64,
    consumer_memory: u64,
}

/// A buffer with records that nobody has read.
struct Waiting {
    size: Segments,
    segments: f64,
    records: u64,
    directory: TempDir,
}

/// Alternates the runs, so that a machine that gets slower slows all.
pub(crate) async fn measure(
    bodies: Option<&Path>,
    segments: u64,
    repeats: u32,
) -> anyhow::Result<Vec<Backlog>> {
    let records = segments * RECORDS_PER_SEGMENT;
    let backlogs = [
        Waiting::fill(Segments::Small, bodies, records).await?,
        Waiting::fill(Segments::Full, bodies, records).await?,
    ];
    anyhow::ensure!(
        backlogs[0].segments >= segments as f64,
        "{:.0} segments instead of {segments}",
        backlogs[0].segments
    );
    let kinds: Vec<(&Waiting, usize)> = WRITERS
        .iter()
        .flat_map(|writers| backlogs.iter().map(move |backlog| (backlog, *writers)))
        .collect();
    let mut runs: Vec<Vec<Run>> = kinds.iter().map(|_| Vec::new()).collect();
    for repeat in 1..=repeats {
        for ((backlog, writers), runs) in kinds.iter().zip(&mut runs) {
            let run = backlog.drain(*writers, repeat).await?;
            println!(
                "backlog of {:.0} segments, {writers} writers, {repeat} of {repeats}: {:.1} s, {:.0} records/s, at most {} parts",
                backlog.segments,
                run.seconds,
                records as f64 / run.seconds,
                run.parts
            );
            runs.push(run);
        }
    }
    Ok(kinds
        .into_iter()
        .zip(runs)
        .map(|((backlog, writers), runs)| summary(backlog, writers, &runs))
        .collect())
}

impl Waiting {
    /// Has a gateway write the records.
    async fn fill(size: Segments, bodies: Option<&Path>, records: u64) -> anyhow::Result<Waiting> {
        let directory = stack::directory()?;
        let (gateway, per_request) = size.flags();
        let settings = Settings {
            gateway,
            ..Settings::PLAIN
        };
        let addresses = sets_of_free_addresses::<4>(1)?
            .pop()
            .context("no free addresses")?;
        let buffer = buffer_of(directory.path());
        let mut gateway = Gateway::start(0, addresses, settings, &[], &buffer, directory.path())?;
        gateway.ready().await?;
        let flags = [
            "--records".to_owned(),
            records.to_string(),
            "--records-per-request".to_owned(),
            per_request.to_string(),
        ];
        let gateways = [gateway];
        let load = stack::start_load(&gateways, bodies, &flags, directory.path())?;
        let sent = stack::sent(load, LOAD_PATIENCE).await?;
        anyhow::ensure!(sent.records_acknowledged == records, "{sent:?}");
        let [gateway] = gateways;
        let metrics = gateway.metrics().await?;
        let segments = metrics.sum("millpond_producer_segments_total", "");
        gateway.process.stop().await?;
        Ok(Waiting {
            size,
            segments,
            records,
            directory,
        })
    }

    /// Starts a consumer and waits until it has written all records.
    async fn drain(&self, writers: usize, repeat: u32) -> anyhow::Result<Run> {
        let name = format!("writers-{writers}-repeat-{repeat}");
        let flags = ["--consumer", &name, "--writers", &writers.to_string()];
        let reader = Reader::start(&buffer_of(self.directory.path()), &flags).await?;
        let (began, before) = (reader.began, reader.engine_before);
        let mut parts = 0;
        while Scrape::of(reader.admin)
            .await?
            .sum("millpond_consumer_records_total", "")
            < self.records as f64
        {
            parts = parts.max(clickhouse::parts(reader.clickhouse).await?);
            if began.elapsed() > DRAIN_PATIENCE {
                bail!("the backlog is not drained after {DRAIN_PATIENCE:?}");
            }
            sleep(LOOK).await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let per_million = |seconds: f64| seconds * 1e6 / self.records as f64;
        let run = Run {
            seconds,
            consumer: per_million(reader.consumer.cpu_seconds()?),
            engine: per_million(reader.engine.cpu_seconds()? - before),
            parts: parts.max(clickhouse::parts(reader.clickhouse).await?),
            throttled_inserts: clickhouse::throttled_inserts(reader.clickhouse).await?,
            consumer_memory: reader.consumer.peak_memory()?,
        };
        clickhouse::check_exact(reader.clickhouse, self.records).await?;
        reader.stop().await?;
        Ok(run)
    }
}

fn buffer_of(directory: &Path) -> String {
    format!("file://{}", directory.join("buffer").display())
}

fn summary(backlog: &Waiting, writers: usize, runs: &[Run]) -> Backlog {
    let spread = |figure: fn(&Run) -> f64| Spread::of(runs.iter().map(figure).collect());
    let most = |figure: fn(&Run) -> u64| runs.iter().map(figure).max().unwrap_or_default();
    let rates = runs.iter().map(|run| backlog.records as f64 / run.seconds);
    Backlog {
        size: backlog.size,
        segments: backlog.segments,
        records: backlog.records,
        writers,
        seconds: spread(|run| run.seconds),
        records_per_second: Spread::of(rates.collect()),
        consumer: spread(|run| run.consumer),
        engine: spread(|run| run.engine),
        parts: most(|run| run.parts),
        throttled_inserts: runs.iter().map(|run| run.throttled_inserts).sum(),
        consumer_memory: most(|run| run.consumer_memory),
    }
}
