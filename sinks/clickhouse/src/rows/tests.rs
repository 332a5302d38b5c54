//! Values and attributes compared with the Collector's output.

use super::attributes::Space;
use super::logs::LogColumns;
use super::*;
use crate::frame::{Frames, decompress};
use crate::native::Maps;
use millpond_otlp::logs::Request;

#[derive(serde::Deserialize)]
struct Truth {
    bodies: Vec<Body>,
    attributes: Vec<Map>,
}

#[derive(serde::Deserialize)]
struct Body {
    name: String,
    request: String,
    text: String,
}

#[derive(serde::Deserialize)]
struct Map {
    name: String,
    request: String,
    pairs: Vec<(String, String)>,
}

/// The output of the Collector's own code (pdata 1.67, clickhouse-go 2.47) for requests, all in hexadecimal.
fn truth() -> Truth {
    serde_json::from_str(include_str!("../../testdata/collector.json")).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn rows(requests: &[&[u8]]) -> LogColumns {
    let mut rows = Rows::<LogColumns>::default();
    for request in requests {
        let request = Request::parse(request).unwrap();
        let mut space = Space::default();
        for resource in request.resources() {
            let shared_resource = Resource::new(&resource);
            for scope in resource.scopes() {
                let shared_scope = Scope::new(&scope);
                let shared = rows.shared(&shared_resource, &shared_scope);
                for record in scope.items() {
                    rows.push(
                        (&shared_scope, &shared),
                        &record,
                        Origin {
                            id: RowId {
                                sequence: 0,
                                record: 0,
                            },
                            received_at_us: 0,
                        },
                        &mut space,
                    );
                }
            }
        }
    }
    rows.columns
}

fn written(column: &dyn Column) -> Vec<u8> {
    let mut frames = Frames::default();
    column.write(&mut frames);
    decompress(&frames.finish().0)
}

#[test]
fn bodies_are_the_text_that_the_collector_writes() {
    for Body { name, request, text } in truth().bodies {
        let mut expected = Strings::default();
        expected.push(&hex(&text));
        let found = rows(&[&hex(&request)]);
        let (found, expected) = (written(&found.body), written(&expected));
        assert_eq!(found, expected, "{name}: {}", String::from_utf8_lossy(&found));
    }
}

#[test]
fn attributes_are_the_map_that_the_collector_writes() {
    let mut all = Maps::default();
    let truth = truth().attributes;
    // Twice, to cover known shapes as well as new ones.
    let requests: Vec<_> = truth.iter().chain(&truth).map(|map| hex(&map.request)).collect();
    for Map { name, request, pairs } in truth.iter().chain(&truth) {
        let mut expected = Maps::default();
        for (key, value) in pairs {
            for map in [&mut expected, &mut all] {
                map.keys.push(&hex(key));
                map.values.push(&hex(value));
            }
        }
        expected.end_row();
        all.end_row();
        let found = rows(&[&hex(request)]);
        // Our dictionary order differs: compare the rows' values.
        assert_eq!(entries(found.log_attributes.maps()), entries(&expected), "{name}");
    }
    let requests: Vec<_> = requests.iter().map(|request| &request[..]).collect();
    assert_eq!(entries(rows(&requests).log_attributes.maps()), entries(&all));
}

/// A column with its dictionary in a canonical order.
fn entries(map: &Maps) -> Vec<u8> {
    let mut same = Maps::default();
    let rows: Vec<usize> = (0..map.rows()).collect();
    Column::append(&mut same, map, &rows);
    written(&same)
}

#[test]
fn more_shapes_than_are_remembered_still_fit() {
    use opentelemetry_proto::tonic::{collector::logs::v1::ExportLogsServiceRequest, common, logs};
    use prost::Message as _;
    let record = |number: usize| logs::v1::LogRecord {
        attributes: ["b".to_owned(), format!("key{}", number % 40), "a".to_owned()]
            .map(|key| common::v1::KeyValue {
                key,
                ..Default::default()
            })
            .to_vec(),
        ..Default::default()
    };
    let request = ExportLogsServiceRequest {
        resource_logs: vec![logs::v1::ResourceLogs {
            scope_logs: vec![logs::v1::ScopeLogs {
                log_records: (0..100).map(record).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }],
    };
    let mut expected = Maps::default();
    for number in 0..100 {
        for key in ["a".to_owned(), "b".to_owned(), format!("key{}", number % 40)] {
            expected.keys.push(key.as_bytes());
            expected.values.push(b"");
        }
        expected.end_row();
    }
    let found = rows(&[&request.encode_to_vec()]);
    assert_eq!(entries(found.log_attributes.maps()), entries(&expected));
}
