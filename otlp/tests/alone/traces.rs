//! Spans.

use millpond_otlp::{Signal, record_alone};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use proptest::prelude::*;
use prost::Message;

/// A span with as many events as its number, and a link.
fn span(number: u64) -> Span {
    Span {
        start_time_unix_nano: number,
        events: (0..number)
            .map(|time_unix_nano| Event {
                time_unix_nano,
                ..Event::default()
            })
            .collect(),
        links: vec![Link {
            trace_id: vec![9; 16],
            ..Link::default()
        }],
        ..Span::default()
    }
}

fn request(resources: Vec<ResourceSpans>) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest {
        resource_spans: resources,
    }
}

proptest! {
    #[test]
    fn each_span_comes_with_what_it_shares_and_nothing_else(
        shape in prop::collection::vec(prop::collection::vec(0_usize..4, 0..4), 0..4),
    ) {
        let (mut resources, mut expected) = (Vec::new(), Vec::new());
        let mut numbers = 0..;
        for (resource, scopes) in (0_u32..).zip(shape) {
            let resource = ResourceSpans {
                resource: Some(Resource { dropped_attributes_count: resource, ..Resource::default() }),
                schema_url: format!("url of resource {resource}"),
                ..ResourceSpans::default()
            };
            let mut scope_spans = Vec::new();
            for (scope, spans) in scopes.into_iter().enumerate() {
                let scope = ScopeSpans {
                    scope: Some(InstrumentationScope { name: format!("scope {scope}"), ..InstrumentationScope::default() }),
                    spans: numbers.by_ref().take(spans).map(span).collect(),
                    ..ScopeSpans::default()
                };
                for span in &scope.spans {
                    let alone = ScopeSpans { spans: vec![span.clone()], ..scope.clone() };
                    expected.push(request(vec![ResourceSpans { scope_spans: vec![alone], ..resource.clone() }]));
                }
                scope_spans.push(scope);
            }
            resources.push(ResourceSpans { scope_spans, ..resource });
        }
        let bytes = request(resources).encode_to_vec();
        for (place, expected) in (0..).zip(&expected) {
            let alone = record_alone(Signal::Traces, &bytes, place).expect("a record");
            prop_assert_eq!(&ExportTraceServiceRequest::decode(&*alone).expect("valid OTLP"), expected);
        }
        prop_assert_eq!(record_alone(Signal::Traces, &bytes, expected.len() as u64), None);
    }
}
