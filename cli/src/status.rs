//! `millpond status`: the content of a buffer and the lag of its consumers.

mod text;

use crate::output::{clear_terminal, say, write};
use crate::store::StoreArgs;
use crate::units::{Time, pause};
use millpond_operate::patience::Patience;
use millpond_operate::status::{Observer, Status};
use std::io::IsTerminal;
use std::process::ExitCode;

/// The flags of `millpond status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Repeat at this interval, with the rates in between, even during an outage of the store. Each look costs a GET for the
    /// manifest, each cursor and each new page, and two LISTs.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s", value_parser = pause)]
    watch: Option<Time>,

    /// Print one JSON object per look, each on one line.
    #[arg(long)]
    json: bool,

    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// Shows the buffer once, or until the process is stopped. Exits 1 if a part of it cannot be read.
pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let store = args.store.open(false).await?;
    let mut observer = Observer::new(store);
    let status = observer.look().await?;
    show(&args, &status)?;
    let Some(every) = args.watch else {
        return Ok(if status.unreadable.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    };
    let mut patience = Patience::default();
    loop {
        tokio::time::sleep(every.0).await;
        match observer.look().await {
            Ok(status) => {
                patience.over();
                show(&args, &status)?;
            }
            // Outlast every error: somebody may be watching the repair.
            Err(error) => patience.log(&error),
        }
    }
}

fn show(args: &StatusArgs, status: &Status) -> anyhow::Result<()> {
    if args.json {
        return say!("{}", serde_json::to_string(status)?);
    }
    if args.watch.is_some() && std::io::stdout().is_terminal() {
        clear_terminal()?;
    }
    write(format_args!("{}", text::of(status)))
}
