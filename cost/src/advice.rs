//! Savings from single settings, each changed by one step. The number of gateways and consumers is never lowered: they are there for
//! availability as much as for the load.

use crate::estimate::Inputs;
use crate::settings::{FORWARD_BELOW_MAX, bytes, time};
use crate::sweep::Knob;
use crate::{Latency, NetworkPath, Settings};
use serde::{Deserialize, Serialize};

/// One step of a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The name of its flag.
    pub knob: String,
    /// Its current value.
    pub from: String,
    /// Its next value.
    pub to: String,
    /// The saving.
    pub saves_usd_per_month: f64,
    /// The new total.
    pub then_usd_per_month: f64,
    /// The new latency.
    pub then_latency: Latency,
}

/// Ways to cut the cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The step with the largest saving; `None` if no step saves at least 1 %.
    pub change: Option<Change>,
    /// The other steps with a saving, largest first.
    pub others: Vec<Change>,
}

/// The minimum saving, as a share of the total.
const WORTH: f64 = 0.01;

impl Advice {
    pub(crate) fn none() -> Advice {
        Advice {
            change: None,
            others: Vec::new(),
        }
    }
}

/// Tries the next step of each knob. Steps that are invalid or break the latency target are not suggested.
pub(crate) fn advise(inputs: &Inputs<'_>, total: f64) -> Advice {
    let mut changes: Vec<Change> = steps(inputs.settings)
        .into_iter()
        .filter_map(|step| {
            let priced = inputs.priced(&step.settings).ok()?;
            let kept = inputs
                .target_seconds
                .is_none_or(|target| priced.latency.p99_seconds <= target);
            let saves = total - priced.total;
            (kept && saves >= WORTH * total && saves > 0.0).then(|| Change {
                knob: step.knob.to_owned(),
                from: step.from,
                to: step.to,
                saves_usd_per_month: saves,
                then_usd_per_month: priced.total,
                then_latency: priced.latency,
            })
        })
        .collect();
    changes.sort_by(|a, b| b.saves_usd_per_month.total_cmp(&a.saves_usd_per_month));
    let others = if changes.is_empty() {
        Vec::new()
    } else {
        changes.split_off(1)
    };
    Advice {
        change: changes.pop(),
        others,
    }
}

struct Step {
    knob: &'static str,
    from: String,
    to: String,
    settings: Settings,
}

fn steps(settings: &Settings) -> Vec<Step> {
    let step = |knob, from: String, to: String, change: &dyn Fn(&mut Settings)| {
        let mut settings = settings.clone();
        change(&mut settings);
        Step {
            knob,
            from,
            to,
            settings,
        }
    };
    let mut steps: Vec<Step> = Knob::DOUBLED
        .into_iter()
        .map(|knob| {
            let now = knob.value(settings);
            step(knob.flag(), knob.show(now), knob.show(2.0 * now), &|s| {
                knob.set(s, 2.0 * now);
            })
        })
        .collect();
    if settings.shards > 1 {
        let fewer = settings.shards.div_ceil(2);
        steps.push(step(
            "--shards",
            settings.shards.to_string(),
            fewer.to_string(),
            &|s| s.shards = fewer,
        ));
    }
    if settings.producers > settings.shards && !settings.peers {
        let (from, to) = ("each gateway commits", "shared commits");
        steps.push(step("--peers", from.to_owned(), to.to_owned(), &|s| {
            s.peers = true;
        }));
        // Producers that share a shard waste swaps on each other's commits.
        let more = settings.shards.saturating_mul(2).min(settings.producers);
        steps.push(step(
            "--shards",
            settings.shards.to_string(),
            more.to_string(),
            &|s| s.shards = more,
        ));
    }
    if settings.peers && settings.forward_below_bytes < FORWARD_BELOW_MAX {
        let (from, to) = (bytes(settings.forward_below_bytes), bytes(FORWARD_BELOW_MAX));
        steps.push(step("--forward-below", from, to, &|s| {
            s.forward_below_bytes = FORWARD_BELOW_MAX;
        }));
    }
    if settings.zones > 1 && !settings.zone_aware {
        let producers = settings.producers.max(settings.zones);
        let (from, to) = ("any gateway", format!("--zone-aware with {producers} gateways"));
        steps.push(step("--zone-aware", from.to_owned(), to, &|s| {
            s.zone_aware = true;
            s.producers = producers;
        }));
    }
    if settings.path == NetworkPath::Nat {
        let (from, to) = ("nat".to_owned(), "endpoint".to_owned());
        steps.push(step("--network", from, to, &|s| s.path = NetworkPath::Endpoint));
    }
    steps
}

impl Knob {
    /// Knobs whose larger values are cheaper.
    const DOUBLED: [Knob; 4] = [Knob::Linger, Knob::Segment, Knob::Poll, Knob::Ack];

    /// Formats a value for people.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Knob::Segment => bytes(value),
            Knob::Producers => format!("{value}"),
            Knob::Linger | Knob::Poll | Knob::Ack => time(value),
        }
    }
}
