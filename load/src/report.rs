//! The report of a run, for people (`Display`) and for programs (serde). The JSON has unrounded numbers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Totals of sent and acknowledged records.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The first part of the records' ids.
    pub run: String,
    /// The source of the bodies.
    pub bodies: String,
    /// Records sent at least once.
    pub records_sent: u64,
    /// Records that the server acknowledged.
    pub records_acknowledged: u64,
    /// Records sent but not acknowledged: they may or may not have arrived.
    pub unacknowledged: u64,
    /// Requests, each counted once.
    pub requests: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Bytes of the requests before compression, each counted once.
    pub raw_bytes: u64,
    /// From the first request to the last acknowledgement.
    pub seconds: f64,
    /// From a request's first attempt to its acknowledgement.
    pub latency_ms: Latency,
    /// Failed attempts by gRPC code or connection error.
    pub errors: BTreeMap<String, u64>,
}

/// Percentiles in milliseconds; all zero if nothing was acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// From microseconds in any order.
    pub(crate) fn of(mut us: Vec<u64>) -> Latency {
        us.sort_unstable();
        let Some(last) = us.len().checked_sub(1) else {
            return Latency::default();
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 µs")]
        let at = |per_mille: usize| us[(last * per_mille).div_ceil(1000)] as f64 / 1000.0;
        Latency {
            p50: at(500),
            p90: at(900),
            p99: at(990),
            p999: at(999),
            max: at(1000),
        }
    }
}

impl fmt::Display for Report {
    #[expect(clippy::cast_precision_loss, reason = "for reading")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: u64| count as f64 / self.seconds.max(1e-9);
        writeln!(f, "run             {} ({})", self.run, self.bodies)?;
        writeln!(
            f,
            "records         {} sent, {} acknowledged, {} not",
            self.records_sent, self.records_acknowledged, self.unacknowledged
        )?;
        writeln!(
            f,
            "requests        {} and {} retries",
            self.requests, self.retries
        )?;
        writeln!(
            f,
            "throughput      {:.0} records/s, {:.1} MB/s raw, over {:.2} s",
            per_second(self.records_acknowledged),
            per_second(self.raw_bytes) / 1e6,
            self.seconds
        )?;
        let Latency {
            p50,
            p90,
            p99,
            p999,
            max,
        } = self.latency_ms;
        if self.records_acknowledged == 0 {
            write!(f, "acknowledged in –")?;
        } else {
            write!(
                f,
                "acknowledged in p50 {p50:.0} ms, p90 {p90:.0}, p99 {p99:.0}, p99.9 {p999:.0}, max {max:.0}"
            )?;
        }
        for (code, count) in &self.errors {
            write!(f, "\nerrors          {count} × {code}")?;
        }
        Ok(())
    }
}
