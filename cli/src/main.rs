//! The `millpond` program: every command's front door. The work is done in the libraries.

// `output::say!` is in their place: these panic when standard output is closed.
#![deny(clippy::print_stdout)]

mod admin;
mod allocator;
mod clock;
mod consume;
mod consumers;
mod cost;
mod dead_letters;
mod demo;
mod descriptors;
mod dev;
mod doctor;
mod events;
mod gateway;
mod gc;
mod inspect;
mod logging;
mod output;
mod prices;
mod security;
mod settings;
mod settings_file;
mod shutdown;
mod status;
mod store;
mod table;
mod tables;
mod tail;
mod telemetry;
mod units;
mod version;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use logging::LogFormat;
use millpond_telemetry::Telemetry;
use output::say;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// In the lists of flags, behind those of the command itself.
const LAST: usize = 900;

/// An object-storage buffer between OpenTelemetry and ClickHouse.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, long_version = version::long(), propagate_version = true)]
pub(crate) struct Cli {
    /// A TOML file with settings (`millpond config` prints one).
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MILLPOND_CONFIG",
        display_order = LAST
    )]
    config: Option<PathBuf>,

    /// How log lines look. They go to standard error; MILLPOND_LOG=debug shows more.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        env = "MILLPOND_LOG_FORMAT",
        value_name = "FORMAT",
        id = "log-format",
        display_order = LAST
    )]
    log_format: LogFormat,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Accept OTLP, over gRPC and HTTP, and answer once the records are committed to the buffer.
    Gateway(Box<gateway::GatewayArgs>),
    /// Write a buffer's records to ClickHouse, each exactly once.
    Consume(Box<consume::ConsumeArgs>),
    /// Gateway, consumer and an embedded ClickHouse in one command, for trying things out.
    Dev(dev::DevArgs),
    /// Send logs through all of it and show what comes out (DEMO_SECONDS, DEMO_RATE, DEMO_BUFFER, KEEP).
    Demo,
    /// Send OTLP logs to an endpoint and report what was acknowledged.
    Load(millpond_load::LoadArgs),
    /// Show what is in a buffer, and how far its consumers are.
    Status(status::StatusArgs),
    /// Show records as they are committed.
    Tail(Box<tail::TailArgs>),
    /// Say what a buffer costs a month: for a load that you describe, or for what a live buffer does.
    Cost(Box<cost::CostArgs>),
    /// See and set how far consumers are.
    #[command(subcommand)]
    Consumer(consumers::ConsumerCommand),
    /// See what a sink will never take, and send it again once its table has been mended.
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Print the DDL of the tables, or make those that are missing.
    #[command(subcommand)]
    Tables(tables::TablesCommand),
    /// Look for what is wrong with a live buffer, or soon will be, and say what to do; exits 1 on an error.
    Doctor(Box<doctor::DoctorArgs>),
    /// Delete what nobody needs any more: one round (a running consumer does so by itself).
    Gc(gc::GcArgs),
    /// Look at a buffer's manifests and cursors.
    #[command(subcommand)]
    Manifest(inspect::ManifestCommand),
    /// Look into a segment.
    #[command(subcommand)]
    Segment(inspect::SegmentCommand),
    /// Print every setting with its default and reason, as a TOML file.
    Config {
        /// Only this command's.
        #[arg(value_parser = ["gateway", "consume"])]
        command: Option<String>,
    },
}

impl Command {
    /// What the command tells of itself.
    fn telemetry(&self) -> anyhow::Result<Telemetry> {
        match self {
            Command::Gateway(args) => args.telemetry(),
            Command::Consume(args) => args.telemetry(),
            _ => Ok(Telemetry::default()),
        }
    }

    /// Whether it runs until it is stopped, and its log is what an operator has of it. Of the others the answer counts.
    fn is_service(&self) -> bool {
        matches!(self, Command::Gateway(_) | Command::Consume(_) | Command::Dev(_))
    }
}

// Bugs for tests to find are for tests.
const _: () = assert!(
    !millpond_manifest::planted::POSSIBLE,
    "build the program without the feature `planted-bugs`"
);

fn main() -> ExitCode {
    allocator::set_up();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = match settings::with_file(Cli::command(), &arguments) {
        Ok(command) => command,
        Err(error) => return failed(LogFormat::Text, &error),
    };
    let matches = command.get_matches_from(arguments);
    if let Err(error) = settings::check_secrets(&matches) {
        return failed(LogFormat::Text, &error);
    }
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let format = cli.log_format;
    let mut telemetry = match cli.command.telemetry() {
        Ok(telemetry) => telemetry,
        Err(error) => return failed(format, &error),
    };
    logging::start(format, cli.command.is_service(), telemetry.spans());
    match run(cli.command, telemetry) {
        Ok(code) => code,
        Err(error) if output::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => failed(format, &error),
    }
}

/// One sentence: what happened, to what, and what to do.
fn failed(format: LogFormat, error: &anyhow::Error) -> ExitCode {
    // Some texts of others end with a line of their own.
    logging::last_words(format, format!("{error:#}").trim_end());
    ExitCode::FAILURE
}

fn run(command: Command, telemetry: Telemetry) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Gateway(args) => gateway::run(*args, telemetry).await.map(|()| ExitCode::SUCCESS),
            Command::Consume(args) => consume::run(*args, telemetry).await.map(|()| ExitCode::SUCCESS),
            Command::Dev(args) => dev::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Demo => demo::run().await,
            Command::Load(args) => load(args).await,
            Command::Status(args) => status::run(args).await,
            Command::Tail(args) => tail::run(*args).await.map(|()| ExitCode::SUCCESS),
            Command::Cost(args) => cost::run(*args).await.map(|()| ExitCode::SUCCESS),
            Command::Consumer(command) => command.run().await,
            Command::DeadLetters(command) => command.run().await,
            Command::Tables(command) => command.run().await,
            Command::Doctor(args) => doctor::run(*args).await,
            Command::Gc(args) => gc::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Manifest(command) => command.run().await,
            Command::Segment(command) => command.run().await.map(|()| ExitCode::SUCCESS),
            Command::Config { command } => {
                let settings = settings::print(&Cli::command(), command.as_deref());
                output::write(format_args!("{settings}")).map(|()| ExitCode::SUCCESS)
            }
        }
    })
}

/// Exits 1 when something that was sent is not acknowledged, so that a script notices.
async fn load(args: millpond_load::LoadArgs) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let shutdown = shutdown::on_signal()?;
    let report = millpond_load::run(args.config()?, shutdown, millpond_load::Progress::new()).await?;
    if json {
        say!("{}", serde_json::to_string(&report)?)?;
    } else {
        say!("{report}")?;
    }
    Ok(if report.unacknowledged == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
