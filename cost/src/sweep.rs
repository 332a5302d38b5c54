//! The same load at many settings: all combinations of the values of some knobs.

use crate::estimate::Inputs;
use crate::{CostError, Latency, Settings};
use serde::{Deserialize, Serialize};

/// A setting that a sweep can vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Knob {
    /// Seconds.
    Linger,
    /// Compressed bytes.
    Segment,
    /// Seconds.
    Poll,
    /// Seconds.
    Ack,
    /// A number.
    Producers,
}

impl Knob {
    /// All of them.
    pub const ALL: [Knob; 5] = [
        Knob::Linger,
        Knob::Segment,
        Knob::Poll,
        Knob::Ack,
        Knob::Producers,
    ];

    /// Its name in a sweep.
    pub fn name(self) -> &'static str {
        match self {
            Knob::Linger => "linger",
            Knob::Segment => "segment",
            Knob::Poll => "poll",
            Knob::Ack => "ack",
            Knob::Producers => "producers",
        }
    }

    pub(crate) fn flag(self) -> &'static str {
        match self {
            Knob::Linger => "--linger",
            Knob::Segment => "--segment",
            Knob::Poll => "--poll-interval",
            Knob::Ack => "--ack-interval",
            Knob::Producers => "--producers",
        }
    }

    pub(crate) fn value(self, settings: &Settings) -> f64 {
        match self {
            Knob::Linger => settings.linger_seconds,
            Knob::Segment => settings.segment_bytes,
            Knob::Poll => settings.poll_seconds,
            Knob::Ack => settings.ack_seconds,
            Knob::Producers => f64::from(settings.producers),
        }
    }

    /// Sets the knob. An invalid number of producers becomes 0, which the settings' check rejects.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and 0 is refused"
    )]
    pub(crate) fn set(self, settings: &mut Settings, value: f64) {
        match self {
            Knob::Linger => settings.linger_seconds = value,
            Knob::Segment => settings.segment_bytes = value,
            Knob::Poll => settings.poll_seconds = value,
            Knob::Ack => settings.ack_seconds = value,
            Knob::Producers => settings.producers = value as u32,
        }
    }
}

/// A knob and its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The knob.
    pub knob: Knob,
    /// Its values: seconds, bytes or a number.
    pub values: Vec<f64>,
}

/// One combination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The knobs' values, in the axes' order.
    pub values: Vec<f64>,
    /// The same, formatted for people.
    pub shown: Vec<String>,
    /// The cost; `None` if the combination is refused.
    pub usd_per_month: Option<f64>,
    /// From acceptance by a gateway to a row.
    pub latency: Option<Latency>,
    /// PUTs and LISTs per second.
    pub puts_per_second: Option<f64>,
    /// GETs per second.
    pub gets_per_second: Option<f64>,
    /// The reason for a refusal.
    pub refused: Option<String>,
}

/// All combinations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The axes of the sweep.
    pub axes: Vec<Axis>,
    /// All combinations; the last axis varies fastest.
    pub points: Vec<Point>,
    /// Index of the cheapest point, the first one of equals.
    pub cheapest: Option<usize>,
}

/// Maximum number of combinations.
const POINTS_MAX: usize = 2_000;

/// Prices every combination.
///
/// # Errors
/// There is no axis, an axis occurs twice or has no values, there are too many combinations, or the table lacks a
/// price.
pub fn sweep(inputs: &Inputs<'_>, axes: &[Axis]) -> Result<Sweep, CostError> {
    let wrong = |what: String| Err(CostError::Sweep(what));
    if axes.is_empty() {
        return wrong(
            "nothing to sweep over: write --sweep linger=250ms,1s,5s,segment=4MiB,16MiB".to_owned(),
        );
    }
    for (place, axis) in axes.iter().enumerate() {
        if axis.values.is_empty() {
            return wrong(format!("{} has no values", axis.knob.name()));
        }
        if axes[..place].iter().any(|before| before.knob == axis.knob) {
            return wrong(format!("{} is given twice", axis.knob.name()));
        }
    }
    let count = axes
        .iter()
        .try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len()));
    let Some(count) = count.filter(|count| *count <= POINTS_MAX) else {
        return wrong(format!("more than {POINTS_MAX} combinations: give fewer values"));
    };
    // A missing price is missing for every combination.
    inputs.price()?;
    let points: Vec<Point> = (0..count).map(|number| point(inputs, axes, number)).collect();
    let priced = points
        .iter()
        .enumerate()
        .filter_map(|(place, point)| Some((place, point.usd_per_month?)));
    let cheapest = priced
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(place, _)| place);
    Ok(Sweep {
        axes: axes.to_vec(),
        points,
        cheapest,
    })
}

fn point(inputs: &Inputs<'_>, axes: &[Axis], mut number: usize) -> Point {
    let mut values: Vec<f64> = axes
        .iter()
        .rev()
        .map(|axis| {
            let value = axis.values[number % axis.values.len()];
            number /= axis.values.len();
            value
        })
        .collect();
    values.reverse();
    let mut settings = inputs.settings.clone();
    for (axis, value) in axes.iter().zip(&values) {
        axis.knob.set(&mut settings, *value);
    }
    let shown = axes
        .iter()
        .zip(&values)
        .map(|(axis, value)| axis.knob.show(*value))
        .collect();
    let refused = Point {
        values,
        shown,
        usd_per_month: None,
        latency: None,
        puts_per_second: None,
        gets_per_second: None,
        refused: None,
    };
    match inputs.priced(&settings) {
        Err(error) => Point {
            refused: Some(error.to_string()),
            ..refused
        },
        Ok(priced) => {
            let requests = priced.activity.per_second();
            Point {
                usd_per_month: Some(priced.total),
                latency: Some(priced.latency),
                puts_per_second: Some(requests.put + requests.list),
                gets_per_second: Some(requests.get),
                ..refused
            }
        }
    }
}
