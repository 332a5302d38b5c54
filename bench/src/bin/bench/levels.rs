//! The latency of records at shares of the machine's capacity, from clients that wait for their answers and from clients that do not, and
//! where the time goes.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;
use tokio::time::Instant;

use crate::clickhouse;
use crate::latency::LINGERS;
use crate::shape::{PATIENCE, Shape};
use crate::stack::{self, Peaks, Stack};
use millpond_load::metrics::Scrape;

const SHARES: [f64; 3] = [0.1, 0.5, 0.9];
/// Excluded from the measurement: registrations, and the first segments, connections and inserts.
const WARM_UP: Duration = Duration::from_secs(3);
/// Excluded too, directly before the measurement: a gateway that was idle closes four segments early.
const RUN_UP: Duration = Duration::from_secs(5);

/// How clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Clients {
    /// At a constant rate, whatever happens to their requests.
    Open,
    /// Each sends its next request after the answer to the last one.
    Closed,
}

/// A stage of a record's way.
#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) mean_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Results at one share of the capacity, at a linger of 1 s.
#[derive(Debug, Serialize)]
pub(crate) struct Level {
    pub(crate) clients: Clients,
    /// The intended share of the capacity.
    pub(crate) share: f64,
    /// Records per second that arrived in ClickHouse under full load.
    pub(crate) capacity: f64,
    pub(crate) records_per_second: f64,
    /// From sending a request to its acknowledgement.
    pub(crate) request_p50_ms: f64,
    pub(crate) request_p99_ms: f64,
    /// From receiving a message to the INSERT's success, in steps of 15 %.
    pub(crate) row_mean_ms: f64,
    pub(crate) row_p50_ms: f64,
    pub(crate) row_p99_ms: f64,
    pub(crate) memory: Peaks,
    /// In the order of a record's way. A message waits for half of the first one on average; the rest of the mean latency is time
    /// between the stages.
    pub(crate) stages: Vec<Stage>,
}

/// The stages, and the metrics that have their durations. The first two belong to gateways.
const STAGES: [(&str, &str); 6] = [
    ("segment open", "millpond_producer_linger_seconds"),
    ("upload", "millpond_producer_upload_seconds"),
    ("commit", "millpond_producer_commit_seconds"),
    ("fetch", "millpond_consumer_fetch_seconds"),
    ("decode", "millpond_consumer_decode_seconds"),
    ("insert", "millpond_consumer_write_seconds"),
];

/// Measures the capacity, and then the latency at each share of it.
pub(crate) async fn measure(bodies: Option<&Path>, measured: Duration) -> anyhow::Result<Vec<Level>> {
    let capacity = capacity(bodies, measured).await?;
    println!("levels: {capacity:.0} records/s arrive under full load");
    let mut all = Vec::new();
    for clients in [Clients::Open, Clients::Closed] {
        for share in SHARES {
            let level = run(bodies, measured, clients, share, capacity).await?;
            println!("{level}");
            all.push(level);
        }
    }
    Ok(all)
}

async fn capacity(bodies: Option<&Path>, measured: Duration) -> anyhow::Result<f64> {
    let stack = Stack::start(LINGERS[0].1).await?;
    let began = Instant::now();
    let load = stack.load(bodies, &Shape::FULL.flags(measured))?;
    let sent = stack::sent(load, PATIENCE).await?;
    stack.delivered(sent.records_acknowledged).await?;
    let seconds = began.elapsed().as_secs_f64();
    stack.stop().await?;
    Ok(sent.records_acknowledged as f64 / seconds)
}

async fn run(
    bodies: Option<&Path>,
    measured: Duration,
    clients: Clients,
    share: f64,
    capacity: f64,
) -> anyhow::Result<Level> {
    let stack = Stack::start(LINGERS[0].1).await?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "records per second, and requests"
    )]
    let (rate, requests) = {
        let rate = share * capacity;
        (
            rate as u64,
            (rate / Shape::FULL.records_per_request as f64).ceil() as u64,
        )
    };
    let (rate, concurrency) = match clients {
        // Every request of ten seconds may wait.
        Clients::Open => (rate, 10 * requests),
        // At this load a client gets about one answer per second.
        Clients::Closed => (0, requests),
    };
    let shape = Shape {
        rate,
        concurrency,
        ..Shape::FULL
    };
    let first = stack::sent(stack.load(bodies, &shape.flags(WARM_UP))?, PATIENCE).await?;
    stack.delivered(first.records_acknowledged).await?;
    let run_up = stack::sent(stack.load(bodies, &shape.flags(RUN_UP.min(measured)))?, PATIENCE).await?;
    let before = scrape(&stack).await?;
    let sent = stack::sent(stack.load(bodies, &shape.flags(measured))?, PATIENCE).await?;
    let records = first.records_acknowledged + run_up.records_acknowledged + sent.records_acknowledged;
    stack.delivered(records).await?;
    // The last rows are the slowest.
    let after = scrape(&stack).await?;
    clickhouse::check_exact(stack.clickhouse, records).await?;
    let memory = stack.peak_memory()?;
    stack.stop().await?;

    let stage = |name, metric: &str| {
        let histogram = |scrape: &Scrape| scrape.histogram(metric);
        let between = histogram(&after).since(&histogram(&before));
        let sum = |scrape: &Scrape| scrape.sum(&format!("{metric}_sum"), "");
        Stage {
            name,
            mean_ms: 1_000.0 * (sum(&after) - sum(&before)) / between.count(),
            p50_ms: between.quantile_ms(0.5),
            p99_ms: between.quantile_ms(0.99),
        }
    };
    let row = stage("row", "millpond_consumer_latency_seconds");
    ensure!(row.mean_ms > 0.0, "no row has a latency");
    Ok(Level {
        clients,
        share,
        capacity,
        records_per_second: sent.records_acknowledged as f64 / sent.seconds,
        request_p50_ms: sent.latency_ms.p50,
        request_p99_ms: sent.latency_ms.p99,
        row_mean_ms: row.mean_ms,
        row_p50_ms: row.p50_ms,
        row_p99_ms: row.p99_ms,
        memory,
        stages: STAGES.map(|(name, metric)| stage(name, metric)).into(),
    })
}

/// Reads the metrics of the gateway and the consumer.
async fn scrape(stack: &Stack) -> anyhow::Result<Scrape> {
    Ok(stack
        .gateway_metrics()
        .await?
        .and(&stack.consumer_metrics().await?))
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = match self.clients {
            Clients::Open => "open loop",
            Clients::Closed => "closed loop",
        };
        write!(
            f,
            "{clients:<11} {:>3.0} % of {:.0} records/s: {:.0}; requests p50 {:.0} ms, p99 {:.0}; rows mean {:.0}, p50 {:.0}, p99 {:.0}; mean (p50, p99) of",
            100.0 * self.share,
            self.capacity,
            self.records_per_second,
            self.request_p50_ms,
            self.request_p99_ms,
            self.row_mean_ms,
            self.row_p50_ms,
            self.row_p99_ms
        )?;
        for (place, stage) in self.stages.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let Stage {
                name,
                mean_ms,
                p50_ms,
                p99_ms,
            } = stage;
            write!(f, "{comma} {name} {mean_ms:.0} ({p50_ms:.0}, {p99_ms:.0})")?;
        }
        write!(f, "; {}", self.memory)
    }
}
