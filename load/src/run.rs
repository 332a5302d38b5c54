//! The run: workers take the next numbers, build the request, and send it until it is acknowledged. Each worker has one
//! request in flight, so there are at most `concurrency`.

use millpond_runtime::{Backoff, Environment as _, SystemEnvironment};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::acknowledged::AcknowledgedFile;
use crate::bodies::{Bodies, Body};
use crate::client::{Client, Failure};
use crate::events::Events;
use crate::template::Templates;
use crate::{Format, Latency, LoadConfig, LoadError, Progress, Report};

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Minimum time limit of an only or last attempt.
pub(crate) const ATTEMPT_MIN: Duration = Duration::from_secs(30);

/// Maximum latencies kept over all workers; beyond it, a fair sample.
const LATENCIES_MAX: usize = 1 << 20;

/// Maximum distinct errors kept; further ones are counted together.
const ERRORS_MAX: usize = 32;

/// State that all workers share.
struct Run {
    config: LoadConfig,
    requests: Requests,
    next: AtomicU64,
    started: Instant,
    cancel: CancellationToken,
    progress: Arc<Progress>,
    acknowledged_file: Option<AcknowledgedFile>,
}

/// Builds the requests of a format.
enum Requests {
    Otlp(Templates),
    Events(Events),
}

impl Requests {
    fn new(bodies: &[Body], config: &LoadConfig) -> Requests {
        let (id, run, seed) = (&config.unique_attribute, &config.run, config.seed);
        match config.format {
            Format::Otlp => Requests::Otlp(Templates::new(bodies, id, run, seed)),
            _ => Requests::Events(Events::new(bodies, id, run, seed)),
        }
    }

    fn request(&self, first: u64, count: u64, now_ns: u64) -> Bytes {
        match self {
            Requests::Otlp(templates) => templates.request(first, count, now_ns),
            Requests::Events(events) => events.request(first, count, now_ns),
        }
    }
}

/// The results of one worker.
#[derive(Default)]
struct Seen {
    latencies_us: Vec<u64>,
    acknowledged: u64,
    errors: BTreeMap<String, u64>,
}

/// The first `number` requests of a load, each with this many records: for measurements without a server.
///
/// # Errors
/// [`LoadError::Bodies`]: the bodies are unreadable.
pub fn requests(
    bodies: Option<&Path>,
    number: u64,
    records_per_request: u64,
) -> Result<Vec<Bytes>, LoadError> {
    const NOW_NS: u64 = 1_764_000_000_000_000_000;
    let Bodies { mut bodies, .. } = Bodies::load(bodies)?;
    // Few records need few lines, from all files.
    let wanted = usize::try_from(number * records_per_request).unwrap_or(usize::MAX);
    let step = (bodies.len() / wanted.max(1)).max(1);
    bodies = bodies.into_iter().step_by(step).collect();
    let templates = Templates::new(&bodies, crate::clickhouse::UNIQUE, "measured", 1);
    let request = |request: u64| {
        let first = request * records_per_request;
        templates.request(first, records_per_request, NOW_NS + first * 1_000)
    };
    Ok((0..number).map(request).collect())
}

/// Generates load until the configured end or until `cancel`, then waits for the requests in flight; after `cancel` it
/// no longer retries them. `progress` has live counts.
///
/// # Errors
/// [`LoadError`] for an invalid setting, unreadable bodies or an unwritable file of acknowledged ids. A failing server
/// is not an error: it shows in the report.
pub async fn run(
    config: LoadConfig,
    cancel: CancellationToken,
    progress: Arc<Progress>,
) -> Result<Report, LoadError> {
    config.check()?;
    let Bodies { bodies, origin } = Bodies::load(config.bodies.as_deref())?;
    let requests = Requests::new(&bodies, &config);
    drop(bodies);
    let acknowledged_file = match &config.acknowledged_file {
        Some(path) => Some(AcknowledgedFile::create(path.clone(), config.run.clone())?),
        None => None,
    };
    let clients = Client::connections(&config)?;
    let run = Arc::new(Run {
        requests,
        next: AtomicU64::new(0),
        started: Instant::now(),
        cancel,
        progress,
        acknowledged_file,
        config,
    });
    let mut workers = JoinSet::new();
    for client in clients.iter().cycle().take(run.config.concurrency) {
        workers.spawn(Arc::clone(&run).work(client.clone()));
    }
    let mut all = Seen::default();
    while let Some(worker) = workers.join_next().await {
        match worker {
            Ok(seen) => all.merge(seen?),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    Ok(run.report(origin, all))
}

impl Run {
    async fn work(self: Arc<Self>, mut client: Client) -> Result<Seen, LoadError> {
        let mut seen = Seen::default();
        let keep = (LATENCIES_MAX / self.config.concurrency).max(1);
        while let Some((first, count)) = self.take().await {
            let request = self.requests.request(first, count, SystemEnvironment.now_ns());
            let length = request.len() as u64;
            self.progress.records_sent.fetch_add(count, Ordering::Relaxed);
            self.progress.requests.fetch_add(1, Ordering::Relaxed);
            self.progress.raw_bytes.fetch_add(length, Ordering::Relaxed);
            let sent = Instant::now();
            if self.send(&mut client, request, &mut seen).await {
                seen.add_latency(sent.elapsed(), keep);
                self.progress
                    .records_acknowledged
                    .fetch_add(count, Ordering::Relaxed);
                if let Some(file) = &self.acknowledged_file {
                    file.add(first, count).inspect_err(|_| self.cancel.cancel())?;
                }
            }
        }
        Ok(seen)
    }

    /// The next numbers, once they are due. `None` at the end.
    async fn take(&self) -> Option<(u64, u64)> {
        let end = self.config.duration.map(|duration| self.started + duration);
        let over = || self.cancel.is_cancelled() || end.is_some_and(|end| Instant::now() >= end);
        if over() {
            return None;
        }
        let first = self
            .next
            .fetch_add(self.config.records_per_request, Ordering::Relaxed);
        let left = self
            .config
            .records
            .map_or(u64::MAX, |records| records.saturating_sub(first));
        let count = self.config.records_per_request.min(left);
        // Check before waiting for a turn that has nothing left to send.
        if count == 0 {
            return None;
        }
        if self.config.rate > 0 {
            let due = self.started + Duration::from_nanos(nanos(first, self.config.rate));
            if end.is_some_and(|end| due >= end) {
                return None;
            }
            self.cancel.run_until_cancelled(sleep_until(due)).await;
        }
        (!over()).then_some((first, count))
    }

    /// Sends a request until it is acknowledged. Returns whether it was.
    async fn send(&self, client: &mut Client, request: Bytes, seen: &mut Seen) -> bool {
        let deadline = Instant::now() + self.config.retry_for;
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let attempt_end = deadline.max(Instant::now() + ATTEMPT_MIN);
            let failure = match timeout_at(attempt_end, client.send(request.clone())).await {
                Ok(Ok(())) => return true,
                Ok(Err(failure)) => failure,
                Err(_) => Failure {
                    code: "no answer in time".to_owned(),
                    retryable: true,
                    pause: Duration::ZERO,
                },
            };
            seen.add_error(failure.code);
            let pause = backoff.next(&SystemEnvironment).max(failure.pause);
            if !failure.retryable || Instant::now() + pause >= deadline {
                return false;
            }
            if self.cancel.run_until_cancelled(sleep(pause)).await.is_none() {
                return false;
            }
            self.progress.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(&self, bodies: String, seen: Seen) -> Report {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let records_sent = read(&self.progress.records_sent);
        let records_acknowledged = read(&self.progress.records_acknowledged);
        Report {
            run: self.config.run.clone(),
            bodies,
            records_sent,
            records_acknowledged,
            unacknowledged: records_sent - records_acknowledged,
            requests: read(&self.progress.requests),
            retries: read(&self.progress.retries),
            raw_bytes: read(&self.progress.raw_bytes),
            seconds: self.started.elapsed().as_secs_f64(),
            latency_ms: Latency::of(seen.latencies_us),
            errors: seen.errors,
        }
    }
}

impl Seen {
    /// Keeps up to `keep` latencies, then a fair sample (Algorithm R).
    fn add_latency(&mut self, latency: Duration, keep: usize) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.acknowledged += 1;
        if self.latencies_us.len() < keep {
            self.latencies_us.push(us);
        } else {
            let slot = SystemEnvironment.random() % self.acknowledged;
            if let Some(kept) = usize::try_from(slot)
                .ok()
                .and_then(|slot| self.latencies_us.get_mut(slot))
            {
                *kept = us;
            }
        }
    }

    fn add_error(&mut self, code: String) {
        let known = self.errors.contains_key(&code) || self.errors.len() < ERRORS_MAX;
        *self
            .errors
            .entry(if known { code } else { "others".to_owned() })
            .or_default() += 1;
    }

    fn merge(&mut self, other: Seen) {
        self.latencies_us.extend(other.latencies_us);
        self.acknowledged += other.acknowledged;
        for (code, count) in other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }
}

/// The time for `records` at `rate` per second.
fn nanos(records: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(records) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}
