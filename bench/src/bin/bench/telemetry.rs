//! The cost of Millpond's own metrics and traces: CPU time of gateway and consumer with and without them.

use std::path::Path;

use anyhow::ensure;
use serde::Serialize;

use crate::cost::{self, Run};
use crate::report::Spread;
use crate::stack::Settings;

/// Results of all repeats with one kind of telemetry. Times are CPU-seconds per million records.
#[derive(Debug, Serialize)]
pub(crate) struct Telemetry {
    /// The processes push this to another gateway.
    pub(crate) pushed: &'static str,
    pub(crate) records: u64,
    pub(crate) gateway: Spread,
    pub(crate) consumer: Spread,
    /// The sum of both, relative to the run of the same repeat that pushed nothing.
    pub(crate) relative: Spread,
    /// Spans and metric points of a run.
    pub(crate) spans: Spread,
    pub(crate) points: Spread,
    /// Peak memory.
    pub(crate) gateway_mib: Spread,
    pub(crate) consumer_mib: Spread,
}

const PUSHED: [(&str, Option<&str>); 4] = [
    ("nothing", None),
    ("metrics once a second", Some("0")),
    ("and traces of 1 %", Some("0.01")),
    ("and traces of 100 %", Some("1")),
];

/// Alternates repeats of the kinds.
pub(crate) async fn measure(
    bodies: Option<&Path>,
    records: u64,
    repeats: u32,
) -> anyhow::Result<Vec<Telemetry>> {
    let mut runs = PUSHED.map(|_| Vec::new());
    for repeat in 1..=repeats {
        for ((pushed, traces), runs) in PUSHED.iter().zip(&mut runs) {
            let settings = Settings {
                traces: *traces,
                ..Settings::PLAIN
            };
            let run = cost::run(bodies, records, settings).await?;
            let [spans, points] = run.told;
            println!(
                "telemetry, {pushed}, {repeat} of {repeats}: gateway {:.2} s per million, consumer {:.2}, {spans} spans, {points} points",
                run.gateway, run.consumer
            );
            ensure!(
                (points > 0.0) == traces.is_some(),
                "{points} metric points came from processes that push {pushed}"
            );
            runs.push(run);
        }
    }
    let [nothing, ..] = &runs;
    let kinds = PUSHED.iter().zip(&runs);
    Ok(kinds
        .map(|((pushed, _), runs)| {
            let spread = |figure: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(figure).collect());
            let both = |run: &Run| run.gateway + run.consumer;
            let pairs = runs.iter().zip(nothing);
            Telemetry {
                pushed,
                records,
                gateway: spread(&|run| run.gateway),
                consumer: spread(&|run| run.consumer),
                relative: Spread::of(pairs.map(|(run, without)| both(run) / both(without)).collect()),
                spans: spread(&|run| run.told[0]),
                points: spread(&|run| run.told[1]),
                gateway_mib: spread(&|run| run.memory.gateway_mib),
                consumer_mib: spread(&|run| run.memory.consumer_mib),
            }
        })
        .collect())
}
