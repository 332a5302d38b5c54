//! What is wrong with a question, and what to ask instead.

use thiserror::Error;

/// Why there is no estimate.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CostError {
    /// A text that is no rate.
    #[error("{0:?} is no throughput: write 50GB/day, 20MB/s, 30MiB/s, 1.1Gbps or 200Mbps")]
    Rate(String),
    /// A unit that may be either.
    #[error("{0:?} may be bits or bytes: write 50MB/s or 50GB/day for bytes, 50Mbps or 50Gbit/day for bits")]
    BitsOrBytes(String),
    /// A number that cannot be meant.
    #[error("{name} is {found}: {rule}")]
    Setting {
        /// The setting, as its flag is called.
        name: &'static str,
        /// What was given.
        found: String,
        /// What it must be.
        rule: String,
    },
    /// Two settings that cannot both be.
    #[error("{0}")]
    Contradiction(String),
    /// No settings reach the latency that was asked for.
    #[error(
        "a p99 of {wanted} is out of reach: with no linger at all it is {least} (requests to this store, and a poll every {poll}); ask for \
         more, or give a shorter --poll-interval, a faster store (--provider s3-express) or smaller segments"
    )]
    Latency {
        /// What was asked for.
        wanted: String,
        /// What there is.
        least: String,
        /// The interval between polls.
        poll: String,
    },
    /// A provider that is not in the table.
    #[error("there are no prices of provider {wanted:?}{}; there are {known}. Others: `--prices FILE` (`millpond cost prices print` shows how)", nearest(.near))]
    Provider {
        /// What was asked for.
        wanted: String,
        /// The nearest name.
        near: Option<String>,
        /// All of them.
        known: String,
    },
    /// A region that is not in the table.
    #[error("there are no prices of {provider} in {wanted:?}{}; there are {known}. Others: `millpond cost prices import` a saved AWS offer file, and --prices", nearest(.near))]
    Region {
        /// Whose region.
        provider: String,
        /// What was asked for.
        wanted: String,
        /// The nearest name.
        near: Option<String>,
        /// All of them.
        known: String,
    },
    /// A price of the network that is not in the table.
    #[error(
        "the price table has no {what} of provider {provider}: give it in a [[network]] entry of a file for --prices (`millpond cost prices print` shows how)"
    )]
    Network {
        /// Whose.
        provider: String,
        /// Which price.
        what: &'static str,
    },
    /// A price file that cannot be read.
    #[error("{0}")]
    Prices(String),
    /// An offer file that cannot be read.
    #[error("{0}")]
    Offer(String),
    /// A sweep that cannot be meant.
    #[error("{0}")]
    Sweep(String),
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref()
        .map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}
