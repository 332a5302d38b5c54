//! The envelope of Kafka's protocol: a port that producers take for a broker. A topic is a stream, a batch of records is
//! a message, and an answer without an error means that the records are committed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use millpond_kafka::{
    Api, Broker, ErrorCode, Metadata as MetadataAnswer, TOPICS_MAX, TopicId, TopicMetadata, TopicRef,
};
use sha2::{Digest as _, Sha256};

use crate::tokens::Identity;

mod answer;
mod connection;
mod produce;
mod records;
mod rows;
mod sasl;
mod topics;

pub use records::{Route, raw_row};
pub use topics::{KafkaTopics, TopicSettings, Unlisted};

pub(crate) use connection::{Session, serve};

use answer::Fault;
use topics::Topic;

/// Maximum number of topic ids to remember. Further topics get none, and clients then use names.
const IDS_MAX: usize = 4_096;

/// The settings of the port.
#[derive(Debug, Clone, Default)]
pub struct KafkaConfig {
    /// The encodings and streams of topics.
    pub topics: KafkaTopics,
    /// The host and the port that clients connect to after they have asked for the brokers. `None`: the address that the
    /// client has connected to.
    pub advertised: Option<(String, u16)>,
}

/// State shared by all connections of the port.
#[derive(Debug)]
pub(crate) struct Kafka {
    config: KafkaConfig,
    buffer_id: String,
    ids: Mutex<HashMap<TopicId, String>>,
}

impl Kafka {
    /// The ids of topics follow from the buffer's id.
    pub(crate) fn new(config: KafkaConfig, buffer_id: String) -> Kafka {
        Kafka {
            config,
            buffer_id,
            ids: Mutex::default(),
        }
    }

    /// The stream and the encoding of a topic.
    fn topic(&self, topic: &TopicRef, identity: &Identity) -> Result<Topic, Fault> {
        match self.name_of(topic) {
            Some(name) => self.config.topics.topic(&name, identity),
            None => Err(Fault::new(
                ErrorCode::UnknownTopicId,
                "the gateway does not know this topic id; ask for metadata",
            )),
        }
    }

    /// The name of a topic. `None`: the gateway does not know its id.
    fn name_of(&self, topic: &TopicRef) -> Option<String> {
        match topic {
            TopicRef::Name(name) => Some(name.clone()),
            TopicRef::Id(id) => {
                let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
                ids.get(id).cloned()
            }
        }
    }

    /// The id of a topic: the same in every gateway of the buffer. Zeros if there are too many.
    fn id_of(&self, name: &str) -> TopicId {
        let digest = Sha256::new_with_prefix(&self.buffer_id)
            .chain_update([0])
            .chain_update(name)
            .finalize();
        let id: TopicId = digest.first_chunk().copied().unwrap_or_default();
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.contains_key(&id) {
            return id;
        }
        if ids.len() >= IDS_MAX {
            return TopicId::default();
        }
        ids.insert(id, name.to_owned());
        id
    }

    /// Describes topics, each of which has this number of partitions.
    fn metadata(
        &self,
        topics: Option<&[TopicRef]>,
        identity: &Identity,
        local: SocketAddr,
        partitions: u32,
    ) -> MetadataAnswer {
        let topics = match topics {
            Some(topics) => topics
                .iter()
                .map(|topic| self.describe(topic, identity))
                .collect(),
            None => {
                let names = self.config.topics.names().take(TOPICS_MAX);
                names
                    .map(|name| self.describe(&TopicRef::Name(name.to_owned()), identity))
                    .filter(|topic| topic.error == ErrorCode::None)
                    .collect()
            }
        };
        MetadataAnswer {
            broker: self.broker(local),
            cluster_id: self.buffer_id.clone(),
            topics,
            partitions,
        }
    }

    fn describe(&self, topic: &TopicRef, identity: &Identity) -> TopicMetadata {
        let name = self.name_of(topic);
        let error = self
            .topic(topic, identity)
            .map_or_else(|fault| fault.error, |_| ErrorCode::None);
        let id = match (topic, &name) {
            (_, Some(name)) if error == ErrorCode::None => self.id_of(name),
            (TopicRef::Id(id), None) => *id,
            _ => TopicId::default(),
        };
        TopicMetadata { error, name, id }
    }

    /// The gateway as a broker. Its number follows from its address, so that a client behind a balancer sees one broker.
    fn broker(&self, local: SocketAddr) -> Broker {
        let (host, port) = self
            .config
            .advertised
            .clone()
            .unwrap_or_else(|| (local.ip().to_canonical().to_string(), local.port()));
        let digest = Sha256::digest(format!("{host}:{port}"));
        let [a, b, c, d] = *digest.first_chunk().unwrap_or(&[0; 4]);
        Broker {
            node_id: i32::from_be_bytes([a & 0x7f, b, c, d]),
            host,
            port,
        }
    }
}

/// The kinds of requests, as metrics name them.
pub(crate) fn apis() -> impl Iterator<Item = &'static str> {
    Api::ALL.into_iter().map(Api::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_in_every_gateway_and_limited_in_number() {
        let kafka = |buffer: &str| Kafka::new(KafkaConfig::default(), buffer.to_owned());
        let gateway = kafka("a buffer");
        let id = gateway.id_of("a topic");
        assert_eq!(kafka("a buffer").id_of("a topic"), id);
        assert_ne!(kafka("another buffer").id_of("a topic"), id);
        assert_eq!(gateway.name_of(&TopicRef::Id(id)).as_deref(), Some("a topic"));
        for number in 1..IDS_MAX {
            assert_ne!(gateway.id_of(&format!("topic-{number}")), TopicId::default());
        }
        assert_eq!(gateway.id_of("one more"), TopicId::default());
        assert_eq!(gateway.id_of("a topic"), id);
    }
}
