//! Spans.

use crate::compare::{Group, Scoped, Signal, properties, same_pairs};
use crate::draw::{Draw, key_value, put_bytes, put_fixed32, put_fixed64, put_varint, unknown};
use millpond_otlp::traces;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;

properties!(Traces);

struct Traces;

impl Signal for Traces {
    type Ours<'a> = traces::Span<'a>;
    type Theirs = ExportTraceServiceRequest;
    type TheirItem = Span;

    fn item(draw: &mut Draw) -> Vec<u8> {
        span(draw)
    }

    fn resources(theirs: &Self::Theirs) -> Vec<Group<'_, Self::TheirItem>> {
        theirs
            .resource_spans
            .iter()
            .map(|group| Group {
                resource: group.resource.as_ref(),
                schema_url: &group.schema_url,
                scopes: group
                    .scope_spans
                    .iter()
                    .map(|scope| Scoped {
                        scope: scope.scope.as_ref(),
                        schema_url: &scope.schema_url,
                        items: &scope.spans,
                    })
                    .collect(),
            })
            .collect()
    }

    fn records(_: &Span) -> usize {
        1
    }

    fn assert_same(ours: traces::Span, theirs: &Span) -> usize {
        assert_eq!(ours.trace_id, theirs.trace_id);
        assert_eq!(ours.span_id, theirs.span_id);
        assert_eq!(ours.parent_span_id, theirs.parent_span_id);
        assert_eq!(ours.trace_state, theirs.trace_state.as_bytes());
        assert_eq!(ours.name, theirs.name.as_bytes());
        assert_eq!(ours.kind, theirs.kind);
        assert_eq!(ours.start_time_unix_nano, theirs.start_time_unix_nano);
        assert_eq!(ours.end_time_unix_nano, theirs.end_time_unix_nano);
        assert!(same_pairs(ours.attributes(), &theirs.attributes));
        assert_eq!(ours.dropped_attributes_count, theirs.dropped_attributes_count);
        assert_eq!(ours.dropped_events_count, theirs.dropped_events_count);
        assert_eq!(ours.dropped_links_count, theirs.dropped_links_count);
        assert_eq!(ours.flags, theirs.flags);
        let status = theirs.status.clone().unwrap_or_default();
        assert_eq!(ours.status_message, status.message.as_bytes());
        assert_eq!(ours.status_code, status.code);
        assert_eq!(ours.events().count(), theirs.events.len());
        for (ours, theirs) in ours.events().zip(&theirs.events) {
            assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
            assert_eq!(ours.name, theirs.name.as_bytes());
            assert!(same_pairs(ours.attributes(), &theirs.attributes));
            assert_eq!(ours.dropped_attributes_count, theirs.dropped_attributes_count);
        }
        assert_eq!(ours.links().count(), theirs.links.len());
        for (ours, theirs) in ours.links().zip(&theirs.links) {
            assert_eq!(ours.trace_id, theirs.trace_id);
            assert_eq!(ours.span_id, theirs.span_id);
            assert_eq!(ours.trace_state, theirs.trace_state.as_bytes());
            assert!(same_pairs(ours.attributes(), &theirs.attributes));
            assert_eq!(ours.dropped_attributes_count, theirs.dropped_attributes_count);
            assert_eq!(ours.flags, theirs.flags);
        }
        1
    }
}

fn span(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(14) {
        match draw.below(19) {
            0 => unknown(draw, &mut out),
            number @ (1 | 2 | 4) => {
                let length = [16, 8, 0, 3][usize::from(draw.below(4))];
                put_bytes(number.into(), &vec![draw.byte(); length], &mut out);
            }
            number @ (3 | 5) => put_bytes(number.into(), &draw.text(), &mut out),
            number @ (6 | 10 | 12 | 14) => put_varint(number.into(), draw.u64(), &mut out),
            number @ (7 | 8) => put_fixed64(number.into(), draw.u64(), &mut out),
            11 => put_bytes(11, &event(draw), &mut out),
            13 => put_bytes(13, &link(draw), &mut out),
            15 => put_bytes(15, &status(draw), &mut out),
            16 => put_fixed32(16, draw.u64(), &mut out),
            _ => put_bytes(9, &key_value(draw, 0), &mut out),
        }
    }
    out
}

fn event(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(6) {
        match draw.below(5) {
            0 => unknown(draw, &mut out),
            1 => put_fixed64(1, draw.u64(), &mut out),
            2 => put_bytes(2, &draw.text(), &mut out),
            3 => put_bytes(3, &key_value(draw, 0), &mut out),
            _ => put_varint(4, draw.u64(), &mut out),
        }
    }
    out
}

fn link(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(8) {
        match draw.below(7) {
            0 => unknown(draw, &mut out),
            1 => put_bytes(1, &[draw.byte(); 16], &mut out),
            2 => put_bytes(2, &[draw.byte(); 8], &mut out),
            3 => put_bytes(3, &draw.text(), &mut out),
            4 => put_bytes(4, &key_value(draw, 0), &mut out),
            5 => put_varint(5, draw.u64(), &mut out),
            _ => put_fixed32(6, draw.u64(), &mut out),
        }
    }
    out
}

fn status(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(4) {
        match draw.below(4) {
            // The status code from before 2021, which nobody reads anymore.
            0 => put_varint(1, draw.u64(), &mut out),
            1 => put_bytes(2, &draw.text(), &mut out),
            2 => put_varint(3, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}
