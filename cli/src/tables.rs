//! `millpond tables`: prints the tables' DDL, or creates the tables before a consumer runs.

use crate::output::{inline, say, write};
use crate::table::{ClickHouseArgs, MakingArgs, TableArgs};
use millpond_clickhouse::tables::{Fault, Report, State, create, script};
use serde_json::json;
use std::process::ExitCode;

/// The commands about tables.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TablesCommand {
    /// Print the DDL of the database, the tables and the view, for `clickhouse client --multiquery`. Contacts no server.
    Print {
        #[command(flatten)]
        which: Box<WhichArgs>,
    },
    /// Create missing tables, and report whether each table fits; exits 1 if one does not. Existing tables stay as they are.
    Create {
        #[command(flatten)]
        clickhouse: ClickHouseArgs,
        #[command(flatten)]
        which: Box<WhichArgs>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// The tables and their settings.
#[derive(Debug, clap::Args)]
pub(crate) struct WhichArgs {
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
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
            TablesCommand::Print { which } => {
                write(format_args!("{}", script(&which.config(&[])?)))?;
                Ok(ExitCode::SUCCESS)
            }
            TablesCommand::Create {
                clickhouse,
                which,
                json,
            } => show(&create(which.config(&clickhouse.clickhouse)?).await?, json),
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
            .map(|Report { what, state, .. }| {
                let faults: Vec<_> = faults(state)
                    .iter()
                    .map(|fault| json!({ "what": fault.what, "mend": fault.mend }))
                    .collect();
                json!({ "what": what, "state": word(state), "faults": faults })
            })
            .collect();
        say!("{}", json!({ "fit": fit, "tables": tables }))?;
    } else {
        for Report { what, state, .. } in reports {
            say!("{:>7}  {what}", word(state))?;
            for fault in faults(state) {
                say!("         {}", inline(&fault.what))?;
                say!("         → {}", inline(&fault.mend))?;
            }
        }
    }
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
