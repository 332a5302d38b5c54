//! Compares the tables with the buffer, row by row. Counts first, and reads only the segments whose counts differ from the
//! manifest.

use super::{Report, RowRange};
use crate::buffer::{buffer, cursors, read_log};
use crate::numbers::count;
use crate::rows::{Difference, ask, first_with_identity, id, rows};
use anyhow::Context;
use bytes::Bytes;
use millpond_clickhouse::{ClickHouse, Columns, Config};
use millpond_consumer::{Part, Sink};
use millpond_manifest::dead_letter::Kind;
use millpond_manifest::manifest::{Entry, Part as Listed};
use millpond_manifest::{Buffer, Cursor, DeadLetter, Log, cas, layout};
use millpond_segment::Encoding;
use millpond_storage::Store;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sequences that are counted in one query.
const COUNTED_AT_ONCE: u64 = 10_000;

/// Segments that a finding names with their record numbers.
const NAMED_MAX: usize = 5;

/// The result of comparing one stream in one shard.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// The consumer.
    pub consumer: String,
    /// The shard.
    pub shard: u32,
    /// The stream.
    pub stream: String,
    /// The first sequence.
    pub from: u64,
    /// The last sequence.
    pub to: u64,
    /// Records in the range, according to the manifest.
    pub records: u64,
    /// Rows in the tables.
    pub rows: u64,
    /// Records without a row.
    pub missing: u64,
    /// Records with more than one row.
    pub duplicate: u64,
    /// Rows of no record.
    pub unknown: u64,
    /// From this sequence on the consumer drops repeated events: rows may be missing, and are not counted as missing.
    pub deduplicated_from: Option<u64>,
    /// Below this sequence a consumer whose cursor is lost may have dropped repeated events: rows may be missing here too.
    pub deduplicated_below: Option<u64>,
    /// Segments that were read, since the counts differ.
    pub segments_read: u64,
    /// The segments with a difference.
    pub sequences: Vec<Difference>,
}

/// Compares the tables of every consumer, or of this one.
pub(super) async fn look(
    store: &Store,
    tables: &Config,
    range: &RowRange,
    only: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<Vec<Compared>> {
    let (mut all, mut passed_over) = (Vec::new(), false);
    if tables.columns == Columns::None {
        report.error(
            "with --columns none the tables do not keep the identities of rows: they cannot be compared with the buffer",
            "count them in ClickHouse, or use --columns all for new tables",
        );
        return Ok(all);
    }
    let config = Config {
        create: false,
        ..tables.clone()
    };
    let sink = match ClickHouse::open(config).await {
        Ok(sink) => Arc::new(sink),
        Err(error) => {
            report.error(
                format!("rows cannot be compared: {error}"),
                "see the findings about the tables",
            );
            return Ok(all);
        }
    };
    let (buffer, programs) = (buffer(store).await?, sink.programs());
    for shard in 0..buffer.shards {
        let Some(log) = read_log(store, shard).await? else {
            continue;
        };
        for cursor in cursors(store, shard).await? {
            let named = only.is_none_or(|name| name == cursor.consumer);
            if !named || layout::repaired_by(&cursor.consumer).is_some() {
                continue;
            }
            if cursor.policy.sink != sink.name() {
                report.warning(
                    format!(
                        "consumer {} in shard {shard:04} writes to {}, and these settings name {}: its rows are not compared",
                        cursor.consumer, cursor.policy.sink, sink.name()
                    ),
                    "give the consumer's table settings",
                );
                passed_over = true;
                continue;
            }
            let look = Look {
                store,
                sink: &sink,
                buffer: &buffer,
                log: &log,
                cursor: &cursor,
            };
            for (stream, position) in &cursor.streams {
                let other = cursor.other_program(stream, &programs);
                if let Some(other) = other.filter(|_| !range.other_programs && look.taken(stream).is_some()) {
                    report.warning(
                        format!(
                            "consumer {} in shard {shard:04}: rows of {stream} are not compared: {other}",
                            cursor.consumer
                        ),
                        "give the consumer's --transform; where an earlier one made the rows, give that with --other-transform, --from and --to",
                    );
                    passed_over = true;
                    continue;
                }
                if let Some(compared) = look.stream(stream, position.next, range, report).await? {
                    compared.tell(report);
                    all.push(compared);
                }
            }
        }
    }
    if all.is_empty() && !passed_over {
        report.warning(
            "no rows were compared: no consumer has acknowledged anything in that range that the buffer still holds",
            "`millpond consumer list` shows the acknowledged positions, `millpond status` the content of the buffer",
        );
    }
    Ok(all)
}

/// One consumer in one shard.
struct Look<'a> {
    store: &'a Store,
    sink: &'a Arc<ClickHouse>,
    buffer: &'a Buffer,
    log: &'a Log,
    cursor: &'a Cursor,
}

impl Look<'_> {
    /// The stream's place in the log, if the sink takes it.
    fn taken(&self, stream: &str) -> Option<u32> {
        let index = self.log.stream_index(stream)?;
        let encoding = self.log.streams[index as usize].encoding;
        self.sink.accepts(stream, encoding).then_some(index)
    }

    async fn stream(
        &self,
        stream: &str,
        next: u64,
        range: &RowRange,
        report: &mut Report,
    ) -> anyhow::Result<Option<Compared>> {
        let (log, consumer) = (self.log, &self.cursor.consumer);
        let Some(index) = self.taken(stream) else {
            return Ok(None);
        };
        let id = id(self.buffer, log.shard, stream, consumer);
        let source = id.source();
        let wanted = range.from.unwrap_or(0).max(log.first_sequence);
        let from = wanted.max(first_with_identity(self.sink, &source, stream).await?);
        let end = range
            .to
            .map_or(next, |to| to.saturating_add(1))
            .min(next)
            .min(log.next_sequence);
        if from > wanted && wanted < end {
            report.warning(
                format!(
                    "consumer {consumer} in shard {:04}: rows of {stream} below sequence {} were inserted before rows had \
                     identities, and are not compared",
                    log.shard,
                    from.min(end)
                ),
                "these rows are fine; do not reset the consumer to a position before that sequence",
            );
        }
        if from >= end {
            return Ok(None);
        }
        let is_of_events = log.streams[index as usize].encoding == Encoding::Ndjson;
        // A cursor that is lost may have dropped any of them.
        let lost_below = if is_of_events {
            self.cursor.deduplicated_below
        } else {
            0
        };
        let mut compared = Compared {
            consumer: consumer.clone(),
            shard: log.shard,
            stream: stream.to_owned(),
            from,
            to: end - 1,
            records: 0,
            rows: 0,
            missing: 0,
            duplicate: 0,
            unknown: 0,
            deduplicated_from: self.cursor.deduplicated_from(stream).filter(|first| *first < end),
            deduplicated_below: (from < lost_below).then_some(lost_below),
            segments_read: 0,
            sequences: Vec::new(),
        };
        let dead_letters = self.letters(stream).await?;
        let mut low = from;
        while low < end {
            let high = (end - 1).min(low + COUNTED_AT_ONCE - 1);
            let mut counts = self.sink.counts(&source, stream, low..=high).await?;
            let parts = log
                .parts(index, low)
                .take_while(|(sequence, ..)| *sequence <= high);
            for (sequence, entry, part) in parts {
                let found = counts.remove(&sequence).unwrap_or_default();
                compared.records += part.records;
                compared.rows += found.rows;
                // A row of no record can make up for a missing one in the counts, but not with a number that a record has.
                let unknown = u64::from(found.last) >= part.records;
                let from = self.cursor.deduplicated_from(stream);
                let drops = sequence < lost_below || from.is_some_and(|from| from <= sequence);
                let differs = found.distinct != part.records && !drops;
                if found.rows != found.distinct || differs || unknown {
                    compared.segments_read += 1;
                    let none = BTreeSet::new();
                    let dead_letters = dead_letters.get(&sequence).unwrap_or(&none);
                    match self.part(stream, sequence, entry, part, dead_letters).await {
                        Ok(mut difference) => {
                            if drops {
                                difference.missing.clear();
                            }
                            compared.add(difference);
                        }
                        Err(error) => report.error(
                            format!("consumer {consumer}: sequence {sequence} of {stream} cannot be compared: {error:#}"),
                            "see the findings about the segments",
                        ),
                    }
                }
            }
            // The log has no records of these sequences.
            for (sequence, found) in counts {
                compared.rows += found.rows;
                let table = self.sink.numbers(&source, stream, sequence).await?;
                let nothing = crate::rows::Records::default();
                compared.add(Difference::new(sequence, &nothing, &table, &BTreeSet::new()));
            }
            low = high + 1;
        }
        compared.sequences.sort_by_key(|difference| difference.sequence);
        Ok(Some(compared))
    }

    async fn part(
        &self,
        stream: &str,
        sequence: u64,
        entry: &Entry,
        part: &Listed,
        dead_letters: &BTreeSet<u32>,
    ) -> anyhow::Result<Difference> {
        let id = id(self.buffer, self.log.shard, stream, &self.cursor.consumer);
        let source = id.source();
        let table = self.sink.numbers(&source, stream, sequence).await?;
        let skipped = self.cursor.is_skipped(stream, sequence);
        let key = layout::segment(self.log.shard, entry.segment);
        let data = self
            .store
            .get_range(&key, part.offset..part.offset + part.length)
            .await?;
        let data: Bytes = data.with_context(|| format!("{key} is gone"))?;
        let fetched = Part {
            sequence,
            first_record: 0,
            segment: entry.segment,
            offset: part.offset,
            data,
            raw_len: part.raw_len,
            records: part.records,
            dropped: Default::default(),
        };
        let encoding = self.log.streams[part.stream as usize].encoding;
        let asked = ask(self.sink, id, encoding, fetched, self.cursor.policy.clone()).await;
        let records = match asked {
            // A segment that an operator skipped may be damaged.
            Err(_) if skipped => return Ok(Difference::default()),
            asked => asked?,
        };
        let mut difference = Difference::new(sequence, &records, &table, dead_letters);
        if skipped {
            difference.missing.clear();
        }
        Ok(difference)
    }

    /// The records of a stream that have dead letters, by sequence.
    async fn letters(&self, stream: &str) -> anyhow::Result<BTreeMap<u64, BTreeSet<u32>>> {
        let mut dead_letters: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        let folder = layout::dead_letters(self.log.shard, Some(&self.cursor.consumer));
        for found in self.store.list(&folder).await? {
            let Some(letter) = cas::read::<DeadLetter>(self.store, &found.key).await? else {
                continue;
            };
            let letter = letter.state;
            if letter.stream == stream && letter.kind == Kind::Refused {
                dead_letters
                    .entry(letter.sequence)
                    .or_default()
                    .insert(letter.record);
            }
        }
        Ok(dead_letters)
    }
}

impl Compared {
    fn add(&mut self, difference: Difference) {
        if difference.is_any() {
            self.missing += rows(&difference.missing);
            self.duplicate += rows(&difference.duplicate);
            self.unknown += rows(&difference.unknown);
            self.sequences.push(difference);
        }
    }

    fn tell(&self, report: &mut Report) {
        let Compared {
            consumer,
            shard,
            stream,
            from,
            to,
            records,
            ..
        } = self;
        let name = format!("consumer {consumer} in shard {shard:04}");
        if let Some(first) = self.deduplicated_from {
            report.ok(format!(
                "{name}: {stream} has no repeated events from sequence {first} on (--unique), so records from there on may have no row"
            ));
        }
        if let Some(end) = self.deduplicated_below {
            report.ok(format!(
                "{name}: repeated events of {stream} below sequence {end} may have been dropped (--unique) under a cursor that is gone, so \
                 records before it may have no row"
            ));
        }
        if self.sequences.is_empty() && self.deduplicated_from.or(self.deduplicated_below).is_some() {
            let rows = self.rows;
            return report.ok(format!(
                "{name}: each of the {rows} rows of {stream} in sequences {from} to {to} is there once and has its record"
            ));
        }
        if self.sequences.is_empty() {
            return report.ok(format!(
                "{name}: each of the {records} records of {stream} in sequences {from} to {to} has its row, once"
            ));
        }
        if let Some((first, last, named)) = self.named(|difference| &difference.missing) {
            report.error(
                format!("{name}: the table lacks {} of {stream}: {named}", count(self.missing, "row")),
                format!(
                    "`millpond consumer repair {consumer} --shard {shard} --stream {stream} --from {first} --to {last}` inserts \
                     them once"
                ),
            );
        }
        if let Some((_, _, named)) = self.named(|difference| &difference.duplicate) {
            report.error(
                format!("{name}: the table has {} of {stream} more than once: {named}", count(self.duplicate, "row")),
                "rows with the same _millpond_source, _millpond_sequence and _millpond_record are copies: delete them all, and \
                 insert them once with `millpond consumer repair`",
            );
        }
        if let Some((_, _, named)) = self.named(|difference| &difference.unknown) {
            report.error(
                format!("{name}: the table has {} of {stream} that no record of the buffer has: {named}", count(self.unknown, "row")),
                "this version of Millpond did not write them for this buffer: find their origin, and delete them by their \
                 _millpond_source, _millpond_sequence and _millpond_record",
            );
        }
    }

    /// The first and the last sequence with such rows, and the first few with their record numbers.
    fn named(&self, of: impl Fn(&Difference) -> &crate::rows::Runs) -> Option<(u64, u64, String)> {
        let with: Vec<_> = self
            .sequences
            .iter()
            .filter(|difference| !of(difference).is_empty())
            .collect();
        let (first, last) = (with.first()?.sequence, with.last()?.sequence);
        let mut named: Vec<String> = with
            .iter()
            .take(NAMED_MAX)
            .map(|difference| {
                let runs = of(difference)
                    .iter()
                    .take(NAMED_MAX)
                    .map(|[low, high]| match low == high {
                        true => low.to_string(),
                        false => format!("{low} to {high}"),
                    });
                let runs: Vec<String> = runs.collect();
                let more = if of(difference).len() > NAMED_MAX {
                    " and more"
                } else {
                    ""
                };
                format!(
                    "sequence {} records {}{more}",
                    difference.sequence,
                    runs.join(", ")
                )
            })
            .collect();
        if with.len() > NAMED_MAX {
            named.push(format!(
                "and {} more sequences up to {last}",
                with.len() - NAMED_MAX
            ));
        }
        Some((first, last, named.join("; ")))
    }
}
