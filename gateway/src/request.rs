//! Handles one request in any envelope: authorizes, reads, decompresses, converts OTLP/JSON to protobuf or splits events
//! into rows, validates and appends it. It never decodes OTLP, and never reports success before the producer has committed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::http::request::Parts;
use millpond_otlp::{JsonError, Signal};
use millpond_producer::{Append, AppendError, Producers, Route};
use millpond_runtime::{Reservation, blocking};
use millpond_segment::Encoding as StreamEncoding;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::buffers::Buffers;
use crate::config::Config;
use crate::connections::Seat;
use crate::decompress::{Decompressor, Encoding, Progress, first_room};
use crate::envelope::{Caller, Envelope, Format, Peer};
use crate::events::{self, Delivery};
use crate::memory::{Admission, HeldMemory};
use crate::message::{self, Limits, Message};
use crate::metrics::{Content, InFlight, Metrics, Transport};
use crate::numbering::{self, Numbering};
use crate::refusal::{Refusal, Why};
use crate::routing::Routed;
use crate::rows::{self, Rows};
use crate::security::Security;
use crate::throttled_warnings::ThrottledWarnings;

/// Longer messages are validated on a blocking thread: 1 MiB takes about a millisecond.
const VALIDATE_INLINE_MAX: usize = 1 << 20;

/// Longer JSON is converted on a blocking thread: reading it takes about ten times as long as validating.
pub(crate) const TRANSCODE_INLINE_MAX: usize = 128 << 10;

/// A message may take at most this fraction of the memory budget.
const MESSAGE_SHARE: usize = 4;

/// Idle message buffers may take this fraction of the memory budget, in addition to it.
const IDLE_SHARE: usize = 32;

/// State shared by all requests of a gateway.
pub(crate) struct Service {
    producers: Producers,
    limits: Limits,
    max_requests: usize,
    requests: Semaphore,
    admission: Admission,
    buffers: Buffers,
    /// Limits concurrent decompressions to the number of cores: each holds a window beside its reservation.
    decompressors: Semaphore,
    security: Arc<Security>,
    metrics: Arc<Metrics>,
    throttled_warnings: Arc<ThrottledWarnings>,
}

/// The outcome of an accepted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is committed.
    Committed,
    /// The log had it already, from an earlier request with the same number.
    Repeated,
}

/// The content of a request.
struct Payload {
    bytes: Bytes,
    records: u64,
}

/// The stream of a payload.
struct Stream {
    name: Arc<str>,
    encoding: StreamEncoding,
}

/// The origin of a payload.
struct Arrival<'a> {
    transport: Transport,
    content: Content,
    caller: &'a Caller,
    received_at_us: i64,
}

impl Service {
    pub(crate) fn new(
        producers: Producers,
        config: &Config,
        security: Arc<Security>,
        metrics: Arc<Metrics>,
        throttled_warnings: Arc<ThrottledWarnings>,
    ) -> Service {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // A compressed message is briefly in memory twice, so a few maximum messages always fit.
        let memory_limit = producers.budget().limit();
        let max_message_bytes = config.max_message_bytes.min(memory_limit / MESSAGE_SHARE);
        let max_requests = config.max_requests.clamp(1, Semaphore::MAX_PERMITS);
        Service {
            admission: Admission::new(
                producers.budget(),
                config.max_frame_bytes as usize,
                max_message_bytes,
            ),
            producers,
            limits: Limits {
                max_message_bytes,
                read_timeout: config.read_timeout,
                retry_after: config.retry_after,
            },
            max_requests,
            requests: Semaphore::new(max_requests),
            buffers: Buffers::new(memory_limit / IDLE_SHARE),
            decompressors: Semaphore::new(cores),
            security,
            metrics,
            throttled_warnings,
        }
    }

    /// The number of requests being read or waiting for their commit.
    pub(crate) fn in_flight(&self) -> usize {
        self.max_requests - self.requests.available_permits()
    }

    /// The delay to ask of a client that should retry.
    pub(crate) fn retry_after(&self) -> Duration {
        self.limits.retry_after
    }

    pub(crate) fn producers(&self) -> &Producers {
        &self.producers
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The longest message, as sent and decompressed.
    pub(crate) fn max_message_bytes(&self) -> usize {
        self.limits.max_message_bytes
    }

    /// Waits for its turn among the requests in flight, and counts one until the permit is dropped.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.requests.acquire().await.ok()
    }

    /// Starts counting a request.
    pub(crate) fn begin(&self, transport: Transport, content: Option<Content>) -> InFlight {
        self.metrics.begin(transport, content)
    }

    /// Authorizes a request by its headers alone, before anything of it is read or reserved. A valid token proves the
    /// connection.
    pub(crate) fn authorize(&self, head: &Parts) -> Result<Caller, Refusal> {
        let peer = head.extensions.get::<Peer>();
        let identity = self.security.authorize(&head.headers).map_err(|denied| {
            if let Some(peer) = peer {
                self.throttled_warnings.warn(
                    "denied",
                    peer.address,
                    format_args!("request refused: {denied}"),
                );
            }
            Refusal::new(Why::Denied(denied), denied)
        })?;
        let seat = peer.map(|peer| peer.seat.clone());
        if let (Some(_), Some(seat)) = (identity.token(), &seat) {
            seat.prove();
        }
        let numbering = Numbering::of(&head.headers)?;
        Ok(Caller {
            identity,
            seat,
            numbering,
        })
    }

    /// Takes a request all the way. Success means that all of it is committed.
    pub(crate) async fn export<B>(
        &self,
        signal: Signal,
        caller: &Caller,
        envelope: Envelope,
        body: &mut B,
    ) -> Result<Outcome, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error,
    {
        let _permit = self.permit()?;
        let content = Content::Signal(signal);
        let (message, mut held) = self.read(content, caller, envelope, body).await?;
        let _answering = caller.seat.as_ref().map(Seat::answering);
        let received_at_us = self.producers.environment().now_us();
        let payload = self.open(signal, envelope.format, message, &mut held).await?;
        self.metrics
            .opened(envelope.transport, content, payload.bytes.len());
        // The log must have the number of a request without records too, or the next number would not follow.
        if payload.records == 0 && caller.numbering.is_none() {
            return Ok(Outcome::Committed);
        }
        let stream = Stream {
            name: caller.identity.stream(signal),
            encoding: StreamEncoding::Otlp,
        };
        let arrival = Arrival {
            transport: envelope.transport,
            content,
            caller,
            received_at_us,
        };
        self.commit(arrival, stream, payload, held).await
    }

    /// Takes a request with events all the way. Success means that its accepted rows are committed, unless
    /// [`events::appends`] says that none are.
    pub(crate) async fn deliver<B>(
        &self,
        delivery: Delivery<'_>,
        caller: &Caller,
        body: &mut B,
    ) -> Result<(Rows, Outcome), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error,
    {
        let name = caller.identity.event_stream(delivery.stream)?;
        let _permit = self.permit()?;
        let envelope = Envelope {
            transport: Transport::Http,
            encoding: delivery.encoding,
            format: Format::Json,
        };
        let content = Content::Events;
        let (mut message, mut held) = self.read(content, caller, envelope, body).await?;
        let _answering = caller.seat.as_ref().map(Seat::answering);
        let received_at_us = self.producers.environment().now_us();
        if let Some(encoding) = message.encoding {
            message = self.decompress(message, encoding, &mut held).await?;
        }
        // The rows may need another buffer: those of an array do.
        held.grow_to(message.room + message.bytes.len()).await?;
        let (bytes, room) = (message.bytes, message.room);
        let long = bytes.len() > TRANSCODE_INLINE_MAX;
        let rows = self.off_loop(long, move || rows::read(&bytes, delivery.form));
        let mut rows = rows.await?;
        held.settle(room);
        self.metrics.opened(Transport::Http, content, rows.payload.len());
        self.metrics.rejected(rows.rejected);
        if !events::appends(&rows, delivery.on_error) {
            // A success would use the number, and the next one would not follow the last one in the log.
            if rows.accepted + rows.rejected == 0 && !rows.is_blank && caller.numbering.is_some() {
                return Err(Refusal::invalid(
                    "the body has no rows; a request with a number or key needs at least one JSON object",
                ));
            }
            return Ok((rows, Outcome::Committed));
        }
        let stream = Stream {
            name,
            encoding: StreamEncoding::Ndjson,
        };
        let arrival = Arrival {
            transport: Transport::Http,
            content,
            caller,
            received_at_us,
        };
        let payload = Payload {
            bytes: std::mem::take(&mut rows.payload),
            records: rows.accepted,
        };
        let outcome = match self.producers.route(&stream.name) {
            None => self.commit(arrival, stream, payload, held).await?,
            Some(route) => {
                self.commit_routed(arrival, (stream, route), payload, (held, room))
                    .await?
            }
        };
        Ok((rows, outcome))
    }

    /// Counts a request in flight until the permit is dropped.
    fn permit(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.requests.try_acquire().map_err(|_| {
            Refusal::exhausted("too many requests in flight; retry, or raise the gateway's max_requests")
        })
    }

    /// Reads the message of a request, as sent.
    async fn read<B>(
        &self,
        content: Content,
        caller: &Caller,
        envelope: Envelope,
        body: &mut B,
    ) -> Result<(Message, HeldMemory), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error,
    {
        let seat = caller.seat.as_ref();
        let (message, held) =
            message::read(body, envelope, &self.limits, &self.buffers, &self.admission, seat).await?;
        self.metrics
            .received(envelope.transport, content, message.bytes.len());
        Ok((message, held))
    }

    /// Appends a payload to its stream, and waits for the commit.
    async fn commit(
        &self,
        arrival: Arrival<'_>,
        stream: Stream,
        payload: Payload,
        held: HeldMemory,
    ) -> Result<Outcome, Refusal> {
        let records = payload.records;
        let (reservation, _own) = held.divide();
        let outcome = self.append(&arrival, stream, payload, reservation).await?;
        if outcome == Outcome::Committed {
            self.committed(arrival.transport, arrival.content, arrival.caller, records);
        }
        Ok(outcome)
    }

    /// The same for a stream whose rows go to the shards of their keys. The memory covers `room` bytes.
    async fn commit_routed(
        &self,
        arrival: Arrival<'_>,
        (stream, route): (Stream, Arc<Route>),
        payload: Payload,
        (mut held, room): (HeldMemory, usize),
    ) -> Result<Outcome, Refusal> {
        let numbering = arrival.caller.numbering.as_ref();
        let message = Routed {
            // The checksum covers all rows, so a request with this number and any other row is recognised as another one.
            numbered: numbering.map(|it| it.numbered(&stream.name, &payload.bytes)),
            stream: stream.name,
            route,
            payload: payload.bytes,
            records: payload.records,
            received_at_us: arrival.received_at_us,
        };
        let divided = self.divided(message, room, &mut held).await?;
        let (unused, _own) = held.divide();
        drop(unused);
        let committed = match divided.send(&self.producers).await {
            Ok(sent) => sent.committed(&self.producers, None).await,
            Err(error) => Err(error),
        };
        let is_repeated = committed.map_err(|error| refusal(error, stream.encoding))?;
        if is_repeated {
            return Ok(Outcome::Repeated);
        }
        self.committed(
            arrival.transport,
            arrival.content,
            arrival.caller,
            payload.records,
        );
        Ok(Outcome::Committed)
    }

    /// Counts committed records. They prove the connection where clients do not authenticate.
    pub(crate) fn committed(&self, transport: Transport, content: Content, caller: &Caller, records: u64) {
        self.metrics.committed(transport, content, records);
        self.security.committed(&caller.identity, records);
        let seat = caller.seat.as_ref();
        if let Some(seat) = seat.filter(|_| !self.security.identifies()) {
            seat.prove();
        }
    }

    /// Reads and discards the rest of a refused request's body.
    pub(crate) async fn discard<B>(&self, body: &mut B)
    where
        B: Body<Data = Bytes> + Unpin,
    {
        message::discard(body, &self.limits).await;
    }

    /// Decompresses a message, converts it to protobuf and validates it. `held` is at least the payload's length.
    async fn open(
        &self,
        signal: Signal,
        format: Format,
        mut message: Message,
        held: &mut HeldMemory,
    ) -> Result<Payload, Refusal> {
        if let Some(encoding) = message.encoding {
            message = self.decompress(message, encoding, held).await?;
        }
        if format == Format::Json {
            message = self.protobuf_of_json(signal, message, held).await?;
        }
        let bytes = message.bytes;
        self.off_loop(bytes.len() > VALIDATE_INLINE_MAX, move || validate(signal, bytes))
            .await?
    }

    async fn decompress(
        &self,
        message: Message,
        encoding: Encoding,
        held: &mut HeldMemory,
    ) -> Result<Message, Refusal> {
        let message = self.decompressed(message, encoding, held).await?;
        held.settle(message.room);
        Ok(message)
    }

    /// Decompresses a message. `held` covers what it covered before, and the new message.
    pub(crate) async fn decompressed(
        &self,
        message: Message,
        encoding: Encoding,
        held: &mut HeldMemory,
    ) -> Result<Message, Refusal> {
        let max = self.limits.max_message_bytes;
        let Ok(Ok(_permit)) = timeout(self.limits.read_timeout, self.decompressors.acquire()).await else {
            return Err(Refusal::exhausted(
                "too many compressed requests waiting for a core; retry",
            ));
        };
        let wire = message.bytes;
        let mut room = first_room(encoding, &wire, max);
        let mut decompressor = Decompressor::new(encoding, wire)?;
        loop {
            held.grow_to(message.room + room).await?;
            let step = self.off_loop(true, move || {
                decompressor.step(room).map(|progress| (progress, decompressor))
            });
            let (progress, unfinished) = step.await??;
            if progress == Progress::Done {
                let bytes = unfinished.finish();
                return Ok(Message::plain(bytes, room));
            }
            if room == max {
                let more = format_args!("more than {max}");
                return Err(Refusal::too_large("decompressed", more, max));
            }
            decompressor = unfinished;
            room = room.saturating_mul(2).min(max);
        }
    }

    /// Protobuf takes less room than JSON except for unusual requests, which are read again with more.
    async fn protobuf_of_json(
        &self,
        signal: Signal,
        message: Message,
        held: &mut HeldMemory,
    ) -> Result<Message, Refusal> {
        let max = self.limits.max_message_bytes;
        let mut room = message.bytes.len().min(max);
        loop {
            held.grow_to(message.room + room).await?;
            let json = message.bytes.clone();
            let protobuf = self.off_loop(json.len() > TRANSCODE_INLINE_MAX, move || {
                millpond_otlp::protobuf_of_json(signal, &json, room)
            });
            match protobuf.await? {
                Ok(mut protobuf) => {
                    drop(message);
                    protobuf.shrink_to_fit();
                    let room = protobuf.capacity();
                    held.settle(room);
                    return Ok(Message::plain(protobuf.into(), room));
                }
                Err(JsonError::Malformed(malformed)) => {
                    return Err(Refusal::invalid_field(malformed.field.clone(), malformed));
                }
                Err(JsonError::MoreRoom) if room == max => {
                    let more = format_args!("more than {max}");
                    return Err(Refusal::too_large("as protobuf", more, max));
                }
                Err(JsonError::MoreRoom) => room = room.saturating_mul(2).min(max),
            }
        }
    }

    /// Does CPU work, on a blocking thread if it is `long`.
    pub(crate) async fn off_loop<T, F>(&self, long: bool, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if long {
            blocking::run(self.producers.environment(), work)
                .await
                .map_err(|error| Refusal::stopping(&error))
        } else {
            Ok(work())
        }
    }

    async fn append(
        &self,
        arrival: &Arrival<'_>,
        stream: Stream,
        payload: Payload,
        reservation: Reservation,
    ) -> Result<Outcome, Refusal> {
        let numbering = arrival.caller.numbering.as_ref();
        let numbered = numbering.map(|it| it.numbered(&stream.name, &payload.bytes));
        let append = Append {
            stream: stream.name,
            encoding: stream.encoding,
            payload: payload.bytes,
            records: payload.records,
            received_at_us: arrival.received_at_us,
            // One frame more than needed: the producer gives it back.
            reservation,
        };
        let appended = match numbered {
            None => self.producers.append(append).await,
            Some(numbered) => match self.producers.submit_numbered(append, numbered).await {
                Ok(submitted) => submitted.committed().await,
                Err(error) => Err(error),
            },
        };
        match appended {
            Ok(committed) if committed.is_repeated => Ok(Outcome::Repeated),
            Ok(_) => Ok(Outcome::Committed),
            Err(error) => Err(refusal(error, stream.encoding)),
        }
    }
}

pub(crate) fn refusal(error: AppendError, encoding: StreamEncoding) -> Refusal {
    match error {
        AppendError::OverBudget(over) => over.into(),
        AppendError::Client(refused) => numbering::refusal(&refused),
        // A stream of another encoding, or no room for a new stream: other bytes do not help.
        error @ AppendError::Refused(_) if encoding == StreamEncoding::Ndjson => Refusal::conflict(error),
        error @ AppendError::Refused(_) => Refusal::invalid(error),
        error @ (AppendError::Closed | AppendError::NotCommitted(_) | AppendError::OutcomeUnknown(_)) => {
            Refusal::new(Why::Unavailable, error)
        }
    }
}

fn validate(signal: Signal, bytes: Bytes) -> Result<Payload, Refusal> {
    match millpond_otlp::validate(signal, &bytes) {
        Ok(counts) => Ok(Payload {
            bytes,
            records: counts.records,
        }),
        Err(malformed) => Err(Refusal::invalid_field(malformed.field.clone(), malformed)),
    }
}
