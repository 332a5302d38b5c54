//! Counts requests to the store by kind and outcome, with their bytes and durations.
//!
//! The kinds follow the price lists: AWS bills PUT and LIST alike, GET and HEAD at about a tenth of that, DELETE not at
//! all.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
pub(crate) enum Kind {
    put,
    get,
    list,
    delete,
    head,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
pub(crate) enum Outcome {
    ok,
    /// No such object.
    absent,
    /// A conditional read found the known version.
    unchanged,
    /// A conditional write was refused: another writer was first.
    mismatch,
    transient,
    denied,
    misconfigured,
    /// The caller left before the answer.
    cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
enum Direction {
    read,
    written,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    kind: Kind,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: Direction,
}

/// The number of requests by kind and the bytes they moved since the store was opened. Requests count whatever their
/// outcome, as on the bill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Writes, conditional or not.
    pub put: u64,
    /// Reads of an object or of a range, including conditional reads.
    pub get: u64,
    /// Pages of a listing: one per 1,000 keys, at least one.
    pub list: u64,
    /// Deletions.
    pub delete: u64,
    /// Requests for an object's size.
    pub head: u64,
    /// Bytes of bodies sent to the store, whatever the outcome.
    pub bytes_written: u64,
    /// Bytes of bodies received.
    pub bytes_read: u64,
    /// Compare-and-sets that took effect.
    pub cas_committed: u64,
    /// Compare-and-sets that were refused.
    pub cas_mismatch: u64,
    /// Compare-and-sets with an unknown outcome.
    pub cas_unknown: u64,
}

#[derive(Debug, Default)]
struct Totals {
    put: AtomicU64,
    get: AtomicU64,
    list: AtomicU64,
    delete: AtomicU64,
    head: AtomicU64,
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    cas_committed: AtomicU64,
    cas_mismatch: AtomicU64,
    cas_unknown: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    totals: Arc<Totals>,
    requests: Family<RequestLabels, Counter>,
    bytes: Family<DirectionLabels, Counter>,
    seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            totals: Arc::default(),
            requests: Family::default(),
            bytes: Family::default(),
            // From a local disk's answer to the default request timeout.
            seconds: Family::new_with_constructor(|| {
                Histogram::new([
                    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
                ])
            }),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "millpond_store_requests",
            "Requests to the object store, by kind and outcome",
            self.requests.clone(),
        );
        registry.register(
            "millpond_store_bytes",
            "Bytes of object bodies moved to and from the object store",
            self.bytes.clone(),
        );
        registry.register(
            "millpond_store_request_seconds",
            "Time from a request to the object store to the end of its answer",
            self.seconds.clone(),
        );
    }

    /// Counts a request when the returned value is dropped; as cancelled unless it has another outcome.
    pub(crate) fn start(&self, kind: Kind) -> Request<'_> {
        Request {
            metrics: self,
            kind,
            started: Instant::now(),
            outcome: Outcome::cancelled,
        }
    }

    pub(crate) fn written(&self, bytes: u64) {
        self.totals.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.bytes
            .get_or_create(&DirectionLabels {
                direction: Direction::written,
            })
            .inc_by(bytes);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.totals.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        self.bytes
            .get_or_create(&DirectionLabels {
                direction: Direction::read,
            })
            .inc_by(bytes);
    }

    pub(crate) fn cas(&self, outcome: &crate::Cas) {
        let total = match outcome {
            crate::Cas::Committed(_) => &self.totals.cas_committed,
            crate::Cas::Mismatch => &self.totals.cas_mismatch,
            crate::Cas::Unknown(_) => &self.totals.cas_unknown,
        };
        total.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        let Totals {
            put,
            get,
            list,
            delete,
            head,
            bytes_written,
            bytes_read,
            cas_committed,
            cas_mismatch,
            cas_unknown,
        } = &*self.totals;
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        RequestCounts {
            put: read(put),
            get: read(get),
            list: read(list),
            delete: read(delete),
            head: read(head),
            bytes_written: read(bytes_written),
            bytes_read: read(bytes_read),
            cas_committed: read(cas_committed),
            cas_mismatch: read(cas_mismatch),
            cas_unknown: read(cas_unknown),
        }
    }
}

pub(crate) struct Request<'a> {
    metrics: &'a Metrics,
    kind: Kind,
    started: Instant,
    outcome: Outcome,
}

impl Request<'_> {
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let (kind, outcome) = (self.kind, self.outcome);
        let totals = &self.metrics.totals;
        let total = match kind {
            Kind::put => &totals.put,
            Kind::get => &totals.get,
            Kind::list => &totals.list,
            Kind::delete => &totals.delete,
            Kind::head => &totals.head,
        };
        total.fetch_add(1, Ordering::Relaxed);
        self.metrics
            .requests
            .get_or_create(&RequestLabels { kind, outcome })
            .inc();
        self.metrics
            .seconds
            .get_or_create(&KindLabels { kind })
            .observe(self.started.elapsed().as_secs_f64());
    }
}
