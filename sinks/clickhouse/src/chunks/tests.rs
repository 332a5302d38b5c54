//! Chunks of one batch, read back from their Native blocks.

use super::*;
use crate::frame::decompress;
use crate::schema::{MAP, STRING, Table, WORD, item_kind};
use bytes::Bytes;
use millpond_consumer::BatchId;
use millpond_segment::{BlockBuilder, Compressor, Encoding, Limits};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use proptest::prelude::*;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

/// Reads one Native block of our types: every row as column name and text.
fn read(chunk: &Chunk) -> Vec<BTreeMap<String, String>> {
    let raw = decompress(&chunk.body);
    assert_eq!(raw.len() as u64, chunk.raw_bytes);
    let mut bytes = Native(&raw);
    let columns = bytes.varint();
    let rows = bytes.varint();
    assert_eq!(rows as u64, chunk.rows);
    assert_eq!(
        chunk.received.iter().map(|received| received.rows).sum::<u64>(),
        chunk.rows
    );
    let mut table = vec![BTreeMap::new(); rows];
    for _ in 0..columns {
        let name = bytes.text();
        let kind = bytes.text();
        let values = bytes.column(&kind, rows);
        for (row, value) in table.iter_mut().zip(values) {
            row.insert(name.clone(), value);
        }
    }
    assert!(bytes.0.is_empty());
    table
}

struct Native<'a>(&'a [u8]);

impl Native<'_> {
    fn word(&mut self, size: usize) -> u64 {
        let (word, rest) = self.0.split_at(size);
        self.0 = rest;
        word.iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    fn varint(&mut self) -> usize {
        let byte = usize::try_from(self.word(1)).unwrap();
        if byte < 0x80 {
            byte
        } else {
            byte - 0x80 + (self.varint() << 7)
        }
    }

    fn text(&mut self) -> String {
        let length = self.varint();
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    /// The values of a column, as text.
    fn column(&mut self, kind: &str, rows: usize) -> Vec<String> {
        for _ in kind.matches("LowCardinality") {
            assert_eq!(self.word(8), 1);
        }
        let Some(item) = item_kind(kind) else {
            return self.values(kind, rows);
        };
        let ends = self.ends(rows);
        let items = self.values(item, ends.last().copied().unwrap_or(0));
        grouped(&ends, &items)
    }

    fn values(&mut self, kind: &str, rows: usize) -> Vec<String> {
        let size = match kind {
            STRING => return (0..rows).map(|_| self.text()).collect(),
            WORD => return self.dictionary(rows),
            MAP => {
                let ends = self.ends(rows);
                let entries = ends.last().copied().unwrap_or(0);
                let keys = self.dictionary(entries);
                let values: Vec<String> = (0..entries).map(|_| self.text()).collect();
                let pairs: Vec<_> = keys.iter().zip(&values).collect();
                return grouped(&ends, &pairs);
            }
            "UInt8" | "Bool" => 1,
            "UInt32" | "Int32" | "DateTime" => 4,
            "UInt64" | "Float64" => 8,
            kind if kind.starts_with("DateTime64") => 8,
            other => panic!("{other}"),
        };
        (0..rows).map(|_| self.word(size).to_string()).collect()
    }

    /// Where the items of each row end.
    fn ends(&mut self, rows: usize) -> Vec<usize> {
        (0..rows)
            .map(|_| usize::try_from(self.word(8)).unwrap())
            .collect()
    }

    fn dictionary(&mut self, rows: usize) -> Vec<String> {
        if rows == 0 {
            return Vec::new();
        }
        let width = 1 << (self.word(8) & 0xff);
        let values: Vec<String> = (0..self.word(8)).map(|_| self.text()).collect();
        assert_eq!(self.word(8), rows as u64);
        (0..rows)
            .map(|_| values[usize::try_from(self.word(width)).unwrap()].clone())
            .collect()
    }
}

fn grouped<T: std::fmt::Debug>(ends: &[usize], items: &[T]) -> Vec<String> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(ends)
        .map(|(start, &end)| format!("{:?}", &items[start..end]))
        .collect()
}

const DAY: u64 = 86_400_000_000_000;

fn pair(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(Value::StringValue(value.into())),
    });
    KeyValue {
        key: key.into(),
        value,
        ..KeyValue::default()
    }
}

/// A request with a record per timestamp; `number` tells requests apart.
fn request(number: usize, times: &[u64]) -> Vec<u8> {
    let record = |(index, &time): (usize, &u64)| LogRecord {
        time_unix_nano: time,
        severity_text: ["INFO", "WARN"][index % 2].into(),
        body: Some(AnyValue {
            value: Some(Value::StringValue(format!("{number}/{index}"))),
        }),
        attributes: (0..index % 4)
            .map(|key| pair(&format!("key{key}"), &format!("{number}")))
            .collect(),
        ..LogRecord::default()
    };
    let (one, other) = times.split_at(times.len() / 2);
    let scope = |name: &str, times: &[u64]| ScopeLogs {
        scope: Some(InstrumentationScope {
            name: name.into(),
            attributes: vec![pair("scope", name)],
            ..InstrumentationScope::default()
        }),
        log_records: times.iter().enumerate().map(record).collect(),
        ..ScopeLogs::default()
    };
    let service = format!("service{}", number % 3);
    let logs = ResourceLogs {
        resource: Some(Resource {
            attributes: vec![pair("service.name", &service)],
            ..Resource::default()
        }),
        scope_logs: vec![scope("one", one), scope("other", other)],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![logs],
    }
    .encode_to_vec()
}

/// A batch of messages, with a block boundary after every `per_block`, and a part after every `per_part` blocks.
fn batch(messages: &[Vec<u8>], per_block: usize, per_part: usize) -> Batch {
    batch_of(Signal::Logs, messages, per_block, per_part)
}

fn batch_of(signal: Signal, messages: &[Vec<u8>], per_block: usize, per_part: usize) -> Batch {
    let mut compressor = Compressor::new(1).unwrap();
    let blocks: Vec<Bytes> = messages
        .chunks(per_block)
        .enumerate()
        .map(|(block, messages)| {
            let mut builder = BlockBuilder::with_buffer(1, Vec::new(), &Limits::default());
            for (index, message) in messages.iter().enumerate() {
                // The time of a message is its place in the batch, whatever block it is in.
                builder
                    .push(i64::try_from(block * per_block + index).unwrap(), message)
                    .unwrap();
            }
            compressor.compress(&builder, 0).unwrap().bytes
        })
        .collect();
    let parts = blocks
        .chunks(per_part)
        .zip(7..)
        .map(|(blocks, sequence)| Part {
            sequence,
            segment: ulid::Ulid::nil(),
            offset: 8,
            data: blocks.concat().into(),
            raw_length: 0,
            records: 0,
        })
        .collect();
    let id = BatchId {
        buffer_id: uuid::Uuid::nil(),
        shard: 0,
        stream: signal.stream().into(),
        consumer: "test".into(),
        sink: "clickhouse:otel.otel_logs".into(),
        low: 7,
        high: 9,
        schema_version: 1,
    };
    Batch {
        id,
        encoding: Encoding::Otlp,
        parts,
    }
}

fn rule(chunk_rows: u64, chunk_bytes: u64, max_partitions_per_chunk: u32) -> Rule {
    Rule {
        batch_records: 1_000_000,
        batch_bytes: 1 << 30,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight: 4,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 1,
    }
}

/// The chunks of a batch that can be read.
fn cut_all(batch: &Batch, rule: &Rule, columns: Columns) -> Vec<Chunk> {
    let mut workspace = Workspace::new().unwrap();
    let mut chunks = Vec::new();
    cut(batch, rule, columns, 1234, &mut workspace, &mut |cut| {
        let Cut::Chunk(chunk) = cut else { panic!("{cut:?}") };
        chunks.push(chunk);
        true
    })
    .unwrap();
    chunks
}

fn bodies(chunks: &[Chunk]) -> Vec<Vec<String>> {
    chunks
        .iter()
        .map(|chunk| {
            read(chunk)
                .into_iter()
                .map(|mut row| row.remove("Body").unwrap())
                .collect()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// However the messages came in blocks and segments, the chunks are the same, byte for byte.
    #[test]
    fn chunks_do_not_depend_on_blocks(
        sizes in proptest::collection::vec(0usize..30, 1..12),
        per_block in 1usize..6,
        per_part in 1usize..4,
        chunk_rows in 1u64..50,
        chunk_bytes in 1000u64..10_000,
        partitions in 1u32..4,
    ) {
        let messages: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(number, &size)| {
                let times: Vec<u64> = (0..size as u64).map(|index| (index * 7 + number as u64) % 5 * DAY + 1).collect();
                request(number, &times)
            })
            .collect();
        let rule = rule(chunk_rows, chunk_bytes, partitions);
        let whole = cut_all(&batch(&messages, messages.len(), 1), &rule, Columns::All);
        let split = cut_all(&batch(&messages, per_block, per_part), &rule, Columns::All);
        prop_assert_eq!(whole.len(), split.len());
        for (index, (one, other)) in whole.iter().zip(&split).enumerate() {
            prop_assert_eq!(one.index as usize, index);
            prop_assert_eq!(&one.body, &other.body);
            prop_assert_eq!(&one.received, &other.received);
            prop_assert!(one.rows <= chunk_rows);
            let days: BTreeSet<u64> =
                read(one).iter().map(|row| row["Timestamp"].parse::<u64>().unwrap() / DAY).collect();
            prop_assert!(days.len() <= partitions as usize);
        }
        // Each row knows its record.
        let of_batch = batch(&messages, per_block, per_part);
        for chunk in &whole {
            let places: Vec<u64> = (0..chunk.rows).map(|row| chunk.record(row).unwrap()).collect();
            let found = records(&of_batch, &places, &mut Workspace::new().unwrap()).unwrap();
            let alone: Vec<Vec<u8>> = found.iter().map(|record| record.payload.clone()).collect();
            let rows = cut_all(&batch(&alone, alone.len(), 1), &self::rule(1 << 20, 1 << 27, 50), Columns::None);
            prop_assert_eq!(bodies(&rows).concat(), bodies(std::slice::from_ref(chunk)).concat());
            let received: Vec<String> = found.iter().map(|record| record.received_at_us.to_string()).collect();
            let expected: Vec<String> = read(chunk).into_iter().map(|mut row| row.remove("_millpond_received_at").unwrap()).collect();
            prop_assert_eq!(received, expected);
        }
        // Every row is there once.
        let mut found = bodies(&whole).concat();
        let mut expected: Vec<String> = sizes
            .iter()
            .enumerate()
            .flat_map(|(number, &size)| {
                (0..size / 2).chain(0..size - size / 2).map(move |index| format!("{number}/{index}"))
            })
            .collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

/// A request of one metric of each kind, with as many points as are given.
fn metrics(number: usize, points: [usize; 5]) -> Vec<u8> {
    let time = |point: usize| (point as u64 % 3) * DAY;
    let numbers = |points: usize| {
        (0..points)
            .map(|point| NumberDataPoint {
                time_unix_nano: time(point),
                attributes: vec![pair(&format!("key{}", point % 4), &number.to_string())],
                ..NumberDataPoint::default()
            })
            .collect()
    };
    let data = [
        Data::Gauge(Gauge {
            data_points: numbers(points[0]),
        }),
        Data::Sum(Sum {
            data_points: numbers(points[1]),
            ..Sum::default()
        }),
        Data::Histogram(Histogram {
            data_points: (0..points[2])
                .map(|point| HistogramDataPoint {
                    time_unix_nano: time(point),
                    bucket_counts: vec![1; point % 5],
                    ..HistogramDataPoint::default()
                })
                .collect(),
            ..Histogram::default()
        }),
        Data::ExponentialHistogram(ExponentialHistogram {
            data_points: vec![ExponentialHistogramDataPoint::default(); points[3]],
            ..ExponentialHistogram::default()
        }),
        Data::Summary(Summary {
            data_points: vec![SummaryDataPoint::default(); points[4]],
        }),
    ];
    let metrics = data.map(|data| Metric {
        name: format!("metric {}", number % 3),
        data: Some(data),
        ..Metric::default()
    });
    let group = ResourceMetrics {
        scope_metrics: vec![ScopeMetrics {
            metrics: metrics.to_vec(),
            ..ScopeMetrics::default()
        }],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![group],
    }
    .encode_to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    /// Five tables, and the same chunks for each of them however the messages came.
    #[test]
    fn chunks_of_metrics_do_not_depend_on_blocks(
        sizes in proptest::collection::vec([0usize..12, 0..12, 0..12, 0..12, 0..12], 1..10),
        per_block in 1usize..6,
        per_part in 1usize..4,
        chunk_rows in 1u64..40,
        chunk_bytes in 1000u64..20_000,
        partitions in 1u32..4,
    ) {
        let messages: Vec<_> = sizes.iter().enumerate().map(|(number, &points)| metrics(number, points)).collect();
        let rule = rule(chunk_rows, chunk_bytes, partitions);
        let whole = cut_all(&batch_of(Signal::Metrics, &messages, messages.len(), 1), &rule, Columns::All);
        let split = cut_all(&batch_of(Signal::Metrics, &messages, per_block, per_part), &rule, Columns::All);
        prop_assert_eq!(whole.len(), split.len());
        let mut rows = [0; 5];
        for (index, (one, other)) in whole.iter().zip(&split).enumerate() {
            prop_assert_eq!(one.index as usize, index);
            prop_assert_eq!(one.table, other.table);
            prop_assert_eq!(&one.body, &other.body);
            prop_assert_eq!(&one.received, &other.received);
            prop_assert!((1..=chunk_rows).contains(&one.rows));
            rows[one.table as usize - Table::Gauge.number() as usize] += one.rows;
        }
        // Each row knows its point, and alone it becomes the same row of the same table.
        let of_batch = batch_of(Signal::Metrics, &messages, per_block, per_part);
        let mut seen = BTreeSet::new();
        for chunk in cut_all(&of_batch, &rule, Columns::None) {
            let places: Vec<u64> = (0..chunk.rows).map(|row| chunk.record(row).unwrap()).collect();
            let found = records(&of_batch, &places, &mut Workspace::new().unwrap()).unwrap();
            let alone: Vec<Vec<u8>> = found.into_iter().map(|record| record.payload).collect();
            let alone = batch_of(Signal::Metrics, &alone, 1, 1);
            let again = cut_all(&alone, &self::rule(1 << 20, 1 << 27, 50), Columns::None);
            prop_assert_eq!(again.len(), 1);
            prop_assert_eq!(again[0].table, chunk.table);
            prop_assert_eq!(read(&again[0]), read(&chunk));
            seen.extend(places);
        }
        prop_assert_eq!(seen.len() as u64, rows.iter().sum::<u64>());
        let expected: [u64; 5] = std::array::from_fn(|kind| sizes.iter().map(|points| points[kind] as u64).sum());
        prop_assert_eq!(rows, expected);
    }
}

/// The rows of five tables wait at once, and take no more memory than those of one.
#[test]
fn the_largest_table_of_metrics_goes_first() {
    let chunks = |bytes| {
        let batch = batch_of(Signal::Metrics, &[metrics(0, [1, 50, 3, 0, 0])], 1, 1);
        let chunks = cut_all(&batch, &rule(1000, bytes, 50), Columns::None);
        chunks
            .iter()
            .map(|chunk| (chunk.table, chunk.rows))
            .collect::<Vec<_>>()
    };
    let (gauge, sum, histogram) = (
        Table::Gauge.number(),
        Table::Sum.number(),
        Table::Histogram.number(),
    );
    assert_eq!(chunks(1 << 20), [(gauge, 1), (sum, 50), (histogram, 3)]);
    let small = chunks(5_000);
    assert_eq!(small[0].0, sum, "{small:?}");
    assert!(small[0].1 < 50, "{small:?}");
    assert_eq!(
        small.iter().filter(|(table, _)| *table == gauge).count(),
        1,
        "{small:?}"
    );
}

#[test]
fn a_chunk_ends_at_its_rows() {
    let messages = [request(0, &[1; 5]), request(1, &[1; 5])];
    let chunks = cut_all(&batch(&messages, 1, 1), &rule(4, 1 << 20, 50), Columns::All);
    assert_eq!(
        bodies(&chunks),
        [
            vec!["0/0", "0/1", "0/0", "0/1"],
            vec!["0/2", "1/0", "1/1", "1/0"],
            vec!["1/1", "1/2"]
        ]
    );
    assert_eq!(
        chunks[1].received,
        [
            Received {
                at_us: 0,
                rows: 1,
                first: 4
            },
            Received {
                at_us: 1,
                rows: 3,
                first: 5
            }
        ]
    );
}

#[test]
fn a_chunk_ends_with_the_row_that_fills_it() {
    let messages = [request(0, &[1; 9])];
    let chunks = cut_all(&batch(&messages, 1, 1), &rule(1000, 1, 50), Columns::All);
    assert_eq!(chunks.len(), 9);
}

#[test]
fn rows_over_many_partitions_are_split_by_partition() {
    let times: Vec<u64> = [3, 1, 2, 3, 1, 2, 0, 0].map(|day| day * DAY).to_vec();
    let messages = [request(0, &times)];
    let chunks = cut_all(&batch(&messages, 1, 1), &rule(1000, 1 << 20, 2), Columns::All);
    let days: Vec<Vec<String>> = chunks
        .iter()
        .map(|chunk| {
            read(chunk)
                .into_iter()
                .map(|mut row| row.remove("Timestamp").unwrap())
                .collect()
        })
        .collect();
    let day = |day: u64| (day * DAY).to_string();
    // A timestamp of zero and no observed one stays zero: 1970.
    assert_eq!(
        days,
        [
            vec![day(1), day(1), day(0), day(0)],
            vec![day(3), day(2), day(3), day(2)]
        ]
    );
    // The maps and dictionaries of a part are those of its rows.
    let whole = cut_all(&batch(&messages, 1, 1), &rule(1000, 1 << 20, 50), Columns::None);
    let mut rows: Vec<_> = cut_all(&batch(&messages, 1, 1), &rule(1000, 1 << 20, 2), Columns::None)
        .iter()
        .flat_map(read)
        .collect();
    let mut expected = read(&whole[0]);
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
}

#[test]
fn our_columns_say_where_a_row_came_from() {
    let messages = [request(0, &[1]), request(1, &[1])];
    let chunks = cut_all(&batch(&messages, 1, 1), &rule(1, 1 << 20, 50), Columns::All);
    let row = &read(&chunks[1])[0];
    assert_eq!(row["_millpond_received_at"], "1");
    assert_eq!(row["_millpond_inserted_at"], "1234");
    assert_eq!(
        row["_millpond_source"],
        "00000000-0000-0000-0000-000000000000/0000/otlp.logs/test"
    );
    assert_eq!(row["_millpond_batch"], "7");
    assert_eq!(row["_millpond_chunk"], "1");
    assert_eq!(row.len(), 21);
    let chunks = cut_all(&batch(&messages, 1, 1), &rule(1, 1 << 20, 50), Columns::None);
    assert_eq!(read(&chunks[1])[0].len(), 16);
}

#[test]
fn the_rows_that_a_table_lacks_can_be_taken_from_a_chunk() {
    let times = |days: [u64; 6]| days.map(|day| day * DAY + day).to_vec();
    let messages = [
        request(0, &times([1, 2, 3, 1, 2, 3])),
        request(1, &times([3, 3, 2, 1, 1, 4])),
    ];
    let chunk = &cut_all(&batch(&messages, 1, 1), &rule(1000, 1 << 20, 50), Columns::All)[0];
    let whole = read(chunk);
    for there in [vec![], vec![1, 3], vec![1, 2, 3, 4]] {
        let ticks = |day: &u64| i64::try_from(day * DAY + day).unwrap();
        let (body, rows) =
            crate::recovery::without(&chunk.body, Table::Logs, &there.iter().map(ticks).collect());
        let missing = Chunk {
            rows,
            raw_bytes: decompress(&body).len() as u64,
            body,
            received: vec![Received {
                at_us: 0,
                rows,
                first: 0,
            }],
            ..chunk.clone()
        };
        let expected: Vec<_> = whole
            .iter()
            .filter(|row| !there.contains(&(row["Timestamp"].parse::<u64>().unwrap() / DAY)))
            .cloned()
            .collect();
        assert_eq!(read(&missing), expected);
    }
}

#[test]
fn it_stops_when_no_more_is_wanted() {
    let messages = [request(0, &[1; 50])];
    let mut given = 0;
    let mut workspace = Workspace::new().unwrap();
    let batch = batch(&messages, 1, 1);
    cut(
        &batch,
        &rule(10, 1 << 20, 50),
        Columns::All,
        0,
        &mut workspace,
        &mut |_| {
            given += 1;
            given < 2
        },
    )
    .unwrap();
    assert_eq!(given, 2);
    // What was left does not leak into the next batch.
    let mut rows = 0;
    cut(
        &batch,
        &rule(10, 1 << 20, 50),
        Columns::All,
        0,
        &mut workspace,
        &mut |cut| {
            let Cut::Chunk(chunk) = cut else { panic!("{cut:?}") };
            rows += chunk.rows;
            true
        },
    )
    .unwrap();
    assert_eq!(rows, 50);
}

#[test]
fn a_piece_of_a_chunk_has_its_rows_and_another_number() {
    let times: Vec<u64> = (0..9).map(|hour| NEW_YEAR + hour).collect();
    let messages = [request(0, &times), request(1, &times)];
    for columns in [Columns::All, Columns::None] {
        let chunk = &cut_all(&batch(&messages, 1, 1), &rule(1000, 1 << 20, 50), columns)[0];
        let whole = read(chunk);
        for rows in [0..18, 0..9, 3..11, 17..18] {
            let block = crate::recovery::piece(&chunk.body, rows.clone(), 0x8000_0005);
            let piece = Chunk {
                index: 0x8000_0005,
                table: chunk.table,
                rows: block.rows,
                raw_bytes: block.raw_bytes,
                body: block.body,
                received: chunk.received(&(rows.start as u64..rows.end as u64)),
            };
            let mut expected = whole[rows].to_vec();
            for row in &mut expected {
                row.entry("_millpond_chunk".into())
                    .and_modify(|number| *number = 0x8000_0005_u32.to_string());
            }
            assert_eq!(read(&piece), expected);
        }
    }
}

const NEW_YEAR: u64 = 1_704_067_200_000_000_000;

#[test]
fn a_message_that_cannot_be_read_is_given_as_it_is_and_the_others_go_on() {
    let messages = [request(0, &[1]), vec![0x0a, 0x05], request(2, &[1])];
    let mut workspace = Workspace::new().unwrap();
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    let rule = rule(10, 1 << 20, 50);
    let batch = batch(&messages, 2, 1);
    cut(&batch, &rule, Columns::All, 0, &mut workspace, &mut |cut| {
        match cut {
            Cut::Chunk(chunk) => rows.push(chunk),
            Cut::Unreadable {
                place,
                message,
                reason,
            } => unreadable.push((place, message, reason)),
        }
        true
    })
    .unwrap();
    assert_eq!(bodies(&rows), [["0/0", "2/0"]]);
    let reason = "message 1 of the block at byte 8 of segment 00000000000000000000000000: malformed OTLP at byte 0 \
                  (resource_logs[0]): the message ends inside this field";
    let message = Record {
        sequence: 7,
        received_at_us: 1,
        payload: vec![0x0a, 0x05],
    };
    assert_eq!(unreadable, [(1, message, reason.to_owned())]);
    let found = records(&batch, &[1, 0], &mut workspace).unwrap();
    let sequences: Vec<u64> = found.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [8, 7]);
    let error = records(&batch, &[2], &mut workspace).unwrap_err();
    assert!(error.to_string().contains("no more than 2 records"), "{error}");
}

#[test]
fn what_is_damaged_is_named() {
    let mut damaged = batch(&[request(0, &[1])], 1, 1);
    let mut data = damaged.parts[0].data.to_vec();
    let last = data.len() - 1;
    data[last] ^= 1;
    damaged.parts[0].data = data.into();
    let mut workspace = Workspace::new().unwrap();
    let rule = rule(10, 1 << 20, 50);
    let error = cut(&damaged, &rule, Columns::All, 0, &mut workspace, &mut |_| true).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("segment 00000000000000000000000000 (sequence 7): "),
        "{error}"
    );
}
