//! How Millpond is run, as far as it decides the cost, and what cannot be meant.

use crate::rate::Load;
use crate::{CostError, MIB, RequestLatency};
use serde::{Deserialize, Serialize};

/// The way from gateways and consumers to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPath {
    /// In the bucket's region, through a gateway endpoint or the like: free.
    Endpoint,
    /// In the bucket's region, through a NAT gateway: paid by the byte, both ways.
    Nat,
    /// From outside of the cloud: what is read pays egress.
    Internet,
}

/// What decides requests, bytes and their way. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How long after its first message a segment closes.
    pub linger_seconds: f64,
    /// Compressed bytes at which it closes before that.
    pub segment_bytes: f64,
    /// Raw bytes at which it does.
    pub segment_raw_bytes: f64,
    /// Gateways, or Collectors with the exporter.
    pub producers: u32,
    /// Shards of the buffer.
    pub shards: u32,
    /// Named consumers, each reading everything.
    pub consumers: u32,
    /// Processes that stand by, for each consumer.
    pub standbys: u32,
    /// Streams that a segment carries.
    pub streams: u32,
    /// Between two polls of the manifest.
    pub poll_seconds: f64,
    /// Between two acknowledgements when nothing is planned.
    pub ack_seconds: f64,
    /// A cursor's lease, renewed three times within it.
    pub lease_seconds: f64,
    /// Batches of a consumer written at a time.
    pub writers: u32,
    /// Between two rounds of a garbage collector; 0: nobody collects.
    pub gc_seconds: f64,
    /// How old garbage must be before it is deleted.
    pub grace_seconds: f64,
    /// How long bytes wait for the slowest consumer.
    pub retention_seconds: f64,
    /// Entries of the manifest at which they are sealed into a page.
    pub tail_max: u32,
    /// Availability zones that clients are spread over.
    pub zones: u32,
    /// Clients send to a gateway of their own zone.
    pub zone_aware: bool,
    /// The way to the bucket.
    pub path: NetworkPath,
    /// A gateway's memory.
    pub memory_bytes: f64,
}

impl Default for Settings {
    /// The program's own defaults.
    fn default() -> Settings {
        Settings {
            linger_seconds: 1.0,
            segment_bytes: 16.0 * MIB,
            segment_raw_bytes: 128.0 * MIB,
            producers: 1,
            shards: 1,
            consumers: 1,
            standbys: 0,
            streams: 1,
            poll_seconds: 0.25,
            ack_seconds: 5.0,
            lease_seconds: 15.0,
            writers: 2,
            gc_seconds: 300.0,
            grace_seconds: 3_600.0,
            retention_seconds: 0.0,
            tail_max: 2_048,
            zones: 1,
            zone_aware: false,
            path: NetworkPath::Endpoint,
            memory_bytes: 256.0 * MIB,
        }
    }
}

/// Bytes a second that one upload gets from the store.
pub(crate) const CONNECTION_BYTES: f64 = 80e6;

/// Segments in one commit at most.
const COMMIT_SEGMENTS_MAX: f64 = 512.0;

/// Of a gateway's memory, what requests, blocks and segments may take.
const BUDGET: f64 = 0.8;

impl Settings {
    /// Shards that somebody writes to: a producer has one.
    pub(crate) fn active_shards(&self) -> f64 {
        f64::from(self.shards.min(self.producers))
    }

    /// Producers of each of those.
    pub(crate) fn sharing(&self) -> f64 {
        f64::from(self.producers) / self.active_shards()
    }

    /// Segments close after so long, whichever limit is first.
    pub(crate) fn fill_seconds(&self, load: &Load) -> f64 {
        let each = load.compressed_bytes_per_second / f64::from(self.producers);
        let by_size = self.segment_bytes / each;
        let by_raw = self.segment_raw_bytes / (each * load.ratio);
        self.linger_seconds.min(by_size).min(by_raw)
    }

    /// Segments that share a commit: those that are full before their linger is over wait for each other as long as it
    /// lasts, or until three quarters of the memory for them are held.
    pub(crate) fn segments_per_commit(&self, load: &Load, request: RequestLatency) -> f64 {
        let each = load.compressed_bytes_per_second / f64::from(self.producers);
        let fill = self.fill_seconds(load);
        let waiting = 0.75 * BUDGET * self.memory_bytes - self.held_bytes(load, request);
        let most = (1.0 + waiting / (each * fill)).clamp(1.0, COMMIT_SEGMENTS_MAX);
        // A hair more than whole is whole.
        (self.linger_seconds / fill + 1e-9).min(most).floor()
    }

    /// What a producer holds: what fills, what is being uploaded, what waits for its commit.
    fn held_bytes(&self, load: &Load, latency: RequestLatency) -> f64 {
        let each = load.compressed_bytes_per_second / f64::from(self.producers);
        let fill = self.fill_seconds(load);
        let upload = latency.put_seconds + each * fill / CONNECTION_BYTES;
        each * (fill + upload + latency.put_seconds)
    }

    /// Refuses what cannot be meant, saying what to do.
    pub fn check(&self, load: &Load, latency: RequestLatency) -> Result<(), CostError> {
        let positive = [
            (
                "--linger",
                self.linger_seconds,
                "it must be longer than nothing, like 250ms or 1s",
            ),
            (
                "--segment",
                self.segment_bytes,
                "it must be at least a byte, like 16MiB",
            ),
            (
                "--segment-raw",
                self.segment_raw_bytes,
                "it must be at least a byte, like 128MiB",
            ),
            (
                "--poll-interval",
                self.poll_seconds,
                "it must be longer than nothing, like 250ms",
            ),
            (
                "--ack-interval",
                self.ack_seconds,
                "it must be longer than nothing, like 1s",
            ),
            (
                "--lease",
                self.lease_seconds,
                "it must be longer than nothing, like 15s",
            ),
            (
                "--memory-limit",
                self.memory_bytes,
                "it must be at least a byte, like 256MiB",
            ),
            (
                "--put-latency",
                latency.put_seconds,
                "it must be longer than nothing, like 60ms",
            ),
            (
                "--get-latency",
                latency.get_seconds,
                "it must be longer than nothing, like 25ms",
            ),
            (
                "--throughput",
                load.compressed_bytes_per_second,
                "it must be more than nothing",
            ),
        ];
        let refuse = |name, found: String, rule: &str| {
            let rule = rule.to_owned();
            Err(CostError::Setting { name, found, rule })
        };
        for (name, found, rule) in positive {
            if !(found.is_finite() && found > 0.0) {
                return refuse(name, found.to_string(), rule);
            }
        }
        let counts = [
            ("--producers", self.producers),
            ("--shards", self.shards),
            ("--streams", self.streams),
            ("--zones", self.zones),
            ("--writers", self.writers),
            ("--tail-max", self.tail_max),
        ];
        for (name, found) in counts {
            if found == 0 {
                return refuse(name, found.to_string(), "there must be at least one");
            }
        }
        if !(load.ratio.is_finite() && load.ratio >= 1.0) {
            return refuse(
                "--ratio",
                load.ratio.to_string(),
                "it is raw bytes for each stored one, so at least 1",
            );
        }
        let budget = self.memory_bytes * BUDGET;
        if self.segment_bytes > budget {
            return Err(CostError::Contradiction(format!(
                "a segment of {} does not fit into a gateway with {} (four fifths of that are for segments): give a smaller --segment or a larger --memory-limit",
                bytes(self.segment_bytes),
                bytes(self.memory_bytes)
            )));
        }
        if self.segment_bytes > 512.0 * MIB || self.segment_raw_bytes > 512.0 * MIB {
            let largest = self.segment_bytes.max(self.segment_raw_bytes);
            return refuse(
                "--segment",
                bytes(largest),
                "segments are 512MiB at most, compressed and raw",
            );
        }
        let held = self.held_bytes(load, latency);
        if held > budget {
            return Err(CostError::Contradiction(format!(
                "each of the gateways ({}) would have to hold {} until it is committed, more than the four fifths of {} that it has for that: \
                 give more --producers, a larger --memory-limit, or a shorter --linger",
                self.producers,
                bytes(held),
                bytes(self.memory_bytes)
            )));
        }
        if self.zone_aware && self.producers < self.zones {
            return Err(CostError::Contradiction(format!(
                "--zone-aware needs a gateway in each of the zones ({}), and there are {}: give --producers {} or leave it out",
                self.zones, self.producers, self.zones
            )));
        }
        Ok(())
    }
}

/// For people: `16 MiB`.
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(value), units[unit])
}

/// For people: `250 ms`, `1.5 s`, `2 h`.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{} ms", short(s * 1_000.0)),
        s if s < 120.0 => format!("{} s", short(s)),
        s if s < 7_200.0 => format!("{} min", short(s / 60.0)),
        s if s < 172_800.0 => format!("{} h", short(s / 3_600.0)),
        s => format!("{} d", short(s / 86_400.0)),
    }
}

/// Three digits or so, without zeroes at the end.
fn short(value: f64) -> String {
    let places = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn refused(change: impl Fn(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        let load = Load::compressed(Rate(50e6), 5.0);
        settings
            .check(&load, RequestLatency::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_to_do() {
        assert!(refused(|s| s.linger_seconds = 0.0).contains("--linger is 0"));
        assert!(refused(|s| s.producers = 0).contains("--producers is 0: there must be at least one"));
        let large = refused(|s| s.segment_bytes = 256.0 * MIB);
        assert!(
            large.contains("256 MiB does not fit") && large.contains("--memory-limit"),
            "{large}"
        );
        assert!(
            refused(|s| {
                s.zones = 3;
                s.zone_aware = true;
            })
            .contains("--producers 3")
        );
        let default = Settings::default();
        assert_eq!(
            default.check(&Load::compressed(Rate(50e6), 5.0), RequestLatency::default()),
            Ok(())
        );
        let much = default.check(&Load::compressed(Rate(2e9), 5.0), RequestLatency::default());
        assert!(much.unwrap_err().to_string().contains("give more --producers"));
        let ratio = default.check(&Load::compressed(Rate(1e6), 0.5), RequestLatency::default());
        assert!(ratio.unwrap_err().to_string().contains("--ratio is 0.5"));
    }

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(bytes(16.0 * MIB), "16 MiB");
        assert_eq!(bytes(1.5 * 1024.0), "1.5 KiB");
        assert_eq!(time(0.25), "250 ms");
        assert_eq!(time(1.0), "1 s");
        assert_eq!(time(3_731.0), "62.2 min");
        assert_eq!(time(86_400.0), "24 h");
    }
}
