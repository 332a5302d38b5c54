//! The load generator and the processes under load. The program's `load`, `dev` and `demo` use them, and so do the
//! benchmarks.
//!
//! The load generator sends logs over OTLP/gRPC, or events over HTTP or Kafka's protocol, with real bodies and a unique id in
//! every record, retried until acknowledged, and a final report. It never counts a record as acknowledged that the server did not acknowledge.
//!
//! A record's id is `<run>-<number>` in the attribute [`LoadConfig::unique_attribute`], with a number of [`ID_DIGITS`]
//! digits that starts at 0. A retried request carries the same bytes: if the answer to a request was lost *after* its
//! commit, the retry duplicates its records. A test that compares multisets despite such faults sets
//! [`LoadConfig::retry_for`] to zero and counts the acknowledged records.

mod acknowledged;
mod args;
mod bodies;
pub mod clickhouse;
mod client;
mod credentials;
mod events;
pub mod metrics;
pub mod ports;
pub mod process;
mod random;
mod report;
mod run;
mod template;
mod wire;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use args::{Compression, Format, LoadArgs};
pub use credentials::Credentials;
pub use report::{Latency, Report};
pub use run::{requests, run};
pub use template::ID_DIGITS;

/// The configuration of a load.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// Server addresses: `host:port`, `http://host:port` or `https://host:port`. They share the requests evenly.
    pub endpoints: Vec<String>,
    /// TLS and token.
    pub credentials: Credentials,
    /// The protocol and what it carries.
    pub format: Format,
    /// Records per second; 0: as fast as the server acknowledges them.
    pub rate: u64,
    /// Maximum requests in flight.
    pub concurrency: usize,
    /// Records per request.
    pub records_per_request: u64,
    /// Stop sending after this time. Without this and `records`: when cancelled.
    pub duration: Option<Duration>,
    /// Stop sending after this many records.
    pub records: Option<u64>,
    /// A folder of `*.log` files whose lines become bodies. `None`: the folder in `MILLPOND_LOGHUB`, else generated
    /// text.
    pub bodies: Option<PathBuf>,
    /// Seed that determines each record's line, trace and host.
    pub seed: u64,
    /// The attribute, or the field of an event, with a record's id.
    pub unique_attribute: String,
    /// The first part of all ids, which distinguishes runs.
    pub run: String,
    /// Compression of requests.
    pub compression: Compression,
    /// Time to retry a request after its first attempt; zero: never.
    pub retry_for: Duration,
    /// A file that gets a line `run first count` for every acknowledged request, without buffering.
    pub acknowledged_file: Option<PathBuf>,
}

/// Live counts of a run.
#[derive(Debug, Default)]
pub struct Progress {
    /// Records sent at least once.
    pub records_sent: AtomicU64,
    /// Records acknowledged.
    pub records_acknowledged: AtomicU64,
    /// Requests sent at least once.
    pub requests: AtomicU64,
    /// Attempts after the first.
    pub retries: AtomicU64,
    /// Bytes of the requests before compression, each counted once.
    pub raw_bytes: AtomicU64,
}

impl Progress {
    /// New counts to pass to [`run`] and read meanwhile.
    pub fn new() -> Arc<Progress> {
        Arc::default()
    }

    /// Records acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.records_acknowledged.load(Ordering::Relaxed)
    }
}

/// Why a load did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An invalid setting.
    #[error("{setting}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The problem and its remedy.
        reason: String,
    },
    /// The bodies are unreadable.
    #[error("reading log lines from {}: {error}", path.display())]
    Bodies {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file of acknowledged ids is not writable.
    #[error("writing acknowledged ids to {}: {error}", path.display())]
    AcknowledgedFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}
