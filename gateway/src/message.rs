//! Reads the one message of a unary gRPC request from an HTTP body: the five-byte prefix, then the bytes it promises,
//! every one of them reserved from the budget before it is kept. It never decompresses.

use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::{Either, poll_fn, select};
use hyper::body::Body;
use millpond_producer::OverBudget;
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

use crate::buffers::Buffers;
use crate::memory::{Admission, Held};
use crate::reply;

/// A message is reserved and allocated in steps, this one first and then doubling, so that a prefix which promises
/// much costs little until the bytes come. A usual request needs one.
const FIRST_STEP: usize = 1 << 20;

/// Of a gRPC message: one byte that says whether it is compressed, four of its length.
const PREFIX: usize = 5;

/// The limits that reading keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_message_bytes: usize,
    pub(crate) read_timeout: Duration,
    pub(crate) retry_after: Duration,
}

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) compressed: bool,
    pub(crate) bytes: Bytes,
}

/// Reads the message and the end of the body after it. Nothing is taken from the connection before there is memory for
/// it, so a client that has to wait is held back by HTTP/2. The reservation is for the room that the message takes.
pub(crate) async fn read<B>(
    body: B,
    limits: &Limits,
    buffers: &Buffers,
    admission: &Admission,
) -> Result<(Message, Held), Status>
where
    B: Body<Data = Bytes>,
    B::Error: std::error::Error,
{
    let mut frames = Frames {
        body: pin!(body),
        timeout: pin!(sleep(limits.read_timeout)),
        limits,
        received: 0,
    };
    let mut held = frames.waiting(admission.enter()).await?;
    let mut prefix = [0; PREFIX];
    let mut have = 0;
    let mut data = Bytes::new();
    while have < PREFIX {
        if data.is_empty() {
            data = frames.next().await?.ok_or_else(|| truncated_prefix(have))?;
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
            return Err(reply::invalid(format_args!(
                "gRPC compressed-flag {flag} at offset 0: must be 0 or 1"
            )));
        }
    };
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > limits.max_message_bytes {
        return Err(reply::too_large("as sent", length, limits.max_message_bytes));
    }
    let room = Buffers::room(length);
    frames.waiting(held.grow_to(room.min(FIRST_STEP))).await?;
    if room <= FIRST_STEP && !compressed {
        held.settle(room);
    }
    let mut message = buffers.take(room).unwrap_or_default();
    frames.waiting(held.grow_to(message.capacity())).await?;
    loop {
        let missing = length - message.len();
        if data.len() > missing {
            return Err(reply::invalid(format_args!(
                "{} more bytes after the message of {length}: Export takes one message",
                data.len() - missing
            )));
        }
        if message.len() + data.len() > message.capacity() {
            let step = FIRST_STEP
                .max(message.capacity() * 2)
                .max(message.len() + data.len())
                .min(room);
            frames.waiting(held.grow_to(step)).await?;
            message.reserve_exact(step - message.len());
        }
        message.extend_from_slice(&data);
        match frames.next().await? {
            Some(next) => data = next,
            None if message.len() == length => {
                let bytes = buffers.lend(message);
                return Ok((Message { compressed, bytes }, held));
            }
            None => {
                return Err(reply::invalid(format_args!(
                    "truncated: the body ends after {} of the message's {length} bytes",
                    message.len()
                )));
            }
        }
    }
}

fn truncated_prefix(have: usize) -> Status {
    if have == 0 {
        reply::invalid("no message: the body is empty")
    } else {
        reply::invalid(format_args!(
            "truncated: the body ends after {have} of the message prefix's {PREFIX} bytes"
        ))
    }
}

/// The body's data frames, under one deadline for all of them.
struct Frames<'a, B> {
    body: Pin<&'a mut B>,
    timeout: Pin<&'a mut Sleep>,
    limits: &'a Limits,
    received: usize,
}

impl<B> Frames<'_, B>
where
    B: Body<Data = Bytes>,
    B::Error: std::error::Error,
{
    /// The next data; `None` at the end. Trailers are passed over.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let frame = poll_fn(|cx| self.body.as_mut().poll_frame(cx));
            match select(frame, self.timeout.as_mut()).await {
                Either::Left((None, _)) => return Ok(None),
                Either::Left((Some(Ok(frame)), _)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len();
                        return Ok(Some(data));
                    }
                }
                Either::Left((Some(Err(error)), _)) => {
                    return Err(Status::cancelled(format!(
                        "request body after {} bytes: {error}",
                        self.received
                    )));
                }
                Either::Right(_) => {
                    return Err(Status::deadline_exceeded(format!(
                        "request not complete after {} s and {} bytes; send it faster or raise the gateway's read_timeout",
                        self.limits.read_timeout.as_secs_f32(),
                        self.received
                    )));
                }
            }
        }
    }

    /// Waits for memory. The client's time stands still meanwhile.
    async fn waiting<T>(&mut self, memory: impl Future<Output = Result<T, OverBudget>>) -> Result<T, Status> {
        let began = Instant::now();
        let granted = memory
            .await
            .map_err(|over| reply::exhausted(&over.to_string(), self.limits.retry_after))?;
        let deadline = self.timeout.deadline() + began.elapsed();
        self.timeout.as_mut().reset(deadline);
        Ok(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Frame;
    use millpond_producer::Budget;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    const FRAME_BYTES: usize = 64 << 10;
    const LIMITS: Limits = Limits {
        max_message_bytes: 1 << 20,
        read_timeout: Duration::from_secs(30),
        retry_after: Duration::from_secs(1),
    };

    /// One frame with an empty message, and how often it was asked for.
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

    /// What it took would be in memory, in no budget, and once for every request that waits.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_memory_takes_nothing_from_its_connection() {
        let budget = Budget::new(1 << 20, Duration::from_secs(10));
        let everything = budget.reserve(budget.limit()).await.expect("all of it");
        let admission = Admission::new(&budget, FRAME_BYTES);
        let buffers = Buffers::new(0);

        let mut asked = 0;
        let refused = read(Asked(&mut asked), &LIMITS, &buffers, &admission)
            .await
            .expect_err("there is no memory");
        assert_eq!((refused.code(), asked), (tonic::Code::ResourceExhausted, 0));

        drop(everything);
        let (message, held) = read(Asked(&mut asked), &LIMITS, &buffers, &admission)
            .await
            .expect("there is memory");
        assert_eq!((message.bytes.len(), asked), (0, 2));
        drop(held);
        assert_eq!(budget.held(), 0);
    }
}
