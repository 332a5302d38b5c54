//! The latency of a record from gateway to ClickHouse at a steady, moderate rate, over a store with S3's latency, and
//! the request rates.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::clickhouse;
use crate::stack::{self, Peaks, Settings, Stack};
use millpond_load::metrics::{Requests, Scrape};

const RATE: u64 = 20_000;

/// Excluded from the measurement: the first segments, connections and inserts.
const WARM_UP: Duration = Duration::from_secs(3);
/// The load goes on for this long after the measurement, so that it is steady to the end.
const LOAD_BEYOND: Duration = Duration::from_secs(1);

const LOAD_FLAGS: [&str; 6] = [
    "--rate",
    "20000",
    "--records-per-request",
    "100",
    "--concurrency",
    "2048",
];
const LOAD_PATIENCE: Duration = Duration::from_secs(60);

/// The lingers of this part and of the part "gateways".
pub(crate) const LINGERS: [(&str, Settings); 2] = [
    ("1s", slow(&["--linger", "1s"])),
    ("250ms", slow(&["--linger", "250ms"])),
];

const fn slow(gateway: &'static [&'static str]) -> Settings {
    Settings {
        gateway,
        slow_store: true,
        ..Settings::PLAIN
    }
}

/// Results with one linger.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) linger: &'static str,
    /// Records per second.
    pub(crate) rate: u64,
    pub(crate) seconds: f64,
    /// From receiving a message to the INSERT's success, in steps of 15 %.
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    /// Number of messages measured.
    pub(crate) messages: f64,
    /// Requests per second.
    pub(crate) gateway: Requests,
    pub(crate) consumer: Requests,
    /// Requests of both processes.
    pub(crate) usd_per_month: f64,
    pub(crate) memory: Peaks,
}

pub(crate) async fn measure(bodies: Option<&Path>, measured: Duration) -> anyhow::Result<Vec<Latency>> {
    let mut all = Vec::new();
    for (linger, settings) in LINGERS {
        let latency = run(bodies, measured, linger, settings).await?;
        println!(
            "latency, linger {linger}: p50 {:.0} ms, p99 {:.0} ms, ${:.0} a month",
            latency.p50_ms, latency.p99_ms, latency.usd_per_month
        );
        all.push(latency);
    }
    Ok(all)
}

async fn run(
    bodies: Option<&Path>,
    measured: Duration,
    linger: &'static str,
    settings: Settings,
) -> anyhow::Result<Latency> {
    let stack = Stack::start(settings).await?;
    let duration = format!("{}s", (WARM_UP + measured + LOAD_BEYOND).as_secs());
    let load = stack.load(bodies, &[&LOAD_FLAGS[..], &["--duration", &duration]].concat())?;
    sleep(WARM_UP).await;
    let began = Instant::now();
    let before = scrape(&stack).await?;
    sleep(measured).await;
    let seconds = began.elapsed().as_secs_f64();
    let after = scrape(&stack).await?;

    let sent = stack::sent(load, LOAD_PATIENCE).await?;
    stack.delivered(sent.records_acknowledged).await?;
    clickhouse::check_exact(stack.clickhouse, sent.records_acknowledged).await?;
    let memory = stack.peak_memory()?;
    stack.stop().await?;

    let histogram = |scrapes: &[Scrape; 2]| scrapes[1].histogram("millpond_consumer_latency_seconds");
    let latency = histogram(&after).since(&histogram(&before));
    let requests = |of: usize| after[of].requests().per_second(before[of].requests(), seconds);
    let (gateway, consumer) = (requests(0), requests(1));
    Ok(Latency {
        linger,
        rate: RATE,
        seconds,
        p50_ms: latency.quantile_ms(0.5),
        p90_ms: latency.quantile_ms(0.9),
        p99_ms: latency.quantile_ms(0.99),
        p999_ms: latency.quantile_ms(0.999),
        messages: latency.count(),
        gateway,
        consumer,
        usd_per_month: gateway.plus(consumer).usd_per_month(),
        memory,
    })
}

/// Reads the metrics of the gateway and the consumer.
async fn scrape(stack: &Stack) -> anyhow::Result<[Scrape; 2]> {
    Ok([stack.gateway_metrics().await?, stack.consumer_metrics().await?])
}
