//! `millpond manifest` and `millpond segment`: the content of a buffer, for people and as JSON.

use crate::output::{inline, say};
use crate::store::{S3Args, StoreArgs};
use crate::units::{count, readable};
use anyhow::{Context, bail};
use bytes::Bytes;
use millpond_manifest::cursor::Ownership;
use millpond_operate::buffer::buffer;
use millpond_operate::check::check;
use millpond_operate::dump::{Segment, Shard};
use millpond_storage::BufferUrl;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// The commands about manifests.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ManifestCommand {
    /// Show every shard's log and the cursors of its consumers.
    Dump(ManifestArgs),
    /// Check every shard against the rules of the format and the segments in the store; exits 1 if one is broken.
    Check(ManifestArgs),
}

/// The flags of `millpond manifest`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// The commands about segments.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SegmentCommand {
    /// Verify every checksum of a segment, and show its streams and blocks.
    Dump {
        /// File or object URL (s3://bucket/prefix/shards/0000/segments/…).
        segment: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        s3: S3Args,
    },
}

impl ManifestCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            ManifestCommand::Dump(args) => dump(&args).await.map(|()| ExitCode::SUCCESS),
            ManifestCommand::Check(args) => check_all(&args).await,
        }
    }
}

async fn dump(args: &ManifestArgs) -> anyhow::Result<()> {
    let store = args.store.open(false).await?;
    let buffer = buffer(&store).await?;
    let mut shards = Vec::new();
    for shard in 0..buffer.shards {
        let shard = Shard::read(&store, &buffer, shard).await?;
        if args.json {
            shards.push(shard);
        } else {
            print_shard(&shard)?;
        }
    }
    if args.json {
        let dump = json!({ "url": store.url(), "buffer_id": buffer.id.to_string(), "shards": shards });
        say!("{dump}")?;
    }
    Ok(())
}

/// A Unix time in ms, for people.
fn time(ms: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms))
}

fn print_shard(shard: &Shard) -> anyhow::Result<()> {
    let Shard {
        log,
        manifest_bytes,
        cursors,
    } = shard;
    say!(
        "shard {:04}: version {}, {} in the manifest and {}, sequences {}..{}, {}",
        log.shard,
        log.stamp.version,
        readable(*manifest_bytes as u64),
        count(log.pages.len() as u64, "page"),
        log.first_sequence,
        log.next_sequence,
        count(log.producers.len() as u64, "producer")
    )?;
    for (sequence, entry) in log.entries(0) {
        say!("  {sequence:>8}  {}  {:>10}", entry.segment, readable(entry.size))?;
        for part in &entry.parts {
            say!(
                "            {:<24} {:>9} records in {:>6} messages, {:>10} of {:>10} raw at {}",
                log.streams[part.stream as usize].name,
                part.records,
                part.messages,
                readable(part.length),
                readable(part.raw_len),
                part.offset
            )?;
        }
    }
    for cursor in cursors {
        say!(
            "  consumer {}: epoch {}, {}",
            cursor.consumer,
            cursor.epoch,
            match &cursor.ownership {
                Ownership::Released => "released".to_owned(),
                Ownership::Abandoned => "abandoned with batches in doubt".to_owned(),
                Ownership::Removed => "removed".to_owned(),
                Ownership::Held {
                    owner,
                    lease_expires_at_ms,
                } => format!("held by {owner} until {}", time(*lease_expires_at_ms)),
            }
        )?;
        for (index, stream) in (0_u32..).zip(&log.streams) {
            let next = cursor.next(&stream.name);
            let behind = log.records(index, next);
            say!(
                "    {:<24} next {next}, {behind} records behind, {} batches planned",
                stream.name,
                cursor.planned(&stream.name).count()
            )?;
        }
    }
    Ok(())
}

async fn check_all(args: &ManifestArgs) -> anyhow::Result<ExitCode> {
    let checked = check(&args.store.open(false).await?).await?;
    if args.json {
        say!("{}", serde_json::to_value(&checked)?)?;
    } else if checked.ok {
        say!(
            "ok: {} with {}, all there",
            count(checked.segments, "segment"),
            count(checked.records, "record")
        )?;
    } else {
        for finding in &checked.broken {
            say!("broken: {}", inline(finding))?;
        }
    }
    Ok(if checked.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl SegmentCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let SegmentCommand::Dump { segment, s3, json } = self;
        let segment = Segment::read(&segment, &read_object(&segment, s3).await?)?;
        if json {
            say!("{}", serde_json::to_value(&segment)?)
        } else {
            print_segment(&segment)
        }
    }
}

async fn read_object(name: &str, s3: S3Args) -> anyhow::Result<Bytes> {
    if !name.contains("://") {
        return std::fs::read(name)
            .map(Bytes::from)
            .with_context(|| format!("cannot read {name}"));
    }
    let Some((buffer, key)) = name.rsplit_once("/shards/") else {
        bail!("{name} is not a segment's URL: it has no /shards/ in it")
    };
    let store = s3.store(BufferUrl::parse(buffer)?).open(false).await?;
    let found = store.get(&format!("shards/{key}")).await?;
    Ok(found.with_context(|| format!("there is no object {name}"))?.bytes)
}

fn print_segment(segment: &Segment) -> anyhow::Result<()> {
    say!(
        "{}: {}, every checksum right",
        segment.segment,
        readable(segment.size as u64)
    )?;
    for part in &segment.streams {
        say!(
            "  {} ({}): {} records in {} messages, {} of {} raw",
            part.stream,
            part.encoding,
            part.records,
            part.messages,
            readable(part.length),
            readable(part.raw_len)
        )?;
        for block in &part.blocks {
            say!(
                "    at {:>10}: {:>10} of {:>10} raw, {:>6} messages, {}",
                block.offset,
                readable(block.length),
                readable(block.raw_len),
                block.messages,
                block.compression
            )?;
        }
    }
    Ok(())
}
