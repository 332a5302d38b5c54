//! Takes each signal's requests apart into rows.

use super::{Cutter, Waiting};
use crate::rows::attributes::Space;
use crate::rows::logs::LogColumns;
use crate::rows::metrics::{
    Common, ExponentialHistogramColumns, GaugeColumns, GaugePoint, HistogramColumns, MetricColumns, PointRow,
    Shared, SumColumns, SumPoint, SummaryColumns,
};
use crate::rows::traces::SpanColumns;
use crate::rows::{Origin, Resource, Rows, Scope};
use millpond_otlp::Malformed;
use millpond_otlp::metrics::{Data, Metric};
use millpond_otlp::{logs, metrics, traces};
use std::convert::identity;

/// Log records.
#[derive(Default)]
pub(super) struct Logs {
    rows: Rows<LogColumns>,
}

impl Waiting for Logs {
    fn add(&mut self, payload: &[u8], received_at_us: i64, cutter: &mut Cutter) -> Result<bool, Malformed> {
        let request = logs::Request::parse(payload)?;
        let rows = &mut self.rows;
        let mut space = Space::default();
        for resource in request.resources() {
            let shared_resource = Resource::new(&resource);
            for scope in resource.scopes() {
                let shared_scope = Scope::new(&scope);
                let mut shared = rows.shared(&shared_resource, &shared_scope);
                for record in scope.items() {
                    if cutter.is_full(rows) {
                        if !cutter.emit_all(rows) {
                            return Ok(false);
                        }
                        shared = rows.shared(&shared_resource, &shared_scope);
                    }
                    let context = (&shared_scope, &shared);
                    rows.push(context, &record, cutter.origin(received_at_us), &mut space);
                }
            }
        }
        Ok(true)
    }

    fn finish(&mut self, cutter: &mut Cutter) {
        if self.rows.len() > 0 {
            cutter.emit_all(&mut self.rows);
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
    }
}

/// Spans.
#[derive(Default)]
pub(super) struct Traces {
    rows: Rows<SpanColumns>,
}

impl Waiting for Traces {
    fn add(&mut self, payload: &[u8], received_at_us: i64, cutter: &mut Cutter) -> Result<bool, Malformed> {
        let request = traces::Request::parse(payload)?;
        let rows = &mut self.rows;
        let mut space = Space::default();
        for resource in request.resources() {
            let shared_resource = Resource::new(&resource);
            let mut shared = rows.shared(&shared_resource);
            for scope in resource.scopes() {
                let shared_scope = Scope::new(&scope);
                for span in scope.items() {
                    if cutter.is_full(rows) {
                        if !cutter.emit_all(rows) {
                            return Ok(false);
                        }
                        shared = rows.shared(&shared_resource);
                    }
                    let context = (&shared_scope, &shared);
                    rows.push(context, &span, cutter.origin(received_at_us), &mut space);
                }
            }
        }
        Ok(true)
    }

    fn finish(&mut self, cutter: &mut Cutter) {
        if self.rows.len() > 0 {
            cutter.emit_all(&mut self.rows);
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
    }
}

/// The rows of one metrics table.
#[derive(Default)]
struct Lane<C> {
    rows: Rows<C>,
    /// For the current scope, unless the rows were emitted since.
    shared: Option<Shared>,
    raw_len: usize,
}

impl<C: MetricColumns> Lane<C> {
    fn emit(&mut self, cutter: &mut Cutter) -> bool {
        self.shared = None;
        self.raw_len = 0;
        self.rows.len() == 0 || cutter.emit_all(&mut self.rows)
    }

    fn push<'a, P: PointRow<'a, Columns = C>>(
        &mut self,
        point: &P,
        common: &Common,
        origin: Origin,
        space: &mut Space<'a>,
    ) {
        let rows = &mut self.rows;
        let shared = self
            .shared
            .get_or_insert_with(|| rows.shared(common.resource, common.scope));
        point.push(&mut rows.columns, common, shared, space);
        rows.end_row(origin);
        self.raw_len = rows.raw_len();
    }

    fn clear(&mut self) {
        self.shared = None;
        self.raw_len = 0;
        self.rows.clear();
    }
}

/// Data points. A batch's points go into one table per kind. The waiting rows of all tables together hold no more bytes
/// than one chunk: at that limit, the largest is emitted.
#[derive(Default)]
pub(super) struct Metrics {
    gauge: Lane<GaugeColumns>,
    sum: Lane<SumColumns>,
    histogram: Lane<HistogramColumns>,
    exponential_histogram: Lane<ExponentialHistogramColumns>,
    summary: Lane<SummaryColumns>,
}

impl Waiting for Metrics {
    fn add(&mut self, payload: &[u8], received_at_us: i64, cutter: &mut Cutter) -> Result<bool, Malformed> {
        let request = metrics::Request::parse(payload)?;
        let mut space = Space::default();
        for resource in request.resources() {
            let shared_resource = Resource::new(&resource);
            for scope in resource.scopes() {
                let shared_scope = Scope::new(&scope);
                self.forget_scope();
                for metric in scope.items() {
                    let mut common = Common {
                        resource: &shared_resource,
                        scope: &shared_scope,
                        metric: &metric,
                        aggregation_temporality: 0,
                        is_monotonic: false,
                    };
                    if !self.add_metric(&metric, &mut common, received_at_us, cutter, &mut space) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    fn finish(&mut self, cutter: &mut Cutter) {
        let Self {
            gauge,
            sum,
            histogram,
            exponential_histogram,
            summary,
        } = self;
        let _ = gauge.emit(cutter)
            && sum.emit(cutter)
            && histogram.emit(cutter)
            && exponential_histogram.emit(cutter)
            && summary.emit(cutter);
    }

    fn clear(&mut self) {
        let Self {
            gauge,
            sum,
            histogram,
            exponential_histogram,
            summary,
        } = self;
        gauge.clear();
        sum.clear();
        histogram.clear();
        exponential_histogram.clear();
        summary.clear();
    }
}

impl Metrics {
    fn forget_scope(&mut self) {
        self.gauge.shared = None;
        self.sum.shared = None;
        self.histogram.shared = None;
        self.exponential_histogram.shared = None;
        self.summary.shared = None;
    }

    fn add_metric<'a>(
        &mut self,
        metric: &Metric<'a>,
        common: &mut Common,
        received_at_us: i64,
        cutter: &mut Cutter,
        space: &mut Space<'a>,
    ) -> bool {
        macro_rules! add {
            ($points:ident to $lane:ident as $row:expr) => {{
                common.aggregation_temporality = $points.aggregation_temporality;
                common.is_monotonic = $points.is_monotonic;
                for point in $points {
                    self.$lane
                        .push(&$row(point), common, cutter.origin(received_at_us), space);
                    if self.$lane.rows.len() >= cutter.rows_max && !self.$lane.emit(cutter) {
                        return false;
                    }
                    if self.lengths().iter().sum::<usize>() >= cutter.bytes_max && !self.emit_largest(cutter)
                    {
                        return false;
                    }
                }
            }};
        }
        match metric.data {
            Data::Empty => {}
            Data::Gauge(points) => add!(points to gauge as GaugePoint),
            Data::Sum(points) => add!(points to sum as SumPoint),
            Data::Histogram(points) => add!(points to histogram as identity),
            Data::ExponentialHistogram(points) => add!(points to exponential_histogram as identity),
            Data::Summary(points) => add!(points to summary as identity),
        }
        true
    }

    fn lengths(&self) -> [usize; 5] {
        [
            self.gauge.raw_len,
            self.sum.raw_len,
            self.histogram.raw_len,
            self.exponential_histogram.raw_len,
            self.summary.raw_len,
        ]
    }

    /// The first of several equally large ones.
    fn emit_largest(&mut self, cutter: &mut Cutter) -> bool {
        let lengths = self.lengths();
        let largest = lengths.iter().max();
        match lengths.iter().position(|length| Some(length) == largest) {
            Some(0) => self.gauge.emit(cutter),
            Some(1) => self.sum.emit(cutter),
            Some(2) => self.histogram.emit(cutter),
            Some(3) => self.exponential_histogram.emit(cutter),
            _ => self.summary.emit(cutter),
        }
    }
}
