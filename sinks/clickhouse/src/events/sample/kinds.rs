//! The type of a column: the first one that takes all its values.

use super::columns::{KEYS_MAX, by_key};
use crate::events::json::items;
use crate::events::kind::Kind;
use crate::events::time::Unit;
use crate::events::values::Values;
use crate::schema::identifier;
use std::convert::Infallible;

/// A value that can be NULL, or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Text,
    Time,
    Other,
}

/// Types of whole numbers. The first ones have room for more than the sample.
const INTEGERS: [&str; 6] = ["Int64", "UInt64", "Int128", "UInt128", "Int256", "UInt256"];

/// The type of these values, none of which is null.
pub(super) fn of(values: &[&str]) -> (String, Option<Scalar>) {
    let all = |test: fn(&str) -> bool| values.iter().all(|value| test(value));
    if values.is_empty() {
        return ("String".to_owned(), Some(Scalar::Text));
    }
    if all(|value| value.starts_with('"')) {
        return of_strings(values);
    }
    if all(|value| value == "true" || value == "false") {
        return ("Bool".to_owned(), Some(Scalar::Other));
    }
    if all(is_number) {
        let whole = all(|value| !value.contains(['.', 'e', 'E']));
        let candidates = INTEGERS.iter().filter(|_| whole).chain(&["Float64"]);
        return first(candidates.copied(), values, Scalar::Other);
    }
    if all(|value| value.starts_with('[')) {
        let mut inside = Vec::new();
        for array in values {
            let _ = items(array, |item| {
                inside.push(item);
                Ok::<_, Infallible>(())
            });
        }
        return (format!("Array({})", within(&inside)), None);
    }
    if all(|value| value.starts_with('{')) {
        return (of_objects(values), None);
    }
    // A string takes everything.
    ("String".to_owned(), Some(Scalar::Text))
}

fn is_number(value: &str) -> bool {
    value.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

/// The type of items or fields, some of which may be null.
fn within(values: &[&str]) -> String {
    let some: Vec<&str> = values.iter().copied().filter(|value| *value != "null").collect();
    match of(&some) {
        (kind, Some(scalar)) if scalar != Scalar::Text && some.len() < values.len() => {
            format!("Nullable({kind})")
        }
        (kind, _) => kind,
    }
}

fn of_objects(values: &[&str]) -> String {
    let keys = by_key(values);
    if (1..=KEYS_MAX).contains(&keys.len()) && keys.iter().all(|(key, _)| !key.is_empty()) {
        let fields = keys.iter().map(|(key, of_key)| {
            let (kind, scalar) = of(of_key);
            let is_nullable =
                of_key.len() < values.len() && scalar.is_some_and(|scalar| scalar != Scalar::Text);
            let kind = if is_nullable {
                format!("Nullable({kind})")
            } else {
                kind
            };
            format!("{} {kind}", identifier(key))
        });
        return format!("Tuple({})", fields.collect::<Vec<_>>().join(", "));
    }
    let all: Vec<&str> = keys.iter().flat_map(|(_, of_key)| of_key).copied().collect();
    match of(&all) {
        _ if keys.is_empty() => "JSON".to_owned(),
        (kind, Some(_)) => format!("Map(LowCardinality(String), {kind})"),
        (_, None) => "JSON".to_owned(),
    }
}

fn of_strings(values: &[&str]) -> (String, Option<Scalar>) {
    let digits = values.iter().map(|value| fraction(value)).max().unwrap_or(0);
    let times = [
        "DateTime64(3, 'UTC')",
        "DateTime64(6, 'UTC')",
        "DateTime64(9, 'UTC')",
    ];
    // A finer fraction would be cut off, and nanoseconds end in 2262.
    let times = match digits {
        0..=3 => &times[..1],
        4..=6 => &times[1..2],
        _ => &[times[2], times[1]][..],
    };
    let candidates = ["Date", "Date32", "UUID", "IPv4", "IPv6"];
    let is_time = |kind: &str| kind.starts_with("DateTime");
    // Numbers between quotes are words, and times begin with a year.
    let is_dated = values.iter().all(|value| value.as_bytes().get(5) == Some(&b'-'));
    let times = times.iter().copied().filter(|_| is_dated);
    let fitting = candidates
        .into_iter()
        .chain(times)
        .find(|kind| fits(kind, Unit::default(), values));
    match fitting {
        Some(kind) => (
            kind.to_owned(),
            Some(if is_time(kind) {
                Scalar::Time
            } else {
                Scalar::Other
            }),
        ),
        None => ("String".to_owned(), Some(Scalar::Text)),
    }
}

/// The digits of the fraction of a second, up to zeros.
fn fraction(value: &str) -> usize {
    let digits = value.split_once('.').map_or("", |(_, rest)| rest);
    let end = digits
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].trim_end_matches('0').len()
}

fn first<'k>(
    mut candidates: impl Iterator<Item = &'k str>,
    values: &[&str],
    scalar: Scalar,
) -> (String, Option<Scalar>) {
    match candidates.find(|kind| fits(kind, Unit::default(), values)) {
        Some(kind) => (kind.to_owned(), Some(scalar)),
        None => ("String".to_owned(), Some(Scalar::Text)),
    }
}

fn fits(kind: &str, unit: Unit, values: &[&str]) -> bool {
    Kind::parse(kind).is_some_and(|kind| {
        let mut column = Values::new(&kind);
        values.iter().all(|value| column.push(&kind, unit, value).is_ok())
    })
}

/// The unit of whole numbers that are times by their key and by their size: from 2001 to 2096.
pub(super) fn unit(key: &str, values: &[&str]) -> Option<Unit> {
    let lower = key.to_ascii_lowercase();
    let is_named = ["ts", "time", "timestamp", "at", "when", "date"].contains(&lower.as_str())
        || ["_at", "_ts", "_time", "_date", "timestamp", "_ms", "_us", "_ns"]
            .iter()
            .any(|end| lower.ends_with(end))
        || ["At", "Time", "Date"].iter().any(|end| key.ends_with(end));
    if !is_named || values.is_empty() {
        return None;
    }
    let units = [
        (Unit::Seconds, 1_000_000_000_u64),
        (Unit::Millis, 1_000_000_000_000),
        (Unit::Micros, 1_000_000_000_000_000),
        (Unit::Nanos, 1_000_000_000_000_000_000),
    ];
    let in_range = |least: u64| {
        let range = least..4 * least;
        values
            .iter()
            .all(|value| value.parse().is_ok_and(|number: u64| range.contains(&number)))
    };
    units
        .into_iter()
        .find(|(_, least)| in_range(*least))
        .map(|(unit, _)| unit)
}

/// The type of times in a unit.
pub(super) fn of_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "DateTime('UTC')",
        Unit::Millis => "DateTime64(3, 'UTC')",
        Unit::Micros => "DateTime64(6, 'UTC')",
        Unit::Nanos => "DateTime64(9, 'UTC')",
    }
}
