//! One request: is it for us, whose is it, read it, decompress it, validate it, append it, and only then say success. It never
//! decodes OTLP, and never answers success before the producer has committed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use millpond_otlp::Signal;
use millpond_producer::{Append, AppendError, Producer, Reservation};
use millpond_segment::Encoding as StreamEncoding;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tonic::Status;

use crate::buffers::Buffers;
use crate::complaints::Complaints;
use crate::config::Config;
use crate::connection::Peer;
use crate::inflate::{Encoding, Inflater, Progress, first_room};
use crate::memory::{Admission, Held};
use crate::message::{self, Limits, Message};
use crate::metrics::{InFlight, Metrics};
use crate::reply::{self, Reply};
use crate::security::Security;
use crate::tokens::Identity;

const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const ACCEPTED: &str = "identity,gzip,zstd";

/// A longer message is validated on a blocking thread: 1 MiB takes about a millisecond.
const VALIDATE_INLINE_MAX: usize = 1 << 20;

/// No message may be longer than this part of the memory budget.
const MESSAGE_SHARE: usize = 4;

/// Idle buffers of messages may take this part of the memory budget, beside it.
const IDLE_SHARE: usize = 32;

/// What all requests of a gateway share.
pub(crate) struct Service {
    producer: Producer,
    limits: Limits,
    max_requests: usize,
    requests: Semaphore,
    admission: Admission,
    buffers: Buffers,
    /// Decompressions at work. As many as cores: each holds a window beside what it has reserved.
    inflaters: Semaphore,
    security: Arc<Security>,
    metrics: Arc<Metrics>,
    complaints: Arc<Complaints>,
}

/// What a request held, once it is read.
struct Payload {
    bytes: Bytes,
    records: u64,
}

impl Service {
    pub(crate) fn new(
        producer: Producer,
        config: &Config,
        security: Arc<Security>,
        metrics: Arc<Metrics>,
        complaints: Arc<Complaints>,
    ) -> Service {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // A compressed message is held twice for a moment; so a few of the longest always fit.
        let memory_limit = producer.budget().limit();
        let max_message_bytes = config.max_message_bytes.min(memory_limit / MESSAGE_SHARE);
        let max_requests = config.max_requests.clamp(1, Semaphore::MAX_PERMITS);
        Service {
            admission: Admission::new(producer.budget(), config.max_frame_bytes as usize),
            producer,
            limits: Limits {
                max_message_bytes,
                read_timeout: config.read_timeout,
                retry_after: config.retry_after,
            },
            max_requests,
            requests: Semaphore::new(max_requests),
            buffers: Buffers::new(memory_limit / IDLE_SHARE),
            inflaters: Semaphore::new(cores),
            security,
            metrics,
            complaints,
        }
    }

    /// How many requests are being read or waiting for their commit.
    pub(crate) fn in_flight(&self) -> usize {
        self.max_requests - self.requests.available_permits()
    }

    /// Answers one request.
    pub(crate) async fn answer<B>(self: Arc<Self>, request: Request<B>) -> Result<Response<Reply>, Infallible>
    where
        B: Body<Data = Bytes>,
        B::Error: std::error::Error,
    {
        let signal = Signal::ALL
            .into_iter()
            .find(|signal| path(*signal) == request.uri().path());
        let mut in_flight = self.metrics.begin(signal);
        if let Some(refusal) = not_grpc(&request) {
            in_flight.not_grpc();
            return Ok(refusal);
        }
        // Before anything is read of it, or reserved for it.
        let result = match (self.authorize(&request), signal) {
            (Err(status), _) => Err(status),
            (Ok(identity), Some(signal)) => self.export(signal, &identity, request).await,
            (Ok(_), None) => Err(unknown(request.uri().path())),
        };
        Ok(respond(result, &mut in_flight))
    }

    /// Whose request this is.
    fn authorize<B>(&self, request: &Request<B>) -> Result<Identity, Status> {
        self.security.authorize(request.headers()).map_err(|denied| {
            if let Some(Peer(peer)) = request.extensions().get() {
                self.complaints
                    .warn("denied", *peer, format_args!("request refused: {denied}"));
            }
            Status::unauthenticated(denied.to_string())
        })
    }

    async fn export<B>(&self, signal: Signal, identity: &Identity, request: Request<B>) -> Result<(), Status>
    where
        B: Body<Data = Bytes>,
        B::Error: std::error::Error,
    {
        let encoding = encoding(request.headers())?;
        let Ok(_permit) = self.requests.try_acquire() else {
            return Err(reply::exhausted(
                "too many requests in flight; retry, or raise the gateway's max_requests",
                self.limits.retry_after,
            ));
        };
        let (message, mut held) =
            message::read(request.into_body(), &self.limits, &self.buffers, &self.admission).await?;
        let received_at_us = now_us();
        self.metrics.received(signal, message.bytes.len());
        let payload = self.open(signal, message, encoding, &mut held).await?;
        self.metrics.opened(signal, payload.bytes.len());
        if payload.records == 0 {
            return Ok(());
        }
        let records = payload.records;
        let (reservation, _own) = held.divide();
        let stream = identity.stream(signal);
        self.append(stream, payload, received_at_us, reservation).await?;
        self.metrics.committed(signal, records);
        self.security.committed(identity, records);
        Ok(())
    }

    /// Decompresses and validates a message. `held` is at least the payload's length.
    async fn open(
        &self,
        signal: Signal,
        message: Message,
        encoding: Option<Encoding>,
        held: &mut Held,
    ) -> Result<Payload, Status> {
        let bytes = match (message.compressed, encoding) {
            (false, _) => message.bytes,
            (true, Some(encoding)) => self.inflate(message.bytes, encoding, held).await?,
            // The code is the gRPC specification's ("Compression", test cases).
            (true, None) => {
                return Err(Status::internal(
                    "compressed-flag set on a message, but the request has no grpc-encoding",
                ));
            }
        };
        if bytes.len() <= VALIDATE_INLINE_MAX {
            validate(signal, bytes)
        } else {
            spawn_blocking(move || validate(signal, bytes))
                .await
                .map_err(|error| stopped(&error))?
        }
    }

    async fn inflate(&self, wire: Bytes, encoding: Encoding, held: &mut Held) -> Result<Bytes, Status> {
        let (max, retry_after) = (self.limits.max_message_bytes, self.limits.retry_after);
        let Ok(Ok(_permit)) = timeout(self.limits.read_timeout, self.inflaters.acquire()).await else {
            return Err(reply::exhausted(
                "too many compressed requests waiting for a core; retry",
                retry_after,
            ));
        };
        let wire_room = Buffers::room(wire.len());
        let mut room = first_room(encoding, &wire, max);
        let mut inflater = Inflater::new(encoding, wire)?;
        loop {
            held.grow_to(wire_room + room)
                .await
                .map_err(|over| reply::exhausted(&over.to_string(), retry_after))?;
            let step = spawn_blocking(move || inflater.step(room).map(|progress| (progress, inflater)));
            let (progress, unfinished) = step.await.map_err(|error| stopped(&error))??;
            if progress == Progress::Done {
                held.settle(room);
                return Ok(unfinished.finish());
            }
            if room == max {
                return Err(reply::too_large(
                    "decompressed",
                    format_args!("more than {max}"),
                    max,
                ));
            }
            inflater = unfinished;
            room = room.saturating_mul(2).min(max);
        }
    }

    async fn append(
        &self,
        stream: Arc<str>,
        payload: Payload,
        received_at_us: i64,
        reservation: Reservation,
    ) -> Result<(), Status> {
        let append = Append {
            stream,
            encoding: StreamEncoding::Otlp,
            payload: payload.bytes,
            records: payload.records,
            received_at_us,
            // More than it needs, by a frame: the producer gives that back.
            reservation,
        };
        match self.producer.append(append).await {
            Ok(_) => Ok(()),
            Err(AppendError::OverBudget(over)) => {
                Err(reply::exhausted(&over.to_string(), self.limits.retry_after))
            }
            Err(error @ AppendError::Refused(_)) => Err(reply::invalid(error)),
            Err(
                error @ (AppendError::Closed | AppendError::NotCommitted(_) | AppendError::OutcomeUnknown(_)),
            ) => Err(Status::unavailable(error.to_string())),
        }
    }
}

fn validate(signal: Signal, bytes: Bytes) -> Result<Payload, Status> {
    match millpond_otlp::validate(signal, &bytes) {
        Ok(counts) => Ok(Payload {
            bytes,
            records: counts.records,
        }),
        Err(malformed) => Err(reply::invalid(malformed)),
    }
}

/// The path of the signal's Export method.
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    }
}

fn unknown(method: &str) -> Status {
    Status::unimplemented(format!(
        "unknown method {method}; this gateway serves {}",
        Signal::ALL.map(path).join(", ")
    ))
}

fn respond(result: Result<(), Status>, in_flight: &mut InFlight) -> Response<Reply> {
    match result {
        Ok(()) => {
            in_flight.answered(tonic::Code::Ok);
            reply::success()
        }
        Err(status) => {
            in_flight.answered(status.code());
            tracing::debug!(code = ?status.code(), message = status.message(), "request refused");
            status.into_http()
        }
    }
}

/// The answer to a request that is not gRPC; `None` when it is.
fn not_grpc<B>(request: &Request<B>) -> Option<Response<Reply>> {
    if request.method() != Method::POST {
        return Some(reply::not_grpc(
            StatusCode::METHOD_NOT_ALLOWED,
            "this port speaks OTLP/gRPC: POST only\n",
        ));
    }
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let essence = content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    if essence == b"application/grpc" || essence == b"application/grpc+proto" {
        return None;
    }
    Some(reply::not_grpc(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "this port speaks OTLP/gRPC: content-type must be application/grpc\n",
    ))
}

fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Status> {
    match headers.get("grpc-encoding").map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(None),
        Some(b"gzip") => Ok(Some(Encoding::Gzip)),
        Some(b"zstd") => Ok(Some(Encoding::Zstd)),
        Some(other) => {
            let mut status = Status::unimplemented(format!(
                "grpc-encoding {} is not supported; use one of {ACCEPTED}",
                String::from_utf8_lossy(other)
            ));
            status.metadata_mut().insert(
                ACCEPT_ENCODING,
                tonic::metadata::MetadataValue::from_static(ACCEPTED),
            );
            Err(status)
        }
    }
}

fn stopped(error: &JoinError) -> Status {
    Status::unavailable(format!("the gateway is stopping: {error}"))
}

fn now_us() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}
