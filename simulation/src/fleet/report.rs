//! The result of a run, as text and as JSON, and the check of the log at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use millpond_producer::testing;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::time::Instant;

use super::clients::{Outcomes, number};
use super::expected::{self, Priced};
use super::gateway::World;
use super::meter::{Counts, Shard, lock};

/// The requests of gateways to the store per second, as a bill counts them.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Requests {
    /// PUTs of segments.
    pub segments: f64,
    /// PUTs of pages.
    pub pages: f64,
    /// Swaps that brought segments into the log.
    pub commits: f64,
    /// Swaps that registered a producer or gave up the lead.
    pub other_swaps: f64,
    /// Swaps that the store refused.
    pub swaps_refused: f64,
    /// GETs of manifests.
    pub manifest_reads: f64,
    /// Other GETs.
    pub other_reads: f64,
    /// LISTs.
    pub lists: f64,
    /// Bytes between zones per second.
    pub bytes_between_zones: f64,
}

/// Dollars a month.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Dollars {
    /// For requests to the store.
    pub requests: f64,
    /// For bytes between zones.
    pub between_zones: f64,
}

/// The time from a client's first attempt to the acknowledgement, seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latencies {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// The time without a commit in a shard, seconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Silence {
    /// The number of dead leaders.
    pub deaths: usize,
    /// From a leader's death to the next commit, median.
    pub after_death_p50: f64,
    /// The longest such time.
    pub after_death_max: f64,
    /// The longest time between two commits of a shard, whatever its reason.
    pub longest: f64,
}

/// What a run has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The fleet's name.
    pub name: String,
    /// Gateways.
    pub gateways: usize,
    /// Zones.
    pub zones: usize,
    /// Shards.
    pub shards: usize,
    /// Measured seconds.
    pub seconds: f64,
    /// Counted per second.
    pub requests: Requests,
    /// What the cost model expects.
    pub expected: Requests,
    /// The price of the counted requests.
    pub dollars: Dollars,
    /// The price of the expected requests.
    pub expected_dollars: Dollars,
    /// The price of one consumer and of garbage collection, by the cost model.
    pub readers_dollars: f64,
    /// Swaps for each commit.
    pub swaps_per_commit: f64,
    /// Requests between gateways per second.
    pub peer_requests: f64,
    /// Answered requests of clients.
    pub latencies: Latencies,
    /// Requests of clients in the measured time.
    pub answered: usize,
    /// Attempts that failed. Clients repeat them.
    pub attempts_failed: u64,
    /// Requests that clients gave up.
    pub given_up: u64,
    /// Times without commits.
    pub silence: Silence,
    /// Commits without the leader by reason, of the whole run.
    pub fallbacks: BTreeMap<String, u64>,
    /// Records of the whole run that were acknowledged.
    pub acknowledged: usize,
    /// Acknowledged records that the log lacks.
    pub lost: usize,
    /// Records that the log has twice.
    pub doubled: usize,
}

impl Report {
    pub(super) async fn of(
        world: &World,
        counts: Counts,
        mut outcomes: Outcomes,
        measured: Range<Instant>,
    ) -> Report {
        let fleet = &world.fleet;
        let seconds = fleet.measured.as_secs_f64();
        let requests = requests(&counts, seconds);
        let (expected, priced) = (expected::requests(fleet), Priced::new());
        outcomes.latencies.sort_unstable();
        let (lost, doubled) = check(world, &outcomes).await;
        let swaps = counts.commits + counts.swaps_refused;
        Report {
            name: fleet.name.clone(),
            gateways: fleet.gateways,
            zones: fleet.zones,
            shards: fleet.shards,
            seconds,
            requests,
            expected,
            dollars: priced.of(&requests),
            expected_dollars: priced.of(&expected),
            readers_dollars: priced.of_the_readers(fleet),
            swaps_per_commit: real(swaps) / real(counts.commits),
            peer_requests: real(counts.peer_requests) / seconds,
            latencies: Latencies {
                p50: percentile(&outcomes.latencies, 50),
                p99: percentile(&outcomes.latencies, 99),
                max: percentile(&outcomes.latencies, 100),
            },
            answered: outcomes.latencies.len(),
            attempts_failed: counts.attempts_failed,
            given_up: outcomes.given_up,
            silence: silence(&world.meter.shards(), &measured),
            fallbacks: fallbacks(&lock(&world.registries)),
            acknowledged: outcomes.acknowledged.iter().flatten().count(),
            lost,
            doubled,
        }
    }

    /// Returns true if each acknowledged record is in the log, and none is twice.
    pub fn is_exact(&self) -> bool {
        self.lost == 0 && self.doubled == 0
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn real(count: u64) -> f64 {
    count as f64
}

fn requests(counts: &Counts, seconds: f64) -> Requests {
    let each = |count: u64| real(count) / seconds;
    Requests {
        segments: each(counts.segments),
        pages: each(counts.pages),
        commits: each(counts.commits),
        other_swaps: each(counts.other_swaps),
        swaps_refused: each(counts.swaps_refused),
        manifest_reads: each(counts.manifest_reads),
        other_reads: each(counts.other_reads),
        lists: each(counts.lists),
        bytes_between_zones: each(counts.bytes_between_zones),
    }
}

/// A percentile of ascending times, in seconds.
fn percentile(ascending: &[Duration], per_cent: usize) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending
        .get(last * per_cent / 100)
        .map_or(0.0, Duration::as_secs_f64)
}

fn silence(shards: &[Shard], measured: &Range<Instant>) -> Silence {
    let (mut after_death, mut longest) = (Vec::new(), Duration::ZERO);
    for shard in shards {
        for died in &shard.deaths {
            let next = shard.commits.iter().find(|commit| *commit > died);
            after_death.push(next.map_or(Duration::MAX, |commit| *commit - *died));
        }
        let commits = shard.commits.iter().copied().filter(|at| measured.contains(at));
        let times: Vec<Instant> = [measured.start]
            .into_iter()
            .chain(commits)
            .chain([measured.end])
            .collect();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        longest = longest.max(gaps.max().unwrap_or_default());
    }
    after_death.sort_unstable();
    Silence {
        deaths: after_death.len(),
        after_death_p50: percentile(&after_death, 50),
        after_death_max: percentile(&after_death, 100),
        longest: longest.as_secs_f64(),
    }
}

/// Commits without the leader by reason.
fn fallbacks(registries: &[Registry]) -> BTreeMap<String, u64> {
    let mut reasons = BTreeMap::new();
    for registry in registries {
        let mut text = String::new();
        encode(&mut text, registry).expect("a string takes everything");
        let is_fallback = |line: &&str| line.starts_with("millpond_producer_fallbacks_total");
        for line in text.lines().filter(is_fallback) {
            let reason = line.split('"').nth(1).unwrap_or_default();
            let count: u64 = line
                .rsplit(' ')
                .next()
                .and_then(|it| it.parse().ok())
                .unwrap_or(0);
            if count > 0 {
                *reasons.entry(reason.to_owned()).or_default() += count;
            }
        }
    }
    reasons
}

/// Reads the whole log. Returns how many acknowledged records are missing, and how many records are there twice.
async fn check(world: &World, outcomes: &Outcomes) -> (usize, usize) {
    let store = world.honest_store();
    let mut times = vec![0_u32; outcomes.acknowledged.len()];
    let mut places = vec![None; outcomes.acknowledged.len()];
    for shard in 0..u32::try_from(world.fleet.shards).expect("few shards") {
        for payload in testing::segments(&store, shard).await.iter().flatten() {
            let number = number(payload);
            times[number] += 1;
            places[number] = Some(shard);
        }
    }
    let pairs = outcomes.acknowledged.iter().zip(&places);
    let lost = pairs
        .filter(|(told, place)| told.is_some() && told != place)
        .count();
    (lost, times.iter().filter(|times| **times > 1).count())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            requests: counted,
            expected,
            latencies,
            silence,
            ..
        } = self;
        writeln!(f, "{} ({:.0} s)", self.name, self.seconds)?;
        writeln!(f, "                            counted   expected")?;
        for (name, counted, expected) in [
            ("segments/s", counted.segments, expected.segments),
            ("commits/s", counted.commits, expected.commits),
            ("swaps refused/s", counted.swaps_refused, expected.swaps_refused),
            ("other swaps/s", counted.other_swaps, expected.other_swaps),
            ("pages/s", counted.pages, expected.pages),
            (
                "manifest reads/s",
                counted.manifest_reads,
                expected.manifest_reads,
            ),
            (
                "MB/s between zones",
                counted.bytes_between_zones / 1e6,
                expected.bytes_between_zones / 1e6,
            ),
            (
                "$ a month, requests",
                self.dollars.requests,
                self.expected_dollars.requests,
            ),
            (
                "$ a month, between zones",
                self.dollars.between_zones,
                self.expected_dollars.between_zones,
            ),
        ] {
            writeln!(f, "  {name:24} {counted:9.2}  {expected:9.2}")?;
        }
        writeln!(
            f,
            "  with one consumer and garbage collection by the cost model: ${:.0}",
            self.dollars.requests + self.dollars.between_zones + self.readers_dollars
        )?;
        writeln!(
            f,
            "  requests p50 {:.2} s, p99 {:.2} s, max {:.2} s; {} answered, {} attempts failed, {} given up",
            latencies.p50, latencies.p99, latencies.max, self.answered, self.attempts_failed, self.given_up
        )?;
        writeln!(
            f,
            "  {:.2} swaps per commit; {:.0} peer requests/s; without commits for {:.2} s at most",
            self.swaps_per_commit, self.peer_requests, silence.longest
        )?;
        if silence.deaths > 0 {
            writeln!(
                f,
                "  {} dead leaders; the next commit after {:.2} s (median), {:.2} s (longest)",
                silence.deaths, silence.after_death_p50, silence.after_death_max
            )?;
        }
        writeln!(f, "  without the leader: {:?}", self.fallbacks)?;
        writeln!(
            f,
            "  {} records acknowledged, {} lost, {} twice",
            self.acknowledged, self.lost, self.doubled
        )
    }
}
