//! A batch's messages cut into chunks. Boundaries and rows follow from the batch and the rule alone; of the
//! bytes, only `_millpond_inserted_at` knows the time.

use crate::config::Columns;
use crate::frame::Frames;
use crate::native::{self, Column, Dictionary};
use crate::rows::{Resource, Rows, Scope};
use crate::schema::{EXPORTER, MILLPOND};
use millpond_consumer::{Batch, Chunk, Cut, Part, Received, Record, Rule, SinkError};
use millpond_otlp::logs::Request;
use millpond_otlp::{KeyValue, logs_alone};
use millpond_segment::{Decompressor, Limits, Message};
use std::collections::BTreeMap;

/// A server splits an insert at about 1,048,449 rows or 256 MiB in memory, and a split one has several identities
/// under one token. Whatever the rule says, chunks stay clear of both.
const ROWS_MAX: u64 = 1_000_000;
const BYTES_MAX: u64 = 128 << 20;

/// Buffers that are worth keeping between batches.
pub(crate) struct Workspace {
    decompressor: Decompressor,
    rows: Rows,
    frames: Frames,
}

impl Workspace {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            decompressor: Decompressor::new()?,
            rows: Rows::default(),
            frames: Frames::default(),
        })
    }
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
        rows,
        frames,
    } = workspace;
    rows.clear();
    let mut cutter = Cutter {
        rows,
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
    let mut place = 0;
    for part in &batch.parts {
        let read = messages(part, decompressor, &mut |message, read| {
            let more = match read {
                Ok(request) => cutter.message(&request, message.received_at_us),
                Err(reason) => (cutter.emit)(Cut::Unreadable {
                    place,
                    message: record(part, message.received_at_us, message.payload.to_vec()),
                    reason,
                }),
            };
            place += 1;
            more
        });
        if !read? {
            return Ok(());
        }
    }
    if cutter.rows.len() > 0 {
        cutter.emit_all();
    }
    Ok(())
}

struct Cutter<'e> {
    rows: &'e mut Rows,
    frames: &'e mut Frames,
    rows_max: usize,
    bytes_max: usize,
    partitions_max: usize,
    columns: Columns,
    now_ms: i64,
    source: String,
    batch: u64,
    next: u32,
    /// How many records came before those in `rows`.
    records: u64,
    emit: &'e mut dyn FnMut(Cut) -> bool,
}

/// The records at these places in the batch, each alone in a message.
pub(crate) fn records(
    batch: &Batch,
    places: &[u64],
    workspace: &mut Workspace,
) -> Result<Vec<Record>, SinkError> {
    // In the order of the places; given back in the order asked for.
    let mut wanted: Vec<(u64, usize)> = places.iter().copied().zip(0..).collect();
    wanted.sort_unstable();
    let mut found: Vec<Option<Record>> = vec![None; places.len()];
    let (mut before, mut next) = (0, 0);
    for part in &batch.parts {
        messages(part, &mut workspace.decompressor, &mut |message, read| {
            let Ok(request) = read else { return true };
            let after = before + request.counts().records;
            while let Some(&(place, asked)) = wanted.get(next).filter(|(place, _)| *place < after) {
                let alone = logs_alone(message.payload, place - before);
                found[asked] = alone.map(|payload| record(part, message.received_at_us, payload));
                next += 1;
            }
            before = after;
            next < wanted.len()
        })?;
    }
    let found: Option<Vec<Record>> = found.into_iter().collect();
    found.ok_or_else(|| SinkError::Refused(format!("it has no more than {before} records")))
}

fn record(part: &Part, received_at_us: i64, payload: Vec<u8>) -> Record {
    Record {
        sequence: part.sequence,
        received_at_us,
        payload,
    }
}

/// Gives each message of a part to `take`, read, or why it cannot be; until that wants no more, which is false. An error
/// means that the part is damaged.
fn messages(
    part: &Part,
    decompressor: &mut Decompressor,
    take: &mut dyn FnMut(Message<'_>, Result<Request<'_>, String>) -> bool,
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
            let message = message.map_err(|error| damaged(&error))?;
            let read = Request::parse(message.payload).map_err(|error| {
                let (segment, block) = (part.segment, block.offset());
                format!("message {index} of the block at byte {block} of segment {segment}: {error}")
            });
            if !take(message, read) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl Cutter<'_> {
    /// False when `emit` wants no more.
    fn message(&mut self, request: &Request, received_at_us: i64) -> bool {
        let mut pairs: Vec<KeyValue> = Vec::new();
        for logs in request.resource_logs() {
            let resource = Resource::new(&logs);
            for logs in logs.scope_logs() {
                let scope = Scope::new(logs);
                let mut numbers = self.rows.number(&resource, &scope);
                for record in logs.log_records() {
                    if self.is_full() {
                        if !self.emit_all() {
                            return false;
                        }
                        numbers = self.rows.number(&resource, &scope);
                    }
                    self.rows
                        .push((&resource, &scope, &numbers), &record, received_at_us, &mut pairs);
                }
            }
        }
        true
    }

    /// A chunk has at least one row, even if that is larger than a chunk should be.
    fn is_full(&self) -> bool {
        let rows = self.rows.len();
        rows >= self.rows_max || (rows > 0 && self.rows.raw_len() >= self.bytes_max)
    }

    /// Emits the rows so far, as one chunk if they fall in few enough partitions, else as several with some of the
    /// partitions each.
    fn emit_all(&mut self) -> bool {
        let mut days: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (row, nanoseconds) in self.rows.timestamp.0.iter().enumerate() {
            days.entry(nanoseconds.div_euclid(86_400_000_000_000))
                .or_default()
                .push(row);
        }
        let more = if days.len() <= self.partitions_max {
            let chunk = self.encode(None);
            (self.emit)(Cut::Chunk(chunk))
        } else {
            let days: Vec<Vec<usize>> = days.into_values().collect();
            days.chunks(self.partitions_max).all(|days| {
                let mut some = days.concat();
                some.sort_unstable();
                let mut rows = Rows::default();
                rows.append(self.rows, &some);
                let chunk = self.encode(Some((&rows, &some)));
                (self.emit)(Cut::Chunk(chunk))
            })
        };
        self.records += self.rows.len() as u64;
        self.rows.clear();
        more
    }

    /// The next chunk: these rows, which have these places among all, or all.
    fn encode(&mut self, some: Option<(&Rows, &[usize])>) -> Chunk {
        let index = self.next;
        // A batch has under 2^32 rows, so it has under 2^32 chunks.
        self.next += 1;
        let rows = some.map_or(&*self.rows, |(rows, _)| rows);
        let count = rows.len();
        let frames = &mut *self.frames;
        let own = match self.columns {
            Columns::All => MILLPOND.len(),
            Columns::None => 0,
        };
        native::write_block_head(EXPORTER.len() + own, count, frames);
        for (kind, column) in EXPORTER.iter().zip(rows.columns()) {
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
        let place = |row: usize| some.map_or(row, |(_, places)| places[row]) as u64;
        let mut received: Vec<Received> = Vec::new();
        for (row, &at_us) in rows.received_at.0.iter().enumerate() {
            let first = self.records + place(row);
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
            rows: count as u64,
            raw_bytes,
            body,
            received,
        }
    }
}

#[cfg(test)]
mod tests;
