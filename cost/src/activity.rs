//! How many requests Millpond makes, of which kind and what for: the code of producer, consumer and garbage collector as arithmetic.
//!
//! All rates are a second, over the whole buffer. It knows no prices.

use crate::rate::Load;
use crate::{RequestLatency, Settings};
use serde::{Deserialize, Serialize};

/// Rounds of a garbage collector begin up to a quarter of the interval early, drawn anew each time.
const ROUND_OF_INTERVAL: f64 = 0.875;
/// Keys on a page of a listing.
const LIST_PAGE: f64 = 1_000.0;
/// Bytes of a manifest without entries, and of an entry with one stream, and of another stream's part.
const MANIFEST_BYTES: f64 = 268.0;
const ENTRY_BYTES: f64 = 64.0;
const PART_BYTES: f64 = 30.0;
/// After another producer has committed, this many commits of a producer read the manifest first. The program does not
/// compile unless it is the producer's own number.
pub const READS_FIRST: u32 = 12;
/// While segments come one at a time, so many are planned before they are committed.
const PLANNED_AHEAD: f64 = 8.0;
/// A process that stands by looks again after a second.
const STANDBY_SECONDS: f64 = 1.0;

/// Requests a second by what they are for, and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Activity {
    /// PUTs of segments.
    pub segments: f64,
    /// PUTs of the manifest that took effect.
    pub commits: f64,
    /// PUTs of the manifest that were refused (412): somebody else had changed it. They are billed.
    pub swaps_refused: f64,
    /// GETs of the manifest after those.
    pub commit_reads: f64,
    /// PUTs of pages.
    pub pages: f64,
    /// Conditional GETs of the manifest by consumers; a 304 is billed.
    pub polls: f64,
    /// Ranged GETs of a stream's part of a segment.
    pub part_reads: f64,
    /// GETs of pages by consumers.
    pub page_reads: f64,
    /// PUTs of cursors: plans, acknowledgements, renewals.
    pub cursor_swaps: f64,
    /// GETs of processes that stand by.
    pub standby_reads: f64,
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
    /// Bytes kept on average.
    pub bytes_stored: f64,
    /// Bytes from clients to gateways in another zone.
    pub bytes_across_zones: f64,
}

/// Requests a second by what is billed alike.
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

/// Commits in one shard, and what they take.
struct Commits {
    landed: f64,
    refused: f64,
    reads: f64,
}

impl Activity {
    /// What a load makes of these settings.
    pub fn of(load: &Load, settings: &Settings, request: RequestLatency) -> Activity {
        let segments = f64::from(settings.producers) / settings.fill_seconds(load);
        let commits = segments / settings.segments_per_commit(load, request);
        Activity::with_segments(load, settings, request, segments, commits)
    }

    /// The same with so many segments and commits a second, as they were seen, say. One manifest may not take so many
    /// commits.
    pub fn with_segments(
        load: &Load,
        settings: &Settings,
        request: RequestLatency,
        segments: f64,
        commits: f64,
    ) -> Activity {
        let shards = f64::from(settings.shards);
        let (active, sharing) = (settings.active_shards(), settings.sharing());
        let commits = Commits::of(sharing, commits / active, request);
        let rounds = Rounds::of(settings, request);
        let lifetime = settings.retention_seconds.max(settings.grace_seconds) + rounds.interval / 2.0;

        let pages = segments / f64::from(settings.tail_max);
        let polls_each = 1.0 / (settings.poll_seconds + request.get_seconds);
        let each = commits.landed / sharing;
        let alone = alone(polls_each, each, sharing, segments / active / commits.landed);
        let swaps = CursorSwaps::of(settings, request, polls_each, each, sharing, alone);
        let idle_swaps = (shards - active) * 3.0 / settings.lease_seconds;
        let consumers = f64::from(settings.consumers);
        let standbys = consumers * f64::from(settings.standbys);

        // A round's swap makes the version stale that a lone producer knows, who then takes it for a while that others
        // commit; those who share a shard read first anyway.
        let lone = 2.0 - sharing.min(2.0);
        let wary = (rounds.rate * f64::from(READS_FIRST) / commits.landed).min(1.0);
        let wary_reads = commits.landed * active * wary * lone;
        let stale = rounds.rate * active * (1.0 - wary) * lone;
        // Consumers twice, segments and pages once.
        let listed = |keys: f64| active * (keys / active / LIST_PAGE + 0.5).max(1.0) + shards - active;
        let lists = 2.0 * shards + listed(segments * lifetime) + listed(pages * lifetime);

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
            polls: consumers * shards * polls_each,
            part_reads: consumers * segments * f64::from(settings.streams),
            page_reads: consumers * pages * (1.0 - swaps.acknowledged),
            cursor_swaps: consumers * (active * swaps.rate + idle_swaps),
            standby_reads: standbys * shards * 2.0 / (STANDBY_SECONDS + 2.0 * request.get_seconds),
            gc_reads: rounds.rate * (1.0 + shards * (2.0 + 2.0 * consumers)) + pages * rounds.processes,
            gc_lists: rounds.rate * lists,
            gc_swaps: rounds.rate * active,
            deletes: if rounds.rate > 0.0 { segments + pages } else { 0.0 },
            bytes_written: 0.0,
            bytes_read: 0.0,
            bytes_stored: compressed * lifetime,
            bytes_across_zones: if settings.zone_aware {
                0.0
            } else {
                compressed * (zones - 1.0) / zones
            },
        };
        let manifests_written = activity.commits + activity.swaps_refused + activity.gc_swaps;
        let manifests_read =
            activity.commit_reads + consumers * active * swaps.news + 2.0 * rounds.rate * shards;
        activity.bytes_written = compressed + manifest * manifests_written;
        activity.bytes_read = consumers * compressed + manifest * manifests_read;
        activity
    }

    /// By what is billed alike.
    pub fn per_second(&self) -> PerSecond {
        PerSecond {
            put: self.segments
                + self.commits
                + self.swaps_refused
                + self.pages
                + self.cursor_swaps
                + self.gc_swaps,
            get: self.commit_reads
                + self.polls
                + self.part_reads
                + self.page_reads
                + self.standby_reads
                + self.gc_reads,
            list: self.gc_lists,
            delete: self.deletes,
        }
    }
}

impl Commits {
    /// `sharing` producers of one shard that would commit so often together.
    fn of(sharing: f64, commits: f64, request: RequestLatency) -> Commits {
        let RequestLatency {
            put_seconds: put,
            get_seconds: get,
        } = request;
        // Alone, a producer knows the manifest from its own last commit. With others it reads it first, and meanwhile they
        // may commit.
        let shared = (sharing - 1.0).min(1.0);
        let window = put + get * shared;
        let landed = commits.min(1.0 / window);
        let others = landed * (sharing - 1.0) / sharing;
        // The store reads and swaps in the middle of the two requests: what is in between is half of each.
        let attempts = (others * window / 2.0).exp();
        Commits {
            landed,
            refused: landed * (attempts - 1.0),
            reads: landed * (shared + attempts - 1.0),
        }
    }
}

/// The swaps of one consumer's cursor in one shard.
struct CursorSwaps {
    rate: f64,
    /// Polls that find something new, a second.
    news: f64,
    /// How often everything is acknowledged before there is news.
    acknowledged: f64,
}

impl CursorSwaps {
    /// News comes from `sharing` producers with `each` commits a second, looked for `polls` times a second. `alone` is how
    /// often it is one segment.
    fn of(
        settings: &Settings,
        request: RequestLatency,
        polls: f64,
        each: f64,
        sharing: f64,
        alone: f64,
    ) -> CursorSwaps {
        // Producers are regular and know nothing of each other.
        let unseen = 1.0 - (each / polls).min(1.0);
        let news = polls * (1.0 - unseen.powf(sharing));
        // What is done is acknowledged with any other swap, or after the interval, or when nothing has been done for a third
        // of it. A renewal of the lease acknowledges too. Between two polls that find a producer's commits lies its
        // period, give or take a poll.
        let renewal = settings.lease_seconds / 3.0;
        let rest = settings.ack_seconds / 3.0;
        let period = (1.0 / each).max(1.0 / polls);
        let jitter = (1.0 / polls).min(1.0 / each);
        let before_news =
            |after: f64| longer(period, jitter, after) * (1.0 - (after * each).min(1.0)).powf(sharing - 1.0);
        // While nothing comes: whole renewals, in the mean half of one fewer than would fit.
        let renewals = |after: f64| news * ((1.0 / news - after) / renewal - 0.5).max(0.0);

        // One segment at a time is planned ahead: swaps acknowledge, and plan what will come until the next. Where several
        // came at last, one plans nothing ahead, and another swap must.
        let interval = settings.ack_seconds.min(renewal) + request.put_seconds;
        let after = rest.min(renewal) + request.put_seconds;
        let rests = before_news(after);
        let used_up = each * sharing / (PLANNED_AHEAD * alone);
        let ahead = CursorSwaps {
            rate: ((1.0 - rests) / interval + rests * (news + renewals(after))).max(used_up),
            news,
            acknowledged: rests + (1.0 - rests) * (1.0 / (news * interval)).min(1.0),
        };
        // Of several, a writer that is idle gets what has come. With more streams than writers, the others' plans come one by
        // one.
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

/// How often a poll that finds news finds one segment: such are planned ahead. Each of the producers that share a shard
/// commits so often, `per_commit` segments at a time.
pub(crate) fn alone(polls: f64, each: f64, sharing: f64, per_commit: f64) -> f64 {
    if per_commit > 1.0 {
        return 0.0;
    }
    let unseen = 1.0 - (each / polls).min(1.0);
    // One that commits more often than it is looked for is found with two now and then.
    let once = (2.0 - each / polls).clamp(0.0, 1.0);
    once * unseen.powf(sharing - 1.0)
}

/// How probable it is that a time of `mean`, give or take the difference of two draws from `spread`, is longer than `limit`.
fn longer(mean: f64, spread: f64, limit: f64) -> f64 {
    let x = ((limit - mean) / spread).clamp(-1.0, 1.0);
    if x < 0.0 {
        1.0 - (1.0 + x).powi(2) / 2.0
    } else {
        (1.0 - x).powi(2) / 2.0
    }
}

/// Rounds of all garbage collectors.
struct Rounds {
    /// A second.
    rate: f64,
    /// Seconds from one to the next, of all garbage collectors.
    interval: f64,
    /// Processes that collect: each remembers pages by itself.
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
        // One request after another: twice manifest, listing and cursors, the swap, two listings, deletions.
        let requests = 1.0 + f64::from(settings.shards) * (7.0 + 2.0 * consumers);
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

    #[test]
    fn producers_that_share_a_shard_read_before_they_swap() {
        let found = activity(|s| s.producers = 2);
        assert_eq!(found.segments, 2.0);
        // Now and then another is faster after the reading.
        let attempts = 2.0 * (0.105_f64 / 2.0).exp();
        assert!(
            (found.commit_reads - attempts).abs() < 0.001,
            "{}",
            found.commit_reads
        );
        assert!(
            (found.swaps_refused - (attempts - 2.0)).abs() < 0.001,
            "{}",
            found.swaps_refused
        );
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
        near(found.commits, 1.0 / 0.105);
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
        // What compresses very well reaches the raw limit first.
        assert_eq!(segments(32.0 * crate::MIB, 16.0), 4.0);
    }

    #[test]
    fn segments_that_come_alone_are_planned_ahead() {
        // A swap every five seconds.
        near(activity(|s| s.linger_seconds = 0.8).cursor_swaps, 1.0 / 5.07);
        // One for eight segments.
        near(activity(|s| s.linger_seconds = 0.3).cursor_swaps, 1.0 / 2.4);
        // One for each, when nothing is done for a third of the ack interval.
        near(activity(|s| s.linger_seconds = 4.0).cursor_swaps, 0.25);
        // A minute without news: an acknowledgement, and a renewal every five seconds.
        near(activity(|s| s.linger_seconds = 60.0).cursor_swaps, 12.0 / 60.0);
        // Ten a second come together: a plan for each poll that finds some.
        near(activity(|s| s.producers = 10).cursor_swaps, 3.4);
    }
}
