//! Follows the records of a buffer as producers commit them. Like a consumer, but without a name and a stored position.

mod events;
mod record;

pub(crate) use record::records;

use crate::Target;
use crate::buffer::{buffer, complete, shards};
use anyhow::bail;
use bytes::Bytes;
use millpond_manifest::cas;
use millpond_manifest::{Entry, Log, Manifest, Part, layout};
use millpond_otlp::Signal;
use millpond_segment::{Decompressor, Encoding, Limits};
use millpond_storage::Store;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::Instant;

/// The records to follow.
#[derive(Debug, Clone)]
pub struct Options {
    /// The streams; empty for all.
    pub streams: Vec<String>,
    /// The shard; `None` for all.
    pub shard: Option<u32>,
    /// The position to start from.
    pub from: Target,
}

/// A record with its place in the buffer.
#[derive(Debug)]
pub struct Found<'a> {
    /// The shard.
    pub shard: u32,
    /// The segment's sequence.
    pub sequence: u64,
    /// The stream.
    pub stream: &'a str,
    /// Unix time in microseconds at which a producer received the message.
    pub received_at_us: i64,
    /// The record.
    pub content: Content,
}

/// The content of a record.
#[derive(Debug)]
pub enum Content {
    /// A record with OTLP's names.
    Record(Value),
    /// A row of JSON as its sender wrote it.
    Row(String),
    /// The bytes of a message of no known form, escaped.
    Payload(String),
    /// A message that is not OTLP, with the reason.
    Unreadable(String),
}

impl Found<'_> {
    /// The record and its place as JSON.
    pub fn json(&self) -> Value {
        let record = match &self.content {
            Content::Record(record) => record.clone(),
            // A value that this reader cannot hold, such as 1e999, is still a row.
            Content::Row(row) => serde_json::from_str(row).unwrap_or_else(|_| json!({ "payload": row })),
            Content::Payload(payload) => json!({ "payload": payload }),
            Content::Unreadable(reason) => json!({ "unreadable": reason }),
        };
        let received = Duration::from_micros(u64::try_from(self.received_at_us).unwrap_or(0));
        json!({
            "shard": self.shard, "sequence": self.sequence, "stream": self.stream,
            "received_at": humantime::format_rfc3339_micros(UNIX_EPOCH + received).to_string(), "record": record,
        })
    }
}

/// Takes the records.
pub trait Show {
    /// Takes one record.
    ///
    /// # Errors
    /// An error ends the tail.
    fn record(&mut self, record: &Found<'_>) -> anyhow::Result<()>;

    /// Shows all records so far. Called after each part of a segment.
    ///
    /// # Errors
    /// An error ends the tail.
    fn flush(&mut self) -> anyhow::Result<()>;
}

/// The time between two looks for new shards.
const LOOK: Duration = Duration::from_secs(60);

/// Follows a buffer.
pub struct Tail {
    options: Options,
    store: Store,
    decompressor: Decompressor,
    shards: Vec<(u32, Option<Shard>)>,
    /// Shards from this one on came later: everything in them is new.
    shards_at_start: u32,
    /// The time of the last look for new shards.
    looked_at: Instant,
    /// Requested streams that no log has had so far.
    unknown: BTreeSet<String>,
    damaged: u64,
}

/// A shard and the position in it.
struct Shard {
    log: Log,
    /// Everything below this sequence was shown.
    next: u64,
    /// The parts of the segment at `next` that were shown.
    parts: usize,
}

impl Tail {
    /// Starts to follow a buffer. Reads no records yet.
    ///
    /// # Errors
    /// There is no buffer or no such shard, or a sequence needs one.
    pub async fn open(store: Store, options: Options) -> anyhow::Result<Tail> {
        let buffer = buffer(&store).await?;
        let wanted = shards(&buffer, options.shard)?;
        if options.from.is_sequence() && wanted.len() > 1 {
            bail!("a sequence belongs to one shard: select it with --shard");
        }
        Ok(Tail {
            store,
            decompressor: Decompressor::new()?,
            shards: wanted.map(|shard| (shard, None)).collect(),
            shards_at_start: buffer.shards,
            looked_at: Instant::now(),
            unknown: options.streams.iter().cloned().collect(),
            damaged: 0,
            options,
        })
    }

    /// Gives `show` the records committed since the last poll. After an error, the next poll continues behind the last record shown.
    ///
    /// # Errors
    /// An error of the store, of the buffer or of `show`.
    pub async fn poll(&mut self, show: &mut impl Show) -> anyhow::Result<()> {
        self.look_for_new_shards().await?;
        let mut shards = std::mem::take(&mut self.shards);
        let mut shown = Ok(());
        for (shard, known) in &mut shards {
            if shown.is_ok() {
                shown = self.show_new(*shard, known, show).await;
            }
        }
        self.shards = shards;
        shown
    }

    /// Follows the shards that the buffer has gained, unless one was selected.
    async fn look_for_new_shards(&mut self) -> anyhow::Result<()> {
        if self.options.shard.is_some() || self.looked_at.elapsed() < LOOK {
            return Ok(());
        }
        let grown = buffer(&self.store).await?.shards;
        self.looked_at = Instant::now();
        let known = self.shards.last().map_or(0, |(shard, _)| shard + 1);
        self.shards.extend((known..grown).map(|shard| (shard, None)));
        Ok(())
    }

    /// A requested stream that no log has.
    pub fn missing_stream(&self) -> Option<&str> {
        self.unknown.first().map(String::as_str)
    }

    /// Number of parts that could not be read to their ends.
    pub fn damaged_parts(&self) -> u64 {
        self.damaged
    }

    /// Shows what a shard has had since the last look. `known` holds the position, also after an error.
    async fn show_new(
        &mut self,
        shard: u32,
        known: &mut Option<Shard>,
        show: &mut impl Show,
    ) -> anyhow::Result<()> {
        let found = cas::read::<Manifest>(&self.store, &layout::manifest(shard)).await?;
        let Some(found) = found else {
            return Ok(());
        };
        let here = match known.take() {
            Some(before) => known.insert(Shard {
                log: before.log.advanced(found.state),
                ..before
            }),
            None => known.insert(self.begin(found.state).await?),
        };
        let is_there = |name: &String| here.log.streams.iter().any(|stream| stream.name == *name);
        self.unknown.retain(|name| !is_there(name));
        if here.next < here.log.first_sequence {
            let (next, first) = (here.next, here.log.first_sequence);
            tracing::warn!(
                "shard {shard:04}: sequences {next}..{first} were trimmed before they could be shown"
            );
            (here.next, here.parts) = (first, 0);
        }
        // Only a long pause leaves pages in between.
        if here.log.missing(here.next).is_some() {
            complete(&self.store, &mut here.log).await?;
        }
        let entries: Vec<(u64, Entry)> = (here.log.entries(here.next))
            .map(|(sequence, entry)| (sequence, entry.clone()))
            .collect();
        for (sequence, entry) in entries {
            for part in entry.parts.iter().skip(here.parts) {
                self.show_part(&here.log, sequence, &entry, part, show).await?;
                here.parts += 1;
            }
            (here.next, here.parts) = (sequence + 1, 0);
        }
        Ok(())
    }

    async fn begin(&self, manifest: Manifest) -> anyhow::Result<Shard> {
        let mut log = Log::new(manifest);
        let is_new = log.shard >= self.shards_at_start;
        let from = if is_new {
            Target::Earliest
        } else {
            self.options.from
        };
        if from != Target::Latest {
            complete(&self.store, &mut log).await?;
        }
        let next = from.position(&log)?;
        Ok(Shard { log, next, parts: 0 })
    }

    async fn show_part(
        &mut self,
        log: &Log,
        sequence: u64,
        entry: &Entry,
        part: &Part,
        show: &mut impl Show,
    ) -> anyhow::Result<()> {
        let stream = &log.streams[part.stream as usize];
        self.unknown.remove(&stream.name);
        if !self.options.streams.is_empty() && !self.options.streams.contains(&stream.name) {
            return Ok(());
        }
        let key = layout::segment(log.shard, entry.segment);
        let range = part.offset..part.offset + part.length;
        let bytes = self.store.get_range(&key, range).await?;
        let Some(bytes) = bytes else {
            tracing::warn!("sequence {sequence} of shard {:04}: {key} is gone", log.shard);
            return Ok(());
        };
        let mut reader = Reader {
            show,
            shard: log.shard,
            sequence,
            stream: &stream.name,
            signal: match stream.encoding {
                Encoding::Otlp => Signal::of_stream(&stream.name),
                _ => None,
            },
        };
        let read = reader.part(&bytes, part.offset, &mut self.decompressor)?;
        show.flush()?;
        // Show the parts behind a damaged one.
        if let Err(damage) = read {
            self.damaged += 1;
            tracing::warn!(
                "sequence {sequence} of shard {:04}, {}: {key}: {damage}: the rest of this part is left out",
                log.shard,
                stream.name
            );
        }
        Ok(())
    }
}

/// Reads a part of a segment.
struct Reader<'a, S> {
    show: &'a mut S,
    shard: u32,
    sequence: u64,
    stream: &'a str,
    /// The signal of an OTLP stream.
    signal: Option<Signal>,
}

impl<S: Show> Reader<'_, S> {
    /// Reads a part, up to the first damage.
    fn part(
        &mut self,
        bytes: &Bytes,
        offset: u64,
        decompressor: &mut Decompressor,
    ) -> anyhow::Result<Result<(), millpond_segment::Error>> {
        for block in millpond_segment::blocks(bytes, offset, &Limits::default()) {
            let block = match block {
                Ok(block) => block,
                Err(damage) => return Ok(Err(damage)),
            };
            let raw = match block.decode(decompressor) {
                Ok(raw) => raw,
                Err(damage) => return Ok(Err(damage)),
            };
            for message in raw.messages() {
                match message {
                    Ok(message) => self.message(message.received_at_us, message.payload)?,
                    Err(damage) => return Ok(Err(damage)),
                }
            }
        }
        Ok(Ok(()))
    }

    fn message(&mut self, received_at_us: i64, payload: &[u8]) -> anyhow::Result<()> {
        let Some(signal) = self.signal else {
            let mut shown = Ok(());
            events::rows(payload, |row| {
                if shown.is_ok() {
                    shown = self.give(received_at_us, row);
                }
            });
            return shown;
        };
        let mut shown = Ok(());
        let read = record::records(signal, payload, |record| {
            if shown.is_ok() {
                shown = self.give(received_at_us, Content::Record(record));
            }
        });
        shown?;
        match read {
            Ok(()) => Ok(()),
            Err(malformed) => self.give(received_at_us, Content::Unreadable(malformed.to_string())),
        }
    }

    fn give(&mut self, received_at_us: i64, content: Content) -> anyhow::Result<()> {
        self.show.record(&Found {
            shard: self.shard,
            sequence: self.sequence,
            stream: self.stream,
            received_at_us,
            content,
        })
    }
}

#[cfg(test)]
mod tests;
