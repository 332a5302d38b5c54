//! Which rows repeat others: the rules of `design/deduplication.md` applied to the whole log at once, without the code of the
//! consumer.

use super::ledger::Received;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The key of a row. Few rows have none, and many have the same.
pub(crate) fn key_of(row: &str) -> Option<u128> {
    let number = crc32c::crc32c(row.as_bytes());
    (!number.is_multiple_of(9)).then_some(u128::from(number / 9 % 24))
}

/// A part: its sequence, the rows, and their times.
pub(crate) type Part = (u64, Arc<Vec<String>>, Arc<Received>);

/// The records of each part that repeat earlier rows. The first part is the first one to which the setting applies. Before `medians_from`,
/// the latest time of a part counts instead of the median, and the median of 15 parts instead of the earliest of 31.
pub(crate) fn repetitions(
    parts: &[Part],
    window_ms: u64,
    medians_from: Option<u64>,
) -> BTreeMap<u64, BTreeSet<u32>> {
    let window_us = i64::try_from(window_ms * 1_000).unwrap_or(i64::MAX);
    let width_us = window_us / 16;
    let mut times = Vec::new();
    let mut floor_us = i64::MIN;
    let mut kept: BTreeMap<u128, Vec<i64>> = BTreeMap::new();
    let mut repeated: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for (sequence, rows, received) in parts {
        let medians = medians_from.is_some_and(|from| *sequence >= from);
        let mut messages_us = received.messages_us.clone();
        messages_us.sort_unstable();
        if let Some(newest_us) = messages_us.last() {
            times.push(if medians { middle(&messages_us) } else { *newest_us });
            let parts = if medians { 31 } else { 15 };
            times.drain(..times.len().saturating_sub(parts));
            let mut last = times.clone();
            last.sort_unstable();
            if !medians || last.len() == parts {
                let now_us = if medians { last[0] } else { middle(&last) };
                floor_us = floor_us.max((now_us - window_us).div_euclid(width_us) * width_us);
            }
        }
        for ((row, &at_us), record) in rows.iter().zip(&received.rows_us).zip(0_u32..) {
            let Some(key) = key_of(row) else { continue };
            let kept = kept.entry(key).or_default();
            let latest = kept.iter().copied().filter(|time| *time >= floor_us).max();
            if latest.is_some_and(|latest| (latest - at_us).abs() < window_us) {
                repeated.entry(*sequence).or_default().insert(record);
            } else {
                kept.push(at_us);
            }
        }
    }
    repeated
}

/// The lower median of sorted times, of which there are some.
fn middle(sorted_us: &[i64]) -> i64 {
    sorted_us[(sorted_us.len() - 1) / 2]
}
