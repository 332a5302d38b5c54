//! How much the clients of a load send.

use std::time::Duration;

/// A load that is not done this long after its end has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The rate and the requests of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Records per second. 0: each client sends its next request after the answer to the last one.
    pub(crate) rate: u64,
    pub(crate) records_per_request: u64,
    /// The most requests that wait for their answers at once.
    pub(crate) concurrency: u64,
}

impl Shape {
    /// As much as the machine takes.
    pub(crate) const FULL: Shape = Shape {
        rate: 0,
        records_per_request: 1_000,
        concurrency: 256,
    };

    /// The load generator's flags.
    pub(crate) fn flags(&self, duration: Duration) -> Vec<String> {
        let flags = [
            ("--duration", format!("{}s", duration.as_secs())),
            ("--rate", self.rate.to_string()),
            ("--records-per-request", self.records_per_request.to_string()),
            ("--concurrency", self.concurrency.to_string()),
        ];
        flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect()
    }
}
