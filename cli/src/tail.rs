//! `millpond tail`: a stream's records as they are committed. It reads a buffer as a consumer does, without a name and
//! without a position of its own.

mod record;
mod text;

use crate::consumers::Target;
use crate::inspect::{buffer, complete};
use crate::store::StoreArgs;
use crate::units::Time;
use anyhow::{Context, bail};
use millpond_manifest::cas;
use millpond_manifest::{Entry, Log, Manifest, Part, layout};
use millpond_otlp::Signal;
use millpond_segment::{Decompressor, Encoding, Limits};
use millpond_storage::Store;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, BufWriter, ErrorKind, Write};
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
    #[arg(long, value_name = "TIME", default_value = "1s")]
    poll_interval: Time,
}

/// A shard, and what of it was shown.
struct Shard {
    log: Log,
    /// Everything below was shown.
    next: u64,
}

/// Shows records until the process is stopped, nobody reads its output any more, or, with `--no-follow`, all are shown.
pub(crate) async fn run(args: TailArgs) -> anyhow::Result<()> {
    match Tail::open(args).await?.follow().await {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        ended => ended,
    }
}

/// `millpond tail | head` is no error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

struct Tail {
    args: TailArgs,
    store: Store,
    decompressor: Decompressor,
    /// Streams that are asked for and were not seen yet.
    unknown: BTreeSet<String>,
}

impl Tail {
    async fn open(args: TailArgs) -> anyhow::Result<Tail> {
        Ok(Tail {
            store: args.store.open(false).await?,
            decompressor: Decompressor::new()?,
            unknown: args.stream.iter().cloned().collect(),
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
        loop {
            for (shard, known) in &mut known {
                self.show_new(*shard, known).await?;
            }
            if self.args.no_follow {
                return self.say_unknown();
            }
            tokio::time::sleep(self.args.poll_interval.0).await;
        }
    }

    /// A name that is not there is a typing error, or of a stream that is still to come.
    fn say_unknown(&self) -> anyhow::Result<()> {
        match self.unknown.first() {
            Some(name) => bail!("there is no stream {name}: `millpond status` shows those that there are"),
            None => Ok(()),
        }
    }

    /// Shows what was committed since the last look.
    async fn show_new(&mut self, shard: u32, known: &mut Option<Shard>) -> anyhow::Result<()> {
        let found = cas::read::<Manifest>(&self.store, &layout::manifest(shard)).await?;
        let Some(found) = found else {
            return Ok(());
        };
        let mut here = match known.take() {
            Some(before) => Shard {
                log: before.log.advanced(found.state),
                next: before.next,
            },
            None => self.begin(found.state).await?,
        };
        if here.next < here.log.first_sequence {
            let (next, first) = (here.next, here.log.first_sequence);
            tracing::warn!(
                "shard {shard:04}: sequences {next}..{first} were trimmed before they could be shown"
            );
            here.next = first;
        }
        // Only a long pause leaves pages in between.
        if here.log.missing(here.next).is_some() {
            complete(&self.store, &mut here.log).await?;
        }
        let entries: Vec<(u64, Entry)> = (here.log.entries(here.next))
            .map(|(sequence, entry)| (sequence, entry.clone()))
            .collect();
        for (sequence, entry) in entries {
            for part in &entry.parts {
                self.show_part(&here.log, sequence, &entry, part).await?;
            }
            here.next = sequence + 1;
        }
        *known = Some(here);
        Ok(())
    }

    async fn begin(&self, manifest: Manifest) -> anyhow::Result<Shard> {
        let mut log = Log::new(manifest);
        if self.args.from != Target::Latest {
            complete(&self.store, &mut log).await?;
        }
        let next = self.args.from.position(&log)?;
        Ok(Shard { log, next })
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
        for block in millpond_segment::blocks(&bytes, part.offset, &Limits::default()) {
            let block = block.with_context(|| key.clone())?;
            let raw = block
                .decode(&mut self.decompressor)
                .with_context(|| key.clone())?;
            for message in raw.messages() {
                let message = message.with_context(|| key.clone())?;
                show.message(&mut out, message.received_at_us, message.payload)?;
            }
        }
        out.flush()?;
        Ok(())
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
            return writeln!(out, "{line}");
        }
        let received = Duration::from_micros(u64::try_from(received_at_us).unwrap_or(0));
        let object = json!({
            "shard": self.shard, "sequence": self.sequence, "stream": self.stream,
            "received_at": humantime::format_rfc3339_micros(UNIX_EPOCH + received).to_string(), "record": record,
        });
        writeln!(out, "{object}")
    }
}
