//! `millpond status`: what is in a buffer, and how far each of its consumers is.

mod look;
mod text;

use crate::store::StoreArgs;
use crate::units::Time;
use look::Observer;
use std::io::IsTerminal;

/// Which buffer, and how to answer.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Look again and again, with the rates between two looks. A look is a GET for the manifest, each cursor and each page
    /// that is not known yet, and two LISTs.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Time>,

    /// One JSON object a look, each on a line of its own.
    #[arg(long)]
    json: bool,
}

/// Shows the buffer once, or until the process is stopped.
pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let store = args.store.open(false).await?;
    let mut observer = Observer::new(store);
    loop {
        let status = observer.look().await?;
        if args.json {
            println!("{}", serde_json::to_string(&status)?);
        } else {
            if args.watch.is_some() && std::io::stdout().is_terminal() {
                // The cursor home, and what was there gone.
                print!("\x1b[H\x1b[2J");
            }
            print!("{}", text::of(&status));
        }
        let Some(every) = args.watch else {
            return Ok(());
        };
        tokio::time::sleep(every.0).await;
    }
}
