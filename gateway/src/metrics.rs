//! The gateway's metrics, `millpond_gateway_*`. They never influence its behaviour.

use std::sync::Arc;

use millpond_otlp::Signal;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;
use tonic::Code;

use crate::entrance::Refused;
use crate::kafka;

/// The protocol of a connection and its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP and events.
    Http,
    /// Kafka's protocol.
    Kafka,
}

impl Transport {
    const ALL: [Transport; 3] = [Transport::Grpc, Transport::Http, Transport::Kafka];

    fn label(self) -> By {
        let transport = match self {
            Transport::Grpc => "grpc",
            Transport::Http => "http",
            Transport::Kafka => "kafka",
        };
        By { transport }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    transport: &'static str,
}

/// The content of a request, the label `signal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// OTLP.
    Signal(Signal),
    /// Rows of JSON. Their stream is no label: clients choose its name.
    Events,
}

impl Content {
    /// Each content that this transport carries.
    fn all(transport: Transport) -> impl Iterator<Item = Content> {
        let events = (transport != Transport::Grpc).then_some(Content::Events);
        Signal::ALL.into_iter().map(Content::Signal).chain(events)
    }

    fn name(self) -> &'static str {
        match self {
            Content::Signal(signal) => signal.name(),
            Content::Events => "events",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    transport: &'static str,
    signal: &'static str,
}

impl Of {
    fn new(transport: Transport, content: Content) -> Of {
        Of {
            transport: transport.label().transport,
            signal: content.name(),
        }
    }
}

/// The signal is `none` for an unknown method or path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    transport: &'static str,
    signal: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KafkaApi {
    api: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Closed {
    transport: &'static str,
    reason: &'static str,
}

/// The metrics of one gateway.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<Outcome, Counter>,
    in_flight: Family<By, Gauge>,
    seconds: Family<By, Histogram>,
    records: Family<Of, Counter>,
    received_bytes: Family<Of, Counter>,
    raw_bytes: Family<Of, Counter>,
    rejected_rows: Counter,
    connections: Family<By, Gauge>,
    connections_refused: Family<Closed, Counter>,
    kafka_requests: Family<KafkaApi, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Arc<Metrics> {
        let metrics = Metrics {
            requests: Family::default(),
            in_flight: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            records: Family::default(),
            received_bytes: Family::default(),
            raw_bytes: Family::default(),
            rejected_rows: Counter::default(),
            connections: Family::default(),
            connections_refused: Family::default(),
            kafka_requests: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("millpond_gateway");
        registry.register(
            "requests",
            "Requests by transport, signal and the gRPC code of their answer, or its equivalent",
            metrics.requests.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests being read or waiting for their commit",
            metrics.in_flight.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "From a request's headers to its answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "records",
            "Records committed and acknowledged",
            metrics.records.clone(),
        );
        registry.register_with_unit(
            "received",
            "Bytes of request messages as received, compressed or not",
            Unit::Bytes,
            metrics.received_bytes.clone(),
        );
        registry.register_with_unit(
            "raw",
            "Bytes of request messages as stored: decompressed, with JSON converted to protobuf",
            Unit::Bytes,
            metrics.raw_bytes.clone(),
        );
        registry.register(
            "rejected_rows",
            "Malformed rows of events that the gateway rejected",
            metrics.rejected_rows.clone(),
        );
        registry.register("connections", "Open connections", metrics.connections.clone());
        registry.register(
            "connections_refused",
            "Connections closed by the gateway, by reason",
            metrics.connections_refused.clone(),
        );
        registry.register(
            "kafka_requests",
            "Requests of Kafka's clients, by kind",
            metrics.kafka_requests.clone(),
        );
        for api in kafka::apis() {
            drop(metrics.kafka_requests.get_or_create(&KafkaApi { api }));
        }
        // A signal without requests is 0, not absent.
        for transport in Transport::ALL {
            for content in Content::all(transport) {
                metrics.received(transport, content, 0);
                metrics.opened(transport, content, 0);
                metrics.committed(transport, content, 0);
            }
            metrics.in_flight.get_or_create(&transport.label()).set(0);
            metrics.connections.get_or_create(&transport.label()).set(0);
            for reason in Refused::NAMES {
                drop(
                    metrics
                        .connections_refused
                        .get_or_create(&closed(transport, reason)),
                );
            }
        }
        Arc::new(metrics)
    }

    /// Counts the bytes of a received message, compressed or not.
    pub(crate) fn received(&self, transport: Transport, content: Content, bytes: usize) {
        let of = Of::new(transport, content);
        self.received_bytes.get_or_create(&of).inc_by(bytes as u64);
    }

    /// Counts the bytes of a decompressed message.
    pub(crate) fn opened(&self, transport: Transport, content: Content, bytes: usize) {
        self.raw_bytes
            .get_or_create(&Of::new(transport, content))
            .inc_by(bytes as u64);
    }

    /// Counts committed records.
    pub(crate) fn committed(&self, transport: Transport, content: Content, records: u64) {
        self.records
            .get_or_create(&Of::new(transport, content))
            .inc_by(records);
    }

    /// Counts rejected rows of events.
    pub(crate) fn rejected(&self, rows: u64) {
        self.rejected_rows.inc_by(rows);
    }

    /// Counts a request of a Kafka client.
    pub(crate) fn kafka_request(&self, api: &'static str) {
        self.kafka_requests.get_or_create(&KafkaApi { api }).inc();
    }

    /// Counts an open connection.
    pub(crate) fn connected(&self, transport: Transport) {
        self.connections.get_or_create(&transport.label()).inc();
    }

    /// Counts a closed connection.
    pub(crate) fn disconnected(&self, transport: Transport) {
        self.connections.get_or_create(&transport.label()).dec();
    }

    /// Counts a connection that was closed before its first request.
    pub(crate) fn refused(&self, transport: Transport, refused: &Refused) {
        let closed = closed(transport, refused.name());
        self.connections_refused.get_or_create(&closed).inc();
    }

    /// Starts counting a request at its headers.
    pub(crate) fn begin(self: &Arc<Self>, transport: Transport, content: Option<Content>) -> InFlight {
        self.in_flight.get_or_create(&transport.label()).inc();
        InFlight {
            metrics: Arc::clone(self),
            by: transport.label(),
            signal: content.map_or("none", Content::name),
            started: Instant::now(),
            outcome: "CANCELLED",
        }
    }
}

/// One request from its headers to its answer. Dropped without an outcome it counts as cancelled: the client
/// disconnected.
#[derive(Debug)]
pub(crate) struct InFlight {
    metrics: Arc<Metrics>,
    by: By,
    signal: &'static str,
    started: Instant,
    outcome: &'static str,
}

impl InFlight {
    pub(crate) fn answered(&mut self, code: Code) {
        self.outcome = name(code);
    }

    pub(crate) fn not_otlp(&mut self) {
        self.outcome = "NOT_OTLP";
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.get_or_create(&self.by).dec();
        self.metrics
            .requests
            .get_or_create(&Outcome {
                transport: self.by.transport,
                signal: self.signal,
                code: self.outcome,
            })
            .inc();
        self.metrics
            .seconds
            .get_or_create(&self.by)
            .observe(self.started.elapsed().as_secs_f64());
    }
}

fn closed(transport: Transport, reason: &'static str) -> Closed {
    let By { transport } = transport.label();
    Closed { transport, reason }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
