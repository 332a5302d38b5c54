//! The part of a cursor that says which repeated events its consumer drops: settings, and the snapshots of their state.

use super::{Cursor, Forbidden};
use crate::unique::{UniqueReference, UniqueSetting};
use std::collections::BTreeMap;

/// Settings by stream, as configured.
pub type UniqueSettings = BTreeMap<String, UniqueSetting>;

/// No settings: the consumer drops nothing.
pub static NO_UNIQUE: UniqueSettings = BTreeMap::new();

/// How a consumer drops the repeated events of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deduplication {
    /// The setting in force. `None`: the consumer dropped events under an earlier setting, and drops none now.
    pub setting: Option<UniqueSetting>,
    /// The setting applies from this sequence on, and its state is empty there.
    pub since: u64,
    /// The newest snapshot of the state. Everything before it is acknowledged.
    pub snapshot: Option<UniqueReference>,
    /// No row below this sequence was ever dropped as a duplicate.
    pub deduplicated_from: u64,
    /// The number of rows dropped between `since` and the acknowledged position.
    pub duplicates: u64,
    /// From this sequence on, a part counts with the median of its messages' times, the clock is the earliest time of the last
    /// [`RECENT_MAX`](crate::unique::RECENT_MAX) parts, and nothing is forgotten before that many. Before it, or if it is `None`, the
    /// latest time of a part counts, and the clock is the median of the last 15, from the first one on, as in programs before format
    /// version 3.
    pub medians_from: Option<u64>,
}

impl Deduplication {
    /// The state follows from the snapshot and from the log from this sequence on.
    pub fn needs(&self) -> u64 {
        self.snapshot.map_or(self.since, |snapshot| snapshot.next)
    }
}

impl Cursor {
    /// The setting in force for a stream, with its state.
    pub fn deduplicates(&self, stream: &str) -> Option<(&UniqueSetting, &Deduplication)> {
        let of = self.unique.get(stream)?;
        Some((of.setting.as_ref()?, of))
    }

    /// The settings in force.
    pub fn unique_settings(&self) -> UniqueSettings {
        let unique = self.unique.iter();
        let settings = unique.filter_map(|(stream, of)| Some((stream.clone(), of.setting.clone()?)));
        settings.collect()
    }

    /// Returns true if a setting in force has the clock rule of an earlier version.
    pub fn goes_by_latest_times(&self) -> bool {
        let mut all = self.unique.values();
        all.any(|of| of.setting.is_some() && of.medians_from.is_none())
    }

    /// Puts other settings into force. Each begins at its stream's position with an empty state, so the cursor must
    /// [be clean](Self::is_clean): nobody sends a row from there on. The newest rules for the clock of a stream apply from there on, too.
    pub(super) fn set_unique(&mut self, settings: &UniqueSettings) {
        for (stream, of) in &mut self.unique {
            if of.setting.as_ref() != settings.get(stream) {
                of.setting = None;
                of.snapshot = None;
                of.medians_from = None;
            }
        }
        for (stream, setting) in settings {
            let next = self.next(stream);
            let of = self.unique.entry(stream.clone()).or_insert(Deduplication {
                setting: None,
                since: next,
                snapshot: None,
                deduplicated_from: next,
                duplicates: 0,
                medians_from: None,
            });
            if of.setting.is_none() {
                of.setting = Some(setting.clone());
                of.since = next;
                of.duplicates = 0;
                of.deduplicated_from = of.deduplicated_from.min(next);
            }
            of.medians_from = of.medians_from.or(Some(next));
        }
    }

    /// Begins every setting again at `position`, with an empty state.
    pub(super) fn restart_unique(&mut self, position: u64) {
        for of in self.unique.values_mut() {
            of.since = position;
            of.snapshot = None;
            of.duplicates = 0;
            of.medians_from = of.medians_from.map(|_| position);
            if of.setting.is_some() {
                of.deduplicated_from = of.deduplicated_from.min(position);
            }
        }
    }

    /// Ends all settings.
    pub(super) fn end_unique(&mut self) {
        for of in self.unique.values_mut() {
            of.setting = None;
            of.snapshot = None;
            of.medians_from = None;
        }
    }

    /// Moves the beginning of a setting to the start of the log and past all positions, if the stream has no position. The
    /// log before them may have been trimmed. It has nothing of the stream: an owner that moves a position writes one
    /// for every stream that it has seen. Call this before any position moves.
    pub fn begin_unique(&mut self, stream: &str, first_sequence: u64) {
        if self.streams.contains_key(stream) {
            return;
        }
        let read = self.streams.values().map(|stream| stream.next).max();
        if let Some(of) = self.unique.get_mut(stream).filter(|of| of.snapshot.is_none()) {
            of.since = of.since.max(first_sequence).max(read.unwrap_or(0));
        }
    }

    /// Moves the beginning of a setting along with its stream's position, as long as no batch was planned from the beginning on:
    /// nothing is decided yet, so nobody needs the log before the first batch. Call this before the position moves.
    pub(super) fn postpone_unique(&mut self, stream: &str, position: u64) {
        let (next, planned) = (self.next(stream), self.planned(stream).next().is_some());
        if let Some(of) = self.unique.get_mut(stream)
            && !planned
            && of.snapshot.is_none()
            && of.since >= next
        {
            of.since = of.since.max(position);
        }
    }

    /// Names a snapshot of a stream's state. Everything before it must be acknowledged, so that a successor never needs
    /// an earlier state.
    pub fn snapshot_unique(&mut self, stream: &str, snapshot: UniqueReference) -> Result<(), Forbidden> {
        let next = self.next(stream);
        let forbidden = |reason: String| Forbidden {
            stream: stream.to_owned(),
            reason,
        };
        let Some(of) = self.unique.get_mut(stream).filter(|of| of.setting.is_some()) else {
            return Err(forbidden("no setting drops its repeated events".into()));
        };
        if snapshot.next > next {
            return Err(forbidden(format!(
                "a snapshot of the state before {} lies after the acknowledged {next}",
                snapshot.next
            )));
        }
        if snapshot.next <= of.needs() {
            return Err(forbidden(format!(
                "a snapshot of the state before {} does not follow {}",
                snapshot.next,
                of.needs()
            )));
        }
        of.snapshot = Some(snapshot);
        Ok(())
    }

    /// Records the number of rows that were dropped up to the acknowledged position.
    pub fn count_duplicates(&mut self, stream: &str, duplicates: u64) {
        if let Some(of) = self.unique.get_mut(stream).filter(|of| of.setting.is_some()) {
            of.duplicates = duplicates;
        }
    }

    /// The first sequence from which rows of a stream may have been dropped as duplicates, under this cursor.
    pub fn deduplicated_from(&self, stream: &str) -> Option<u64> {
        self.unique.get(stream).map(|of| of.deduplicated_from)
    }

    /// Names the first rule that the deduplication of a stream breaks.
    pub(super) fn check_unique(&self) -> Result<(), String> {
        for (stream, of) in &self.unique {
            millpond_segment::check_stream_name(stream).map_err(|error| error.to_string())?;
            let wrong = |reason: String| format!("stream {stream}: {reason}");
            if let Some(setting) = &of.setting {
                setting.check().map_err(wrong)?;
                if of.deduplicated_from > of.since {
                    let (from, since) = (of.deduplicated_from, of.since);
                    return Err(wrong(format!(
                        "rows are dropped from {since} on, not from {from}"
                    )));
                }
            }
            if let Some(snapshot) = of.snapshot
                && (of.setting.is_none() || snapshot.next <= of.since || snapshot.next > self.next(stream))
            {
                let next = snapshot.next;
                return Err(wrong(format!(
                    "a snapshot before {next} does not belong to its setting and position"
                )));
            }
        }
        Ok(())
    }
}
