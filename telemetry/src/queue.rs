//! A bounded queue of finished spans. A full queue drops and counts new ones.

use opentelemetry_proto::tonic::trace::v1::Span;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Maximum spans in the queue: about 4 MB.
pub(crate) const WAITING_MAX: usize = 4_096;

/// Maximum spans in an export.
pub(crate) const PUSHED_MAX: usize = 512;

/// Finished spans that wait for their export.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Vec<Span>>,
    /// Signals that there is enough for an export.
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

    /// Adds all of these spans, or drops all of them without room.
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

    /// Takes the oldest spans, for one export.
    pub(crate) fn take(&self) -> Vec<Span> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(PUSHED_MAX);
        waiting.drain(..count).collect()
    }

    /// Counts spans that will not be exported.
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
