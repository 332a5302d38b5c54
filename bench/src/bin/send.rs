//! The load of `make bench-peers`: sends prepared OTLP/HTTP requests to any receiver. The requests are those of `millpond
//! load`, but each run sends the same bytes, times included, so that rows of different systems can be compared.
//!
//! It keeps a fixed number of requests in flight and sends the next one when one is answered. A request that the receiver
//! refuses for now (429, 502, 503, 504) is sent again; any other failure ends the run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Parser;
use reqwest::{Client, StatusCode};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Send prepared log records over OTLP/HTTP and print the result as JSON.
#[derive(Debug, Parser)]
struct Flags {
    /// Where to send, such as <http://127.0.0.1:4318/v1/logs>.
    #[arg(long)]
    url: String,
    /// Requests to prepare.
    #[arg(long)]
    requests: u64,
    /// Requests to leave out, at the beginning.
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Requests to send after those [default: all].
    #[arg(long)]
    take: Option<usize>,
    /// Records per request.
    #[arg(long, default_value_t = 1000)]
    records_per_request: u64,
    /// Requests in flight.
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// A folder of *.log files whose lines become log bodies [default: generated text].
    #[arg(long, env = "MILLPOND_LOGHUB")]
    bodies: Option<PathBuf>,
}

/// The result. Times are in seconds and milliseconds.
#[derive(Debug, Serialize)]
struct Report {
    requests: usize,
    records: u64,
    raw_bytes: usize,
    retries: u64,
    seconds: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Pause before a refused request is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// Time limit of a request with all its repeats.
const PATIENCE: Duration = Duration::from_secs(120);

struct Load {
    client: Client,
    url: String,
    requests: Vec<Bytes>,
    next: AtomicUsize,
    retries: AtomicU64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let mut requests =
        millpond_load::requests(flags.bodies.as_deref(), flags.requests, flags.records_per_request)?;
    requests.drain(..flags.skip.min(requests.len()));
    requests.truncate(flags.take.unwrap_or(usize::MAX));
    let load = Arc::new(Load {
        client: Client::builder().timeout(PATIENCE).build()?,
        url: flags.url,
        requests,
        next: AtomicUsize::new(0),
        retries: AtomicU64::new(0),
    });

    let began = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..flags.concurrency {
        workers.spawn(Arc::clone(&load).work());
    }
    let mut latencies = Vec::new();
    while let Some(worker) = workers.join_next().await {
        latencies.extend(worker??);
    }
    let seconds = began.elapsed().as_secs_f64();

    latencies.sort_unstable();
    let at = |percent: usize| {
        let latency = latencies.get((latencies.len() * percent / 100).min(latencies.len().saturating_sub(1)));
        latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    let report = Report {
        requests: load.requests.len(),
        records: load.requests.len() as u64 * flags.records_per_request,
        raw_bytes: load.requests.iter().map(Bytes::len).sum(),
        retries: load.retries.load(Ordering::Relaxed),
        seconds,
        p50_ms: at(50),
        p99_ms: at(99),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

impl Load {
    /// Sends one request after another until none is left. Returns how long each took.
    async fn work(self: Arc<Self>) -> anyhow::Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while let Some(request) = self.requests.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            while !self.accepted(request.clone()).await? {
                if began.elapsed() > PATIENCE {
                    bail!("{} has refused a request for {PATIENCE:?}", self.url);
                }
                self.retries.fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE).await;
            }
            latencies.push(began.elapsed());
        }
        Ok(latencies)
    }

    /// Returns false if the receiver refuses the request for now.
    async fn accepted(&self, request: Bytes) -> anyhow::Result<bool> {
        let post = self.client.post(&self.url).body(request);
        let answer = post
            .header("content-type", "application/x-protobuf")
            .send()
            .await
            .with_context(|| format!("sending to {}", self.url))?;
        let status = answer.status();
        // Read to the end, so that the connection can be used again.
        let body = answer.bytes().await?;
        match status {
            StatusCode::OK => Ok(true),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Ok(false),
            _ => bail!(
                "{} answered {status}: {}",
                self.url,
                String::from_utf8_lossy(&body)
            ),
        }
    }
}
