//! A result on its way back: compressed, held until it is complete or too large to hold, then streamed as fast as
//! the client reads. An exception in the middle of a stream is written the way ClickHouse writes it, and then the
//! connection is cut, so that no client can take the part for the whole.

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};

use crate::encoding::{Encoder, Encoding};
use crate::exception::{Code, Exception};
use crate::ffi::Counters;

/// A result up to this size is answered with a length and full counters; a larger one streams.
const BUFFER_BYTES: usize = 1 << 20;

/// Pieces of a streaming result that wait for a slow client; the engine waits with them.
const PIECES_IN_FLIGHT: usize = 4;

/// What a worker answers.
pub(crate) type Outcome = Result<Reply, Exception>;

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The format of the result, where there can be one.
    pub(crate) format: Option<String>,
    /// What was read and written so far.
    pub(crate) counters: Counters,
    pub(crate) body: Body,
}

/// The body of an answer, already compressed.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Bytes),
    /// What is there so far, and the rest as it comes.
    Stream(Bytes, mpsc::Receiver<Result<Bytes, Cut>>),
}

/// The query failed after a part of its result was sent.
#[derive(Debug)]
pub(crate) struct Cut;

/// Where a worker writes a result.
pub(crate) struct Output {
    reply: Option<oneshot::Sender<Outcome>>,
    stream: Option<mpsc::Sender<Result<Bytes, Cut>>>,
    encoder: Option<Encoder>,
    buffer: BytesMut,
    empty: bool,
    /// How much is held before it streams.
    pub(crate) buffer_bytes_max: usize,
    /// Sent with the reply.
    pub(crate) format: Option<String>,
    /// Sent with the reply.
    pub(crate) counters: Counters,
}

impl Output {
    pub(crate) fn new(reply: oneshot::Sender<Outcome>) -> Output {
        Output {
            reply: Some(reply),
            stream: None,
            encoder: None,
            buffer: BytesMut::new(),
            empty: true,
            buffer_bytes_max: BUFFER_BYTES,
            format: None,
            counters: Counters::default(),
        }
    }

    /// Compresses what follows.
    pub(crate) fn compress(&mut self, encoding: Encoding) -> Result<(), Exception> {
        self.encoder = Some(Encoder::new(encoding).map_err(|error| broken(&error))?);
        Ok(())
    }

    /// The next piece of a result. Fails when the client is gone, which ends the query.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<(), Exception> {
        self.write(piece)?;
        if self.stream.is_none() && self.buffer.len() > self.buffer_bytes_max {
            let (sender, receiver) = mpsc::channel(PIECES_IN_FLIGHT);
            let begun = self.buffer.split().freeze();
            self.stream = Some(sender);
            self.answer(Body::Stream(begun, receiver));
        }
        Ok(())
    }

    /// A result that is complete, however large it is.
    pub(crate) fn push_whole(&mut self, result: Bytes) -> Result<(), Exception> {
        self.write(result)
    }

    /// The result has ended well.
    pub(crate) fn finish(mut self) {
        if let Err(exception) = self.end() {
            return self.abandon(exception);
        }
        if self.stream.is_none() {
            let body = self.buffer.split().freeze();
            self.answer(Body::Whole(body));
        }
    }

    /// The request has failed. `tag` is what the response's header announced.
    pub(crate) fn fail(mut self, exception: Exception, tag: &str, version: &str) {
        if self.stream.is_some() {
            let text = exception.body(version);
            let block = format!(
                "\r\n__exception__\r\n{tag}\r\n{text}{} {tag}\r\n__exception__\r\n",
                text.len()
            );
            // When the client is gone nobody is left to be told.
            if self.write(block.into()).is_err() || self.end().is_err() {
                return;
            }
        }
        self.abandon(exception);
    }

    fn abandon(mut self, exception: Exception) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.blocking_send(Err(Cut));
        } else if let Some(reply) = self.reply.take() {
            let _ = reply.send(Err(exception));
        }
    }

    fn answer(&mut self, body: Body) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(Ok(Reply {
                format: self.format.take(),
                counters: self.counters,
                body,
            }));
        }
    }

    /// Ends the compressed stream. An empty result stays empty: there are clients that take a compressed nothing
    /// for a result.
    fn end(&mut self) -> Result<(), Exception> {
        match self.encoder.take() {
            Some(encoder) if !self.empty => {
                let rest = encoder.finish().map_err(|error| broken(&error))?;
                self.pass_on(rest)
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, piece: Bytes) -> Result<(), Exception> {
        self.empty &= piece.is_empty();
        let piece = match &mut self.encoder {
            Some(encoder) => encoder.push(piece).map_err(|error| broken(&error))?,
            None => piece,
        };
        self.pass_on(piece)
    }

    fn pass_on(&mut self, piece: Bytes) -> Result<(), Exception> {
        match &self.stream {
            Some(_) if piece.is_empty() => Ok(()),
            Some(stream) => stream
                .blocking_send(Ok(piece))
                .map_err(|_| Exception::new(Code::Unknown, "the client has gone away")),
            None => {
                self.buffer.extend_from_slice(&piece);
                Ok(())
            }
        }
    }
}

fn broken(error: &std::io::Error) -> Exception {
    Exception::new(Code::Unknown, format!("cannot compress the result: {error}"))
}
