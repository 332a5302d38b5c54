//! `embedded-clickhouse`: ClickHouse's HTTP and native servers from libchdb, its engine as a library. For the quick
//! start and for tests, on machines without a ClickHouse server.
#![expect(
    clippy::disallowed_methods,
    reason = "a server of its clients' time, which no simulation runs"
)]

mod client;
mod config;
mod engine;

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use client::Client;
use config::Config;
use engine::Engine;

/// The version of libchdb that scripts/install-libchdb.sh installs.
const LIBCHDB_VERSION: &str = "26.7.3-stable.1";

/// Time for running queries to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(30);

/// Time for ClickHouse to close its tables after that.
const CLOSE: Duration = Duration::from_secs(30);

/// Time for the servers to start answering. A folder with many parts takes a while to load.
const START: Duration = Duration::from_secs(120);

/// Interval of checks whether a server has started or finished.
const POLL: Duration = Duration::from_millis(20);

/// Another process can take a free port between its choice and its use. After this many collisions the cause is
/// something else.
const PORT_ATTEMPTS: u32 = 10;

/// Counts the attempts across `exec`.
const PORT_ATTEMPT: &str = "MILLPOND_EMBEDDED_PORT_ATTEMPT";

/// ClickHouse's own HTTP and native servers, for the quick start and for tests.
///
/// The user `default` needs no password; --users replaces it by others. For production, run a ClickHouse server.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Address of the HTTP interface; port 0 chooses a free one.
    #[arg(
        long,
        env = "MILLPOND_EMBEDDED_LISTEN",
        default_value = "127.0.0.1:8123",
        value_name = "ADDR"
    )]
    listen: SocketAddr,

    /// Port of the native protocol on the same address; 0 chooses a free one [default: no native protocol].
    #[arg(long, env = "MILLPOND_EMBEDDED_TCP_PORT", value_name = "PORT")]
    tcp_port: Option<u16>,

    /// Listen on an address that other machines can reach, where anyone can log in as a user without a password.
    #[arg(long, env = "MILLPOND_EMBEDDED_INSECURE_LISTEN")]
    insecure_listen: bool,

    /// Data folder; created if missing. Only one process can use it at a time.
    #[arg(long, env = "MILLPOND_EMBEDDED_PATH", value_name = "DIR")]
    path: PathBuf,

    /// XML file with users and profiles, as in users.d of a ClickHouse server. The user `default` then has no
    /// privileges on tables.
    #[arg(long, env = "MILLPOND_EMBEDDED_USERS", value_name = "FILE")]
    users: Option<PathBuf>,

    /// XML file with server settings, merged into the defaults like a file in config.d.
    #[arg(long, env = "MILLPOND_EMBEDDED_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write ClickHouse's log to this file [default: no log].
    #[arg(long, env = "MILLPOND_EMBEDDED_LOG", value_name = "FILE")]
    log: Option<PathBuf>,

    /// The engine [default: the install location of scripts/install-libchdb.sh].
    #[arg(long, env = "MILLPOND_LIBCHDB", value_name = "FILE")]
    libchdb: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embedded-clickhouse: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    if !flags.listen.ip().is_loopback() && !flags.insecure_listen {
        bail!(
            "other machines can reach {} and the default user has no password: listen on 127.0.0.1, or pass \
             --insecure-listen",
            flags.listen
        );
    }
    let libchdb = libchdb(flags.libchdb.as_deref())?;
    std::fs::create_dir_all(&flags.path)
        .with_context(|| format!("cannot create {}", flags.path.display()))?;
    let path = flags
        .path
        .canonicalize()
        .with_context(|| format!("cannot find {}", flags.path.display()))?;
    let _lock = lock(&path)?;

    let ip = flags.listen.ip();
    let http = port(ip, flags.listen.port())?;
    let tcp = flags.tcp_port.map(|wanted| port(ip, wanted)).transpose()?;
    let config = Config::write(
        &path,
        ip,
        http,
        tcp,
        flags.users.as_deref(),
        flags.config.as_deref(),
    )?;
    let client = Client::new(SocketAddr::new(ip, http), &config.password);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before the engine starts, so that no signal finds the default action.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut engine = Engine::start(&libchdb, &path, &config.file, flags.log.as_deref(), tcp.is_some())?;
        tokio::select! {
            started = until_started(&client, &config) => started?,
            () = engine.ended() => return Err(not_started(flags, [Some(http), tcp])),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        announce(ip, http, tcp);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = engine.ended() => bail!("ClickHouse ended by itself; see above"),
        }
        stop(&client, &mut engine).await
    })
}

/// Prints the addresses of the servers to stdout. Nobody needs to read it.
fn announce(ip: IpAddr, http: u16, tcp: Option<u16>) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "listening on http://{}", SocketAddr::new(ip, http));
    if let Some(tcp) = tcp {
        let _ = writeln!(stdout, "listening on tcp://{}", SocketAddr::new(ip, tcp));
    }
    let _ = stdout.flush();
}

/// Waits until this process's own server answers: another one could have taken the port.
async fn until_started(client: &Client, config: &Config) -> Result<()> {
    let asked = Instant::now();
    loop {
        let answer = client.query("SELECT getMacro('embedded_instance')").await;
        match answer {
            Ok(instance) if instance.trim() == config.instance => return Ok(()),
            Err(error) if asked.elapsed() > START => return Err(error.context("ClickHouse does not answer")),
            Ok(_) if asked.elapsed() > START => bail!("another server answers on this port"),
            Ok(_) | Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// The reason why ClickHouse ended while starting. If another process took a port that was free before, starts again
/// with another one.
fn not_started(flags: &Flags, ports: [Option<u16>; 2]) -> anyhow::Error {
    let ip = flags.listen.ip();
    let taken = ports.iter().flatten().any(|taken| port(ip, *taken).is_err());
    let chosen = flags.listen.port() == 0 || flags.tcp_port == Some(0);
    let attempt = std::env::var(PORT_ATTEMPT)
        .ok()
        .and_then(|attempt| attempt.parse().ok())
        .unwrap_or(0);
    if !(taken && chosen && attempt < PORT_ATTEMPTS) {
        return anyhow::anyhow!("ClickHouse did not start; see above");
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "embedded-clickhouse".into());
    let arguments = std::env::args_os().skip(1);
    let failed = Command::new(program)
        .args(arguments)
        .env(PORT_ATTEMPT, (attempt + 1).to_string())
        .exec();
    anyhow::Error::from(failed).context("cannot start again with another port")
}

/// Waits for running queries, then closes the tables.
async fn stop(client: &Client, engine: &mut Engine) -> Result<()> {
    let asked = Instant::now();
    while asked.elapsed() < DRAIN {
        let since = asked.elapsed().as_secs_f64();
        let running = format!("SELECT count() FROM system.processes WHERE user != '' AND elapsed > {since}");
        match client.query(&running).await {
            Ok(count) if count.trim() != "0" => tokio::time::sleep(POLL).await,
            // A server that cannot answer has nothing to finish.
            Ok(_) | Err(_) => break,
        }
    }
    engine.stop();
    if tokio::time::timeout(CLOSE, engine.ended()).await.is_err() {
        bail!(
            "ClickHouse did not end within {} s of its last query",
            CLOSE.as_secs()
        );
    }
    Ok(())
}

/// This port, or a free one for 0.
fn port(ip: IpAddr, wanted: u16) -> Result<u16> {
    let address = SocketAddr::new(ip, wanted);
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    Ok(listener.local_addr()?.port())
}

/// Locks the folder until this process ends.
fn lock(path: &Path) -> Result<File> {
    let file = path.join("embedded-clickhouse.lock");
    let lock = File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!(
            "another embedded-clickhouse uses {}: stop it or pass another folder with --path",
            path.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", file.display()))
        }
    }
}

/// The path of libchdb. The error says how to install it.
fn libchdb(named: Option<&Path>) -> Result<PathBuf> {
    let file = match named {
        Some(file) => file.to_owned(),
        None => cache()?
            .join(format!("libchdb-{LIBCHDB_VERSION}"))
            .join("libchdb.so"),
    };
    if !file.is_file() {
        bail!(
            "{} does not exist: run scripts/install-libchdb.sh, or pass a libchdb.so with --libchdb",
            file.display()
        );
    }
    Ok(file)
}

/// The cache folder of the install scripts.
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
