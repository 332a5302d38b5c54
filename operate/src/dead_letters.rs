//! Dead letters: records that a sink refused for good, and messages that cannot be read.

use crate::buffer::buffer;
use crate::tail::records;
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use millpond_consumer::Sink;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::{DeadLetter, layout};
use millpond_otlp::Signal;
use millpond_segment::Encoding;
use millpond_storage::Store;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// A dead letter without its message.
#[derive(Debug, Serialize)]
pub struct Letter {
    /// Its name.
    pub letter: String,
    /// Its kind.
    pub kind: &'static str,
    /// The reason of the refusal.
    pub reason: String,
    /// The shard.
    pub shard: u32,
    /// The stream.
    pub stream: String,
    /// The consumer that wrote it.
    pub consumer: String,
    /// The sink that refused the record.
    pub sink: String,
    /// The sink's schema version.
    pub schema_version: u32,
    /// The segment's sequence.
    pub sequence: u64,
    /// The record's number in the segment's part.
    pub record: u32,
    /// The encoding of the message.
    pub encoding: String,
    /// Unix time in microseconds at which a producer received the message.
    pub received_at_us: i64,
    /// Unix time in milliseconds of the dead letter.
    pub written_at_ms: u64,
    /// Size of the message.
    pub payload_bytes: usize,
}

impl Letter {
    fn new(name: &str, letter: &DeadLetter) -> Letter {
        Letter {
            letter: name.to_owned(),
            kind: letter.kind.name(),
            reason: letter.reason.clone(),
            shard: letter.shard,
            stream: letter.stream.clone(),
            consumer: letter.consumer.clone(),
            sink: letter.sink.clone(),
            schema_version: letter.schema_version,
            sequence: letter.sequence,
            record: letter.record,
            encoding: letter.encoding.to_string(),
            received_at_us: letter.received_at_us,
            written_at_ms: letter.written_at_ms,
            payload_bytes: letter.payload.len(),
        }
    }
}

/// A dead letter that cannot be read.
#[derive(Debug, Serialize)]
pub struct Damaged {
    /// Its name.
    pub letter: String,
    /// The damage.
    pub damage: String,
}

/// Checks that a name is a dead letter's. A command shows, replays and deletes nothing else.
///
/// # Errors
/// The name is not a dead letter's.
pub fn check_name(letter: &str) -> anyhow::Result<()> {
    let mut words = letter.split('/');
    let is_name = words.next() == Some("shards")
        && words.next().is_some()
        && words.next() == Some("dead-letters")
        && words.clone().count() == 2
        && words.all(|word| !word.is_empty() && word != "..");
    ensure!(
        is_name,
        "{letter:?} is not the name of a dead letter: `millpond dead-letters list` prints names such as shards/0000/dead-letters/default/…"
    );
    Ok(())
}

/// The names of the dead letters of all shards, in order.
///
/// # Errors
/// There is no buffer, or the store fails.
pub async fn names(store: &Store, consumer: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for shard in 0..buffer(store).await?.shards {
        let found = store.list(&layout::dead_letters(shard, consumer)).await?;
        all.extend(found.into_iter().map(|found| found.key));
    }
    Ok(all)
}

/// Reads a listed dead letter. `None` if it was replayed or removed meanwhile.
///
/// # Errors
/// The store fails.
pub async fn read_listed(store: &Store, name: &str) -> anyhow::Result<Option<Result<Letter, Damaged>>> {
    match cas::read::<DeadLetter>(store, name).await {
        Ok(found) => Ok(found.map(|found| Ok(Letter::new(name, &found.state)))),
        Err(ReadError::Format { wrong, .. }) => Ok(Some(Err(Damaged {
            letter: name.to_owned(),
            damage: wrong.to_string(),
        }))),
        Err(error) => Err(error.into()),
    }
}

/// Reads a dead letter and its message.
///
/// # Errors
/// There is no such dead letter, or it cannot be read.
pub async fn read(store: &Store, name: &str) -> anyhow::Result<(Letter, Bytes)> {
    check_name(name)?;
    let found = cas::read::<DeadLetter>(store, name).await?;
    let letter = found
        .with_context(|| format!("there is no dead letter {name}"))?
        .state;
    Ok((Letter::new(name, &letter), letter.payload))
}

/// The records of a dead letter's message, with OTLP's names. `None` if the message is not OTLP, or cannot be read.
pub fn decode(letter: &Letter, payload: &[u8]) -> Option<Vec<Value>> {
    if letter.encoding != Encoding::Otlp.to_string() {
        return None;
    }
    let mut found = Vec::new();
    records(Signal::of_stream(&letter.stream)?, payload, |record| {
        found.push(record);
    })
    .ok()?;
    Some(found)
}

/// The result of a replay.
#[derive(Debug, Default, Serialize)]
pub struct Replay {
    /// Rows inserted.
    pub rows: u64,
    /// Dead letters that the table took, or that make no row.
    pub replayed: Vec<String>,
    /// Dead letters that stay.
    pub kept: Vec<Kept>,
}

/// A dead letter that stays.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Its name.
    pub letter: String,
    /// The reason.
    pub reason: String,
}

impl Replay {
    /// Sends a dead letter to its table again, and deletes it if the table takes it. Returns the number of its rows, or the reason if it
    /// stays.
    pub async fn add(&mut self, store: &Store, sink: &Arc<dyn Sink>, name: &str) -> Result<u64, String> {
        match millpond_consumer::replay::replay(store, sink, name).await {
            Ok(rows) => {
                self.rows += rows;
                self.replayed.push(name.to_owned());
                Ok(rows)
            }
            Err(error) => {
                let reason = error.to_string();
                self.kept.push(Kept {
                    letter: name.to_owned(),
                    reason: reason.clone(),
                });
                Err(reason)
            }
        }
    }
}

/// Deletes a dead letter. The name comes from [`names`], or passed [`check_name`].
///
/// # Errors
/// There is no such dead letter, or the store fails.
pub async fn remove(store: &Store, name: &str) -> anyhow::Result<()> {
    if store.head(name).await?.is_none() {
        bail!("there is no dead letter {name}");
    }
    Ok(store.delete(name).await?)
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
