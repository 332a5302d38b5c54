//! Gateways, consumer, ClickHouse and the load as processes on free ports, in a temporary directory.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use millpond_load::metrics::Scrape;
use millpond_load::ports::{free_addresses, sets_of_free_addresses};
use millpond_load::process::Process;

/// Time without progress after which missing records count as lost.
const STALLED: Duration = Duration::from_secs(60);

/// Interval of checks for arrived records.
const POLL: Duration = Duration::from_millis(50);

/// The differences between stacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) gateways: usize,
    pub(crate) gateway: &'static [&'static str],
    pub(crate) consumer: &'static [&'static str],
    /// Whether the store is as slow as S3. Each process draws its own latencies.
    pub(crate) slow_store: bool,
    /// Whether the gateways commit for each other.
    pub(crate) shared_commits: bool,
    /// The share of segments whose traces gateways and consumer push, with their metrics once a second. `None`: they push nothing.
    pub(crate) traces: Option<&'static str>,
}

impl Settings {
    /// One gateway and a fast store.
    pub(crate) const PLAIN: Settings = Settings {
        gateways: 1,
        gateway: &[],
        consumer: &[],
        slow_store: false,
        shared_commits: false,
        traces: None,
    };

    /// The flags that make the store slow for the process with this number.
    fn slow(&self, number: usize) -> Vec<String> {
        if !self.slow_store {
            return Vec::new();
        }
        vec!["--simulate-s3-latency".to_owned(), (number + 1).to_string()]
    }

    /// The flags for what a process tells of itself.
    fn telemetry(&self, receiver: Option<&Gateway>) -> Vec<String> {
        let (Some(traces), Some(receiver)) = (self.traces, receiver) else {
            return Vec::new();
        };
        let endpoint = format!("http://{}", receiver.otlp_http);
        let flags = [
            "--otlp-endpoint",
            &endpoint,
            "--otlp-interval",
            "1s",
            "--otlp-traces",
            traces,
        ];
        flags.map(str::to_owned).to_vec()
    }
}

/// Peak resident memory (VmHWM).
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Peaks {
    /// The highest peak of all gateways.
    pub(crate) gateway_mib: f64,
    pub(crate) consumer_mib: f64,
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peaks {
            gateway_mib,
            consumer_mib,
        } = self;
        write!(f, "peak memory {gateway_mib:.0} and {consumer_mib:.0} MiB")
    }
}

/// The running processes. Dropping this kills them.
pub(crate) struct Stack {
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) consumer: Process,
    pub(crate) engine: Process,
    pub(crate) clickhouse: SocketAddr,
    /// Whether the gateways commit for each other.
    pub(crate) shared_commits: bool,
    consumer_admin: SocketAddr,
    /// Takes the telemetry of the others into a buffer that nobody reads.
    receiver: Option<Gateway>,
    // Removed last.
    directory: TempDir,
}

/// A running gateway and its addresses.
pub(crate) struct Gateway {
    pub(crate) process: Process,
    otlp: SocketAddr,
    otlp_http: SocketAddr,
    admin: SocketAddr,
}

/// The load generator's final report.
#[derive(Debug, Deserialize)]
pub(crate) struct Sent {
    pub(crate) bodies: String,
    pub(crate) records_acknowledged: u64,
    pub(crate) unacknowledged: u64,
    pub(crate) retries: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) latency_ms: Waited,
}

/// How long requests waited for their acknowledgement, in milliseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Waited {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Stack {
    pub(crate) async fn start(settings: Settings) -> anyhow::Result<Stack> {
        let directory = directory()?;
        let path = directory.path();
        // All at once, so that no address is given to two processes.
        let mut addresses = sets_of_free_addresses::<4>(settings.gateways + 2)?;
        let (Some([clickhouse, consumer_admin, ..]), Some(receiver)) = (addresses.pop(), addresses.pop())
        else {
            bail!("no free addresses");
        };
        let mut receiver = match settings.traces {
            Some(_) => {
                let buffer = format!("file://{}", path.join("telemetry").display());
                let number = settings.gateways;
                Some(Gateway::start(
                    number,
                    receiver,
                    Settings::PLAIN,
                    &[],
                    &buffer,
                    path,
                )?)
            }
            None => None,
        };
        if let Some(receiver) = &mut receiver {
            receiver.ready().await?;
        }
        let telemetry = settings.telemetry(receiver.as_ref());

        let engine = start_engine(clickhouse, path).await?;
        let buffer = format!("file://{}", path.join("buffer").display());
        let mut gateways = Vec::new();
        for (number, addresses) in addresses.into_iter().enumerate() {
            gateways.push(Gateway::start(
                number, addresses, settings, &telemetry, &buffer, path,
            )?);
        }
        for gateway in &mut gateways {
            gateway.ready().await?;
        }

        let flags = settings.consumer.iter().map(|flag| (*flag).to_owned());
        let flags: Vec<String> = flags
            .chain(settings.slow(settings.gateways))
            .chain(telemetry)
            .collect();
        let mut consumer = start_consumer(&buffer, consumer_admin, clickhouse, &flags, path)?;
        consumer.ready(&format!("http://{consumer_admin}/readyz")).await?;
        Ok(Stack {
            gateways,
            consumer,
            engine,
            clickhouse,
            shared_commits: settings.shared_commits,
            consumer_admin,
            receiver,
            directory,
        })
    }

    /// Starts the load generator with these flags, in addition to the standard ones. It sends to all gateways.
    pub(crate) fn load(&self, bodies: Option<&Path>, flags: &[impl AsRef<OsStr>]) -> anyhow::Result<Process> {
        start_load(&self.gateways, bodies, flags, self.directory.path())
    }

    /// Waits until the consumer has written `records` records.
    pub(crate) async fn delivered(&self, records: u64) -> anyhow::Result<()> {
        let (mut last, mut moved) = (0.0, Instant::now());
        loop {
            let now = self.written().await?;
            if now >= records as f64 {
                return Ok(());
            }
            if now > last {
                (last, moved) = (now, Instant::now());
            } else if moved.elapsed() > STALLED {
                bail!("the consumer is stuck at {now} of {records} records for {STALLED:?}");
            }
            sleep(POLL).await;
        }
    }

    /// Number of records that the consumer has written so far.
    pub(crate) async fn written(&self) -> anyhow::Result<f64> {
        Ok(self
            .consumer_metrics()
            .await?
            .sum("millpond_consumer_records_total", ""))
    }

    /// The sum of all gateways' metrics.
    pub(crate) async fn gateway_metrics(&self) -> anyhow::Result<Scrape> {
        Scrape::of_all(self.gateways.iter().map(|gateway| gateway.admin)).await
    }

    pub(crate) async fn consumer_metrics(&self) -> anyhow::Result<Scrape> {
        Scrape::of(self.consumer_admin).await
    }

    /// The peak memory so far, of the gateway with the most and of the consumer.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<Peaks> {
        let gateways = self.gateways.iter().map(|gateway| gateway.process.peak_memory());
        let gateways = gateways.collect::<anyhow::Result<Vec<u64>>>()?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Ok(Peaks {
            gateway_mib: mib(gateways.into_iter().max().unwrap_or(0)),
            consumer_mib: mib(self.consumer.peak_memory()?),
        })
    }

    /// The buffer's folder.
    pub(crate) fn buffer(&self) -> PathBuf {
        self.directory.path().join("buffer")
    }

    /// Stops the processes in the order of the data flow. Fails if one does not end cleanly. Returns the number of spans and of metric points
    /// that they have told of themselves, the last ones at their ends.
    pub(crate) async fn stop(self) -> anyhow::Result<[f64; 2]> {
        for gateway in self.gateways {
            gateway.process.stop().await?;
        }
        self.consumer.stop().await?;
        let mut told = [0.0; 2];
        if let Some(receiver) = self.receiver {
            let metrics = receiver.metrics().await?;
            told = ["traces", "metrics"].map(|signal| {
                let label = format!("signal=\"{signal}\"");
                metrics.sum("millpond_gateway_records_total", &label)
            });
            receiver.process.stop().await?;
        }
        self.engine.stop().await?;
        Ok(told)
    }
}

/// A consumer of a buffer that nobody writes to, and its ClickHouse. Dropping this kills them.
pub(crate) struct Reader {
    pub(crate) consumer: Process,
    pub(crate) engine: Process,
    pub(crate) admin: SocketAddr,
    pub(crate) clickhouse: SocketAddr,
    /// When the consumer was started, and the CPU-seconds that the engine had taken until then.
    pub(crate) began: Instant,
    pub(crate) engine_before: f64,
    // Removed last.
    _directory: TempDir,
}

impl Reader {
    /// Starts both, and waits until the consumer serves its metrics.
    pub(crate) async fn start(buffer: &str, flags: &[impl AsRef<OsStr>]) -> anyhow::Result<Reader> {
        let directory = directory()?;
        let path = directory.path();
        let [admin, clickhouse] = free_addresses()?;
        let engine = start_engine(clickhouse, path).await?;
        let (began, engine_before) = (Instant::now(), engine.cpu_seconds()?);
        let mut consumer = start_consumer(buffer, admin, clickhouse, flags, path)?;
        consumer.ready(&format!("http://{admin}/readyz")).await?;
        Ok(Reader {
            consumer,
            engine,
            admin,
            clickhouse,
            began,
            engine_before,
            _directory: directory,
        })
    }

    /// Stops both. Fails if one does not end cleanly.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.consumer.stop().await?;
        self.engine.stop().await
    }
}

/// A temporary directory for processes.
pub(crate) fn directory() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("millpond-bench-").tempdir()
}

async fn start_engine(address: SocketAddr, path: &Path) -> anyhow::Result<Process> {
    let mut command = program("embedded-clickhouse")?;
    command.args(["--listen", &address.to_string(), "--path"]);
    command.arg(path.join("clickhouse"));
    let mut engine = Process::start("clickhouse", command, path)?;
    engine.ready(&format!("http://{address}/ping")).await?;
    Ok(engine)
}

fn start_consumer(
    buffer: &str,
    admin: SocketAddr,
    clickhouse: SocketAddr,
    flags: &[impl AsRef<OsStr>],
    path: &Path,
) -> anyhow::Result<Process> {
    let mut command = program("millpond")?;
    command.args(["consume", "--buffer", buffer, "--admin", &admin.to_string()]);
    command.args(["--clickhouse", &format!("http://{clickhouse}")]);
    command.args(flags);
    Process::start("consumer", command, path)
}

/// Starts the load generator with these flags, in addition to the standard ones.
pub(crate) fn start_load(
    gateways: &[Gateway],
    bodies: Option<&Path>,
    flags: &[impl AsRef<OsStr>],
    path: &Path,
) -> anyhow::Result<Process> {
    let mut command = program("millpond")?;
    command.args(["load", "--json"]);
    for gateway in gateways {
        command.args(["--endpoint", &gateway.otlp.to_string()]);
    }
    if let Some(bodies) = bodies {
        command.arg("--bodies").arg(bodies);
    }
    command.args(flags);
    Process::start("load", command, path)
}

/// Waits for the end of a load and checks that everything it sent was acknowledged.
pub(crate) async fn sent(load: Process, patience: Duration) -> anyhow::Result<Sent> {
    let report = load.output(patience).await?;
    // Standard error precedes the report in the same log.
    let json = report.lines().last().unwrap_or_default();
    let sent: Sent = serde_json::from_str(json)
        .with_context(|| format!("the load generator printed {report:?} instead of its report"))?;
    if sent.unacknowledged > 0 {
        bail!("{} records were not acknowledged: {json}", sent.unacknowledged);
    }
    Ok(sent)
}

impl Gateway {
    pub(crate) fn start(
        number: usize,
        [otlp, otlp_http, admin, peers]: [SocketAddr; 4],
        settings: Settings,
        telemetry: &[String],
        buffer: &str,
        path: &Path,
    ) -> anyhow::Result<Gateway> {
        let mut command = program("millpond")?;
        command.args(["gateway", "--create-bucket", "--buffer", buffer]);
        command.args([
            "--listen",
            &otlp.to_string(),
            "--listen-http",
            &otlp_http.to_string(),
            "--admin",
            &admin.to_string(),
        ]);
        if settings.shared_commits {
            command.args(["--peer-listen", &peers.to_string()]);
        }
        command.args(settings.gateway);
        command.args(settings.slow(number));
        command.args(telemetry);
        let process = Process::start("gateway", command, &path.join(format!("gateway-{number}")))?;
        Ok(Gateway {
            process,
            otlp,
            otlp_http,
            admin,
        })
    }

    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let url = format!("http://{}/readyz", self.admin);
        self.process.ready(&url).await
    }

    pub(crate) async fn metrics(&self) -> anyhow::Result<Scrape> {
        Scrape::of(self.admin).await
    }
}

/// A program from the folder of this one.
fn program(name: &str) -> anyhow::Result<Command> {
    let path = std::env::current_exe()?.with_file_name(name);
    if !path.exists() {
        bail!("{} is missing: use `make bench`, which builds it", path.display());
    }
    Ok(Command::new(path))
}
