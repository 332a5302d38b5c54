//! Chunks of one batch, read back from their Native blocks.

use super::*;
use crate::schema::Table;
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
use read::read;
use std::collections::{BTreeMap, BTreeSet};

mod numbering;
mod read;
mod sorting;

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

/// A request with one record per timestamp; `number` distinguishes requests.
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
                // The time of a message is its index in the batch, whatever its block.
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
            first_record: 0,
            segment: ulid::Ulid::nil(),
            offset: 8,
            data: blocks.concat().into(),
            raw_len: 0,
            records: 0,
            dropped: Default::default(),
        })
        .collect();
    let id = BatchId {
        buffer_id: uuid::Uuid::nil(),
        shard: 0,
        stream: signal.stream().into(),
        consumer: "test".into(),
        cursor: "test".into(),
        generation: 0,
        sink: "clickhouse:otel.otel_logs".into(),
        low: 7,
        high: 9,
        schema_version: 2,
    };
    Batch {
        id,
        encoding: Encoding::Otlp,
        parts,
    }
}

fn policy(chunk_rows: u64, chunk_bytes: u64, max_partitions_per_chunk: u32) -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 1_000_000,
        batch_bytes: 1 << 30,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight: 4,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}

/// The chunks of a readable batch.
fn cut_all(batch: &Batch, policy: &BatchingPolicy, columns: Columns) -> Vec<Chunk> {
    cut_with(Workspace::new().unwrap(), batch, policy, columns)
}

fn cut_with(
    mut workspace: Workspace,
    batch: &Batch,
    policy: &BatchingPolicy,
    columns: Columns,
) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    cut(batch, policy, columns, None, 1234, &mut workspace, &mut |cut| {
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

const IDS: [&str; 2] = ["_millpond_sequence", "_millpond_record"];

fn id_of(row: &BTreeMap<String, String>) -> RowId {
    RowId {
        sequence: row[IDS[0]].parse().unwrap(),
        record: row[IDS[1]].parse().unwrap(),
    }
}

fn without_ids(chunk: &Chunk) -> Vec<BTreeMap<String, String>> {
    let mut rows = read(chunk);
    for row in &mut rows {
        row.retain(|name, _| !IDS.contains(&name.as_str()));
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Blocks do not affect the chunks. Segments affect only the identities.
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
        let policy = policy(chunk_rows, chunk_bytes, partitions);
        let whole = cut_all(&batch(&messages, messages.len(), 1), &policy, Columns::All);
        let blocks = cut_all(&batch(&messages, per_block, messages.len()), &policy, Columns::All);
        prop_assert_eq!(whole.len(), blocks.len());
        for (one, other) in whole.iter().zip(&blocks) {
            prop_assert_eq!(&one.body, &other.body);
            prop_assert_eq!(&one.received, &other.received);
        }
        let split = cut_all(&batch(&messages, per_block, per_part), &policy, Columns::All);
        prop_assert_eq!(whole.len(), split.len());
        for (index, (one, other)) in whole.iter().zip(&split).enumerate() {
            prop_assert_eq!(one.index as usize, index);
            prop_assert_eq!(without_ids(one), without_ids(other));
            let ids: Vec<RowId> = read(other).iter().map(id_of).collect();
            prop_assert_eq!(ids, other.ids().collect::<Vec<_>>());
            prop_assert!(one.rows <= chunk_rows);
            let days: BTreeSet<u64> =
                read(one).iter().map(|row| row["Timestamp"].parse::<u64>().unwrap() / DAY).collect();
            prop_assert!(days.len() <= partitions as usize);
        }
        // Each row knows its record.
        let of_batch = batch(&messages, per_block, per_part);
        for chunk in &split {
            let ids: Vec<RowId> = chunk.ids().collect();
            let found = records(&of_batch, &ids, &mut Workspace::new().unwrap()).unwrap();
            let alone: Vec<Vec<u8>> = found.iter().map(|record| record.payload.clone()).collect();
            let rows = cut_all(&batch(&alone, alone.len(), 1), &self::policy(1 << 20, 1 << 27, 50), Columns::None);
            prop_assert_eq!(bodies(&rows).concat(), bodies(std::slice::from_ref(chunk)).concat());
            let received: Vec<String> = found.iter().map(|record| record.received_at_us.to_string()).collect();
            let expected: Vec<String> = read(chunk).into_iter().map(|mut row| row.remove("_millpond_received_at").unwrap()).collect();
            prop_assert_eq!(received, expected);
        }
        // Every row occurs once.
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

/// A request with one metric of each kind and the given numbers of points.
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

    /// Each of the five tables gets the same chunks, however the messages arrive.
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
        let policy = policy(chunk_rows, chunk_bytes, partitions);
        let whole = cut_all(&batch_of(Signal::Metrics, &messages, messages.len(), 1), &policy, Columns::All);
        let split = cut_all(&batch_of(Signal::Metrics, &messages, per_block, per_part), &policy, Columns::All);
        prop_assert_eq!(whole.len(), split.len());
        let mut rows = [0; 5];
        for (index, (one, other)) in whole.iter().zip(&split).enumerate() {
            prop_assert_eq!(one.index as usize, index);
            prop_assert_eq!(one.table, other.table);
            prop_assert_eq!(without_ids(one), without_ids(other));
            prop_assert!((1..=chunk_rows).contains(&one.rows));
            rows[one.table as usize - Table::Gauge.number() as usize] += one.rows;
        }
        // Each row knows its point. Extracted, the point becomes the same row of the same table.
        let of_batch = batch_of(Signal::Metrics, &messages, per_block, per_part);
        let mut seen = BTreeSet::new();
        for chunk in cut_all(&of_batch, &policy, Columns::None) {
            let ids: Vec<RowId> = chunk.ids().collect();
            let found = records(&of_batch, &ids, &mut Workspace::new().unwrap()).unwrap();
            let alone: Vec<Vec<u8>> = found.into_iter().map(|record| record.payload).collect();
            let alone = batch_of(Signal::Metrics, &alone, 1, 1);
            let again = cut_all(&alone, &self::policy(1 << 20, 1 << 27, 50), Columns::None);
            prop_assert_eq!(again.len(), 1);
            prop_assert_eq!(again[0].table, chunk.table);
            prop_assert_eq!(read(&again[0]), read(&chunk));
            seen.extend(ids);
        }
        prop_assert_eq!(seen.len() as u64, rows.iter().sum::<u64>());
        let expected: [u64; 5] = std::array::from_fn(|kind| sizes.iter().map(|points| points[kind] as u64).sum());
        prop_assert_eq!(rows, expected);
    }
}

/// The rows of five tables wait together, and take no more memory than those of one.
#[test]
fn the_largest_table_of_metrics_goes_first() {
    let chunks = |bytes| {
        let batch = batch_of(Signal::Metrics, &[metrics(0, [1, 50, 3, 0, 0])], 1, 1);
        let chunks = cut_all(&batch, &policy(1000, bytes, 50), Columns::None);
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

fn id(sequence: u64, record: u32) -> RowId {
    RowId { sequence, record }
}

#[test]
fn a_chunk_ends_at_its_rows() {
    let messages = [request(0, &[1; 5]), request(1, &[1; 5])];
    let chunks = cut_all(&batch(&messages, 1, 1), &policy(4, 1 << 20, 50), Columns::All);
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
                first: id(7, 4)
            },
            Received {
                at_us: 1,
                rows: 3,
                first: id(8, 0)
            }
        ]
    );
}

#[test]
fn a_chunk_ends_with_the_row_that_fills_it() {
    let messages = [request(0, &[1; 9])];
    let chunks = cut_all(&batch(&messages, 1, 1), &policy(1000, 1, 50), Columns::All);
    assert_eq!(chunks.len(), 9);
}

#[test]
fn rows_over_many_partitions_are_split_by_partition() {
    let times: Vec<u64> = [3, 1, 2, 3, 1, 2, 0, 0].map(|day| day * DAY).to_vec();
    let messages = [request(0, &times)];
    let chunks = cut_all(&batch(&messages, 1, 1), &policy(1000, 1 << 20, 2), Columns::All);
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
    // The maps and dictionaries of a part cover only its rows.
    let whole = cut_all(&batch(&messages, 1, 1), &policy(1000, 1 << 20, 50), Columns::None);
    let mut rows: Vec<_> = cut_all(&batch(&messages, 1, 1), &policy(1000, 1 << 20, 2), Columns::None)
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
    let chunks = cut_all(&batch(&messages, 1, 1), &policy(1, 1 << 20, 50), Columns::All);
    let row = &read(&chunks[1])[0];
    assert_eq!(row["_millpond_received_at"], "1");
    assert_eq!(row["_millpond_inserted_at"], "1234");
    assert_eq!(
        row["_millpond_source"],
        "00000000-0000-0000-0000-000000000000/0000/otlp.logs/test"
    );
    assert_eq!(id_of(row), id(8, 0));
    assert_eq!(row.len(), 21);
    let chunks = cut_all(&batch(&messages, 1, 1), &policy(1, 1 << 20, 50), Columns::None);
    assert_eq!(read(&chunks[1])[0].len(), 16);
}

#[test]
fn it_stops_when_no_more_is_wanted() {
    let messages = [request(0, &[1; 50])];
    let mut given = 0;
    let mut workspace = Workspace::new().unwrap();
    let batch = batch(&messages, 1, 1);
    cut(
        &batch,
        &policy(10, 1 << 20, 50),
        Columns::All,
        None,
        0,
        &mut workspace,
        &mut |_| {
            given += 1;
            given < 2
        },
    )
    .unwrap();
    assert_eq!(given, 2);
    // Leftovers do not leak into the next batch.
    let mut rows = 0;
    cut(
        &batch,
        &policy(10, 1 << 20, 50),
        Columns::All,
        None,
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
fn some_rows_of_a_chunk_are_what_they_were() {
    let times: Vec<u64> = (0..9).map(|hour| NEW_YEAR + hour).collect();
    let messages = [request(0, &times), request(1, &times)];
    for columns in [Columns::All, Columns::None] {
        let chunk = &cut_all(&batch(&messages, 1, 1), &policy(1000, 1 << 20, 50), columns)[0];
        let whole = read(chunk);
        assert_eq!(whole.len(), 18);
        for rows in [
            (0..18).collect(),
            vec![],
            vec![17],
            vec![0, 1, 8, 9, 10],
            vec![2, 4, 16],
        ] {
            let block = crate::recovery::some(&chunk.body, &rows);
            let places: Vec<u64> = rows.iter().map(|&row| row as u64).collect();
            let some = Chunk {
                rows: block.rows,
                raw_bytes: block.raw_bytes,
                body: block.body,
                received: chunk.received(&places),
                ..chunk.clone()
            };
            let expected: Vec<_> = rows.iter().map(|&row| whole[row].clone()).collect();
            assert_eq!(read(&some), expected);
        }
    }
}

#[test]
fn a_record_beyond_the_last_number_is_refused() {
    let cut_from = |first_record| {
        let mut batch = batch(&[request(0, &[1; 3]), vec![0x0a, 0x05]], 2, 1);
        batch.parts[0].first_record = first_record;
        let (mut rows, mut unreadable) = (0, Vec::new());
        let cut = cut(
            &batch,
            &policy(10, 1 << 20, 50),
            Columns::All,
            None,
            0,
            &mut Workspace::new().unwrap(),
            &mut |cut| {
                match cut {
                    Cut::Chunk(chunk) => rows += chunk.rows,
                    Cut::Unreadable { id, .. } => unreadable.push(id),
                }
                true
            },
        );
        cut.map(|()| (rows, unreadable))
    };
    assert_eq!(cut_from(u32::MAX - 4).unwrap(), (3, vec![id(7, u32::MAX - 1)]));
    for first in [u32::MAX - 3, u32::MAX - 2, u32::MAX] {
        let error = cut_from(first).unwrap_err();
        assert!(error.to_string().contains("4294967295 records"), "{error}");
    }
}

const NEW_YEAR: u64 = 1_704_067_200_000_000_000;

#[test]
fn a_message_that_cannot_be_read_is_given_as_it_is_and_the_others_go_on() {
    let messages = [request(0, &[1]), vec![0x0a, 0x05], request(2, &[1])];
    let mut workspace = Workspace::new().unwrap();
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    let policy = policy(10, 1 << 20, 50);
    let batch = batch(&messages, 2, 1);
    cut(
        &batch,
        &policy,
        Columns::All,
        None,
        0,
        &mut workspace,
        &mut |cut| {
            match cut {
                Cut::Chunk(chunk) => rows.push(chunk),
                Cut::Unreadable { id, message, reason } => unreadable.push((id, message, reason)),
            }
            true
        },
    )
    .unwrap();
    assert_eq!(bodies(&rows), [["0/0", "2/0"]]);
    let reason = "message 1 of the block at byte 8 of segment 00000000000000000000000000: malformed OTLP at byte 0 \
                  (resource_logs[0]): the message ends inside this field";
    let message = Record {
        received_at_us: 1,
        payload: vec![0x0a, 0x05],
    };
    assert_eq!(unreadable, [(id(7, 1), message.clone(), reason.to_owned())]);
    let found = records(&batch, &[id(8, 0), id(7, 1), id(7, 0)], &mut workspace).unwrap();
    let times: Vec<i64> = found.iter().map(|record| record.received_at_us).collect();
    assert_eq!(times, [2, 1, 0]);
    assert_eq!(found[1], message);
    for unknown in [id(7, 2), id(9, 0)] {
        let error = records(&batch, &[id(7, 0), unknown], &mut workspace).unwrap_err();
        let text = format!(
            "sequence {} has no record number {}",
            unknown.sequence, unknown.record
        );
        assert!(error.to_string().contains(&text), "{error}");
    }
}

#[test]
fn damage_is_reported_with_its_place() {
    let mut damaged = batch(&[request(0, &[1])], 1, 1);
    let mut data = damaged.parts[0].data.to_vec();
    let last = data.len() - 1;
    data[last] ^= 1;
    damaged.parts[0].data = data.into();
    let mut workspace = Workspace::new().unwrap();
    let policy = policy(10, 1 << 20, 50);
    let error = cut(
        &damaged,
        &policy,
        Columns::All,
        None,
        0,
        &mut workspace,
        &mut |_| true,
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("segment 00000000000000000000000000 (sequence 7): "),
        "{error}"
    );
}
