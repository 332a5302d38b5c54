//! Draws a sweep as SVG: dollars per month against the 99th percentile of the latency.

use crate::CostError;
use crate::settings::time;
use crate::sweep::{Knob, Point, Sweep};
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

const SIZE: (u32, u32) = (960, 560);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(34, 40, 49);
const GRID: RGBColor = RGBColor(224, 228, 233);
/// Distinguishable with colour blindness (Okabe and Ito's palette without yellow).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];
/// Above this ratio of largest to smallest value, an axis is logarithmic.
const LOGARITHMIC: f64 = 12.0;

/// Labels closer than this many pixels would overlap.
const LABEL: (i32, i32) = (84, 15);

/// A point of a line: seconds, dollars, and its label.
type Mark = (f64, f64, String);

/// Draws a sweep, with one line for each combination of the axes other than the linger (or the first axis).
///
/// # Errors
/// No combination can be priced.
pub fn chart(sweep: &Sweep, title: &str) -> Result<String, CostError> {
    let along = sweep
        .axes
        .iter()
        .position(|axis| axis.knob == Knob::Linger)
        .unwrap_or(0);
    let mut lines: BTreeMap<Vec<usize>, (String, Vec<Mark>)> = BTreeMap::new();
    let mut points: Vec<&Point> = sweep.points.iter().collect();
    points.sort_by(|a, b| a.values[along].total_cmp(&b.values[along]));
    for point in points {
        let Point {
            usd_per_month: Some(usd),
            latency: Some(latency),
            ..
        } = point
        else {
            continue;
        };
        let others = || sweep.axes.iter().enumerate().filter(|(place, _)| *place != along);
        let key = others()
            .map(|(place, axis)| {
                axis.values
                    .iter()
                    .position(|value| *value == point.values[place])
                    .unwrap_or(0)
            })
            .collect();
        let name = others()
            .map(|(place, axis)| format!("{} {}", axis.knob.name(), point.shown[place]))
            .collect::<Vec<_>>()
            .join(", ");
        let mark = (latency.p99_seconds, *usd, point.shown[along].clone());
        lines
            .entry(key)
            .or_insert_with(|| (name, Vec::new()))
            .1
            .push(mark);
    }
    let mut lines: Vec<(String, Vec<Mark>)> = lines.into_values().collect();
    for (_, marks) in &mut lines {
        marks.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Above some linger it makes no difference: segments fill up first.
        marks.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same && !kept.2.ends_with('+') {
                kept.2.push('+');
            }
            same
        });
    }
    let all = || lines.iter().flat_map(|(_, marks)| marks);
    let xs = bounds(all().map(|mark| mark.0));
    let ys = bounds(all().map(|mark| mark.1));
    let (Some(xs), Some(ys)) = (xs, ys) else {
        return Err(CostError::Sweep(
            "nothing to draw: every combination is refused".to_owned(),
        ));
    };
    let along = sweep.axes[along].knob.name();
    let wide = |range: &Range<f64>| range.end / range.start > LOGARITHMIC;
    let log = |range: Range<f64>| {
        let range = range.start / 1.15..range.end * 1.25;
        range.clone().log_scale().with_key_points(one_two_five(range))
    };
    let flat = |range: Range<f64>| 0.0..range.end * 1.12;
    let picture = match (wide(&xs), wide(&ys)) {
        (true, true) => draw(title, along, &lines, log(xs), log(ys)),
        (true, false) => draw(title, along, &lines, log(xs), flat(ys)),
        (false, true) => draw(title, along, &lines, flat(xs), log(ys)),
        (false, false) => draw(title, along, &lines, flat(xs), flat(ys)),
    };
    picture.map_err(|error| CostError::Sweep(format!("cannot draw the chart: {error}")))
}

/// 0.1, 0.2, 0.5, 1, 2, 5, … within a range.
fn one_two_five(range: Range<f64>) -> Vec<f64> {
    let steps = (-6..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    steps.filter(|step| range.contains(step)).collect()
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    values.fold(None, |range, value| match range {
        None => Some(value..value),
        Some(range) => Some(range.start.min(value)..range.end.max(value)),
    })
}

fn draw<X, Y>(title: &str, along: &str, lines: &[(String, Vec<Mark>)], xs: X, ys: Y) -> Result<String, String>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut svg = String::new();
    {
        let text_error = |error: DrawingAreaErrorKind<std::io::Error>| error.to_string();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(text_error)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 18, &INK))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(76)
            .build_cartesian_2d(xs, ys)
            .map_err(text_error)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style((FONT, 13, &INK))
            .axis_desc_style((FONT, 14, &INK))
            .x_desc("from gateway to row, 99 of 100 records are faster")
            .y_desc("US dollars a month")
            .x_label_formatter(&|seconds| time(*seconds))
            .y_label_formatter(&|usd| dollars(*usd))
            .draw()
            .map_err(text_error)?;
        for (number, (name, marks)) in lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let line = marks.iter().map(|(x, y, _)| (*x, *y));
            let drawn = chart
                .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))
                .map_err(text_error)?;
            if !name.is_empty() {
                drawn
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
            }
            chart
                .draw_series(line.map(|place| Circle::new(place, 4, colour.filled())))
                .map_err(text_error)?;
        }
        let mut taken: Vec<(i32, i32)> = Vec::new();
        for (x, y, shown) in lines.iter().flat_map(|(_, marks)| marks) {
            let place = chart.backend_coord(&(*x, *y));
            let near = |other: &(i32, i32)| {
                (other.0 - place.0).abs() < LABEL.0 && (other.1 - place.1).abs() < LABEL.1
            };
            if taken.iter().any(near) {
                continue;
            }
            taken.push(place);
            let text = Text::new(
                format!("{along} {shown}"),
                (8, -16),
                (FONT, 12).into_font().color(&INK),
            );
            chart
                .draw_series([EmptyElement::at((*x, *y)) + text])
                .map_err(text_error)?;
        }
        if lines.iter().any(|(name, _)| !name.is_empty()) {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.mix(0.9))
                .border_style(GRID)
                .label_font((FONT, 13, &INK))
                .draw()
                .map_err(text_error)?;
        }
        area.present().map_err(text_error)?;
    }
    Ok(svg)
}

fn dollars(usd: f64) -> String {
    if usd == 0.0 {
        "$0".to_owned()
    } else if usd < 10.0 {
        format!("${usd:.2}")
    } else {
        format!("${usd:.0}")
    }
}
