//! Tables for streams of JSON events: which column a row's values go to. Pure: the server's columns are an argument.

mod kind;
mod ranks;
mod sample;
mod scalar;
mod time;
mod values;
mod wide;

use crate::config::{Columns, Config};
use crate::native::{Column as _, Numbers};
use crate::schema::judge::{Fault, Found};
use crate::schema::{MILLPOND, RECEIVED_AT, identifier};
use crate::sorting::{KeyColumn, Ranks};
use crate::transform::Transform;
use kind::Kind;
pub(crate) use millpond_events::{KeyPaths, json};
pub use sample::{Proposal, propose};
use std::collections::{BTreeMap, HashMap};
pub use time::Unit;
use values::Unfit;
pub(crate) use values::Values;

/// A stream of events and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTable {
    /// The stream.
    pub stream: String,
    /// The table's name, in the sink's database. It must exist.
    pub table: String,
    /// The origins of columns whose values are not at the key of their name.
    pub columns: BTreeMap<String, Origin>,
    /// The program that makes the rows from the events. Without one, each event is a row.
    pub transform: Option<Transform>,
}

/// Where the values of a column come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The value at the end of these keys.
    Path {
        /// Keys from the outside to the inside, at least one.
        keys: Vec<String>,
        /// The unit of times that are numbers.
        unit: Unit,
    },
    /// The same value in each row, as JSON.
    Constant(String),
    /// The time at which the gateway received the message.
    ReceivedAt,
}

/// The way from rows of a stream to the columns of its table.
#[derive(Debug)]
pub(crate) struct Plan {
    columns: Vec<Planned>,
    /// The top-level keys that columns read, in the order of the first of these columns.
    keys: Vec<ReadKey>,
    /// Their places.
    by_name: HashMap<String, usize>,
    /// Columns with a DEFAULT that the server fills.
    pub(crate) left_to_server: Vec<String>,
    /// The program that makes the rows.
    pub(crate) transform: Option<Transform>,
}

/// A top-level key and the places of the columns that read it.
#[derive(Debug)]
struct ReadKey {
    name: String,
    columns: Vec<usize>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    kind: Kind,
    origin: Origin,
}

impl Plan {
    /// Decides by the settings and the table's columns alone, never by rows.
    pub(crate) fn new(events: &EventTable, path: &str, found: &[Found]) -> Result<Plan, Vec<Fault>> {
        let mut plan = Plan {
            columns: Vec::new(),
            keys: Vec::new(),
            by_name: HashMap::new(),
            left_to_server: Vec::new(),
            transform: events.transform.clone(),
        };
        let mut faults = Vec::new();
        for name in events.columns.keys() {
            if !found.iter().any(|column| column.name == *name) || is_own(name) {
                faults.push(Fault::new(
                    format!("the settings of stream {} name column {name}, which table {path} does not have for events", events.stream),
                    "add the column, or correct the name in the file of --event-tables",
                ));
            }
        }
        for column in found.iter().filter(|column| !is_own(&column.name)) {
            let origin = events.columns.get(&column.name);
            match column.default_kind.as_str() {
                "" => {}
                "DEFAULT" if origin.is_some() => {}
                "DEFAULT" => {
                    plan.left_to_server.push(column.name.clone());
                    continue;
                }
                computed if origin.is_some() => {
                    faults.push(Fault::new(
                        format!(
                            "column {} of table {path} is {computed} and cannot be written",
                            column.name
                        ),
                        "remove it from the file of --event-tables",
                    ));
                    continue;
                }
                _ => continue,
            }
            let origin = origin.cloned().unwrap_or_else(|| Origin::Path {
                keys: vec![column.name.clone()],
                unit: Unit::default(),
            });
            if let Err(fault) = plan.add(column, origin, path) {
                faults.push(fault);
            }
        }
        if plan.columns.is_empty() && faults.is_empty() {
            faults.push(Fault::new(
                format!(
                    "table {path} has no column that events of stream {} fill",
                    events.stream
                ),
                "add columns, or name them in the file of --event-tables",
            ));
        }
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// A column of each type, at its type's name or at the end of a path. For fuzzing.
    pub(crate) fn of_all_types() -> Plan {
        const TYPES: [&str; 34] = [
            "String",
            "FixedString(4)",
            "Bool",
            "Int8",
            "UInt64",
            "Int128",
            "Int256",
            "UInt256",
            "BFloat16",
            "Float32",
            "Float64",
            "Decimal(9, 2)",
            "Decimal(38, 10)",
            "Decimal(76, 20)",
            "Date",
            "Date32",
            "DateTime",
            "DateTime64(3)",
            "DateTime64(9)",
            "Time",
            "Time64(6)",
            "JSON",
            "Polygon",
            "UUID",
            "IPv4",
            "IPv6",
            "Enum8('a' = 1, 'b' = -2)",
            "Nullable(Int32)",
            "Array(Nullable(String))",
            "Array(Array(UInt8))",
            "Map(String, Float64)",
            "Map(UInt8, Array(String))",
            "Tuple(UInt8, String)",
            "Tuple(a UInt8, b Array(Tuple(c String)))",
        ];
        let column = |kind: &&str| Found {
            name: (*kind).to_owned(),
            kind: (*kind).to_owned(),
            default_kind: String::new(),
            default_expression: String::new(),
            is_in_partition_key: 0,
        };
        let nested = TYPES.iter().map(|kind| {
            let keys = vec!["x".to_owned(), (*kind).to_owned()];
            let unit = Unit::default();
            ((*kind).to_owned(), Origin::Path { keys, unit })
        });
        let mut found: Vec<Found> = TYPES.iter().map(column).collect();
        // The other half of the columns are at the top.
        let events = EventTable {
            stream: "x".to_owned(),
            table: "x".to_owned(),
            columns: nested.step_by(2).collect(),
            transform: None,
        };
        found.push(Found {
            name: "x".to_owned(),
            ..column(&"String")
        });
        Plan::new(&events, "x", &found).expect("events fill these types")
    }

    /// Columns with these names and types, at the keys of their names. For measurements.
    pub(crate) fn of_columns(columns: &[(&str, &str)], transform: Option<Transform>) -> Result<Plan, String> {
        let column = |(name, kind): &(&str, &str)| Found {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            default_kind: String::new(),
            default_expression: String::new(),
            is_in_partition_key: 0,
        };
        let events = EventTable {
            stream: "x".to_owned(),
            table: "x".to_owned(),
            columns: BTreeMap::new(),
            transform,
        };
        let found: Vec<Found> = columns.iter().map(column).collect();
        Plan::new(&events, "x", &found).map_err(|faults| format!("{faults:?}"))
    }

    fn add(&mut self, column: &Found, origin: Origin, path: &str) -> Result<(), Fault> {
        let Found { name, kind, .. } = column;
        let Some(kind) = Kind::parse(kind) else {
            return Err(Fault::new(
                format!("column {name} of table {path} has type {kind}, which events cannot fill"),
                "change its type, or give it a DEFAULT",
            ));
        };
        if let Err(Unfit { reason, .. }) = check(&kind, &origin) {
            return Err(Fault::new(
                format!("column {name} of table {path}: {reason}"),
                "correct its origin in the file of --event-tables",
            ));
        }
        let place = self.columns.len();
        if let Origin::Path { keys, .. } = &origin
            && let Some(first) = keys.first()
        {
            let new = self.keys.len();
            let found = *self.by_name.entry(first.clone()).or_insert(new);
            if found == new {
                self.keys.push(ReadKey {
                    name: first.clone(),
                    columns: Vec::new(),
                });
            }
            self.keys[found].columns.push(place);
        }
        self.columns.push(Planned {
            name: name.clone(),
            kind,
            origin,
        });
        Ok(())
    }

    /// The statement for chunks of the table.
    pub(crate) fn insert(&self, config: &Config, path: &str) -> String {
        let own = own(config.columns).iter().map(|column| column.name);
        let names = own.chain(self.columns.iter().map(|column| column.name.as_str()));
        let names: Vec<String> = names.map(identifier).collect();
        format!("INSERT INTO {path} ({}) FORMAT Native", names.join(", "))
    }

    /// Names of columns, and their types as a block has them.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (&str, String)> {
        let columns = self.columns.iter();
        columns.map(|column| (column.name.as_str(), column.kind.to_string()))
    }

    /// Columns without rows.
    pub(crate) fn empty(&self) -> Vec<Values> {
        let columns = self.columns.iter();
        columns.map(|column| Values::new(&column.kind)).collect()
    }

    /// Finds a column that a sorting key names: one that events fill, or the time of reception, which is behind those.
    pub(crate) fn key_column(&self, name: &str) -> Option<KeyColumn> {
        let columns = self.columns.iter().map(|column| (&*column.name, &column.kind));
        let mut columns = columns.chain([(RECEIVED_AT, &Kind::DateTime64(6))]).enumerate();
        let (place, (_, kind)) = columns.find(|(_, (found, _))| *found == name)?;
        Some(KeyColumn {
            place,
            is_ranked: ranks::has(kind),
            second: kind.second(),
        })
    }

    /// The ranks of a key's column in these rows.
    pub(crate) fn ranks(
        &self,
        place: usize,
        columns: &[Values],
        received_at_us: impl Iterator<Item = i64>,
    ) -> Option<Ranks> {
        match columns.get(place) {
            Some(values) => values.ranks(&self.columns[place].kind),
            None => Numbers(received_at_us.collect()).ranks(),
        }
    }

    /// The place of a key in `keys`, given its text between the quotes. `next`: where it is if the row has the order of the columns.
    #[inline]
    fn read_key(&self, text: &str, next: usize) -> Option<usize> {
        if self.keys.get(next).is_some_and(|key| key.name == text) && !text.contains('\\') {
            return Some(next);
        }
        self.by_name.get(&*json::unescaped(text)?).copied()
    }

    /// Appends a row, which is valid JSON, or nothing. The error is the reason why it does not fit.
    pub(crate) fn push(&self, row: &str, received_at_us: i64, to: &mut [Values]) -> Result<(), String> {
        let rows = to.first().map_or(0, Values::rows);
        let pushed = self.push_all(row, received_at_us, to);
        if pushed.is_err() {
            to.iter_mut().for_each(|values| values.truncate(rows));
        }
        pushed
    }

    fn push_all(&self, row: &str, received_at_us: i64, to: &mut [Values]) -> Result<(), String> {
        if !row.starts_with('{') {
            return Err(format!("$: {} is not an object", scalar::shown(row)));
        }
        let (mut few, mut many) = ([None; 16], Vec::new());
        let given: &mut [Option<&str>] = match few.get_mut(..self.columns.len()) {
            Some(few) => few,
            None => {
                many.resize(self.columns.len(), None);
                &mut many
            }
        };
        let mut next = 0;
        // The last of equal keys counts.
        let _ = json::members(row, |key, value| {
            let Some(found) = self.read_key(key, next) else {
                return Ok(());
            };
            next = found + 1;
            for &place in &self.keys[found].columns {
                given[place] = match &self.columns[place].origin {
                    Origin::Path { keys, .. } => json::descend(value, &keys[1..]),
                    Origin::Constant(_) | Origin::ReceivedAt => None,
                };
            }
            Ok::<_, std::convert::Infallible>(())
        });
        for ((column, values), value) in self.columns.iter().zip(to).zip(&*given) {
            let Planned { name, kind, origin } = column;
            let pushed = match origin {
                Origin::Path { unit, .. } => values.push(kind, *unit, value.unwrap_or("null")),
                Origin::Constant(value) => values.push(kind, Unit::default(), value),
                Origin::ReceivedAt => push_received(values, kind, received_at_us),
            };
            pushed.map_err(|Unfit { path, reason }| {
                let from = match origin {
                    Origin::Path { keys, .. } => format!("$.{}{path}", keys.join(".")),
                    Origin::Constant(_) | Origin::ReceivedAt => "$".to_owned(),
                };
                format!("{from}: {reason} (column {name})")
            })?;
        }
        Ok(())
    }
}

fn push_received(values: &mut Values, kind: &Kind, received_at_us: i64) -> Result<(), Unfit> {
    values.push(kind, Unit::Micros, &received_at_us.to_string())
}

/// A constant must fit its column, and a time must have a column of times.
fn check(kind: &Kind, origin: &Origin) -> Result<(), Unfit> {
    match origin {
        Origin::Path { .. } => Ok(()),
        Origin::Constant(value) => Values::new(kind).push(kind, Unit::default(), value),
        Origin::ReceivedAt => match kind {
            Kind::DateTime | Kind::DateTime64(_) => Ok(()),
            _ => Err(Unfit::here(format!("{kind} is not a type of times"))),
        },
    }
}

fn is_own(name: &str) -> bool {
    MILLPOND.iter().any(|column| column.name == name)
}

/// The sink's own columns that a table of events has.
pub(crate) fn own(columns: Columns) -> &'static [crate::schema::ColumnKind] {
    match columns {
        Columns::All => &MILLPOND,
        Columns::None => &[],
    }
}

/// Passes each row of a message, with the reason if it is not readable. From bytes that are not JSON on, the rest of
/// the message is one row that is not readable.
pub(crate) fn rows<'m>(
    message: &'m [u8],
    mut take: impl FnMut(Result<&'m str, (&'m [u8], String)>) -> bool,
) -> bool {
    let mut values = serde_json::Deserializer::from_slice(message).into_iter::<serde::de::IgnoredAny>();
    loop {
        let start = values.byte_offset();
        let error = match values.next() {
            None => return true,
            Some(Ok(_)) => match std::str::from_utf8(&message[start..values.byte_offset()]) {
                Ok(row) => {
                    if !take(Ok(row.trim_ascii())) {
                        return false;
                    }
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Some(Err(error)) => error.to_string(),
        };
        return take(Err((message[start..].trim_ascii(), error)));
    }
}

/// Parses a column of a block, for selections of its rows.
pub(crate) fn read(kind: &str) -> Option<Values> {
    Kind::parse(kind).map(|kind| Values::new(&kind))
}
