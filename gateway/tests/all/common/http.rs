//! OTLP/HTTP clients and their payloads.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::poll_fn;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, Pieces, Running};

pub const PROTOBUF: &str = "application/x-protobuf";
pub const JSON: &str = "application/json";

/// One log record, span, gauge point.
pub const LOGS: &str = r#"{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"checkout"}}]},
 "scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000000","severityNumber":9,"body":{"stringValue":"naïve \"quoted\""},
 "traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"eee19b7ec3c1b174","aFieldOfTomorrow":{"x":[1]}}]}]}]}"#;
pub const TRACES: &str = r#"{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c",
 "spanId":"eee19b7ec3c1b174","name":"GET /","kind":2,"startTimeUnixNano":1700000000000000000,"status":{"code":1}}]}]}]}"#;
pub const METRICS: &str = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":
 [{"asInt":"-3","timeUnixNano":"1700000000000000000"}]}}]}]}]}"#;

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("text"))
    }

    /// The message of its google.rpc.Status and the invalid field it names, in the format of its content type.
    pub fn refusal(&self) -> (String, Option<String>) {
        match self.header(CONTENT_TYPE.as_str()) {
            JSON => {
                let status: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
                let field = status["details"][0]["fieldViolations"][0]["field"].as_str();
                (
                    status["message"].as_str().expect("a message").to_owned(),
                    field.map(str::to_owned),
                )
            }
            PROTOBUF => {
                let status = Status::decode(&self.body[..]).expect("a Status");
                let field = status.details.first().map(|detail| {
                    assert_eq!(detail.type_url, "type.googleapis.com/google.rpc.BadRequest");
                    let bad_request = BadRequest::decode(&detail.value[..]).expect("a BadRequest");
                    bad_request.field_violations[0].field.clone()
                });
                (status.message, field)
            }
            other => panic!("content-type {other} in {self:?}"),
        }
    }
}

impl Running {
    /// Posts a body as HTTP/1.1.
    pub async fn post(
        &self,
        path: &str,
        content_type: &str,
        headers: &[(&str, &str)],
        body: Pieces,
    ) -> Answer {
        let request = self.request(Method::POST, path, content_type, headers, body);
        self.ask(Version::HTTP_11, request).await
    }

    pub fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        headers: &[(&str, &str)],
        body: Pieces,
    ) -> Request<Pieces> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.http_address))
            .header(HOST, self.http_address.to_string());
        if !content_type.is_empty() {
            request = request.header(CONTENT_TYPE, content_type);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body).expect("a request")
    }

    /// Sends a request over a new connection.
    pub async fn ask(&self, version: Version, request: Request<Pieces>) -> Answer {
        let answer = async {
            let stream = TcpStream::connect(self.http_address).await.expect("a connection");
            let response = send(TokioIo::new(stream), version, request).await;
            collect(response.expect("a response")).await
        };
        timeout(PATIENCE, answer).await.expect("an answer")
    }
}

async fn send(
    io: TokioIo<TcpStream>,
    version: Version,
    request: Request<Pieces>,
) -> hyper::Result<Response<Incoming>> {
    if version == Version::HTTP_2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    }
}

async fn collect(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Ok(data) = frame.expect("a frame").into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Answer {
        status: head.status,
        headers: head.headers,
        body: bytes.into(),
    }
}

/// A body compressed with this content-encoding.
pub fn compressed(encoding: &str, bytes: &[u8]) -> Vec<u8> {
    match encoding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).expect("memory");
            encoder.finish().expect("memory")
        }
        "zstd" => zstd::stream::encode_all(bytes, 1).expect("memory"),
        "" | "identity" => bytes.to_vec(),
        other => panic!("no encoder for {other}"),
    }
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    field_violations: Vec<FieldViolation>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldViolation {
    #[prost(string, tag = "1")]
    field: String,
}
