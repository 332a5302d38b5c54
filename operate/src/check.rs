//! Checks shards against the rules of the format and against the segments in the store.

use crate::buffer::{buffer, cursors, whole};
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::log::Continuity;
use millpond_manifest::{Buffer, Cursor, Log, Manifest, layout};
use millpond_storage::Store;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// Maximum number of checks of a shard that a garbage collector trims meanwhile.
const CHECKS_MAX: usize = 5;

/// The result for a whole buffer.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Nothing is broken.
    pub ok: bool,
    /// Segments in the logs.
    pub segments: u64,
    /// Records in these segments.
    pub records: u64,
    /// Each finding with its remedy.
    pub broken: Vec<String>,
}

/// Checks every shard of a buffer.
///
/// # Errors
/// There is no buffer, or the store fails.
pub async fn check(store: &Store) -> anyhow::Result<Check> {
    let buffer = buffer(store).await?;
    let mut all = Check::default();
    for shard in 0..buffer.shards {
        let checked = check_patiently(store, &buffer, shard).await?;
        all.segments += checked.segments;
        all.records += checked.records;
        all.broken.extend(checked.broken.iter().map(Broken::to_string));
    }
    all.ok = all.broken.is_empty();
    Ok(all)
}

/// A broken rule.
pub(crate) struct Broken {
    pub(crate) what: String,
    /// The remedy, unless it is the one for segments.
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

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.todo.map_or(Ok(()), |todo| write!(f, ": {todo}"))
    }
}

/// The result for a shard.
#[derive(Default)]
pub(crate) struct Checked {
    first_sequence: u64,
    segments: u64,
    pub(crate) records: u64,
    pub(crate) broken: Vec<Broken>,
}

/// Checks a shard, again if a garbage collector trimmed it meanwhile.
pub(crate) async fn check_patiently(store: &Store, buffer: &Buffer, shard: u32) -> anyhow::Result<Checked> {
    let mut checked = check_shard(store, buffer, shard).await?;
    for _ in 0..CHECKS_MAX {
        // Without trimming, a second check finds the same.
        if checked.broken.is_empty() || first_sequence(store, shard).await == Some(checked.first_sequence) {
            break;
        }
        checked = check_shard(store, buffer, shard).await?;
    }
    Ok(checked)
}

async fn first_sequence(store: &Store, shard: u32) -> Option<u64> {
    let log = cas::read::<Manifest>(store, &layout::manifest(shard)).await;
    Some(log.ok()??.state.first_sequence)
}

async fn check_shard(store: &Store, buffer: &Buffer, shard: u32) -> anyhow::Result<Checked> {
    let mut checked = Checked::default();
    // Before the log: a cursor is never ahead of a log that is read after it.
    let cursors = cursors(store, shard).await;
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
    let stored: HashMap<_, _> = store
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
    match cursors {
        Ok(cursors) => {
            let strangers = cursors.iter().filter_map(|cursor| has_read_another(cursor, &log));
            checked.broken.extend(strangers.map(Broken::plain));
        }
        Err(error) => checked.broken.push(Broken::unreadable(&error)),
    }
    Ok(checked)
}

/// Why a consumer has read another log than this one, whose pages are loaded. `None`: it may be this one.
fn has_read_another(cursor: &Cursor, log: &Log) -> Option<String> {
    let consumer = &cursor.consumer;
    match log.continuity(cursor.furthest(), cursor.seen) {
        Continuity::Same | Continuity::Unread(_) => None,
        Continuity::Short => Some(format!(
            "consumer {consumer} has read up to sequence {}, past the log's end {}",
            cursor.furthest(),
            log.next_sequence
        )),
        Continuity::Other { seen, found } => Some(format!(
            "consumer {consumer} has read segment {} at sequence {}, and the log has {found} there",
            seen.segment, seen.sequence
        )),
    }
}
