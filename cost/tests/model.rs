//! Properties of every estimate: more load and more producers cost more, the items add up, the advice matches a sweep,
//! and the JSON matches the estimate.

use millpond_cost::{
    Activity, Axis, CostError, Estimate, Inputs, Knob, Load, NetworkPath, Observed, Prices, Rate,
    RequestLatency, Settings, chart, sweep,
};
use proptest::prelude::*;

const MIB: f64 = 1_048_576.0;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

fn settings() -> impl Strategy<Value = Settings> {
    let times = (0.01..30.0, 0.05..10.0_f64, 0.1..10.0_f64, 10.0..3_600.0_f64);
    let counts = (1..=40_u32, 1..=8_u32, 0..=4_u32, 0..=2_u32, 1..=6_u32, 1..=4_u32);
    let path = prop_oneof![
        Just(NetworkPath::Endpoint),
        Just(NetworkPath::Nat),
        Just(NetworkPath::Internet)
    ];
    (times, counts, 0.1..64.0_f64, path).prop_map(|(times, counts, segment, path)| {
        let (linger_seconds, poll_seconds, ack_seconds, gc_seconds) = times;
        let (producers, shards, consumers, standbys, streams, zones) = counts;
        Settings {
            linger_seconds,
            segment_bytes: segment * MIB,
            segment_raw_bytes: 512.0 * MIB,
            producers,
            shards,
            consumers,
            standbys,
            streams,
            poll_seconds,
            ack_seconds,
            gc_seconds,
            zones,
            path,
            memory_bytes: 1e15,
            ..Settings::default()
        }
    })
}

/// Producers that may commit for each other. More of them can be cheaper: below a size, the leader uploads for them.
fn peers() -> impl Strategy<Value = Settings> {
    (settings(), any::<bool>(), 0.0..1.0_f64).prop_map(|(settings, peers, below)| Settings {
        peers,
        forward_below_bytes: below * MIB,
        ..settings
    })
}

fn load() -> impl Strategy<Value = Load> {
    ((2.0..9.0_f64).prop_map(|power| 10_f64.powf(power)), 1.0..12.0_f64)
        .prop_map(|(rate, ratio)| Load::compressed(Rate(rate), ratio))
}

fn estimate(load: Load, settings: &Settings) -> Estimate {
    with(load, settings, |inputs| Estimate::of(&inputs)).expect("valid settings")
}

fn with<T>(load: Load, settings: &Settings, ask: impl FnOnce(Inputs<'_>) -> T) -> T {
    ask(Inputs {
        load,
        settings,
        request: RequestLatency::default(),
        prices: &Prices::built_in(),
        provider: "s3",
        region: Some("us-east-1"),
        target_seconds: None,
        today: "2026-11-21".parse().expect("a day"),
    })
}

/// The total without the parts that are not monotone. More segments may share fewer commits. A cursor's
/// acknowledgements share swaps with its plans, so more news may need fewer swaps, and fewer polls find less regular
/// commits. (The bytes of polls are not monotone either.)
fn without_swaps(load: Load, settings: &Settings) -> f64 {
    let settings = Settings {
        path: NetworkPath::Endpoint,
        ..settings.clone()
    };
    let estimate = estimate(load, &settings);
    let lines = estimate.items.iter().flat_map(|group| &group.items);
    let swaps = [
        "commits",
        "commits refused (412)",
        "manifest read again",
        "cursor swaps",
        "pages read",
    ];
    let counted = lines.filter(|item| !swaps.contains(&item.name.as_str()));
    counted.map(|item| item.usd_per_month).sum()
}

#[test]
fn a_consumer_that_falls_behind_is_reported() {
    let falls_behind = |writers, rate: f64| {
        let settings = Settings {
            writers,
            ..Settings::default()
        };
        let estimate = estimate(Load::compressed(Rate(rate), 5.4), &settings);
        let found = estimate.writers.expect("there is a consumer");
        let warned = estimate
            .warnings
            .iter()
            .find(|text| text.contains("falls behind"));
        assert_eq!(
            warned.is_some(),
            !found.keep_up,
            "{found:?}, {:?}",
            estimate.warnings
        );
        let remedy = format!("Give --writers {},", found.needed);
        assert!(warned.is_none_or(|text| text.contains(&remedy)), "{warned:?}");
        warned.map(|_| found.needed)
    };
    assert_eq!(falls_behind(2, 10e6), None);
    let needed = falls_behind(2, 137.5e6).expect("two writers do not take 1.1 Gbps");
    assert!(falls_behind(needed - 1, 137.5e6).is_some());
    assert_eq!(falls_behind(needed, 137.5e6), None);

    let nobody = Settings {
        consumers: 0,
        ..Settings::default()
    };
    assert_eq!(
        estimate(Load::compressed(Rate(137.5e6), 5.4), &nobody).writers,
        None
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_lines_add_up_and_the_largest_is_the_dominant(load in load(), settings in peers()) {
        let estimate = estimate(load, &settings);
        let groups: f64 = estimate.items.iter().map(|group| group.usd_per_month).sum();
        let lines = estimate.items.iter().flat_map(|group| &group.items);
        prop_assert!(close(groups, estimate.total_usd_per_month));
        prop_assert!(close(lines.clone().map(|item| item.usd_per_month).sum(), groups));
        for item in lines.clone() {
            prop_assert!(item.quantity_per_month.is_finite() && item.quantity_per_month >= 0.0, "{item:?}");
            prop_assert!(close(item.usd_per_month, item.quantity_per_month * item.usd_per_unit));
        }
        let most = lines.map(|item| item.usd_per_month).fold(0.0, f64::max);
        let dominant = estimate.dominant.expect("a cost");
        prop_assert_eq!(dominant.usd_per_month, most);
        prop_assert!(close(estimate.usd_per_gib * load.gib_per_month(), groups));
        prop_assert!(close(estimate.usd_per_gib_raw * load.ratio, estimate.usd_per_gib));
        // The requests of the items match the summary.
        let month = |unit: &str| -> f64 {
            let of = estimate.items.iter().flat_map(|group| &group.items).filter(|item| item.unit == unit);
            of.map(|item| item.quantity_per_month).sum()
        };
        let requests = estimate.requests_per_second;
        for (unit, rate) in [("PUT", requests.put), ("GET", requests.get), ("LIST", requests.list), ("DELETE", requests.delete)] {
            prop_assert!(close(month(unit), rate * millpond_cost::MONTH_SECONDS), "{unit}");
        }
    }

    #[test]
    fn more_throughput_is_never_cheaper(load in load(), settings in settings(), factor in 1.0..20.0_f64) {
        let more = Load { compressed_bytes_per_second: load.compressed_bytes_per_second * factor, ..load };
        prop_assert!(without_swaps(load, &settings) <= without_swaps(more, &settings) * (1.0 + 1e-9));
        let usual = Settings { producers: settings.producers, shards: settings.shards, linger_seconds: settings.linger_seconds,
            segment_bytes: settings.segment_bytes, segment_raw_bytes: 512.0 * MIB, memory_bytes: 1e15, ..Settings::default() };
        let (less, more) = (estimate(load, &usual), estimate(more, &usual));
        prop_assert!(more.activity.commits <= more.activity.segments * (1.0 + 1e-9));
        if close(less.activity.segments / less.activity.commits, more.activity.segments / more.activity.commits) {
            prop_assert!(less.total_usd_per_month <= more.total_usd_per_month * (1.0 + 1e-9));
        }
    }

    #[test]
    fn more_producers_are_never_cheaper(load in load(), settings in settings(), more in 1..20_u32) {
        let larger = Settings { producers: settings.producers + more, ..settings.clone() };
        prop_assert!(without_swaps(load, &settings) <= without_swaps(load, &larger) * (1.0 + 1e-9));
    }

    #[test]
    fn more_producers_of_usual_settings_are_never_cheaper(power in 2.0..6.0_f64, producers in 1..40_u32, more in 1..20_u32) {
        let load = Load::compressed(Rate(10_f64.powf(power)), 5.0);
        let total = |producers| estimate(load, &Settings { producers, ..Settings::default() }).total_usd_per_month;
        prop_assert!(total(producers) <= total(producers + more) * (1.0 + 1e-9));
    }

    #[test]
    fn the_advice_is_the_minimum_of_the_sweeps(load in load(), settings in peers()) {
        let estimate = estimate(load, &settings);
        let knobs = [
            (Knob::Linger, settings.linger_seconds),
            (Knob::Segment, settings.segment_bytes),
            (Knob::Poll, settings.poll_seconds),
            (Knob::Ack, settings.ack_seconds),
        ];
        let mut best = f64::INFINITY;
        for (knob, now) in knobs {
            let axes = [Axis { knob, values: vec![now, 2.0 * now] }];
            let found = with(load, &settings, |inputs| sweep(&inputs, &axes)).expect("a sweep");
            best = best.min(found.points[found.cheapest.expect("a cheapest point")].usd_per_month.expect("a price"));
        }
        let then = estimate.advice.change.as_ref().map_or(estimate.total_usd_per_month, |change| change.then_usd_per_month);
        // Other knobs may save more; none of these saves noticeably more than the advice.
        prop_assert!(then <= best * 1.0101, "{then} and {best}: {:?}", estimate.advice);
        // Gateways are there for availability, too.
        let all = estimate.advice.change.iter().chain(&estimate.advice.others);
        prop_assert!(all.clone().all(|change| change.knob != "--producers"), "{:?}", estimate.advice);
        if let Some(change) = &estimate.advice.change {
            prop_assert!(close(change.saves_usd_per_month, estimate.total_usd_per_month - change.then_usd_per_month));
            prop_assert!(estimate.advice.others.iter().all(|other| other.saves_usd_per_month <= change.saves_usd_per_month));
        }
    }

    #[test]
    fn the_cheapest_point_of_a_sweep_is_its_minimum_and_an_estimate(load in load(), settings in settings()) {
        let axes = [
            Axis { knob: Knob::Linger, values: vec![0.25, 1.0, 5.0] },
            Axis { knob: Knob::Segment, values: vec![MIB, 16.0 * MIB] },
        ];
        let found = with(load, &settings, |inputs| sweep(&inputs, &axes)).expect("a sweep");
        prop_assert_eq!(found.points.len(), 6);
        let cheapest = &found.points[found.cheapest.expect("a cheapest point")];
        for point in &found.points {
            prop_assert!(cheapest.usd_per_month.expect("a price") <= point.usd_per_month.expect("a price"));
            let there = Settings { linger_seconds: point.values[0], segment_bytes: point.values[1], ..settings.clone() };
            prop_assert_eq!(point.usd_per_month, Some(estimate(load, &there).total_usd_per_month));
        }
    }

    #[test]
    fn the_json_is_the_estimate(load in load(), settings in peers()) {
        let estimate = estimate(load, &settings);
        let text = serde_json::to_string(&estimate).expect("JSON");
        prop_assert_eq!(serde_json::from_str::<Estimate>(&text).expect("an estimate"), estimate);
    }
}

/// The published load with our settings: our cost next to the published $180.
#[test]
fn at_the_published_load_we_take_fewer_puts_for_less() {
    let estimate = estimate(
        Load::compressed("1.1Gbps".parse().expect("a rate"), 5.4),
        &Settings::default(),
    );
    let Activity {
        segments,
        commits,
        cursor_swaps,
        ..
    } = estimate.activity;
    // They report 12.5. Six segments share a commit and a plan.
    assert!((segments - 8.196).abs() < 0.001, "{segments}");
    assert!((segments / commits - 6.0).abs() < 0.001, "{commits}");
    assert!((cursor_swaps / commits - 1.0).abs() < 0.001, "{cursor_swaps}");
    assert!(estimate.requests_per_second.put < 11.0);
    assert!(
        (160.0..175.0).contains(&estimate.total_usd_per_month),
        "{}",
        estimate.total_usd_per_month
    );
    let opendata = estimate
        .comparators
        .iter()
        .find(|c| c.name == "OpenData Buffer")
        .expect("it is there");
    assert!((opendata.usd_per_month - 183.7).abs() < 0.1);
}

#[test]
fn the_known_costs_of_a_wrong_network_path() {
    let load = Load::compressed("1.1Gbps".parse().expect("a rate"), 4.0);
    let line = |settings: &Settings, name: &str| {
        let estimate = estimate(load, settings);
        let mut lines = estimate.items.into_iter().flat_map(|group| group.items);
        lines
            .find(|item| item.name == name)
            .map(|item| item.usd_per_month)
    };
    let spread = Settings {
        zones: 3,
        ..Settings::default()
    };
    let across = line(&spread, "clients to gateways across zones").expect("a line");
    assert!((across - 4_487.0).abs() < 1.0, "{across}");
    let aware = Settings {
        zone_aware: true,
        producers: 3,
        ..spread
    };
    assert_eq!(line(&aware, "clients to gateways across zones"), None);
    let nat = Settings {
        path: NetworkPath::Nat,
        ..Settings::default()
    };
    let through = line(&nat, "from the bucket through NAT").expect("a line");
    assert!((15_144.0..15_300.0).contains(&through), "{through}");
    let advice = estimate(load, &nat).advice.change.expect("advice");
    assert_eq!(
        (advice.knob.as_str(), advice.to.as_str()),
        ("--network", "endpoint")
    );
    let unknown = with(load, &nat, |inputs| {
        Estimate::of(&Inputs {
            provider: "gcs",
            region: None,
            ..inputs
        })
    });
    assert!(matches!(unknown, Err(CostError::Network { .. })), "{unknown:?}");
}

/// A light load for each of many gateways.
fn many(producers: u32, peers: bool) -> (Load, Settings) {
    let settings = Settings {
        producers,
        peers,
        ..Settings::default()
    };
    (Load::raw(Rate(f64::from(producers) * 42_800.0), 5.4), settings)
}

#[test]
fn gateways_that_share_commits_cost_what_one_does() {
    for producers in [2, 16, 48, 1_000] {
        let (load, settings) = many(producers, true);
        let together = estimate(load, &settings);
        let lone = estimate(
            load,
            &Settings {
                producers: 1,
                peers: false,
                ..settings
            },
        );
        // The leader tells consumers of commits: they poll every 5 s instead of every 250 ms.
        let usd = |gets: f64| gets * 2_628_000.0 * 0.0004 / 1_000.0;
        let saved = usd(lone.activity.polls - together.activity.polls);
        assert!((3.0..4.0).contains(&saved), "{saved}");
        // Each looks for new shards.
        let looks = usd(together.activity.buffer_looks - lone.activity.buffer_looks);
        assert!(
            (looks - 0.02 * f64::from(producers - 1)).abs() < 0.01 * looks,
            "{looks}"
        );
        assert!(
            close(
                together.total_usd_per_month + saved - looks,
                lone.total_usd_per_month
            ),
            "{producers}"
        );
        // Their blocks are sent a little before the leader's segment closes. Nobody waits for a poll.
        let longer = together.latency.p99_seconds - lone.latency.p99_seconds;
        assert!((longer - 0.1 + 0.285).abs() < 1e-9, "{longer}");
    }
}

#[test]
fn large_segments_are_uploaded_by_each_and_committed_by_one() {
    let (load, small) = many(48, true);
    let large = estimate(
        load,
        &Settings {
            forward_below_bytes: 0.0,
            ..small
        },
    );
    let activity = large.activity;
    assert!((activity.segments - 48.0).abs() < 1e-9);
    // The followers' segments share commits that follow each other without a pause; 5.0 were counted in virtual time.
    assert!((4.9..5.4).contains(&activity.commits), "{}", activity.commits);
    assert!(activity.swaps_refused < 0.01);
    let advice = large.advice;
    let knobs: Vec<&str> = advice
        .change
        .iter()
        .chain(&advice.others)
        .map(|change| &*change.knob)
        .collect();
    assert_eq!(knobs.first(), Some(&"--forward-below"), "{knobs:?}");
    let alone = estimate(load, &many(48, false).1);
    assert!(large.total_usd_per_month < alone.total_usd_per_month);
}

#[test]
fn blocks_for_a_leader_in_another_zone_cost_traffic() {
    let (load, settings) = many(48, true);
    let zones = Settings {
        zones: 3,
        zone_aware: true,
        ..settings
    };
    let activity = estimate(load, &zones).activity;
    assert!(close(
        activity.bytes_to_leaders,
        load.compressed_bytes_per_second * 2.0 / 3.0
    ));
    let uploaded = Settings {
        forward_below_bytes: 0.0,
        ..zones
    };
    assert_eq!(estimate(load, &uploaded).activity.bytes_to_leaders, 0.0);
}

#[test]
fn many_gateways_are_advised_to_share_commits() {
    let (load, settings) = many(48, false);
    let estimate_of_each = estimate(load, &settings);
    let change = estimate_of_each.advice.change.expect("advice");
    assert_eq!(change.knob, "--peers");
    assert!(change.then_usd_per_month < 0.1 * estimate_of_each.total_usd_per_month);
    assert!(
        estimate_of_each
            .warnings
            .iter()
            .any(|text| text.contains("--peers"))
    );
    let (load, settings) = many(48, true);
    let warnings = estimate(load, &settings).warnings;
    assert!(
        !warnings.iter().any(|text| text.contains("commits a second")),
        "{warnings:?}"
    );
}

#[test]
fn advice_keeps_a_latency_target_and_warns_of_old_prices() {
    let load = Load::compressed(Rate(1e6), 5.0);
    let ask = |target_seconds| {
        let settings = Settings::default();
        with(load, &settings, |inputs| {
            Estimate::of(&Inputs {
                target_seconds,
                ..inputs
            })
        })
        .expect("an estimate")
    };
    assert_eq!(ask(None).advice.change.expect("advice").knob, "--linger");
    let kept = ask(Some(2.0)).advice;
    assert!(
        kept.change
            .iter()
            .chain(&kept.others)
            .all(|change| change.then_latency.p99_seconds <= 2.0)
    );
    assert!(kept.change.is_none_or(|change| change.knob != "--linger"));
    assert!(
        ask(None)
            .warnings
            .iter()
            .any(|w| w.contains("s3 in us-east-1 are of 2025-10-28, 389 days ago"))
    );
}

#[test]
fn a_live_buffer_is_priced_by_what_was_counted() {
    let observed = Observed {
        seconds: 600.0,
        segments: 1_200,
        bytes: 1_200 << 20,
        pages: 6,
        bytes_kept: 5 << 30,
        shards: 1,
        producers: 2,
        peers: false,
        consumers: 1,
        segments_in_log: 300,
        commits_in_log: 150,
        parts_in_log: 600,
        raw_bytes_in_log: 3_000 << 20,
        bytes_in_log: 300 << 20,
    };
    let settings = Settings::default();
    let ask = |observed: &Observed| {
        let load = Load::compressed(Rate(1.0), 5.0);
        with(load, &settings, |inputs| Estimate::of_live(&inputs, observed))
    };
    let estimate = ask(&observed).expect("an estimate");
    let activity = estimate.activity;
    assert_eq!(
        (activity.segments, activity.commits, activity.part_reads),
        (2.0, 1.0, 4.0)
    );
    assert_eq!(
        (activity.pages, activity.bytes_stored),
        (0.01, f64::from(5 << 10) * MIB)
    );
    assert_eq!(estimate.load.ratio, 10.0);
    assert_eq!((estimate.settings.producers, estimate.settings.streams), (2, 2));
    let json = serde_json::to_string(&estimate.items).expect("JSON");
    assert!(json.contains("\"basis\":\"counted\"") && json.contains("\"basis\":\"estimated\""));
    assert!(!json.contains("predicted"));
    let nothing = ask(&Observed {
        segments: 0,
        ..observed
    })
    .expect_err("an empty observation");
    assert!(nothing.to_string().contains("longer --since"));
}

#[test]
fn a_sweep_says_what_is_refused_and_is_drawn() {
    let load = Load::compressed(Rate(20e6), 5.0);
    let settings = Settings::default();
    let ask = |axes: &[Axis]| with(load, &settings, |inputs| sweep(&inputs, axes));
    let axes = [
        Axis {
            knob: Knob::Linger,
            values: vec![0.1, 0.25, 0.5, 1.0, 2.0, 5.0],
        },
        Axis {
            knob: Knob::Segment,
            values: vec![MIB, 4.0 * MIB, 16.0 * MIB, 400.0 * MIB],
        },
    ];
    let found = ask(&axes).expect("a sweep");
    let refused: Vec<_> = found
        .points
        .iter()
        .filter_map(|point| point.refused.as_ref())
        .collect();
    assert_eq!(refused.len(), 6);
    assert!(refused[0].contains("--memory-limit"), "{}", refused[0]);
    let svg = chart(&found, "20 MB/s").expect("a chart");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for text in ["20 MB/s", "segment 16 MiB", "linger 250 ms", "US dollars a month"] {
        assert!(svg.contains(text), "{text}");
    }
    assert!(!svg.contains("segment 400 MiB") && !svg.contains("NaN"));

    let error = |axes: &[Axis]| ask(axes).unwrap_err().to_string();
    assert!(error(&[]).contains("--sweep linger="));
    assert!(error(&[axes[0].clone(), axes[0].clone()]).contains("linger is given twice"));
    let many = Axis {
        knob: Knob::Poll,
        values: vec![1.0; 100],
    };
    assert!(error(&[axes[0].clone(), axes[1].clone(), many]).contains("combinations"));
    let impossible = ask(&axes[1..]).map(|mut found| {
        found.points.retain(|point| point.refused.is_some());
        chart(&found, "")
    });
    assert!(impossible.expect("a sweep").is_err());
}
