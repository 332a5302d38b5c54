//! The settings of Millpond that determine the cost, and their validation.

use crate::rate::Load;
use crate::{CostError, MIB, RequestLatency};
use serde::{Deserialize, Serialize};

/// The interval between polls of a consumer that watches a leader, at least.
const WATCHING_POLL_SECONDS: f64 = 5.0;

/// The longest time after an answer of the leader until the consumer asks again.
const WATCH_PAUSE_SECONDS: f64 = 0.5;

/// The network path from gateways and consumers to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPath {
    /// In the bucket's region, through a gateway endpoint or similar: free.
    Endpoint,
    /// In the bucket's region, through a NAT gateway: charged per byte in both directions.
    Nat,
    /// From outside the cloud: reads pay egress.
    Internet,
}

/// The work that a leader does for the other producers of its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Nothing: each uploads its segments and commits them.
    Nothing,
    /// Commits: each uploads its segments, and the leader commits them.
    Commits,
    /// Segments: the others send their blocks to the leader, which uploads and commits them with its own.
    Segments,
}

/// Settings that determine requests, bytes and their path. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Time from a segment's first message until it closes.
    pub linger_seconds: f64,
    /// Compressed size at which a segment closes earlier.
    pub segment_bytes: f64,
    /// Raw size at which a segment closes earlier.
    pub segment_raw_bytes: f64,
    /// Gateways, or Collectors with the exporter.
    pub producers: u32,
    /// The producers of a shard commit for each other, and their leader tells consumers of commits.
    pub peers: bool,
    /// A producer sends smaller segments to the leader of its shard instead of uploading them.
    pub forward_below_bytes: f64,
    /// Shards of the buffer.
    pub shards: u32,
    /// Named consumers; each reads everything.
    pub consumers: u32,
    /// Processes per consumer beyond the first. With one shard they stand by.
    pub standbys: u32,
    /// Streams per segment.
    pub streams: u32,
    /// Interval between polls of the manifest.
    pub poll_seconds: f64,
    /// Interval between acknowledgements without plans.
    pub ack_seconds: f64,
    /// Lease of a cursor, renewed three times per lease.
    pub lease_seconds: f64,
    /// INSERTs that a consumer has in flight.
    pub writers: u32,
    /// Throughput of one INSERT in raw bytes per second.
    pub writer_bytes_per_second: f64,
    /// Interval between rounds of a garbage collector; 0: no garbage collection.
    pub gc_seconds: f64,
    /// Minimum age of garbage before deletion.
    pub grace_seconds: f64,
    /// Time that data waits for the slowest consumer.
    pub retention_seconds: f64,
    /// Manifest entries at which the tail is sealed into a page.
    pub tail_max: u32,
    /// Availability zones of the clients.
    pub zones: u32,
    /// Clients send to a gateway in their own zone.
    pub zone_aware: bool,
    /// Network path to the bucket.
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
            peers: false,
            forward_below_bytes: 256.0 * 1024.0,
            shards: 1,
            consumers: 1,
            standbys: 0,
            streams: 1,
            poll_seconds: 0.25,
            ack_seconds: 5.0,
            lease_seconds: 15.0,
            writers: 2,
            writer_bytes_per_second: INSERT_BYTES,
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

/// Throughput of one INSERT in raw bytes per second, fitted to `design/performance.md`.
const INSERT_BYTES: f64 = 47.5e6;

/// Throughput of one upload in bytes per second.
pub(crate) const CONNECTION_BYTES: f64 = 80e6;

/// The largest `--forward-below` of a gateway, in bytes.
pub const FORWARD_BELOW_MAX: f64 = MIB;

/// Maximum segments in one commit.
const COMMIT_SEGMENTS_MAX: f64 = 512.0;

/// The share of a gateway's memory for requests, blocks and segments.
const BUDGET: f64 = 0.8;

impl Settings {
    /// Shards with at least one producer: each producer has one.
    pub(crate) fn active_shards(&self) -> f64 {
        f64::from(self.shards.min(self.producers))
    }

    /// Returns true if the processes of a consumer divide the shards.
    pub(crate) fn divides(&self) -> bool {
        self.shards > 1
    }

    /// Producers per active shard.
    pub(crate) fn per_shard(&self) -> f64 {
        f64::from(self.producers) / self.active_shards()
    }

    /// The time between two polls of the manifest. A consumer that watches a leader polls rarely.
    pub(crate) fn between_polls(&self, request: RequestLatency) -> f64 {
        let interval = if self.peers {
            self.poll_seconds.max(WATCHING_POLL_SECONDS)
        } else {
            self.poll_seconds
        };
        interval + request.get_seconds
    }

    /// The least time between two looks that find news. A consumer asks its leader a poll interval after each answer, half a
    /// second at most.
    pub(crate) fn between_looks(&self, request: RequestLatency) -> f64 {
        if self.peers {
            self.poll_seconds.min(WATCH_PAUSE_SECONDS)
        } else {
            self.between_polls(request)
        }
    }

    /// The longest time that a commit waits for a look, if there is one every `period_seconds`. A leader answers a question at once.
    pub(crate) fn look_seconds(&self, request: RequestLatency, period_seconds: f64) -> f64 {
        if self.peers {
            (self.between_looks(request) - period_seconds).max(0.0)
        } else {
            self.between_polls(request)
        }
    }

    /// The work that leaders do for others under this load.
    pub(crate) fn sharing(&self, load: &Load) -> Sharing {
        self.sharing_of(load.compressed_bytes_per_second / f64::from(self.producers) * self.linger_seconds)
    }

    /// The work that leaders do for others whose part of a segment has this compressed size.
    pub(crate) fn sharing_of(&self, part_bytes: f64) -> Sharing {
        if !self.peers || self.producers <= self.shards {
            return Sharing::Nothing;
        }
        if part_bytes < self.forward_below_bytes {
            Sharing::Segments
        } else {
            Sharing::Commits
        }
    }

    /// Producers per active shard that commit.
    pub(crate) fn committers(&self, load: &Load) -> f64 {
        match self.sharing(load) {
            Sharing::Nothing => self.per_shard(),
            Sharing::Commits | Sharing::Segments => 1.0,
        }
    }

    /// Producers per active shard whose segments come to the log independently.
    pub(crate) fn sources(&self, load: &Load) -> f64 {
        match self.sharing(load) {
            Sharing::Nothing | Sharing::Commits => self.per_shard(),
            Sharing::Segments => 1.0,
        }
    }

    /// Producers that make segments.
    pub(crate) fn makers(&self, load: &Load) -> f64 {
        match self.sharing(load) {
            Sharing::Nothing | Sharing::Commits => f64::from(self.producers),
            Sharing::Segments => self.active_shards(),
        }
    }

    /// The compressed bytes per second in the segments of each producer that makes some.
    pub(crate) fn each_maker(&self, load: &Load) -> f64 {
        load.compressed_bytes_per_second / self.makers(load)
    }

    /// Time until a segment closes, at whichever limit comes first. In a leader's rhythm, a segment closes at the end of each
    /// interval of a linger, full or not, so segments divide the interval.
    pub(crate) fn fill_seconds(&self, load: &Load) -> f64 {
        let each = self.each_maker(load);
        let by_size = self.segment_bytes / each;
        let by_raw = self.segment_raw_bytes / (each * load.ratio);
        let fill = self.linger_seconds.min(by_size).min(by_raw);
        match self.sharing(load) {
            // Tolerate rounding just above a whole number.
            Sharing::Segments | Sharing::Commits => {
                self.linger_seconds / (self.linger_seconds / fill - 1e-9).ceil()
            }
            Sharing::Nothing => fill,
        }
    }

    /// Time from one segment of a producer to the next. A segment begins with a request, the first one after the last segment has closed.
    /// A leader's rhythm does not wait for requests.
    pub(crate) fn interval_seconds(&self, load: &Load) -> f64 {
        let fill = self.fill_seconds(load);
        match (self.sharing(load), load.requests_per_second) {
            (Sharing::Nothing, Some(requests)) => {
                let between = f64::from(self.producers) / requests;
                // Tolerate rounding just above a whole number.
                between * (fill / between - 1e-9).ceil().max(1.0)
            }
            (Sharing::Nothing | Sharing::Commits | Sharing::Segments, _) => fill,
        }
    }

    /// Segments that share a commit: full segments wait for each other until their linger ends, or until they hold
    /// three quarters of their memory.
    pub(crate) fn segments_per_commit(&self, load: &Load, request: RequestLatency) -> f64 {
        let each = self.each_maker(load);
        let fill = self.fill_seconds(load);
        let waiting = 0.75 * BUDGET * self.memory_bytes - self.held_bytes(load, request);
        let most = (1.0 + waiting / (each * fill)).clamp(1.0, COMMIT_SEGMENTS_MAX);
        // Tolerate rounding just below a whole number.
        (self.linger_seconds / fill + 1e-9).min(most).floor()
    }

    /// Memory of a producer: filling, uploading and waiting segments.
    fn held_bytes(&self, load: &Load, latency: RequestLatency) -> f64 {
        let each = self.each_maker(load);
        let fill = self.fill_seconds(load);
        let upload = latency.put_seconds + each * fill / CONNECTION_BYTES;
        each * (fill + upload + latency.put_seconds)
    }

    /// Rejects invalid settings with a remedy.
    pub fn check(&self, load: &Load, latency: RequestLatency) -> Result<(), CostError> {
        let positive = [
            (
                "--linger",
                self.linger_seconds,
                "it must be above zero, like 250ms or 1s",
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
                "it must be above zero, like 250ms",
            ),
            (
                "--ack-interval",
                self.ack_seconds,
                "it must be above zero, like 1s",
            ),
            ("--lease", self.lease_seconds, "it must be above zero, like 15s"),
            (
                "--writer-throughput",
                self.writer_bytes_per_second,
                "it must be above zero, like 50MB/s",
            ),
            (
                "--memory-limit",
                self.memory_bytes,
                "it must be at least a byte, like 256MiB",
            ),
            (
                "--put-latency",
                latency.put_seconds,
                "it must be above zero, like 60ms",
            ),
            (
                "--get-latency",
                latency.get_seconds,
                "it must be above zero, like 25ms",
            ),
            (
                "--throughput",
                load.compressed_bytes_per_second,
                "it must be above zero",
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
        if !(0.0..=FORWARD_BELOW_MAX).contains(&self.forward_below_bytes) {
            return refuse(
                "--forward-below",
                bytes(self.forward_below_bytes),
                "it is at most 1MiB",
            );
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

/// Formats bytes for people: `16 MiB`.
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(value), units[unit])
}

/// Formats a time for people: `250 ms`, `1.5 s`, `2 h`.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{} ms", short(s * 1_000.0)),
        s if s < 120.0 => format!("{} s", short(s)),
        s if s < 7_200.0 => format!("{} min", short(s / 60.0)),
        s if s < 172_800.0 => format!("{} h", short(s / 3_600.0)),
        s => format!("{} d", short(s / 86_400.0)),
    }
}

/// About three digits, without trailing zeros.
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
    fn senseless_settings_are_refused_with_a_remedy() {
        assert!(refused(|s| s.linger_seconds = 0.0).contains("--linger is 0"));
        assert!(refused(|s| s.producers = 0).contains("--producers is 0: there must be at least one"));
        assert!(
            refused(|s| s.forward_below_bytes = 2.0 * MIB)
                .contains("--forward-below is 2 MiB: it is at most 1MiB")
        );
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
