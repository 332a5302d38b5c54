//! A batch's messages cut into chunks. Boundaries and rows follow from the batch and the rule alone; of the
//! bytes, only `_millpond_inserted_at` knows the time.

use crate::config::Columns;
use crate::frame::Frames;
use crate::native::{self, Column, Dictionary};
use crate::rows::{Resource, Rows, Scope};
use crate::schema::{EXPORTER, MILLPOND};
use millpond_consumer::{Batch, Chunk, Part, Received, Rule, SinkError};
use millpond_otlp::KeyValue;
use millpond_otlp::logs::Request;
use millpond_segment::{Decompressor, Limits};
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
    emit: &mut dyn FnMut(Chunk) -> bool,
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
        emit,
    };
    for part in &batch.parts {
        if !cutter.part(part, decompressor)? {
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
    emit: &'e mut dyn FnMut(Chunk) -> bool,
}

impl Cutter<'_> {
    /// False when `emit` wants no more.
    fn part(&mut self, part: &Part, decompressor: &mut Decompressor) -> Result<bool, SinkError> {
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
                let request = Request::parse(message.payload).map_err(|error| {
                    let block = block.offset();
                    damaged(&format!("message {index} of the block at byte {block}: {error}"))
                })?;
                if !self.message(&request, message.received_at_us) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn message(&mut self, request: &Request, received_at_us: i64) -> bool {
        let mut pairs: Vec<KeyValue> = Vec::new();
        for logs in request.resources() {
            let resource = Resource::new(&logs);
            for logs in logs.scopes() {
                let items = logs.items();
                let scope = Scope::new(logs);
                let mut numbers = self.rows.number(&resource, &scope);
                for record in items {
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
            (self.emit)(chunk)
        } else {
            let days: Vec<Vec<usize>> = days.into_values().collect();
            days.chunks(self.partitions_max).all(|days| {
                let mut some = days.concat();
                some.sort_unstable();
                let mut rows = Rows::default();
                rows.append(self.rows, &some);
                let chunk = self.encode(Some(&rows));
                (self.emit)(chunk)
            })
        };
        self.rows.clear();
        more
    }

    /// The next chunk: these rows, or all.
    fn encode(&mut self, some: Option<&Rows>) -> Chunk {
        let index = self.next;
        // A batch has under 2^32 rows, so it has under 2^32 chunks.
        self.next += 1;
        let rows = some.unwrap_or(self.rows);
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
        let received = rows
            .received_at
            .0
            .chunk_by(|one, other| one == other)
            .map(|run| Received {
                at_us: run[0],
                rows: run.len() as u64,
            })
            .collect();
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
