//! The parts of google/rpc/status.proto and error_details.proto that OTLP's answers use.

pub(crate) const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
pub(crate) const BAD_REQUEST: &str = "type.googleapis.com/google.rpc.BadRequest";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub(crate) retry_delay: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) field_violations: Vec<FieldViolation>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FieldViolation {
    #[prost(string, tag = "1")]
    pub(crate) field: String,
    #[prost(string, tag = "2")]
    pub(crate) description: String,
}
