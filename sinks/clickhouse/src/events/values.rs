//! Columns of any supported type, filled from JSON.

use super::json::{self, unescaped};
use super::kind::Kind;
use super::scalar;
use super::time::Unit;
use crate::frame::Frames;
use crate::native::{Column as _, Order, Strings, write_words};
use std::ops::Range;

/// The values of a column.
#[derive(Debug)]
pub(crate) enum Values {
    Fixed {
        width: usize,
        bytes: Vec<u8>,
    },
    Text(Strings),
    Nullable {
        nulls: Vec<u8>,
        values: Box<Values>,
    },
    /// Arrays. A map is an array of pairs.
    List {
        ends: Vec<u64>,
        items: Box<Values>,
    },
    Tuple(Vec<Values>),
}

/// A value that does not fit its column.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// The way to it from the column's value: `[2].name`.
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl Unfit {
    pub(crate) fn here(reason: impl Into<String>) -> Unfit {
        Unfit {
            path: String::new(),
            reason: reason.into(),
        }
    }

    fn within(self, step: &str) -> Unfit {
        Unfit {
            path: format!("{step}{}", self.path),
            ..self
        }
    }
}

impl Values {
    pub(crate) fn new(kind: &Kind) -> Values {
        if let Some(width) = kind.width() {
            return Values::Fixed {
                width,
                bytes: Vec::new(),
            };
        }
        match kind {
            Kind::Nullable(inner) => Values::Nullable {
                nulls: Vec::new(),
                values: Box::new(Values::new(inner)),
            },
            Kind::Array(items) => Values::list(Values::new(items)),
            Kind::Map(key, value) => Values::list(Values::Tuple(vec![Values::new(key), Values::new(value)])),
            Kind::Tuple(fields) => Values::Tuple(fields.iter().map(|(_, kind)| Values::new(kind)).collect()),
            _ => Values::Text(Strings::default()),
        }
    }

    fn list(items: Values) -> Values {
        Values::List {
            ends: Vec::new(),
            items: Box::new(items),
        }
    }

    /// A column of the same type without rows.
    pub(crate) fn emptied(&self) -> Values {
        match self {
            Values::Fixed { width, .. } => Values::Fixed {
                width: *width,
                bytes: Vec::new(),
            },
            Values::Text(_) => Values::Text(Strings::default()),
            Values::Nullable { values, .. } => Values::Nullable {
                nulls: Vec::new(),
                values: Box::new(values.emptied()),
            },
            Values::List { items, .. } => Values::list(items.emptied()),
            Values::Tuple(fields) => Values::Tuple(fields.iter().map(Values::emptied).collect()),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            Values::Fixed { width, bytes } => bytes.len() / width,
            Values::Text(strings) => strings.rows(),
            Values::Nullable { nulls, .. } => nulls.len(),
            Values::List { ends, .. } => ends.len(),
            Values::Tuple(fields) => fields.first().map_or(0, Values::rows),
        }
    }

    pub(crate) fn raw_len(&self) -> usize {
        match self {
            Values::Fixed { bytes, .. } => bytes.len(),
            // A server has an offset for each value, and splits a block by its size in memory.
            Values::Text(strings) => strings.raw_len() + 8 * strings.rows(),
            Values::Nullable { nulls, values } => nulls.len() + values.raw_len(),
            Values::List { ends, items } => 8 * ends.len() + items.raw_len(),
            Values::Tuple(fields) => fields.iter().map(Values::raw_len).sum(),
        }
    }

    /// Removes everything after this number of values.
    pub(crate) fn truncate(&mut self, rows: usize) {
        match self {
            Values::Fixed { width, bytes } => bytes.truncate(*width * rows),
            Values::Text(strings) => strings.truncate(rows),
            Values::Nullable { nulls, values } => {
                nulls.truncate(rows);
                values.truncate(rows);
            }
            Values::List { ends, items } => {
                ends.truncate(rows);
                items.truncate(count(ends));
            }
            Values::Tuple(fields) => fields.iter_mut().for_each(|field| field.truncate(rows)),
        }
    }

    pub(crate) fn write(&self, frames: &mut Frames) {
        self.write_in(None, frames);
    }

    /// The same, with the rows in this order.
    pub(crate) fn write_in(&self, order: Order<'_>, frames: &mut Frames) {
        match self {
            Values::Fixed { width, bytes } => write_fixed(*width, bytes, order, frames),
            Values::Text(strings) => strings.write_values(order, frames),
            Values::Nullable { nulls, values } => {
                write_fixed(1, nulls, order, frames);
                values.write_in(order, frames);
            }
            Values::List { ends, items } => match order {
                None => {
                    write_words(ends.iter().copied(), frames);
                    items.write(frames);
                }
                Some(order) => {
                    let ranges = order.iter().map(|&row| range(ends, row as usize));
                    let mut end = 0;
                    let ends = ranges.clone().map(|items| {
                        end += items.len() as u64;
                        end
                    });
                    write_words(ends, frames);
                    let places: Vec<u32> = ranges.flatten().map(place).collect();
                    items.write_in(Some(&places), frames);
                }
            },
            Values::Tuple(fields) => fields.iter().for_each(|field| field.write_in(order, frames)),
        }
    }

    /// Appends rows of another column of this type.
    pub(crate) fn append(&mut self, from: &Values, rows: &[usize]) {
        match (self, from) {
            (Values::Fixed { width, bytes }, Values::Fixed { bytes: from, .. }) => {
                for &row in rows {
                    bytes.extend_from_slice(&from[row * *width..(row + 1) * *width]);
                }
            }
            (Values::Text(strings), Values::Text(from)) => strings.append(from, rows),
            (
                Values::Nullable { nulls, values },
                Values::Nullable {
                    nulls: from_nulls,
                    values: from,
                },
            ) => {
                nulls.extend(rows.iter().map(|&row| from_nulls[row]));
                values.append(from, rows);
            }
            (
                Values::List { ends, items },
                Values::List {
                    ends: from_ends,
                    items: from,
                },
            ) => {
                for &row in rows {
                    let taken: Vec<usize> = range(from_ends, row).collect();
                    items.append(from, &taken);
                    ends.push(items.rows() as u64);
                }
            }
            (Values::Tuple(fields), Values::Tuple(from)) => {
                for (field, from) in fields.iter_mut().zip(from) {
                    field.append(from, rows);
                }
            }
            _ => unreachable!("both columns were made for one type"),
        }
    }

    /// Appends the value of a row that gives none.
    pub(crate) fn push_default(&mut self, kind: &Kind) {
        match (self, kind) {
            (Values::Fixed { width, bytes }, kind) => {
                // A server gives an Enum its smallest number.
                match kind {
                    Kind::Enum { names, .. } => {
                        let least = names.iter().map(|(_, number)| *number).min().unwrap_or(0);
                        bytes.extend_from_slice(&least.to_le_bytes()[..*width]);
                    }
                    _ => bytes.resize(bytes.len() + *width, 0),
                }
            }
            (Values::Text(strings), Kind::Json) => strings.push(b"{}"),
            (Values::Text(strings), _) => strings.push(b""),
            (Values::Nullable { nulls, values }, Kind::Nullable(inner)) => {
                nulls.push(1);
                values.push_default(inner);
            }
            (Values::List { ends, items }, _) => ends.push(items.rows() as u64),
            (Values::Tuple(fields), Kind::Tuple(kinds)) => {
                for (field, (_, kind)) in fields.iter_mut().zip(kinds) {
                    field.push_default(kind);
                }
            }
            _ => unreachable!("the column was made for this type"),
        }
    }

    /// Appends a JSON value. After an error the caller truncates.
    pub(crate) fn push(&mut self, kind: &Kind, unit: Unit, value: &str) -> Result<(), Unfit> {
        if value == "null" {
            self.push_default(kind);
            return Ok(());
        }
        match (self, kind) {
            (Values::Fixed { bytes, .. }, kind) => {
                scalar::push(kind, unit, value, bytes).map_err(Unfit::here)
            }
            (Values::Text(strings), Kind::Json) => {
                expect(value, '{', "an object")?;
                strings.push(value.as_bytes());
                Ok(())
            }
            (Values::Text(strings), _) => push_text(strings, value),
            (Values::Nullable { nulls, values }, Kind::Nullable(inner)) => {
                values.push(inner, unit, value)?;
                nulls.push(0);
                Ok(())
            }
            (Values::List { ends, items }, Kind::Array(kind)) => {
                expect(value, '[', "an array")?;
                let mut index = 0;
                json::items(value, |item| {
                    let pushed = items.push(kind, unit, item);
                    let pushed = pushed.map_err(|unfit| unfit.within(&format!("[{index}]")));
                    index += 1;
                    pushed
                })?;
                ends.push(items.rows() as u64);
                Ok(())
            }
            (Values::List { ends, items }, Kind::Map(key_kind, value_kind)) => {
                expect(value, '{', "an object")?;
                let Values::Tuple(pairs) = &mut **items else {
                    unreachable!("a map's items are pairs");
                };
                let [keys, values] = &mut pairs[..] else {
                    unreachable!("a pair has two fields");
                };
                json::members(value, |key, value| {
                    let step = format!(".{key}");
                    keys.push(key_kind, unit, &format!("\"{key}\""))
                        .map_err(|unfit| unfit.within(&step))?;
                    values
                        .push(value_kind, unit, value)
                        .map_err(|unfit| unfit.within(&step))
                })?;
                ends.push(keys.rows() as u64);
                Ok(())
            }
            (Values::Tuple(fields), Kind::Tuple(kinds)) => push_tuple(fields, kinds, unit, value),
            _ => unreachable!("the column was made for this type"),
        }
    }
}

/// A value of a block is in memory.
fn size(end: u64) -> usize {
    usize::try_from(end).expect("ends count values that are in memory")
}

/// The places of a row's items.
fn range(ends: &[u64], row: usize) -> Range<usize> {
    let start = row.checked_sub(1).map_or(0, |before| size(ends[before]));
    start..size(ends[row])
}

fn place(item: usize) -> u32 {
    u32::try_from(item).expect("a chunk has under 2^32 items")
}

fn write_fixed(width: usize, bytes: &[u8], order: Order<'_>, frames: &mut Frames) {
    let Some(order) = order else {
        frames.write(bytes);
        return;
    };
    let mut ordered = Vec::with_capacity(bytes.len());
    for &row in order {
        let start = row as usize * width;
        ordered.extend_from_slice(&bytes[start..start + width]);
    }
    frames.write(&ordered);
}

fn count(ends: &[u64]) -> usize {
    ends.last().map_or(0, |end| size(*end))
}

fn expect(value: &str, first: char, what: &str) -> Result<(), Unfit> {
    match value.starts_with(first) {
        true => Ok(()),
        false => Err(Unfit::here(format!("{} is not {what}", scalar::shown(value)))),
    }
}

/// A string as its value, and everything else as its JSON.
fn push_text(strings: &mut Strings, value: &str) -> Result<(), Unfit> {
    match scalar::string(value) {
        None => strings.push(value.as_bytes()),
        Some(inner) => {
            let text =
                unescaped(inner).ok_or_else(|| Unfit::here("an escape is half of a surrogate pair"))?;
            strings.push(text.as_bytes());
        }
    }
    Ok(())
}

fn push_tuple(
    fields: &mut [Values],
    kinds: &[(Option<String>, Kind)],
    unit: Unit,
    value: &str,
) -> Result<(), Unfit> {
    let is_named = kinds.iter().all(|(name, _)| name.is_some());
    if value.starts_with('{') && is_named {
        // The last of equal keys counts.
        let mut found: Vec<Option<&str>> = vec![None; kinds.len()];
        json::members(value, |key, value| {
            let key = unescaped(key);
            let place = kinds
                .iter()
                .position(|(name, _)| name.as_deref() == key.as_deref());
            if let Some(place) = place {
                found[place] = Some(value);
            }
            Ok::<_, Unfit>(())
        })?;
        for ((field, (name, kind)), value) in fields.iter_mut().zip(kinds).zip(found) {
            let step = format!(".{}", name.as_deref().unwrap_or_default());
            field
                .push(kind, unit, value.unwrap_or("null"))
                .map_err(|unfit| unfit.within(&step))?;
        }
        return Ok(());
    }
    expect(
        value,
        '[',
        if is_named {
            "an object or an array"
        } else {
            "an array"
        },
    )?;
    let mut index = 0;
    let wrong = || Unfit::here(format!("the array does not have {} items", kinds.len()));
    json::items(value, |item| {
        let (_, kind) = kinds.get(index).ok_or_else(wrong)?;
        let pushed = fields[index].push(kind, unit, item);
        let pushed = pushed.map_err(|unfit| unfit.within(&format!("[{index}]")));
        index += 1;
        pushed
    })?;
    if index == kinds.len() {
        Ok(())
    } else {
        Err(wrong())
    }
}
