//! Small fleets of gateways in virtual time: what they cost, how long their clients wait, and that the log has each
//! acknowledged record once, whatever dies or is cut off.

use std::time::Duration;

use millpond_simulation::fleet::{Fleet, Layout, Report, Trouble};

const SECOND: Duration = Duration::from_secs(1);

/// Runs a fleet, and checks what holds for all of them.
fn run(fleet: &Fleet) -> Report {
    let report = fleet.run();
    println!("{report}");
    assert!(
        report.is_exact(),
        "{} lost, {} twice",
        report.lost,
        report.doubled
    );
    assert_eq!(report.given_up, 0);
    let requests = fleet.measured.as_secs() * u64::from(fleet.load.requests_per_second);
    let (sent, answered) = (fleet.gateways as u64 * requests, report.answered as u64);
    assert!(
        answered.abs_diff(sent) < 2 * fleet.gateways as u64,
        "{answered} of {sent}"
    );
    report
}

/// A counted figure is within a tenth of the expected one, or a hundredth of a request per second beside it.
fn near(name: &str, counted: f64, expected: f64) {
    let distance = (counted - expected).abs();
    assert!(
        distance <= 0.1 * expected + 0.01,
        "{name}: {counted} instead of {expected}"
    );
}

/// 96 gateways in three zones, on three shards.
fn zones(layout: Layout, trouble: Trouble) -> Fleet {
    Fleet {
        zones: 3,
        shards: 3,
        layout,
        trouble,
        warm_up: 15 * SECOND,
        ..Fleet::light(96, SECOND)
    }
}

#[test]
fn gateways_of_one_shard_cost_and_wait_what_one_does() {
    for (gateways, linger, p99) in [(48, SECOND, 2.0), (16, SECOND / 4, 0.9), (250, SECOND, 2.0)] {
        let report = run(&Fleet {
            measured: 20 * SECOND,
            ..Fleet::light(gateways, linger)
        });
        near("segments", report.requests.segments, 1.0 / linger.as_secs_f64());
        near("commits", report.requests.commits, report.expected.commits);
        near(
            "dollars",
            report.dollars.requests,
            report.expected_dollars.requests,
        );
        assert!(report.latencies.p99 < p99, "p99 {} s", report.latencies.p99);
    }
}

#[test]
fn the_cost_model_has_the_requests_of_gateways_that_share_commits() {
    let quick = SECOND / 4;
    let (default, everything) = (Some(256 << 10), Some(0));
    let large = |gateways, linger, forward_below| Fleet {
        forward_below,
        ..Fleet::full(gateways, linger)
    };
    for fleet in [
        Fleet::light(1, SECOND),
        large(1, SECOND, default),
        large(1, quick, default),
        large(16, SECOND, default),
        large(16, quick, default),
        large(48, SECOND, default),
        large(64, SECOND, default),
        large(16, SECOND, everything),
        large(16, quick, everything),
        large(48, quick, everything),
        large(64, SECOND, everything),
        large(64, quick, everything),
        large(64, SECOND, Some(1 << 20)),
    ] {
        let report = run(&Fleet {
            warm_up: 30 * SECOND,
            measured: 30 * SECOND,
            ..fleet
        });
        let (counted, expected) = (report.requests, report.expected);
        near("segments", counted.segments, expected.segments);
        // Commits alone vary more with the seed: they are few.
        near(
            "PUTs",
            counted.segments + counted.commits,
            expected.segments + expected.commits,
        );
        near(
            "dollars",
            report.dollars.requests,
            report.expected_dollars.requests,
        );
    }
}

/// The ends of their segments are spread over the linger, as in a fleet that did not start at one moment. How far they are apart differs
/// with the seed, and so does the number of races that two or four producers lose.
#[test]
fn the_cost_model_has_the_requests_of_gateways_that_race() {
    let quick = SECOND / 4;
    for fleet in [
        Fleet::light(2, SECOND),
        Fleet::light(4, SECOND),
        Fleet::light(16, SECOND),
        Fleet::light(48, SECOND),
        Fleet::light(16, quick),
        Fleet::full(16, SECOND),
        Fleet::full(48, SECOND),
    ] {
        let report = run(&Fleet {
            forward_below: None,
            start_within: fleet.linger,
            warm_up: 20 * SECOND,
            measured: 30 * SECOND,
            ..fleet
        });
        let (counted, expected) = (report.requests, report.expected);
        near(
            "PUTs",
            counted.segments + counted.commits + counted.swaps_refused,
            expected.segments + expected.commits + expected.swaps_refused,
        );
        near(
            "dollars",
            report.dollars.requests,
            report.expected_dollars.requests,
        );
    }
}

#[test]
fn only_gateways_that_share_shards_with_other_zones_pay_for_traffic_between_them() {
    let any = run(&zones(Layout::AnyShard, Trouble::Nothing));
    near(
        "bytes between zones",
        any.requests.bytes_between_zones,
        any.expected.bytes_between_zones,
    );
    let own = run(&zones(Layout::ShardsOfTheZone, Trouble::Nothing));
    assert_eq!(own.requests.bytes_between_zones, 0.0);
    near("dollars", own.dollars.requests, any.dollars.requests);
}

#[test]
fn dead_leaders_lose_no_record_and_stop_no_shard() {
    let report = run(&zones(Layout::AnyShard, Trouble::DeadLeaders(20 * SECOND)));
    assert!(report.silence.deaths >= 6, "{} deaths", report.silence.deaths);
    assert!(report.attempts_failed > 0, "a request in a dead leader fails");
    // The followers commit for themselves at once.
    assert!(report.silence.after_death_max < 1.0, "{:?}", report.silence);
    assert!(report.latencies.p99 < 5.0, "p99 {} s", report.latencies.p99);
}

/// All followers of one leader race until one of them leads. Those that wait for their turn then turn to it.
#[test]
fn followers_of_a_dead_leader_wait_for_no_turn_once_another_leads() {
    let report = run(&Fleet {
        gateways: 84,
        shards: 1,
        trouble: Trouble::DeadLeaders(30 * SECOND),
        warm_up: 30 * SECOND,
        measured: 61 * SECOND,
        ..Fleet::large(1_000, Layout::AnyShard, Trouble::Nothing)
    });
    assert_eq!(report.silence.deaths, 2);
    assert!(report.latencies.p99 < 6.0, "p99 {} s", report.latencies.p99);
}

#[test]
fn a_zone_that_is_cut_off_loses_no_record_and_stops_no_shard() {
    for (trouble, silence_s) in [(Trouble::PeersCutOff, 3.0), (Trouble::StoreCutOff, 10.0)] {
        let report = run(&zones(Layout::AnyShard, trouble));
        assert!(!report.fallbacks.is_empty(), "nobody noticed");
        assert!(report.silence.longest < silence_s, "{:?}", report.silence);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let run = || {
        let fleet = Fleet {
            measured: 40 * SECOND,
            ..zones(Layout::AnyShard, Trouble::DeadLeaders(20 * SECOND))
        };
        serde_json::to_string(&fleet.run()).expect("a report is JSON")
    };
    assert_eq!(run(), run());
}
