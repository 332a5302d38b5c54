//! Serves one connection: reads requests one after another, and answers them in their order. The next requests are read
//! while earlier ones wait for their commit.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use millpond_kafka::{
    Acks, Body, ErrorCode, Metadata, Request, RequestHeader, api_versions, fetch, find_coordinator,
    init_producer_id, metadata, metadata_len_max, produce as produce_answer, sasl_authenticate,
    sasl_handshake,
};
use millpond_runtime::Reservation;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{SemaphorePermit, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::produce::{self, Pending};
use super::{Kafka, sasl};
use crate::config::Config;
use crate::connection::Tasks;
use crate::connections::{Answering, Scarce, Seat};
use crate::entrance::{Link, Refused};
use crate::envelope::Caller;
use crate::memory::HeldMemory;
use crate::request::Service;
use crate::routing::Order;
use crate::tokens::Identity;

/// Maximum number of requests of a connection that wait for their answers. Further ones are not read.
const PIPELINE_MAX: usize = 128;

/// Room for a request's names, ids and lengths, beside its records.
const AROUND_RECORDS: usize = 64 << 10;

/// The longest request of a client that has not authenticated.
const STRANGERS_MAX: usize = 16 << 10;

/// A connection without requests is closed after this time, as by a broker (`connections.max.idle.ms`).
const IDLE_MAX: Duration = Duration::from_secs(600);

/// The step in which memory for a request grows: a length costs little until the bytes arrive.
const STEP: usize = 1 << 20;

/// Memory for the outcome of a partition until it is written: its reason, and the reasons of malformed records.
const OUTCOME_BYTES: usize = 4 << 10;

/// The pause between two attempts to get memory, which `--max-wait 0s` would leave without one.
const MEMORY_PAUSE: Duration = Duration::from_millis(50);

/// An HTTP client's first four bytes, which would be the length of a request.
const HTTP: [&[u8; 4]; 4] = [b"GET ", b"POST", b"PUT ", b"HEAD"];

/// A connection that has passed the entrance.
pub(crate) struct Session<'a> {
    pub(crate) kafka: &'a Kafka,
    pub(crate) service: &'a Service,
    pub(crate) config: &'a Config,
    pub(crate) seat: Seat,
    /// The address that the client has connected to.
    pub(crate) local: SocketAddr,
}

/// The authenticated client of a connection.
struct Sender {
    identity: Identity,
    /// The message of SASL/PLAIN, to be checked again: a token may be removed while the connection is open.
    credentials: Option<Bytes>,
}

/// An answer to a request, or the work that is left for it.
enum Answer<'a> {
    Ready(Vec<u8>),
    /// With the memory of the request, which has the names of the topics.
    Metadata(RequestHeader, Metadata, HeldMemory),
    Produce(Box<Produced<'a>>),
    /// The last one: the client is told why, and the connection is closed.
    Last(Vec<u8>),
}

/// Records on their way into the log.
struct Produced<'a> {
    header: RequestHeader,
    acks: Acks,
    caller: Caller,
    pending: Vec<Pending>,
    /// Keeps the connection open, and the gateway from stopping.
    _answering: (Answering, Option<SemaphorePermit<'a>>, Reservation),
}

/// Serves a connection until it is closed or drained.
pub(crate) async fn serve(session: Session<'_>, link: Link, tasks: &Tasks) -> Result<(), Refused> {
    let (read, write) = tokio::io::split(link);
    let (answers, queue) = mpsc::channel(PIPELINE_MAX);
    let written = session.write(write, queue);
    let reading = session.read(read, answers, &tasks.drain);
    tokio::pin!(written, reading);
    tokio::select! {
        ended = &mut reading => {
            let written = written.await;
            ended.and(written)
        }
        written = &mut written => written,
    }
}

impl<'a> Session<'a> {
    /// Reads and handles requests until the connection ends, or the gateway drains. `answers` is dropped then, so that the
    /// writer ends after the last answer.
    async fn read(
        &self,
        mut read: impl AsyncRead + Unpin,
        answers: mpsc::Sender<Answer<'a>>,
        drain: &CancellationToken,
    ) -> Result<(), Refused> {
        let anybody = self.service.security().anybody();
        let mut sender = anybody.map(|identity| Sender {
            identity,
            credentials: None,
        });
        let mut order = Order::default();
        let strangers_until = Instant::now() + self.config.handshake_timeout;
        loop {
            let patience = match &sender {
                Some(_) => IDLE_MAX,
                None => strangers_until.saturating_duration_since(Instant::now()),
            };
            // A request that is complete is handled to its end: the client would send again what is committed.
            let next = tokio::select! {
                biased;
                () = drain.cancelled() => return Ok(()),
                next = self.next(&mut read, patience, sender.is_some()) => next?,
            };
            let Some((frame, held)) = next else {
                return Ok(());
            };
            let length = frame.len();
            let request = Request::read(frame).map_err(|error| Refused::NotKafka(error.to_string()))?;
            self.service.metrics().kafka_request(request.header.api.name());
            let handled = self.handle(request, &mut sender, length, (held, &mut order));
            let answer = handled.await?;
            let is_last = matches!(answer, Answer::Last(_));
            if answers.send(answer).await.is_err() || is_last {
                return Ok(());
            }
        }
    }

    /// The next request and its memory. `None` if the client closes the connection, or is known and idle.
    async fn next(
        &self,
        read: &mut (impl AsyncRead + Unpin),
        patience: Duration,
        is_known: bool,
    ) -> Result<Option<(Bytes, HeldMemory)>, Refused> {
        let mut length = [0; 4];
        match timeout(patience, read.read_exact(&mut length)).await {
            Err(_) if is_known => return Ok(None),
            Err(_) => return Err(Refused::Slow),
            Ok(Err(_)) => return Ok(None),
            Ok(Ok(_)) => {}
        }
        let length = self.length(length, is_known)?;
        self.frame(read, length).await.map(Some)
    }

    fn length(&self, length: [u8; 4], is_known: bool) -> Result<usize, Refused> {
        if HTTP.contains(&&length) {
            return Err(Refused::NotKafka(
                "it speaks HTTP: events and OTLP/HTTP go to --listen-http".to_owned(),
            ));
        }
        let max = match is_known {
            // One of many batches, each with a topic or a partition.
            true => self.service.admission().longest() + AROUND_RECORDS,
            false => STRANGERS_MAX,
        };
        match usize::try_from(i32::from_be_bytes(length)) {
            Ok(length) if length <= max => Ok(length),
            Ok(length) => Err(Refused::NotKafka(format!(
                "a request of {length} bytes, the limit is {max}: lower the client's max.request.size (BrokerMaxWriteBytes of franz-go, \
                 MaxRequestSize of Sarama), or raise the gateway's --memory-limit, up to which the limit is that of a broker, 100 MiB"
            ))),
            Err(_) => Err(Refused::NotKafka("a request with a negative length".to_owned())),
        }
    }

    /// Reads a request of this length. Every byte is reserved before it is read.
    async fn frame(
        &self,
        read: &mut (impl AsyncRead + Unpin),
        length: usize,
    ) -> Result<(Bytes, HeldMemory), Refused> {
        // Like a broker without memory, the gateway does not read on until there is some.
        let admission = self.service.admission();
        let is_long = length > self.service.max_message_bytes() + AROUND_RECORDS;
        let turn = match is_long {
            true => Some(admission.turn(length).await),
            false => None,
        };
        let mut held = loop {
            if let Ok(held) = admission.enter(Some(&self.seat)).await {
                break held;
            }
            sleep(MEMORY_PAUSE).await;
        };
        if let Some(turn) = turn {
            held.keep(turn);
        }
        let _reading = self.seat.holding(Scarce::Reading);
        let mut frame = Vec::new();
        while frame.len() < length {
            let step = length.min(frame.len().saturating_mul(2).max(STEP));
            held.grow_to(step).await.map_err(|_| Refused::NoMemory)?;
            frame.reserve_exact(step - frame.len());
            let missing = (step - frame.len()) as u64;
            let mut part = (&mut *read).take(missing);
            let reading = async {
                while part.limit() > 0 && part.read_buf(&mut frame).await? > 0 {}
                Ok::<_, std::io::Error>(())
            };
            timeout(self.config.read_timeout, reading)
                .await
                .map_err(|_| Refused::Slow)??;
            if frame.len() < step {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok((frame.into(), held))
    }

    async fn handle(
        &self,
        request: Request,
        sender: &mut Option<Sender>,
        frame_len: usize,
        (mut held, order): (HeldMemory, &mut Order),
    ) -> Result<Answer<'a>, Refused> {
        let Request { header, body } = request;
        let identity = self.still_known(sender.as_ref())?;
        Ok(match (body, identity) {
            (Body::ApiVersions { is_known }, _) => Answer::Ready(api_versions(&header, is_known)),
            (Body::SaslHandshake { mechanism }, _) => handshake(&header, &mechanism),
            (Body::SaslAuthenticate { auth }, _) => self.authenticate(&header, &auth, sender),
            (_, None) => {
                return Err(Refused::NotKafka(format!(
                    "{} before authentication: the gateway has --tokens, so clients need SASL/PLAIN",
                    header.api.name()
                )));
            }
            (Body::Produce(request), Some(identity)) => {
                let answering = self.seat.answering();
                let permit = self.service.turn().await;
                let acks = request.acks;
                let partitions: usize = request.topics.iter().map(|topic| topic.partitions.len()).sum();
                let outcomes = self
                    .service
                    .producers()
                    .budget()
                    .reserve(partitions * OUTCOME_BYTES);
                let outcomes = outcomes.await.map_err(|_| Refused::NoMemory)?;
                let to = (&mut held, order);
                let pending =
                    produce::take(self.kafka, self.service, &identity, request, frame_len, to).await;
                let (_request, mut own) = held.divide();
                own.merge(outcomes);
                Answer::Produce(Box::new(Produced {
                    header,
                    acks,
                    caller: Caller {
                        identity,
                        seat: Some(self.seat.clone()),
                        numbering: None,
                    },
                    pending,
                    _answering: (answering, permit, own),
                }))
            }
            (Body::Metadata(request), Some(identity)) => {
                held.settle(frame_len);
                let topics = request.topics.as_deref();
                let partitions = self.service.producers().shards();
                let content = self.kafka.metadata(topics, &identity, self.local, partitions);
                Answer::Metadata(header, content, held)
            }
            (
                Body::InitProducerId {
                    is_transactional: true,
                },
                _,
            ) => Answer::Ready(init_producer_id(
                &header,
                Err(ErrorCode::TransactionalIdAuthorizationFailed),
            )),
            (Body::InitProducerId { .. }, _) => {
                let random = self.service.producers().environment().random() >> 1;
                Answer::Ready(init_producer_id(&header, Ok(random.cast_signed())))
            }
            (Body::FindCoordinator { of_transaction }, _) => {
                Answer::Ready(find_coordinator(&header, of_transaction))
            }
            (Body::Fetch, _) => Answer::Ready(fetch(&header)),
        })
    }

    /// The sender, if it may still send.
    fn still_known(&self, sender: Option<&Sender>) -> Result<Option<Identity>, Refused> {
        let Some(Sender {
            identity,
            credentials,
        }) = sender
        else {
            return Ok(None);
        };
        let Some(credentials) = credentials else {
            return Ok(Some(identity.clone()));
        };
        let known = sasl::authenticate(self.service.security(), credentials);
        known.map(Some).map_err(|_| {
            let name = identity.token().unwrap_or_default();
            Refused::NotKafka(format!("the token {name} is no longer in force"))
        })
    }

    fn authenticate(&self, header: &RequestHeader, auth: &[u8], sender: &mut Option<Sender>) -> Answer<'a> {
        match sasl::authenticate(self.service.security(), auth) {
            Ok(identity) => {
                self.seat.prove();
                *sender = Some(Sender {
                    identity,
                    // Without the rest of the request.
                    credentials: Some(Bytes::copy_from_slice(auth)),
                });
                Answer::Ready(sasl_authenticate(header, None))
            }
            Err(reason) => {
                let error = (ErrorCode::SaslAuthenticationFailed, reason.as_str());
                Answer::Last(sasl_authenticate(header, Some(error)))
            }
        }
    }

    async fn write(
        &self,
        mut write: impl AsyncWrite + Unpin,
        mut queue: mpsc::Receiver<Answer<'a>>,
    ) -> Result<(), Refused> {
        while let Some(answer) = queue.recv().await {
            let mut _reserved = None;
            let (bytes, _until_written) = match answer {
                Answer::Ready(bytes) | Answer::Last(bytes) => (bytes, None),
                Answer::Metadata(header, content, _held) => {
                    let length = metadata_len_max(&content);
                    let reserved = self.service.producers().budget().reserve(length).await;
                    _reserved = Some(reserved.map_err(|_| Refused::NoMemory)?);
                    (metadata(&header, &content), None)
                }
                Answer::Produce(produced) => {
                    let Produced {
                        header,
                        acks,
                        caller,
                        pending,
                        _answering,
                    } = *produced;
                    let outcomes = produce::outcomes(self.service, &caller, pending).await;
                    if acks == Acks::Zero {
                        continue;
                    }
                    (produce_answer(&header, &outcomes), Some(_answering))
                }
            };
            let writing = async {
                write.write_all(&bytes).await?;
                write.flush().await
            };
            timeout(self.config.read_timeout, writing)
                .await
                .map_err(|_| Refused::Slow)??;
        }
        Ok(write.shutdown().await?)
    }
}

fn handshake<'a>(header: &RequestHeader, mechanism: &str) -> Answer<'a> {
    if mechanism == sasl::PLAIN {
        Answer::Ready(sasl_handshake(header, ErrorCode::None))
    } else {
        Answer::Last(sasl_handshake(header, ErrorCode::UnsupportedSaslMechanism))
    }
}
