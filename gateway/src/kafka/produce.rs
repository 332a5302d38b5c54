//! Takes the records of a Produce request: reads each batch, makes one message of it, and hands it to the producer.

use bytes::Bytes;
use millpond_kafka::{
    Acks, Batch, BatchError, Codec, ErrorCode, PartitionData, PartitionOutcome, Produce, TopicData,
    TopicOutcome, TopicRef,
};
use millpond_producer::{Append, AppendError, Numbered, Submitted};
use tokio::task::JoinHandle;
use tonic::Code;

use super::Kafka;
use super::answer::Fault;
use super::records::add;
use super::rows::{Length, row};
use super::topics::{Topic, TopicEncoding};
use crate::decompress::Encoding;
use crate::envelope::Caller;
use crate::memory::HeldMemory;
use crate::message::Message;
use crate::metrics::{Content, InFlight, Transport};
use crate::numbering;
use crate::refusal::Refusal;
use crate::request::{Service, TRANSCODE_INLINE_MAX};
use crate::routing::{Order, Routed};
use crate::rows::ERRORS_MAX;
use crate::tokens::Identity;

/// The records for a topic on their way into the log.
pub(super) struct Pending {
    topic: TopicRef,
    partitions: Vec<PendingPartition>,
}

struct PendingPartition {
    index: i32,
    in_flight: InFlight,
    state: State,
}

enum State {
    /// Not accepted.
    Refused(Fault),
    /// Nothing to commit.
    Empty,
    /// With the producer.
    Submitted {
        submitted: Submitted,
        content: Content,
        records: u64,
    },
    /// On the way to the shards of its keys.
    Routed {
        /// Whether the log had it already.
        outcome: JoinHandle<Result<bool, AppendError>>,
        content: Content,
        records: u64,
    },
}

/// A message for the producer.
struct Payload {
    bytes: Vec<u8>,
    records: u64,
}

/// Hands the records of a request to the producer, in their order. `held` covers the request's bytes, and `order` is that of the
/// connection.
pub(super) async fn take(
    kafka: &Kafka,
    service: &Service,
    identity: &Identity,
    request: Produce,
    frame_len: usize,
    (held, order): (&mut HeldMemory, &mut Order),
) -> Vec<Pending> {
    let allowed = check(&request);
    let mut pending = Vec::with_capacity(request.topics.len());
    for TopicData { topic, partitions } in request.topics {
        let found = allowed.clone().and_then(|()| kafka.topic(&topic, identity));
        let name = kafka.name_of(&topic).unwrap_or_default();
        let content = found.as_ref().ok().map(|topic| content(topic.encoding));
        let mut states = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let in_flight = service.begin(Transport::Kafka, content);
            let index = partition.index;
            let state = match &found {
                Err(fault) => Err(fault.clone()),
                Ok(topic) => {
                    let batch = Taking {
                        service,
                        topic,
                        name: &name,
                        frame_len,
                    };
                    batch.submit(partition, held, order).await
                }
            };
            states.push(PendingPartition {
                index,
                in_flight,
                state: state.unwrap_or_else(State::Refused),
            });
        }
        pending.push(Pending {
            topic,
            partitions: states,
        });
    }
    pending
}

fn check(request: &Produce) -> Result<(), Fault> {
    if request.acks == Acks::Invalid {
        let reason = "acks must be 0, 1 or all";
        return Err(Fault::new(ErrorCode::InvalidRequiredAcks, reason));
    }
    if request.is_transactional {
        let reason = "Millpond has no transactions: remove transactional.id";
        return Err(Fault::new(ErrorCode::TransactionalIdAuthorizationFailed, reason));
    }
    Ok(())
}

fn content(encoding: TopicEncoding) -> Content {
    match encoding {
        TopicEncoding::Otlp(signal) => Content::Signal(signal),
        TopicEncoding::Events(_) => Content::Events,
    }
}

/// The way of a batch to its stream.
struct Taking<'a> {
    service: &'a Service,
    topic: &'a Topic,
    /// The topic's name, by which an idempotent producer counts.
    name: &'a str,
    /// The bytes of the request, which `held` covers too.
    frame_len: usize,
}

impl Taking<'_> {
    async fn submit(
        &self,
        partition: PartitionData,
        held: &mut HeldMemory,
        order: &mut Order,
    ) -> Result<State, Fault> {
        let Taking { service, topic, .. } = self;
        self.check_partition(partition.index).await?;
        let received_at_us = service.producers().environment().now_us();
        let Some(records) = partition.records else {
            return Ok(State::Empty);
        };
        let content = content(topic.encoding);
        service
            .metrics()
            .received(Transport::Kafka, content, records.len());
        let batch = Batch::read(&records)?;
        let numbered = self.numbered(&batch, partition.index)?;
        let (body, room) = self.decompressed(&batch, held).await?;
        let encoding = topic.encoding;
        let max = service.max_message_bytes();
        let long = body.len() > TRANSCODE_INLINE_MAX;
        let (measured, of) = (batch.clone(), body.clone());
        let length = service
            .off_loop(long, move || measure(&measured, &of, encoding))
            .await?;
        let length = length?;
        if length > max {
            return Err(Refusal::too_large("as rows", length, max).into());
        }
        held.grow_to(self.frame_len + room + length)
            .await
            .map_err(Refusal::from)?;
        let payload = service.off_loop(long, move || payload(&batch, &body, encoding, length));
        let payload = payload.await??;
        service
            .metrics()
            .opened(Transport::Kafka, content, payload.bytes.len());
        // The log must have the numbers of a batch without records too, or the next ones would not follow.
        if payload.records == 0 && numbered.is_none() {
            return Ok(State::Empty);
        }
        if let TopicEncoding::Events(_) = encoding
            && let Some(route) = service.producers().route(&topic.stream)
        {
            let message = Routed {
                stream: topic.stream.clone(),
                route,
                records: payload.records,
                payload: payload.bytes.into(),
                received_at_us,
                numbered,
            };
            let covered = self.frame_len + room + length;
            return self.route(message, content, (covered, held), order).await;
        }
        let reservation = held.part(payload.bytes.capacity());
        let append = Append {
            stream: topic.stream.clone(),
            encoding: encoding.of_stream(),
            payload: payload.bytes.into(),
            records: payload.records,
            received_at_us,
            reservation,
        };
        let submitted = match numbered {
            None => service.producers().submit(append).await?,
            Some(numbered) => service.producers().submit_numbered(append, numbered).await?,
        };
        Ok(State::Submitted {
            submitted,
            content,
            records: payload.records,
        })
    }

    /// Sends a message to the shards of its keys. Its number follows those of the connection's messages before it, so that these go
    /// on without waiting for each other's commits.
    async fn route(
        &self,
        message: Routed,
        content: Content,
        (covered, held): (usize, &mut HeldMemory),
        order: &mut Order,
    ) -> Result<State, Fault> {
        let records = message.records;
        let producers = self.service.producers().clone();
        let divided = self.service.divided(message, covered, held).await?;
        let sent = divided.send(&producers).await?;
        let turn = order.turn();
        let outcome = tokio::spawn(async move { sent.committed(&producers, Some(turn)).await });
        Ok(State::Routed {
            outcome,
            content,
            records,
        })
    }

    /// The numbers of an idempotent producer's batch.
    fn numbered(&self, batch: &Batch, partition: i32) -> Result<Option<Numbered>, Fault> {
        let Some(sequence) = batch.sequence else {
            return Ok(None);
        };
        let place = (&*self.topic.stream, self.name, partition);
        let numbered = numbering::of_kafka(sequence, batch.count, place);
        numbered
            .map(Some)
            .map_err(|reason| Fault::new(ErrorCode::InvalidRecord, reason))
    }

    /// The client may have learned of new partitions from a gateway that looked at the buffer before this one.
    async fn check_partition(&self, index: i32) -> Result<(), Fault> {
        let producers = self.service.producers();
        match u32::try_from(index) {
            Ok(index) if producers.has_shard(index).await => Ok(()),
            _ => Err(Fault::new(
                ErrorCode::UnknownTopicOrPartition,
                format!(
                    "partition {index} does not exist: a topic has {}",
                    producers.shards()
                ),
            )),
        }
    }

    /// The records of a batch, and the memory that they take beside the request.
    async fn decompressed(&self, batch: &Batch, held: &mut HeldMemory) -> Result<(Bytes, usize), Fault> {
        let encoding = match batch.codec {
            Codec::None => return Ok((batch.body.clone(), 0)),
            Codec::Gzip => Encoding::Gzip,
            Codec::Snappy => Encoding::Snappy,
            Codec::Lz4 => Encoding::Lz4,
            Codec::Zstd => Encoding::Zstd,
        };
        let message = Message::plain(batch.body.clone(), self.frame_len);
        let message = self.service.decompressed(message, encoding, held).await?;
        Ok((message.bytes, message.room))
    }
}

/// The length of the message that a batch makes.
fn measure(batch: &Batch, body: &[u8], encoding: TopicEncoding) -> Result<usize, Fault> {
    let mut length = Length::default();
    for record in batch.records(body) {
        let record = record.map_err(BatchError::from)?;
        match encoding {
            TopicEncoding::Otlp(_) => length.0 += record.value.unwrap_or_default().len(),
            TopicEncoding::Events(shape) => {
                row(&record, shape, &mut length);
                length.0 += 1;
            }
        }
    }
    Ok(length.0)
}

/// Makes one message of a batch, or none of it: a broker does not accept a part of a batch either.
fn payload(batch: &Batch, body: &[u8], encoding: TopicEncoding, length: usize) -> Result<Payload, Fault> {
    let mut maker = Maker {
        payload: Payload {
            bytes: Vec::with_capacity(length),
            records: 0,
        },
        errors: Vec::new(),
        rejected: 0,
    };
    for (place, record) in (0_i32..).zip(batch.records(body)) {
        let record = record.map_err(BatchError::from)?;
        match add(encoding, &record, &mut maker.payload.bytes) {
            Ok(records) => maker.payload.records += records,
            Err(reason) => maker.reject(place, reason),
        }
    }
    maker.finish()
}

struct Maker {
    payload: Payload,
    /// The first malformed records.
    errors: Vec<(i32, String)>,
    rejected: usize,
}

impl Maker {
    fn reject(&mut self, place: i32, reason: String) {
        self.rejected += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push((place, reason));
        }
    }

    fn finish(self) -> Result<Payload, Fault> {
        let Some((place, reason)) = self.errors.first() else {
            return Ok(self.payload);
        };
        let message = format!(
            "malformed records: {}; record {place} of the batch: {reason}; no record of the batch is accepted",
            self.rejected
        );
        Err(Fault {
            records: self.errors,
            ..Fault::new(ErrorCode::InvalidRecord, message)
        })
    }
}

/// Waits until the records of a request are committed or refused.
pub(super) async fn outcomes(service: &Service, caller: &Caller, pending: Vec<Pending>) -> Vec<TopicOutcome> {
    let mut topics = Vec::with_capacity(pending.len());
    for Pending { topic, partitions } in pending {
        let mut outcomes = Vec::with_capacity(partitions.len());
        for partition in partitions {
            outcomes.push(partition.outcome(service, caller).await);
        }
        topics.push(TopicOutcome {
            topic,
            partitions: outcomes,
        });
    }
    topics
}

/// The task ends without an answer only when the runtime shuts down.
fn gone() -> AppendError {
    AppendError::OutcomeUnknown("the task of the records is gone".into())
}

impl PendingPartition {
    async fn outcome(mut self, service: &Service, caller: &Caller) -> PartitionOutcome {
        let fault = match self.state {
            State::Refused(fault) => Some(fault),
            State::Empty => None,
            State::Submitted {
                submitted,
                content,
                records,
            } => match submitted.committed().await {
                Ok(committed) if committed.is_repeated => None,
                Ok(_) => {
                    service.committed(Transport::Kafka, content, caller, records);
                    None
                }
                Err(error) => Some(error.into()),
            },
            State::Routed {
                outcome,
                content,
                records,
            } => match outcome.await.unwrap_or_else(|_| Err(gone())) {
                Ok(true) => None,
                Ok(false) => {
                    service.committed(Transport::Kafka, content, caller, records);
                    None
                }
                Err(error) => Some(error.into()),
            },
        };
        let Some(fault) = fault else {
            self.in_flight.answered(Code::Ok);
            return PartitionOutcome {
                index: self.index,
                error: ErrorCode::None,
                message: None,
                records: Vec::new(),
            };
        };
        tracing::debug!(error = ?fault.error, message = fault.message, "records refused");
        self.in_flight.answered(fault.grpc_code());
        fault.outcome(self.index)
    }
}
