//! `millpond buffer`: an operator's changes to the buffer itself.

use crate::output::say;
use crate::store::StoreArgs;
use crate::units::count;
use millpond_manifest::buffer::SHARDS_MAX;
use millpond_operate::growth::{Grown, grow};

/// The commands that change a buffer.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BufferCommand {
    /// Add shards to a live buffer. Nothing stops meanwhile, and consumers miss no record of the new shards. Running consumers notice
    /// within about a minute, and so do gateways and Collectors without a configured shard: some of them move to the new shards. Numbered
    /// requests stay in the shards that the buffer had before its first growth. A buffer cannot shrink. After an interruption, run the same
    /// command again.
    Shards {
        /// The new number of shards.
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
        shards: u32,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
}

impl BufferCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let BufferCommand::Shards { shards, json, store } = self;
        let store = store.open(false).await?;
        let grown = grow(&store, shards).await?;
        if json {
            return say!("{}", serde_json::to_string(&grown)?);
        }
        let Grown {
            before,
            shards,
            cursors_begun,
        } = grown;
        let began = count(cursors_begun, "cursor");
        if before == shards {
            return say!(
                "the buffer has {} already; {began} began",
                count(shards.into(), "shard")
            );
        }
        say!(
            "the buffer grew from {before} to {}; {began} began in the new ones",
            count(shards.into(), "shard")
        )
    }
}
