//! Exports the spans of the queue every few seconds, or when there are enough. Retries an export that the endpoint may accept
//! later; meanwhile the queue fills up and drops spans.

use crate::pusher::Pusher;
use crate::queue::Queue;
use crate::{Push, scope};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use std::sync::Arc;
use std::time::Duration;

/// The export of the traces.
pub(crate) struct Traces {
    queue: Arc<Queue>,
    resource: Resource,
    pusher: Pusher,
    /// Maximum time until the export of a finished span.
    delay: Duration,
    /// Spans that left the queue and are not exported yet.
    pending: Option<Pending>,
}

struct Pending {
    request: ExportTraceServiceRequest,
    spans: usize,
}

impl Traces {
    pub(crate) fn new(queue: Arc<Queue>, resource: Resource, pusher: Pusher, delay: Duration) -> Traces {
        Traces {
            queue,
            resource,
            pusher,
            delay,
            pending: None,
        }
    }

    /// The endpoint without its possible secrets.
    pub(crate) fn shown(&self) -> String {
        self.pusher.shown()
    }

    /// Maximum time until the export of a finished span.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    fn take(&self) -> Option<Pending> {
        let spans = self.queue.take();
        let count = spans.len();
        let scope_spans = ScopeSpans {
            scope: Some(scope()),
            spans,
            ..ScopeSpans::default()
        };
        let resource_spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scope_spans],
            ..ResourceSpans::default()
        };
        (count > 0).then(|| Pending {
            request: ExportTraceServiceRequest {
                resource_spans: vec![resource_spans],
            },
            spans: count,
        })
    }
}

impl Push for Traces {
    /// Exports the queue until the endpoint fails.
    async fn push(&mut self) {
        loop {
            if self.pending.is_none() {
                self.pending = self.take();
            }
            let Some(pending) = &self.pending else { return };
            match self.pusher.push(&pending.request).await {
                Ok(()) => {}
                Err(error) if error.transient => return,
                Err(_) => self.queue.lose(pending.spans),
            }
            self.pending = None;
        }
    }

    async fn enough(&self) {
        if self.pending.is_some() {
            // After a failed export, wait for the interval.
            std::future::pending::<()>().await;
        }
        self.queue.enough().await;
    }
}
