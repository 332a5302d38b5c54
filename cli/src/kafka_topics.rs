//! The file of `--kafka-topics`: what the records of each topic are, and the stream that they go to.

use crate::list_file;
use anyhow::{Context, ensure};
use millpond_clickhouse::Signal;
use millpond_gateway::{KafkaTopics, TopicSettings, Unlisted, is_for_otlp};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The longest name that Kafka allows.
const NAME_MAX: usize = 249;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    unlisted: UnlistedIs,
    #[serde(default)]
    topic: Vec<TopicOf>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UnlistedIs {
    #[default]
    Ndjson,
    Refuse,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicOf {
    name: String,
    encoding: Encoding,
    stream: Option<String>,
    metadata: Option<bool>,
    signal: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    Ndjson,
    Raw,
    OtlpProto,
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<KafkaTopics> {
    list_file::read("--kafka-topics", path, parse)
}

fn parse(text: &str) -> anyhow::Result<KafkaTopics> {
    let File { unlisted, topic } = toml::from_str(text)?;
    let mut topics = BTreeMap::new();
    for topic in topic {
        let name = topic.name.clone();
        ensure!(
            (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_in_a_name),
            "topic {name:?}: a name has 1 to {NAME_MAX} of the characters a-z A-Z 0-9 . _ -"
        );
        let settings = settings(topic).with_context(|| format!("topic {name}"))?;
        ensure!(
            topics.insert(name.clone(), settings).is_none(),
            "topic {name} occurs twice"
        );
    }
    let unlisted = match unlisted {
        UnlistedIs::Ndjson => Unlisted::Ndjson,
        UnlistedIs::Refuse => Unlisted::Refuse,
    };
    Ok(KafkaTopics::new(topics, unlisted))
}

fn settings(topic: TopicOf) -> anyhow::Result<TopicSettings> {
    let TopicOf {
        name,
        encoding,
        stream,
        metadata,
        signal,
    } = topic;
    if let Encoding::OtlpProto = encoding {
        ensure!(
            stream.is_none() && metadata.is_none(),
            "otlp_proto has neither stream nor metadata: the signal names the stream"
        );
        let signal = signal.and_then(|name| Signal::of_name(&name));
        let signal = signal.context("otlp_proto needs a signal: logs, traces or metrics")?;
        return Ok(TopicSettings::OtlpProto(signal));
    }
    ensure!(signal.is_none(), "signal is for otlp_proto only");
    let target = stream.as_deref().unwrap_or(&name);
    millpond_segment::check_stream_name(target)?;
    ensure!(
        !is_for_otlp(target),
        "stream {target} is for OTLP: use encoding = \"otlp_proto\" with a signal"
    );
    Ok(match encoding {
        Encoding::Raw => {
            ensure!(metadata.is_none(), "raw rows always have the metadata");
            TopicSettings::Raw { stream }
        }
        Encoding::Ndjson | Encoding::OtlpProto => TopicSettings::Ndjson {
            stream,
            metadata: metadata.unwrap_or(false),
        },
    })
}

fn is_in_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_topics() {
        let text = r#"
            unlisted = "refuse"

            [[topic]]
            name = "signups"
            encoding = "ndjson"
            stream = "events.signup"
            metadata = true

            [[topic]]
            name = "audit"
            encoding = "raw"

            [[topic]]
            name = "telemetry.logs"
            encoding = "otlp_proto"
            signal = "logs"
        "#;
        parse(text).unwrap();
        parse("").unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        let topic = |fields: &str| format!("[[topic]]\nname = \"t\"\n{fields}");
        for (text, says) in [
            (topic("encoding = \"avro\""), "unknown variant `avro`"),
            (topic(""), "missing field `encoding`"),
            (
                topic("encoding = \"ndjson\"\nkey = \"id\""),
                "unknown field `key`",
            ),
            (topic("encoding = \"otlp_proto\""), "needs a signal"),
            (
                topic("encoding = \"otlp_proto\"\nsignal = \"profiles\""),
                "needs a signal",
            ),
            (
                topic("encoding = \"raw\"\nsignal = \"logs\""),
                "for otlp_proto only",
            ),
            (
                topic("encoding = \"raw\"\nmetadata = true"),
                "always have the metadata",
            ),
            (topic("encoding = \"raw\"\nstream = \"a/b\""), "is not allowed"),
            (topic("encoding = \"raw\"\nstream = \"otlp.logs\""), "is for OTLP"),
            (
                topic("encoding = \"otlp_proto\"\nsignal = \"logs\"\nstream = \"x\""),
                "the signal names the stream",
            ),
            (
                "[[topic]]\nname = \"a b\"\nencoding = \"raw\"".to_owned(),
                "a name has 1 to 249",
            ),
            ("unlisted = \"drop\"".to_owned(), "unknown variant `drop`"),
            (
                [topic("encoding = \"raw\"\n"), topic("encoding = \"raw\"")].concat(),
                "occurs twice",
            ),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
