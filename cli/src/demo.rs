//! `millpond demo`: sends real OTLP traffic through real processes, and counts the rows at the end. It prints only
//! measurements of this run, and arithmetic on them that is marked as such.

mod check;

use crate::dev::{Plan, Stack};
use crate::output::say;
use crate::shutdown;
use crate::units::readable;
use anyhow::{Context, bail};
use check::{ClickHouse, Verdict};
use millpond_load::clickhouse::UNIQUE;
use millpond_load::metrics::{Requests, Scrape};
use millpond_load::ports::free_addresses;
use millpond_load::process::Process;
use millpond_load::{Compression, Credentials, Format, LoadConfig, Progress, Report};
use millpond_runtime::{Environment as _, SystemEnvironment};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Records in one request of the load.
const RECORDS_PER_REQUEST: u64 = 1_000;
/// The histogram from the gateway's reception to ClickHouse's answer.
const LATENCY: &str = "millpond_consumer_latency_seconds";
/// Maximum time without a new row before the demo gives up on missing ones.
const STALLED: Duration = Duration::from_secs(60);

/// The settings from the environment.
struct Wishes {
    seconds: u64,
    rate: u64,
    buffer: Option<String>,
    keep: bool,
}

impl Wishes {
    fn from_environment() -> anyhow::Result<Wishes> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str, default: u64| match text(name) {
            None => Ok(default),
            Some(value) => value
                .parse()
                .with_context(|| format!("{name} is {value:?}: it must be a whole number")),
        };
        let seconds = number("DEMO_SECONDS", 10)?;
        if seconds == 0 {
            bail!("DEMO_SECONDS is 0: the demo needs at least one second");
        }
        let keep = text("KEEP").is_some_and(|keep| keep != "0");
        Ok(Wishes {
            seconds,
            rate: number("DEMO_RATE", 50_000)?,
            buffer: text("DEMO_BUFFER"),
            keep,
        })
    }
}

/// The demo's directory. Dropping it deletes the directory, unless `keep` is set.
struct Place {
    path: PathBuf,
    keep: bool,
}

impl Place {
    fn new(keep: bool) -> anyhow::Result<Place> {
        let path = std::env::temp_dir().join(format!("millpond-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Place { path, keep })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Runs the demo. Exits 1 if a record is missing or duplicate.
pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    millpond_load::process::kill_on_panic();
    let wishes = Wishes::from_environment()?;
    let shutdown = shutdown::on_signal()?;
    let place = Place::new(wishes.keep)?;
    let demo = demo(&wishes, &place.path, shutdown.clone());
    tokio::select! {
        outcome = demo => outcome.inspect_err(|_| eprintln!("the demo failed; what happened:")),
        () = stopped(&shutdown, wishes.keep) => bail!("the demo was stopped before its end"),
    }
}

/// With KEEP the demo itself waits for the signal.
async fn stopped(shutdown: &CancellationToken, keep: bool) {
    if keep {
        std::future::pending::<()>().await;
    } else {
        shutdown.cancelled().await;
    }
}

async fn demo(wishes: &Wishes, directory: &Path, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    say!("millpond demo: OTLP logs → gateway → segments in a buffer → consumer → ClickHouse")?;
    let (mut plan, minio) = start_store(wishes, directory).await?;
    if plan.buffer.is_none()
        && let Some(buffer) = &wishes.buffer
    {
        plan.buffer = Some(buffer.clone());
    }
    let mut stack = Stack::start(plan).await?;
    let clickhouse = ClickHouse::new(&stack.clickhouse_url());
    say!(
        "  gateway     OTLP/gRPC {}   metrics http://{}/metrics",
        stack.plan.otlp,
        stack.plan.gateway_admin
    )?;
    say!(
        "  consumer    metrics http://{}/metrics",
        stack.plan.consumer_admin
    )?;
    say!("  ClickHouse  {}/play", stack.clickhouse_url())?;
    say!(
        "  buffer      {}\n",
        stack
            .plan
            .buffer
            .as_deref()
            .unwrap_or("a local directory (file://)")
    )?;

    let run = format!("demo{:08x}", SystemEnvironment.random_u32());
    let before = requests(&stack.plan).await?;
    let began = Instant::now();
    let acknowledged = directory.join("acknowledged");
    let plan = stack.plan.clone();
    let measured = tokio::select! {
        measured = drive(wishes, &plan, &clickhouse, &run, &acknowledged) => measured,
        ended = stack.watch() => Err(ended),
    };
    let Driven { report, pace } = measured?;
    let seconds = began.elapsed().as_secs_f64();
    let after = requests(&stack.plan).await?;
    let verdict = clickhouse
        .verify(&run, RECORDS_PER_REQUEST, &acknowledged)
        .await?;
    let scrape = Scrape::of(stack.plan.consumer_admin).await?;
    let histogram = scrape.histogram(LATENCY);
    let latency = [0.5, 0.99].map(|quantile| histogram.quantile_ms(quantile));
    let stored = stored_bytes(&stack.plan).await?;
    let summary = Summary {
        report,
        pace,
        seconds,
        requests: [before, after],
        verdict,
        latency,
        stored,
    };
    summary.print(&clickhouse, &run).await?;

    if wishes.keep {
        say!(
            "\nKEEP: everything stays up until Ctrl-C; data and logs are in {}",
            directory.display()
        )?;
    }
    say!("{}", summary.json())?;
    if wishes.keep {
        shutdown.cancelled().await;
    }
    stack.stop().await?;
    if let Some(minio) = minio {
        // MinIO exits with the signal's status, which is no failure here.
        let _ = minio.stop().await;
    }
    Ok(if summary.verdict.exact() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts MinIO if DEMO_BUFFER asks for it.
async fn start_store(wishes: &Wishes, directory: &Path) -> anyhow::Result<(Plan, Option<Process>)> {
    let mut plan = Plan::new(directory)?;
    if wishes.buffer.as_deref() != Some("minio") {
        return Ok((plan, None));
    }
    let program = std::env::var_os("MILLPOND_MINIO")
        .context("MILLPOND_MINIO does not name MinIO's program: run the demo with `make demo`, or scripts/install-minio.sh")?;
    let [address] = free_addresses()?;
    let mut command = Command::new(program);
    command
        .args(["server", "--quiet", "--address", &address.to_string()])
        .arg(directory.join("minio"));
    let mut minio = Process::start("minio", command, &directory.join("logs"))?;
    minio
        .ready(&format!("http://{address}/minio/health/cluster"))
        .await?;
    // MinIO's default keys, where the children's AWS SDK looks for them.
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "minioadmin"),
        ("AWS_SECRET_ACCESS_KEY", "minioadmin"),
        ("AWS_REGION", "us-east-1"),
    ] {
        plan.environment.push((name.into(), value.into()));
    }
    plan.buffer = Some("s3://millpond-demo/buffer".into());
    plan.s3_endpoint = Some(format!("http://{address}"));
    Ok((plan, Some(minio)))
}

struct Driven {
    report: Report,
    /// Rows per second from the start of the load until the table has caught up.
    pace: f64,
}

/// Sends the load, shows progress, and waits until the table has all acknowledged records.
async fn drive(
    wishes: &Wishes,
    plan: &Plan,
    clickhouse: &ClickHouse,
    run: &str,
    acknowledged: &Path,
) -> anyhow::Result<Driven> {
    let config = LoadConfig {
        endpoints: vec![plan.otlp.to_string()],
        format: Format::Otlp,
        credentials: Credentials::default(),
        rate: wishes.rate,
        concurrency: 256,
        records_per_request: RECORDS_PER_REQUEST,
        duration: Some(Duration::from_secs(wishes.seconds)),
        records: None,
        bodies: None,
        seed: 1,
        unique_attribute: UNIQUE.to_owned(),
        run: run.to_owned(),
        compression: Compression::None,
        retry_for: Duration::from_secs(60),
        acknowledged_file: Some(acknowledged.to_owned()),
    };
    let progress = Progress::new();
    let mut load = tokio::spawn(millpond_load::run(
        config,
        CancellationToken::new(),
        progress.clone(),
    ));
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut report = None;
    let (mut rows, mut moved) = (0, Instant::now());
    say!("  seconds      sent  committed  in ClickHouse    rows/s   p50 so far")?;
    loop {
        tokio::select! {
            done = &mut load, if report.is_none() => report = Some(done??),
            _ = ticks.tick() => {}
        }
        let now = clickhouse.count().await?;
        let rate = (now - rows) as f64 / moved.elapsed().as_secs_f64().max(0.001);
        show(plan, &progress, began, now, rate).await?;
        if now > rows {
            (rows, moved) = (now, Instant::now());
        }
        if let Some(report) = report.take_if(|r| now >= r.records_acknowledged || moved.elapsed() > STALLED) {
            let pace = now as f64 / began.elapsed().as_secs_f64();
            return Ok(Driven { report, pace });
        }
    }
}

async fn show(
    plan: &Plan,
    progress: &Arc<Progress>,
    began: Instant,
    rows: u64,
    rate: f64,
) -> anyhow::Result<()> {
    let scrape = Scrape::of(plan.consumer_admin).await?;
    let p50 = scrape.histogram(LATENCY).quantile_ms(0.5);
    let sent = progress.records_sent.load(std::sync::atomic::Ordering::Relaxed);
    say!(
        "  {:>7.1}  {sent:>8}   {:>8}      {rows:>8}  {rate:>8.0}   {p50:>7.0} ms",
        began.elapsed().as_secs_f64(),
        progress.acknowledged(),
    )?;
    Ok(())
}

/// Requests to the store by gateway and consumer together, since they started.
async fn requests(plan: &Plan) -> anyhow::Result<Requests> {
    let gateway = Scrape::of(plan.gateway_admin).await?.requests();
    Ok(gateway.plus(Scrape::of(plan.consumer_admin).await?.requests()))
}

/// Size of all segments in the buffer, according to `millpond manifest dump`.
async fn stored_bytes(plan: &Plan) -> anyhow::Result<u64> {
    let output = plan.millpond(&["manifest", "dump", "--json"])?.output().await?;
    if !output.status.success() {
        bail!(
            "millpond manifest dump failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let dump: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let entries = dump["shards"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|s| s["entries"].as_array())
        .flatten();
    Ok(entries.filter_map(|entry| entry["size"].as_u64()).sum())
}

/// The results of the demo.
struct Summary {
    report: Report,
    pace: f64,
    seconds: f64,
    /// At the start and at the end.
    requests: [Requests; 2],
    verdict: Verdict,
    latency: [f64; 2],
    stored: u64,
}

impl Summary {
    async fn print(&self, clickhouse: &ClickHouse, run: &str) -> anyhow::Result<()> {
        let Summary {
            report,
            pace,
            seconds,
            requests: _,
            verdict,
            latency: [p50, p99],
            stored,
        } = self;
        let [put, get, list] = self.requests();
        say!(
            "\n  acknowledged  {} of {} records sent, bodies from {}",
            report.records_acknowledged,
            report.records_sent,
            report.bodies
        )?;
        say!(
            "  in ClickHouse {} rows: {} duplicates, {} missing (by the attribute {})",
            verdict.rows,
            verdict.duplicates,
            verdict.missing,
            UNIQUE
        )?;
        say!("  pace          {pace:.0} rows/s, everything on this machine, the load generator included")?;
        say!("  latency       p50 {p50:.0} ms, p99 {p99:.0} ms from the gateway to a row in ClickHouse")?;
        say!(
            "  bytes         {} of OTLP, {} stored ({:.1} : 1)",
            readable(report.raw_bytes),
            readable(*stored),
            report.raw_bytes as f64 / (*stored).max(1) as f64
        )?;
        say!("  requests      {put} PUT, {get} GET, {list} LIST in {seconds:.1} s")?;
        say!(
            "  S3 would cost ${:.2} a month at these requests per second (us-east-1, requests only)",
            self.usd_per_month()
        )?;
        let query = check::sample_query(run);
        say!(
            "\n  {query}\n{}",
            clickhouse
                .query(&format!("{query} FORMAT PrettyCompactMonoBlock"))
                .await?
        )?;
        Ok(())
    }

    /// PUT, GET and LIST of the run.
    fn requests(&self) -> [u64; 3] {
        let [before, after] = &self.requests;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let between = |after: f64, before: f64| (after - before) as u64;
        [
            between(after.put, before.put),
            between(after.get, before.get),
            between(after.list, before.list),
        ]
    }

    fn usd_per_month(&self) -> f64 {
        let [before, after] = self.requests;
        after.per_second(before, self.seconds).usd_per_month()
    }

    fn json(&self) -> serde_json::Value {
        let Summary {
            report,
            pace: _,
            seconds,
            requests: _,
            verdict,
            latency: [p50, p99],
            stored,
        } = self;
        let [put, get, list] = self.requests();
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        json!({
            "records_sent": report.records_sent, "records_acknowledged": report.records_acknowledged,
            "rows": verdict.rows, "duplicates": verdict.duplicates, "missing": verdict.missing,
            "seconds": round(*seconds), "p50_ms": round(*p50), "p99_ms": round(*p99),
            "bytes_raw": report.raw_bytes, "bytes_stored": stored,
            "requests": { "put": put, "get": get, "list": list },
            "usd_per_month": round(self.usd_per_month()),
        })
    }
}
