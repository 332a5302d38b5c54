//! The load generator: OTLP/gRPC log traffic with real bodies and a unique id in every record, retried until it is
//! acknowledged, and a report of what was. It never counts a record as acknowledged that the server did not.
//!
//! A record's id is `<run>-<number>`, the number in [`ID_DIGITS`] digits from 0 on, in the attribute
//! [`LoadConfig::unique_attribute`]. A retried request carries the same bytes; so when the answer to a request was lost
//! *after* its commit, the retry makes its records arrive twice. A test that compares multisets over such faults
//! sets [`LoadConfig::retry_for`] to zero and counts what was acknowledged.

mod acknowledged;
mod args;
mod bodies;
mod client;
mod credentials;
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

pub use args::{Compression, LoadArgs};
pub use credentials::Credentials;
pub use report::{Latency, Report};
pub use run::run;
pub use template::ID_DIGITS;

/// What load to make.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// Where to send: `host:port`, `http://host:port` or `https://host:port`.
    pub endpoint: String,
    /// Whom it trusts, and what it shows of itself.
    pub credentials: Credentials,
    /// Records per second; 0: as fast as they are acknowledged.
    pub rate: u64,
    /// Requests in flight at most.
    pub concurrency: usize,
    /// Records in one request.
    pub records_per_request: u64,
    /// Stop sending after this long. With neither this nor `records`: when cancelled.
    pub duration: Option<Duration>,
    /// Stop sending after this many records.
    pub records: Option<u64>,
    /// A folder whose `*.log` files' lines become bodies. `None`: those of `MILLPOND_LOGHUB`, else generated text.
    pub bodies: Option<PathBuf>,
    /// Decides which line, trace and host a record gets.
    pub seed: u64,
    /// The attribute that holds a record's id.
    pub unique_attribute: String,
    /// The first part of all ids, so that runs differ.
    pub run: String,
    /// How requests are compressed.
    pub compression: Compression,
    /// A request is retried for this long after its first attempt; zero: never.
    pub retry_for: Duration,
    /// A file that gets a line `run first count` for every acknowledged request, flushed at once.
    pub acknowledged_file: Option<PathBuf>,
}

/// Counts while a run goes on.
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
    /// Bytes of the requests, before compression, each counted once.
    pub raw_bytes: AtomicU64,
}

impl Progress {
    /// A fresh set of counts to give to [`run`] and to read beside it.
    pub fn new() -> Arc<Progress> {
        Arc::default()
    }

    /// Records acknowledged until now.
    pub fn acknowledged(&self) -> u64 {
        self.records_acknowledged.load(Ordering::Relaxed)
    }
}

/// Why no load was made, or why it ended early.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A setting that makes no sense.
    #[error("{setting}: {reason}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The bodies could not be read.
    #[error("reading log lines from {}: {error}", path.display())]
    Bodies {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file of acknowledged ids could not be written.
    #[error("writing acknowledged ids to {}: {error}", path.display())]
    AcknowledgedFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}
