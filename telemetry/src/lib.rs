//! A service's own telemetry over OTLP: its metrics and the traces of its work. It never slows the service down: nothing waits
//! for an endpoint, and counters count what cannot be exported.

mod conventions;
mod metrics;
mod pusher;
mod queue;
mod sampler;
mod settings;
mod spans;
mod traces;

pub use settings::{Identity, Options};
pub use spans::Spans;

use conventions::Conventions;
use metrics::Span;
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::BufferUrl;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus_client::registry::Registry;
use pusher::{PushCounters, Pusher};
use queue::Queue;
use settings::{MetricSettings, TraceSettings};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use traces::Traces;
use tracing::{error, info, warn};

/// Maximum time of the last export of a stopping process.
const LAST_PUSH: Duration = Duration::from_secs(3);

/// The metrics of a process: those that `/metrics` shows, and those that are exported.
#[derive(Debug, Clone, Default)]
pub struct Registries(Arc<Mutex<Vec<Registry>>>);

impl Registries {
    /// Adds metrics.
    pub fn add(&self, registry: Registry) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(registry);
    }

    /// Gives `read` all metrics.
    pub fn read<T>(&self, read: impl FnOnce(&[Registry]) -> T) -> T {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Telemetry that is ready to start. The default exports nothing.
#[derive(Default)]
pub struct Telemetry {
    resource: Resource,
    metrics: Option<(Pusher, Duration)>,
    traces: Option<Traces>,
    spans: Option<Spans>,
    /// Sentences about signals that are not exported.
    unspoken: Vec<String>,
    registry: Registry,
    /// Unix time in nanoseconds at which the process began to count.
    start: u64,
}

impl Telemetry {
    /// Resolves the options and the environment. Sends nothing yet.
    ///
    /// # Errors
    /// An unusable setting, with its name.
    pub fn prepare(options: &Options, identity: &Identity, buffer: &BufferUrl) -> anyhow::Result<Telemetry> {
        let settings = options.resolve(identity, &|name| std::env::var(name).ok())?;
        let resource = Resource {
            attributes: settings.resource,
            ..Resource::default()
        };
        let mut registry = Registry::default();
        let counters = PushCounters::register(&mut registry);
        let metrics = match settings.metrics {
            None => None,
            Some(MetricSettings {
                destination,
                interval,
            }) => Some((Pusher::new(destination, &counters)?, interval)),
        };
        let (traces, spans) = match settings.traces {
            None => (None, None),
            Some(TraceSettings {
                destination,
                sampler,
                delay,
            }) => {
                let queue = Arc::new(Queue::register(&mut registry));
                let spans = Spans {
                    sampler,
                    conventions: Conventions::new(buffer),
                    queue: queue.clone(),
                };
                let pusher = Pusher::new(destination, &counters)?;
                let resource = resource.clone();
                (Some(Traces::new(queue, resource, pusher, delay)), Some(spans))
            }
        };
        Ok(Telemetry {
            resource,
            metrics,
            traces,
            spans,
            unspoken: settings.unspoken,
            registry,
            start: SystemEnvironment.now_ns(),
        })
    }

    /// The layer that records spans of the process's work, if traces are exported.
    pub fn spans(&mut self) -> Option<Spans> {
        self.spans.take()
    }

    /// Exports the metrics of `registries`, and the traces, until it is stopped.
    pub fn start(self, registries: &Registries) -> Pushing {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        if self.metrics.is_some() || self.traces.is_some() {
            registries.add(self.registry);
        }
        for reason in self.unspoken {
            warn!("{reason}");
        }
        if let Some(traces) = self.traces {
            info!("own traces are pushed to {}", traces.shown());
            let delay = traces.delay();
            tasks.spawn(push_until_stopped(traces, delay, stop.clone()));
        }
        if let Some((pusher, interval)) = self.metrics {
            let every = humantime::format_duration(interval);
            info!("own metrics are pushed to {} every {every}", pusher.shown());
            let metrics = Metrics {
                registries: registries.clone(),
                resource: self.resource,
                start: self.start,
                pusher,
            };
            tasks.spawn(push_until_stopped(metrics, interval, stop.clone()));
        }
        Pushing { stop, tasks }
    }
}

/// Running exports.
pub struct Pushing {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Pushing {
    /// Exports once more, for a few seconds at most.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A periodic export.
trait Push: Send + Sync {
    /// Exports what there is.
    fn push(&mut self) -> impl Future<Output = ()> + Send;

    /// Resolves when there is enough for an early export.
    fn enough(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// Exports at every interval, or when there is enough, and once more when stopped.
async fn push_until_stopped(mut what: impl Push, interval: Duration, stop: CancellationToken) {
    let mut ticks = interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = ticks.tick() => {}
            () = what.enough() => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = what.push() => {}
        }
    }
    // A slow or unreachable endpoint must not delay the stop.
    let _ = timeout(LAST_PUSH, what.push()).await;
}

/// The export of the metrics.
struct Metrics {
    registries: Registries,
    resource: Resource,
    start: u64,
    pusher: Pusher,
}

impl Push for Metrics {
    /// The pusher logs and counts a failure. The next export makes up for it, since the values are cumulative.
    async fn push(&mut self) {
        let span = Span {
            start: self.start,
            now: SystemEnvironment.now_ns(),
        };
        let read = self.registries.read(|registries| {
            let read = registries.iter().map(|registry| metrics::read(registry, span));
            read.collect::<Result<Vec<_>, _>>()
        });
        let metrics = match read {
            Ok(metrics) => metrics.into_iter().flatten().collect(),
            Err(reason) => return error!("own metrics cannot be encoded: {reason}"),
        };
        let scope_metrics = ScopeMetrics {
            scope: Some(scope()),
            metrics,
            ..ScopeMetrics::default()
        };
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![scope_metrics],
                ..ResourceMetrics::default()
            }],
        };
        let _ = self.pusher.push(&request).await;
    }
}

/// The instrumentation scope.
fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "millpond".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}
