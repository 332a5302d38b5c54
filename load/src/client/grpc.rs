//! OTLP/gRPC: sends encoded request messages.

use std::error::Error as _;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::client::Grpc as TonicGrpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::{CONNECT_TIMEOUT, Failure, root_cause};
use crate::{Compression, LoadConfig, LoadError};

const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

const KEEPALIVE: Duration = Duration::from_secs(10);

/// Connects on first use, and reconnects after losing the connection.
#[derive(Debug, Clone)]
pub(crate) struct Grpc {
    client: TonicGrpc<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Grpc {
    pub(crate) fn lazy(config: &LoadConfig, endpoint: &str) -> Result<Grpc, LoadError> {
        let tls = config.credentials.tls()?;
        let uri = config.url(endpoint);
        let mut server = Endpoint::from_shared(uri).map_err(|error| LoadError::Setting {
            setting: "endpoint",
            reason: format!("{error}: {endpoint:?} is neither host:port nor http://host:port"),
        })?;
        if let Some(tls) = tls {
            server = server.tls_config(tls).map_err(|error| LoadError::Setting {
                setting: "tls-ca",
                reason: format!("TLS with these files is not possible: {}", root_cause(&error)),
            })?;
        }
        let channel = server
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .connect_lazy();
        let client = TonicGrpc::new(channel);
        let client = match config.compression {
            Compression::None => client,
            Compression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
            Compression::Zstd => client.send_compressed(CompressionEncoding::Zstd),
        };
        Ok(Grpc {
            client,
            authorization: config.credentials.authorization()?,
        })
    }

    /// One attempt.
    pub(crate) async fn send(&mut self, request: Bytes) -> Result<(), Failure> {
        let ready = self.client.ready().await;
        ready.map_err(|error| Failure::transport(&error))?;
        let path = PathAndQuery::from_static(EXPORT);
        let mut request = Request::new(request);
        if let Some(authorization) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", authorization.clone());
        }
        match self.client.unary(request, path, Encoded).await {
            Ok(_) => Ok(()),
            Err(status) => Err(failure(&status)),
        }
    }
}

fn failure(status: &Status) -> Failure {
    // A status from a server has no source; one with a source was created here from a connection error.
    if status.source().is_some() {
        return Failure::transport(status);
    }
    let retryable = matches!(
        status.code(),
        Code::Unavailable | Code::ResourceExhausted | Code::Aborted | Code::DeadlineExceeded
    );
    Failure {
        code: format!("{:?}", status.code()),
        retryable,
        pause: retry_info(status.details()),
    }
}

/// The pause that the server requests, or zero.
fn retry_info(details: &[u8]) -> Duration {
    let Ok(status) = google_rpc::Status::decode(details) else {
        return Duration::ZERO;
    };
    let info = status
        .details
        .iter()
        .find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"));
    let delay = info
        .and_then(|any| google_rpc::RetryInfo::decode(&any.value[..]).ok())
        .and_then(|info| info.retry_delay);
    delay.map_or(Duration::ZERO, |delay| {
        Duration::new(
            u64::try_from(delay.seconds).unwrap_or(0),
            u32::try_from(delay.nanos).unwrap_or(0).min(999_999_999),
        )
    })
}

/// Passes encoded messages through, and ignores the answer's bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = Encoded;
    type Decoder = Encoded;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Encoded {
        Encoded
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.len());
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

/// The parts of google/rpc/status.proto and error_details.proto that a retry needs.
mod google_rpc {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Status {
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
}
