//! Requests of clients.

use bytes::Bytes;

use crate::api::Api;
use crate::wire::{Malformed, Reader};

/// Maximum number of topics in a request.
pub const TOPICS_MAX: usize = 1_000;

/// Maximum number of partitions in a Produce request.
pub const PARTITIONS_MAX: usize = 10_000;

/// The 128 bits that identify a topic. All zeros: none.
pub type TopicId = [u8; 16];

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The part that all requests have.
    pub header: RequestHeader,
    /// The rest.
    pub body: Body,
}

/// The part that all requests have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// The kind of request.
    pub api: Api,
    /// Its version.
    pub version: i16,
    /// The number that the answer repeats.
    pub correlation_id: i32,
}

/// The content of a request. What the gateway has no use for is not kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// See [`Produce`].
    Produce(Produce),
    /// Reads records.
    Fetch,
    /// See [`MetadataRequest`].
    Metadata(MetadataRequest),
    /// Finds a coordinator: of transactions, or of consumer groups.
    FindCoordinator {
        /// It is about a transaction.
        of_transaction: bool,
    },
    /// Begins to authenticate.
    SaslHandshake {
        /// The mechanism that the client wants.
        mechanism: String,
    },
    /// Lists the requests that the gateway knows. Of a version that the gateway does not know: false.
    ApiVersions {
        /// The gateway knows the version.
        is_known: bool,
    },
    /// Names an idempotent producer.
    InitProducerId {
        /// It wants transactions.
        is_transactional: bool,
    },
    /// Authenticates.
    SaslAuthenticate {
        /// The bytes of the mechanism.
        auth: Bytes,
    },
}

/// Records to append.
#[derive(Debug, Clone, PartialEq)]
pub struct Produce {
    /// They belong to a transaction.
    pub is_transactional: bool,
    /// The time at which the client wants an answer.
    pub acks: Acks,
    /// The records by topic.
    pub topics: Vec<TopicData>,
}

/// The time at which a client wants an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// Never.
    Zero,
    /// After the commit (1 or all).
    Committed,
    /// The number is none of 0, 1 and -1.
    Invalid,
}

/// The records for a topic.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicData {
    /// The topic.
    pub topic: TopicRef,
    /// Its records by partition.
    pub partitions: Vec<PartitionData>,
}

/// A topic, as a request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicRef {
    /// By its name.
    Name(String),
    /// By its id (Produce from version 13 on).
    Id(TopicId),
}

/// The records for a partition.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionData {
    /// The partition.
    pub index: i32,
    /// A record batch, as sent.
    pub records: Option<Bytes>,
}

/// A request for the brokers and the topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataRequest {
    /// The topics; `None`: all.
    pub topics: Option<Vec<TopicRef>>,
}

/// The reasons that leave a request without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes do not follow the protocol.
    #[error("the request is {0}")]
    Malformed(#[from] Malformed),
    /// The gateway does not offer such requests.
    #[error("requests of the kind {key} are not offered")]
    UnknownApi {
        /// The number of the kind.
        key: i16,
    },
    /// The gateway does not speak this version.
    #[error("version {version} of {} is not supported", api.name())]
    UnknownVersion {
        /// The kind.
        api: Api,
        /// Its version.
        version: i16,
    },
}

impl Request {
    /// Reads a request: the bytes after its length. The records of a Produce request are parts of these bytes.
    ///
    /// # Errors
    /// See [`RequestError`]. A broker closes the connection.
    pub fn read(bytes: Bytes) -> Result<Request, RequestError> {
        let mut reader = Reader::new(bytes);
        let (key, version, correlation_id) = (reader.i16()?, reader.i16()?, reader.i32()?);
        let api = Api::of_key(key).ok_or(RequestError::UnknownApi { key })?;
        let header = RequestHeader {
            api,
            version,
            correlation_id,
        };
        if !api.versions().contains(&version) {
            if api == Api::ApiVersions {
                let body = Body::ApiVersions { is_known: false };
                return Ok(Request { header, body });
            }
            return Err(RequestError::UnknownVersion { api, version });
        }
        // The client's name for itself, which has a length of 16 bits in every version.
        reader.nullable_string()?;
        reader.flexible = api.is_flexible(version);
        reader.tags()?;
        let body = body(api, version, &mut reader)?;
        Ok(Request { header, body })
    }
}

fn body(api: Api, version: i16, reader: &mut Reader) -> Result<Body, Malformed> {
    let body = match api {
        Api::Produce => Body::Produce(produce(version, reader)?),
        // Nothing of it changes the answer.
        Api::Fetch => return Ok(Body::Fetch),
        Api::ApiVersions => return Ok(Body::ApiVersions { is_known: true }),
        Api::Metadata => Body::Metadata(metadata(version, reader)?),
        Api::FindCoordinator => {
            reader.string()?;
            let of_transaction = version >= 1 && reader.i8()? == 1;
            Body::FindCoordinator { of_transaction }
        }
        Api::SaslHandshake => Body::SaslHandshake {
            mechanism: reader.string()?,
        },
        Api::InitProducerId => {
            let is_transactional = reader.nullable_string()?.is_some();
            reader.i32()?;
            if version >= 3 {
                reader.i64()?;
                reader.i16()?;
            }
            Body::InitProducerId { is_transactional }
        }
        Api::SaslAuthenticate => Body::SaslAuthenticate {
            auth: reader.nullable_bytes()?.unwrap_or_default(),
        },
    };
    // What follows is ignored, as by a broker: librdkafka asks for all topics with three bytes too many.
    reader.tags()?;
    Ok(body)
}

fn produce(version: i16, reader: &mut Reader) -> Result<Produce, Malformed> {
    let is_transactional = reader.nullable_string()?.is_some();
    let acks = match reader.i16()? {
        0 => Acks::Zero,
        1 | -1 => Acks::Committed,
        _ => Acks::Invalid,
    };
    // How long a broker may wait for others: the gateway's own limits apply.
    reader.i32()?;
    // A name, partitions and tagged fields, each of them empty.
    let count = reader.nullable_array(3, TOPICS_MAX)?.unwrap_or_default();
    let mut topics = Vec::with_capacity(count);
    let mut room = PARTITIONS_MAX;
    for _ in 0..count {
        let topic = if version >= 13 {
            TopicRef::Id(reader.uuid()?)
        } else {
            TopicRef::Name(reader.string()?)
        };
        let partitions = partitions(room, reader)?;
        room -= partitions.len();
        topics.push(TopicData { topic, partitions });
        reader.tags()?;
    }
    Ok(Produce {
        is_transactional,
        acks,
        topics,
    })
}

fn partitions(max: usize, reader: &mut Reader) -> Result<Vec<PartitionData>, Malformed> {
    // An index, and neither records nor tagged fields.
    let count = reader.nullable_array(6, max)?.unwrap_or_default();
    let mut partitions = Vec::with_capacity(count);
    for _ in 0..count {
        partitions.push(PartitionData {
            index: reader.i32()?,
            records: reader.nullable_bytes()?,
        });
        reader.tags()?;
    }
    Ok(partitions)
}

fn metadata(version: i16, reader: &mut Reader) -> Result<MetadataRequest, Malformed> {
    // An empty name, whose length has two bytes or is followed by tagged fields.
    let topics = match reader.nullable_array(2, TOPICS_MAX)? {
        None => None,
        // In version 0, no topics are all of them.
        Some(0) if version == 0 => None,
        Some(count) => {
            let mut topics = Vec::with_capacity(count);
            for _ in 0..count {
                let id = if version >= 10 {
                    reader.uuid()?
                } else {
                    TopicId::default()
                };
                let name = if version >= 10 {
                    reader.nullable_string()?
                } else {
                    Some(reader.string()?)
                };
                topics.push(name.map_or(TopicRef::Id(id), TopicRef::Name));
                reader.tags()?;
            }
            Some(topics)
        }
    };
    if version >= 4 {
        // Whether unknown topics should be created: all exist.
        reader.bool()?;
    }
    // What the client may do: the answer says that it is not known.
    if (8..=10).contains(&version) {
        reader.bool()?;
    }
    if version >= 8 {
        reader.bool()?;
    }
    Ok(MetadataRequest { topics })
}
