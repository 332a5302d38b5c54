//! Decompresses request messages in steps that fit their reservation: output never exceeds the reservation or the
//! limit. It never trusts the length that a message claims.

use std::io::{self, Read};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;

use crate::refusal::Refusal;

mod snappy;

use snappy::Blocks;

/// The largest zstd window: 8 MiB. RFC 8878 asks every decoder to support it, and encoders not to exceed it without
/// agreement. A decoder holds that much beside its output, so only a few may run at once.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The first guess of the ratio for a message without a length: OTLP compresses by 5 to 10.
const RATIO_GUESS: usize = 8;

/// The highest ratio at which a claimed length is credible. Beyond it, memory is allocated step by step.
const RATIO_CREDIBLE: usize = 32;

/// The minimum reservation for a decompressed message.
const ROOM_MIN: usize = 4 << 10;

/// How a request's messages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    Zstd,
    /// Of Kafka's batches alone.
    Snappy,
    /// Of Kafka's batches alone.
    Lz4,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
            Encoding::Snappy => "snappy",
            Encoding::Lz4 => "lz4",
        }
    }
}

/// The result of one step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The message is complete.
    Done,
    /// The room is full, and there is more output.
    MoreRoom,
}

enum Decoder {
    Gzip(Box<MultiGzDecoder<Reader<Bytes>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Reader<Bytes>>>),
    /// Holds up to two blocks of 4 MiB beside its output.
    Lz4(Box<FrameDecoder<Reader<Bytes>>>),
    Snappy(Blocks),
}

/// One message being decompressed.
pub(crate) struct Decompressor {
    decoder: Decoder,
    out: Vec<u8>,
    /// The byte that showed that the output exceeds the room.
    ahead: Option<u8>,
}

impl Decompressor {
    pub(crate) fn new(encoding: Encoding, wire: Bytes) -> Result<Decompressor, Refusal> {
        let decoder = match encoding {
            Encoding::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(wire.reader()))),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(wire.reader())
                    .map_err(|error| malformed(encoding, 0, &error))?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(|error| malformed(encoding, 0, &error))?;
                Decoder::Zstd(Box::new(decoder))
            }
            Encoding::Lz4 => Decoder::Lz4(Box::new(FrameDecoder::new(wire.reader()))),
            Encoding::Snappy => Decoder::Snappy(Blocks::new(wire)),
        };
        Ok(Decompressor {
            decoder,
            out: Vec::new(),
            ahead: None,
        })
    }

    /// Decompresses until the message is complete or has `room` bytes. CPU work: run it on a blocking thread.
    pub(crate) fn step(&mut self, room: usize) -> Result<Progress, Refusal> {
        self.out.reserve_exact(room.saturating_sub(self.out.len()));
        self.out.extend(self.ahead.take());
        let (encoding, decoder): (Encoding, &mut dyn Read) = match &mut self.decoder {
            Decoder::Gzip(decoder) => (Encoding::Gzip, decoder),
            Decoder::Zstd(decoder) => (Encoding::Zstd, decoder),
            Decoder::Lz4(decoder) => (Encoding::Lz4, decoder),
            Decoder::Snappy(blocks) => {
                let progress = blocks.step(&mut self.out, room);
                return progress.map_err(|error| malformed(Encoding::Snappy, self.out.len(), &error));
            }
        };
        let missing = room.saturating_sub(self.out.len());
        let read = decoder
            .take(u64::try_from(missing).unwrap_or(u64::MAX))
            .read_to_end(&mut self.out);
        let read = read.map_err(|error| malformed(encoding, self.out.len(), &error))?;
        if read < missing {
            return Ok(Progress::Done);
        }
        let mut ahead = [0];
        match decoder
            .read(&mut ahead)
            .map_err(|error| malformed(encoding, self.out.len(), &error))?
        {
            0 => Ok(Progress::Done),
            _ => {
                self.ahead = Some(ahead[0]);
                Ok(Progress::MoreRoom)
            }
        }
    }

    /// The decompressed message.
    pub(crate) fn finish(mut self) -> Bytes {
        if self.out.capacity() - self.out.len() > self.out.len() / 4 {
            self.out.shrink_to_fit();
        }
        self.out.into()
    }
}

/// The first reservation: the length that the message claims, if that is credible.
pub(crate) fn first_room(encoding: Encoding, wire: &[u8], max: usize) -> usize {
    let claimed = match encoding {
        Encoding::Gzip => wire.last_chunk().map(|size| u64::from(u32::from_le_bytes(*size))),
        Encoding::Zstd => zstd::zstd_safe::get_frame_content_size(wire).ok().flatten(),
        Encoding::Lz4 | Encoding::Snappy => None,
    };
    let room = claimed
        .and_then(|claimed| usize::try_from(claimed).ok())
        .filter(|claimed| *claimed > 0);
    room.unwrap_or(wire.len().saturating_mul(RATIO_GUESS))
        .min(wire.len().saturating_mul(RATIO_CREDIBLE))
        .max(ROOM_MIN)
        .min(max)
}

fn malformed(encoding: Encoding, offset: usize, error: &io::Error) -> Refusal {
    Refusal::invalid(format_args!(
        "malformed {} after {offset} bytes of output: {error}",
        encoding.name()
    ))
}
