//! Deduplication by key: its setting, and the snapshots of its state. `design/deduplication.md` has the rules. Pure.

use crate::object::{Object, Stamp};
use crate::{Count, FormatError, envelope, layout, proto};
use bytes::Bytes;
use ulid::Ulid;
use uuid::Uuid;

/// Maximum paths in a key.
pub(crate) const PATHS_MAX: usize = 8;

/// Maximum bytes of a path.
const PATH_BYTES_MAX: usize = 256;

/// The shortest and the longest window, in milliseconds: a second and 366 days.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 1_000..=366 * 24 * 60 * 60 * 1_000;

/// Maximum earlier snapshots that a snapshot names.
pub const EARLIER_MAX: usize = 4_096;

/// The number of parts whose times decide what is forgotten: the earliest of them is the clock. Up to format version 2 of the cursor,
/// the median of 15 is.
pub const RECENT_MAX: usize = 31;

/// Bytes of an entry: a key's hash and a time.
const ENTRY: usize = 16 + 8;

/// Which values make a row's key, and how long it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct UniqueSetting {
    /// JSON paths, e.g. `user.id`. A row needs a value at each.
    pub key: Vec<String>,
    /// A row repeats another one only if they were received less than this apart, in milliseconds.
    pub window_ms: u64,
}

impl UniqueSetting {
    /// Returns an error for the first invalid setting.
    pub fn check(&self) -> Result<(), String> {
        check_key(&self.key)?;
        if !WINDOW_MS.contains(&self.window_ms) {
            return Err(format!(
                "a window of {} ms is not allowed: give 1s to 366days",
                self.window_ms
            ));
        }
        Ok(())
    }
}

/// Returns an error for the first rule that the paths of a key break.
pub(crate) fn check_key(key: &[String]) -> Result<(), String> {
    if !(1..=PATHS_MAX).contains(&key.len()) {
        return Err(format!("a key has {} paths: give 1 to {PATHS_MAX}", key.len()));
    }
    for path in key {
        if path.len() > PATH_BYTES_MAX || path.split('.').any(str::is_empty) {
            return Err(format!(
                "{path:?} is not a path: give keys of objects with dots between them, like user.id, up to {PATH_BYTES_MAX} bytes"
            ));
        }
    }
    Ok(())
}

/// Names a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UniqueReference {
    /// The snapshot has the state before this sequence.
    pub next: u64,
    /// Its name.
    pub id: Ulid,
}

/// An earlier snapshot that is a part of a later one's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierSnapshot {
    /// Its name.
    pub reference: UniqueReference,
    /// The latest of its times, unix microseconds.
    pub newest_us: i64,
    /// The number of its entries.
    pub keys: u64,
}

/// The keys of the rows of a stream that were kept since the snapshot before it, and those of earlier ones that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueSnapshot {
    /// The buffer.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// The consumer.
    pub consumer: String,
    /// The stream.
    pub stream: String,
    /// The setting by which the rows were kept.
    pub setting: UniqueSetting,
    /// The sequence from which the setting applies.
    pub since: u64,
    /// The state is the one before this sequence.
    pub next: u64,
    /// Times in buckets below this one are forgotten.
    pub floor: i64,
    /// The times of the last parts, oldest part first, unix microseconds.
    pub recent: Vec<i64>,
    /// The number of rows that were dropped between `since` and `next`.
    pub duplicates: u64,
    /// The other snapshots that make up the state, oldest first.
    pub earlier: Vec<EarlierSnapshot>,
    /// Hashes of keys, and the times at which the rows were received (unix microseconds), in the order of the log.
    pub entries: Vec<(u128, i64)>,
}

impl UniqueSnapshot {
    /// The latest time among its entries.
    pub fn newest_us(&self) -> i64 {
        self.entries
            .iter()
            .map(|(_, at_us)| *at_us)
            .max()
            .unwrap_or(i64::MIN)
    }

    /// Names the first rule of the format that this snapshot breaks.
    fn check(&self) -> Result<(), String> {
        layout::check_consumer_name(&self.consumer).map_err(|error| error.to_string())?;
        millpond_segment::check_stream_name(&self.stream).map_err(|error| error.to_string())?;
        self.setting.check()?;
        if self.recent.len() > RECENT_MAX {
            let recent = self.recent.len();
            return Err(format!(
                "it has the times of {recent} parts, and {RECENT_MAX} count"
            ));
        }
        let nexts = self.earlier.iter().map(|earlier| earlier.reference.next);
        let mut before = self.since;
        for next in nexts.chain([self.next]) {
            if next <= before {
                return Err(format!("a snapshot of the state before {next} follows {before}"));
            }
            before = next;
        }
        Ok(())
    }
}

impl Object for UniqueSnapshot {
    const NAME: &'static str = "snapshot of keys";
    const MAGIC: [u8; 4] = *b"MPUQ";
    // 44 million keys. A snapshot has a 64th of all keys, those of one batch, and those of the snapshots that it merges.
    const BYTES_MAX: u64 = 1 << 30;
    const COUNTS: &'static [Count] = &[Count {
        of: "earlier snapshots",
        path: &[10],
        max: EARLIER_MAX,
    }];

    fn encode(&self) -> Bytes {
        let UniqueSnapshot {
            buffer_id,
            shard,
            consumer,
            stream,
            setting,
            since,
            next,
            floor,
            recent,
            duplicates,
            earlier,
            entries,
        } = self;
        let mut packed = Vec::with_capacity(entries.len() * ENTRY);
        for (key, at_us) in entries {
            packed.extend_from_slice(&key.to_le_bytes());
            packed.extend_from_slice(&at_us.to_le_bytes());
        }
        let message = proto::UniqueSnapshot {
            buffer_id: buffer_id.as_bytes().to_vec(),
            shard: *shard,
            consumer: consumer.clone(),
            stream: stream.clone(),
            setting: Some(encode_setting(setting)),
            since: *since,
            next: *next,
            floor: *floor,
            duplicates: *duplicates,
            recent: recent.iter().flat_map(|at_us| at_us.to_le_bytes()).collect(),
            earlier: earlier.iter().map(encode_earlier).collect(),
            entries: packed,
        };
        envelope::wrap(Self::MAGIC, &message)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message: proto::UniqueSnapshot = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let proto::UniqueSnapshot {
            buffer_id,
            shard,
            consumer,
            stream,
            setting,
            since,
            next,
            floor,
            recent,
            duplicates,
            earlier,
            entries,
        } = message;
        let setting = setting.ok_or_else(|| content("it has no setting".into()))?;
        let (times, torn_times) = recent.as_chunks::<8>();
        let (packed, torn) = entries.as_chunks::<ENTRY>();
        if !(torn.is_empty() && torn_times.is_empty()) {
            return Err(content("its last entry is cut off".into()));
        }
        let earlier: Result<_, _> = earlier.into_iter().map(decode_earlier).collect();
        let snapshot = UniqueSnapshot {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &buffer_id)?),
            shard,
            consumer,
            stream,
            setting: decode_setting(setting),
            since,
            next,
            floor,
            duplicates,
            recent: times.iter().map(|time| i64::from_le_bytes(*time)).collect(),
            earlier: earlier.map_err(content)?,
            entries: packed.iter().map(decode_entry).collect(),
        };
        snapshot.check().map_err(content)?;
        Ok(snapshot)
    }

    fn stamp(&self) -> Stamp {
        // The object is never replaced.
        Stamp { version: 0, nonce: 0 }
    }
}

fn decode_entry(entry: &[u8; ENTRY]) -> (u128, i64) {
    let (key, at_us) = entry.split_at(16);
    let at_us = at_us.try_into().map_or(0, i64::from_le_bytes);
    (key.try_into().map_or(0, u128::from_le_bytes), at_us)
}

pub(crate) fn encode_setting(setting: &UniqueSetting) -> proto::UniqueSetting {
    let UniqueSetting { key, window_ms } = setting.clone();
    proto::UniqueSetting { key, window_ms }
}

pub(crate) fn decode_setting(setting: proto::UniqueSetting) -> UniqueSetting {
    let proto::UniqueSetting { key, window_ms } = setting;
    UniqueSetting { key, window_ms }
}

pub(crate) fn encode_reference(reference: UniqueReference) -> proto::UniqueReference {
    proto::UniqueReference {
        next: reference.next,
        id: reference.id.to_bytes().to_vec(),
    }
}

pub(crate) fn decode_reference(reference: &proto::UniqueReference) -> Result<UniqueReference, String> {
    let id: [u8; 16] = reference.id[..].try_into().map_err(|_| {
        let bytes = reference.id.len();
        format!("the name of a snapshot has {bytes} bytes instead of 16")
    })?;
    Ok(UniqueReference {
        next: reference.next,
        id: Ulid::from_bytes(id),
    })
}

fn encode_earlier(earlier: &EarlierSnapshot) -> proto::EarlierSnapshot {
    proto::EarlierSnapshot {
        reference: Some(encode_reference(earlier.reference)),
        newest_us: earlier.newest_us,
        keys: earlier.keys,
    }
}

fn decode_earlier(earlier: proto::EarlierSnapshot) -> Result<EarlierSnapshot, String> {
    let reference = earlier.reference.ok_or("an earlier snapshot has no name")?;
    Ok(EarlierSnapshot {
        reference: decode_reference(&reference)?,
        newest_us: earlier.newest_us,
        keys: earlier.keys,
    })
}
