//! Several gateways on one shard over a store with S3's latency: how long requests wait, when their rows arrive, and
//! the price of the requests to the store.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::Flags;
use crate::clickhouse;
use crate::latency::LINGERS;
use crate::shape::{PATIENCE, Shape};
use crate::stack::{self, Peaks, Settings, Stack};
use millpond_cost::{Activity, Rate, RequestLatency};
use millpond_load::metrics::{Requests, Scrape};

const NUMBERS: [usize; 4] = [1, 4, 16, 48];

/// Requests per second that each gateway receives under a light load, of [`LIGHT_RECORDS`] records.
const LIGHT_REQUESTS: u64 = 10;
const LIGHT_RECORDS: u64 = 10;

/// Excluded from the measurement: registrations, and the first segments, connections and inserts.
const WARM_UP: Duration = Duration::from_secs(5);

/// How much the gateways receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Load {
    /// A constant rate, far below what one core can receive.
    Light,
    /// As much as this machine takes.
    Full,
}

/// Results of a number of gateways with one linger and one load.
#[derive(Debug, Serialize)]
pub(crate) struct Gateways {
    pub(crate) gateways: usize,
    pub(crate) linger: &'static str,
    pub(crate) load: Load,
    /// Whether the gateways commit for each other.
    pub(crate) shared_commits: bool,
    pub(crate) seconds: f64,
    pub(crate) records_per_second: f64,
    /// From sending a request to its acknowledgement.
    pub(crate) request_p50_ms: f64,
    pub(crate) request_p99_ms: f64,
    pub(crate) request_max_ms: f64,
    /// From receiving a message to the INSERT's success, in steps of 15 %.
    pub(crate) row_p50_ms: f64,
    pub(crate) row_p99_ms: f64,
    /// Requests to the store per second, of all gateways.
    pub(crate) gateway: Requests,
    pub(crate) consumer: Requests,
    /// Requests of all processes.
    pub(crate) usd_per_month: f64,
    /// The requests of all processes by the cost model.
    pub(crate) expected: Requests,
    /// Swaps of the manifest per swap that the store confirmed.
    pub(crate) attempts_per_commit: f64,
    pub(crate) memory: Peaks,
    /// Requests that a gateway refused and the load sent again.
    pub(crate) retries: u64,
}

/// Measures every number of gateways, or, in the short form, one.
pub(crate) async fn measure(flags: &Flags, measured: Duration) -> anyhow::Result<Vec<Gateways>> {
    let bodies = flags.bodies.as_deref();
    let (mut numbers, warm_up) = if flags.short {
        (&NUMBERS[1..2], Duration::from_secs(1))
    } else {
        (&NUMBERS[..], WARM_UP)
    };
    if !flags.gateways.is_empty() {
        numbers = &flags.gateways;
    }
    let mut all = Vec::new();
    for (linger, settings) in LINGERS {
        for load in [Load::Light, Load::Full] {
            for &gateways in numbers {
                let settings = Settings {
                    gateways,
                    shared_commits: !flags.without_leader,
                    ..settings
                };
                let stack = Stack::start(settings).await?;
                let found = run(bodies, &stack, [warm_up, measured], linger, load).await?;
                stack.stop().await?;
                println!("{found}");
                all.push(found);
            }
        }
    }
    Ok(all)
}

async fn run(
    bodies: Option<&Path>,
    stack: &Stack,
    [warm_up, measured]: [Duration; 2],
    linger: &'static str,
    load: Load,
) -> anyhow::Result<Gateways> {
    let gateways = stack.gateways.len();
    let shape = load.shape(gateways);
    let first = stack.load(bodies, &shape.flags(warm_up))?;
    let first = stack::sent(first, PATIENCE).await?;
    stack.delivered(first.records_acknowledged).await?;

    let before = scrape(stack).await?;
    let second = stack.load(bodies, &shape.flags(measured))?;
    let sent = stack::sent(second, PATIENCE).await?;
    let after = scrape(stack).await?;
    let records = first.records_acknowledged + sent.records_acknowledged;
    stack.delivered(records).await?;
    // The last rows are the slowest.
    let rows = stack.consumer_metrics().await?;
    clickhouse::check_exact(stack.clickhouse, records).await?;

    let histogram = |scrape: &Scrape| scrape.histogram("millpond_consumer_latency_seconds");
    let latency = histogram(&rows).since(&histogram(&before[1]));
    let requests = |of: usize| {
        after[of]
            .requests()
            .per_second(before[of].requests(), sent.seconds)
    };
    let (gateway, consumer) = (requests(0), requests(1));
    let bytes = |scrape: &Scrape| scrape.sum("millpond_store_bytes_total", "direction=\"written\"");
    let written = bytes(&after[0]) - bytes(&before[0]);
    let attempts = |outcome| {
        let total = |scrape: &Scrape| scrape.sum("millpond_producer_commit_attempts_total", outcome);
        total(&after[0]) - total(&before[0])
    };
    Ok(Gateways {
        gateways,
        linger,
        load,
        shared_commits: stack.shared_commits,
        seconds: sent.seconds,
        records_per_second: sent.records_acknowledged as f64 / sent.seconds,
        request_p50_ms: sent.latency_ms.p50,
        request_p99_ms: sent.latency_ms.p99,
        request_max_ms: sent.latency_ms.max,
        row_p50_ms: latency.quantile_ms(0.5),
        row_p99_ms: latency.quantile_ms(0.99),
        gateway,
        consumer,
        usd_per_month: gateway.plus(consumer).usd_per_month(),
        expected: expected(stack, linger, load, written / sent.seconds)?,
        attempts_per_commit: attempts("outcome=") / attempts("outcome=\"committed\""),
        memory: stack.peak_memory()?,
        retries: sent.retries,
    })
}

impl Load {
    /// The load of all gateways together.
    fn shape(self, gateways: usize) -> Shape {
        match self {
            Load::Light => {
                let requests = LIGHT_REQUESTS * gateways as u64;
                Shape {
                    rate: requests * LIGHT_RECORDS,
                    records_per_request: LIGHT_RECORDS,
                    // Every request of half a minute may wait.
                    concurrency: requests * 30,
                }
            }
            Load::Full => Shape::FULL,
        }
    }
}

/// The requests of all processes per second by the cost model, for a load of this many stored bytes per second.
fn expected(stack: &Stack, linger: &str, load: Load, bytes: f64) -> anyhow::Result<Requests> {
    let gateways = stack.gateways.len();
    let settings = millpond_cost::Settings {
        linger_seconds: humantime::parse_duration(linger)?.as_secs_f64(),
        producers: u32::try_from(gateways)?,
        peers: stack.shared_commits,
        ..millpond_cost::Settings::default()
    };
    // The ratio has no influence: the segments stay below their raw size.
    let stored = millpond_cost::Load::compressed(Rate(bytes), 1.0);
    let stored = match load {
        Load::Light => stored.with_requests((LIGHT_REQUESTS * gateways as u64) as f64),
        Load::Full => stored,
    };
    let expected = Activity::of(&stored, &settings, RequestLatency::default()).per_second();
    Ok(Requests {
        put: expected.put,
        get: expected.get,
        list: expected.list,
        delete: expected.delete,
    })
}

/// Reads the metrics of all gateways and of the consumer.
async fn scrape(stack: &Stack) -> anyhow::Result<[Scrape; 2]> {
    Ok([stack.gateway_metrics().await?, stack.consumer_metrics().await?])
}

impl fmt::Display for Gateways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = match self.load {
            Load::Light => "light",
            Load::Full => "full",
        };
        write!(
            f,
            "gateways {:>2}, linger {:<5} {load:<5} {:>6.0} records/s, requests p50 {:.0} ms, p99 {:.0}, max {:.0}; rows p50 {:.0}, p99 {:.0}; {:.2} PUT/s, {:.2} GET/s, ${:.0} a month (the model's: {:.2}, {:.2}, ${:.0}); {:.2} attempts per commit; {}",
            self.gateways,
            self.linger,
            self.records_per_second,
            self.request_p50_ms,
            self.request_p99_ms,
            self.request_max_ms,
            self.row_p50_ms,
            self.row_p99_ms,
            self.gateway.put + self.consumer.put,
            self.gateway.get + self.consumer.get,
            self.usd_per_month,
            self.expected.put,
            self.expected.get,
            self.expected.usd_per_month(),
            self.attempts_per_commit,
            self.memory
        )
    }
}
