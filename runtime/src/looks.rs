//! When a process looks again at something that rarely changes, such as the number of shards.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::Environment;

/// The times of the looks, each up to a quarter of the interval early. So processes that start together do not look together.
#[derive(Debug)]
pub struct Looks {
    interval: Duration,
    due_at: Option<Instant>,
}

impl Looks {
    /// The first look is due after about one interval.
    pub fn new(interval: Duration) -> Looks {
        Looks {
            interval,
            due_at: None,
        }
    }

    /// Waits until the next look is due. A caller may drop the wait and begin another.
    pub async fn due(&mut self, environment: &dyn Environment) {
        let early = self.interval.mul_f64(environment.fraction() / 4.0);
        // It stays when the caller drops the wait, or a caller with much to do would never look.
        let due_at = *self
            .due_at
            .get_or_insert_with(|| Instant::now() + self.interval - early);
        sleep_until(due_at).await;
    }

    /// Begins the time until the next look.
    pub fn looked(&mut self) {
        self.due_at = None;
    }
}
