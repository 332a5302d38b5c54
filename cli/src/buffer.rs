//! `millpond buffer`: an operator's changes to the buffer itself.

use crate::output::say;
use crate::store::StoreArgs;
use crate::unique;
use crate::units::count;
use millpond_manifest::buffer::SHARDS_MAX;
use millpond_operate::growth::{Grown, grow};
use millpond_operate::routes::{RoutedStream, route, routes, unroute};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The commands that change a buffer.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BufferCommand {
    /// Add shards to a live buffer. Nothing stops meanwhile, and consumers miss no record of the new shards. Running consumers notice
    /// within about a minute, and so do gateways and Collectors without a configured shard: some of them move to the new shards. Numbered
    /// requests stay in the shards that the buffer had before its first growth. The command refuses while a consumer with --unique reads a
    /// stream that is not routed by its key (`millpond buffer route`). A buffer cannot shrink. After an interruption, run the command again.
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

    /// Send the rows of streams of events to the shard of their key, for consumers with --unique in a buffer with several shards. Running
    /// gateways notice within about a minute. The buffer object gets format version 2, which older programs refuse: upgrade all of them
    /// first. Running the command again is safe: it never changes the key or the shards of a stream that is already routed.
    Route {
        /// The file of `millpond consume --unique`: its streams and their keys. Without it, the command only prints the routes.
        #[arg(long, env = "MILLPOND_UNIQUE", value_name = "FILE")]
        unique: Option<PathBuf>,
        /// Use only the first N shards for these rows. Each gateway commits to all of them. Default: all shards that the buffer has now.
        #[arg(long, value_name = "N", requires = "unique", value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
        shards: Option<u32>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },

    /// End the routes of streams. Consumers that drop repeated events of these streams exit, unless the buffer has one shard. To give a stream
    /// another key or other shards, end its route and declare a new one. Consumers may then keep repetitions of earlier events.
    Unroute {
        /// The streams.
        #[arg(value_name = "STREAM", required = true)]
        streams: Vec<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
}

impl BufferCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            BufferCommand::Shards { shards, json, store } => add_shards(&store, shards, json).await,
            BufferCommand::Route {
                unique,
                shards,
                json,
                store,
            } => declare(&store, unique.as_deref(), shards, json).await,
            BufferCommand::Unroute { streams, json, store } => end(&store, &streams, json).await,
        }
    }
}

async fn add_shards(store: &StoreArgs, shards: u32, json: bool) -> anyhow::Result<()> {
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

async fn declare(
    store: &StoreArgs,
    file: Option<&Path>,
    shards: Option<u32>,
    json: bool,
) -> anyhow::Result<()> {
    let keys = file.map(unique::keys).transpose()?;
    let store = store.open(false).await?;
    let routed = match &keys {
        Some(keys) => route(&store, keys, shards).await?,
        None => routes(&store).await?,
    };
    if json {
        return say!("{}", json!({ "routed": routed }));
    }
    if routed.is_empty() {
        return say!("no stream is routed by key");
    }
    for RoutedStream {
        stream,
        key,
        shards,
        is_new,
    } in &routed
    {
        let already = if *is_new || keys.is_none() {
            ""
        } else {
            ", as before"
        };
        say!("{}{already}", rows_go(stream, *shards, key))?;
    }
    if routed.iter().any(|routed| routed.is_new) {
        say!(
            "gateways notice within about a minute; until then, and from older gateways, rows go to any shard"
        )?;
    }
    Ok(())
}

/// Where the rows of a routed stream go, for people.
pub(crate) fn rows_go(stream: &str, shards: u32, key: &[String]) -> String {
    let to = match shards {
        1 => "shard 0".to_owned(),
        _ => format!("shards 0 to {}", shards - 1),
    };
    format!("{stream}: rows go to {to} by {}", key.join(", "))
}

async fn end(store: &StoreArgs, streams: &[String], json: bool) -> anyhow::Result<()> {
    let store = store.open(false).await?;
    let ended = unroute(&store, streams).await?;
    if json {
        return say!("{}", json!({ "ended": ended }));
    }
    for stream in streams {
        match ended.contains(stream) {
            true => say!("{stream}: rows go to any shard, once gateways notice within about a minute")?,
            false => say!("{stream}: was not routed")?,
        }
    }
    Ok(())
}
