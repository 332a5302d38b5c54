//! The error codes of Kafka that the gateway answers with.

/// An error as clients know it. Its number is the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum ErrorCode {
    /// No error.
    None = 0,
    /// The checksum of a batch is wrong. Clients retry.
    CorruptMessage = 2,
    /// The topic or the partition does not exist. Clients ask for metadata and retry.
    UnknownTopicOrPartition = 3,
    /// The gateway is stopping. Clients ask for metadata and retry.
    NotLeaderOrFollower = 6,
    /// The records do not fit into a request or into memory. Clients do not retry.
    MessageTooLarge = 10,
    /// The name of the topic is not allowed. Clients do not retry.
    InvalidTopic = 17,
    /// The gateway cannot accept the records now, and has not. Clients retry.
    NotEnoughReplicas = 19,
    /// The records may or may not be committed. Clients retry.
    NotEnoughReplicasAfterAppend = 20,
    /// `acks` is not 0, 1 or all.
    InvalidRequiredAcks = 21,
    /// The topic belongs to others.
    TopicAuthorizationFailed = 29,
    /// There are no consumer groups.
    GroupAuthorizationFailed = 30,
    /// The SASL mechanism is not PLAIN.
    UnsupportedSaslMechanism = 33,
    /// A SASL request that does not follow a handshake.
    IllegalSaslState = 34,
    /// The version of a request is not supported.
    UnsupportedVersion = 35,
    /// The batch has an old format (message format 0 or 1).
    UnsupportedForMessageFormat = 43,
    /// A sequence number does not follow the last one. Clients send again under a new epoch.
    OutOfOrderSequenceNumber = 45,
    /// The log has a later epoch of the idempotent producer.
    InvalidProducerEpoch = 47,
    /// The idempotent producer is unknown or forgotten. Clients send again under a new epoch or id.
    UnknownProducerId = 59,
    /// There are no transactions.
    TransactionalIdAuthorizationFailed = 53,
    /// The name or the password is wrong.
    SaslAuthenticationFailed = 58,
    /// The batch is compressed by an unknown codec.
    UnsupportedCompressionType = 76,
    /// A record is malformed. Clients do not retry.
    InvalidRecord = 87,
    /// The id of a topic is unknown. Clients ask for metadata and retry.
    UnknownTopicId = 100,
}

impl ErrorCode {
    /// The number.
    pub fn number(self) -> i16 {
        self as i16
    }
}
