//! Pins the numbers of records. Stored rows carry them: a decoder that counts differently would assign their identities
//! to other rows.

use super::*;
use crate::identities::NumberedRecord;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use std::fmt::Write as _;

const GOLDEN: &str = include_str!("../../../testdata/numbering.txt");

/// A request with spans in two resources of two scopes each.
fn spans(number: usize, spans: usize) -> Vec<u8> {
    let scope = |scope: usize| ScopeSpans {
        spans: (0..spans)
            .map(|span| Span {
                name: format!("{number}/{scope}/{span}"),
                ..Span::default()
            })
            .collect(),
        ..ScopeSpans::default()
    };
    let resource = |resource: usize| ResourceSpans {
        scope_spans: vec![scope(2 * resource), scope(2 * resource + 1)],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![resource(0), ResourceSpans::default(), resource(1)],
    }
    .encode_to_vec()
}

/// A metric without data, one without points, and one with a point.
fn empty_metrics() -> Vec<u8> {
    let gauge = |points: usize| {
        Data::Gauge(Gauge {
            data_points: vec![NumberDataPoint::default(); points],
        })
    };
    let metrics = [None, Some(gauge(0)), Some(gauge(1))].map(|data| Metric {
        name: "after empty ones".into(),
        data,
        ..Metric::default()
    });
    let group = ResourceMetrics {
        scope_metrics: vec![
            ScopeMetrics::default(),
            ScopeMetrics {
                metrics: metrics.to_vec(),
                ..ScopeMetrics::default()
            },
        ],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics::default(), group],
    }
    .encode_to_vec()
}

/// Truncates a message within its last record.
fn cut_short(message: &[u8]) -> Vec<u8> {
    message[..message.len() - 1].to_vec()
}

fn messages(signal: Signal) -> Vec<Vec<u8>> {
    match signal {
        Signal::Logs => vec![
            request(0, &[3 * DAY, 1, 2 * DAY, 1, 5]),
            Vec::new(),
            request(1, &[]),
            cut_short(&request(2, &[1, 2, 3])),
            request(3, &[7]),
            vec![0x0a, 0x05],
            request(4, &[DAY, 2]),
        ],
        Signal::Traces => vec![
            spans(0, 1),
            spans(1, 0),
            cut_short(&spans(2, 1)),
            spans(3, 2),
            spans(4, 1),
        ],
        Signal::Metrics => vec![
            metrics(0, [2, 1, 1, 2, 1]),
            empty_metrics(),
            cut_short(&metrics(1, [1, 1, 1, 1, 1])),
            metrics(2, [0, 2, 0, 1, 3]),
            metrics(3, [1, 0, 0, 0, 0]),
        ],
    }
}

/// Maps the number of each row and unreadable message of a batch to its table and a name.
fn numbered(signal: Signal, policy: &BatchingPolicy) -> BTreeMap<RowId, String> {
    let batch = batch_of(signal, &messages(signal), 2, 2);
    let mut found = BTreeMap::new();
    let mut workspace = Workspace::new().unwrap();
    cut(
        &batch,
        policy,
        Columns::All,
        None,
        0,
        &mut workspace,
        &mut |cut| {
            match cut {
                Cut::Unreadable { id, .. } => {
                    assert_eq!(found.insert(id, "unreadable".to_owned()), None);
                }
                Cut::Chunk(chunk) => {
                    let table = Table::ALL[chunk.table as usize];
                    let name = match signal {
                        Signal::Logs => "Body",
                        Signal::Traces => "SpanName",
                        Signal::Metrics => "MetricName",
                    };
                    for row in read(&chunk) {
                        let told = format!("{} {:?}", table.key(), row[name]);
                        assert_eq!(found.insert(id_of(&row), told), None);
                    }
                }
            }
            true
        },
    )
    .unwrap();
    let numbering = numbering(&batch, None, &mut workspace).unwrap();
    let readable = |(id, told): (&RowId, &String)| NumberedRecord {
        id: *id,
        readable: told != "unreadable",
    };
    assert_eq!(numbering, found.iter().map(readable).collect::<Vec<_>>());
    found
}

#[test]
fn a_record_has_the_number_that_it_always_had() {
    let mut told = String::new();
    for signal in Signal::ALL {
        let found = numbered(signal, &policy(1000, 1 << 20, 50));
        // The boundaries of chunks do not matter.
        assert_eq!(found, numbered(signal, &policy(2, 1 << 20, 1)));
        writeln!(told, "{}", signal.stream()).unwrap();
        for (RowId { sequence, record }, what) in found {
            writeln!(told, "{sequence} {record} {what}").unwrap();
        }
    }
    assert_eq!(told, GOLDEN, "numbers of records must not change:\n{told}");
}

/// A dead letter holds one record, which keeps its number.
#[test]
fn a_record_alone_keeps_its_number() {
    for signal in Signal::ALL {
        let all = batch_of(signal, &messages(signal), 2, 2);
        let mut workspace = Workspace::new().unwrap();
        for NumberedRecord { id, readable } in numbering(&all, None, &mut workspace).unwrap() {
            let [record] = records(&all, &[id], &mut workspace).unwrap().try_into().unwrap();
            let mut letter = batch_of(signal, &[record.payload], 1, 1);
            letter.parts[0].sequence = id.sequence;
            letter.parts[0].first_record = id.record;
            assert_eq!(
                numbering(&letter, None, &mut workspace).unwrap(),
                [NumberedRecord { id, readable }]
            );
        }
    }
}
