//! The limits a reader and a writer hold a segment to. Everything in the format that has a size has one
//! here.

/// Upper bounds for everything in a segment. A reader refuses what is over them before it allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Raw bytes of one block, and so of the largest message (64 MiB): what a decoder must be able to hold.
    pub block_raw_max: u64,
    /// Bytes of a whole object (1 GiB).
    pub segment_max: u64,
    /// Streams in one segment (4,096).
    pub streams_max: usize,
    /// Blocks of one stream in one segment (65,536).
    pub blocks_max: u32,
    /// Bytes of the index (2 MiB).
    pub index_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            block_raw_max: 64 << 20,
            segment_max: 1 << 30,
            streams_max: 4096,
            blocks_max: 65_536,
            index_max: 2 << 20,
        }
    }
}

/// Bytes of the longest stream name. Part of the format, so not configurable.
pub(crate) const STREAM_NAME_MAX: usize = 100;
