//! A gateway on a free port, over a producer and an in-memory store that a test can hold or fail, and clients for it.

#![allow(unreachable_pub, reason = "a module of tests")]

pub mod http;
pub mod kafka;
pub mod log;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::poll_fn;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Request, Response};
use millpond_gateway::{Config, Error, Gateway, KafkaConfig, Listeners, Security, SecurityFiles};
use millpond_producer::Producers;
use millpond_runtime::SystemEnvironment;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Faults, Unreliable};
use object_store::memory::InMemory;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

pub mod pki;

pub const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

/// A longer wait means that something hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A limit that a client which waits for nothing keeps, also on a machine that stalls for a moment.
pub const SHORT: Duration = Duration::from_secs(1);

/// A running gateway.
pub struct Running {
    /// Of OTLP/gRPC.
    pub address: SocketAddr,
    /// Of OTLP/HTTP.
    pub http_address: SocketAddr,
    /// Of Kafka's clients.
    pub kafka_address: SocketAddr,
    pub producers: Producers,
    pub store: Store,
    pub controls: Controls,
    pub shutdown: CancellationToken,
    pub served: JoinHandle<Result<(), Error>>,
    pub registry: Registry,
    pub security: Arc<Security>,
}

/// Small limits for tests: a linger of 10 ms, blocks of 64 KiB, 16 MiB of memory and a wait of 100 ms for it.
pub fn producer_config() -> millpond_producer::Config {
    millpond_producer::Config {
        linger: Duration::from_millis(10),
        block_bytes: 64 << 10,
        memory_limit: 16 << 20,
        max_wait: Duration::from_millis(100),
        encoders: 1,
        shard: Some(0),
        ..millpond_producer::Config::default()
    }
}

pub async fn start(producer_config: millpond_producer::Config, config: Config) -> Running {
    secured(producer_config, config, &SecurityFiles::default()).await
}

/// A gateway secured by these files.
pub async fn secured(
    producer_config: millpond_producer::Config,
    config: Config,
    files: &SecurityFiles,
) -> Running {
    with_topics(producer_config, config, files, KafkaConfig::default()).await
}

/// A gateway secured by these files, with these settings of its port for Kafka's clients.
pub async fn with_topics(
    producer_config: millpond_producer::Config,
    config: Config,
    files: &SecurityFiles,
    kafka: KafkaConfig,
) -> Running {
    let store = Unreliable::new(Arc::new(InMemory::new()), Faults::default());
    let controls = store.controls();
    let store = Store::over(Arc::new(store), "");
    over((store, controls), producer_config, config, files, kafka).await
}

/// Another gateway of the same buffer.
pub async fn beside(gateway: &Running, producer_config: millpond_producer::Config) -> Running {
    let store = (gateway.store.clone(), gateway.controls.clone());
    let (files, kafka) = (SecurityFiles::default(), KafkaConfig::default());
    over(store, producer_config, Config::default(), &files, kafka).await
}

async fn over(
    (store, controls): (Store, Controls),
    producer_config: millpond_producer::Config,
    config: Config,
    files: &SecurityFiles,
    kafka: KafkaConfig,
) -> Running {
    let mut registry = Registry::default();
    let environment = Arc::new(SystemEnvironment);
    let producers = Producers::start(environment, store.clone(), producer_config, None, &mut registry)
        .await
        .expect("a producer");
    let following = producers.clone();
    tokio::spawn(async move { following.follow_growth().await });
    let security = Security::load(files, &mut registry).expect("files that can be used");
    let gateway = Gateway::new(producers.clone(), config, Arc::clone(&security), &mut registry);
    let listeners = Listeners {
        grpc: TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
        http: TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
        kafka: Some((
            TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
            kafka,
        )),
    };
    let address = listeners.grpc.local_addr().expect("an address");
    let http_address = listeners.http.local_addr().expect("an address");
    let kafka_listener = listeners
        .kafka
        .as_ref()
        .map(|(listener, _)| listener.local_addr());
    let kafka_address = kafka_listener.expect("a listener").expect("an address");
    let shutdown = CancellationToken::new();
    let served = tokio::spawn(gateway.serve(listeners, shutdown.clone()));
    Running {
        address,
        http_address,
        kafka_address,
        producers,
        store,
        controls,
        shutdown,
        served,
        registry,
        security,
    }
}

impl Running {
    pub fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address))
            .expect("an address")
            .connect_lazy()
    }

    pub fn client(&self) -> LogsServiceClient<Channel> {
        LogsServiceClient::new(self.channel())
    }

    /// The metrics as Prometheus sees them.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        text
    }

    /// Asserts that the gateway still answers, and holds no memory of earlier requests.
    pub async fn assert_well(&self) {
        timeout(PATIENCE, self.client().export(logs(1)))
            .await
            .expect("an answer")
            .expect("success");
        let nothing_held = async {
            while self.producers.budget().held() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, nothing_held)
            .await
            .expect("all memory given back");
    }

    /// Sends a POST to Export with these headers and pieces of a body, and returns the status of the answer.
    pub async fn send(&self, headers: &[(&str, &str)], body: Pieces) -> Status {
        let response = self.send_to(EXPORT, "application/grpc", headers, body).await;
        grpc_status(response).await
    }

    pub async fn send_to(
        &self,
        path: &str,
        content_type: &str,
        headers: &[(&str, &str)],
        body: Pieces,
    ) -> Response<tonic::body::Body> {
        let mut request =
            Request::post(format!("http://{}{path}", self.address)).header("content-type", content_type);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(tonic::body::Body::new(body)).expect("a request");
        let mut channel = self.channel();
        let answer = async {
            poll_fn(|cx| channel.poll_ready(cx)).await?;
            channel.call(request).await
        };
        timeout(PATIENCE, answer)
            .await
            .expect("an answer")
            .expect("a response")
    }
}

/// The status in a response's headers or trailers.
pub async fn grpc_status(response: Response<tonic::body::Body>) -> Status {
    let (head, body) = response.into_parts();
    let mut headers = head.headers;
    let mut body = std::pin::pin!(body);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Ok(trailers) = frame.expect("a frame").into_trailers() {
            headers.extend(trailers);
        }
    }
    Status::from_header_map(&headers).unwrap_or_else(|| panic!("no status in {} {headers:?}", head.status))
}

/// A request of `records` log records.
pub fn logs(records: usize) -> ExportLogsServiceRequest {
    logs_of(records, 100)
}

/// A request whose records' bodies have `length` bytes.
pub fn logs_of(records: usize, length: usize) -> ExportLogsServiceRequest {
    let record = |n: usize| LogRecord {
        time_unix_nano: n as u64,
        body: Some(AnyValue {
            value: Some(any_value::Value::StringValue("x".repeat(length))),
        }),
        ..LogRecord::default()
    };
    let scope_logs = ScopeLogs {
        log_records: (0..records).map(record).collect(),
        ..ScopeLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            scope_logs: vec![scope_logs],
            ..ResourceLogs::default()
        }],
    }
}

/// A gRPC message: prefix and payload.
pub fn framed(compressed: bool, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload");
    let mut message = vec![u8::from(compressed)];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(payload);
    message
}

/// A request body in pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    stalls: bool,
    /// The announced length.
    length: Option<u64>,
}

impl Pieces {
    pub fn of(body: impl Into<Bytes>) -> Pieces {
        Pieces {
            pieces: VecDeque::from([body.into()]),
            ..Pieces::default()
        }
    }

    /// A body with a known length.
    pub fn sized(body: impl Into<Bytes>) -> Pieces {
        let body = body.into();
        Pieces {
            length: Some(body.len() as u64),
            ..Pieces::of(body)
        }
    }

    /// One piece per byte.
    pub fn bytewise(body: &[u8]) -> Pieces {
        Pieces {
            pieces: body.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect(),
            ..Pieces::default()
        }
    }

    /// A body that never ends.
    pub fn stalling(body: impl Into<Bytes>) -> Pieces {
        Pieces {
            stalls: true,
            ..Pieces::of(body)
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.stalls => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
