//! `millpond dead-letters`: records that a sink refused for good, and messages that cannot be read.

use crate::output::{inline, say};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::table::{ClickHouseArgs, TableArgs};
use anyhow::Context;
use millpond_clickhouse::ClickHouse;
use millpond_consumer::Sink;
use millpond_manifest::layout;
use millpond_operate::dead_letters::{Letter, Replay, check_name, decode, names, read, read_listed, remove};
use millpond_storage::Store;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The commands about dead letters.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// List dead letters with their origin and the reason of the refusal; exits 1 if one is damaged.
    List {
        /// List only this consumer's.
        #[arg(long, value_name = "NAME")]
        consumer: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Show one dead letter with its record.
    Show {
        /// Its name, as `list` prints it.
        letter: String,
        /// Write the message to this file: for OTLP, an Export…ServiceRequest in protobuf.
        #[arg(long, value_name = "FILE")]
        payload: Option<PathBuf>,
        /// Print the message's bytes, escaped, instead of its record.
        #[arg(long, conflicts_with = "json")]
        raw: bool,
        /// Print one JSON object, with the record and with the message in hexadecimal.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Insert the records of dead letters into their tables, and delete the letters that succeed; exits 1 if one fails. Rows
    /// that a table already has are not inserted again.
    Replay {
        #[command(flatten)]
        which: Which,
        /// Replay all dead letters of the buffer.
        #[arg(long, group = "Which")]
        all: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "ClickHouse")]
        clickhouse: ClickHouseArgs,
        #[command(flatten, next_help_heading = "ClickHouse")]
        table: Box<TableArgs>,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Delete dead letters. Their records are lost.
    Remove {
        #[command(flatten)]
        which: Which,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
}

/// A selection of dead letters.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// Their names, as `list` prints them.
    #[arg(value_name = "LETTER")]
    letters: Vec<String>,
    /// Select all dead letters of this consumer.
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
                raw,
                json,
            } => {
                let store = store.open(false).await?;
                show(&store, &letter, payload, raw, json).await?;
                Ok(ExitCode::SUCCESS)
            }
            DeadLettersCommand::Replay {
                store,
                which,
                all,
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
                let letters = match all {
                    true => names(&store, None).await?,
                    false => which.names(&store).await?,
                };
                replay(&store, &sink, &letters, json).await
            }
            DeadLettersCommand::Remove { store, which } => {
                let store = store.open(false).await?;
                for letter in which.names(&store).await? {
                    remove(&store, &letter).await?;
                    // Remove the others even if standard output is closed.
                    let _ = say!("{letter}\n    is deleted");
                }
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
        names(store, Some(consumer)).await
    }
}

async fn list(store: &Store, consumer: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let (mut shown, mut damaged) = (Vec::new(), Vec::new());
    let names = names(store, consumer).await?;
    if names.is_empty() && !as_json {
        say!("no dead letters")?;
    }
    for name in names {
        match read_listed(store, &name).await? {
            // Somebody replayed or removed it meanwhile.
            None => {}
            Some(Ok(letter)) => {
                if !as_json {
                    print(&letter)?;
                }
                shown.push(letter);
            }
            Some(Err(letter)) => {
                if !as_json {
                    say!("{}\n    {}", inline(&letter.letter), inline(&letter.damage))?;
                }
                damaged.push(letter);
            }
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

async fn show(
    store: &Store,
    name: &str,
    file: Option<PathBuf>,
    raw: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let (letter, payload) = read(store, name).await?;
    if let Some(file) = file {
        std::fs::write(&file, &payload).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let records = decode(&letter, &payload);
    if as_json {
        let mut value = serde_json::to_value(&letter)?;
        value["records"] = serde_json::to_value(&records)?;
        let payload: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        value["payload"] = payload.into();
        say!("{value}")?;
    } else {
        print(&letter)?;
        let Some(records) = records.filter(|_| !raw) else {
            return say!("    message   {}", payload.escape_ascii());
        };
        for record in records {
            let text = serde_json::to_string_pretty(&record)?;
            say!("    record    {}", text.replace('\n', "\n              "))?;
        }
    }
    Ok(())
}

async fn replay(
    store: &Store,
    sink: &Arc<dyn Sink>,
    names: &[String],
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let mut replay = Replay::default();
    let progress = Progress::towards(names.len() as u64, "dead letters");
    for (done, name) in (0..).zip(names) {
        progress.done(done);
        let replayed = replay.add(store, sink, name).await;
        if !as_json {
            // Replay the others even if standard output is closed.
            let _ = progress.aside(|| match replayed {
                Ok(0) => say!("{name}\n    makes no row, and is deleted"),
                Ok(_) => say!("{name}\n    is in the table"),
                Err(reason) => say!("{name}\n    stays: {}", inline(&reason)),
            });
        }
    }
    drop(progress);
    if as_json {
        say!("{}", serde_json::to_value(&replay)?)?;
    } else {
        say!(
            "{} rows of {} letters replayed, {} kept",
            replay.rows,
            replay.replayed.len(),
            replay.kept.len()
        )?;
    }
    Ok(if replay.kept.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(letter: &Letter) -> anyhow::Result<()> {
    let received = Duration::from_micros(u64::try_from(letter.received_at_us).unwrap_or(0));
    let received = humantime::format_rfc3339_micros(UNIX_EPOCH + received);
    let written = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(letter.written_at_ms));
    say!("{}", inline(&letter.letter))?;
    say!("    {:<9} {}", letter.kind, inline(&letter.reason))?;
    say!(
        "    of        stream {}, sequence {}, record {}, {} bytes of {}, received {received}",
        letter.stream,
        letter.sequence,
        letter.record,
        letter.payload_bytes,
        letter.encoding
    )?;
    say!(
        "    by        {}, for consumer {}, written {written}",
        inline(&letter.sink),
        letter.consumer
    )
}
