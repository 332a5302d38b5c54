//! Cuts a batch's messages into chunks. Boundaries and rows depend only on the batch and the policy. Of the bytes, only
//! `_millpond_inserted_at` depends on the time.

mod events;
mod opened;
mod signals;

use crate::config::{Columns, Compression};
use crate::events::{KeyPaths, Plan};
use crate::frame::Frames;
use crate::identities::NumberedRecord;
use crate::native::{self, Column as _, Dictionary};
use crate::rows::{Origin, Rows, TableColumns};
use crate::schema::{MILLPOND, Table};
use crate::sorting::Sorting;
use millpond_consumer::{
    Batch, BatchingPolicy, Chunk, Cut, Opened, Part, PartKeys, Received, Record, RowId, SinkError,
};
use millpond_otlp::{Malformed, Signal, record_alone, validate};
use millpond_segment::{Decompressor, Encoding, Limits, Message, RawBlock, Spare};
use opened::{OpenPart, OpenParts};
use prometheus_client::metrics::counter::Counter;
use signals::{Logs, Metrics, Traces};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A server splits an insert at about 1,048,449 rows or 256 MiB in memory, and the pieces of a split insert have
/// several identities under one token. Chunks stay below both limits, whatever the policy.
const ROWS_MAX: u64 = 1_000_000;
const BYTES_MAX: u64 = 128 << 20;

/// Buffers that a writer reuses between batches.
pub(crate) struct Workspace {
    decompressor: Decompressor,
    frames: Frames,
    sorting: Arc<Sorting>,
    logs: Logs,
    traces: Traces,
    metrics: Metrics,
}

impl Workspace {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            decompressor: Decompressor::new()?,
            frames: Frames::default(),
            sorting: Arc::default(),
            logs: Logs::default(),
            traces: Traces::default(),
            metrics: Metrics::default(),
        })
    }

    /// The same, whose blocks have their buffers from here.
    pub(crate) fn sharing(self, spare: Spare) -> Self {
        let decompressor = self.decompressor.sharing(spare);
        Self { decompressor, ..self }
    }

    /// The same, whose chunks are compressed in this way.
    pub(crate) fn compressing(self, compression: Compression) -> std::io::Result<Self> {
        let frames = Frames::new(compression)?;
        Ok(Self { frames, ..self })
    }

    /// The same, whose chunks have their rows in the order of their tables.
    pub(crate) fn sorting(self, sorting: Arc<Sorting>) -> Self {
        Self { sorting, ..self }
    }
}

/// The rows of a signal that wait to become chunks: for each of its tables, those of the next chunk.
trait Waiting {
    /// Adds the rows of a request, or none if it is malformed. Returns false when no more are wanted.
    fn add(&mut self, payload: &[u8], received_at_us: i64, cutter: &mut Cutter) -> Result<bool, Malformed>;
    /// Emits the remaining rows.
    fn finish(&mut self, cutter: &mut Cutter);
    fn clear(&mut self);
}

/// The way of a stream of events to its table.
pub(crate) struct Event<'p> {
    pub(crate) table: Table,
    pub(crate) plan: &'p Plan,
    /// Counts the events that the plan's program drops.
    pub(crate) filtered: Counter,
    /// The rows that [`open`] has kept.
    pub(crate) opened: Opened,
}

/// Cuts `batch` and passes each chunk to `emit` until that returns false. A chunk ends with the row that fills it, so
/// it may exceed the policy's bytes by less than that row.
pub(crate) fn cut(
    batch: &Batch,
    policy: &BatchingPolicy,
    columns: Columns,
    event: Option<Event<'_>>,
    now_ms: i64,
    workspace: &mut Workspace,
    emit: &mut dyn FnMut(Cut) -> bool,
) -> Result<(), SinkError> {
    let Workspace {
        decompressor,
        frames,
        sorting,
        logs,
        traces,
        metrics,
    } = workspace;
    let mut cutter = Cutter {
        frames,
        sorting,
        rows_max: usize::try_from(policy.chunk_rows.clamp(1, ROWS_MAX)).unwrap_or(usize::MAX),
        bytes_max: usize::try_from(policy.chunk_bytes.min(BYTES_MAX)).unwrap_or(usize::MAX),
        partitions_max: policy.max_partitions_per_chunk.max(1) as usize,
        columns,
        now_ms,
        source: batch.id.source(),
        next: 0,
        sequence: 0,
        record: 0,
        emit,
    };
    if let Some(event) = event {
        return events::cut(batch, event, decompressor, &mut cutter);
    }
    match Signal::of_stream(&batch.id.stream) {
        Some(Signal::Logs) => cut_all(batch, logs, decompressor, &mut cutter),
        Some(Signal::Traces) => cut_all(batch, traces, decompressor, &mut cutter),
        Some(Signal::Metrics) => cut_all(batch, metrics, decompressor, &mut cutter),
        None => Err(no_table(batch)),
    }
}

/// Reads the keys of a batch of events.
pub(crate) fn keys(
    batch: &Batch,
    paths: &[String],
    workspace: &mut Workspace,
) -> Result<Vec<PartKeys>, SinkError> {
    Ok(keys_keeping(batch, paths, |_| None, workspace)?.0)
}

/// The same, and keeps what the batch's chunks need.
pub(crate) fn open(
    batch: &Batch,
    paths: &[String],
    workspace: &mut Workspace,
) -> Result<(Vec<PartKeys>, Opened), SinkError> {
    let (keys, parts) = keys_keeping(batch, paths, OpenPart::of, workspace)?;
    Ok((keys, Opened::new(parts)))
}

fn keys_keeping(
    batch: &Batch,
    paths: &[String],
    room: fn(&Part) -> Option<OpenPart>,
    workspace: &mut Workspace,
) -> Result<(Vec<PartKeys>, OpenParts), SinkError> {
    if batch.encoding == Encoding::Ndjson {
        return events::keys(batch, &KeyPaths::new(paths), room, &mut workspace.decompressor);
    }
    Err(SinkError::Refused(format!(
        "rows of stream {} ({}) have no keys: --unique is for streams of events",
        batch.id.stream, batch.encoding
    )))
}

fn no_table(batch: &Batch) -> SinkError {
    SinkError::Refused(format!("stream {} has no table", batch.id.stream))
}

fn cut_all<W: Waiting>(
    batch: &Batch,
    waiting: &mut W,
    decompressor: &mut Decompressor,
    cutter: &mut Cutter,
) -> Result<(), SinkError> {
    waiting.clear();
    let signal = Signal::of_stream(&batch.id.stream).ok_or_else(|| no_table(batch))?;
    for part in &batch.parts {
        cutter.sequence = part.sequence;
        cutter.record = part.first_record.into();
        let mut full = None;
        let read = messages(part, decompressor, &mut |found| {
            let Found { message, .. } = &found;
            if let Err(error) = check_numbers(signal, message.payload, cutter.record, part) {
                full = Some(error);
                return false;
            }
            let added = waiting.add(message.payload, message.received_at_us, cutter);
            added.unwrap_or_else(|error| {
                let id = cutter.next_id();
                (cutter.emit)(Cut::Unreadable {
                    id,
                    message: found.record(message.payload.to_vec()),
                    reason: found.fault(&error),
                })
            })
        });
        let more = read?;
        if let Some(error) = full {
            return Err(error);
        }
        if !more {
            return Ok(());
        }
    }
    waiting.finish(cutter);
    Ok(())
}

/// The limit on record numbers: a part cannot use this one.
const RECORDS_MAX: u64 = u32::MAX as u64;

/// Checks that a message whose numbers begin at `next` stays below the limit.
fn check_numbers(signal: Signal, payload: &[u8], next: u64, part: &Part) -> Result<(), SinkError> {
    // A record takes at least one byte, so only messages close to the limit are parsed twice.
    if next + (payload.len() as u64).max(1) <= RECORDS_MAX
        || next + numbers_of(signal, payload) <= RECORDS_MAX
    {
        return Ok(());
    }
    Err(SinkError::Refused(format!(
        "segment {} (sequence {}): a segment has {RECORDS_MAX} records of a stream at most, and this one has more",
        part.segment, part.sequence
    )))
}

/// Counts the numbers that a message takes: one for each record, or one if it is unreadable.
fn numbers_of(signal: Signal, payload: &[u8]) -> u64 {
    validate(signal, payload).map_or(1, |counts| counts.records)
}

/// Returns the records with these numbers, each in a separate message, and unreadable messages unchanged.
pub(crate) fn records(
    batch: &Batch,
    ids: &[RowId],
    workspace: &mut Workspace,
) -> Result<Vec<Record>, SinkError> {
    if batch.encoding == Encoding::Ndjson {
        let records = events::records(batch, ids, &mut workspace.decompressor)?;
        return complete(records, ids);
    }
    let signal = Signal::of_stream(&batch.id.stream).ok_or_else(|| no_table(batch))?;
    // The search follows the numbers; the result follows the caller's order.
    let mut wanted: Vec<(RowId, usize)> = ids.iter().copied().zip(0..).collect();
    wanted.sort_unstable();
    let mut records: Vec<Option<Record>> = vec![None; ids.len()];
    for part in &batch.parts {
        let of_part = wanted.iter().filter(|(id, _)| id.sequence == part.sequence);
        let mut of_part = of_part
            .map(|(id, asked)| (u64::from(id.record), *asked))
            .peekable();
        let mut first = u64::from(part.first_record);
        messages(part, &mut workspace.decompressor, &mut |found| {
            let payload = found.message.payload;
            let counts = validate(signal, payload);
            let end = first + counts.as_ref().map_or(1, |counts| counts.records);
            while let Some((number, asked)) = of_part.next_if(|(number, _)| *number < end) {
                let alone = match (&counts, number.checked_sub(first)) {
                    (Ok(_), Some(place)) => record_alone(signal, payload, place),
                    (Err(_), Some(_)) => Some(payload.to_vec()),
                    (_, None) => None,
                };
                records[asked] = alone.map(|payload| found.record(payload));
            }
            first = end;
            of_part.peek().is_some()
        })?;
    }
    complete(records, ids)
}

fn complete(records: Vec<Option<Record>>, ids: &[RowId]) -> Result<Vec<Record>, SinkError> {
    let lacking = records.iter().zip(ids).find(|(record, _)| record.is_none());
    if let Some((_, RowId { sequence, record })) = lacking {
        return Err(SinkError::Refused(format!(
            "sequence {sequence} has no record number {record}"
        )));
    }
    Ok(records.into_iter().flatten().collect())
}

/// Lists the records of a batch with their numbers, in order.
pub(crate) fn numbering(
    batch: &Batch,
    event: Option<(Table, &Plan)>,
    workspace: &mut Workspace,
) -> Result<Vec<NumberedRecord>, SinkError> {
    if let Some((_, plan)) = event {
        return events::numbering(batch, plan, &mut workspace.decompressor);
    }
    let signal = Signal::of_stream(&batch.id.stream).ok_or_else(|| no_table(batch))?;
    let mut numbers = Vec::new();
    for part in &batch.parts {
        let mut next = u64::from(part.first_record);
        let mut full = None;
        messages(part, &mut workspace.decompressor, &mut |found| {
            let payload = found.message.payload;
            if let Err(error) = check_numbers(signal, payload, next, part) {
                full = Some(error);
                return false;
            }
            let readable = validate(signal, payload);
            let count = readable.as_ref().map_or(1, |counts| counts.records);
            numbers.extend((next..next + count).map(|number| NumberedRecord {
                id: row_id(part.sequence, number),
                readable: readable.is_ok(),
            }));
            next += count;
            true
        })?;
        if let Some(error) = full {
            return Err(error);
        }
    }
    Ok(numbers)
}

/// `record` has passed [`check_numbers`].
fn row_id(sequence: u64, record: u64) -> RowId {
    let record = u32::try_from(record).expect("a part's numbers are checked before they are given");
    RowId { sequence, record }
}

/// A message of a batch and its position.
struct Found<'p> {
    message: Message<'p>,
    /// Its index in its block.
    index: usize,
    /// The offset of the block in its segment.
    block: u64,
    part: &'p Part,
}

impl Found<'_> {
    /// The message, or a record from it, with this payload.
    fn record(&self, payload: Vec<u8>) -> Record {
        Record {
            received_at_us: self.message.received_at_us,
            payload,
        }
    }

    fn fault(&self, error: &Malformed) -> String {
        self.of_row(&error.to_string())
    }

    /// A reason with the message's place.
    fn of_row(&self, error: &str) -> String {
        let Found {
            index, block, part, ..
        } = self;
        let segment = part.segment;
        format!("message {index} of the block at byte {block} of segment {segment}: {error}")
    }
}

/// Passes each message of a part to `take` until that returns false. An error means that the part is damaged.
fn messages(
    part: &Part,
    decompressor: &mut Decompressor,
    take: &mut dyn FnMut(Found<'_>) -> bool,
) -> Result<bool, SinkError> {
    for block in millpond_segment::blocks(&part.data, part.offset, &Limits::default()) {
        let block = block.map_err(|error| damaged(part, &error))?;
        let raw = block
            .decode(decompressor)
            .map_err(|error| damaged(part, &error))?;
        if !messages_of(raw, part, take)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Passes on the messages of a block. Returns false if `take` wants no more.
fn messages_of(
    raw: RawBlock<'_>,
    part: &Part,
    take: &mut dyn FnMut(Found<'_>) -> bool,
) -> Result<bool, SinkError> {
    for (index, message) in raw.messages().enumerate() {
        let found = Found {
            message: message.map_err(|error| damaged(part, &error))?,
            index,
            block: raw.offset(),
            part,
        };
        if !take(found) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn damaged(part: &Part, error: &millpond_segment::Error) -> SinkError {
    SinkError::Refused(format!(
        "segment {} (sequence {}): {error}",
        part.segment, part.sequence
    ))
}

/// Decides when rows fill a chunk, and encodes the chunk.
struct Cutter<'e> {
    frames: &'e mut Frames,
    sorting: &'e Sorting,
    rows_max: usize,
    bytes_max: usize,
    partitions_max: usize,
    columns: Columns,
    now_ms: i64,
    source: String,
    /// The next chunk's index in the batch.
    next: u32,
    /// The sequence of the current part.
    sequence: u64,
    /// The number of the part's next record.
    record: u64,
    emit: &'e mut dyn FnMut(Cut) -> bool,
}

impl Cutter<'_> {
    /// Assigns the next number of the part, to a row or to an unreadable message.
    fn next_id(&mut self) -> RowId {
        let record = self.record;
        self.record += 1;
        row_id(self.sequence, record)
    }

    fn origin(&mut self, received_at_us: i64) -> Origin {
        Origin {
            id: self.next_id(),
            received_at_us,
        }
    }

    /// A chunk has at least one row, even one that exceeds the limits.
    fn is_full<C: TableColumns>(&self, rows: &Rows<C>) -> bool {
        let count = rows.len();
        count >= self.rows_max || (count > 0 && rows.raw_len() >= self.bytes_max)
    }

    /// Emits the current rows: as one chunk if they fall into few enough partitions, otherwise as several chunks with
    /// some of the partitions each. Returns false when no more are wanted.
    fn emit_all<C: TableColumns>(&mut self, rows: &mut Rows<C>) -> bool {
        let mut on_days = rows.columns.days();
        let first = on_days.next();
        let one_day = on_days.all(|day| Some(day) == first);
        drop(on_days);
        let mut days: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        if !one_day {
            for (row, day) in rows.columns.days().enumerate() {
                days.entry(day).or_default().push(row);
            }
        }
        let more = if days.len() <= self.partitions_max {
            let chunk = self.encode(rows);
            (self.emit)(Cut::Chunk(chunk))
        } else {
            let days: Vec<Vec<usize>> = days.into_values().collect();
            days.chunks(self.partitions_max).all(|days| {
                let mut some = days.concat();
                some.sort_unstable();
                let chunk = self.encode(&rows.some(&some));
                (self.emit)(Cut::Chunk(chunk))
            })
        };
        rows.clear();
        more
    }

    /// Encodes the next chunk.
    fn encode<C: TableColumns>(&mut self, rows: &Rows<C>) -> Chunk {
        let index = self.next;
        // A batch has under 2^32 rows, so it has under 2^32 chunks.
        self.next += 1;
        let count = rows.len();
        let frames = &mut *self.frames;
        let mut columns = Vec::new();
        rows.columns.list(&mut columns);
        let own = match self.columns {
            Columns::All => MILLPOND.len(),
            Columns::None => 0,
        };
        // Rows without identities must stay in the order of their places.
        let order = match self.columns {
            Columns::All => self
                .sorting
                .order(C::TABLE, count, |column| columns.get(column)?.ranks()),
            Columns::None => None,
        };
        let order = order.as_deref();
        native::write_block_head(columns.len() + own, count, frames);
        for (kind, column) in C::TABLE.columns().zip(columns) {
            debug_assert_eq!(column.rows(), count, "{} of {:?}", kind.name, C::TABLE);
            native::write_column_head(kind.name, kind.kind, frames);
            column.write_in(order, frames);
        }
        if self.columns == Columns::All {
            let [received_at, inserted_at, source, sequence, record] = &MILLPOND;
            native::write_column_head(received_at.name, received_at.kind, frames);
            rows.received_at.write_in(order, frames);
            native::write_column_head(inserted_at.name, inserted_at.kind, frames);
            native::write_constant(&self.now_ms.to_le_bytes(), count, frames);
            native::write_column_head(source.name, source.kind, frames);
            let mut sources = Dictionary::default();
            let number = sources.number(self.source.as_bytes());
            (0..count).for_each(|_| sources.push_number(number));
            sources.write(frames);
            native::write_column_head(sequence.name, sequence.kind, frames);
            rows.sequences.write_in(order, frames);
            native::write_column_head(record.name, record.kind, frames);
            rows.records.write_in(order, frames);
        }
        let (body, raw_bytes) = frames.finish();
        let received = rows.origins().map(|origin| Received {
            at_us: origin.received_at_us,
            rows: 1,
            first: origin.id,
        });
        Chunk {
            index,
            table: C::TABLE.number(),
            rows: count as u64,
            raw_bytes,
            body,
            received: Received::joined(received),
        }
    }
}

#[cfg(test)]
mod tests;
