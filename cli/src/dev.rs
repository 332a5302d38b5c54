//! `millpond dev`: the gateway, a consumer and the embedded ClickHouse as child processes, started in
//! order, watched, and stopped in the order of the data. The demo is built on it.

use crate::shutdown;
use crate::units::address;
use anyhow::{Context, bail};
use millpond_load::ports::free_addresses;
use millpond_load::process::Process;
use millpond_storage::BufferUrl;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use tracing::info;

/// Settings of `millpond dev`.
#[derive(Debug, clap::Args)]
pub(crate) struct DevArgs {
    /// Directory for the buffer, ClickHouse's data and the logs.
    #[arg(
        long,
        env = "MILLPOND_DEV_DIRECTORY",
        value_name = "DIR",
        default_value = "millpond-dev"
    )]
    directory: PathBuf,

    /// Address for OTLP/gRPC.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4317", value_parser = address)]
    listen: SocketAddr,

    /// Accept unencrypted OTLP from other machines (the gateway's --insecure).
    #[arg(long)]
    insecure: bool,

    /// Address for OTLP/HTTP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4318", value_parser = address)]
    listen_http: SocketAddr,

    /// Address of ClickHouse's HTTP interface.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8123", value_parser = address)]
    clickhouse_listen: SocketAddr,

    /// The buffer's URL. Default: a directory in --directory.
    #[arg(long, value_name = "URL", value_parser = BufferUrl::parse)]
    buffer: Option<BufferUrl>,

    /// Address of an S3 service other than AWS.
    #[arg(long, env = "MILLPOND_S3_ENDPOINT", value_name = "URL")]
    s3_endpoint: Option<String>,
}

/// Runs until a signal, or until one of the three processes ends.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<()> {
    millpond_load::process::kill_on_panic();
    let shutdown = shutdown::on_signal()?;
    let directory = args.directory.clone();
    let plan = Plan {
        otlp: args.listen,
        otlp_http: args.listen_http,
        clickhouse: args.clickhouse_listen,
        buffer: args.buffer.as_ref().map(ToString::to_string),
        s3_endpoint: args.s3_endpoint,
        environment: match args.insecure {
            true => vec![("MILLPOND_INSECURE".to_owned(), "true".to_owned())],
            false => Vec::new(),
        },
        ..Plan::new(&directory)?
    };
    let mut stack = tokio::select! {
        stack = Stack::start(plan) => stack?,
        () = shutdown.cancelled() => return Ok(()),
    };
    info!(
        "everything runs; logs are in {}",
        directory.join("logs").display()
    );
    info!("  send OTLP/gRPC to {}", stack.plan.otlp);
    info!("  send OTLP/HTTP to http://{}", stack.plan.otlp_http);
    info!("  look at rows: {}/play (otel.otel_logs)", stack.clickhouse_url());
    let ended = tokio::select! {
        ended = stack.watch() => Err(ended),
        () = shutdown.cancelled() => Ok(()),
    };
    let stopped = stack.stop().await;
    ended.and(stopped)
}

/// The settings of a stack.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) directory: PathBuf,
    pub(crate) otlp: SocketAddr,
    pub(crate) otlp_http: SocketAddr,
    pub(crate) clickhouse: SocketAddr,
    pub(crate) gateway_admin: SocketAddr,
    pub(crate) consumer_admin: SocketAddr,
    /// `None`: a directory below the stack's.
    pub(crate) buffer: Option<String>,
    pub(crate) s3_endpoint: Option<String>,
    /// Variables for the gateway and the consumer, beside those of this process.
    pub(crate) environment: Vec<(String, String)>,
}

impl Plan {
    /// A stack on free ports, below a directory.
    pub(crate) fn new(directory: &Path) -> anyhow::Result<Plan> {
        let [otlp, otlp_http, clickhouse, gateway_admin, consumer_admin] = free_addresses()?;
        Ok(Plan {
            directory: directory.to_owned(),
            otlp,
            otlp_http,
            clickhouse,
            gateway_admin,
            consumer_admin,
            buffer: None,
            s3_endpoint: None,
            environment: Vec::new(),
        })
    }

    fn buffer_flags(&self) -> anyhow::Result<Vec<String>> {
        let buffer = match &self.buffer {
            Some(buffer) => buffer.clone(),
            None => {
                let directory = self.directory.join("buffer");
                fs::create_dir_all(&directory)
                    .with_context(|| format!("cannot make {}", directory.display()))?;
                format!("file://{}", directory.canonicalize()?.display())
            }
        };
        let mut flags = vec!["--buffer".to_owned(), buffer];
        if let Some(endpoint) = &self.s3_endpoint {
            flags.extend(["--s3-endpoint".to_owned(), endpoint.clone()]);
        }
        Ok(flags)
    }

    /// A `millpond` command on the stack's buffer.
    pub(crate) fn millpond(&self, command: &[&str]) -> anyhow::Result<Command> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(command).args(self.buffer_flags()?);
        child.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(child)
    }
}

/// The running processes.
pub(crate) struct Stack {
    pub(crate) plan: Plan,
    clickhouse: Process,
    gateway: Process,
    consumer: Process,
}

impl Stack {
    /// Starts each process once those that it needs are ready.
    pub(crate) async fn start(plan: Plan) -> anyhow::Result<Stack> {
        let embedded = std::env::current_exe()?.with_file_name("embedded-clickhouse");
        if !embedded.exists() {
            bail!(
                "{} is missing: build it with `cargo build --bin embedded-clickhouse`",
                embedded.display()
            );
        }
        let directory = &plan.directory;
        let logs = directory.join("logs");
        let mut command = Command::new(embedded);
        command
            .args(["--listen", &plan.clickhouse.to_string()])
            .arg("--path")
            .arg(directory.join("clickhouse"));
        let mut clickhouse = Process::start("clickhouse", command, &logs)?;
        clickhouse
            .ready(&format!("http://{}/ping", plan.clickhouse))
            .await?;

        let mut command = plan.millpond(&["gateway"])?;
        command.arg("--create-bucket");
        command.args([
            "--listen",
            &plan.otlp.to_string(),
            "--listen-http",
            &plan.otlp_http.to_string(),
            "--admin",
            &plan.gateway_admin.to_string(),
        ]);
        let mut gateway = Process::start("gateway", command, &logs)?;
        gateway
            .ready(&format!("http://{}/readyz", plan.gateway_admin))
            .await?;

        let mut command = plan.millpond(&["consume"])?;
        command.args(["--clickhouse", &format!("http://{}", plan.clickhouse)]);
        // A stable name lets the next consumer continue at once after a crash. A directory has only one at a time.
        command.args(["--instance", "dev", "--admin", &plan.consumer_admin.to_string()]);
        let mut consumer = Process::start("consumer", command, &logs)?;
        consumer
            .ready(&format!("http://{}/readyz", plan.consumer_admin))
            .await?;
        Ok(Stack {
            plan,
            clickhouse,
            gateway,
            consumer,
        })
    }

    pub(crate) fn clickhouse_url(&self) -> String {
        format!("http://{}", self.plan.clickhouse)
    }

    /// Waits until a process ends, and returns which and why.
    pub(crate) async fn watch(&mut self) -> anyhow::Error {
        tokio::select! {
            error = self.gateway.watch() => error,
            error = self.consumer.watch() => error,
            error = self.clickhouse.watch() => error,
        }
    }

    /// Stops the processes in the order of the data, so that each can finish.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let gateway = self.gateway.stop().await;
        let consumer = self.consumer.stop().await;
        let clickhouse = self.clickhouse.stop().await;
        gateway.and(consumer).and(clickhouse)
    }
}
