//! Log records.

use crate::compare::{Group, Scoped, Signal, properties, same_pairs, same_value};
use crate::draw::{Draw, any_value, key_value, put_bytes, put_fixed32, put_fixed64, put_varint, unknown};
use millpond_otlp::logs;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::LogRecord;

properties!(Logs);

struct Logs;

impl Signal for Logs {
    type Ours<'a> = logs::LogRecord<'a>;
    type Theirs = ExportLogsServiceRequest;
    type TheirItem = LogRecord;

    fn item(draw: &mut Draw) -> Vec<u8> {
        log_record(draw)
    }

    fn resources(theirs: &Self::Theirs) -> Vec<Group<'_, Self::TheirItem>> {
        theirs
            .resource_logs
            .iter()
            .map(|group| Group {
                resource: group.resource.as_ref(),
                schema_url: &group.schema_url,
                scopes: group
                    .scope_logs
                    .iter()
                    .map(|scope| Scoped {
                        scope: scope.scope.as_ref(),
                        schema_url: &scope.schema_url,
                        items: &scope.log_records,
                    })
                    .collect(),
            })
            .collect()
    }

    fn records(_: &LogRecord) -> usize {
        1
    }

    fn assert_same(ours: logs::LogRecord, theirs: &LogRecord) -> usize {
        assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
        assert_eq!(ours.observed_time_unix_nano, theirs.observed_time_unix_nano);
        assert_eq!(ours.severity_number, theirs.severity_number);
        assert_eq!(ours.severity_text, theirs.severity_text.as_bytes());
        assert!(
            same_value(ours.body, theirs.body.as_ref()),
            "{:?} is not {:?}",
            ours.body,
            theirs.body
        );
        assert!(same_pairs(ours.attributes(), &theirs.attributes));
        assert_eq!(ours.dropped_attributes_count, theirs.dropped_attributes_count);
        assert_eq!(ours.flags, theirs.flags);
        assert_eq!(ours.trace_id, theirs.trace_id);
        assert_eq!(ours.span_id, theirs.span_id);
        assert_eq!(ours.event_name, theirs.event_name.as_bytes());
        1
    }
}

fn log_record(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    let mut first = true;
    for _ in 0..draw.below(12) {
        match draw.below(14) {
            1 => put_fixed64(1, draw.u64(), &mut out),
            2 => put_varint(2, draw.u64(), &mut out),
            3 => put_bytes(3, &draw.text(), &mut out),
            5 => {
                put_bytes(5, &any_value(draw, first, 0), &mut out);
                first = false;
            }
            7 => put_varint(7, draw.u64(), &mut out),
            8 => put_fixed32(8, draw.u64(), &mut out),
            9 => put_bytes(9, &[draw.byte(); 16], &mut out),
            10 => put_bytes(10, &[draw.byte(); 8], &mut out),
            11 => put_fixed64(11, draw.u64(), &mut out),
            12 => put_bytes(12, &draw.text(), &mut out),
            13 => unknown(draw, &mut out),
            _ => put_bytes(6, &key_value(draw, 0), &mut out),
        }
    }
    out
}
