//! The keys of rows, as a sink reads them out of messages.

/// The key of a row. Packed: a third of the memory of a batch's keys would be gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub struct RowKey {
    /// The number of the row's record in its part.
    pub record: u32,
    /// When its message was received, unix microseconds.
    pub at_us: i64,
    /// The key's hash.
    pub key: u128,
}

/// The keys of the rows of a part, in the order of their records. Rows without a key are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartKeys {
    /// The part's sequence.
    pub sequence: u64,
    /// The latest reception of its messages, unix microseconds. `None` without messages.
    pub newest_us: Option<i64>,
    /// The keys.
    pub keys: Vec<RowKey>,
}
