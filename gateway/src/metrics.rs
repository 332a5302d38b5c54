//! The gateway's metrics, `millpond_gateway_*`. They never influence what it does.

use std::sync::Arc;
use std::time::Instant;

use millpond_otlp::Signal;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use crate::entrance::Refused;

/// What was asked for: a signal, or `none` where the method was no signal's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    signal: &'static str,
}

impl Of {
    fn signal(signal: Signal) -> Of {
        Of {
            signal: signal.name(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    signal: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The metrics of one gateway.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<Outcome, Counter>,
    in_flight: Gauge,
    seconds: Histogram,
    records: Family<Of, Counter>,
    received_bytes: Family<Of, Counter>,
    raw_bytes: Family<Of, Counter>,
    pub(crate) connections: Gauge,
    connections_refused: Family<Reason, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Arc<Metrics> {
        let metrics = Metrics {
            requests: Family::default(),
            in_flight: Gauge::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            records: Family::default(),
            received_bytes: Family::default(),
            raw_bytes: Family::default(),
            connections: Gauge::default(),
            connections_refused: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("millpond_gateway");
        registry.register(
            "requests",
            "Requests by signal and the gRPC code of their answer",
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
            "Bytes of request messages as they came, compressed or not",
            Unit::Bytes,
            metrics.received_bytes.clone(),
        );
        registry.register_with_unit(
            "raw",
            "Bytes of request messages after decompression",
            Unit::Bytes,
            metrics.raw_bytes.clone(),
        );
        registry.register("connections", "Open connections", metrics.connections.clone());
        registry.register(
            "connections_refused",
            "Connections closed before a request could be read, by what was wrong",
            metrics.connections_refused.clone(),
        );
        for reason in Refused::NAMES {
            drop(metrics.connections_refused.get_or_create(&Reason { reason }));
        }
        // A signal that never came is 0, not absent.
        for signal in Signal::ALL {
            metrics.received(signal, 0);
            metrics.opened(signal, 0);
            metrics.committed(signal, 0);
        }
        Arc::new(metrics)
    }

    /// A message of this many bytes came, compressed or not.
    pub(crate) fn received(&self, signal: Signal, bytes: usize) {
        let of = Of::signal(signal);
        self.received_bytes.get_or_create(&of).inc_by(bytes as u64);
    }

    /// This many bytes were in it.
    pub(crate) fn opened(&self, signal: Signal, bytes: usize) {
        self.raw_bytes
            .get_or_create(&Of::signal(signal))
            .inc_by(bytes as u64);
    }

    /// Its records are committed.
    pub(crate) fn committed(&self, signal: Signal, records: u64) {
        self.records.get_or_create(&Of::signal(signal)).inc_by(records);
    }

    /// A connection was closed before a request could be read.
    pub(crate) fn refused(&self, refused: &Refused) {
        let reason = refused.name();
        self.connections_refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn begin(self: &Arc<Self>, signal: Option<Signal>) -> InFlight {
        self.in_flight.inc();
        InFlight {
            metrics: Arc::clone(self),
            signal: signal.map_or("none", Signal::name),
            started: Instant::now(),
            outcome: "CANCELLED",
        }
    }
}

/// One request from its headers to its answer. Dropped without an outcome it counts as cancelled: the client went away.
#[derive(Debug)]
pub(crate) struct InFlight {
    metrics: Arc<Metrics>,
    signal: &'static str,
    started: Instant,
    outcome: &'static str,
}

impl InFlight {
    pub(crate) fn answered(&mut self, code: Code) {
        self.outcome = name(code);
    }

    pub(crate) fn not_grpc(&mut self) {
        self.outcome = "NOT_GRPC";
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.metrics
            .requests
            .get_or_create(&Outcome {
                signal: self.signal,
                code: self.outcome,
            })
            .inc();
        self.metrics.seconds.observe(self.started.elapsed().as_secs_f64());
    }
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
