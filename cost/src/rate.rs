//! The incoming load: parsing and units.

use crate::CostError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Bytes per second, written as `50GB/day`, `20MB/s`, `30MiB/s`, `1.1Gbps`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(
    /// Bytes per second.
    pub f64,
);

impl FromStr for Rate {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Rate, CostError> {
        parse(text)?
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .map(Rate)
            .ok_or_else(|| CostError::Rate(text.to_owned()))
    }
}

/// Prefixes of `B` and `b`.
const PREFIXES: [(&str, f64); 10] = [
    ("", 1.0),
    ("k", 1e3),
    ("m", 1e6),
    ("g", 1e9),
    ("t", 1e12),
    ("p", 1e15),
    ("ki", 1024.0),
    ("mi", 1_048_576.0),
    ("gi", 1_073_741_824.0),
    ("ti", 1_099_511_627_776.0),
];
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

/// Bytes per second; `None` if the text is not a rate.
///
/// The case of the `b` distinguishes bits from bytes: `MB/s` and `MBps` are bytes, `Mbps` and `Mbit/s` bits. In lower
/// case, `mb/s` is bytes and `mbps` bits, as in common usage.
fn parse(text: &str) -> Result<Option<f64>, CostError> {
    let text: String = text.split_whitespace().collect();
    let Some(number_ends) = text.find(|c: char| !(c.is_ascii_digit() || c == '.')) else {
        return Ok(None);
    };
    let (number, unit) = text.split_at(number_ends);
    let (size, time, is_slashed) = match unit.split_once('/') {
        Some((size, time)) => (size, time.to_lowercase(), true),
        None => match unit.strip_suffix("ps") {
            Some(size) => (size, "s".to_owned(), false),
            None => return Ok(None),
        },
    };
    let (prefix, of_a_byte) = if let Some(prefix) = size.strip_suffix('B') {
        (prefix, 1.0)
    } else if let Some(prefix) = size.strip_suffix("bit") {
        (prefix, 8.0)
    } else if let Some(prefix) = size.strip_suffix('b') {
        if is_slashed && prefix.contains(char::is_uppercase) {
            return Err(CostError::BitsOrBytes(text));
        }
        (prefix, if is_slashed { 1.0 } else { 8.0 })
    } else {
        return Ok(None);
    };
    let of = |table: &[(&str, f64)], name: &str| table.iter().find(|(n, _)| *n == name).map(|(_, f)| *f);
    let rate = || {
        Some(
            number.parse::<f64>().ok()? * of(&PREFIXES, &prefix.to_lowercase())?
                / of_a_byte
                / of(&TIMES, &time)?,
        )
    };
    Ok(rate())
}

/// The load of the producers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Stored bytes per second.
    pub compressed_bytes_per_second: f64,
    /// Raw bytes per stored byte.
    pub ratio: f64,
    /// Requests per second of all clients, at regular intervals. `None`: a segment begins as soon as the last one has closed.
    pub requests_per_second: Option<f64>,
}

impl Load {
    /// A load given in compressed bytes per second.
    pub fn compressed(rate: Rate, ratio: f64) -> Load {
        Load {
            compressed_bytes_per_second: rate.0,
            ratio,
            requests_per_second: None,
        }
    }

    /// A load given in raw bytes per second.
    pub fn raw(rate: Rate, ratio: f64) -> Load {
        Load::compressed(Rate(rate.0 / ratio), ratio)
    }

    /// The load with this number of requests per second.
    #[must_use]
    pub fn with_requests(self, per_second: f64) -> Load {
        Load {
            requests_per_second: Some(per_second),
            ..self
        }
    }

    /// Bytes per second before compression.
    pub fn raw_bytes_per_second(&self) -> f64 {
        self.compressed_bytes_per_second * self.ratio
    }

    /// Stored GiB per month.
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
    fn the_case_of_a_b_tells_bits_from_bytes() {
        let rate = |text: &str| text.parse::<Rate>().unwrap().0;
        for bytes in ["50MB/s", "50MBps", "50mb/s", "50 mB/s"] {
            assert_eq!(rate(bytes), 50e6, "{bytes}");
        }
        for bits in ["50Mbps", "50mbps", "50Mbit/s", "50mbit/s"] {
            assert_eq!(rate(bits), 50e6 / 8.0, "{bits}");
        }
        for either in ["50Mb/s", "1.1Gb/day", "3Kib/s"] {
            let error = either.parse::<Rate>().unwrap_err().to_string();
            assert!(
                error.contains("bits or bytes") && error.contains(either),
                "{error}"
            );
        }
        "50MBPS".parse::<Rate>().unwrap_err();
    }

    #[test]
    fn an_invalid_throughput_is_refused_with_examples() {
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
