//! `millpond tail`: a stream's records as they are committed. It reads a buffer as a consumer does, without a name and
//! without a position of its own.

mod record;
mod text;

use crate::consumers::Target;
use crate::inspect::{buffer, complete};
use crate::output::{self, inline, plain};
use crate::store::{Patience, StoreArgs};
use crate::units::{Time, count, pause};
use anyhow::bail;
use bytes::Bytes;
use millpond_manifest::cas;
use millpond_manifest::{Entry, Log, Manifest, Part, layout};
use millpond_otlp::Signal;
use millpond_segment::{Decompressor, Encoding, Limits};
use millpond_storage::Store;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::time::{Duration, UNIX_EPOCH};

/// Which buffer, what of it, and how to show it.
#[derive(Debug, clap::Args)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Only this stream, like otlp.logs; again for more. Without it all.
    #[arg(long, value_name = "NAME")]
    stream: Vec<String>,

    /// Only this shard. Without it all.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,

    /// Where to begin: latest, earliest, a sequence, or a time like 2026-11-21T09:00:00Z: the first segment committed
    /// then or later.
    #[arg(long, value_name = "WHERE", default_value = "latest")]
    from: Target,

    /// Only records whose line matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    grep: Option<Regex>,

    /// One JSON object a record: where it is, when it was received, and the record with OTLP's names.
    #[arg(long)]
    json: bool,

    /// End at what is committed now, instead of waiting for more.
    #[arg(long)]
    no_follow: bool,

    /// How often the manifest is asked for news. 1s: a GET a second for each shard.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    poll_interval: Time,
}

/// A shard, and what of it was shown.
struct Shard {
    log: Log,
    /// Everything below was shown.
    next: u64,
    /// Of the segment there, so many parts.
    parts: usize,
}

/// Shows records until the process is stopped, nobody reads its output any more, or, with `--no-follow`, all are shown. A
/// store that is away meanwhile is waited for.
pub(crate) async fn run(args: TailArgs) -> anyhow::Result<()> {
    Tail::open(args).await?.follow().await
}

struct Tail {
    args: TailArgs,
    store: Store,
    decompressor: Decompressor,
    /// Streams that are asked for and were not seen yet.
    unknown: BTreeSet<String>,
    /// Parts that could not be read to their ends.
    damaged: u64,
}

impl Tail {
    async fn open(args: TailArgs) -> anyhow::Result<Tail> {
        Ok(Tail {
            store: args.store.open(false).await?,
            decompressor: Decompressor::new()?,
            unknown: args.stream.iter().cloned().collect(),
            damaged: 0,
            args,
        })
    }

    async fn follow(&mut self) -> anyhow::Result<()> {
        let shards = buffer(&self.store).await?.shards;
        let wanted = match self.args.shard {
            Some(shard) if shard >= shards => {
                bail!("there is no shard {shard}: the buffer has {shards}, numbered from 0")
            }
            Some(shard) => shard..shard + 1,
            None => 0..shards,
        };
        if matches!(self.args.from, Target::Sequence(_)) && wanted.len() > 1 {
            bail!("a sequence belongs to one shard: say which with --shard");
        }
        let mut known: Vec<(u32, Option<Shard>)> = wanted.map(|shard| (shard, None)).collect();
        let mut patience = Patience::default();
        loop {
            match self.show_all(&mut known).await {
                Ok(()) if self.args.no_follow => return self.say_missing(),
                Ok(()) => patience.over(),
                Err(error) if self.args.no_follow => return Err(error),
                Err(error) => patience.with(error)?,
            }
            tokio::time::sleep(self.args.poll_interval.0).await;
        }
    }

    async fn show_all(&mut self, known: &mut [(u32, Option<Shard>)]) -> anyhow::Result<()> {
        for (shard, known) in known {
            self.show_new(*shard, known).await?;
        }
        Ok(())
    }

    /// A name that is not there is a typing error, or of a stream that is still to come.
    fn say_missing(&self) -> anyhow::Result<()> {
        if let Some(name) = self.unknown.first() {
            bail!("there is no stream {name}: `millpond status` shows those that there are");
        }
        if self.damaged > 0 {
            bail!("{} could not be read, see above", count(self.damaged, "part"));
        }
        Ok(())
    }

    /// Shows what was committed since the last look. What was shown is written down in `known` also when it fails.
    async fn show_new(&mut self, shard: u32, known: &mut Option<Shard>) -> anyhow::Result<()> {
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
                self.show_part(&here.log, sequence, &entry, part).await?;
                here.parts += 1;
            }
            (here.next, here.parts) = (sequence + 1, 0);
        }
        Ok(())
    }

    async fn begin(&self, manifest: Manifest) -> anyhow::Result<Shard> {
        let mut log = Log::new(manifest);
        if self.args.from != Target::Latest {
            complete(&self.store, &mut log).await?;
        }
        let next = self.args.from.position(&log)?;
        Ok(Shard { log, next, parts: 0 })
    }

    async fn show_part(
        &mut self,
        log: &Log,
        sequence: u64,
        entry: &Entry,
        part: &Part,
    ) -> anyhow::Result<()> {
        let stream = &log.streams[part.stream as usize];
        self.unknown.remove(&stream.name);
        if !self.args.stream.is_empty() && !self.args.stream.contains(&stream.name) {
            return Ok(());
        }
        let key = layout::segment(log.shard, entry.segment);
        let range = part.offset..part.offset + part.length;
        let bytes = self.store.get_range(&key, range).await?;
        let Some(bytes) = bytes else {
            tracing::warn!("sequence {sequence} of shard {:04}: {key} is gone", log.shard);
            return Ok(());
        };
        let mut out = BufWriter::new(io::stdout().lock());
        let show = Show {
            args: &self.args,
            shard: log.shard,
            sequence,
            stream: &stream.name,
            signal: match stream.encoding {
                Encoding::Otlp => Signal::of_stream(&stream.name),
                _ => None,
            },
        };
        let shown = show.part(&mut out, &bytes, part.offset, &mut self.decompressor);
        let shown = shown.and_then(|whole| out.flush().map(|()| whole));
        match shown {
            Ok(Ok(())) => Ok(()),
            // The others are worth seeing.
            Ok(Err(damage)) => {
                self.damaged += 1;
                tracing::warn!(
                    "sequence {sequence} of shard {:04}, {}: {key}: {damage}: what follows in it is left out",
                    log.shard,
                    stream.name
                );
                Ok(())
            }
            Err(error) => output::failed(error),
        }
    }
}

/// Where a message is, and what of it is wanted.
struct Show<'a> {
    args: &'a TailArgs,
    shard: u32,
    sequence: u64,
    stream: &'a str,
    /// What its payload is, when that is known.
    signal: Option<Signal>,
}

impl Show<'_> {
    /// Shows a stream's part of a segment up to what is damaged, if something is.
    fn part(
        &self,
        out: &mut impl Write,
        bytes: &Bytes,
        offset: u64,
        decompressor: &mut Decompressor,
    ) -> io::Result<Result<(), millpond_segment::Error>> {
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
                    Ok(message) => self.message(out, message.received_at_us, message.payload)?,
                    Err(damage) => return Ok(Err(damage)),
                }
            }
        }
        Ok(Ok(()))
    }

    fn message(&self, out: &mut impl Write, received_at_us: i64, payload: &[u8]) -> io::Result<()> {
        let Some(signal) = self.signal else {
            let payload = payload.escape_ascii().to_string();
            return self.record(out, received_at_us, &json!({ "payload": payload }), &payload);
        };
        let mut shown = Ok(());
        let read = record::records(signal, payload, |record| {
            if shown.is_ok() {
                shown = self.record(out, received_at_us, &record, &text::line(&record));
            }
        });
        shown?;
        read.or_else(|malformed| {
            let unreadable = format!("a message that cannot be read: {malformed}");
            self.record(
                out,
                received_at_us,
                &json!({ "unreadable": malformed.to_string() }),
                &unreadable,
            )
        })
    }

    fn record(
        &self,
        out: &mut impl Write,
        received_at_us: i64,
        record: &Value,
        line: &str,
    ) -> io::Result<()> {
        if self.args.grep.as_ref().is_some_and(|grep| !grep.is_match(line)) {
            return Ok(());
        }
        if !self.args.json {
            return writeln!(out, "{}", inline(line));
        }
        let received = Duration::from_micros(u64::try_from(received_at_us).unwrap_or(0));
        let object = json!({
            "shard": self.shard, "sequence": self.sequence, "stream": self.stream,
            "received_at": humantime::format_rfc3339_micros(UNIX_EPOCH + received).to_string(), "record": record,
        });
        writeln!(out, "{}", plain(&object.to_string()))
    }
}
