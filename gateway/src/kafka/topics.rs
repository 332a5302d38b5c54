//! The settings of topics: the encoding of each one, and its stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_kafka::ErrorCode;
use millpond_otlp::Signal;
use millpond_segment::Encoding as StreamEncoding;

use super::answer::Fault;
use crate::refusal::Why;
use crate::tokens::Identity;

/// The topics that the Collector's Kafka exporter uses by default.
const COLLECTORS: [(&str, Signal); 3] = [
    ("otlp_logs", Signal::Logs),
    ("otlp_spans", Signal::Traces),
    ("otlp_metrics", Signal::Metrics),
];

/// The topics of a Kafka port.
#[derive(Debug, Clone)]
pub struct KafkaTopics {
    listed: BTreeMap<String, TopicSettings>,
    unlisted: Unlisted,
}

/// The encoding of a topic's records, and their stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicSettings {
    /// The value of each record is a JSON object, a row of the stream.
    Ndjson {
        /// The stream. `None`: it has the topic's name.
        stream: Option<String>,
        /// Each row also gets the record's key, timestamp and headers.
        metadata: bool,
    },
    /// A value is any bytes. A row of the stream has the value, the key, the timestamp and the headers.
    Raw {
        /// The stream. `None`: it has the topic's name.
        stream: Option<String>,
    },
    /// The value of each record is an OTLP export request in protobuf.
    OtlpProto(Signal),
}

/// The treatment of topics that are not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unlisted {
    /// Its records are JSON objects, for the stream of the same name.
    #[default]
    Ndjson,
    /// It does not exist.
    Refuse,
}

impl Default for KafkaTopics {
    /// The topics of the Collector's Kafka exporter; others are JSON.
    fn default() -> KafkaTopics {
        KafkaTopics::new(BTreeMap::new(), Unlisted::default())
    }
}

impl KafkaTopics {
    /// These topics, and those of the Collector's Kafka exporter where the list has no other setting for them.
    pub fn new(mut listed: BTreeMap<String, TopicSettings>, unlisted: Unlisted) -> KafkaTopics {
        for (name, signal) in COLLECTORS {
            let settings = TopicSettings::OtlpProto(signal);
            listed.entry(name.to_owned()).or_insert(settings);
        }
        KafkaTopics { listed, unlisted }
    }

    /// The listed topics.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.listed.keys().map(String::as_str)
    }

    /// The stream and the encoding of a topic for the records of this sender.
    pub(super) fn topic(&self, name: &str, identity: &Identity) -> Result<Topic, Fault> {
        let events = |stream: &Option<String>| {
            let stream = identity.event_stream(stream.as_deref().unwrap_or(name));
            stream.map_err(|refusal| match refusal.why {
                Why::Invalid { .. } => Fault::new(ErrorCode::InvalidTopic, refusal.message),
                _ => refusal.into(),
            })
        };
        match self.listed.get(name) {
            Some(TopicSettings::OtlpProto(signal)) => Ok(Topic {
                stream: identity.stream(*signal),
                encoding: TopicEncoding::Otlp(*signal),
            }),
            Some(TopicSettings::Ndjson { stream, metadata }) => Ok(Topic {
                stream: events(stream)?,
                encoding: TopicEncoding::Events(match metadata {
                    true => Shape::ValueAndMetadata,
                    false => Shape::Value,
                }),
            }),
            Some(TopicSettings::Raw { stream }) => Ok(Topic {
                stream: events(stream)?,
                encoding: TopicEncoding::Events(Shape::Raw),
            }),
            None if self.unlisted == Unlisted::Ndjson => Ok(Topic {
                stream: events(&None)?,
                encoding: TopicEncoding::Events(Shape::Value),
            }),
            None => Err(Fault::new(
                ErrorCode::UnknownTopicOrPartition,
                format!("topic {name} is not in the gateway's --kafka-topics"),
            )),
        }
    }
}

/// A topic as one sender sees it.
#[derive(Debug, Clone)]
pub(super) struct Topic {
    pub(super) stream: Arc<str>,
    pub(super) encoding: TopicEncoding,
}

/// The encoding of a topic's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopicEncoding {
    Otlp(Signal),
    Events(Shape),
}

impl TopicEncoding {
    /// The encoding of the stream's messages.
    pub(super) fn of_stream(self) -> StreamEncoding {
        match self {
            TopicEncoding::Otlp(_) => StreamEncoding::Otlp,
            TopicEncoding::Events(_) => StreamEncoding::Ndjson,
        }
    }
}

/// The parts of a record that its row contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The value, a JSON object, as it is.
    Value,
    /// The value with further members.
    ValueAndMetadata,
    /// An object around everything.
    Raw,
}
