//! The time of a record from gateway to row, for the settings that determine the cost.

use crate::activity::alone;
use crate::inserts::Inserts;
use crate::rate::Load;
use crate::settings::{CONNECTION_BYTES, Settings, Sharing, time};
use crate::{CostError, StoragePrice};
use serde::{Deserialize, Serialize};

/// Mean duration of a request to the store, without its body.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestLatency {
    /// A PUT, conditional or not.
    pub put_seconds: f64,
    /// A GET.
    pub get_seconds: f64,
}

impl Default for RequestLatency {
    /// The means for S3 Standard, from the distributions that `make bench` uses.
    fn default() -> RequestLatency {
        RequestLatency {
            put_seconds: 0.070,
            get_seconds: 0.035,
        }
    }
}

impl RequestLatency {
    /// A store's latency, if the table has it.
    pub fn of(price: &StoragePrice) -> RequestLatency {
        let standard = RequestLatency::default();
        let seconds = |ms: Option<f64>, standard: f64| ms.map_or(standard, |ms| ms / 1_000.0);
        RequestLatency {
            put_seconds: seconds(price.put_latency_ms, standard.put_seconds),
            get_seconds: seconds(price.get_latency_ms, standard.get_seconds),
        }
    }
}

/// From a record's acceptance by the gateway to the success of its INSERT.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the records are faster.
    pub p50_seconds: f64,
    /// One in a hundred is slower.
    pub p99_seconds: f64,
}

/// A follower sends its blocks this part of the linger before the leader's segment closes.
const SENT_BEFORE: f64 = 0.1;

/// The seconds for which records of a follower wait for the leader.
struct Leader {
    p50: f64,
    p99: f64,
}

impl Leader {
    fn of(sharing: Sharing, fill: f64, put: f64) -> Leader {
        let (p50, p99) = match sharing {
            Sharing::Nothing => (0.0, 0.0),
            Sharing::Segments => (SENT_BEFORE * fill, SENT_BEFORE * fill),
            // The end of the commit that is under way.
            Sharing::Commits => (put / 2.0, put),
        };
        Leader { p50, p99 }
    }
}

/// At its p99, a PUT takes this many times its mean longer.
const TAIL_PUTS: f64 = 2.6;

impl Latency {
    /// The latency of a load with these settings.
    pub fn of(load: &Load, settings: &Settings, request: RequestLatency) -> Latency {
        let RequestLatency {
            put_seconds: put,
            get_seconds: get,
        } = request;
        let fill = settings.fill_seconds(load);
        let together = settings.segments_per_commit(load, request);
        let segment = settings.each_maker(load) * fill;
        let inserts = Inserts::of(segment * load.ratio, settings);
        let transfer = segment / CONNECTION_BYTES;
        let sources = settings.sources(load);
        let poll = settings.look_seconds(request, fill * together / sources);
        let planned_ahead = alone(
            1.0 / settings.between_looks(request),
            1.0 / (fill * together),
            sources,
            together,
        );
        // Upload, commit, and a plan unless it was made in advance; then the parts.
        let requests = (3.0 - planned_ahead) * put + get + 2.0 * transfer;
        let insert = inserts.seconds(1.0);
        // Segments that are committed together wait for it together, and then for the writers.
        let wait = fill * together + inserts.seconds(together) - insert;
        let leader = Leader::of(settings.sharing(load), fill, put);
        Latency {
            p50_seconds: leader.p50 + wait / 2.0 + poll / 2.0 + requests + insert,
            p99_seconds: leader.p99 + wait + poll + requests + insert + TAIL_PUTS * put,
        }
    }
}

/// The longest linger with which 99 of 100 records take at most `target_seconds`.
pub fn linger_for(
    target_seconds: f64,
    load: &Load,
    settings: &Settings,
    request: RequestLatency,
) -> Result<f64, CostError> {
    let p99 = |linger_seconds: f64| {
        let settings = Settings {
            linger_seconds,
            ..settings.clone()
        };
        Latency::of(load, &settings, request).p99_seconds
    };
    // A linger below one millisecond is pointless.
    let (mut low, mut high) = (0.001, target_seconds.max(0.001));
    let least = p99(low);
    if !(target_seconds.is_finite() && least <= target_seconds) {
        return Err(CostError::Latency {
            wanted: time(target_seconds.max(0.0)),
            least: time(least),
            poll: time(settings.poll_seconds),
        });
    }
    if p99(high) <= target_seconds {
        return Ok(high);
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if p99(middle) <= target_seconds {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    /// 20,000 records per second with 428 raw and 79 stored bytes each, as measured in `design/performance.md`.
    fn measured(linger_seconds: f64) -> Latency {
        let load = Load::compressed(Rate(20_000.0 * 79.0), 428.0 / 79.0);
        let settings = Settings {
            linger_seconds,
            ..Settings::default()
        };
        Latency::of(&load, &settings, RequestLatency::default())
    }

    #[test]
    fn it_agrees_with_what_was_measured() {
        for (linger, p50, p99) in [(1.0, 1.030, 1.712), (0.25, 0.538, 0.900)] {
            let latency = measured(linger);
            assert!((latency.p50_seconds / p50 - 1.0).abs() < 0.15, "{latency:?}");
            assert!((latency.p99_seconds / p99 - 1.0).abs() < 0.15, "{latency:?}");
        }
    }

    #[test]
    fn a_target_gives_the_longest_linger_that_keeps_it() {
        let (load, settings) = (Load::compressed(Rate(1e6), 5.0), Settings::default());
        let request = RequestLatency::default();
        let linger_seconds = linger_for(2.0, &load, &settings, request).unwrap();
        let settings = Settings {
            linger_seconds,
            ..settings
        };
        let p99 = Latency::of(&load, &settings, request).p99_seconds;
        assert!((1.999..=2.0).contains(&p99), "{p99}");
        let error = linger_for(0.1, &load, &settings, request)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("100 ms is out of reach") && error.contains("s3-express"),
            "{error}"
        );
    }
}
