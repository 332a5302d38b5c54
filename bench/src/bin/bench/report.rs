//! The results: a table for people, JSON for programs, and the comparison with the bounds.

use millpond_runtime::{Environment as _, SystemEnvironment};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::backlog::{Backlog, Segments};
use crate::cost::Cost;
use crate::gateways::{Gateways, Load};
use crate::latency::Latency;
use crate::levels::Level;
use crate::memory::Memory;
use crate::telemetry::Telemetry;

/// Maximum ratio of the gateway's CPU time to zstd-1's.
const GATEWAY_OVER_ZSTD1_MAX: f64 = 3.0;
/// Minimum records per second of one core for the consumer.
const CONSUMER_RECORDS_PER_CORE_SECOND_MIN: f64 = 250_000.0;
/// Maximum ratio of peak memory to the limit.
const MEMORY_OVER_LIMIT_MAX: f64 = 1.25;
/// With so many gateways, linger and a light load: maximum p99 of a request in milliseconds, and dollars per month.
const GATEWAYS: [(usize, &str, f64, f64); 2] = [(48, "1s", 2_000.0, 60.0), (16, "250ms", 900.0, 150.0)];

/// Maximum relative difference from the cost model under a light load.
const MODEL_OFF_MAX: f64 = 0.1;

/// A result of several repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Summarizes at least one value.
    pub(crate) fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Spread {
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            min: at(0),
            max: at(last),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median >= 100.0 { 0 } else { 2 };
        let Spread { median, min, max } = self;
        f.pad(&format!("{median:.digits$} ({min:.digits$}..{max:.digits$})"))
    }
}

/// A required bound.
#[derive(Debug, Serialize)]
struct Floor {
    what: String,
    found: f64,
    bound: f64,
    held: bool,
}

/// All measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    at: String,
    cores: usize,
    processor: String,
    pub(crate) cost: Vec<Cost>,
    pub(crate) latency: Vec<Latency>,
    pub(crate) levels: Vec<Level>,
    pub(crate) memory: Option<Memory>,
    pub(crate) gateways: Vec<Gateways>,
    pub(crate) backlog: Vec<Backlog>,
    pub(crate) telemetry: Vec<Telemetry>,
    floors: Vec<Floor>,
}

impl Results {
    pub(crate) fn begin() -> Results {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": "));
        Results {
            at: humantime::format_rfc3339_seconds(SystemEnvironment.system_time()).to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: model.map_or_else(String::new, |(_, model)| model.to_owned()),
            cost: Vec::new(),
            latency: Vec::new(),
            levels: Vec::new(),
            memory: None,
            gateways: Vec::new(),
            backlog: Vec::new(),
            telemetry: Vec::new(),
            floors: Vec::new(),
        }
    }

    /// Compares the measurements with the bounds. Exactly-once delivery is a precondition of every measurement.
    pub(crate) fn judge(&mut self) {
        let at_most = |what, found, bound| Floor {
            what,
            found,
            bound,
            held: found <= bound,
        };
        let mut floors = Vec::new();
        for cost in &self.cost {
            floors.push(at_most(
                format!("gateway's CPU over zstd-1's, indexes {}", cost.indexes),
                cost.gateway_over_zstd1.median,
                GATEWAY_OVER_ZSTD1_MAX,
            ));
            let found = cost.consumer_records_per_core_second.median;
            floors.push(Floor {
                what: format!("consumer's records per core-second, indexes {}", cost.indexes),
                found,
                bound: CONSUMER_RECORDS_PER_CORE_SECOND_MIN,
                held: found >= CONSUMER_RECORDS_PER_CORE_SECOND_MIN,
            });
        }
        if let Some(memory) = &self.memory {
            let over = |peak: u64, limit: u64| peak as f64 / limit as f64;
            floors.push(at_most(
                "gateway's peak memory over its limit".to_owned(),
                over(memory.gateway, memory.gateway_limit),
                MEMORY_OVER_LIMIT_MAX,
            ));
            floors.push(at_most(
                "consumer's peak memory over its limit".to_owned(),
                over(memory.consumer, memory.consumer_limit),
                MEMORY_OVER_LIMIT_MAX,
            ));
        }
        for row in self.backlog.iter().filter(|row| row.size == Segments::Small) {
            floors.push(at_most(
                format!("INSERTs that ClickHouse delayed, {} writers", row.writers),
                row.throttled_inserts as f64,
                0.0,
            ));
        }
        for (number, linger, p99_ms, usd) in GATEWAYS {
            let found = self
                .gateways
                .iter()
                .find(|found| (found.gateways, found.linger, found.load) == (number, linger, Load::Light));
            let Some(found) = found else { continue };
            let what = |figure| format!("{number} gateways, linger {linger}: {figure}");
            floors.push(at_most(
                what("p99 of a request, ms"),
                found.request_p99_ms,
                p99_ms,
            ));
            floors.push(at_most(what("dollars per month"), found.usd_per_month, usd));
        }
        let shared = self.gateways.iter().filter(|found| found.shared_commits);
        for found in shared.filter(|found| found.load == Load::Light) {
            let off = |found: f64, expected: f64| (found / expected - 1.0).abs();
            let what = |figure| {
                let Gateways { gateways, linger, .. } = found;
                format!("{gateways} gateways, linger {linger}: {figure} beside the cost model's, relative")
            };
            let puts = found.gateway.put + found.consumer.put;
            floors.push(at_most(
                what("PUTs"),
                off(puts, found.expected.put),
                MODEL_OFF_MAX,
            ));
            floors.push(at_most(
                what("dollars"),
                off(found.usd_per_month, found.expected.usd_per_month()),
                MODEL_OFF_MAX,
            ));
        }
        self.floors = floors;
    }

    pub(crate) fn held(&self) -> bool {
        self.floors.iter().all(|floor| floor.held)
    }

    /// Writes the JSON to a new file in this folder.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let file = folder.join(format!("{}.json", self.at.replace(':', "")));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, serde_json::to_string_pretty(self)? + "\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} cores, {}", self.at, self.cores, self.processor)?;
        self.show_cost(f)?;
        self.show_latency(f)?;
        for level in &self.levels {
            write!(f, "\n{level}")?;
        }
        self.show_memory(f)?;
        for gateways in &self.gateways {
            write!(f, "\n{gateways}")?;
        }
        self.show_backlog(f)?;
        self.show_telemetry(f)?;
        writeln!(f, "\nEvery record arrived exactly once.")?;
        for floor in &self.floors {
            let verdict = if floor.held { "held  " } else { "MISSED" };
            write!(
                f,
                "\n{verdict}  {}: {:.2}, the bound is {}",
                floor.what, floor.found, floor.bound
            )?;
        }
        Ok(())
    }
}

impl Results {
    fn show_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.cost.first() else {
            return Ok(());
        };
        writeln!(
            f,
            "{} records per repeat, 1,000 per request, {:.0} raw bytes per record and {:.0} stored, bodies: {}",
            first.records, first.raw_bytes_per_record, first.stored_bytes_per_record, first.bodies
        )?;
        writeln!(f, "\nCPU-seconds per million records: median (min..max)")?;
        write!(f, "{:<34}", "indexes of the table")?;
        for cost in &self.cost {
            write!(f, "{:<28}", cost.indexes)?;
        }
        type Figure = fn(&Cost) -> Spread;
        let rows: [(&str, Figure); 12] = [
            ("zstd-1 alone, the same bytes", |cost| cost.zstd1),
            ("gateway", |cost| cost.gateway),
            ("gateway over zstd-1", |cost| cost.gateway_over_zstd1),
            ("zstd decompression alone", |cost| cost.zstd_decompress),
            ("consumer", |cost| cost.consumer),
            ("consumer, records per core-second", |cost| {
                cost.consumer_records_per_core_second
            }),
            ("engine", |cost| cost.engine),
            ("engine, merges done", |cost| cost.engine_merged),
            ("load generator", |cost| cost.load),
            ("records/s end to end", |cost| cost.records_per_second),
            ("gateway's peak memory, MiB", |cost| cost.gateway_mib),
            ("consumer's peak memory, MiB", |cost| cost.consumer_mib),
        ];
        for (name, figure) in rows {
            write!(f, "\n{name:<34}")?;
            for cost in &self.cost {
                write!(f, "{:<28}", figure(cost))?;
            }
        }
        writeln!(f)
    }

    fn show_latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for latency in &self.latency {
            writeln!(
                f,
                "\nlatency at {} records/s over a store as slow as S3, linger {}: p50 {:.0} ms, p90 {:.0}, p99 {:.0}, p99.9 {:.0} ({} messages)",
                latency.rate,
                latency.linger,
                latency.p50_ms,
                latency.p90_ms,
                latency.p99_ms,
                latency.p999_ms,
                latency.messages
            )?;
            for (name, requests) in [("gateway", latency.gateway), ("consumer", latency.consumer)] {
                writeln!(
                    f,
                    "  {name:<9} {:.2} PUT/s, {:.2} GET/s, {:.2} LIST/s: ${:.2} a month",
                    requests.put,
                    requests.get,
                    requests.list,
                    requests.usd_per_month()
                )?;
            }
            writeln!(
                f,
                "  both      ${:.2} per month for requests, us-east-1; {}",
                latency.usd_per_month, latency.memory
            )?;
        }
        Ok(())
    }

    fn show_backlog(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.backlog.first() else {
            return Ok(());
        };
        writeln!(
            f,
            "\na backlog of {} records, drained by a consumer that starts: median (min..max)",
            first.records
        )?;
        let columns = [
            "records/s",
            "consumer, s/M",
            "engine, s/M",
            "parts",
            "throttled",
            "consumer's MiB",
        ];
        write!(f, "{:<12}{:<9}", "segments", "writers")?;
        for column in columns {
            write!(f, "{column:<26}")?;
        }
        for row in &self.backlog {
            write!(f, "\n{:<12.0}{:<9}", row.segments, row.writers)?;
            write!(
                f,
                "{:<26}{:<26}{:<26}",
                row.records_per_second, row.consumer, row.engine
            )?;
            let (parts, memory) = (row.parts, row.consumer_memory >> 20);
            write!(f, "{parts:<26}{:<26}{memory}", row.throttled_inserts)?;
        }
        writeln!(f)
    }

    fn show_telemetry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.telemetry.first() else {
            return Ok(());
        };
        writeln!(
            f,
            "\ntelemetry of Millpond itself, {} records: CPU-seconds per million, median (min..max)",
            first.records
        )?;
        let columns = [
            "gateway",
            "consumer",
            "both, relative",
            "spans",
            "points",
            "gateway's MiB",
            "consumer's MiB",
        ];
        write!(f, "{:<26}", "pushed")?;
        for column in columns {
            write!(f, "{column:<26}")?;
        }
        for row in &self.telemetry {
            write!(f, "\n{:<26}", row.pushed)?;
            let memory = [row.gateway_mib, row.consumer_mib];
            for figure in [row.gateway, row.consumer, row.relative, row.spans, row.points]
                .into_iter()
                .chain(memory)
            {
                write!(f, "{figure:<26}")?;
            }
        }
        writeln!(f)
    }

    fn show_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(memory) = &self.memory else { return Ok(()) };
        writeln!(
            f,
            "\npeak memory under full load with ClickHouse stopped for {:.0} s ({} records): gateway {} of {} MiB, consumer {} of {} MiB",
            memory.stall_seconds,
            memory.records,
            memory.gateway >> 20,
            memory.gateway_limit >> 20,
            memory.consumer >> 20,
            memory.consumer_limit >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_the_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(vec![1.0, 2.0]).median, 1.5);
        assert_eq!(spread.to_string(), "2.00 (1.00..3.00)");
    }

    #[test]
    fn a_missed_floor_fails_the_report() {
        let mut results = Results::begin();
        results.memory = Some(Memory {
            records: 1,
            retries: 0,
            stall_seconds: 15.0,
            gateway: 160 << 20,
            gateway_limit: 128 << 20,
            consumer: 1,
            consumer_limit: 1,
        });
        results.judge();
        assert!(results.held());
        if let Some(memory) = &mut results.memory {
            memory.gateway += 1;
        }
        results.judge();
        assert!(!results.held());
        assert!(results.to_string().contains("MISSED  gateway's peak memory"));
    }
}
