//! `millpond doctor`: finds present and coming problems of a live buffer.

use crate::output::{Colour, inline, painted, say};
use crate::store::StoreArgs;
use crate::table::TableArgs;
use millpond_operate::doctor::{Finding, Options, RowRange, Severity, diagnose};
use std::process::ExitCode;

/// The flags of `millpond doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// ClickHouse's HTTP interface, to check the tables too. Repeat it, or separate URLs with commas, as for `consume`.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE",
        value_name = "URL",
        value_delimiter = ',',
        help_heading = "ClickHouse"
    )]
    clickhouse: Vec<String>,
    /// Compare the tables with the buffer row by row, and report missing, duplicate and unknown rows. Reads only segments whose
    /// counts differ. Covers what each consumer has acknowledged and the buffer still holds. Exits 1 on a difference.
    #[arg(long, requires = "clickhouse")]
    rows: bool,
    /// First sequence to compare.
    #[arg(long, value_name = "SEQUENCE", requires = "rows")]
    from: Option<u64>,
    /// Last sequence to compare.
    #[arg(long, value_name = "SEQUENCE", requires = "rows")]
    to: Option<u64>,
    /// Compare streams of events although their consumer has other programs: for sequences whose rows an earlier --transform made.
    #[arg(long, requires = "rows")]
    other_transform: bool,
    /// Check only this consumer, and with --rows compare only its rows.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Write no test objects. Skips the checks of the store's preconditions and of its clock.
    #[arg(long)]
    read_only: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "ClickHouse")]
    table: TableArgs,
    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// Exits 1 on a finding of severity error.
pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let store = args.store.open(false).await?;
    let tables = match args.clickhouse.is_empty() {
        true => None,
        false => Some(args.table.at(&args.clickhouse)?),
    };
    let options = Options {
        read_only: args.read_only,
        tables,
        rows: args.rows.then_some(RowRange {
            from: args.from,
            to: args.to,
            other_programs: args.other_transform,
        }),
        consumer: args.consumer,
    };
    let found = diagnose(&store, &options).await?;
    if args.json {
        say!("{}", serde_json::to_value(&found)?)?;
    } else {
        for Finding { severity, what, todo } in &found.findings {
            let (word, colour) = word(*severity);
            painted(colour, &format!("{word:>7}"), &format!("  {}", inline(what)))?;
            if !todo.is_empty() {
                say!("         → {}", inline(todo))?;
            }
        }
    }
    Ok(match found.worst {
        Severity::Error => ExitCode::FAILURE,
        Severity::Ok | Severity::Warning => ExitCode::SUCCESS,
    })
}

fn word(severity: Severity) -> (&'static str, Colour) {
    match severity {
        Severity::Ok => ("ok", Colour::Green),
        Severity::Warning => ("warning", Colour::Yellow),
        Severity::Error => ("error", Colour::Red),
    }
}
