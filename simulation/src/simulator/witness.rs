//! Observes every write and deletion that takes effect in the store, and reports the first violation. It knows the
//! complete history of the log, the content of each segment, the position of each consumer, and the rows of its table.

use super::ledger::{Ledger, Position, Stored};
use super::reader::{OPERATOR, Reader};
use super::record::{Event, Oracle, Record};
use super::repetitions::repetitions;
use super::scenario::Scenario;
use super::table::{Row, Table};
use bytes::Bytes;
use millpond_consumer::RowId;
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{
    Cursor, DeadLetter, Entry, Manifest, Object, Page, SinkTables, UniqueReference, UniqueSnapshot, layout,
};
use millpond_segment::{Decompressor, Limits, blocks, verify};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use ulid::Ulid;

/// A stream's messages in a segment.
type Content = Vec<(String, Vec<Stored>)>;

#[derive(Default)]
struct Shard {
    manifest: Option<Manifest>,
    /// The complete history of the log: by sequence, the segment and its content.
    log: BTreeMap<u64, (Ulid, Arc<Content>)>,
    /// The segments that the manifest refers to.
    live: BTreeSet<Ulid>,
    /// Consumers by name.
    readers: BTreeMap<String, Reader>,
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
    /// True if retention drops unread entries.
    retention: bool,
    /// True if operators remove consumers.
    operators: bool,
    state: Mutex<State>,
}

/// The object that a key names.
enum Key<'a> {
    Manifest(u32),
    Segment(u32, Ulid),
    Page(u32, Ulid),
    Cursor(u32, &'a str),
    Letter(&'a str),
    Unique(u32, &'a str, &'a str, UniqueReference),
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
        ["shards", _, "consumers", _, "unique", _] => {
            let found = layout::parse_unique(shard(), key);
            found.map_or(Key::Other, |(consumer, stream, next, id)| {
                Key::Unique(shard(), consumer, stream, UniqueReference { next, id })
            })
        }
        _ => Key::Other,
    }
}

/// Says what is wrong with a row that the table lacks or has.
fn wrong_row(row: &str, repeated: &BTreeSet<u32>) -> String {
    format!("{row} is not in the table, or is there although it is one of the repetitions {repeated:?}")
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
                messages.push(Stored {
                    text: String::from_utf8_lossy(message.payload).into_owned(),
                    received_at_us: message.received_at_us,
                });
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
            operators: scenario.operators,
            state: Mutex::default(),
        })
    }

    /// Checks a written object.
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
                        table.buried(&Row {
                            shard: letter.shard,
                            stream: letter.stream,
                            id: RowId {
                                sequence: letter.sequence,
                                record: letter.record,
                            },
                            text: String::from_utf8_lossy(&letter.payload).into_owned(),
                        });
                    }
                })
                .map_err(|error| (Oracle::Log, error.to_string())),
            Key::Unique(shard, consumer, _, name) => UniqueSnapshot::decode(bytes)
                .map(|snapshot| {
                    self.record.count(Event::KeysStored);
                    let shard = state.shards.entry(shard).or_default();
                    let reader = shard.readers.entry(consumer.to_owned()).or_default();
                    let earlier = snapshot.earlier.iter().map(|earlier| earlier.reference);
                    reader.snapshots.insert(name, earlier.collect());
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

    /// Checks a deletion.
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
            Key::Cursor(shard, consumer) if actor == OPERATOR => {
                let shard = state.shards.entry(shard).or_default();
                shard.readers.entry(consumer.to_owned()).or_default().deleted();
                None
            }
            Key::Unique(shard, consumer, stream, name) => {
                self.record.count(Event::KeysDeleted);
                let shard = state.shards.entry(shard).or_default();
                let reader = shard.readers.entry(consumer.to_owned()).or_default();
                reader
                    .needs_keys(stream, name)
                    .then_some("the cursor names it, or a later one may")
            }
            // No promise depends on a list of processes: whoever is on it writes it anew.
            Key::Other if layout::consumer_of_members(key).is_some() => None,
            Key::Manifest(_) | Key::Cursor(..) | Key::Letter(_) | Key::Other => Some("nobody deletes that"),
        };
        drop(state);
        self.record.event(actor, format_args!("{key} is gone"));
        if let Some(wrong) = wrong {
            let detail = format!("{actor} deleted {key}: {wrong}");
            self.record.violated(Oracle::Needed, detail);
        }
    }

    /// Returns whether a consumer has read every log to its end, and its positions.
    pub(crate) fn is_read(&self, consumer: &str) -> (bool, String) {
        use fmt::Write;
        let state = self.state();
        let (mut all, mut missing) = (true, String::new());
        for (number, shard) in &state.shards {
            let Some(manifest) = &shard.manifest else { continue };
            let reader = shard.readers.get(consumer);
            let cursor = reader.and_then(|reader| reader.cursor.as_ref());
            let living = cursor.filter(|cursor| !cursor.is_removed());
            all &= living.is_some();
            for stream in &manifest.streams {
                let next = living.map_or(0, |cursor| cursor.next(&stream.name));
                let end = manifest.next_sequence;
                if next != end {
                    all = false;
                    let _ = write!(
                        missing,
                        "{} in shard {number:04} at {next} of {end}; ",
                        stream.name
                    );
                }
            }
        }
        (all, missing)
    }

    /// Returns true if a consumer may find this segment trimmed: it missed the parts, or somebody moved its cursor past them.
    pub(crate) fn may_be_trimmed(&self, consumer: &str, key: &str, sequence: u64) -> bool {
        let state = self.state();
        let mut shards = state.shards.iter();
        let shard = shards.find(|(number, _)| key.starts_with(&layout::segments(**number)));
        let Some((_, Shard { log, readers, .. })) = shard else {
            return false;
        };
        let (Some((_, content)), Some(reader)) = (log.get(&sequence), readers.get(consumer)) else {
            return false;
        };
        content.iter().all(|(stream, _)| {
            !reader.needs(stream, sequence)
                || reader.missed.contains(&(stream.clone(), sequence))
                || sequence < reader.gone_below
        })
    }

    /// Names the first shard whose cursor the consumer has not released cleanly.
    pub(crate) fn unreleased(&self, consumer: &str) -> Option<String> {
        let state = self.state();
        let mut cursors = state.shards.iter().filter_map(|(number, shard)| {
            let cursor = shard.readers.get(consumer)?.cursor.as_ref()?;
            Some((number, cursor))
        });
        let (number, cursor) = cursors.find(|(_, cursor)| cursor.ownership != Ownership::Released)?;
        let (ownership, streams) = (&cursor.ownership, &cursor.streams);
        Some(format!("shard {number:04} is {ownership:?}: {streams:?}"))
    }

    /// Names the first row that a consumer has acknowledged and its table lacks.
    pub(crate) fn lost(&self) -> Option<String> {
        let state = self.state();
        for (number, shard) in &state.shards {
            for (consumer, reader) in &shard.readers {
                let Some(table) = self.tables.get(consumer) else {
                    continue;
                };
                for (stream, sequence) in &reader.acknowledged {
                    let none = BTreeSet::new();
                    let repeated = reader.repeated.get(&(stream.clone(), *sequence)).unwrap_or(&none);
                    if let Some(row) = table.misses(*number, stream, *sequence, repeated) {
                        let wrong = wrong_row(&row, repeated);
                        return Some(format!("{wrong} of {stream}, in the table of {consumer}"));
                    }
                }
            }
        }
        None
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
                for (consumer, reader) in &shard.readers {
                    if reader.needs(stream, *sequence) {
                        needed.push((consumer.clone(), (stream.clone(), *sequence)));
                    }
                }
            }
        }
        shard.manifest = Some(next);
        let early = |(consumer, (_, sequence)): &&(String, (String, u64))| {
            let reader = shard.readers.get(consumer);
            !self.retention && reader.is_none_or(|reader| *sequence >= reader.stale_below)
        };
        if let Some((consumer, (stream, sequence))) = needed.iter().find(early) {
            let detail = format!("{consumer} still needs {sequence} of {stream}, which was trimmed");
            return Err((Oracle::Needed, detail));
        }
        self.record
            .add(Event::SequencesDroppedUnread, needed.len() as u64);
        for (consumer, missed) in needed {
            shard.readers.entry(consumer).or_default().missed.insert(missed);
        }
        let consumers: Vec<String> = shard.readers.keys().cloned().collect();
        consumers.iter().for_each(|consumer| shard.miss_cut(consumer));
        Ok(())
    }

    /// Checks an entry of the log: already known, or the next.
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
                self.ledger.committed(&message.text, stream, position);
            }
            self.ledger.part(stream, position, messages);
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
                "cursor {number:04} {consumer} v{} epoch {} opening {:x} generation {}{} from {} {:?} {:?}",
                next.stamp.version,
                next.epoch,
                next.opening,
                next.generation,
                if next.unsettled { " unsettled" } else { "" },
                next.start,
                next.ownership,
                next.streams
            ),
        );
        let log = shard.manifest.as_ref();
        let retained = log.map_or(0..0, |log| log.first_sequence..log.next_sequence);
        let reader = shard.readers.entry(consumer.to_owned()).or_default();
        let moved = reader
            .replaced(&self.record, actor, &next, retained)
            .map_err(wrong)?;
        shard.miss_cut(consumer);
        if number == 0 {
            let cursors = shard.readers.values().filter_map(|reader| reader.cursor.clone());
            let cursors: Vec<Cursor> = cursors.collect();
            let shares = |cursor: &Cursor| cursor.tables.shared;
            let mut pairs = SinkTables::pairs(&cursors);
            if let Some((one, other, _)) = pairs.find(|(one, other, _)| !shares(one) && !shares(other)) {
                let (one, other) = (&one.consumer, &other.consumer);
                return Err((Oracle::Tables, format!("{one} and {other} both have one table")));
            }
        }
        let registered = state.shards.get(&0).and_then(|first| first.readers.get(consumer));
        let has_tables = registered
            .and_then(|reader| reader.cursor.as_ref())
            .is_some_and(|cursor| !cursor.tables.tables.is_empty());
        // An operator who removes the consumer begins with its register.
        if matches!(next.ownership, Ownership::Held { .. }) && !has_tables && !self.operators {
            return Err((
                Oracle::Tables,
                "its owner has not asked for its tables".to_owned(),
            ));
        }
        let shard = state.shards.entry(number).or_default();
        let Some(table) = self.tables.get(consumer) else {
            return Ok(());
        };
        table.opened(number, next.opening);
        let Shard { readers, log, .. } = shard;
        let reader = readers.entry(consumer.to_owned()).or_default();
        for (stream, range) in moved.into_iter().filter(|(_, range)| !range.is_empty()) {
            if let Some((setting, of)) = next.deduplicates(&stream) {
                let parts = self
                    .ledger
                    .parts(number, &stream, of.since.min(range.end)..range.end);
                let repeated = repetitions(&parts, setting.window_ms, of.medians_from);
                let count: usize = repeated.values().map(BTreeSet::len).sum();
                if of.duplicates != count as u64 {
                    let counted = of.duplicates;
                    return Err(wrong(format!(
                        "{count} rows of {stream} are repeated, and it counts {counted}"
                    )));
                }
                let newly = repeated
                    .into_iter()
                    .filter(|(sequence, _)| *sequence >= range.start);
                for (sequence, records) in newly {
                    self.record.add(Event::RowsRepeated, records.len() as u64);
                    reader.repeated.insert((stream.clone(), sequence), records);
                }
            }
            for (sequence, (_, content)) in log.range(range.clone()) {
                let part = (stream.clone(), *sequence);
                let there = content.iter().any(|(of, _)| *of == stream);
                let gone = *sequence < reader.gone_below;
                if !there || gone || reader.missed.contains(&part) || next.is_skipped(&stream, *sequence) {
                    continue;
                }
                let none = BTreeSet::new();
                let repeated = reader.repeated.get(&part).unwrap_or(&none);
                if let Some(row) = table.misses(number, &stream, *sequence, repeated) {
                    let (to, row) = (range.end, wrong_row(&row, repeated));
                    return Err(wrong(format!("{stream} is acknowledged up to {to}, and {row}")));
                }
                reader.acknowledged.insert(part);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// Returns true if a segment or page with this name could still be committed.
    fn may_join(&self, name: Ulid) -> bool {
        let floor_ms = self
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.orphan_floor_ms);
        name.timestamp_ms() >= floor_ms
    }

    /// If retention cuts a planned batch, the whole batch is lost.
    fn miss_cut(&mut self, consumer: &str) {
        let first = self
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.first_sequence);
        let Some(Reader {
            cursor: Some(cursor),
            missed,
            ..
        }) = self.readers.get_mut(consumer)
        else {
            return;
        };
        for (stream, position) in &cursor.streams {
            for plan in position.planned.iter().filter(|plan| plan.low < first) {
                missed.extend((plan.low..=plan.high).map(|sequence| (stream.clone(), sequence)));
            }
        }
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}
