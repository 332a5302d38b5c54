//! Parses a settings file. Errors name lines and columns, and never quote the text, which may hold secrets.

use toml::{Table, Value};

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
}

/// Parses a settings file: strings, numbers, booleans and arrays of strings, at the top and in these tables.
///
/// # Errors
/// The first problem, with its line and column or its name. Never a value.
pub(crate) fn parse(text: &str, tables: &[&str]) -> Result<Vec<Setting>, String> {
    let file: Table = text.parse().map_err(|error: toml::de::Error| {
        // The parser's own display quotes the line.
        let offset = error.span().map_or(0, |span| span.start);
        format!("{}: {}", place(text, offset), error.message())
    })?;
    let mut settings = Vec::new();
    for (name, value) in &file {
        match value {
            Value::Table(table) if tables.contains(&name.as_str()) => {
                for (key, value) in table {
                    settings.push(setting(Some(name), key, value)?);
                }
            }
            Value::Table(_) => {
                let known = tables.join("] and [");
                return Err(format!("unknown table [{name}]: there are [{known}]"));
            }
            value => settings.push(setting(None, name, value)?),
        }
    }
    Ok(settings)
}

fn setting(table: Option<&String>, key: &str, value: &Value) -> Result<Setting, String> {
    let is_array = value.is_array();
    let value = match value {
        Value::String(text) => text.clone(),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => value.to_string(),
        Value::Array(values) => strings(values)
            .ok_or_else(|| format!("{key} is an array: each value must be a string without a comma"))?,
        other => {
            let found = other.type_str();
            return Err(format!(
                "{key} is of the type {found}: it must be a string, a number, true, false or an array of strings"
            ));
        }
    };
    Ok(Setting {
        table: table.cloned(),
        key: key.to_owned(),
        is_array,
        value,
    })
}

/// Joins strings as a flag takes them. `None` without any, or if a value is not a string or has a comma.
fn strings(values: &[Value]) -> Option<String> {
    let strings: Option<Vec<&str>> = values
        .iter()
        .map(|value| value.as_str().filter(|text| !text.contains(',')))
        .collect();
    strings
        .filter(|strings| !strings.is_empty())
        .map(|strings| strings.join(","))
}

/// The line and byte column of an offset, counted from 1.
fn place(text: &str, offset: usize) -> String {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    format!("line {line}, column {}", 1 + before.len() - line_start)
}
