//! Limits for readers and writers: one for every size in the format.

/// Upper bounds for everything in a segment. A reader rejects larger values before it allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Raw bytes of one block, and so of the largest message (64 MiB): a decoder must be able to hold that much.
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

/// Length of the longest stream name in bytes. It is part of the format, so it is not configurable.
pub(crate) const STREAM_NAME_MAX: usize = 100;
