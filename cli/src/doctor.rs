//! `millpond doctor`: finds present and coming problems of a live buffer.

use crate::output::{inline, say};
use crate::store::StoreArgs;
use crate::table::TableArgs;
use millpond_operate::doctor::{Finding, Options, RowRange, Severity, diagnose};
use std::process::ExitCode;

/// The flags of `millpond doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// ClickHouse's HTTP interface, to check the tables too. Repeat it, or separate URLs with commas, as for `consume`.
    #[arg(long, env = "MILLPOND_CLICKHOUSE", value_name = "URL", value_delimiter = ',')]
    clickhouse: Vec<String>,
    #[command(flatten)]
    table: TableArgs,
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
    /// Compare the rows of only this consumer.
    #[arg(long, value_name = "NAME", requires = "rows")]
    consumer: Option<String>,
    /// Write no test objects. Skips the checks of the store's preconditions and of its clock.
    #[arg(long)]
    read_only: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
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
            consumer: args.consumer,
        }),
    };
    let found = diagnose(&store, &options).await?;
    if args.json {
        say!("{}", serde_json::to_value(&found)?)?;
    } else {
        for Finding { severity, what, todo } in &found.findings {
            say!("{:>7}  {}", word(*severity), inline(what))?;
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

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}
