//! How much comes in: as people write it, and as the model takes it.

use crate::CostError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Bytes a second, written as `50GB/day`, `20MB/s`, `30MiB/s`, `1.1Gbps`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(
    /// Bytes a second.
    pub f64,
);

impl FromStr for Rate {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Rate, CostError> {
        parse(text)
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .map(Rate)
            .ok_or_else(|| CostError::Rate(text.to_owned()))
    }
}

/// Longest first, so that `MiB` is not read as something with `B` at its end.
const BYTES: [(&str, f64); 10] = [
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("pb", 1e15),
    ("b", 1.0),
];
const BITS: [(&str, f64); 4] = [("kbps", 1e3), ("mbps", 1e6), ("gbps", 1e9), ("tbps", 1e12)];
const TIMES: [(&str, f64); 11] = [
    ("s", 1.0),
    ("sec", 1.0),
    ("second", 1.0),
    ("min", 60.0),
    ("minute", 60.0),
    ("h", 3_600.0),
    ("hour", 3_600.0),
    ("d", 86_400.0),
    ("day", 86_400.0),
    ("mo", crate::MONTH_SECONDS),
    ("month", crate::MONTH_SECONDS),
];

fn parse(text: &str) -> Option<f64> {
    let text: String = text.split_whitespace().collect::<String>().to_lowercase();
    let number_ends = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(number_ends);
    let number: f64 = number.parse().ok()?;
    let of =
        |table: &[(&str, f64)], unit: &str| table.iter().find(|(name, _)| *name == unit).map(|(_, f)| *f);
    if let Some(bits) = of(&BITS, unit) {
        return Some(number * bits / 8.0);
    }
    let (size, time) = unit.split_once('/')?;
    Some(number * of(&BYTES, size)? / of(&TIMES, time)?)
}

/// What producers are given.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes a second as they are stored.
    pub compressed_bytes_per_second: f64,
    /// Raw bytes for each stored one.
    pub ratio: f64,
}

impl Load {
    /// A load of so many compressed bytes a second.
    pub fn compressed(rate: Rate, ratio: f64) -> Load {
        Load {
            compressed_bytes_per_second: rate.0,
            ratio,
        }
    }

    /// A load of so many raw bytes a second.
    pub fn raw(rate: Rate, ratio: f64) -> Load {
        Load {
            compressed_bytes_per_second: rate.0 / ratio,
            ratio,
        }
    }

    /// Bytes a second before compression.
    pub fn raw_bytes_per_second(&self) -> f64 {
        self.compressed_bytes_per_second * self.ratio
    }

    /// GiB a month as they are stored.
    pub fn gib_per_month(&self) -> f64 {
        self.compressed_bytes_per_second * crate::MONTH_SECONDS / crate::GIB
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_reads_as_people_write_it() {
        let rate = |text: &str| text.parse::<Rate>().unwrap().0;
        assert_eq!(rate("1.1Gbps"), 137.5e6);
        assert_eq!(rate("200 Mbps"), 25e6);
        assert_eq!(rate("86.4GB/day"), 1e6);
        assert_eq!(rate("86.4 gb/d"), 1e6);
        assert_eq!(rate("20MB/s"), 20e6);
        assert_eq!(rate("30MiB/s"), 30.0 * 1_048_576.0);
        assert_eq!(rate("3.6 TB/hour"), 1e9);
        assert_eq!(rate("12.5B/s"), 12.5);
    }

    #[test]
    fn what_is_no_throughput_is_refused_with_examples() {
        for text in [
            "",
            "50",
            "50GB",
            "GB/day",
            "50GB/fortnight",
            "0MB/s",
            "-1MB/s",
            "1e3MB/s",
            "1.2.3MB/s",
            "50XB/s",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(
                error.contains("50GB/day") && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }
}
