//! The part of Kafka's protocol that producers speak: requests and record batches from bytes, answers to bytes. Pure.
//!
//! Everything that a client sends is checked before memory is taken for it: a length or a count is believed only if the
//! bytes for it are there. Schemas: Apache Kafka 4, `clients/src/main/resources/common/message`.

mod api;
mod batch;
mod error_code;
mod request;
mod response;
mod wire;

pub use api::{Api, CODECS};
pub use batch::{Batch, BatchError, Codec, Header, Headers, Record, Records, Sequence};
pub use error_code::ErrorCode;
pub use request::{
    Acks, Body, MetadataRequest, PARTITIONS_MAX, PartitionData, Produce, Request, RequestError,
    RequestHeader, TOPICS_MAX, TopicData, TopicId, TopicRef,
};
pub use response::{
    Broker, Metadata, PartitionOutcome, TopicMetadata, TopicOutcome, api_versions, fetch, find_coordinator,
    init_producer_id, metadata, metadata_len_max, produce, sasl_authenticate, sasl_handshake,
};
pub use wire::Malformed;
