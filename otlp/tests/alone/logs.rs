//! Log records.

use crate::field;
use millpond_otlp::{Signal, logs::Request, record_alone, validate};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use proptest::prelude::*;
use prost::Message;

/// A request with this many records in each scope of each resource.
fn request(shape: &[Vec<usize>]) -> ExportLogsServiceRequest {
    let mut time_unix_nano = 0;
    let mut record = || {
        time_unix_nano += 1;
        LogRecord {
            time_unix_nano,
            event_name: "x".repeat(usize::try_from(time_unix_nano).unwrap() * 7),
            ..LogRecord::default()
        }
    };
    let mut scope_logs = |place: usize, records: usize| ScopeLogs {
        scope: Some(InstrumentationScope {
            name: format!("scope {place}"),
            ..InstrumentationScope::default()
        }),
        log_records: (0..records).map(|_| record()).collect(),
        schema_url: format!("url {place}"),
    };
    let resource_logs = shape.iter().enumerate().map(|(place, scopes)| ResourceLogs {
        resource: Some(Resource {
            dropped_attributes_count: u32::try_from(place).unwrap(),
            ..Resource::default()
        }),
        scope_logs: scopes
            .iter()
            .enumerate()
            .map(|(place, records)| scope_logs(place, *records))
            .collect(),
        schema_url: format!("url of resource {place}"),
    });
    ExportLogsServiceRequest {
        resource_logs: resource_logs.collect(),
    }
}

/// The expected single-record requests, in order.
fn expected(request: &ExportLogsServiceRequest) -> Vec<ExportLogsServiceRequest> {
    let mut all = Vec::new();
    for resource in &request.resource_logs {
        for scope in &resource.scope_logs {
            for record in &scope.log_records {
                let scope_logs = vec![ScopeLogs {
                    log_records: vec![record.clone()],
                    ..scope.clone()
                }];
                all.push(ExportLogsServiceRequest {
                    resource_logs: vec![ResourceLogs {
                        scope_logs,
                        ..resource.clone()
                    }],
                });
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn each_record_comes_with_what_it_shares_and_nothing_else(
        shape in prop::collection::vec(prop::collection::vec(0_usize..4, 0..4), 0..4),
    ) {
        let request = request(&shape);
        let bytes = request.encode_to_vec();
        let expected = expected(&request);
        for (place, expected) in (0..).zip(&expected) {
            let alone = record_alone(Signal::Logs, &bytes, place).expect("a record");
            prop_assert_eq!(&ExportLogsServiceRequest::decode(&*alone).expect("valid OTLP"), expected);
        }
        prop_assert_eq!(record_alone(Signal::Logs, &bytes, expected.len() as u64), None);
    }

    #[test]
    fn bytes_that_are_no_request_have_no_records(bytes in prop::collection::vec(any::<u8>(), 0..100), place in 0_u64..3) {
        if let Ok(counts) = validate(Signal::Logs, &bytes) {
            prop_assert_eq!(record_alone(Signal::Logs, &bytes, place).is_some(), place < counts.records);
        } else if let Some(alone) = record_alone(Signal::Logs, &bytes, place) {
            // A fault within a record is copied with it.
            prop_assert!(alone.len() <= bytes.len());
        }
    }
}

#[test]
fn the_field_that_scope_logs_replaced_counts_where_it_is_alone() {
    let record = |time: u8| field(2, &[0x09, time, 0, 0, 0, 0, 0, 0, 0]);
    // Field 1000 needs a two-byte tag.
    let old = |content: &[u8]| [&[0xc2, 0x3e, u8::try_from(content.len()).unwrap()], content].concat();
    let request = [
        field(1, &[old(&record(1)), field(2, &record(2))].concat()),
        field(1, &old(&[record(3), record(4)].concat())),
    ]
    .concat();
    let times: Vec<Vec<u64>> = (0..3)
        .map(|place| {
            let alone = record_alone(Signal::Logs, &request, place).expect("a record");
            let parsed = Request::parse(&alone).expect("valid OTLP");
            let scopes = parsed
                .resources()
                .flat_map(|resource| resource.scopes().collect::<Vec<_>>());
            let records = scopes.flat_map(|scope| scope.items().collect::<Vec<_>>());
            records.map(|record| record.time_unix_nano).collect()
        })
        .collect();
    assert_eq!(times, [[2], [3], [4]]);
    assert_eq!(record_alone(Signal::Logs, &request, 3), None);
}

#[test]
fn unknown_fields_come_along() {
    let unknown = [0xa0, 0x06, 0x07];
    let scope = [field(2, b"").as_slice(), &unknown].concat();
    let resource = [field(2, &scope).as_slice(), &unknown].concat();
    let request = [field(1, &resource).as_slice(), &unknown].concat();
    assert_eq!(record_alone(Signal::Logs, &request, 0), Some(request));
}
