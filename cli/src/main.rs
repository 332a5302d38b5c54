//! The `millpond` program: parses flags, wires the services and prints results. The libraries do the work.

// Use `output::say!`: these macros panic when standard output is closed.
#![deny(clippy::print_stdout)]

mod admin;
mod allocator;
#[cfg(feature = "bridge")]
mod bridge;
mod buffer;
mod consume;
mod consumers;
mod cost;
mod dead_letters;
mod demo;
mod descriptors;
mod dev;
mod doctor;
mod environment;
mod event_tables;
mod events;
mod examples;
mod gateway;
mod gc;
mod inspect;
mod kafka_topics;
mod list_file;
mod logging;
mod output;
mod password;
mod peers;
mod prices;
mod progress;
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
mod transforms;
mod unique;
mod units;
mod version;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use logging::LogFormat;
use millpond_telemetry::Telemetry;
use output::say;
use progress::Progress;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Lists the global flags behind the command's own.
const LAST: usize = 900;

/// The heading of the global flags.
const GLOBAL: &str = "Global options";

/// An object-storage buffer between OpenTelemetry and ClickHouse.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, long_version = version::long(), propagate_version = true)]
pub(crate) struct Cli {
    /// TOML file with settings (`millpond config` prints one).
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MILLPOND_CONFIG",
        display_order = LAST,
        help_heading = GLOBAL
    )]
    config: Option<PathBuf>,

    /// Format of the log on standard error. MILLPOND_LOG=debug shows more.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        env = "MILLPOND_LOG_FORMAT",
        value_name = "FORMAT",
        id = "log-format",
        display_order = LAST,
        help_heading = GLOBAL
    )]
    log_format: LogFormat,

    /// Accept MILLPOND_… variables that are no settings. Default: an error, since a typing error would leave a default in force.
    #[arg(
        long,
        global = true,
        env = "MILLPOND_IGNORE_UNKNOWN_ENV",
        id = "ignore-unknown-env",
        display_order = LAST,
        help_heading = GLOBAL
    )]
    ignore_unknown_env: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Accept OTLP over gRPC and HTTP, and acknowledge records once they are committed to the buffer.
    Gateway(Box<gateway::GatewayArgs>),
    /// Write a buffer's records to ClickHouse, each exactly once.
    Consume(Box<consume::ConsumeArgs>),
    /// Read other logs into a buffer, each record exactly once.
    #[cfg(feature = "bridge")]
    #[command(subcommand)]
    Bridge(bridge::BridgeCommand),
    /// Run a gateway, a consumer and an embedded ClickHouse together, to try things out.
    Dev(dev::DevArgs),
    /// Send logs through the whole pipeline and check the rows (DEMO_SECONDS, DEMO_RATE, DEMO_BUFFER, KEEP).
    Demo,
    /// Send logs or events to a gateway and report the acknowledged records.
    Load(millpond_load::LoadArgs),
    /// Show the content of a buffer and the lag of its consumers.
    Status(status::StatusArgs),
    /// Print records as producers commit them.
    Tail(Box<tail::TailArgs>),
    /// Estimate the monthly cost of a buffer, from a load that you describe or from a live buffer.
    Cost(Box<cost::CostArgs>),
    /// Change a live buffer: add shards.
    #[command(subcommand)]
    Buffer(buffer::BufferCommand),
    /// List consumers and change their positions.
    #[command(subcommand)]
    Consumer(consumers::ConsumerCommand),
    /// List records that a sink refused for good, and replay them after a repair of the table.
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Print the DDL of the tables, or create missing ones.
    #[command(subcommand)]
    Tables(tables::TablesCommand),
    /// Run the program of a stream (--transform) over a file of events, and print the rows.
    Transform(transforms::TransformArgs),
    /// Find present and coming problems of a live buffer, each with its remedy; exits 1 on an error.
    Doctor(Box<doctor::DoctorArgs>),
    /// Run one round of garbage collection. Running consumers also collect garbage.
    Gc(gc::GcArgs),
    /// Dump or check the manifests and cursors of a buffer.
    #[command(subcommand)]
    Manifest(inspect::ManifestCommand),
    /// Dump a segment.
    #[command(subcommand)]
    Segment(inspect::SegmentCommand),
    /// Print every setting with its default and reason, as a TOML file.
    Config {
        /// Print only the settings of this command.
        #[arg(value_parser = ["gateway", "consume"])]
        command: Option<String>,
    },
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command.
    Man {
        /// Directory for the pages, such as ~/.local/share/man/man1.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

impl Command {
    /// The command's own telemetry.
    fn telemetry(&self) -> anyhow::Result<Telemetry> {
        match self {
            Command::Gateway(args) => args.telemetry(),
            Command::Consume(args) => args.telemetry(),
            #[cfg(feature = "bridge")]
            Command::Bridge(command) => command.telemetry(),
            _ => Ok(Telemetry::default()),
        }
    }

    /// Returns true for a command that runs until stopped. Operators read its log, and the output of the others.
    fn is_service(&self) -> bool {
        match self {
            Command::Gateway(_) | Command::Consume(_) | Command::Dev(_) => true,
            #[cfg(feature = "bridge")]
            Command::Bridge(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    allocator::set_up();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = match settings::with_file(examples::with_examples(Cli::command()), &arguments) {
        Ok(command) => command,
        Err(error) => return failed(LogFormat::Text, &error),
    };
    let matches = match command.clone().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return refused(&command, &error),
    };
    if let Err(error) = settings::check_secrets(&matches) {
        return failed(LogFormat::Text, &error);
    }
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let format = cli.log_format;
    if !cli.ignore_unknown_env
        && let Err(error) = settings::check_environment(&command, &matches)
    {
        return failed(format, &error);
    }
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

/// Prints why the arguments cannot be used, or the help that they ask for.
fn refused(command: &clap::Command, error: &clap::Error) -> ExitCode {
    // As in clap: whoever closes the output does not want to read it.
    let _ = error.print();
    if error.kind() == ErrorKind::MissingRequiredArgument {
        // The value may be there, under a mistyped name.
        for sentence in environment::unknown(command, environment::variables()) {
            eprintln!("{sentence}");
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Logs the error that ends the program.
fn failed(format: LogFormat, error: &anyhow::Error) -> ExitCode {
    // Errors of some dependencies end with a line break.
    logging::print_error(format, format!("{error:#}").trim_end());
    ExitCode::FAILURE
}

fn run(command: Command, telemetry: Telemetry) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Gateway(args) => gateway::run(*args, telemetry).await.map(|()| ExitCode::SUCCESS),
            Command::Consume(args) => consume::run(*args, telemetry).await.map(|()| ExitCode::SUCCESS),
            #[cfg(feature = "bridge")]
            Command::Bridge(command) => command.run(telemetry).await.map(|()| ExitCode::SUCCESS),
            Command::Dev(args) => dev::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Demo => demo::run().await,
            Command::Load(args) => load(args).await,
            Command::Status(args) => status::run(args).await,
            Command::Tail(args) => tail::run(*args).await.map(|()| ExitCode::SUCCESS),
            Command::Cost(args) => cost::run(*args).await.map(|()| ExitCode::SUCCESS),
            Command::Buffer(command) => command.run().await.map(|()| ExitCode::SUCCESS),
            Command::Consumer(command) => command.run().await,
            Command::DeadLetters(command) => command.run().await,
            Command::Tables(command) => command.run().await,
            Command::Transform(args) => transforms::run(&args),
            Command::Doctor(args) => doctor::run(*args).await,
            Command::Gc(args) => gc::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Manifest(command) => command.run().await,
            Command::Segment(command) => command.run().await.map(|()| ExitCode::SUCCESS),
            Command::Config { command } => {
                let settings = settings::print(&Cli::command(), command.as_deref());
                output::write(format_args!("{settings}")).map(|()| ExitCode::SUCCESS)
            }
            Command::Completions { shell } => {
                examples::complete(Cli::command(), shell).map(|()| ExitCode::SUCCESS)
            }
            Command::Man { directory } => {
                let command = examples::with_examples(Cli::command());
                examples::man(command, &directory).map(|()| ExitCode::SUCCESS)
            }
        }
    })
}

/// Shows how many records were acknowledged, until it is dropped.
async fn show_load(config: &millpond_load::LoadConfig, counts: &millpond_load::Progress) {
    let planned = match (config.records, config.duration) {
        (Some(records), _) => Some(records),
        (None, Some(duration)) if config.rate > 0 => {
            Some(config.rate.saturating_mul(duration.as_secs().max(1)))
        }
        (None, _) => None,
    };
    let progress = match planned {
        Some(records) => Progress::towards(records, "records acknowledged"),
        None => Progress::unbounded("sending as fast as the server acknowledges"),
    };
    loop {
        progress.done(counts.acknowledged());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Exits 1 if a record was not acknowledged, so that a script notices.
async fn load(args: millpond_load::LoadArgs) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let shutdown = shutdown::on_signal()?;
    let (config, counts) = (args.config()?, millpond_load::Progress::new());
    let report = {
        let running = millpond_load::run(config.clone(), shutdown, Arc::clone(&counts));
        tokio::select! {
            report = running => report?,
            () = show_load(&config, &counts) => unreachable!("it never ends"),
        }
    };
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
