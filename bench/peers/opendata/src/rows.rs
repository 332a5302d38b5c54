//! Rows of the Collector exporter's table `otel_logs`, with the values that the exporter would write for what the
//! benchmark sends: attributes are strings, numbers and booleans.

use std::borrow::Cow;

use anyhow::bail;
use clickhouse::Row;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use serde::Serialize;

type Map<'a> = Vec<(&'a str, Cow<'a, str>)>;

#[derive(Row, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct LogRow<'a> {
    /// Nanoseconds since 1970.
    timestamp: i64,
    trace_id: String,
    span_id: String,
    trace_flags: u8,
    severity_text: &'a str,
    severity_number: u8,
    service_name: &'a str,
    body: Cow<'a, str>,
    resource_schema_url: &'a str,
    resource_attributes: &'a Map<'a>,
    scope_schema_url: &'a str,
    scope_name: &'a str,
    scope_version: &'a str,
    scope_attributes: &'a Map<'a>,
    log_attributes: Map<'a>,
    event_name: &'a str,
}

/// The rows of a request. Those of a scope share the maps of its resource.
pub(crate) struct Rows<'a> {
    scopes: Vec<Scope<'a>>,
}

struct Scope<'a> {
    service_name: &'a str,
    resource_schema_url: &'a str,
    resource_attributes: Map<'a>,
    scope_attributes: Map<'a>,
    logs: &'a opentelemetry_proto::tonic::logs::v1::ScopeLogs,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(request: &'a ExportLogsServiceRequest) -> anyhow::Result<Rows<'a>> {
        let mut scopes = Vec::new();
        for resource_logs in &request.resource_logs {
            let attributes = resource_logs.resource.as_ref().map_or(&[][..], |r| &r.attributes);
            for logs in &resource_logs.scope_logs {
                scopes.push(Scope {
                    service_name: service_name(attributes),
                    resource_schema_url: &resource_logs.schema_url,
                    resource_attributes: map(attributes)?,
                    scope_attributes: map(logs.scope.as_ref().map_or(&[][..], |s| &s.attributes))?,
                    logs,
                });
            }
        }
        Ok(Rows { scopes })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = anyhow::Result<LogRow<'_>>> {
        self.scopes.iter().flat_map(Scope::rows)
    }
}

impl Scope<'_> {
    fn rows(&self) -> impl Iterator<Item = anyhow::Result<LogRow<'_>>> {
        let (name, version) = match &self.logs.scope {
            Some(scope) => (scope.name.as_str(), scope.version.as_str()),
            None => ("", ""),
        };
        self.logs.log_records.iter().map(move |record| {
            let time = match record.time_unix_nano {
                0 => record.observed_time_unix_nano,
                time => time,
            };
            Ok(LogRow {
                timestamp: i64::try_from(time)?,
                trace_id: hex(&record.trace_id),
                span_id: hex(&record.span_id),
                trace_flags: record.flags.to_le_bytes()[0],
                severity_text: &record.severity_text,
                severity_number: u8::try_from(record.severity_number)?,
                service_name: self.service_name,
                body: text(record.body.as_ref())?,
                resource_schema_url: self.resource_schema_url,
                resource_attributes: &self.resource_attributes,
                scope_schema_url: &self.logs.schema_url,
                scope_name: name,
                scope_version: version,
                scope_attributes: &self.scope_attributes,
                log_attributes: map(&record.attributes)?,
                event_name: &record.event_name,
            })
        })
    }
}

fn service_name(attributes: &[KeyValue]) -> &str {
    let name = attributes
        .iter()
        .find(|attribute| attribute.key == "service.name");
    match name.and_then(|name| name.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(name)) => name,
        _ => "",
    }
}

fn map(attributes: &[KeyValue]) -> anyhow::Result<Map<'_>> {
    let pairs = attributes.iter();
    pairs
        .map(|pair| Ok((pair.key.as_str(), text(pair.value.as_ref())?)))
        .collect()
}

fn text(value: Option<&AnyValue>) -> anyhow::Result<Cow<'_, str>> {
    Ok(match value.and_then(|value| value.value.as_ref()) {
        None => Cow::Borrowed(""),
        Some(Value::StringValue(text)) => Cow::Borrowed(text),
        Some(Value::IntValue(number)) => Cow::Owned(number.to_string()),
        Some(Value::BoolValue(true)) => Cow::Borrowed("true"),
        Some(Value::BoolValue(false)) => Cow::Borrowed("false"),
        Some(other) => bail!("the benchmark sends no attribute like {other:?}"),
    })
}

fn hex(id: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * id.len());
    for byte in id {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}
