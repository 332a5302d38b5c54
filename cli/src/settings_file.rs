//! Parses a settings file. Errors name lines and columns, and never quote the text, which may hold secrets.

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Its table; `None` at the top.
    pub(crate) table: Option<String>,
    /// Its name.
    pub(crate) key: String,
    /// Its value, as a flag takes it.
    pub(crate) value: String,
    /// The value comes from an array of strings, now joined with commas.
    pub(crate) is_array: bool,
    /// The line of its key, counted from 1.
    pub(crate) line: usize,
}

/// Parses a settings file: strings, numbers, booleans and arrays of strings, at the top and in these tables.
///
/// # Errors
/// The first problem, with its line and column or its name. Never a value.
pub(crate) fn parse(text: &str, tables: &[&str]) -> Result<Vec<Setting>, String> {
    let file = DeTable::parse(text).map_err(|error| {
        // The parser's own display quotes the line.
        let offset = error.span().map_or(0, |span| span.start);
        let (line, column) = place(text, offset);
        format!("line {line}, column {column}: {}", error.message())
    })?;
    let mut settings = Vec::new();
    for (name, value) in file.get_ref() {
        let line_of = |offset| place(text, offset).0;
        let line = line_of(name.span().start);
        let name = name.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(table) if tables.contains(&name) => {
                for (key, value) in table {
                    let line = line_of(key.span().start);
                    settings.push(setting(Some(name), key.get_ref(), value.get_ref(), line)?);
                }
            }
            DeValue::Table(_) => {
                let known = tables.join("] and [");
                return Err(format!(
                    "line {line}: unknown table [{name}]: there are [{known}]"
                ));
            }
            value => settings.push(setting(None, name, value, line)?),
        }
    }
    Ok(settings)
}

fn setting(table: Option<&str>, key: &str, value: &DeValue<'_>, line: usize) -> Result<Setting, String> {
    let array = "is an array: each value must be a string without a comma";
    let number = "is a number outside the range of 64 bits";
    let wrong = |why: &str| format!("line {line}: {key} {why}");
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| wrong(number))?
            .to_string(),
        DeValue::Float(float) => {
            let float = float.as_str().parse().map_err(|_| wrong(number))?;
            Value::Float(float).to_string()
        }
        DeValue::Array(values) => strings(values.iter().map(Spanned::get_ref)).ok_or_else(|| wrong(array))?,
        other => {
            return Err(wrong(&format!(
                "is of the type {}: it must be a string, a number, true, false or an array of strings",
                other.type_str()
            )));
        }
    };
    Ok(Setting {
        table: table.map(str::to_owned),
        key: key.to_owned(),
        value: text,
        is_array: value.is_array(),
        line,
    })
}

/// Joins strings as a flag takes them. `None` without any, or if a value is not a string or has a comma.
fn strings<'a>(values: impl Iterator<Item = &'a DeValue<'a>>) -> Option<String> {
    let strings: Option<Vec<&str>> = values
        .map(|value| value.as_str().filter(|text| !text.contains(',')))
        .collect();
    strings
        .filter(|strings| !strings.is_empty())
        .map(|strings| strings.join(","))
}

/// The line and byte column of an offset, counted from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    (line, 1 + before.len() - line_start)
}
