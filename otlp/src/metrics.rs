//! Borrowed views of an `ExportMetricsServiceRequest`. If a metric has several kinds of data, only the last one counts,
//! as in the Collector (protobuf itself would merge two of one kind).

use crate::packed::{Fixed64s, Varints};
use crate::request::{Item, Messages};
use crate::signal::Signal;
use crate::value::{KeyValues, low_i32, low_u32, zigzag_i32};
use crate::wire::{Reader, Value};
use std::marker::PhantomData;

/// A validated request for metrics.
pub type Request<'a> = crate::Request<'a, Metric<'a>>;

/// One metric: data points of one kind under one name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metric<'a> {
    bytes: &'a [u8],
    /// The metric's name.
    pub name: &'a [u8],
    /// The metric's description.
    pub description: &'a [u8],
    /// The unit in UCUM notation.
    pub unit: &'a [u8],
    /// Its data points.
    pub data: Data<'a>,
}

impl<'a> Item<'a> for Metric<'a> {
    const SIGNAL: Signal = Signal::Metrics;

    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut metric = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(name)) => metric.name = name,
                (2, Value::Len(description)) => metric.description = description,
                (3, Value::Len(unit)) => metric.unit = unit,
                (5, Value::Len(data)) => metric.data = Data::Gauge(Points::new(data)),
                (7, Value::Len(data)) => metric.data = Data::Sum(Points::new(data)),
                (9, Value::Len(data)) => metric.data = Data::Histogram(Points::new(data)),
                (10, Value::Len(data)) => metric.data = Data::ExponentialHistogram(Points::new(data)),
                (11, Value::Len(data)) => metric.data = Data::Summary(Points::new(data)),
                _ => {}
            }
        }
        metric
    }
}

impl<'a> Metric<'a> {
    /// The metric's metadata, in order.
    pub fn metadata(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 12)
    }
}

/// The data points of a metric, by their kind.
#[derive(Clone, Copy, Debug, Default)]
pub enum Data<'a> {
    /// No data, or data of a kind that this version does not know.
    #[default]
    Empty,
    /// Current values.
    Gauge(Points<'a, NumberDataPoint<'a>>),
    /// Values that add up.
    Sum(Points<'a, NumberDataPoint<'a>>),
    /// Distributions in buckets with explicit bounds.
    Histogram(Points<'a, HistogramDataPoint<'a>>),
    /// Distributions in buckets whose bounds grow exponentially.
    ExponentialHistogram(Points<'a, ExponentialHistogramDataPoint<'a>>),
    /// Quantiles that the source computed.
    Summary(Points<'a, SummaryDataPoint<'a>>),
}

/// Data points of one kind and their common fields.
#[derive(Clone, Copy, Debug)]
pub struct Points<'a, P> {
    messages: Messages<'a>,
    points: PhantomData<P>,
    /// OTLP defines 0 to 2: unspecified, delta, cumulative. 0 for kinds without temporality.
    pub aggregation_temporality: i32,
    /// A sum that never falls. False for other kinds.
    pub is_monotonic: bool,
}

impl<'a, P: Point<'a>> Points<'a, P> {
    fn new(data: &'a [u8]) -> Self {
        let mut points = Self {
            messages: Messages::new(data, 1),
            points: PhantomData,
            aggregation_temporality: 0,
            is_monotonic: false,
        };
        let mut reader = Reader::new(data);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Varint(temporality)) => points.aggregation_temporality = low_i32(temporality),
                (3, Value::Varint(truth)) => points.is_monotonic = truth != 0,
                _ => {}
            }
        }
        points
    }
}

impl<'a, P: Point<'a>> Iterator for Points<'a, P> {
    type Item = P;

    #[inline]
    fn next(&mut self) -> Option<P> {
        self.messages.next().map(P::read)
    }
}

/// A kind of data point.
pub trait Point<'a>: Sized {
    /// Reads a point from the bytes of its validated message.
    fn read(bytes: &'a [u8]) -> Self;
}

/// A number, in the representation of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Number {
    /// No value.
    #[default]
    Empty,
    /// A signed integer.
    Int(i64),
    /// A double, with the bits of any NaN unchanged.
    Double(f64),
}

/// A value at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberDataPoint<'a> {
    bytes: &'a [u8],
    /// Start of the interval, in unix nanoseconds; 0 if unknown.
    pub start_time_unix_nano: u64,
    /// Time of the reading, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// The value.
    pub value: Number,
    /// Bit 0: no value was recorded.
    pub flags: u32,
}

impl<'a> Point<'a> for NumberDataPoint<'a> {
    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut point = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Fixed64(time)) => point.start_time_unix_nano = time,
                (3, Value::Fixed64(time)) => point.time_unix_nano = time,
                (4, Value::Fixed64(bits)) => point.value = Number::Double(f64::from_bits(bits)),
                (6, Value::Fixed64(bits)) => point.value = Number::Int(bits.cast_signed()),
                (8, Value::Varint(flags)) => point.flags = low_u32(flags),
                _ => {}
            }
        }
        point
    }
}

impl<'a> NumberDataPoint<'a> {
    /// The attributes of the data point, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 7)
    }

    /// Example measurements, in order.
    pub fn exemplars(&self) -> impl Iterator<Item = Exemplar<'a>> + use<'a> {
        Messages::new(self.bytes, 5).map(Exemplar::read)
    }
}

/// A distribution in buckets with explicit bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistogramDataPoint<'a> {
    bytes: &'a [u8],
    /// Start of the interval, in unix nanoseconds; 0 if unknown.
    pub start_time_unix_nano: u64,
    /// Time of the reading, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: Option<f64>,
    /// The smallest of them.
    pub min: Option<f64>,
    /// The largest of them.
    pub max: Option<f64>,
    /// Bit 0: no value was recorded.
    pub flags: u32,
}

impl<'a> Point<'a> for HistogramDataPoint<'a> {
    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut point = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Fixed64(time)) => point.start_time_unix_nano = time,
                (3, Value::Fixed64(time)) => point.time_unix_nano = time,
                (4, Value::Fixed64(count)) => point.count = count,
                (5, Value::Fixed64(bits)) => point.sum = Some(f64::from_bits(bits)),
                (10, Value::Varint(flags)) => point.flags = low_u32(flags),
                (11, Value::Fixed64(bits)) => point.min = Some(f64::from_bits(bits)),
                (12, Value::Fixed64(bits)) => point.max = Some(f64::from_bits(bits)),
                _ => {}
            }
        }
        point
    }
}

impl<'a> HistogramDataPoint<'a> {
    /// The number of values in each bucket.
    pub fn bucket_counts(&self) -> Fixed64s<'a> {
        Fixed64s::new(self.bytes, 6)
    }

    /// The buckets' upper bounds; the last bucket has none.
    pub fn explicit_bounds(&self) -> impl Iterator<Item = f64> + use<'a> {
        Fixed64s::new(self.bytes, 7).map(f64::from_bits)
    }

    /// The attributes of the data point, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 9)
    }

    /// Example measurements, in order.
    pub fn exemplars(&self) -> impl Iterator<Item = Exemplar<'a>> + use<'a> {
        Messages::new(self.bytes, 8).map(Exemplar::read)
    }
}

/// A distribution in buckets whose bounds grow exponentially.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExponentialHistogramDataPoint<'a> {
    bytes: &'a [u8],
    /// Start of the interval, in unix nanoseconds; 0 if unknown.
    pub start_time_unix_nano: u64,
    /// Time of the reading, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: Option<f64>,
    /// The smallest of them.
    pub min: Option<f64>,
    /// The largest of them.
    pub max: Option<f64>,
    /// Bucket bounds are powers of 2^(2^-scale).
    pub scale: i32,
    /// Number of values within `zero_threshold` of zero.
    pub zero_count: u64,
    /// Width of the bucket around zero.
    pub zero_threshold: f64,
    /// Bit 0: no value was recorded.
    pub flags: u32,
}

impl<'a> Point<'a> for ExponentialHistogramDataPoint<'a> {
    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut point = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Fixed64(time)) => point.start_time_unix_nano = time,
                (3, Value::Fixed64(time)) => point.time_unix_nano = time,
                (4, Value::Fixed64(count)) => point.count = count,
                (5, Value::Fixed64(bits)) => point.sum = Some(f64::from_bits(bits)),
                (6, Value::Varint(scale)) => point.scale = zigzag_i32(scale),
                (7, Value::Fixed64(count)) => point.zero_count = count,
                (10, Value::Varint(flags)) => point.flags = low_u32(flags),
                (12, Value::Fixed64(bits)) => point.min = Some(f64::from_bits(bits)),
                (13, Value::Fixed64(bits)) => point.max = Some(f64::from_bits(bits)),
                (14, Value::Fixed64(bits)) => point.zero_threshold = f64::from_bits(bits),
                _ => {}
            }
        }
        point
    }
}

impl<'a> ExponentialHistogramDataPoint<'a> {
    /// The buckets of values above zero.
    pub fn positive(&self) -> Buckets<'a> {
        Buckets::new(self.bytes, 8)
    }

    /// The buckets of values below zero.
    pub fn negative(&self) -> Buckets<'a> {
        Buckets::new(self.bytes, 9)
    }

    /// The attributes of the data point, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 1)
    }

    /// Example measurements, in order.
    pub fn exemplars(&self) -> impl Iterator<Item = Exemplar<'a>> + use<'a> {
        Messages::new(self.bytes, 11).map(Exemplar::read)
    }
}

/// One side of an exponential histogram.
#[derive(Clone, Copy, Debug)]
pub struct Buckets<'a> {
    messages: Messages<'a>,
    /// The index of the first bucket.
    pub offset: i32,
}

impl<'a> Buckets<'a> {
    fn new(point: &'a [u8], number: u32) -> Self {
        let mut buckets = Self {
            messages: Messages::new(point, number),
            offset: 0,
        };
        for message in buckets.messages {
            let mut reader = Reader::new(message);
            while let Some((number, value)) = reader.next_field() {
                if let (1, Value::Varint(offset)) = (number, value) {
                    buckets.offset = zigzag_i32(offset);
                }
            }
        }
        buckets
    }

    /// The number of values in each bucket, from the first on.
    pub fn counts(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.messages.flat_map(|message| Varints::new(message, 2))
    }
}

/// Quantiles at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SummaryDataPoint<'a> {
    bytes: &'a [u8],
    /// Start of the interval, in unix nanoseconds; 0 if unknown.
    pub start_time_unix_nano: u64,
    /// Time of the reading, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// Bit 0: no value was recorded.
    pub flags: u32,
}

impl<'a> Point<'a> for SummaryDataPoint<'a> {
    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut point = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Fixed64(time)) => point.start_time_unix_nano = time,
                (3, Value::Fixed64(time)) => point.time_unix_nano = time,
                (4, Value::Fixed64(count)) => point.count = count,
                (5, Value::Fixed64(bits)) => point.sum = f64::from_bits(bits),
                (8, Value::Varint(flags)) => point.flags = low_u32(flags),
                _ => {}
            }
        }
        point
    }
}

impl<'a> SummaryDataPoint<'a> {
    /// The attributes of the data point, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 7)
    }

    /// The quantiles, in order.
    pub fn quantiles(&self) -> impl Iterator<Item = Quantile> + use<'a> {
        Messages::new(self.bytes, 6).map(Quantile::read)
    }
}

/// A value below which a fraction of all values lies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantile {
    /// The fraction, 0 to 1.
    pub quantile: f64,
    /// The value.
    pub value: f64,
}

impl Quantile {
    fn read(bytes: &[u8]) -> Self {
        let mut quantile = Self::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Fixed64(bits)) => quantile.quantile = f64::from_bits(bits),
                (2, Value::Fixed64(bits)) => quantile.value = f64::from_bits(bits),
                _ => {}
            }
        }
        quantile
    }
}

/// An example measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exemplar<'a> {
    bytes: &'a [u8],
    /// Time of the measurement, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// The measured value.
    pub value: Number,
    /// The active span as sent.
    pub span_id: &'a [u8],
    /// The active trace as sent.
    pub trace_id: &'a [u8],
}

impl<'a> Exemplar<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut exemplar = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Fixed64(time)) => exemplar.time_unix_nano = time,
                (3, Value::Fixed64(bits)) => exemplar.value = Number::Double(f64::from_bits(bits)),
                (4, Value::Len(id)) => exemplar.span_id = id,
                (5, Value::Len(id)) => exemplar.trace_id = id,
                (6, Value::Fixed64(bits)) => exemplar.value = Number::Int(bits.cast_signed()),
                _ => {}
            }
        }
        exemplar
    }

    /// Attributes of the measurement that the data point does not have, in order.
    pub fn filtered_attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 7)
    }
}
