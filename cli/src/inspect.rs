//! `millpond manifest` and `millpond segment`: what is in the buffer, for people and as JSON.

use crate::output::{inline, say};
use crate::store::{S3Args, StoreArgs};
use crate::units::{count, readable};
use anyhow::{Context, bail};
use bytes::Bytes;
use millpond_manifest::cas::{self, ReadError, Snapshot};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Buffer, Cursor, Log, Manifest, Page, layout};
use millpond_segment::{Index, Limits};
use millpond_storage::{BufferUrl, Store};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// What can be asked of a buffer's manifests.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ManifestCommand {
    /// Show every shard's log and the cursors of its consumers.
    Dump(ManifestArgs),
    /// Check every shard against the rules of the format and against the segments in the store; exits 1 if one is broken.
    Check(ManifestArgs),
}

/// Which buffer, and how to answer.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What can be asked of a segment.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SegmentCommand {
    /// Show a segment's streams and blocks, every checksum verified.
    Dump {
        /// A file, or an object's URL (s3://bucket/prefix/shards/0000/segments/…).
        segment: String,
        #[command(flatten)]
        s3: S3Args,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

impl ManifestCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            ManifestCommand::Dump(args) => dump(&args).await.map(|()| ExitCode::SUCCESS),
            ManifestCommand::Check(args) => check(&args).await,
        }
    }
}

/// What to do where there is no buffer.
pub(crate) const NO_BUFFER: &str = "check the URL; a gateway makes the buffer when it starts";

pub(crate) async fn buffer(store: &Store) -> anyhow::Result<Buffer> {
    let found = find_buffer(store).await?;
    found.with_context(|| format!("there is no buffer at {}: {NO_BUFFER}", store.url()))
}

pub(crate) async fn find_buffer(store: &Store) -> Result<Option<Buffer>, ReadError> {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await?;
    Ok(found.map(|found| found.state))
}

/// The log with all of its pages.
pub(crate) async fn whole(store: &Store, manifest: Manifest) -> anyhow::Result<Log> {
    let mut log = Log::new(manifest);
    complete(store, &mut log).await?;
    Ok(log)
}

/// Loads the pages that are missing.
pub(crate) async fn complete(store: &Store, log: &mut Log) -> anyhow::Result<()> {
    while let Some(reference) = log.missing(0).cloned() {
        let key = layout::page(log.shard, reference.first, reference.page);
        let page = cas::read::<Page>(store, &key).await?;
        let page = page.with_context(|| format!("{key} is in the manifest but not in the store"))?;
        log.load(&reference, Arc::new(page.state)).with_context(|| key)?;
    }
    Ok(())
}

pub(crate) async fn cursors(store: &Store, shard: u32) -> anyhow::Result<Vec<Cursor>> {
    let found = each_cursor(store, shard).await?;
    found.into_iter().map(|cursor| Ok(cursor?)).collect()
}

/// Reads a consumer's cursor. The tombstone of a removed consumer does not count as one.
pub(crate) async fn cursor(
    store: &Store,
    shard: u32,
    consumer: &str,
) -> Result<Option<Snapshot<Cursor>>, ReadError> {
    let found = cas::read::<Cursor>(store, &layout::cursor(shard, consumer)).await?;
    Ok(found.filter(|found| !found.state.is_removed()))
}

/// The cursors of consumers that were not removed, one that is damaged beside those that are not.
pub(crate) async fn each_cursor(store: &Store, shard: u32) -> anyhow::Result<Vec<Result<Cursor, ReadError>>> {
    let mut cursors = Vec::new();
    for found in store.list(&layout::consumers(shard)).await? {
        if found.key.ends_with("/cursor") {
            match cas::read::<Cursor>(store, &found.key).await {
                Ok(found) => {
                    let cursor = found.map(|found| found.state);
                    cursors.extend(cursor.filter(|cursor| !cursor.is_removed()).map(Ok));
                }
                Err(damaged @ ReadError::Format { .. }) => cursors.push(Err(damaged)),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(cursors)
}

async fn dump(args: &ManifestArgs) -> anyhow::Result<()> {
    let store = args.store.open(false).await?;
    let buffer = buffer(&store).await?;
    let mut shards = Vec::new();
    for shard in 0..buffer.shards {
        let log = cas::read::<Manifest>(&store, &layout::manifest(shard)).await?;
        let bytes = log.as_ref().map_or(0, |log| log.bytes);
        let log = log.map_or_else(|| Manifest::new(buffer.id, shard), |log| log.state);
        let log = whole(&store, log).await?;
        let cursors = cursors(&store, shard).await?;
        if args.json {
            shards.push(shard_json(&log, bytes, &cursors));
        } else {
            print_shard(&log, bytes, &cursors)?;
        }
    }
    if args.json {
        let dump = json!({ "url": store.url(), "buffer_id": buffer.id.to_string(), "shards": shards });
        say!("{dump}")?;
    }
    Ok(())
}

fn shard_json(log: &Log, bytes: usize, cursors: &[Cursor]) -> Value {
    let entries: Vec<Value> = log
        .entries(0)
        .map(|(sequence, entry)| {
            let parts: Vec<Value> = entry.parts.iter().map(|p| json!({
            "stream": log.streams[p.stream as usize].name, "offset": p.offset, "length": p.length,
            "raw_len": p.raw_len, "messages": p.messages, "records": p.records,
            "first_received_at_us": p.first_received_at_us, "last_received_at_us": p.last_received_at_us,
        })).collect();
            json!({
                "sequence": sequence, "segment": entry.segment.to_string(), "size": entry.size,
                "committed_at_ms": entry.committed_at_ms, "parts": parts,
            })
        })
        .collect();
    let pages: Vec<Value> = log.pages.iter().map(|p| json!({
        "first": p.first, "last": p.last, "page": p.page.to_string(), "bytes": p.bytes, "messages": p.messages,
        "records": p.records,
    })).collect();
    let producers: Vec<Value> = log.producers.iter().map(|p| json!({
        "id": p.id.to_string(), "commit": p.commit, "first_sequence": p.first_sequence, "count": p.count,
        "seen_at_ms": p.seen_at_ms,
    })).collect();
    json!({
        "shard": log.shard, "version": log.stamp.version, "bytes": bytes, "first_sequence": log.first_sequence,
        "next_sequence": log.next_sequence, "orphan_floor_ms": log.orphan_floor_ms, "pages": pages, "entries": entries,
        "streams": log.streams.iter().map(|s| json!({"name": s.name, "encoding": s.encoding.name()})).collect::<Vec<_>>(),
        "producers": producers, "consumers": cursors.iter().map(|c| cursor_json(log, c)).collect::<Vec<_>>(),
    })
}

fn cursor_json(log: &Log, cursor: &Cursor) -> Value {
    let (ownership, owner, lease) = match &cursor.ownership {
        Ownership::Released => ("released", None, None),
        Ownership::Abandoned => ("abandoned", None, None),
        Ownership::Removed => ("removed", None, None),
        Ownership::Held {
            owner,
            lease_expires_at_ms,
        } => ("held", Some(owner), Some(lease_expires_at_ms)),
    };
    let streams: Vec<Value> = (0_u32..)
        .zip(&log.streams)
        .map(|(index, stream)| {
            let next = cursor.next(&stream.name);
            let waiting = log.records(index, next);
            let planned: Vec<_> = cursor.planned(&stream.name).collect();
            json!({ "stream": stream.name, "next": next, "planned": planned, "records_behind": waiting })
        })
        .collect();
    json!({
        "consumer": cursor.consumer, "epoch": cursor.epoch, "ownership": ownership, "owner": owner,
        "lease_expires_at_ms": lease, "policy": cursor.policy, "streams": streams,
    })
}

/// A unix time in ms, for people.
fn time(ms: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms))
}

fn print_shard(log: &Log, bytes: usize, cursors: &[Cursor]) -> anyhow::Result<()> {
    say!(
        "shard {:04}: version {}, {} in the manifest and {}, sequences {}..{}, {}",
        log.shard,
        log.stamp.version,
        readable(bytes as u64),
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

async fn check(args: &ManifestArgs) -> anyhow::Result<ExitCode> {
    let store = args.store.open(false).await?;
    let buffer = buffer(&store).await?;
    let mut broken = Vec::new();
    let (mut segments, mut records) = (0, 0);
    for shard in 0..buffer.shards {
        let checked = check_patiently(&store, &buffer, shard).await?;
        segments += checked.segments;
        records += checked.records;
        broken.extend(checked.broken.iter().map(Broken::to_string));
    }
    if args.json {
        say!(
            "{}",
            json!({ "ok": broken.is_empty(), "segments": segments, "records": records, "broken": broken })
        )?;
    } else if broken.is_empty() {
        say!(
            "ok: {} with {}, all there",
            count(segments, "segment"),
            count(records, "record")
        )?;
    } else {
        for finding in &broken {
            say!("broken: {}", inline(finding))?;
        }
    }
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// How often a shard is looked at while a garbage collector trims it.
const CHECKS_MAX: usize = 5;

/// Something that is not as it must be.
pub(crate) struct Broken {
    pub(crate) what: String,
    /// What to do about it, if it is not what is to be done about segments.
    pub(crate) todo: Option<&'static str>,
}

impl Broken {
    fn plain(what: String) -> Broken {
        Broken { what, todo: None }
    }

    fn unreadable(error: &anyhow::Error) -> Broken {
        match error.downcast_ref::<ReadError>() {
            Some(ReadError::Format { key, wrong }) => Broken {
                what: format!("{key}: {wrong}"),
                todo: Some(wrong.remedy()),
            },
            _ => Broken::plain(format!("{error:#}")),
        }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        self.todo.map_or(Ok(()), |todo| write!(f, ": {todo}"))
    }
}

/// What was found in a shard.
#[derive(Default)]
pub(crate) struct Checked {
    first_sequence: u64,
    segments: u64,
    pub(crate) records: u64,
    pub(crate) broken: Vec<Broken>,
}

async fn first_sequence(store: &Store, shard: u32) -> Option<u64> {
    let log = cas::read::<Manifest>(store, &layout::manifest(shard)).await;
    Some(log.ok()??.state.first_sequence)
}

/// Checks a shard that may be trimmed meanwhile.
pub(crate) async fn check_patiently(store: &Store, buffer: &Buffer, shard: u32) -> anyhow::Result<Checked> {
    let mut checked = check_shard(store, buffer, shard).await?;
    for _ in 0..CHECKS_MAX {
        // What is broken stays so.
        if checked.broken.is_empty() || first_sequence(store, shard).await == Some(checked.first_sequence) {
            break;
        }
        checked = check_shard(store, buffer, shard).await?;
    }
    Ok(checked)
}

async fn check_shard(store: &Store, buffer: &Buffer, shard: u32) -> anyhow::Result<Checked> {
    let mut checked = Checked::default();
    // Reading checks the envelope and every rule of the format.
    let log = match cas::read::<Manifest>(store, &layout::manifest(shard)).await {
        Ok(log) => log,
        Err(error) => {
            checked.broken.push(Broken::unreadable(&error.into()));
            return Ok(checked);
        }
    };
    let Some(log) = log.map(|log| log.state) else {
        return Ok(checked);
    };
    checked.first_sequence = log.first_sequence;
    if log.buffer_id != buffer.id {
        checked.broken.push(Broken::plain(format!(
            "shard {shard:04} belongs to buffer {}, not {}",
            log.buffer_id, buffer.id
        )));
    }
    let stored: std::collections::HashMap<_, _> = store
        .list(&layout::segments(shard))
        .await?
        .into_iter()
        .map(|found| (found.key, found.size))
        .collect();
    let log = match whole(store, log).await {
        Ok(log) => log,
        Err(error) => {
            checked.broken.push(Broken::unreadable(&error));
            return Ok(checked);
        }
    };
    for (sequence, entry) in log.entries(0) {
        checked.segments += 1;
        checked.records += entry.parts.iter().map(|p| p.records).sum::<u64>();
        let key = layout::segment(shard, entry.segment);
        match stored.get(&key) {
            None => checked.broken.push(Broken::plain(format!(
                "sequence {sequence}: segment {key} is missing"
            ))),
            Some(size) if *size != entry.size => checked.broken.push(Broken::plain(format!(
                "sequence {sequence}: segment {key} has {size} bytes, the manifest says {}",
                entry.size
            ))),
            Some(_) => {}
        }
    }
    match cursors(store, shard).await {
        Ok(cursors) => checked.broken.extend(cursors.iter().filter_map(|c| {
            let ahead = c.streams.iter().find(|(_, s)| s.next > log.next_sequence)?;
            Some(Broken::plain(format!(
                "consumer {} acknowledged {} up to {}, past the log's end {}",
                c.consumer, ahead.0, ahead.1.next, log.next_sequence
            )))
        })),
        Err(error) => checked.broken.push(Broken::unreadable(&error)),
    }
    Ok(checked)
}

impl SegmentCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let SegmentCommand::Dump { segment, s3, json } = self;
        let object = read_object(&segment, s3).await?;
        let size = object.len();
        let index = millpond_segment::verify(&object, &Limits::default()).with_context(|| segment.clone())?;
        if json {
            say!("{}", segment_json(&segment, size, &index, &object)?)?;
        } else {
            print_segment(&segment, size, &index, &object)?;
        }
        Ok(())
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

fn segment_json(name: &str, size: usize, index: &Index, object: &Bytes) -> anyhow::Result<Value> {
    let mut streams = Vec::new();
    for part in &index.streams {
        let data = part.slice(object).context("the index was verified")?;
        let mut blocks = Vec::new();
        for block in millpond_segment::blocks(&data, part.offset, &Limits::default()) {
            let block = block?;
            blocks.push(json!({
                "offset": block.offset(), "length": block.encoded_len(), "raw_len": block.raw_len(),
                "messages": block.messages(), "compression": block.compression().name(),
            }));
        }
        streams.push(json!({
            "stream": part.stream, "encoding": part.encoding.name(), "offset": part.offset, "length": part.length,
            "raw_len": part.raw_len, "messages": part.messages, "records": part.records,
            "first_received_at_us": part.first_received_at_us, "last_received_at_us": part.last_received_at_us,
            "blocks": blocks,
        }));
    }
    Ok(json!({ "segment": name, "size": size, "streams": streams }))
}

fn print_segment(name: &str, size: usize, index: &Index, object: &Bytes) -> anyhow::Result<()> {
    say!("{name}: {}, every checksum right", readable(size as u64))?;
    for part in &index.streams {
        say!(
            "  {} ({}): {} records in {} messages, {} of {} raw",
            part.stream,
            part.encoding,
            part.records,
            part.messages,
            readable(part.length),
            readable(part.raw_len)
        )?;
        let data = part.slice(object).context("the index was verified")?;
        for block in millpond_segment::blocks(&data, part.offset, &Limits::default()) {
            let block = block?;
            say!(
                "    at {:>10}: {:>10} of {:>10} raw, {:>6} messages, {}",
                block.offset(),
                readable(block.encoded_len()),
                readable(block.raw_len()),
                block.messages(),
                block.compression().name()
            )?;
        }
    }
    Ok(())
}
