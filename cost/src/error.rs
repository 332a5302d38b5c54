//! Errors of a cost question, with a remedy.

use thiserror::Error;

/// Why there is no estimate.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CostError {
    /// A text that is not a throughput.
    #[error("{0:?} is not a throughput: write 50GB/day, 20MB/s, 30MiB/s, 1.1Gbps or 200Mbps")]
    Rate(String),
    /// A unit that may be bits or bytes.
    #[error("{0:?} may be bits or bytes: write 50MB/s or 50GB/day for bytes, 50Mbps or 50Gbit/day for bits")]
    BitsOrBytes(String),
    /// A setting with an invalid value.
    #[error("{name} is {found}: {rule}")]
    Setting {
        /// The setting's flag.
        name: &'static str,
        /// The given value.
        found: String,
        /// The rule for it.
        rule: String,
    },
    /// Two settings that contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// No settings reach the requested latency.
    #[error(
        "a p99 of {wanted} is out of reach: with no linger at all it is {least} (requests to this store, and a poll every {poll}); ask for \
         more, or give a shorter --poll-interval, a faster store (--provider s3-express) or smaller segments"
    )]
    Latency {
        /// The requested latency.
        wanted: String,
        /// The lowest possible latency.
        least: String,
        /// The interval between polls.
        poll: String,
    },
    /// A provider without prices.
    #[error("there are no prices of provider {wanted:?}{}; there are {known}. Others: `--prices FILE` (`millpond cost prices print` shows how)", nearest(.near))]
    Provider {
        /// The requested provider.
        wanted: String,
        /// The nearest name.
        near: Option<String>,
        /// All providers.
        known: String,
    },
    /// A region without prices.
    #[error("there are no prices of {provider} in {wanted:?}{}; there are {known}. Others: `millpond cost prices import` a saved AWS offer file, and --prices", nearest(.near))]
    Region {
        /// The provider.
        provider: String,
        /// The requested region.
        wanted: String,
        /// The nearest name.
        near: Option<String>,
        /// All regions.
        known: String,
    },
    /// A missing network price.
    #[error(
        "the price table has no {what} of provider {provider}: give it in a [[network]] entry of a file for --prices (`millpond cost prices print` shows how)"
    )]
    Network {
        /// The provider.
        provider: String,
        /// The missing price.
        what: &'static str,
    },
    /// An unreadable price file.
    #[error("{0}")]
    Prices(String),
    /// An unreadable offer file.
    #[error("{0}")]
    Offer(String),
    /// An invalid sweep.
    #[error("{0}")]
    Sweep(String),
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref()
        .map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}
