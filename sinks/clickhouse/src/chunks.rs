//! A batch's messages cut into chunks. Boundaries and rows follow from the batch and the rule alone; of the
//! bytes, only `_millpond_inserted_at` knows the time.

mod signals;

use crate::config::Columns;
use crate::frame::Frames;
use crate::native::{self, Column as _, Dictionary};
use crate::rows::{Origin, Rows, TableColumns};
use crate::schema::MILLPOND;
use millpond_consumer::{Batch, Chunk, Cut, Part, Received, Record, Rule, SinkError};
use millpond_otlp::{Malformed, Signal, record_alone, validate};
use millpond_segment::{Decompressor, Limits, Message};
use signals::{Logs, Metrics, Traces};
use std::collections::BTreeMap;

/// A server splits an insert at about 1,048,449 rows or 256 MiB in memory, and a split one has several identities
/// under one token. Whatever the rule says, chunks stay clear of both.
const ROWS_MAX: u64 = 1_000_000;
const BYTES_MAX: u64 = 128 << 20;

/// Buffers that are worth keeping between batches.
pub(crate) struct Workspace {
    decompressor: Decompressor,
    frames: Frames,
    logs: Logs,
    traces: Traces,
    metrics: Metrics,
}

impl Workspace {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            decompressor: Decompressor::new()?,
            frames: Frames::default(),
            logs: Logs::default(),
            traces: Traces::default(),
            metrics: Metrics::default(),
        })
    }
}

/// The rows of a signal that wait to become chunks: of each of its tables, those of its next one.
trait Waiting {
    /// Adds the rows of a request; none if it is malformed. False when no more is wanted.
    fn add(&mut self, payload: &[u8], received_at_us: i64, cutter: &mut Cutter) -> Result<bool, Malformed>;
    /// Emits what is left.
    fn finish(&mut self, cutter: &mut Cutter);
    fn clear(&mut self);
}

/// Cuts `batch` and gives each chunk to `emit`, until it returns false. A chunk ends with the row that fills it,
/// so it may be larger than the rule's bytes by less than that row.
pub(crate) fn cut(
    batch: &Batch,
    rule: &Rule,
    columns: Columns,
    now_ms: i64,
    workspace: &mut Workspace,
    emit: &mut dyn FnMut(Cut) -> bool,
) -> Result<(), SinkError> {
    let Workspace {
        decompressor,
        frames,
        logs,
        traces,
        metrics,
    } = workspace;
    let mut cutter = Cutter {
        frames,
        rows_max: usize::try_from(rule.chunk_rows.clamp(1, ROWS_MAX)).unwrap_or(usize::MAX),
        bytes_max: usize::try_from(rule.chunk_bytes.min(BYTES_MAX)).unwrap_or(usize::MAX),
        partitions_max: rule.max_partitions_per_chunk.max(1) as usize,
        columns,
        now_ms,
        source: batch.id.source(),
        batch: batch.id.low,
        next: 0,
        records: 0,
        emit,
    };
    match Signal::of_stream(&batch.id.stream) {
        Some(Signal::Logs) => cut_all(batch, logs, decompressor, &mut cutter),
        Some(Signal::Traces) => cut_all(batch, traces, decompressor, &mut cutter),
        Some(Signal::Metrics) => cut_all(batch, metrics, decompressor, &mut cutter),
        None => Err(no_table(batch)),
    }
}

fn no_table(batch: &Batch) -> SinkError {
    SinkError::Refused(format!(
        "stream {} holds nothing that there is a table for",
        batch.id.stream
    ))
}

fn cut_all<W: Waiting>(
    batch: &Batch,
    waiting: &mut W,
    decompressor: &mut Decompressor,
    cutter: &mut Cutter,
) -> Result<(), SinkError> {
    waiting.clear();
    let mut place = 0;
    for part in &batch.parts {
        let read = messages(part, decompressor, &mut |found| {
            let Found { message, .. } = &found;
            let added = waiting.add(message.payload, message.received_at_us, cutter);
            let more = added.unwrap_or_else(|error| {
                (cutter.emit)(Cut::Unreadable {
                    place,
                    message: found.record(message.payload.to_vec()),
                    reason: found.fault(&error),
                })
            });
            place += 1;
            more
        });
        if !read? {
            return Ok(());
        }
    }
    waiting.finish(cutter);
    Ok(())
}

/// The records at these places in the batch, each alone in a message.
pub(crate) fn records(
    batch: &Batch,
    places: &[u64],
    workspace: &mut Workspace,
) -> Result<Vec<Record>, SinkError> {
    let signal = Signal::of_stream(&batch.id.stream).ok_or_else(|| no_table(batch))?;
    // In the order of the places; given back in the order asked for.
    let mut wanted: Vec<(u64, usize)> = places.iter().copied().zip(0..).collect();
    wanted.sort_unstable();
    let mut records: Vec<Option<Record>> = vec![None; places.len()];
    let (mut before, mut next) = (0, 0);
    for part in &batch.parts {
        messages(part, &mut workspace.decompressor, &mut |found| {
            let payload = found.message.payload;
            let Ok(counts) = validate(signal, payload) else {
                return true;
            };
            let after = before + counts.records;
            while let Some(&(place, asked)) = wanted.get(next).filter(|(place, _)| *place < after) {
                let alone = record_alone(signal, payload, place - before);
                records[asked] = alone.map(|payload| found.record(payload));
                next += 1;
            }
            before = after;
            next < wanted.len()
        })?;
    }
    let records: Option<Vec<Record>> = records.into_iter().collect();
    records.ok_or_else(|| SinkError::Refused(format!("it has no more than {before} records")))
}

/// A message of a batch, and where it is.
struct Found<'p> {
    message: Message<'p>,
    /// Its place in its block.
    index: usize,
    /// Where that begins in its segment.
    block: u64,
    part: &'p Part,
}

impl Found<'_> {
    /// It, or a record of it, as this message.
    fn record(&self, payload: Vec<u8>) -> Record {
        Record {
            sequence: self.part.sequence,
            received_at_us: self.message.received_at_us,
            payload,
        }
    }

    fn fault(&self, error: &Malformed) -> String {
        let Found {
            index, block, part, ..
        } = self;
        let segment = part.segment;
        format!("message {index} of the block at byte {block} of segment {segment}: {error}")
    }
}

/// Gives each message of a part to `take`, until that wants no more, which is false. An error means that the part is
/// damaged.
fn messages(
    part: &Part,
    decompressor: &mut Decompressor,
    take: &mut dyn FnMut(Found<'_>) -> bool,
) -> Result<bool, SinkError> {
    let damaged = |error: &dyn std::fmt::Display| {
        SinkError::Refused(format!(
            "segment {} (sequence {}): {error}",
            part.segment, part.sequence
        ))
    };
    for block in millpond_segment::blocks(&part.data, part.offset, &Limits::default()) {
        let block = block.map_err(|error| damaged(&error))?;
        let raw = block.decode(decompressor).map_err(|error| damaged(&error))?;
        for (index, message) in raw.messages().enumerate() {
            let found = Found {
                message: message.map_err(|error| damaged(&error))?,
                index,
                block: block.offset(),
                part,
            };
            if !take(found) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Knows when rows are enough for a chunk, and makes it of them.
struct Cutter<'e> {
    frames: &'e mut Frames,
    rows_max: usize,
    bytes_max: usize,
    partitions_max: usize,
    columns: Columns,
    now_ms: i64,
    source: String,
    batch: u64,
    next: u32,
    /// How many records have become rows.
    records: u64,
    emit: &'e mut dyn FnMut(Cut) -> bool,
}

impl Cutter<'_> {
    /// Of the next row: one of each record, in their order.
    fn origin(&mut self, received_at_us: i64) -> Origin {
        let record = self.records;
        self.records += 1;
        Origin {
            record,
            received_at_us,
        }
    }

    /// A chunk has at least one row, even if that is larger than a chunk should be.
    fn is_full<C: TableColumns>(&self, rows: &Rows<C>) -> bool {
        let count = rows.len();
        count >= self.rows_max || (count > 0 && rows.raw_len() >= self.bytes_max)
    }

    /// Emits the rows so far, as one chunk if they fall in few enough partitions, else as several with some of the
    /// partitions each. False when no more is wanted.
    fn emit_all<C: TableColumns>(&mut self, rows: &mut Rows<C>) -> bool {
        let mut days: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (row, day) in rows.columns.days().enumerate() {
            days.entry(day).or_default().push(row);
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

    /// The next chunk.
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
        native::write_block_head(columns.len() + own, count, frames);
        for (kind, column) in C::TABLE.columns().zip(columns) {
            debug_assert_eq!(column.rows(), count, "{} of {:?}", kind.name, C::TABLE);
            native::write_column_head(kind.name, kind.kind, frames);
            column.write(frames);
        }
        if self.columns == Columns::All {
            let [received_at, inserted_at, source, batch, chunk] = &MILLPOND;
            native::write_column_head(received_at.name, received_at.kind, frames);
            rows.received_at.write(frames);
            native::write_column_head(inserted_at.name, inserted_at.kind, frames);
            native::write_constant(&self.now_ms.to_le_bytes(), count, frames);
            native::write_column_head(source.name, source.kind, frames);
            let mut sources = Dictionary::default();
            let number = sources.number(self.source.as_bytes());
            (0..count).for_each(|_| sources.push_number(number));
            sources.write(frames);
            native::write_column_head(batch.name, batch.kind, frames);
            native::write_constant(&self.batch.to_le_bytes(), count, frames);
            native::write_column_head(chunk.name, chunk.kind, frames);
            native::write_constant(&index.to_le_bytes(), count, frames);
        }
        let (body, raw_bytes) = frames.finish();
        let mut received: Vec<Received> = Vec::new();
        for origin in rows.origins() {
            let (at_us, first) = (origin.received_at_us, origin.record);
            match received.last_mut() {
                Some(run) if run.at_us == at_us && run.first + run.rows == first => run.rows += 1,
                _ => received.push(Received {
                    at_us,
                    rows: 1,
                    first,
                }),
            }
        }
        Chunk {
            index,
            table: C::TABLE.number(),
            rows: count as u64,
            raw_bytes,
            body,
            received,
        }
    }
}

#[cfg(test)]
mod tests;
