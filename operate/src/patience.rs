//! Tells a failure of the store from damage in the buffer. A command that polls outlasts the first.

use millpond_manifest::cas::ReadError;
use millpond_storage::ErrorKind;
use tracing::warn;

/// Logs each new failure of a polled store once.
#[derive(Debug, Default)]
pub struct Patience {
    logged: String,
}

impl Patience {
    /// Logs the error, unless it was the last one logged.
    ///
    /// # Errors
    /// Returns an error that does not come from the store, or that needs an operator.
    pub fn with(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        if !may_pass(&error) {
            return Err(error);
        }
        self.log(&error);
        Ok(())
    }

    /// Logs the error, unless it was the last one logged.
    pub fn log(&mut self, error: &anyhow::Error) {
        let reason = format!("{error:#}");
        if reason != self.logged {
            warn!("{reason}; trying again");
            self.logged = reason;
        }
    }

    /// Logs the end of a failure.
    pub fn over(&mut self) {
        if !self.logged.is_empty() {
            warn!("the store answers again");
            self.logged.clear();
        }
    }
}

/// Returns true if the store failed, rather than its content.
pub(crate) fn is_the_stores(error: &anyhow::Error) -> bool {
    of_the_store(error).is_some()
}

/// Returns true if the store failed in a way that may pass: an outage, or a missing permission.
fn may_pass(error: &anyhow::Error) -> bool {
    of_the_store(error).is_some_and(|error| error.kind() != ErrorKind::Misconfigured)
}

fn of_the_store(error: &anyhow::Error) -> Option<&millpond_storage::Error> {
    let read = error.downcast_ref::<ReadError>().and_then(|error| match error {
        ReadError::Store(error) => Some(error),
        ReadError::Format { .. } => None,
    });
    read.or_else(|| error.downcast_ref::<millpond_storage::Error>())
}
