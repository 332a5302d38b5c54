//! `embedded-clickhouse`: ClickHouse's HTTP interface over chDB, ClickHouse's own engine as a library. For the quick
//! start and for tests only: one process, no users, no authentication, no replication.

mod encoding;
mod engine;
mod exception;
mod execute;
mod ffi;
mod formats;
mod frames;
mod hello;
mod output;
mod request;
mod server;
mod sql;

use std::fs::{File, TryLockError};
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use engine::{Engine, Limits};

/// The version of libchdb that scripts/install-libchdb.sh installs.
const LIBCHDB_VERSION: &str = "26.7.3-stable.1";

/// How long running requests may take to finish at a shutdown.
const DRAIN: Duration = Duration::from_secs(30);

/// The bodies of all requests take as much memory as this many of the largest.
const BODIES: usize = 4;

/// ClickHouse's HTTP interface over chDB, ClickHouse's engine as a library.
///
/// For the quick start and for tests only: it has no users and no authentication, and nothing of it is
/// replicated. For anything else run a ClickHouse server.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Address to listen on; port 0 takes a free one.
    #[arg(
        long,
        env = "MILLPOND_EMBEDDED_LISTEN",
        default_value = "127.0.0.1:8123",
        value_name = "ADDR"
    )]
    listen: SocketAddr,

    /// Listen on an address that other machines can reach, although anyone who does may read and change everything.
    #[arg(long, env = "MILLPOND_EMBEDDED_INSECURE_LISTEN")]
    insecure_listen: bool,

    /// Folder of the data, made when it is not there. One process at a time can use it.
    #[arg(long, env = "MILLPOND_EMBEDDED_PATH", value_name = "DIR")]
    path: PathBuf,

    /// The engine [default: where scripts/install-libchdb.sh puts it].
    #[arg(long, env = "MILLPOND_LIBCHDB", value_name = "FILE")]
    libchdb: Option<PathBuf>,

    /// Requests that run at the same time.
    #[arg(long, env = "MILLPOND_EMBEDDED_WORKERS", default_value_t = 8, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,

    /// Requests that wait for a worker; more are refused.
    #[arg(long, env = "MILLPOND_EMBEDDED_QUEUE", default_value_t = 64, value_name = "N")]
    queue: u16,

    /// Largest body of a request in MiB, also after decompression; and how much of a result wait_end_of_query holds.
    #[arg(long, env = "MILLPOND_EMBEDDED_MAX_BODY", default_value_t = 256, value_name = "MIB",
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_body: u16,
}

fn main() -> ExitCode {
    // In every profile a panic ends the process (the data survive that), so that no request ever waits for a
    // worker that is no more.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embedded-clickhouse: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    if !flags.listen.ip().is_loopback() {
        if !flags.insecure_listen {
            bail!(
                "{} can be reached from other machines and there is no authentication: listen on 127.0.0.1, \
                 or pass --insecure-listen if that is what you want",
                flags.listen
            );
        }
        tracing::warn!(
            "anyone who can reach {} can read and change everything",
            flags.listen
        );
    }
    let libchdb = libchdb(flags.libchdb.as_deref())?;
    std::fs::create_dir_all(&flags.path).with_context(|| format!("cannot make {}", flags.path.display()))?;
    let path = flags
        .path
        .canonicalize()
        .with_context(|| format!("cannot find {}", flags.path.display()))?;

    let _lock = lock(&path)?;

    let api = ffi::Api::load(&libchdb)?;
    let limits = Limits {
        body_bytes_max: usize::from(flags.max_body) << 20,
    };
    let (workers, queue) = (usize::from(flags.workers), usize::from(flags.queue));
    let engine = Engine::start(api, &path, workers, queue, limits)?;
    let front = Arc::new(server::Front {
        jobs: engine.jobs(),
        server: engine.server().clone(),
        admission: Semaphore::new(workers + queue),
        body_memory: Arc::new(Semaphore::new(BODIES * limits.body_bytes_max / 1024)),
        body_bytes_max: limits.body_bytes_max,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let version = api.version();
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(flags.listen)
            .await
            .with_context(|| format!("cannot listen on {}", flags.listen))?;
        let address = listener.local_addr()?;
        tracing::info!(
            "chDB {version}, data in {}; for the quick start and tests only",
            path.display()
        );
        // Nobody may be reading; that is no reason not to serve.
        let _ = writeln!(std::io::stdout(), "listening on http://{address}");
        serve(listener, front).await
    });
    // Drops the connections that are left, and with them the last senders of jobs.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let drained = served?;
    engine.stop(!drained)
}

/// Serves until SIGTERM or SIGINT, then until the requests that run have finished; false: they have not.
async fn serve(listener: TcpListener, front: Arc<server::Front>) -> Result<bool> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, mut stopped) = tokio::sync::watch::channel(());
    let shutdown = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("shutting down: finishing the requests that run");
        drop(stop);
    };
    let server = axum::serve(listener, server::router(front)).with_graceful_shutdown(shutdown);
    let deadline = async {
        while stopped.changed().await.is_ok() {}
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = server => served.context("cannot serve").map(|()| true),
        () = deadline => {
            tracing::warn!("requests still run {} s after the signal: cancelling them", DRAIN.as_secs());
            Ok(false)
        }
    }
}

/// Locks the folder for this process, until it ends in whatever way.
fn lock(path: &Path) -> Result<File> {
    let file = path.join("embedded-clickhouse.lock");
    let lock = File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!(
            "another embedded-clickhouse uses {}: stop it or name another folder with --path",
            path.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", file.display()))
        }
    }
}

/// Where libchdb is; an error says how to get it.
fn libchdb(named: Option<&Path>) -> Result<PathBuf> {
    let file = match named {
        Some(file) => file.to_owned(),
        None => cache()?
            .join(format!("libchdb-{LIBCHDB_VERSION}"))
            .join("libchdb.so"),
    };
    if !file.is_file() {
        bail!(
            "{} is not there: run scripts/install-libchdb.sh, or name a libchdb.so with --libchdb",
            file.display()
        );
    }
    Ok(file)
}

/// The cache that the install scripts use.
fn cache() -> Result<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    variable("MILLPOND_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("millpond")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache").join("millpond")))
        .context("none of MILLPOND_LIBCHDB, MILLPOND_CACHE, XDG_CACHE_HOME and HOME is set: pass --libchdb")
}
