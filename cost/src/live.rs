//! What a live buffer did, as the model takes it: what was counted stands, the rest is the model's from that.

use crate::activity::Activity;
use crate::estimate::Inputs;
use crate::items::Basis;
use crate::rate::{Load, Rate};
use crate::{CostError, Settings};
use serde::{Deserialize, Serialize};

/// What was found in a buffer for a span of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Seconds that it covers.
    pub seconds: f64,
    /// Segments named in that time.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pages named in that time.
    pub pages: u64,
    /// Bytes of all segments that are in the store now.
    pub bytes_kept: u64,
    /// Shards of the buffer.
    pub shards: u32,
    /// Producers that committed in that time.
    pub producers: u32,
    /// Consumers with a cursor.
    pub consumers: u32,
    /// Of the segments that are still in the log: how many.
    pub segments_in_log: u64,
    /// In how many commits they came.
    pub commits_in_log: u64,
    /// How many parts they have: a stream's share of a segment.
    pub parts_in_log: u64,
    /// Their bytes before compression.
    pub raw_bytes_in_log: u64,
    /// Their bytes.
    pub bytes_in_log: u64,
}

impl Observed {
    /// Where the quantity of a line of the bill is from.
    pub(crate) fn basis(&self, item: &str) -> Basis {
        match item {
            "segments" | "pages" | "segments kept" => Basis::Counted,
            _ => Basis::Estimated,
        }
    }
}

/// The load, the settings and the activity of what was observed. Intervals that no object shows are those of the inputs.
///
/// # Errors
/// When nothing was written in that time.
pub(crate) fn live(
    observed: &Observed,
    inputs: &Inputs<'_>,
) -> Result<(Load, Settings, Activity), CostError> {
    let Observed {
        seconds,
        segments,
        bytes,
        pages,
        bytes_kept,
        shards,
        producers,
        consumers,
        segments_in_log,
        commits_in_log,
        parts_in_log,
        raw_bytes_in_log,
        bytes_in_log,
    } = *observed;
    let known = seconds.is_finite() && seconds > 0.0;
    if segments == 0 || bytes == 0 || producers == 0 || !known {
        return Err(CostError::Contradiction(
            "nothing was written to the buffer in that time: give a longer --since, or describe the load with --throughput".to_owned(),
        ));
    }
    let each = |of: u64, unit: u64, none: f64| if unit == 0 { none } else { of as f64 / unit as f64 };
    let parts = each(parts_in_log, segments_in_log, f64::from(inputs.settings.streams));
    let commits = each(commits_in_log, segments_in_log, 1.0);
    let ratio = each(raw_bytes_in_log, bytes_in_log, inputs.load.ratio).max(1.0);
    let rate = segments as f64 / seconds;
    let load = Load::compressed(Rate(bytes as f64 / seconds), ratio);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; 1,024 streams at most"
    )]
    let streams = parts.round().max(1.0) as u32;
    let settings = Settings {
        // What closed them is not written anywhere: as if it was the linger.
        linger_seconds: f64::from(producers) / rate,
        shards,
        producers,
        consumers,
        streams,
        ..inputs.settings.clone()
    };
    let model = Activity::with_segments(&load, &settings, inputs.request, rate, rate * commits);
    let activity = Activity {
        commits: rate * commits,
        part_reads: f64::from(consumers) * rate * parts,
        pages: pages as f64 / seconds,
        bytes_stored: bytes_kept as f64,
        ..model
    };
    Ok((load, settings, activity))
}
