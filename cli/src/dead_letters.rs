//! `millpond dead-letters`: what a sink will never take, and an operator's way with it.

use crate::inspect::buffer;
use crate::output::{inline, say};
use crate::store::StoreArgs;
use crate::table::{ClickHouseArgs, TableArgs};
use anyhow::{Context, bail, ensure};
use millpond_clickhouse::ClickHouse;
use millpond_consumer::Sink;
use millpond_consumer::replay::replay;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::{DeadLetter, layout};
use millpond_storage::{Listed, Store};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// What can be done about dead letters.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// Name every dead letter, with what it is of and why it was refused; exits 1 if one is damaged.
    List {
        #[command(flatten)]
        store: StoreArgs,
        /// Only this consumer's.
        #[arg(long, value_name = "NAME")]
        consumer: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show one dead letter.
    Show {
        #[command(flatten)]
        store: StoreArgs,
        /// Its name, as `list` gives it.
        letter: String,
        /// Write the message to this file: for OTLP, an Export…ServiceRequest in protobuf.
        #[arg(long, value_name = "FILE")]
        payload: Option<PathBuf>,
        /// One JSON object, with the message in hexadecimal.
        #[arg(long)]
        json: bool,
    },
    /// Send dead letters to their table again, and delete those that it takes; exits 1 if it does not take one. A row
    /// that the table has is not inserted again.
    Replay {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        clickhouse: ClickHouseArgs,
        #[command(flatten)]
        table: Box<TableArgs>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Delete dead letters for ever.
    Remove {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        which: Which,
    },
}

/// Which dead letters.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// Their names, as `list` gives them.
    #[arg(value_name = "LETTER")]
    letters: Vec<String>,
    /// All of this consumer.
    #[arg(long, value_name = "NAME")]
    all_of: Option<String>,
}

impl DeadLettersCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            DeadLettersCommand::List {
                store,
                consumer,
                json,
            } => list(&store.open(false).await?, consumer.as_deref(), json).await,
            DeadLettersCommand::Show {
                store,
                letter,
                payload,
                json,
            } => {
                let store = store.open(false).await?;
                show(&store, &letter, payload, json).await?;
                Ok(ExitCode::SUCCESS)
            }
            DeadLettersCommand::Replay {
                store,
                which,
                clickhouse,
                table,
                json,
            } => {
                let store = store.open(false).await?;
                let config = millpond_clickhouse::Config {
                    create: false,
                    ..table.at(&clickhouse.clickhouse)?
                };
                let sink: Arc<dyn Sink> = Arc::new(ClickHouse::open(config).await?);
                again(&store, &sink, &which.names(&store).await?, json).await
            }
            DeadLettersCommand::Remove { store, which } => {
                let store = store.open(false).await?;
                remove(&store, &which.names(&store).await?).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Which {
    async fn names(&self, store: &Store) -> anyhow::Result<Vec<String>> {
        let Some(consumer) = &self.all_of else {
            for letter in &self.letters {
                check_name(letter)?;
            }
            return Ok(self.letters.clone());
        };
        layout::check_consumer_name(consumer)?;
        let found = find(store, Some(consumer)).await?;
        Ok(found.into_iter().map(|letter| letter.key).collect())
    }
}

/// Nothing else is shown, sent or deleted as a dead letter.
fn check_name(letter: &str) -> anyhow::Result<()> {
    let mut words = letter.split('/');
    let is_name = words.next() == Some("shards")
        && words.next().is_some()
        && words.next() == Some("dead-letters")
        && words.clone().count() == 2
        && words.all(|word| !word.is_empty() && word != "..");
    ensure!(
        is_name,
        "{letter:?} is no dead letter's name: `millpond dead-letters list` gives them, like shards/0000/dead-letters/default/…"
    );
    Ok(())
}

/// The dead letters of all shards, in order.
pub(crate) async fn find(store: &Store, consumer: Option<&str>) -> anyhow::Result<Vec<Listed>> {
    let mut all = Vec::new();
    for shard in 0..buffer(store).await?.shards {
        all.extend(store.list(&layout::dead_letters(shard, consumer)).await?);
    }
    Ok(all)
}

async fn list(store: &Store, consumer: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let (mut shown, mut damaged) = (Vec::new(), Vec::new());
    let dead_letters = find(store, consumer).await?;
    if dead_letters.is_empty() && !as_json {
        say!("no dead letters")?;
    }
    for Listed { key, .. } in dead_letters {
        match cas::read::<DeadLetter>(store, &key).await {
            // It was replayed or removed meanwhile.
            Ok(None) => {}
            Ok(Some(found)) if as_json => shown.push(as_value(&key, &found.state)),
            Ok(Some(found)) => print(&key, &found.state)?,
            Err(ReadError::Format { wrong, .. }) if as_json => {
                damaged.push(json!({ "letter": key, "damage": wrong.to_string() }));
            }
            Err(ReadError::Format { wrong, .. }) => {
                say!("{}\n    {}", inline(&key), inline(&wrong.to_string()))?;
                damaged.push(Value::Null);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let code = if damaged.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    if as_json {
        say!("{}", json!({ "letters": shown, "damaged": damaged }))?;
    }
    Ok(code)
}

async fn read(store: &Store, key: &str) -> anyhow::Result<DeadLetter> {
    check_name(key)?;
    let found = cas::read::<DeadLetter>(store, key).await?;
    Ok(found
        .with_context(|| format!("there is no dead letter {key}"))?
        .state)
}

async fn show(store: &Store, key: &str, payload: Option<PathBuf>, as_json: bool) -> anyhow::Result<()> {
    let letter = read(store, key).await?;
    if let Some(file) = payload {
        std::fs::write(&file, &letter.payload).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if as_json {
        let mut value = as_value(key, &letter);
        let payload: String = letter.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        value["payload"] = payload.into();
        say!("{value}")?;
    } else {
        print(key, &letter)?;
        say!("    message   {}", letter.payload.escape_ascii())?;
    }
    Ok(())
}

async fn again(
    store: &Store,
    sink: &Arc<dyn Sink>,
    dead_letters: &[String],
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let (mut rows, mut replayed, mut kept) = (0, Vec::new(), Vec::new());
    for key in dead_letters {
        match replay(store, sink, key).await {
            Ok(more) => {
                rows += more;
                replayed.push(key.clone());
                if !as_json {
                    // What is done is done, whether or not somebody reads it; and the others are to follow.
                    let _ = say!("{key}\n    is in the table");
                }
            }
            Err(error) => {
                kept.push(json!({ "letter": key, "reason": error.to_string() }));
                if !as_json {
                    let _ = say!("{key}\n    stays: {}", inline(&error.to_string()));
                }
            }
        }
    }
    let code = if kept.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    if as_json {
        say!("{}", json!({ "rows": rows, "replayed": replayed, "kept": kept }))?;
    } else {
        say!(
            "{rows} rows of {} letters replayed, {} kept",
            replayed.len(),
            kept.len()
        )?;
    }
    Ok(code)
}

async fn remove(store: &Store, dead_letters: &[String]) -> anyhow::Result<()> {
    for key in dead_letters {
        if store.head(key).await?.is_none() {
            bail!("there is no dead letter {key}");
        }
        store.delete(key).await?;
        // Print the other shards even if standard output is closed.
        let _ = say!("{key}\n    is deleted");
    }
    Ok(())
}

fn as_value(key: &str, letter: &DeadLetter) -> Value {
    json!({
        "letter": key, "kind": letter.kind.name(), "reason": letter.reason, "shard": letter.shard, "stream": letter.stream,
        "consumer": letter.consumer, "sink": letter.sink, "schema_version": letter.schema_version,
        "sequence": letter.sequence, "record": letter.record,
        "encoding": letter.encoding.to_string(), "received_at_us": letter.received_at_us,
        "written_at_ms": letter.written_at_ms, "payload_bytes": letter.payload.len(),
    })
}

fn print(key: &str, letter: &DeadLetter) -> anyhow::Result<()> {
    let received = Duration::from_micros(u64::try_from(letter.received_at_us).unwrap_or(0));
    let received = humantime::format_rfc3339_micros(UNIX_EPOCH + received);
    let written = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(letter.written_at_ms));
    say!("{}", inline(key))?;
    say!("    {:<9} {}", letter.kind.name(), inline(&letter.reason))?;
    say!(
        "    of        stream {}, sequence {}, record {}, {} bytes of {}, received {received}",
        letter.stream,
        letter.sequence,
        letter.record,
        letter.payload.len(),
        letter.encoding
    )?;
    say!(
        "    by        {}, for consumer {}, written {written}",
        inline(&letter.sink),
        letter.consumer
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_letters_are_taken() {
        check_name("shards/0000/dead-letters/default/00000000000000000005-otlp.logs-0000000003-0badcafe")
            .expect("it is one");
        for bad in [
            "",
            "buffer",
            "shards/0000/manifest",
            "shards/0000/segments/x/y",
            "shards/0000/dead-letters",
            "shards/0000/dead-letters/default",
            "shards/0000/dead-letters/default/",
            "shards/0000/dead-letters/../manifest",
            "shards/0000/dead-letters/a/b/c",
        ] {
            check_name(bad).expect_err(bad);
        }
    }
}
