//! Maps names and fields of spans to OpenTelemetry's semantic conventions (`messaging.*`, `aws.s3.*`, `db.*`), else to
//! `millpond.*`.

use crate::settings::attribute;
use millpond_manifest::trace::ORIGIN;
use millpond_storage::BufferUrl;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

/// A field of a span or an event.
pub(crate) type Field = (&'static str, Value);

/// The mapping for one buffer.
#[derive(Debug)]
pub(crate) struct Conventions {
    /// The bucket and key prefix of a buffer in S3.
    s3: Option<(String, String)>,
}

impl Conventions {
    pub(crate) fn new(buffer: &BufferUrl) -> Conventions {
        let url = buffer.to_string();
        let s3 = url.strip_prefix("s3://").map(|place| {
            let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
            let slash = if prefix.is_empty() { "" } else { "/" };
            (bucket.to_owned(), format!("{prefix}{slash}"))
        });
        Conventions { s3 }
    }

    /// The name of a span for people, with few distinct values.
    pub(crate) fn name(span: &str, fields: &[Field]) -> String {
        match (span, text(fields, "stream"), text(fields, "sink")) {
            (ORIGIN, ..) => "send segment".to_owned(),
            ("process" | "batch", Some(stream), _) => format!("{span} {stream}"),
            ("insert", _, Some(sink)) => format!("INSERT {}", database(sink)),
            _ => span.to_owned(),
        }
    }

    pub(crate) fn kind(span: &str) -> SpanKind {
        match span {
            ORIGIN => SpanKind::Producer,
            "process" => SpanKind::Consumer,
            "upload" | "commit" | "fetch" | "insert" | "acknowledge" => SpanKind::Client,
            _ => SpanKind::Internal,
        }
    }

    /// The attributes of a span or of its event.
    pub(crate) fn attributes(&self, span: &str, fields: Vec<Field>) -> Vec<KeyValue> {
        let mut all = Vec::with_capacity(fields.len() + 3);
        let operation = match span {
            ORIGIN => Some("send"),
            "process" => Some("process"),
            "acknowledge" => Some("settle"),
            _ => None,
        };
        if let Some(operation) = operation {
            all.push(attribute("messaging.system", "millpond"));
            all.push(attribute("messaging.operation.name", operation));
            all.push(attribute("messaging.operation.type", operation));
        }
        for field in fields {
            self.put(&mut all, field);
        }
        all
    }

    fn put(&self, all: &mut Vec<KeyValue>, (name, value): Field) {
        let mut put = |key: &str, value: Value| {
            all.push(KeyValue {
                key: key.to_owned(),
                value: Some(AnyValue { value: Some(value) }),
                ..KeyValue::default()
            });
        };
        match (name, value) {
            ("stream", value) => put("messaging.destination.name", value),
            ("consumer", value) => put("messaging.consumer.group.name", value),
            ("messages", value) => put("messaging.batch.message_count", value),
            // The convention requires a string.
            ("shard", Value::IntValue(shard)) => {
                put(
                    "messaging.destination.partition.id",
                    Value::StringValue(shard.to_string()),
                );
            }
            ("key", Value::StringValue(key)) => match &self.s3 {
                Some((bucket, prefix)) => {
                    put("aws.s3.bucket", Value::StringValue(bucket.clone()));
                    put("aws.s3.key", Value::StringValue(format!("{prefix}{key}")));
                }
                None => put("millpond.key", Value::StringValue(key)),
            },
            ("sink", Value::StringValue(sink)) if sink.starts_with("clickhouse:") => {
                put("db.system.name", Value::StringValue("clickhouse".to_owned()));
                put("db.operation.name", Value::StringValue("INSERT".to_owned()));
                put("db.namespace", Value::StringValue(database(&sink).to_owned()));
            }
            ("error", value) => put("exception.message", value),
            (other, value) => put(&format!("millpond.{other}"), value),
        }
    }
}

fn text<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    fields.iter().find_map(|(known, value)| match value {
        Value::StringValue(value) if *known == name => Some(&**value),
        _ => None,
    })
}

/// The database in a sink's name, such as `clickhouse:otel.otel_logs`.
fn database(sink: &str) -> &str {
    let place = sink.split_once(':').map_or(sink, |(_, place)| place);
    place.split('.').next().unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(value: &str) -> Value {
        Value::StringValue(value.to_owned())
    }

    /// The attributes as `key=value`.
    fn attributes(buffer: &str, span: &str, fields: Vec<Field>) -> Vec<String> {
        let all = Conventions::new(&buffer.parse().unwrap()).attributes(span, fields);
        let shown = |one: KeyValue| match one.value.unwrap().value.unwrap() {
            Value::StringValue(value) => format!("{}={value}", one.key),
            other => format!("{}={other:?}", one.key),
        };
        all.into_iter().map(shown).collect()
    }

    #[test]
    fn an_object_has_the_key_that_the_store_knows_it_by() {
        let key = || vec![("key", string("shards/0000/manifest"))];
        assert_eq!(
            attributes("s3://bucket/some/prefix", "commit", key()),
            [
                "aws.s3.bucket=bucket",
                "aws.s3.key=some/prefix/shards/0000/manifest"
            ]
        );
        assert_eq!(
            attributes("s3://bucket", "commit", key()),
            ["aws.s3.bucket=bucket", "aws.s3.key=shards/0000/manifest"]
        );
        assert_eq!(
            attributes("gs://bucket/p", "commit", key()),
            ["millpond.key=shards/0000/manifest"]
        );
    }

    #[test]
    fn a_part_is_processed_by_a_consumer() {
        let fields = vec![
            ("stream", string("otlp.logs")),
            ("shard", Value::IntValue(3)),
            ("consumer", string("main")),
            ("records", Value::IntValue(7)),
        ];
        assert_eq!(Conventions::name("process", &fields), "process otlp.logs");
        assert_eq!(Conventions::kind("process"), SpanKind::Consumer);
        assert_eq!(
            attributes("s3://b", "process", fields),
            [
                "messaging.system=millpond",
                "messaging.operation.name=process",
                "messaging.operation.type=process",
                "messaging.destination.name=otlp.logs",
                "messaging.destination.partition.id=3",
                "messaging.consumer.group.name=main",
                "millpond.records=IntValue(7)"
            ]
        );
    }

    #[test]
    fn an_insert_is_one_of_the_database() {
        let fields = vec![("sink", string("clickhouse:otel.otel_logs,traces=spans"))];
        assert_eq!(Conventions::name("insert", &fields), "INSERT otel");
        assert_eq!(
            attributes("s3://b", "insert", fields),
            [
                "db.system.name=clickhouse",
                "db.operation.name=INSERT",
                "db.namespace=otel"
            ]
        );
    }
}
