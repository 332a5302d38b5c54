//! Answers to clients, with their length in front.

use crate::api::Api;
use crate::error_code::ErrorCode;
use crate::request::{RequestHeader, TopicId, TopicRef};
use crate::wire::Writer;

/// The operations that a client may use on a topic or a cluster: unknown.
const OPERATIONS_UNKNOWN: i32 = i32::MIN;

/// The only broker that a gateway knows: itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// The same for every gateway behind this address.
    pub node_id: i32,
    /// The host that clients connect to.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// The answer to a Metadata request.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// The gateway, leader of every partition.
    pub broker: Broker,
    /// The id of the buffer.
    pub cluster_id: String,
    /// The topics that the client asked for.
    pub topics: Vec<TopicMetadata>,
    /// The number of partitions of each topic.
    pub partitions: u32,
}

/// A topic in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMetadata {
    /// An error instead of partitions.
    pub error: ErrorCode,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// Its id; zeros for none.
    pub id: TopicId,
}

/// The outcome of the records for a topic.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicOutcome {
    /// The topic, as the request named it.
    pub topic: TopicRef,
    /// The outcome by partition.
    pub partitions: Vec<PartitionOutcome>,
}

/// The outcome of the records for a partition.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionOutcome {
    /// The partition.
    pub index: i32,
    /// The error.
    pub error: ErrorCode,
    /// The reason of the error.
    pub message: Option<String>,
    /// The malformed records: their places in the batch, from 0, and the reasons.
    pub records: Vec<(i32, String)>,
}

fn answer(header: &RequestHeader) -> Writer {
    let flexible = header.api.is_flexible(header.version);
    Writer::answer(header.correlation_id, flexible, flexible)
}

/// Lists the requests that the gateway knows. `is_known`: as in the request.
pub fn api_versions(header: &RequestHeader, is_known: bool) -> Vec<u8> {
    // A client that speaks a newer version understands version 0.
    let version = if is_known { header.version } else { 0 };
    let flexible = Api::ApiVersions.is_flexible(version);
    // The header never has tagged fields: the client does not know yet whether the broker knows them.
    let mut writer = Writer::answer(header.correlation_id, false, flexible);
    let error = if is_known {
        ErrorCode::None
    } else {
        ErrorCode::UnsupportedVersion
    };
    writer.i16(error.number());
    writer.array(Api::ALL.len());
    for api in Api::ALL {
        writer.i16(api.key());
        writer.i16(*api.versions().start());
        writer.i16(*api.versions().end());
        writer.tags();
    }
    if version >= 1 {
        writer.i32(0);
    }
    writer.tags();
    writer.finish()
}

/// Upper bound of the length of a Metadata answer.
pub fn metadata_len_max(metadata: &Metadata) -> usize {
    let names = metadata
        .topics
        .iter()
        .map(|topic| topic.name.as_ref().map_or(0, String::len));
    let partitions = metadata.topics.len() * metadata.partitions as usize;
    256 + metadata.broker.host.len() + names.sum::<usize>() + 48 * metadata.topics.len() + 40 * partitions
}

/// Lists the gateway and the topics.
pub fn metadata(header: &RequestHeader, metadata: &Metadata) -> Vec<u8> {
    let version = header.version;
    let mut writer = answer(header);
    if version >= 3 {
        writer.i32(0);
    }
    let Broker { node_id, host, port } = &metadata.broker;
    writer.array(1);
    writer.i32(*node_id);
    writer.string(host);
    writer.i32((*port).into());
    if version >= 1 {
        writer.nullable_string(None);
    }
    writer.tags();
    if version >= 2 {
        writer.nullable_string(Some(&metadata.cluster_id));
    }
    if version >= 1 {
        writer.i32(*node_id);
    }
    writer.array(metadata.topics.len());
    for topic in &metadata.topics {
        write_topic(&mut writer, version, topic, metadata);
    }
    if (8..=10).contains(&version) {
        writer.i32(OPERATIONS_UNKNOWN);
    }
    if version >= 13 {
        writer.i16(ErrorCode::None.number());
    }
    writer.tags();
    writer.finish()
}

fn write_topic(writer: &mut Writer, version: i16, topic: &TopicMetadata, metadata: &Metadata) {
    writer.i16(topic.error.number());
    match &topic.name {
        None if version >= 12 => writer.nullable_string(None),
        name => writer.string(name.as_deref().unwrap_or_default()),
    }
    if version >= 10 {
        writer.uuid(topic.id);
    }
    if version >= 1 {
        writer.bool(false);
    }
    let partitions = match topic.error {
        ErrorCode::None => metadata.partitions,
        _ => 0,
    };
    let node_id = metadata.broker.node_id;
    writer.array(partitions as usize);
    for index in 0..partitions {
        writer.i16(ErrorCode::None.number());
        writer.i32(i32::try_from(index).unwrap_or(i32::MAX));
        writer.i32(node_id);
        if version >= 7 {
            writer.i32(0);
        }
        for _replicas_then_in_sync in 0..2 {
            writer.array(1);
            writer.i32(node_id);
        }
        if version >= 5 {
            writer.array(0);
        }
        writer.tags();
    }
    if version >= 8 {
        writer.i32(OPERATIONS_UNKNOWN);
    }
    writer.tags();
}

/// Tells the outcome of records.
pub fn produce(header: &RequestHeader, topics: &[TopicOutcome]) -> Vec<u8> {
    let version = header.version;
    let mut writer = answer(header);
    writer.array(topics.len());
    for topic in topics {
        match &topic.topic {
            TopicRef::Name(name) => writer.string(name),
            TopicRef::Id(id) => writer.uuid(*id),
        }
        writer.array(topic.partitions.len());
        for partition in &topic.partitions {
            write_outcome(&mut writer, version, partition);
        }
        writer.tags();
    }
    writer.i32(0);
    writer.tags();
    writer.finish()
}

fn write_outcome(writer: &mut Writer, version: i16, partition: &PartitionOutcome) {
    writer.i32(partition.index);
    writer.i16(partition.error.number());
    // Records have no offsets here: not known, as after acks = 0.
    writer.i64(-1);
    // The time of the log, if that is what records get: they keep their own.
    writer.i64(-1);
    if version >= 5 {
        // The first offset of the log. Java's client sends a batch of a forgotten producer under a new epoch only if it knows
        // that the log has moved on.
        let is_forgotten = partition.error == ErrorCode::UnknownProducerId;
        writer.i64(if is_forgotten { 0 } else { -1 });
    }
    if version >= 8 {
        writer.array(partition.records.len());
        for (place, reason) in &partition.records {
            writer.i32(*place);
            writer.nullable_string(Some(reason));
            writer.tags();
        }
        writer.nullable_string(partition.message.as_deref());
    }
    writer.tags();
}

/// Names an idempotent producer, or says why not.
pub fn init_producer_id(header: &RequestHeader, id: Result<i64, ErrorCode>) -> Vec<u8> {
    let mut writer = answer(header);
    writer.i32(0);
    writer.i16(id.err().unwrap_or(ErrorCode::None).number());
    writer.i64(id.unwrap_or(-1));
    writer.i16(if id.is_ok() { 0 } else { -1 });
    writer.tags();
    writer.finish()
}

/// Answers the beginning of an authentication. PLAIN is the only mechanism.
pub fn sasl_handshake(header: &RequestHeader, error: ErrorCode) -> Vec<u8> {
    let mut writer = answer(header);
    writer.i16(error.number());
    writer.array(1);
    writer.string("PLAIN");
    writer.finish()
}

/// Answers an authentication: `error` with its reason.
pub fn sasl_authenticate(header: &RequestHeader, error: Option<(ErrorCode, &str)>) -> Vec<u8> {
    let mut writer = answer(header);
    writer.i16(error.map_or(ErrorCode::None, |(code, _)| code).number());
    writer.nullable_string(error.map(|(_, reason)| reason));
    writer.bytes(&[]);
    if header.version >= 1 {
        // It lasts as long as the connection.
        writer.i64(0);
    }
    writer.tags();
    writer.finish()
}

/// Refuses to read records.
pub fn fetch(header: &RequestHeader) -> Vec<u8> {
    let mut writer = answer(header);
    writer.i32(0);
    if header.version >= 7 {
        writer.i16(ErrorCode::UnsupportedVersion.number());
        writer.i32(0);
    }
    writer.array(0);
    writer.tags();
    writer.finish()
}

/// Refuses consumer groups and transactions.
pub fn find_coordinator(header: &RequestHeader, of_transaction: bool) -> Vec<u8> {
    let (error, reason) = if of_transaction {
        (
            ErrorCode::TransactionalIdAuthorizationFailed,
            "Millpond has no transactions",
        )
    } else {
        (
            ErrorCode::GroupAuthorizationFailed,
            "Millpond has no consumer groups: `millpond consume` writes the records to ClickHouse",
        )
    };
    let mut writer = answer(header);
    if header.version >= 1 {
        writer.i32(0);
    }
    writer.i16(error.number());
    if header.version >= 1 {
        writer.nullable_string(Some(reason));
    }
    writer.i32(-1);
    writer.string("");
    writer.i32(-1);
    writer.tags();
    writer.finish()
}
