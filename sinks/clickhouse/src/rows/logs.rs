//! Log records as rows of `otel_logs`.

use super::attributes::{AttributeMaps, Space};
use super::shared_maps::SharedMaps;
use super::{Origin, Resource, Rows, Scope, TableColumns, columns, day, push_id};
use crate::native::{Dictionary, Numbers, Strings, Ticks};
use crate::schema::Table;
use crate::text;
use millpond_otlp::logs::LogRecord;

columns! {
    /// The exporter's columns, in its order.
    LogColumns {
        timestamp: Ticks,
        trace_id: Strings,
        span_id: Strings,
        trace_flags: Numbers<u8>,
        severity_text: Dictionary,
        severity_number: Numbers<u8>,
        service_name: Dictionary,
        body: Strings,
        resource_schema_url: Dictionary,
        resource_attributes: SharedMaps,
        scope_schema_url: Dictionary,
        scope_name: Strings,
        scope_version: Dictionary,
        scope_attributes: SharedMaps,
        log_attributes: AttributeMaps,
        event_name: Strings,
    }
}

impl TableColumns for LogColumns {
    const TABLE: Table = Table::Logs;

    fn days(&self) -> impl Iterator<Item = i64> {
        self.timestamp.0.iter().map(|&nanoseconds| day(nanoseconds))
    }
}

/// Dictionary indexes of the values that a resource and a scope share among their rows, until the next `clear`.
pub(crate) struct Shared {
    service: u32,
    resource_schema_url: u32,
    resource_attributes: u32,
    scope_schema_url: u32,
    scope_version: u32,
    scope_attributes: u32,
}

impl Rows<LogColumns> {
    pub(crate) fn shared(&mut self, resource: &Resource, scope: &Scope) -> Shared {
        let columns = &mut self.columns;
        Shared {
            service: columns.service_name.number(&resource.service),
            resource_schema_url: columns.resource_schema_url.number(resource.schema_url),
            resource_attributes: columns.resource_attributes.number(&resource.attributes),
            scope_schema_url: columns.scope_schema_url.number(scope.schema_url),
            scope_version: columns.scope_version.number(scope.version),
            scope_attributes: columns.scope_attributes.number(&scope.attributes),
        }
    }

    pub(crate) fn push<'a>(
        &mut self,
        (scope, shared): (&Scope, &Shared),
        record: &LogRecord<'a>,
        origin: Origin,
        space: &mut Space<'a>,
    ) {
        let columns = &mut self.columns;
        let time = if record.time_unix_nano == 0 {
            record.observed_time_unix_nano
        } else {
            record.time_unix_nano
        };
        // Go's time uses the same 64 bits, so times after 2262 become times before 1970 in both.
        columns.timestamp.0.push(time.cast_signed());
        push_id(record.trace_id, 16, &mut columns.trace_id);
        push_id(record.span_id, 8, &mut columns.span_id);
        // Both columns are UInt8; the exporter also keeps the low eight bits.
        columns.trace_flags.0.push(record.flags.to_le_bytes()[0]);
        columns.severity_text.push(record.severity_text);
        columns
            .severity_number
            .0
            .push(record.severity_number.to_le_bytes()[0]);
        columns.service_name.push_number(shared.service);
        text::push(record.body, &mut columns.body, &mut space.text);
        columns
            .resource_schema_url
            .push_number(shared.resource_schema_url);
        columns.resource_attributes.push(shared.resource_attributes);
        columns.scope_schema_url.push_number(shared.scope_schema_url);
        columns.scope_name.push(scope.name);
        columns.scope_version.push_number(shared.scope_version);
        columns.scope_attributes.push(shared.scope_attributes);
        columns.log_attributes.push(record.attributes(), space);
        columns.event_name.push(record.event_name);
        self.end_row(origin);
    }
}
