//! Runs fleets of gateways in virtual time, and prints what they cost and how long their clients wait.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use millpond_simulation::fleet::{Fleet, Layout, Trouble};

/// Fleets of gateways in virtual time: requests, dollars, latencies, dead leaders and zones that are cut off.
#[derive(Parser)]
struct Arguments {
    /// Run only fleets whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// Gateways of the large fleets.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    gateways: usize,

    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Write the reports as JSON, one per line, to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn fleets(gateways: usize) -> Vec<Fleet> {
    let mut fleets = vec![
        Fleet::light(48, Duration::from_secs(1)),
        Fleet::light(16, Duration::from_millis(250)),
        Fleet::light(250, Duration::from_secs(1)),
        Fleet::full(1, Duration::from_secs(1)),
        Fleet::full(16, Duration::from_secs(1)),
        Fleet::full(64, Duration::from_secs(1)),
    ];
    for layout in [Layout::AnyShard, Layout::ShardsOfTheZone] {
        for trouble in [
            Trouble::Nothing,
            Trouble::DeadLeaders(Duration::from_secs(60)),
            Trouble::PeersCutOff,
            Trouble::StoreCutOff,
        ] {
            fleets.push(Fleet::large(gateways, layout, trouble));
        }
    }
    fleets
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let (mut lines, mut is_exact) = (String::new(), true);
    for mut fleet in fleets(arguments.gateways) {
        if !fleet.name.contains(&arguments.only) {
            continue;
        }
        fleet.seed = arguments.seed;
        let report = fleet.run();
        println!("{report}");
        is_exact &= report.is_exact();
        lines.push_str(&serde_json::to_string(&report)?);
        lines.push('\n');
    }
    if let Some(path) = arguments.json {
        std::fs::write(path, lines)?;
    }
    Ok(if is_exact {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
