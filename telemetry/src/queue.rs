//! Finished spans that wait to be pushed: so many, and what comes when it is full is dropped and counted.

use opentelemetry_proto::tonic::trace::v1::Span;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// About 4 MB of spans.
pub(crate) const WAITING_MAX: usize = 4_096;

/// The most spans in a push.
pub(crate) const PUSHED_MAX: usize = 512;

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Vec<Span>>,
    /// There is enough for a push.
    enough: Notify,
    dropped: Counter,
}

impl Queue {
    pub(crate) fn register(registry: &mut Registry) -> Queue {
        let queue = Queue::default();
        registry.register(
            "millpond_telemetry_spans_dropped",
            "Spans of its own work that were not pushed: the endpoint was away for long, or refused them",
            queue.dropped.clone(),
        );
        queue
    }

    /// Takes all of them, or none where there is no room.
    pub(crate) fn put(&self, spans: Vec<Span>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() + spans.len() > WAITING_MAX {
            return self.lose(spans.len());
        }
        waiting.extend(spans);
        if waiting.len() >= PUSHED_MAX {
            self.enough.notify_one();
        }
    }

    /// The oldest, as many as one push has.
    pub(crate) fn take(&self) -> Vec<Span> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(PUSHED_MAX);
        waiting.drain(..count).collect()
    }

    /// So many will not be pushed.
    pub(crate) fn lose(&self, count: usize) {
        self.dropped.inc_by(count as u64);
    }

    pub(crate) async fn enough(&self) {
        self.enough.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_counts_what_it_drops() {
        let queue = Queue::default();
        let spans = |count| vec![Span::default(); count];
        queue.put(spans(WAITING_MAX - 1));
        queue.put(spans(2));
        assert_eq!(queue.dropped.get(), 2);
        queue.put(spans(1));
        assert_eq!(queue.dropped.get(), 2);
        let taken: Vec<usize> = (0..)
            .map(|_| queue.take().len())
            .take_while(|count| *count > 0)
            .collect();
        assert_eq!(taken, [PUSHED_MAX; WAITING_MAX / PUSHED_MAX]);
        queue.put(spans(2));
        assert_eq!(queue.take().len(), 2);
    }
}
