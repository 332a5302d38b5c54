//! Asks the store a second time for bytes that are late, and takes the first answer. A read has no effect, so either answer serves.

use bytes::Bytes;
use futures::future::{Either, select};
use millpond_runtime::{Budget, Reservation};
use prometheus_client::metrics::counter::Counter;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The latest requests of one size whose durations decide when a request is late.
const REMEMBERED: usize = 128;

/// A percentile of fewer durations says nothing.
const REMEMBERED_MIN: usize = 20;

/// A request is late when it takes longer than this many percent of the requests remembered.
const PERCENTILE: usize = 95;

/// No request counts as late sooner, so a store on this machine rarely gets a second one.
const PATIENCE_MIN: Duration = Duration::from_millis(5);

/// At most one request in this many gets a second one. That is twice what the percentile leads to while the store's latency stays as it is; if
/// the latency rises, the limit keeps second requests from adding much to the load.
const REQUESTS_PER_HEDGE: u32 = 10;

/// Second requests that are saved up for a time when several requests are late together.
const SAVED_MAX: u32 = 4;

/// The durations of requests by size, and the second requests that the next ones may make.
#[derive(Debug)]
struct History {
    durations: [VecDeque<Duration>; 5],
    /// In parts of a second request.
    saved: u32,
}

impl History {
    fn new() -> Self {
        History {
            durations: Default::default(),
            saved: SAVED_MAX * REQUESTS_PER_HEDGE,
        }
    }

    /// Sizes that take a similar time: up to 64 KiB, 512 KiB, 4 MiB, 32 MiB, and more.
    fn class(bytes: u64) -> usize {
        (0..4)
            .take_while(|class| bytes > (64 << 10) << (3 * class))
            .count()
    }

    /// How long to wait for the answer before a second request. `None`: the store is not known well enough.
    fn patience(&self, bytes: u64) -> Option<Duration> {
        let durations = &self.durations[Self::class(bytes)];
        if durations.len() < REMEMBERED_MIN {
            return None;
        }
        let mut sorted: Vec<_> = durations.iter().copied().collect();
        sorted.sort_unstable();
        let late = sorted[sorted.len() * PERCENTILE / 100];
        Some(late.max(PATIENCE_MIN))
    }

    fn began(&mut self) {
        self.saved = (self.saved + 1).min(SAVED_MAX * REQUESTS_PER_HEDGE);
    }

    fn ended(&mut self, bytes: u64, took: Duration) {
        let durations = &mut self.durations[Self::class(bytes)];
        if durations.len() == REMEMBERED {
            durations.pop_front();
        }
        durations.push_back(took);
    }

    /// Returns true if a second request may be made now, and counts it.
    fn take(&mut self) -> bool {
        let Some(left) = self.saved.checked_sub(REQUESTS_PER_HEDGE) else {
            return false;
        };
        self.saved = left;
        true
    }
}

/// Makes second requests for what is late.
#[derive(Debug)]
pub(crate) struct Hedge {
    history: Mutex<History>,
    /// Pays for the second answer while both requests are in flight.
    memory: Budget,
    made: Counter,
}

impl Hedge {
    /// `made` counts second requests.
    pub(crate) fn new(memory: Budget, made: Counter) -> Self {
        Hedge {
            history: Mutex::new(History::new()),
            memory,
            made,
        }
    }

    /// Makes a request for `bytes` bytes, and a second one if the first is late. The second answer counts only if it has the
    /// bytes. The first answer always counts, so no outcome is worse than without a second request.
    pub(crate) async fn first_answer<R, E>(
        &self,
        bytes: u64,
        request: impl Fn() -> R,
    ) -> Result<Option<Bytes>, E>
    where
        R: Future<Output = Result<Option<Bytes>, E>>,
    {
        let began = Instant::now();
        let answer = self.race(bytes, request).await;
        if let Ok(Some(_)) = answer {
            self.history().ended(bytes, began.elapsed());
        }
        answer
    }

    async fn race<R, E>(&self, bytes: u64, request: impl Fn() -> R) -> Result<Option<Bytes>, E>
    where
        R: Future<Output = Result<Option<Bytes>, E>>,
    {
        let patience = {
            let mut history = self.history();
            history.began();
            history.patience(bytes)
        };
        let mut first = Box::pin(request());
        let Some(patience) = patience else {
            return first.await;
        };
        if let Ok(answer) = timeout(patience, &mut first).await {
            return answer;
        }
        let Some(_memory) = self.begin(bytes) else {
            return first.await;
        };
        match select(first, Box::pin(request())).await {
            Either::Left((answer, _)) => answer,
            Either::Right((Ok(Some(data)), _)) => Ok(Some(data)),
            Either::Right((_, first)) => first.await,
        }
    }

    /// The memory for a second request, if one may be made now.
    fn begin(&self, bytes: u64) -> Option<Reservation> {
        let memory = self.memory.try_reserve(usize::try_from(bytes).ok()?)?;
        self.history().take().then(|| {
            self.made.inc();
            memory
        })
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
