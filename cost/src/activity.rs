//! The request rates of Millpond by kind and purpose: producer, consumer and garbage collector as arithmetic.
//!
//! All rates are per second over the whole buffer. This module knows no prices.

use crate::leader::commits_of_a_leader;
use crate::rate::Load;
use crate::settings::Sharing;
use crate::{RequestLatency, Settings};
use serde::{Deserialize, Serialize};

/// A round of garbage collection begins up to a quarter of the interval early, at random.
const ROUND_OF_INTERVAL: f64 = 0.875;
/// Cursors that a garbage collector reads at once. The program does not compile unless it is the collector's own number.
pub const CURSORS_AT_A_TIME: usize = 16;
/// Keys on a page of a listing.
const LIST_PAGE: f64 = 1_000.0;
/// Size in bytes of a manifest without entries, of an entry with one stream, and of each further stream's part.
const MANIFEST_BYTES: f64 = 268.0;
const ENTRY_BYTES: f64 = 64.0;
const PART_BYTES: f64 = 30.0;
/// After meeting another producer, a producer reads the manifest first for this many commits. The program does not
/// compile unless it is the producer's own number.
pub const READS_FIRST: u32 = 12;
/// While segments arrive one at a time, a plan covers this many in advance.
const PLANNED_AHEAD: f64 = 8.0;
/// A process looks for new shards once a minute, up to a quarter of it early.
const BUFFER_LOOK_SECONDS: f64 = 52.5;
/// Factor and power of the number of producers k: their maximum commits in the time of a read and a swap, because the fastest of many attempts
/// succeeds. This constant and the next three are fitted to producers that race in virtual time (`simulation/tests/fleets.rs`).
const RACE: (f64, f64) = (1.45, 0.117);
/// How sharply the commits bend to that limit.
const RACE_BEND: f64 = 2.8;
/// Commits of others between a producer's read and its swap, as a share of those in the time of both.
const RACE_LOST: f64 = 0.47;
/// Factor and power of k: the maximum attempts per commit, because producers take turns.
const RACE_TURNS: (f64, f64) = (1.485, 0.17);
/// A standby process checks every second.
const STANDBY_SECONDS: f64 = 1.0;

/// Requests per second by purpose, and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Activity {
    /// PUTs of segments.
    pub segments: f64,
    /// PUTs of the manifest that took effect.
    pub commits: f64,
    /// PUTs of the manifest that were refused (412) because another process had changed it. They are billed.
    pub swaps_refused: f64,
    /// GETs of the manifest after a refusal.
    pub commit_reads: f64,
    /// PUTs of pages.
    pub pages: f64,
    /// GETs of the object `buffer`, which has the number of shards, by producers and consumers.
    pub buffer_looks: f64,
    /// Conditional GETs of the manifest by consumers; a 304 is billed.
    pub polls: f64,
    /// Ranged GETs of a stream's part of a segment.
    pub part_reads: f64,
    /// GETs of pages by consumers.
    pub page_reads: f64,
    /// PUTs of cursors: plans, acknowledgements, renewals.
    pub cursor_swaps: f64,
    /// GETs of cursors that another process owns.
    pub standby_reads: f64,
    /// GETs and as many PUTs of the list of a consumer's processes, which divide several shards.
    pub member_beats: f64,
    /// GETs of garbage collectors.
    pub gc_reads: f64,
    /// LISTs of garbage collectors.
    pub gc_lists: f64,
    /// PUTs of the manifest by garbage collectors.
    pub gc_swaps: f64,
    /// DELETEs; no store bills them.
    pub deletes: f64,
    /// Bytes to the store.
    pub bytes_written: f64,
    /// Bytes from the store.
    pub bytes_read: f64,
    /// Average number of bytes stored.
    pub bytes_stored: f64,
    /// Bytes from clients to gateways in another zone.
    pub bytes_across_zones: f64,
    /// Bytes from gateways to a leader in another zone.
    pub bytes_to_leaders: f64,
}

/// Requests per second by billing category.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PerSecond {
    /// PUT, conditional or not, refused or not.
    pub put: f64,
    /// GET, ranged or conditional, answered with a body or not.
    pub get: f64,
    /// LIST.
    pub list: f64,
    /// DELETE.
    pub delete: f64,
}

/// Commits in one shard and their requests.
struct Commits {
    landed: f64,
    refused: f64,
    reads: f64,
}

impl Activity {
    /// The activity for a load with these settings.
    pub fn of(load: &Load, settings: &Settings, request: RequestLatency) -> Activity {
        let segments = settings.makers(load) / settings.interval_seconds(load);
        let requests = segments / settings.segments_per_commit(load, request);
        let commits = match settings.sharing(load) {
            Sharing::Nothing | Sharing::Segments => requests,
            Sharing::Commits => {
                let (shards, each) = (settings.active_shards(), settings.per_shard());
                let (interval, own) = (settings.linger_seconds, requests / shards / each);
                shards * commits_of_a_leader(interval, own * (each - 1.0) * interval, own, request)
            }
        };
        Activity::with_segments(load, settings, request, segments, commits)
    }

    /// The same with given rates of segments and commits, for example observed ones. One manifest may not sustain that
    /// many commits.
    pub fn with_segments(
        load: &Load,
        settings: &Settings,
        request: RequestLatency,
        segments: f64,
        commits: f64,
    ) -> Activity {
        let shards = f64::from(settings.shards);
        let (active, sharing) = (settings.active_shards(), settings.committers(load));
        let commits = Commits::of(sharing, commits / active, request);
        let rounds = Rounds::of(settings, request);
        let lifetime = settings.retention_seconds.max(settings.grace_seconds) + rounds.interval / 2.0;

        let pages = segments / f64::from(settings.tail_max);
        let polls_each = 1.0 / settings.between_polls(request);
        let looks_each = 1.0 / settings.between_looks(request);
        // News comes when a producer has something. A leader rarely delays it.
        let together = segments / active / commits.landed;
        let sources = match settings.sharing(load) {
            // The followers' segments come together, in these commits.
            Sharing::Commits => (commits.landed * settings.linger_seconds).max(1.0),
            Sharing::Nothing | Sharing::Segments => settings.sources(load),
        };
        let each = segments / active / together / sources;
        let alone = alone(looks_each, each, sources, together);
        let swaps = CursorSwaps::of(settings, request, looks_each, each, sources, alone);
        let idle_swaps = (shards - active) * 3.0 / settings.lease_seconds;
        let consumers = f64::from(settings.consumers);
        let standbys = consumers * f64::from(settings.standbys);

        // A round looks at the consumers of a shard, and again when it changes the manifest: because it trims what an acknowledgement has
        // released, or else because a listing of segments and pages has shown garbage. It then lists those again to delete.
        let trims = (swaps.rate * rounds.interval).min(1.0);
        let finds = (1.0 - trims) * (segments / active * rounds.interval).min(1.0);
        let changes = rounds.rate * (trims + finds);

        // The swap of a round makes the version stale that a lone producer knows. The producer then assumes for a while
        // that others commit. Producers that share a shard read first anyway.
        let lone = 2.0 - sharing.min(2.0);
        let wary = (changes * f64::from(READS_FIRST) / commits.landed).min(1.0);
        let wary_reads = commits.landed * active * wary * lone;
        let stale = changes * active * (1.0 - wary) * lone;
        let listed = |keys: f64| active * (keys / active / LIST_PAGE + 0.5).max(1.0);
        let kept = listed(segments * lifetime) + listed(pages * lifetime);
        let looks = shards + active * (trims + finds);
        // A look outside of the first shard lists the cursors of both. Each round also lists the snapshots of keys in each shard, and the
        // processes of consumers if there are several shards.
        let lists_per_look = 2.0 - 1.0 / shards;
        let members = if settings.shards > 1 { 1.0 } else { 0.0 };
        let lists =
            looks * lists_per_look + kept * (1.0 + finds) + 2.0 * (shards - active) + shards + members;

        let tail = (segments / active * rounds.interval / 2.0).min(f64::from(settings.tail_max) / 2.0);
        let entry = ENTRY_BYTES + PART_BYTES * (f64::from(settings.streams) - 1.0);
        let manifest = MANIFEST_BYTES + tail * entry;
        let compressed = load.compressed_bytes_per_second;
        let zones = f64::from(settings.zones);
        let mut activity = Activity {
            segments,
            commits: commits.landed * active,
            swaps_refused: commits.refused * active + stale,
            commit_reads: commits.reads * active + stale + wary_reads,
            pages,
            buffer_looks: (f64::from(settings.producers) + consumers + standbys) / BUFFER_LOOK_SECONDS,
            polls: consumers * shards * polls_each,
            part_reads: consumers * segments * f64::from(settings.streams),
            page_reads: consumers * pages * (1.0 - swaps.acknowledged),
            cursor_swaps: consumers * (active * swaps.rate + idle_swaps),
            standby_reads: if settings.divides() {
                standbys * shards * 3.0 / settings.lease_seconds
            } else {
                standbys * shards * 2.0 / (STANDBY_SECONDS + 2.0 * request.get_seconds)
            },
            member_beats: if settings.divides() {
                (consumers + standbys) * 3.0 / settings.lease_seconds
            } else {
                0.0
            },
            gc_reads: rounds.rate * (1.0 + looks * (1.0 + consumers)) + pages * rounds.processes,
            gc_lists: rounds.rate * lists,
            gc_swaps: changes * active,
            deletes: if rounds.rate > 0.0 { segments + pages } else { 0.0 },
            bytes_written: 0.0,
            bytes_read: 0.0,
            bytes_stored: compressed * lifetime,
            bytes_across_zones: if settings.zone_aware {
                0.0
            } else {
                compressed * (zones - 1.0) / zones
            },
            bytes_to_leaders: match settings.sharing(load) {
                // The gateways are evenly distributed over the zones.
                Sharing::Segments => compressed * (1.0 - 1.0 / zones.min(settings.per_shard())),
                Sharing::Nothing | Sharing::Commits => 0.0,
            },
        };
        let manifests_written = activity.commits + activity.swaps_refused + activity.gc_swaps;
        let manifests_read = activity.commit_reads + consumers * active * swaps.news + rounds.rate * looks;
        activity.bytes_written = compressed + manifest * manifests_written;
        activity.bytes_read = consumers * compressed + manifest * manifests_read;
        activity
    }

    /// The same by billing category.
    pub fn per_second(&self) -> PerSecond {
        PerSecond {
            put: self.segments
                + self.commits
                + self.swaps_refused
                + self.pages
                + self.cursor_swaps
                + self.member_beats
                + self.gc_swaps,
            get: self.commit_reads
                + self.buffer_looks
                + self.polls
                + self.part_reads
                + self.page_reads
                + self.standby_reads
                + self.member_beats
                + self.gc_reads,
            list: self.gc_lists,
            delete: self.deletes,
        }
    }
}

impl Commits {
    /// `sharing` producers of one shard that together make this many commits per second.
    fn of(sharing: f64, commits: f64, request: RequestLatency) -> Commits {
        let RequestLatency {
            put_seconds: put,
            get_seconds: get,
        } = request;
        // A lone producer knows the manifest from its last commit. Several read it first, and one is refused if another one commits before
        // its swap. Between one producer per shard and two, some shards have one and some have two.
        let shared = (sharing - 1.0).min(1.0);
        let attempt = put + get;
        let lone = commits.min(1.0 / put);
        let of_many = |(factor, power): (f64, f64)| factor * sharing.powf(power);
        let most = commits_of_many(sharing, request);
        let crowd = commits / (1.0 + (commits / most).powf(RACE_BEND)).powf(1.0 / RACE_BEND);
        let landed = lone + (crowd - lone) * shared;
        let attempts = (RACE_LOST * landed * attempt).exp().min(of_many(RACE_TURNS));
        let refused = landed * (attempts - 1.0) * shared;
        Commits {
            landed,
            refused,
            reads: landed * shared + refused,
        }
    }
}

/// The maximum rate of commits in a shard that this many producers share, two or more.
pub(crate) fn commits_of_many(sharing: f64, request: RequestLatency) -> f64 {
    RACE.0 * sharing.powf(RACE.1) / (request.put_seconds + request.get_seconds)
}

/// The swaps of one consumer's cursor in one shard.
struct CursorSwaps {
    rate: f64,
    /// Polls per second that find something new.
    news: f64,
    /// Acknowledgements of everything before there is news, per second.
    acknowledged: f64,
}

impl CursorSwaps {
    /// News comes from `sharing` producers with `each` commits per second, at `polls` polls per second. `alone` is how
    /// often it is one segment.
    fn of(
        settings: &Settings,
        request: RequestLatency,
        polls: f64,
        each: f64,
        sharing: f64,
        alone: f64,
    ) -> CursorSwaps {
        // Producers are regular and independent.
        let unseen = 1.0 - (each / polls).min(1.0);
        let news = polls * (1.0 - unseen.powf(sharing));
        // Completed work is acknowledged with any other swap, after the interval, or after a third of it without
        // further completions. A lease renewal acknowledges too. The time between two polls that find a producer's
        // commits is its period, plus or minus a poll interval.
        let renewal = settings.lease_seconds / 3.0;
        let rest = settings.ack_seconds / 3.0;
        let period = (1.0 / each).max(1.0 / polls);
        let jitter = (1.0 / polls).min(1.0 / each);
        let before_news =
            |after: f64| longer(period, jitter, after) * (1.0 - (after * each).min(1.0)).powf(sharing - 1.0);
        // Idle time: whole renewals, on average half of one fewer than would fit.
        let renewals = |after: f64| news * ((1.0 / news - after) / renewal - 0.5).max(0.0);

        // Segments that arrive one at a time are planned in advance: a swap acknowledges, and plans the segments up to
        // the next swap. After several at once, a poll plans nothing in advance and needs another swap.
        let interval = settings.ack_seconds.min(renewal) + request.put_seconds;
        let after = rest.min(renewal) + request.put_seconds;
        let rests = before_news(after);
        let used_up = each * sharing / (PLANNED_AHEAD * alone);
        let ahead = CursorSwaps {
            rate: ((1.0 - rests) / interval + rests * (news + renewals(after))).max(used_up),
            news,
            acknowledged: rests + (1.0 - rests) * (1.0 / (news * interval)).min(1.0),
        };
        // If several arrive, an idle writer takes what has come. With more streams than writers, the plans of the
        // others follow one by one.
        let waiting = f64::from(settings.streams.saturating_sub(settings.writers));
        let acknowledged = before_news(after);
        let together = CursorSwaps {
            rate: news * (1.0 + waiting) + news * acknowledged + renewals(after),
            news,
            acknowledged,
        };
        if ahead.rate < together.rate {
            ahead
        } else {
            together
        }
    }
}

/// How often a poll with news finds a single segment, which can be planned in advance. Each producer of the shard makes
/// `each` commits per second with `per_commit` segments: with fewer than two on average, some have one and some have two.
pub(crate) fn alone(polls: f64, each: f64, sharing: f64, per_commit: f64) -> f64 {
    let single = (2.0 - per_commit).clamp(0.0, 1.0);
    let unseen = 1.0 - (each / polls).min(1.0);
    // A producer that commits more often than the poll interval is sometimes found with two commits.
    let once = (2.0 - each / polls).clamp(0.0, 1.0);
    single * once * unseen.powf(sharing - 1.0)
}

/// The probability that a time with this `mean`, plus or minus the difference of two draws from `spread`, exceeds
/// `limit`.
fn longer(mean: f64, spread: f64, limit: f64) -> f64 {
    let x = ((limit - mean) / spread).clamp(-1.0, 1.0);
    if x < 0.0 {
        1.0 - (1.0 + x).powi(2) / 2.0
    } else {
        (1.0 - x).powi(2) / 2.0
    }
}

/// The rounds of all garbage collectors.
struct Rounds {
    /// Rounds per second.
    rate: f64,
    /// Seconds between rounds over all garbage collectors.
    interval: f64,
    /// Processes that collect: each keeps its own cache of pages.
    processes: f64,
}

impl Rounds {
    fn of(settings: &Settings, request: RequestLatency) -> Rounds {
        let consumers = f64::from(settings.consumers);
        let processes = consumers * (1.0 + f64::from(settings.standbys));
        if settings.gc_seconds == 0.0 || processes == 0.0 {
            return Rounds {
                rate: 0.0,
                interval: 0.0,
                processes: 0.0,
            };
        }
        // Requests run in sequence: manifest, listing and cursors twice, the swap, two listings, deletions, a listing of snapshots. Several
        // cursors are read at once. Outside of the first shard two more listings.
        let cursors = (consumers / CURSORS_AT_A_TIME as f64).ceil();
        let requests = f64::from(settings.shards) * (10.0 + 2.0 * cursors) - 1.0;
        let round = requests * request.get_seconds + f64::from(settings.shards) * request.put_seconds;
        let each = ROUND_OF_INTERVAL * settings.gc_seconds + round;
        Rounds {
            rate: processes / each,
            interval: each / processes,
            processes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn activity(change: impl Fn(&mut Settings)) -> Activity {
        let mut settings = Settings::default();
        change(&mut settings);
        let load = Load::compressed(Rate(1e5), 5.0);
        Activity::of(&load, &settings, RequestLatency::default())
    }

    fn near(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() <= 0.1 * expected.abs() + 0.005,
            "{found} is not about {expected}"
        );
    }

    /// The table of `design/performance.md`: 20,000 records a second over a store as slow as S3.
    #[test]
    fn it_agrees_with_what_was_measured() {
        for (linger, gateway_put, consumer_put, consumer_get) in
            [(1.0, 2.0, 0.20, 4.45), (0.25, 7.90, 0.60, 7.35)]
        {
            let found = activity(|s| s.linger_seconds = linger);
            near(found.segments + found.commits, gateway_put);
            near(found.cursor_swaps, consumer_put);
            near(found.polls + found.part_reads, consumer_get);
        }
    }

    #[test]
    fn a_lone_producer_commits_with_one_put_and_no_get() {
        let found = activity(|s| s.gc_seconds = 0.0);
        assert_eq!((found.deletes, found.gc_lists), (0.0, 0.0));
        assert_eq!(
            (found.commits, found.swaps_refused, found.commit_reads),
            (1.0, 0.0, 0.0)
        );
    }

    /// A round that trims lists cursors twice, segments, pages, and snapshots; outside of the first shard both shards' cursors, and once
    /// the processes of consumers.
    #[test]
    fn a_round_lists_what_the_collector_lists() {
        let lists = |shards: u32| {
            let found = activity(|s| {
                (s.shards, s.producers) = (shards, shards);
                // So that one page lists all segments.
                (s.grace_seconds, s.retention_seconds) = (60.0, 60.0);
            });
            found.gc_lists / found.gc_swaps * f64::from(shards)
        };
        assert_eq!(lists(1), 5.0);
        assert_eq!(lists(16), 5.0 + 15.0 * 7.0 + 1.0);
    }

    #[test]
    fn producers_that_share_a_shard_read_before_they_swap() {
        let found = activity(|s| s.producers = 2);
        assert_eq!(found.segments, 2.0);
        // Occasionally another producer is faster after the read.
        near(found.commits, 2.0);
        near(found.swaps_refused, 0.2);
        near(found.commit_reads, 2.2);
        let apart = activity(|s| {
            s.producers = 2;
            s.shards = 2;
            s.gc_seconds = 0.0;
        });
        assert_eq!((apart.commits, apart.swaps_refused), (2.0, 0.0));
    }

    #[test]
    fn one_manifest_takes_no_more_commits_than_its_latency_allows() {
        let found = activity(|s| {
            s.producers = 64;
            s.linger_seconds = 0.1;
        });
        assert_eq!(found.segments, 640.0);
        // Fleets in virtual time made 22.6 a second at most.
        near(found.commits, 22.5);
    }

    #[test]
    fn full_segments_share_commits_for_a_linger_or_until_memory_is_scarce() {
        let of = |rate: f64, change: &dyn Fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            let found = Activity::of(
                &Load::compressed(Rate(rate), 5.0),
                &settings,
                RequestLatency::default(),
            );
            found.segments / found.commits
        };
        let full = 16.0 * crate::MIB;
        assert_eq!(of(full, &|_| ()), 1.0);
        assert_eq!(of(1.9 * full, &|_| ()), 1.0);
        near(of(4.1 * full, &|_| ()), 4.0);
        near(of(4.1 * full, &|s| s.linger_seconds = 0.1), 1.0);
        near(of(4.1 * full, &|s| s.linger_seconds = 2.0), 8.0);
        near(of(8.2 * full, &|s| s.linger_seconds = 2.0), 6.0);
        near(
            of(8.2 * full, &|s| {
                s.linger_seconds = 2.0;
                s.memory_bytes = 4.0 * crate::GIB;
            }),
            16.0,
        );
    }

    #[test]
    fn segments_follow_the_linger_until_their_size_is_reached() {
        let segments = |rate: f64, ratio: f64| {
            let load = Load::compressed(Rate(rate), ratio);
            Activity::of(&load, &Settings::default(), RequestLatency::default()).segments
        };
        assert_eq!(segments(1e3, 5.0), 1.0);
        assert_eq!(segments(16.0 * crate::MIB, 5.0), 1.0);
        assert_eq!(segments(32.0 * crate::MIB, 5.0), 2.0);
        // Highly compressible data reaches the raw limit first.
        assert_eq!(segments(32.0 * crate::MIB, 16.0), 4.0);
    }

    /// 1,000 gateways and 10 Gbps on twelve shards: `make bench-fleet` counted 24.00 segments and 12.07 commits a second.
    #[test]
    fn a_leader_closes_its_last_segment_of_an_interval_before_it_is_full() {
        let settings = Settings {
            producers: 1_000,
            peers: true,
            shards: 12,
            ..Settings::default()
        };
        let load = Load::raw(Rate(1.25e9), 428.0 / 79.0);
        let found = Activity::of(&load, &settings, RequestLatency::default());
        near(found.segments, 24.0);
        near(found.commits, 12.07);
    }

    #[test]
    fn segments_that_come_alone_are_planned_ahead() {
        // One swap every five seconds.
        near(activity(|s| s.linger_seconds = 0.8).cursor_swaps, 1.0 / 5.07);
        // One swap for eight segments.
        near(activity(|s| s.linger_seconds = 0.3).cursor_swaps, 1.0 / 2.4);
        // One swap per segment, after a third of the ack interval without completions.
        near(activity(|s| s.linger_seconds = 4.0).cursor_swaps, 0.25);
        // A minute without news: one acknowledgement, and a renewal every five seconds.
        near(activity(|s| s.linger_seconds = 60.0).cursor_swaps, 12.0 / 60.0);
        // Ten per second arrive together: one plan for each poll with news.
        near(activity(|s| s.producers = 10).cursor_swaps, 3.4);
    }
}
