//! The requests that the gateway knows, and their versions.

use std::ops::RangeInclusive;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Appends records.
    Produce,
    /// Reads records. It is in the list because librdkafka infers the format of batches from its version; every answer is
    /// an error.
    Fetch,
    /// Lists brokers and topics.
    Metadata,
    /// Finds the broker of a consumer group or a transaction; every answer is an error.
    FindCoordinator,
    /// Begins to authenticate.
    SaslHandshake,
    /// Lists the requests that the gateway knows.
    ApiVersions,
    /// Names an idempotent producer.
    InitProducerId,
    /// Authenticates.
    SaslAuthenticate,
}

/// The codecs of record batches, as clients name them.
pub const CODECS: &str = "none, gzip, snappy, lz4 or zstd";

impl Api {
    /// Every kind.
    pub const ALL: [Api; 8] = [
        Api::Produce,
        Api::Fetch,
        Api::Metadata,
        Api::FindCoordinator,
        Api::SaslHandshake,
        Api::ApiVersions,
        Api::InitProducerId,
        Api::SaslAuthenticate,
    ];

    /// Its number in the protocol.
    pub fn key(self) -> i16 {
        match self {
            Api::Produce => 0,
            Api::Fetch => 1,
            Api::Metadata => 3,
            Api::FindCoordinator => 10,
            Api::SaslHandshake => 17,
            Api::ApiVersions => 18,
            Api::InitProducerId => 22,
            Api::SaslAuthenticate => 36,
        }
    }

    /// The kind with this number.
    pub fn of_key(key: i16) -> Option<Api> {
        Api::ALL.into_iter().find(|api| api.key() == key)
    }

    /// The versions that the gateway speaks.
    pub fn versions(self) -> RangeInclusive<i16> {
        match self {
            Api::Produce => 3..=13,
            Api::Fetch => 4..=11,
            Api::Metadata => 0..=13,
            Api::FindCoordinator => 0..=3,
            // Version 0 sends what follows without Kafka's headers.
            Api::SaslHandshake => 1..=1,
            Api::ApiVersions => 0..=4,
            Api::InitProducerId => 0..=5,
            Api::SaslAuthenticate => 0..=2,
        }
    }

    /// Returns true if this version has compact lengths and tagged fields.
    pub(crate) fn is_flexible(self, version: i16) -> bool {
        match self {
            Api::Produce | Api::Metadata => version >= 9,
            Api::Fetch => version >= 12,
            Api::FindCoordinator | Api::ApiVersions => version >= 3,
            Api::SaslHandshake => false,
            Api::InitProducerId | Api::SaslAuthenticate => version >= 2,
        }
    }

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Api::Produce => "Produce",
            Api::Fetch => "Fetch",
            Api::Metadata => "Metadata",
            Api::FindCoordinator => "FindCoordinator",
            Api::SaslHandshake => "SaslHandshake",
            Api::ApiVersions => "ApiVersions",
            Api::InitProducerId => "InitProducerId",
            Api::SaslAuthenticate => "SaslAuthenticate",
        }
    }
}
