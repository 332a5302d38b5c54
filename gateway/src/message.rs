//! Reads the one message of a request from an HTTP body: in gRPC the five-byte prefix and the announced bytes, in
//! OTLP/HTTP the whole body. Every byte is reserved from the budget before it is kept. It never decompresses.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::{Either, poll_fn, select};
use hyper::body::Body;
use millpond_runtime::OverBudget;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::buffers::Buffers;
use crate::connections::{Scarce, Seat};
use crate::decompress::Encoding;
use crate::envelope::{Envelope, Format};
use crate::memory::{Admission, HeldMemory};
use crate::metrics::Transport;
use crate::refusal::{Refusal, Why};

/// Reservation and allocation grow in steps, this one first and then doubling: a prefix that announces much costs
/// little until the bytes arrive. A typical request needs one step.
const FIRST_STEP: usize = 1 << 20;

/// The first step of a body without a length, which is usually short.
const UNKNOWN_STEP: usize = 128 << 10;

/// The gateway reads a refused body to its end, so that the client can read the answer, if it has at most this many
/// maximum messages.
const DISCARD_MESSAGES: usize = 4;

/// The prefix of a gRPC message: one byte for compression, four for the length.
const PREFIX: usize = 5;

/// Limits on reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_message_bytes: usize,
    pub(crate) read_timeout: Duration,
    pub(crate) retry_after: Duration,
}

/// A message as received.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Bytes,
    /// Its allocated size.
    pub(crate) room: usize,
    /// Its compression, if any.
    pub(crate) encoding: Option<Encoding>,
}

impl Message {
    /// An uncompressed message.
    pub(crate) fn plain(bytes: Bytes, room: usize) -> Message {
        Message {
            bytes,
            room,
            encoding: None,
        }
    }
}

/// Reads the message and the end of the body after it. Bytes leave the connection only once there is memory for them,
/// so HTTP/2 or TCP holds back a waiting client. The reservation covers the message's room.
pub(crate) async fn read<B>(
    body: &mut B,
    envelope: Envelope,
    limits: &Limits,
    buffers: &Buffers,
    admission: &Admission,
    seat: Option<&Seat>,
) -> Result<(Message, HeldMemory), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let whole = body.size_hint().exact().map(to_usize);
    let mut frames = Frames::new(body, limits);
    if let (Transport::Http, Some(length)) = (envelope.transport, whole) {
        check(length, limits)?;
    }
    let mut held = frames.waiting(admission.enter(seat)).await?;
    let _reading = seat.map(|seat| seat.holding(Scarce::Reading));
    let (data, length, encoding) = match envelope.transport {
        Transport::Http | Transport::Kafka => (Bytes::new(), whole, envelope.encoding),
        Transport::Grpc => {
            let (data, compressed, length) = frames.prefix().await?;
            check(length, limits)?;
            let encoding = match (compressed, envelope.encoding) {
                (false, _) => None,
                (true, Some(encoding)) => Some(encoding),
                (true, None) => {
                    return Err(Refusal::new(
                        Why::NoEncoding,
                        "compressed-flag set on a message, but the request has no grpc-encoding",
                    ));
                }
            };
            (data, Some(length), encoding)
        }
    };
    let room = length.map_or(limits.max_message_bytes, Buffers::room);
    let first_step = if length.is_some() {
        FIRST_STEP
    } else {
        UNKNOWN_STEP
    };
    frames.waiting(held.grow_to(room.min(first_step))).await?;
    let needs_no_more = encoding.is_none() && envelope.format == Format::Protobuf;
    if length.is_some() && room <= first_step && needs_no_more {
        held.settle(room);
    }
    let buffer = length.and_then(|_| buffers.take(room)).unwrap_or_default();
    frames.waiting(held.grow_to(buffer.capacity())).await?;
    let growth = Growth { first_step, room };
    let message = frames.message(data, length, buffer, growth, &mut held).await?;
    let room = message.capacity();
    let bytes = buffers.lend(message);
    Ok((
        Message {
            bytes,
            room,
            encoding,
        },
        held,
    ))
}

/// Reads a body to its end and discards it. Gives up after the read timeout, or after a few maximum messages.
pub(crate) async fn discard<B>(body: &mut B, limits: &Limits)
where
    B: Body<Data = Bytes> + Unpin,
{
    let to_the_end = async {
        let mut left = limits.max_message_bytes.saturating_mul(DISCARD_MESSAGES);
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            if length > left {
                return;
            }
            left -= length;
        }
    };
    // Closing the connection resets the rest.
    let _ = timeout(limits.read_timeout, to_the_end).await;
}

fn check(length: usize, limits: &Limits) -> Result<(), Refusal> {
    if length > limits.max_message_bytes {
        return Err(Refusal::too_large("as sent", length, limits.max_message_bytes));
    }
    Ok(())
}

fn to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

fn truncated_prefix(have: usize) -> Refusal {
    if have == 0 {
        Refusal::invalid("no message: the body is empty")
    } else {
        Refusal::invalid(format_args!(
            "truncated: the body ends after {have} of the message prefix's {PREFIX} bytes"
        ))
    }
}

/// How a message's buffer grows.
struct Growth {
    first_step: usize,
    /// Its upper limit.
    room: usize,
}

/// The body's data frames, with one deadline for all of them.
struct Frames<'a, B> {
    body: &'a mut B,
    timeout: Pin<Box<Sleep>>,
    limits: &'a Limits,
    received: usize,
}

impl<'a, B> Frames<'a, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    fn new(body: &'a mut B, limits: &'a Limits) -> Self {
        Frames {
            body,
            timeout: Box::pin(sleep(limits.read_timeout)),
            limits,
            received: 0,
        }
    }

    /// Reads gRPC's prefix: the bytes after it, whether the message is compressed, and its length.
    async fn prefix(&mut self) -> Result<(Bytes, bool, usize), Refusal> {
        let mut prefix = [0; PREFIX];
        let mut have = 0;
        let mut data = Bytes::new();
        while have < PREFIX {
            if data.is_empty() {
                data = self.next().await?.ok_or_else(|| truncated_prefix(have))?;
            }
            let take = data.len().min(PREFIX - have);
            data.copy_to_slice(&mut prefix[have..have + take]);
            have += take;
        }
        let [flag, length @ ..] = prefix;
        let compressed = match flag {
            0 => false,
            1 => true,
            _ => {
                return Err(Refusal::invalid(format_args!(
                    "gRPC compressed-flag {flag} at offset 0: must be 0 or 1"
                )));
            }
        };
        Ok((data, compressed, to_usize(u32::from_be_bytes(length).into())))
    }

    /// Reads the message, starting with `data`, into `message`, up to the end of the body. Without a length the message
    /// is the whole body.
    async fn message(
        &mut self,
        mut data: Bytes,
        length: Option<usize>,
        mut message: Vec<u8>,
        growth: Growth,
        held: &mut HeldMemory,
    ) -> Result<Vec<u8>, Refusal> {
        let max = self.limits.max_message_bytes;
        loop {
            let needed = message.len() + data.len();
            match length {
                Some(length) if needed > length => {
                    return Err(Refusal::invalid(format_args!(
                        "{} more bytes after the message of {length}: Export takes one message",
                        needed - length
                    )));
                }
                None if needed > max => {
                    let more = format_args!("more than {max}");
                    return Err(Refusal::too_large("as sent", more, max));
                }
                _ => {}
            }
            if needed > message.capacity() {
                let step = growth
                    .first_step
                    .max(message.capacity() * 2)
                    .max(needed)
                    .min(growth.room);
                self.waiting(held.grow_to(step)).await?;
                message.reserve_exact(step - message.len());
            }
            message.extend_from_slice(&data);
            match (self.next().await?, length) {
                (Some(next), _) => data = next,
                (None, Some(length)) if message.len() < length => {
                    return Err(Refusal::invalid(format_args!(
                        "truncated: the body ends after {} of the message's {length} bytes",
                        message.len()
                    )));
                }
                (None, _) => return Ok(message),
            }
        }
    }

    /// The next data, or `None` at the end. Skips trailers.
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut *self.body).poll_frame(cx));
            match select(frame, self.timeout.as_mut()).await {
                Either::Left((None, _)) => return Ok(None),
                Either::Left((Some(Ok(frame)), _)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len();
                        return Ok(Some(data));
                    }
                }
                Either::Left((Some(Err(error)), _)) => {
                    return Err(Refusal::new(
                        Why::Cancelled,
                        format_args!("request body after {} bytes: {error}", self.received),
                    ));
                }
                Either::Right(_) => {
                    return Err(Refusal::new(
                        Why::TooSlow,
                        format_args!(
                            "request not complete after {} s and {} bytes; send it faster or raise the gateway's read_timeout",
                            self.limits.read_timeout.as_secs_f32(),
                            self.received
                        ),
                    ));
                }
            }
        }
    }

    /// Waits for memory, with the client's deadline paused.
    async fn waiting<T>(
        &mut self,
        memory: impl Future<Output = Result<T, OverBudget>>,
    ) -> Result<T, Refusal> {
        let began = Instant::now();
        let granted = memory.await?;
        let deadline = self.timeout.deadline() + began.elapsed();
        self.timeout.as_mut().reset(deadline);
        Ok(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Frame;
    use millpond_runtime::Budget;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    const FRAME_BYTES: usize = 64 << 10;
    const LIMITS: Limits = Limits {
        max_message_bytes: 1 << 20,
        read_timeout: Duration::from_secs(30),
        retry_after: Duration::from_secs(1),
    };

    const GRPC: Envelope = Envelope {
        transport: Transport::Grpc,
        encoding: None,
        format: Format::Protobuf,
    };

    /// A body with one frame of an empty message that counts how often it is polled.
    struct Asked<'a>(&'a mut usize);

    impl Body for Asked<'_> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            *self.0 += 1;
            let first = *self.0 == 1;
            Poll::Ready(first.then(|| Ok(Frame::data(Bytes::from_static(&[0; PREFIX])))))
        }
    }

    /// Polled bytes would be in memory but in no budget, once per waiting request.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_memory_takes_nothing_from_its_connection() {
        let budget = Budget::new(1 << 20, Duration::from_secs(10));
        let everything = budget.reserve(budget.limit()).await.expect("all of it");
        let admission = Admission::new(&budget, FRAME_BYTES, LIMITS.max_message_bytes);
        let buffers = Buffers::new(0);

        let mut asked = 0;
        let refused = read(&mut Asked(&mut asked), GRPC, &LIMITS, &buffers, &admission, None)
            .await
            .expect_err("there is no memory");
        assert_eq!((refused.code(), asked), (tonic::Code::ResourceExhausted, 0));

        drop(everything);
        let (message, held) = read(&mut Asked(&mut asked), GRPC, &LIMITS, &buffers, &admission, None)
            .await
            .expect("there is memory");
        assert_eq!((message.bytes.len(), asked), (0, 2));
        drop(held);
        assert_eq!(budget.held(), 0);
    }
}
