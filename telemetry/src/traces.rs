//! Pushes the spans of the queue: every few seconds, or when there are enough for a push. A push that may be taken later is
//! tried again; meanwhile the queue fills, and what is over is dropped.

use crate::pusher::Pusher;
use crate::queue::Queue;
use crate::{Push, scope};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use std::sync::Arc;
use std::time::Duration;

/// The traces of the process, on their way.
pub(crate) struct Traces {
    queue: Arc<Queue>,
    resource: Resource,
    pusher: Pusher,
    /// The longest that a finished span waits.
    delay: Duration,
    /// What was taken from the queue, until it is pushed.
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

    /// Where to, for people.
    pub(crate) fn shown(&self) -> String {
        self.pusher.shown()
    }

    /// The longest that a finished span waits.
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
    /// All that waits, or as much as is taken.
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
            // With a push that failed, only the time helps.
            std::future::pending::<()>().await;
        }
        self.queue.enough().await;
    }
}
