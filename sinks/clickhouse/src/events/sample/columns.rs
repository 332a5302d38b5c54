//! The columns of a sample: its keys, with the keys of small objects as columns of the table.

use super::kinds::{self, Scalar};
use super::members;
use crate::events::is_own;
use crate::events::time::Unit;
use std::collections::HashSet;

/// More different keys than this make an object a map or JSON.
pub(super) const KEYS_MAX: usize = 16;
/// Objects within objects that become columns.
const DEPTH_MAX: usize = 4;
/// A string is a word if the sample has twice as many values, and no more different ones than this.
const WORDS_MAX: usize = 1_000;

/// A column of the proposed table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    pub(super) kind: String,
    /// The unit of times that are numbers.
    pub(super) unit: Option<Unit>,
    /// The number of different values.
    pub(super) distinct: usize,
    /// The rows that have a value.
    rows: usize,
    is_nullable: bool,
    is_word: bool,
    is_time: bool,
    is_in_all_rows: bool,
}

impl Column {
    /// Returns true if rows should be sorted by this column before their time.
    pub(super) fn sorts_before_time(&self) -> bool {
        self.is_word && self.is_in_all_rows && self.distinct > 1
    }

    /// Something about the column that its type does not say.
    pub(super) fn note(&self, rows: usize) -> Option<String> {
        let lacking = rows - self.rows;
        if self.rows == 0 {
            Some("no row has a value, so the type is a guess".to_owned())
        } else if self.is_nullable {
            Some(format!("{lacking} of {rows} rows have no value, so NULL"))
        } else if lacking > 0 {
            Some(format!(
                "{lacking} of {rows} rows have no value, and get an empty one"
            ))
        } else {
            self.unit.map(|unit| format!("numbers in {unit} since 1970"))
        }
    }
}

/// The columns of the rows.
pub(super) fn of(rows: &[&str]) -> Vec<Column> {
    let mut columns = Vec::new();
    add(&[], rows, rows.len(), &mut columns);
    columns
}

/// The time of a row: the first column of times that all rows have.
pub(super) fn time(columns: &[Column]) -> Option<&Column> {
    columns
        .iter()
        .find(|column| column.is_time && column.is_in_all_rows)
}

/// The values at each key of some objects, in the order of first appearance.
pub(super) fn by_key<'a>(objects: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let mut places: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    let mut found: Vec<(String, Vec<&'a str>)> = Vec::new();
    for object in objects {
        for (key, value) in members(object) {
            let place = *places.entry(key).or_insert_with_key(|key| {
                found.push((key.clone(), Vec::new()));
                found.len() - 1
            });
            if value != "null" {
                found[place].1.push(value);
            }
        }
    }
    found
}

/// Adds the columns for the objects at the end of these keys.
fn add(keys: &[String], objects: &[&str], rows: usize, columns: &mut Vec<Column>) {
    for (key, values) in by_key(objects) {
        let path = [keys, std::slice::from_ref(&key)].concat();
        // A dot in a path separates keys, and a column's name is not empty.
        if key.is_empty() {
            continue;
        }
        if path.len() < DEPTH_MAX && !key.contains('.') && are_small_objects(&values) {
            add(&path, &values, rows, columns);
        } else {
            columns.push(column(path, &values, rows, columns));
        }
    }
}

/// Returns true if all values are objects, with few keys that paths can name.
fn are_small_objects(values: &[&str]) -> bool {
    !values.is_empty() && values.iter().all(|value| value.starts_with('{')) && {
        let keys = by_key(values);
        (1..=KEYS_MAX).contains(&keys.len())
            && keys.iter().all(|(key, _)| !key.is_empty() && !key.contains('.'))
    }
}

fn column(keys: Vec<String>, values: &[&str], rows: usize, columns: &[Column]) -> Column {
    let distinct = values.iter().collect::<HashSet<_>>().len();
    let is_in_all_rows = values.len() == rows;
    let unit = keys.last().and_then(|key| kinds::unit(key, values));
    let (mut kind, scalar) = match unit {
        Some(unit) => (kinds::of_unit(unit).to_owned(), Some(Scalar::Time)),
        None => kinds::of(values),
    };
    let is_word = scalar == Some(Scalar::Text)
        && distinct <= WORDS_MAX
        && !values.is_empty()
        && 2 * distinct <= values.len();
    if is_word {
        kind = format!("LowCardinality({kind})");
    }
    let is_nullable = !is_in_all_rows && scalar.is_some_and(|scalar| scalar != Scalar::Text);
    if is_nullable {
        kind = format!("Nullable({kind})");
    }
    Column {
        name: name(&keys, columns),
        keys,
        kind,
        unit,
        distinct,
        rows: values.len(),
        is_nullable,
        is_word,
        is_time: scalar == Some(Scalar::Time),
        is_in_all_rows,
    }
}

/// A name that no other column has, without regard to case: people would confuse them.
fn name(keys: &[String], columns: &[Column]) -> String {
    let name = keys.join("_");
    let is_taken = |name: &String| {
        is_own(name)
            || columns
                .iter()
                .any(|column| column.name.eq_ignore_ascii_case(name))
    };
    let mut numbered = (2..).map(|number| format!("{name}_{number}"));
    match is_taken(&name) {
        false => name,
        true => numbered.find(|name| !is_taken(name)).unwrap_or_default(),
    }
}
