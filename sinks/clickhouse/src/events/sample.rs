//! Proposes a table for events from a sample of them. Pure.
//!
//! A column gets the first type that takes all values of the sample, so every row of the sample fits the table.

mod columns;
mod kinds;

use super::json::{self, items};
use super::{EventTable, Origin, rows};
use crate::config::Config;
use crate::schema::ddl::{Object, TEXT_INDEXES, create_event_table};
use crate::schema::{RECEIVED_AT, identifier};
use columns::Column;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;

/// A table that takes the rows of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The table for `--event-tables`.
    pub table: EventTable,
    /// The statements that create the database and the table, with comments that say why.
    pub sql: String,
}

/// The most columns of low cardinality in a sorting key, before the time.
const SORTED_BY_MAX: usize = 2;

/// Proposes a table for a stream. The sample is NDJSON or other JSON objects one after the other, or an array of them.
///
/// # Errors
/// The reason why the sample cannot be used, with line and column.
pub fn propose(config: &Config, stream: &str, table: &str, sample: &[u8]) -> Result<Proposal, String> {
    let rows = read(sample)?;
    let columns = columns::of(&rows);
    if columns.is_empty() {
        return Err("no row has a key".to_owned());
    }
    let time = columns::time(&columns);
    let mut key: Vec<&Column> = columns
        .iter()
        .filter(|column| column.sorts_before_time())
        .collect();
    key.sort_by_key(|column| column.distinct);
    key.truncate(SORTED_BY_MAX);
    let names = key.iter().map(|column| identifier(&column.name));
    let time = identifier(time.map_or(RECEIVED_AT, |column| &column.name));
    let key: Vec<String> = names.chain([time.clone()]).collect();

    let mut sql = format!(
        "-- Proposed from {} rows for stream {stream}. Before you use it, check the types, and the key by which rows are sorted:\n\
         -- it begins with columns of few values, and ends with a time.\n",
        rows.len()
    );
    for column in &columns {
        if let Some(note) = column.note(rows.len()) {
            let _ = writeln!(sql, "-- {}: {note}.", column.name.escape_debug());
        }
    }
    let database = Object::Database.create(config, TEXT_INDEXES);
    let _ = writeln!(sql, "{};\n", database.unwrap_or_default());
    let definitions: Vec<String> = columns
        .iter()
        .map(|column| format!("{} {}", identifier(&column.name), column.kind))
        .collect();
    sql.push_str(&create_event_table(
        config,
        table,
        definitions,
        &time,
        &key.join(", "),
    ));
    sql.push_str(";\n");
    let origins = columns.into_iter().filter_map(|column| {
        let is_named = column.unit.is_none() && column.keys == [column.name.as_str()];
        let origin = Origin::Path {
            keys: column.keys,
            unit: column.unit.unwrap_or_default(),
        };
        (!is_named).then_some((column.name, origin))
    });
    let table = EventTable {
        stream: stream.to_owned(),
        table: table.to_owned(),
        columns: origins.collect::<BTreeMap<_, _>>(),
        transform: None,
    };
    Ok(Proposal { table, sql })
}

/// The objects of a sample.
fn read(sample: &[u8]) -> Result<Vec<&str>, String> {
    let mut found = Vec::new();
    let mut fault = None;
    rows(sample, |row| {
        match row {
            Ok(row) if row.starts_with('{') => found.push(row),
            Ok(row) if row.starts_with('[') => {
                let taken = items(row, |item| match item.starts_with('{') {
                    true => {
                        found.push(item);
                        Ok(())
                    }
                    false => Err(item),
                });
                fault = taken.err().map(|item| not_an_object(sample, item));
            }
            Ok(row) => fault = Some(not_an_object(sample, row)),
            // The parser says where.
            Err((_, error)) => fault = Some(format!("malformed JSON: {error}")),
        }
        fault.is_none()
    });
    match fault {
        Some(fault) => Err(fault),
        None if found.is_empty() => Err("there is no row".to_owned()),
        None => Ok(found),
    }
}

fn not_an_object(sample: &[u8], value: &str) -> String {
    let at = value.as_ptr() as usize - sample.as_ptr() as usize;
    let before = &sample[..at];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    format!(
        "line {line}, column {column}: {} is not an object",
        super::scalar::shown(value)
    )
}

/// The keys of an object with their values, in the order of their first appearance. The last of equal keys counts.
fn members(object: &str) -> Vec<(String, &str)> {
    let mut found: Vec<(String, &str)> = Vec::new();
    let _ = json::members(object, |key, value| {
        // No column can take a key with half of a surrogate pair.
        if let Some(key) = json::unescaped(key) {
            match found.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => found.push((key.into_owned(), value)),
            }
        }
        Ok::<_, Infallible>(())
    });
    found
}

#[cfg(test)]
mod tests;
