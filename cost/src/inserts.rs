//! The INSERTs of a consumer: their time, and whether its writers keep up with the load.

use crate::rate::Load;
use crate::settings::Settings;
use serde::{Deserialize, Serialize};

/// An INSERT's time without rows, fitted to `design/performance.md`.
const INSERT_SECONDS: f64 = 0.028;

/// Raw bytes of a full chunk: 100,000 records (`--chunk-rows`) as in `design/performance.md`.
const CHUNK_BYTES: f64 = 100_000.0 * 428.0;

/// The INSERTs of one segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserts {
    /// Chunks of the segment.
    chunks: f64,
    /// Time of one of them.
    chunk_seconds: f64,
    writers: f64,
}

impl Inserts {
    /// The INSERTs of a segment of this raw size.
    pub(crate) fn of(raw_bytes: f64, settings: &Settings) -> Inserts {
        let chunks = (raw_bytes / CHUNK_BYTES).max(1.0);
        Inserts {
            chunks,
            chunk_seconds: INSERT_SECONDS + raw_bytes / chunks / settings.writer_bytes_per_second,
            writers: f64::from(settings.writers),
        }
    }

    /// The time to insert this many segments that arrive together: each writer takes a chunk at a time,
    /// and a chunk is not divided.
    pub(crate) fn seconds(&self, segments: f64) -> f64 {
        self.chunk_seconds * (segments * self.chunks / self.writers).max(1.0)
    }
}

/// The load of the writers of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Writers {
    /// Share of their time in which they have an INSERT in flight. Above 1, they cannot keep up.
    pub busy: f64,
    /// The number of writers of each process that keep up with the load.
    pub needed: u32,
    /// True if the writers keep up.
    pub keep_up: bool,
}

impl Writers {
    /// The load of the writers at this rate.
    pub fn of(load: &Load, settings: &Settings) -> Writers {
        let segments = settings.makers(load) / settings.interval_seconds(load);
        let inserts = Inserts::of(load.raw_bytes_per_second() / segments, settings);
        // Processes divide the shards; with one shard, one process works.
        let processes = f64::from((1 + settings.standbys).min(settings.shards));
        let needed =
            segments * inserts.chunks * inserts.chunk_seconds / processes.min(settings.active_shards());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of writers, which saturates"
        )]
        let whole = needed.ceil() as u32;
        Writers {
            busy: needed / inserts.writers,
            needed: whole.max(1),
            keep_up: needed <= inserts.writers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MIB, Rate};

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    fn settings(writers: u32) -> Settings {
        Settings {
            writers,
            writer_bytes_per_second: CHUNK_BYTES,
            ..Settings::default()
        }
    }

    #[test]
    fn a_segment_of_one_chunk_takes_one_insert() {
        for writers in [1, 2, 16] {
            let inserts = Inserts::of(CHUNK_BYTES / 2.0, &settings(writers));
            assert!(close(inserts.seconds(1.0), INSERT_SECONDS + 0.5));
        }
    }

    #[test]
    fn the_chunks_of_a_large_segment_go_to_all_writers() {
        let seconds = |writers| Inserts::of(8.0 * CHUNK_BYTES, &settings(writers)).seconds(1.0);
        assert!(close(seconds(1), 8.0 * (INSERT_SECONDS + 1.0)));
        assert!(close(seconds(2), seconds(1) / 2.0));
        assert!(close(seconds(4), seconds(1) / 4.0));
        assert!(close(seconds(8), INSERT_SECONDS + 1.0));
        assert!(close(seconds(16), INSERT_SECONDS + 1.0), "no chunk is divided");
    }

    #[test]
    fn segments_that_come_together_share_the_writers() {
        let inserts = Inserts::of(CHUNK_BYTES, &settings(4));
        assert!(close(inserts.seconds(4.0), inserts.seconds(1.0)));
        assert!(close(inserts.seconds(6.0), 1.5 * inserts.seconds(1.0)));
    }

    /// A load that takes `needed` writers all of their time.
    fn load(needed: f64, settings: &Settings) -> Load {
        let ratio = 5.4;
        let seconds_per_byte = INSERT_SECONDS / CHUNK_BYTES + 1.0 / settings.writer_bytes_per_second;
        Load::compressed(Rate(needed / seconds_per_byte / ratio), ratio)
    }

    #[test]
    fn writers_keep_up_to_the_limit() {
        for writers in [2, 4, 8] {
            let settings = Settings {
                segment_bytes: 512.0 * MIB,
                segment_raw_bytes: 512.0 * MIB,
                ..settings(writers)
            };
            for (share, keep_up) in [(0.99, true), (1.01, false)] {
                let needed = share * f64::from(writers);
                let found = Writers::of(&load(needed, &settings), &settings);
                assert!(close(found.busy, share), "{found:?}");
                assert_eq!(found.keep_up, keep_up, "{found:?}");
                assert_eq!(found.needed, writers + u32::from(!keep_up), "{found:?}");
            }
        }
    }

    /// 1.1 Gbps of stored bytes.
    #[test]
    fn two_writers_do_not_keep_up_with_a_gigabit() {
        let load = Load::compressed("1.1Gbps".parse().unwrap(), 5.4);
        let found = Writers::of(&load, &Settings::default());
        assert!(!found.keep_up && found.needed > 15, "{found:?}");
        let settings = Settings {
            writers: found.needed,
            ..Settings::default()
        };
        assert!(Writers::of(&load, &settings).keep_up);
        let faster = Settings {
            writer_bytes_per_second: 1e9,
            ..Settings::default()
        };
        assert!(Writers::of(&load, &faster).keep_up);
    }
}
