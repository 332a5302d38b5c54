//! `millpond tables`: prints, creates and migrates tables without a consumer.

use crate::event_tables;
use crate::output::{inline, say, write};
use crate::table::{ClickHouseArgs, MakingArgs, TableArgs};
use anyhow::{Context, anyhow, ensure};
use millpond_clickhouse::propose;
use millpond_clickhouse::tables::{Fault, Migrated, Migration, Report, State, create, migrate, script};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The commands about tables.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TablesCommand {
    /// Print the DDL of the database, the tables and the view, for `clickhouse client --multiquery`. Contacts no server.
    ///
    /// With --from-sample, print a proposal for the table of a stream of events.
    Print {
        #[command(flatten)]
        which: Box<WhichArgs>,
        #[command(flatten, next_help_heading = "Events")]
        sample: SampleArgs,
    },
    /// Create missing tables, and report whether each table fits; exits 1 if one does not. Existing tables stay as they are.
    Create {
        #[command(flatten)]
        which: Box<WhichArgs>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "ClickHouse")]
        clickhouse: ClickHouseArgs,
    },
    /// Add to existing tables what a consumer needs: columns, an index, a larger deduplication window. Existing rows stay as they are.
    Migrate {
        #[command(flatten)]
        which: Box<WhichArgs>,
        /// Print the statements, for `clickhouse client --multiquery`, and change nothing.
        #[arg(long)]
        dry_run: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "ClickHouse")]
        clickhouse: ClickHouseArgs,
    },
}

/// A sample of events to propose a table for.
#[derive(Debug, clap::Args)]
pub(crate) struct SampleArgs {
    /// A file with events of --stream: JSON objects, one after the other or in an array, at most 64 MiB. The proposed table
    /// takes all of them.
    #[arg(long, value_name = "FILE", requires = "stream")]
    from_sample: Option<PathBuf>,

    /// The stream of the events, such as events.signup.
    #[arg(long, value_name = "STREAM", requires = "from_sample")]
    stream: Option<String>,

    /// The name of the table. Default: the last part of the stream's name.
    #[arg(long, value_name = "TABLE", requires = "from_sample")]
    table: Option<String>,

    /// Print the table's part of the file for --event-tables rather than its DDL.
    #[arg(long, requires = "from_sample")]
    event_tables_entry: bool,
}

/// Bytes of a sample.
const SAMPLE_MAX: u64 = 64 << 20;

impl SampleArgs {
    /// The proposal as text. `None` without a sample.
    fn proposal(&self, config: &millpond_clickhouse::Config) -> anyhow::Result<Option<String>> {
        let (Some(path), Some(stream)) = (&self.from_sample, &self.stream) else {
            return Ok(None);
        };
        millpond_segment::check_stream_name(stream).with_context(|| format!("--stream {stream}"))?;
        let of_stream = || stream.rsplit('.').next().unwrap_or(stream).replace('-', "_");
        let table = self.table.clone().unwrap_or_else(of_stream);
        let what = || format!("--from-sample {}", path.display());
        let length = std::fs::metadata(path).with_context(what)?.len();
        ensure!(
            length <= SAMPLE_MAX,
            "{}: is larger than 64 MiB; give fewer rows",
            what()
        );
        let sample = std::fs::read(path).with_context(what)?;
        let proposal = propose(config, stream, &table, &sample);
        let proposal = proposal.map_err(|error| anyhow!("{}: {}", what(), inline(&error)))?;
        Ok(Some(match self.event_tables_entry {
            true => event_tables::text(&proposal.table)?,
            false => proposal.sql,
        }))
    }
}

/// The tables and their settings.
#[derive(Debug, clap::Args)]
pub(crate) struct WhichArgs {
    #[command(flatten, next_help_heading = "ClickHouse")]
    table: TableArgs,
    #[command(flatten, next_help_heading = "New tables")]
    making: MakingArgs,
}

impl WhichArgs {
    fn config(&self, urls: &[String]) -> anyhow::Result<millpond_clickhouse::Config> {
        Ok(self.making.of(self.table.at(urls)?))
    }
}

impl TablesCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            TablesCommand::Print { which, sample } => {
                let config = which.config(&[])?;
                let text = sample.proposal(&config)?.unwrap_or_else(|| script(&config));
                write(format_args!("{text}"))?;
                Ok(ExitCode::SUCCESS)
            }
            TablesCommand::Create {
                clickhouse,
                which,
                json,
            } => show(&create(which.config(&clickhouse.clickhouse)?).await?, json),
            TablesCommand::Migrate {
                clickhouse,
                which,
                dry_run,
                json,
            } => {
                let migrated = migrate(which.config(&clickhouse.clickhouse)?, dry_run).await?;
                show_migrated(&migrated, dry_run, json)
            }
        }
    }
}

fn show(reports: &[Report], json: bool) -> anyhow::Result<ExitCode> {
    let fit = reports
        .iter()
        .all(|report| matches!(report.state, State::Created | State::Fits));
    if json {
        let tables: Vec<_> = reports
            .iter()
            .map(|Report { what, state, window, .. }| {
                let faults: Vec<_> = faults(state).iter().map(as_value).collect();
                json!({ "what": what, "state": word(state), "faults": faults, "window": window.as_ref().map(as_value) })
            })
            .collect();
        say!("{}", json!({ "fit": fit, "tables": tables }))?;
    } else {
        for Report {
            what, state, window, ..
        } in reports
        {
            say!("{:>7}  {what}", word(state))?;
            for fault in faults(state).iter().chain(window) {
                say!("         {}", inline(&fault.what))?;
                say!("         → {}", inline(&fault.remedy))?;
            }
        }
    }
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_value(fault: &Fault) -> Value {
    json!({ "what": fault.what, "remedy": fault.remedy })
}

/// Exits 1 if tables are missing, or need what no statement does.
fn show_migrated(migrated: &Migrated, dry_run: bool, json: bool) -> anyhow::Result<ExitCode> {
    let Migrated {
        tables,
        missing,
        left,
    } = migrated;
    // The statements of a dry run may suffice.
    let rest = if dry_run { tables } else { left };
    let manual: Vec<&Fault> = rest.iter().flat_map(|table| &table.manual).collect();
    let complete = missing.is_empty() && manual.is_empty() && left.is_empty();
    if json {
        let value = |Migration {
                         url,
                         what,
                         statements,
                         manual,
                     }: &Migration| {
            let manual: Vec<_> = manual.iter().map(as_value).collect();
            json!({ "url": url, "what": what, "statements": statements, "manual": manual })
        };
        let [tables, left] = [tables, left].map(|tables| tables.iter().map(value).collect::<Vec<_>>());
        say!(
            "{}",
            json!({ "complete": complete, "ran": !dry_run, "tables": tables, "missing": missing, "left": left })
        )?;
    } else {
        // Comments, so that the output of a dry run is a script.
        for Migration { what, statements, .. } in tables {
            if !statements.is_empty() {
                say!("-- {}", inline(what))?;
            }
            for statement in statements {
                say!("{statement};")?;
            }
        }
        for table in missing {
            say!(
                "-- there is no {}: `millpond tables create` makes it",
                inline(table)
            )?;
        }
        for fault in manual {
            say!("-- {}", inline(&fault.to_string()))?;
        }
        for Migration {
            what,
            url,
            statements,
            ..
        } in left
        {
            for statement in statements {
                say!("-- {} at {url} still needs: {}", inline(what), inline(statement))?;
            }
        }
        if complete && tables.is_empty() {
            say!("-- every table fits")?;
        }
    }
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn word(state: &State) -> &'static str {
    match state {
        State::Created => "created",
        State::Fits => "fits",
        State::Missing => "missing",
        State::Unfit(_) => "unfit",
    }
}

fn faults(state: &State) -> &[Fault] {
    match state {
        State::Unfit(faults) => faults,
        State::Created | State::Fits | State::Missing => &[],
    }
}
