//! The segment format: one immutable object with the blocks of one or many streams.
//!
//! Bytes in, bytes out. This crate does no I/O, reads no clock and starts no thread. Whatever bytes it is
//! given, it answers with their content or an [`Error`]: it never panics, and it allocates nothing whose
//! size it has not first checked against [`Limits`].
//!
//! The format is specified byte by byte in `design/segment-format.md`.
//!
//! Writing: [`BlockBuilder`] collects one stream's messages, [`Compressor`] makes an [`EncodedBlock`] of
//! them, [`SegmentBuilder`] puts the blocks of all streams in order and ends with an [`EncodedSegment`].
//!
//! Reading: [`read_index`] says where each stream's blocks are; [`blocks`] walks the bytes of one stream,
//! verifying each block; [`Block::decode`] gives its messages. [`verify`] checks a whole object.

mod block;
mod decode;
mod encode;
mod error;
mod index;
mod limits;

pub use block::{BLOCK_HEADER_LEN, Compression};
pub use decode::{Block, Blocks, Decompressor, Message, Messages, RawBlock, blocks, verify};
pub use encode::{
    BlockBuilder, CompressError, Compressor, EncodedBlock, EncodedSegment, MessageTooLarge, PushError,
    SegmentBuilder,
};
pub use error::{Error, Problem};
pub use index::{
    Encoding, FOOTER_LEN, FORMAT_VERSION, HEADER_LEN, Index, InvalidStreamName, StreamPart, TailIndex,
    check_stream_name, read_index, read_index_tail,
};
pub use limits::Limits;

/// The protobuf types of the index, generated from `proto/segment.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/millpond.segment.v1.rs"));
}
