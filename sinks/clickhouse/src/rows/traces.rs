//! Spans as rows of `otel_traces`.

use super::attributes::{AttributeMaps, Space};
use super::shared_maps::SharedMaps;
use super::{Origin, Resource, Rows, Scope, TableColumns, columns, day, push_id};
use crate::native::{Array, Dictionary, Numbers, Strings, Ticks};
use crate::schema::Table;
use millpond_otlp::traces::Span;

columns! {
    /// The exporter's columns, in its order.
    SpanColumns {
        timestamp: Ticks,
        trace_id: Strings,
        span_id: Strings,
        parent_span_id: Strings,
        trace_state: Strings,
        span_name: Dictionary,
        span_kind: Dictionary,
        service_name: Dictionary,
        resource_attributes: SharedMaps,
        scope_name: Strings,
        scope_version: Strings,
        span_attributes: AttributeMaps,
        duration: Numbers<u64>,
        status_code: Dictionary,
        status_message: Strings,
        event_times: Array<Ticks>,
        event_names: Array<Dictionary>,
        event_attributes: Array<AttributeMaps>,
        link_trace_ids: Array<Strings>,
        link_span_ids: Array<Strings>,
        link_trace_states: Array<Strings>,
        link_attributes: Array<AttributeMaps>,
    }
}

impl TableColumns for SpanColumns {
    const TABLE: Table = Table::Traces;

    fn days(&self) -> impl Iterator<Item = i64> {
        self.timestamp.0.iter().map(|&nanoseconds| day(nanoseconds))
    }
}

/// Dictionary indexes of the values that a resource shares among its rows, until the next `clear`.
pub(crate) struct Shared {
    service: u32,
    resource_attributes: u32,
}

impl Rows<SpanColumns> {
    pub(crate) fn shared(&mut self, resource: &Resource) -> Shared {
        let columns = &mut self.columns;
        Shared {
            service: columns.service_name.number(&resource.service),
            resource_attributes: columns.resource_attributes.number(&resource.attributes),
        }
    }

    pub(crate) fn push<'a>(
        &mut self,
        (scope, shared): (&Scope, &Shared),
        span: &Span<'a>,
        origin: Origin,
        space: &mut Space<'a>,
    ) {
        let columns = &mut self.columns;
        // As with logs, Go's time uses the same 64 bits.
        columns.timestamp.0.push(span.start_time_unix_nano.cast_signed());
        push_id(span.trace_id, 16, &mut columns.trace_id);
        push_id(span.span_id, 8, &mut columns.span_id);
        push_id(span.parent_span_id, 8, &mut columns.parent_span_id);
        columns.trace_state.push(span.trace_state);
        columns.span_name.push(span.name);
        columns.span_kind.push(kind(span.kind));
        columns.service_name.push_number(shared.service);
        columns.resource_attributes.push(shared.resource_attributes);
        columns.scope_name.push(scope.name);
        columns.scope_version.push(scope.version);
        columns.span_attributes.push(span.attributes(), space);
        // A span that ends before it begins has a duration of centuries, as in the exporter.
        let duration = span.end_time_unix_nano.wrapping_sub(span.start_time_unix_nano);
        columns.duration.0.push(duration);
        columns.status_code.push(status(span.status_code));
        columns.status_message.push(span.status_message);
        columns.push_events(span, space);
        columns.push_links(span, space);
        self.end_row(origin);
    }
}

impl SpanColumns {
    fn push_events<'a>(&mut self, span: &Span<'a>, space: &mut Space<'a>) {
        for event in span.events() {
            self.event_times.items.0.push(event.time_unix_nano.cast_signed());
            self.event_names.items.push(event.name);
            self.event_attributes.items.push(event.attributes(), space);
        }
        self.event_times.end_row();
        self.event_names.end_row();
        self.event_attributes.end_row();
    }

    fn push_links<'a>(&mut self, span: &Span<'a>, space: &mut Space<'a>) {
        for link in span.links() {
            push_id(link.trace_id, 16, &mut self.link_trace_ids.items);
            push_id(link.span_id, 8, &mut self.link_span_ids.items);
            self.link_trace_states.items.push(link.trace_state);
            self.link_attributes.items.push(link.attributes(), space);
        }
        self.link_trace_ids.end_row();
        self.link_span_ids.end_row();
        self.link_trace_states.end_row();
        self.link_attributes.end_row();
    }
}

/// The Collector's names; empty for values that OTLP does not define.
fn kind(kind: i32) -> &'static [u8] {
    match kind {
        0 => b"Unspecified",
        1 => b"Internal",
        2 => b"Server",
        3 => b"Client",
        4 => b"Producer",
        5 => b"Consumer",
        _ => b"",
    }
}

fn status(code: i32) -> &'static [u8] {
    match code {
        0 => b"Unset",
        1 => b"Ok",
        2 => b"Error",
        _ => b"",
    }
}
