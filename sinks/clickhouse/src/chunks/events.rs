//! Cuts messages of JSON events into chunks for their table.

use super::opened::{OpenPart, OpenParts, Row, each_row, look};
use super::{Columns, Cutter, Event, Found, RECORDS_MAX, messages, row_id};
use crate::events::{KeyPaths, Plan, Values, own, rows};
use crate::identities::NumberedRecord;
use crate::native::{self, Column as _, Dictionary, Numbers};
use crate::schema::Table;
use crate::transform::{Made, Runs, Transform};
use millpond_consumer::{
    Batch, Chunk, Cut, KeyHasher, Part, PartKeys, PartTimes, Received, Record, RowId, RowKey, SinkError,
};
use millpond_segment::Decompressor;
use prometheus_client::metrics::counter::Counter;

/// The rows of the next chunk.
struct Waiting<'p> {
    plan: &'p Plan,
    table: Table,
    columns: Vec<Values>,
    received: Vec<Received>,
    program: Option<Runs<'p>>,
    /// The events since the last chunk, with or without a row, and their bytes.
    events: usize,
    event_bytes: usize,
    /// Counts the events that the program drops.
    filtered: Counter,
}

/// Cuts a batch of a stream of events.
pub(super) fn cut(
    batch: &Batch,
    event: Event<'_>,
    decompressor: &mut Decompressor,
    cutter: &mut Cutter,
) -> Result<(), SinkError> {
    let Event {
        table,
        plan,
        filtered,
        opened,
    } = event;
    let opened: Option<OpenParts> = opened.into_inner();
    let mut waiting = Waiting {
        plan,
        table,
        columns: plan.empty(),
        received: Vec::new(),
        program: plan.transform.as_ref().map(Transform::runs),
        events: 0,
        event_bytes: 0,
        filtered,
    };
    let mut opened = opened.into_iter().flatten();
    for part in &batch.parts {
        cutter.sequence = part.sequence;
        cutter.record = part.first_record.into();
        let mut full = None;
        let open = opened.next().flatten();
        let more = each_row(part, open, decompressor, &mut |found, row| {
            if cutter.record >= RECORDS_MAX {
                full = Some(too_many(part));
                return false;
            }
            if part.dropped.contains(cutter.record) {
                cutter.next_id();
                return true;
            }
            waiting.add(row, found, cutter)
        })?;
        if let Some(error) = full {
            return Err(error);
        }
        if !more {
            return Ok(());
        }
    }
    if !waiting.received.is_empty() {
        waiting.emit(cutter);
    }
    Ok(())
}

fn too_many(part: &Part) -> SinkError {
    SinkError::Refused(format!(
        "segment {} (sequence {}): a segment has {RECORDS_MAX} records of a stream at most, and this one has more",
        part.segment, part.sequence
    ))
}

impl Waiting<'_> {
    /// Adds a row, or passes on one that does not fit. Returns false when no more are wanted.
    fn add(&mut self, row: Row<'_>, found: &Found<'_>, cutter: &mut Cutter) -> bool {
        let at_us = found.message.received_at_us;
        let id = cutter.next_id();
        self.events += 1;
        self.event_bytes += row.as_ref().map_or_else(|(rest, _)| rest.len(), |row| row.len());
        let unfit = match row {
            Ok(event) => match self.push(event, at_us) {
                Ok(true) => {
                    self.received.push(Received {
                        at_us,
                        rows: 1,
                        first: id,
                    });
                    None
                }
                Ok(false) => None,
                Err(reason) => Some((event.as_bytes(), reason)),
            },
            Err((rest, error)) => Some((rest, format!("malformed JSON: {error}"))),
        };
        if let Some((payload, reason)) = unfit {
            let more = (cutter.emit)(Cut::Unreadable {
                id,
                message: found.record(payload.to_vec()),
                reason: found.of_row(&reason),
            });
            if !more {
                return false;
            }
        }
        !self.is_full(cutter) || self.emit(cutter)
    }

    /// Adds the row of an event, or none if it has none. Returns true if it has one.
    fn push(&mut self, event: &str, at_us: i64) -> Result<bool, String> {
        let row = match &mut self.program {
            None => event,
            Some(program) => match program.run(event, at_us) {
                Made::Row(row) => row,
                Made::Dropped => {
                    self.filtered.inc();
                    return Ok(false);
                }
                Made::Failed(reason) => return Err(reason),
            },
        };
        self.plan.push(row, at_us, &mut self.columns)?;
        Ok(true)
    }

    /// A program must not move the rows of one chunk to another: its chunks end after a number of events, or of their bytes. Rows
    /// that are larger than their events end a chunk sooner, since memory is reserved for chunks of this size.
    fn is_full(&self, cutter: &Cutter) -> bool {
        let bytes: usize = self.columns.iter().map(Values::raw_len).sum();
        match &self.program {
            None => self.received.len() >= cutter.rows_max || bytes >= cutter.bytes_max,
            Some(_) => self.events >= cutter.rows_max || self.event_bytes.max(bytes) >= cutter.bytes_max,
        }
    }

    /// Emits the rows as a chunk. A chunk without rows has a number all the same. Returns false when no more are wanted.
    fn emit(&mut self, cutter: &mut Cutter) -> bool {
        (self.events, self.event_bytes) = (0, 0);
        if self.received.is_empty() {
            cutter.next += 1;
            return true;
        }
        let chunk = self.encode(cutter);
        self.columns = self.plan.empty();
        self.received.clear();
        (cutter.emit)(Cut::Chunk(chunk))
    }

    /// The sink's own columns come first: recovery finds the source without the types of events.
    fn encode(&self, cutter: &mut Cutter) -> Chunk {
        let index = cutter.next;
        cutter.next += 1;
        let count = self.received.len();
        let frames = &mut *cutter.frames;
        let heads: Vec<(&str, String)> = self.plan.heads().collect();
        let received = self.received.iter();
        // Rows without identities must stay in the order of their places.
        let order = match cutter.columns {
            Columns::All => cutter.sorting.order(self.table, count, |column| {
                let received_at_us = received.clone().map(|row| row.at_us);
                self.plan.ranks(column, &self.columns, received_at_us)
            }),
            Columns::None => None,
        };
        let order = order.as_deref();
        native::write_block_head(own(cutter.columns).len() + heads.len(), count, frames);
        if let [received_at, inserted_at, source, sequence, record] = own(cutter.columns) {
            native::write_column_head(received_at.name, received_at.kind, frames);
            Numbers::<i64>(received.clone().map(|row| row.at_us).collect()).write_in(order, frames);
            native::write_column_head(inserted_at.name, inserted_at.kind, frames);
            native::write_constant(&cutter.now_ms.to_le_bytes(), count, frames);
            native::write_column_head(source.name, source.kind, frames);
            let mut sources = Dictionary::default();
            let number = sources.number(cutter.source.as_bytes());
            (0..count).for_each(|_| sources.push_number(number));
            sources.write(frames);
            native::write_column_head(sequence.name, sequence.kind, frames);
            Numbers::<u64>(received.clone().map(|row| row.first.sequence).collect()).write_in(order, frames);
            native::write_column_head(record.name, record.kind, frames);
            Numbers::<u32>(received.map(|row| row.first.record).collect()).write_in(order, frames);
        }
        let mut lengths = self.columns.iter().map(Values::rows);
        debug_assert!(
            lengths.all(|rows| rows == count),
            "the columns have different lengths"
        );
        for ((name, kind), values) in heads.into_iter().zip(&self.columns) {
            native::write_column_head(name, &kind, frames);
            values.write_in(order, frames);
        }
        let (body, raw_bytes) = frames.finish();
        Chunk {
            index,
            table: self.table.number(),
            rows: count as u64,
            raw_bytes,
            body,
            received: Received::joined(self.received.iter().copied()),
        }
    }
}

/// Reads the keys of the rows of each part, and keeps the rows of those for which `room` has some.
pub(super) fn keys(
    batch: &Batch,
    paths: &KeyPaths,
    room: fn(&Part) -> Option<OpenPart>,
    decompressor: &mut Decompressor,
) -> Result<(Vec<PartKeys>, OpenParts), SinkError> {
    let (mut hasher, mut times_us) = (KeyHasher::default(), Vec::new());
    let parts = batch.parts.iter().map(|part| {
        let mut next = u64::from(part.first_record);
        let mut full = None;
        let mut found_keys = PartKeys {
            sequence: part.sequence,
            // A doubling would take twice the memory. A row takes two bytes at least, whatever the log says.
            keys: Vec::with_capacity(usize::try_from(part.records.min(part.raw_len / 2)).unwrap_or(0)),
            ..PartKeys::default()
        };
        let open = look(
            part,
            room(part),
            decompressor,
            &mut times_us,
            &mut |found, row| {
                if next >= RECORDS_MAX {
                    full = Some(too_many(part));
                    return false;
                }
                if let Some(key) = row.ok().and_then(|row| paths.key(row, &mut hasher)) {
                    let record = row_id(part.sequence, next).record;
                    let at_us = found.message.received_at_us;
                    found_keys.keys.push(RowKey { record, at_us, key });
                }
                next += 1;
                true
            },
        )?;
        found_keys.received = PartTimes::of(&mut times_us);
        full.map_or(Ok((found_keys, open)), Err)
    });
    parts.collect()
}

/// Returns the rows with these numbers, each as a separate message, in the order of `ids`.
pub(super) fn records(
    batch: &Batch,
    ids: &[RowId],
    decompressor: &mut Decompressor,
) -> Result<Vec<Option<Record>>, SinkError> {
    let mut records: Vec<Option<Record>> = vec![None; ids.len()];
    for part in &batch.parts {
        let of_part = ids
            .iter()
            .zip(0usize..)
            .filter(|(id, _)| id.sequence == part.sequence);
        let wanted: std::collections::BTreeMap<u64, usize> =
            of_part.map(|(id, asked)| (id.record.into(), asked)).collect();
        let Some((&last, _)) = wanted.last_key_value() else {
            continue;
        };
        let mut next = u64::from(part.first_record);
        messages(part, decompressor, &mut |found| {
            rows(found.message.payload, |row| {
                if let Some(&asked) = wanted.get(&next) {
                    let payload = row.map_or_else(|(rest, _)| rest.to_vec(), |row| row.as_bytes().to_vec());
                    records[asked] = Some(found.record(payload));
                }
                next += 1;
                next <= last
            })
        })?;
    }
    Ok(records)
}

/// Lists the rows of a batch with their numbers. A row that does not fit its table counts as not readable, and so does an event
/// that the program drops.
pub(super) fn numbering(
    batch: &Batch,
    plan: &Plan,
    decompressor: &mut Decompressor,
) -> Result<Vec<NumberedRecord>, SinkError> {
    let mut numbers = Vec::new();
    let mut columns = plan.empty();
    let mut program = plan.transform.as_ref().map(Transform::runs);
    for part in &batch.parts {
        let mut next = u64::from(part.first_record);
        let mut full = None;
        messages(part, decompressor, &mut |found| {
            rows(found.message.payload, |row| {
                if next >= RECORDS_MAX {
                    full = Some(too_many(part));
                    return false;
                }
                let at_us = found.message.received_at_us;
                let made = match (&row, &mut program) {
                    (Ok(event), Some(program)) => program.run(event, at_us),
                    (Ok(event), None) => Made::Row(event),
                    (Err(_), _) => Made::Dropped,
                };
                let fits = match made {
                    Made::Row(row) => plan.push(row, at_us, &mut columns).is_ok(),
                    Made::Dropped | Made::Failed(_) => false,
                };
                numbers.push(NumberedRecord {
                    id: row_id(part.sequence, next),
                    readable: fits,
                });
                columns.iter_mut().for_each(|values| values.truncate(0));
                next += 1;
                true
            })
        })?;
        if let Some(error) = full {
            return Err(error);
        }
    }
    Ok(numbers)
}
