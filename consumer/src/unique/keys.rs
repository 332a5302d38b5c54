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

/// The memory of a row that is read for its key: the key, and the time of its message.
pub(crate) const ROW_BYTES: u64 = (size_of::<RowKey>() + size_of::<i64>()) as u64;

/// The keys of the rows of a part, in the order of their records. Rows without a key are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartKeys {
    /// The part's sequence.
    pub sequence: u64,
    /// The times of its messages.
    pub received: PartTimes,
    /// The keys.
    pub keys: Vec<RowKey>,
}

/// When the messages of a part were received, unix microseconds. `None` without messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartTimes {
    /// The lower median.
    pub median_us: Option<i64>,
    /// The latest time.
    pub newest_us: Option<i64>,
}

impl PartTimes {
    /// The times of a part with these messages, in any order.
    pub fn of(times_us: &mut [i64]) -> PartTimes {
        PartTimes {
            median_us: lower_median(times_us),
            newest_us: times_us.iter().copied().max(),
        }
    }
}

/// The middle one of these times, or the earlier one of two. Changes their order.
pub(super) fn lower_median(times_us: &mut [i64]) -> Option<i64> {
    let middle = times_us.len().checked_sub(1)? / 2;
    Some(*times_us.select_nth_unstable(middle).1)
}
