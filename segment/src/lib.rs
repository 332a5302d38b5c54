//! The segment format: one immutable object with the blocks of one or more streams.
//!
//! This crate does no I/O, reads no clock and starts no thread. For any input bytes it returns their content or an
//! [`Error`]. It never panics, and checks every size against [`Limits`] before it allocates.
//!
//! `design/segment-format.md` specifies the format byte by byte.
//!
//! Writing: [`BlockBuilder`] collects one stream's messages, [`Compressor`] turns them into an [`EncodedBlock`], and
//! [`SegmentBuilder`] orders the blocks of all streams and returns an [`EncodedSegment`].
//!
//! Reading: [`read_index`] locates each stream's blocks, [`blocks`] iterates over the bytes of one stream and verifies
//! each block, and [`Block::decode`] returns its messages. [`verify`] checks a whole object.

mod block;
mod decode;
mod encode;
mod error;
mod index;
mod limits;

pub use block::{BLOCK_HEADER_LEN, Compression};
pub use decode::{
    Block, Blocks, Decompressor, Message, Messages, OpenBlock, RawBlock, Spare, blocks, verify,
};
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
