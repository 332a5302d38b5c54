//! Sees every write and deletion take effect in the store, and says at once when one breaks a promise: it knows the whole log
//! as it ever was, what each segment holds, where each consumer is, and what is in its table.

use super::ledger::{Ledger, Position};
use super::record::{Event, Oracle, Record};
use super::scenario::Scenario;
use super::table::Table;
use bytes::Bytes;
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, DeadLetter, Entry, Manifest, Object, Page, layout};
use millpond_segment::{Decompressor, Limits, blocks, verify};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use ulid::Ulid;

/// A stream's messages in a segment.
type Content = Vec<(String, Vec<String>)>;

/// A sequence of a stream that a consumer may go without, since retention dropped it.
type Missed = (String, u64);

#[derive(Default)]
struct Shard {
    manifest: Option<Manifest>,
    /// The log as it ever was: by sequence, the segment and what is in it.
    log: BTreeMap<u64, (Ulid, Arc<Content>)>,
    /// The segments that the manifest refers to.
    live: BTreeSet<Ulid>,
    cursors: BTreeMap<String, Cursor>,
    missed: BTreeMap<String, BTreeSet<Missed>>,
}

#[derive(Default)]
struct State {
    segments: BTreeMap<String, Arc<Content>>,
    pages: BTreeMap<String, Page>,
    shards: BTreeMap<u32, Shard>,
}

pub(crate) struct Witness {
    record: Arc<Record>,
    ledger: Arc<Ledger>,
    tables: BTreeMap<String, Arc<Table>>,
    /// Whether retention drops what was not read.
    retention: bool,
    lease_ms: u64,
    state: Mutex<State>,
}

/// What a key names.
enum Key<'a> {
    Manifest(u32),
    Segment(u32, Ulid),
    Page(u32, Ulid),
    Cursor(u32, &'a str),
    Letter(&'a str),
    Other,
}

fn parse(key: &str) -> Key<'_> {
    let parts: Vec<&str> = key.split('/').collect();
    let shard = || parts.get(1).and_then(|shard| shard.parse().ok()).unwrap_or(0);
    let name = |name: &str| Ulid::from_string(name).ok();
    match parts[..] {
        ["shards", _, "manifest"] => Key::Manifest(shard()),
        ["shards", _, "segments", segment] => {
            name(segment).map_or(Key::Other, |name| Key::Segment(shard(), name))
        }
        ["shards", _, "pages", page] => {
            let named = page.rsplit('-').next().and_then(name);
            named.map_or(Key::Other, |name| Key::Page(shard(), name))
        }
        ["shards", _, "dead-letters", consumer, _] => Key::Letter(consumer),
        ["shards", _, "consumers", consumer, "cursor"] => Key::Cursor(shard(), consumer),
        _ => Key::Other,
    }
}

/// The messages of a segment.
fn content(bytes: &Bytes) -> Result<Content, String> {
    let index = verify(bytes, &Limits::default()).map_err(|error| error.to_string())?;
    let mut decompressor = Decompressor::new().map_err(|error| error.to_string())?;
    let mut content = Vec::new();
    for part in &index.streams {
        let mut messages = Vec::new();
        let data = part.slice(bytes).unwrap_or_default();
        for block in blocks(&data, part.offset, &Limits::default()) {
            let block = block.map_err(|error| error.to_string())?;
            let raw = block
                .decode(&mut decompressor)
                .map_err(|error| error.to_string())?;
            for message in raw.messages() {
                let message = message.map_err(|error| error.to_string())?;
                messages.push(String::from_utf8_lossy(message.payload).into_owned());
            }
        }
        content.push((part.stream.clone(), messages));
    }
    Ok(content)
}

impl Witness {
    pub(crate) fn new(
        record: Arc<Record>,
        ledger: Arc<Ledger>,
        tables: BTreeMap<String, Arc<Table>>,
        scenario: &Scenario,
    ) -> Arc<Witness> {
        Arc::new(Witness {
            record,
            ledger,
            tables,
            retention: scenario.retention.is_some(),
            lease_ms: u64::try_from(scenario.lease.as_millis()).unwrap_or(u64::MAX),
            state: Mutex::default(),
        })
    }

    /// An object is in the store.
    pub(crate) fn wrote(&self, actor: &str, key: &str, bytes: &Bytes) {
        let mut state = self.state();
        let result = match parse(key) {
            Key::Manifest(shard) => self.manifest(&mut state, actor, shard, bytes),
            Key::Cursor(shard, consumer) => self.cursor(&mut state, actor, shard, consumer, bytes),
            Key::Segment(..) => content(bytes)
                .map(|content| {
                    state.segments.insert(key.to_owned(), Arc::new(content));
                })
                .map_err(|error| (Oracle::Log, error)),
            Key::Page(..) => Page::decode(bytes)
                .map(|page| {
                    state.pages.insert(key.to_owned(), page);
                })
                .map_err(|error| (Oracle::Log, error.to_string())),
            Key::Letter(consumer) => DeadLetter::decode(bytes)
                .map(|letter| {
                    if let Some(table) = self.tables.get(consumer) {
                        table.buried(&String::from_utf8_lossy(&letter.payload));
                    }
                })
                .map_err(|error| (Oracle::Log, error.to_string())),
            Key::Other => Ok(()),
        };
        drop(state);
        if matches!(parse(key), Key::Segment(..) | Key::Page(..)) {
            self.record.event(actor, format_args!("{key} is there"));
        }
        if let Err((oracle, detail)) = result {
            self.record
                .violated(oracle, format!("{actor} wrote {key}: {detail}"));
        }
    }

    /// An object is gone.
    pub(crate) fn deleted(&self, actor: &str, key: &str) {
        let mut state = self.state();
        let wrong = match parse(key) {
            Key::Segment(shard, name) => {
                if state.segments.remove(key).is_some() {
                    self.record.count(Event::SegmentsDeleted);
                }
                let shard = state.shards.entry(shard).or_default();
                if shard.live.contains(&name) {
                    Some("the log refers to it")
                } else {
                    shard.may_join(name).then_some("it could still join the log")
                }
            }
            Key::Page(shard, name) => {
                if state.pages.remove(key).is_some() {
                    self.record.count(Event::PagesDeleted);
                }
                let shard = state.shards.entry(shard).or_default();
                let manifest = shard.manifest.as_ref();
                if manifest.is_some_and(|manifest| manifest.pages.iter().any(|page| page.page == name)) {
                    Some("the log refers to it")
                } else {
                    shard.may_join(name).then_some("it could still join the log")
                }
            }
            Key::Manifest(_) | Key::Cursor(..) | Key::Letter(_) | Key::Other => Some("nobody deletes that"),
        };
        drop(state);
        self.record.event(actor, format_args!("{key} is gone"));
        if let Some(wrong) = wrong {
            let detail = format!("{actor} deleted {key}: {wrong}");
            self.record.violated(Oracle::Needed, detail);
        }
    }

    /// Whether a consumer has come to the end of every log, and how far it is.
    pub(crate) fn is_read(&self, consumer: &str) -> (bool, String) {
        use fmt::Write;
        let state = self.state();
        let (mut all, mut said) = (true, String::new());
        for (number, shard) in &state.shards {
            let Some(manifest) = &shard.manifest else { continue };
            let cursor = shard.cursors.get(consumer);
            for stream in &manifest.streams {
                let next = cursor.map_or(0, |cursor| cursor.next(&stream.name));
                let end = manifest.next_sequence;
                if next != end {
                    all = false;
                    let _ = write!(said, "{} in shard {number:04} at {next} of {end}; ", stream.name);
                }
            }
        }
        (all, said)
    }

    /// Whether retention took this from a consumer before it was read.
    pub(crate) fn may_miss(&self, consumer: &str, stream: &str, position: Position) -> bool {
        let state = self.state();
        let shard = state.shards.get(&position.shard);
        let missed = shard.and_then(|shard| shard.missed.get(consumer));
        missed.is_some_and(|missed| missed.contains(&(stream.to_owned(), position.sequence)))
    }

    /// The stream that a message is in.
    pub(crate) fn stream(&self, message: &str, position: Position) -> Option<String> {
        let state = self.state();
        let (_, content) = state.shards.get(&position.shard)?.log.get(&position.sequence)?;
        let found = content
            .iter()
            .find(|(_, messages)| messages.iter().any(|one| one == message));
        found.map(|(stream, _)| stream.clone())
    }

    /// Segments and pages in the store.
    pub(crate) fn objects(&self) -> Vec<String> {
        let state = self.state();
        state.segments.keys().chain(state.pages.keys()).cloned().collect()
    }

    fn manifest(
        &self,
        state: &mut State,
        actor: &str,
        number: u32,
        bytes: &Bytes,
    ) -> Result<(), (Oracle, String)> {
        let log = |reason: String| (Oracle::Log, reason);
        let next = Manifest::decode(bytes).map_err(|error| log(error.to_string()))?;
        let State {
            segments,
            pages,
            shards,
        } = state;
        let shard = shards.entry(number).or_default();
        let before = shard
            .manifest
            .take()
            .unwrap_or_else(|| Manifest::new(next.buffer_id, number));
        self.record.event(
            actor,
            format_args!(
                "manifest {number:04} v{} {}..{} floor {} pages {} tail {}",
                next.stamp.version,
                next.first_sequence,
                next.next_sequence,
                next.orphan_floor_ms,
                next.pages.len(),
                next.tail.len()
            ),
        );
        if next.stamp.version != before.stamp.version + 1
            || next.first_sequence < before.first_sequence
            || next.next_sequence < before.next_sequence
            || next.orphan_floor_ms < before.orphan_floor_ms
        {
            return Err(log("it does not follow the manifest that it replaces".into()));
        }
        for reference in &next.pages {
            if before.pages.contains(reference) {
                continue;
            }
            self.record.count(Event::PagesSealed);
            let key = layout::page(number, reference.first, reference.page);
            let Some(page) = pages.get(&key) else {
                return Err(log(format!("{key} is not in the store")));
            };
            next.check_page(reference, page)
                .map_err(|wrong| log(wrong.to_string()))?;
            for (sequence, entry) in (page.first..).zip(&page.entries) {
                self.entry(shard, segments, number, sequence, entry)?;
            }
        }
        for (sequence, entry) in (next.tail_start()..).zip(&next.tail) {
            self.entry(shard, segments, number, sequence, entry)?;
        }
        if shard.log.len() as u64 != next.next_sequence {
            return Err(log(format!(
                "it ends at {}, and {} sequences are known",
                next.next_sequence,
                shard.log.len()
            )));
        }
        let trimmed = before.first_sequence..next.first_sequence;
        self.record
            .add(Event::SequencesTrimmed, trimmed.end - trimmed.start);
        let mut needed = Vec::new();
        for (sequence, (segment, content)) in shard.log.range(trimmed) {
            shard.live.remove(segment);
            for (stream, _) in &**content {
                for (consumer, cursor) in &shard.cursors {
                    if cursor.next(stream) <= *sequence {
                        needed.push((consumer.clone(), (stream.clone(), *sequence)));
                    }
                }
            }
        }
        shard.manifest = Some(next);
        if let Some((consumer, (stream, sequence))) = needed.first()
            && !self.retention
        {
            let detail = format!("{consumer} still needs {sequence} of {stream}, which was trimmed");
            return Err((Oracle::Needed, detail));
        }
        self.record
            .add(Event::SequencesDroppedUnread, needed.len() as u64);
        for (consumer, missed) in needed {
            shard.missed.entry(consumer).or_default().insert(missed);
        }
        let consumers: Vec<String> = shard.cursors.keys().cloned().collect();
        consumers.iter().for_each(|consumer| shard.miss_cut(consumer));
        Ok(())
    }

    /// An entry of the log: known already, or the next.
    fn entry(
        &self,
        shard: &mut Shard,
        segments: &BTreeMap<String, Arc<Content>>,
        number: u32,
        sequence: u64,
        entry: &Entry,
    ) -> Result<(), (Oracle, String)> {
        let log = |reason: String| (Oracle::Log, reason);
        if let Some((known, _)) = shard.log.get(&sequence) {
            if *known == entry.segment {
                return Ok(());
            }
            let segment = entry.segment;
            return Err(log(format!("{sequence} was {known} and is {segment} now")));
        }
        if sequence != shard.log.len() as u64 {
            return Err(log(format!("{sequence} does not follow {}", shard.log.len())));
        }
        let key = layout::segment(number, entry.segment);
        let Some(content) = segments.get(&key) else {
            return Err(log(format!("{key} is not in the store")));
        };
        if !shard.live.insert(entry.segment) {
            return Err(log(format!("{key} is in the log twice")));
        }
        let position = Position {
            shard: number,
            sequence,
        };
        for (stream, messages) in &**content {
            for message in messages {
                self.ledger.committed(message, stream, position);
            }
        }
        shard.log.insert(sequence, (entry.segment, Arc::clone(content)));
        Ok(())
    }

    fn cursor(
        &self,
        state: &mut State,
        actor: &str,
        number: u32,
        consumer: &str,
        bytes: &Bytes,
    ) -> Result<(), (Oracle, String)> {
        let wrong = |reason: String| (Oracle::Cursor, reason);
        let next = Cursor::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        let shard = state.shards.entry(number).or_default();
        self.record.event(
            actor,
            format_args!(
                "cursor {number:04} {consumer} v{} epoch {} {:?} {:?}",
                next.stamp.version, next.epoch, next.ownership, next.streams
            ),
        );
        let before = shard.cursors.insert(consumer.to_owned(), next.clone());
        shard.miss_cut(consumer);
        if let Some(before) = &before {
            let end = shard.manifest.as_ref().map_or(0, |log| log.next_sequence);
            let mut planned = before.streams.values().flat_map(|stream| &stream.planned);
            if next.epoch > before.epoch && planned.any(|plan| plan.low >= end) {
                self.record.count(Event::TakenOverAhead);
            }
            self.check_successor(before, &next).map_err(wrong)?;
        }
        let Some(table) = self.tables.get(consumer) else {
            return Ok(());
        };
        let missed = shard.missed.get(consumer);
        for (stream, position) in &next.streams {
            let from = before.as_ref().map_or(next.start, |before| before.next(stream));
            for (sequence, (_, content)) in shard.log.range(from..position.next) {
                let messages = content.iter().filter(|(of, _)| of == stream);
                for message in messages.flat_map(|(_, messages)| messages) {
                    let may_miss = missed.is_some_and(|m| m.contains(&(stream.clone(), *sequence)));
                    if let Some(row) = table.misses(message)
                        && !may_miss
                    {
                        let next = position.next;
                        return Err(wrong(format!(
                            "{stream} is acknowledged up to {next}, and {row} ({sequence}) is not in the table"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_successor(&self, before: &Cursor, next: &Cursor) -> Result<(), String> {
        if next.stamp.version != before.stamp.version + 1 {
            return Err("it does not follow the cursor that it replaces".into());
        }
        for (stream, was) in &before.streams {
            if next.next(stream) < was.next {
                return Err(format!("{stream} went back from {}", was.next));
            }
        }
        if next.rule != before.rule {
            self.record.count(Event::RulesChanged);
            if before.ownership != Ownership::Released {
                return Err("another rule came into force while batches were in doubt".into());
            }
        }
        if next.epoch == before.epoch {
            return Ok(());
        }
        if next.epoch != before.epoch + 1 {
            return Err(format!("epoch {} follows {}", next.epoch, before.epoch));
        }
        self.record.count(match (&before.ownership, &next.ownership) {
            (Ownership::Released, _) => Event::CleanOpenings,
            (Ownership::Abandoned, _) => Event::TakeoversOfAbandoned,
            (
                Ownership::Held {
                    lease_expires_at_ms, ..
                },
                Ownership::Held {
                    lease_expires_at_ms: after,
                    ..
                },
            ) if after.saturating_sub(self.lease_ms) >= *lease_expires_at_ms => Event::TakeoversByLease,
            (Ownership::Held { .. }, _) => Event::TakeoversByForce,
        });
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// Whether a segment or a page of this name could still be committed.
    fn may_join(&self, name: Ulid) -> bool {
        let floor_ms = self
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.orphan_floor_ms);
        name.timestamp_ms() >= floor_ms
    }

    /// A planned batch that retention has cut is lost as a whole.
    fn miss_cut(&mut self, consumer: &str) {
        let first = self
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.first_sequence);
        let Some(cursor) = self.cursors.get(consumer) else {
            return;
        };
        let mut missed = Vec::new();
        for (stream, position) in &cursor.streams {
            for plan in position.planned.iter().filter(|plan| plan.low < first) {
                missed.extend((plan.low..=plan.high).map(|sequence| (stream.clone(), sequence)));
            }
        }
        if !missed.is_empty() {
            self.missed.entry(consumer.to_owned()).or_default().extend(missed);
        }
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}
