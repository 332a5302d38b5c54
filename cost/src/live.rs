//! The activity of a live buffer in the model's terms: counts where available, the model for the rest.

use crate::activity::Activity;
use crate::estimate::Inputs;
use crate::items::Basis;
use crate::rate::{Load, Rate};
use crate::settings::Sharing;
use crate::{CostError, Settings};
use serde::{Deserialize, Serialize};

/// Counts from a buffer over a span of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Length of the span in seconds.
    pub seconds: f64,
    /// Segments with names from the span.
    pub segments: u64,
    /// Bytes of those segments.
    pub bytes: u64,
    /// Pages with names from the span.
    pub pages: u64,
    /// Bytes of all segments currently in the store.
    pub bytes_kept: u64,
    /// Shards of the buffer.
    pub shards: u32,
    /// Producers that committed in the last minute of the span that has commits.
    pub producers: u32,
    /// Some producers of it committed for others.
    pub peers: bool,
    /// Consumers with a cursor.
    pub consumers: u32,
    /// Number of segments that are still in the log.
    pub segments_in_log: u64,
    /// Number of their commits.
    pub commits_in_log: u64,
    /// Number of their parts (a stream's share of a segment).
    pub parts_in_log: u64,
    /// Their bytes before compression.
    pub raw_bytes_in_log: u64,
    /// Their stored bytes.
    pub bytes_in_log: u64,
}

impl Observed {
    /// The source of an item's quantity.
    pub(crate) fn basis(&self, item: &str) -> Basis {
        match item {
            "segments" | "pages" | "segments kept" => Basis::Counted,
            _ => Basis::Estimated,
        }
    }
}

/// The load, settings and activity of an observation. Intervals that no object reveals come from the inputs.
///
/// # Errors
/// Nothing was written in the span.
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
        peers,
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
    let found = Settings {
        shards,
        producers,
        peers,
        consumers,
        streams,
        ..inputs.settings.clone()
    };
    // Whether producers share segments follows from the size of their parts if they do.
    let makers = match found.sharing_of(bytes as f64 / segments as f64 / f64::from(producers)) {
        Sharing::Segments => found.active_shards(),
        Sharing::Nothing | Sharing::Commits => f64::from(producers),
    };
    let settings = Settings {
        // No object records why a segment closed: assume the linger.
        linger_seconds: makers / rate,
        ..found
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
