//! Rows in the order of a table's sorting key. A server that gets them so has nothing left to sort.
//!
//! The order matters to nothing else: a row's place in its chunk follows from its identity (`recovery`).

use crate::schema::judge::Found;
use crate::schema::{MAP, STRING, Table, item_kind, sorting_key};
use std::collections::BTreeMap;

/// The sorting keys that the sink can compute. The server would have to sort rows again that have half of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sorting(BTreeMap<u32, SortingKey>);

/// A table's sorting key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortingKey(Vec<Part>);

/// An expression of a key: a column's values, divided by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// The place of the column among those of its table.
    column: usize,
    divisor: u64,
}

/// A column that a key can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    /// Its place among the columns of its table.
    pub(crate) place: usize,
    /// Its values have ranks.
    pub(crate) is_ranked: bool,
    /// The number of a time's ticks in a second. `None` if it is not a time.
    pub(crate) second: Option<u64>,
}

/// Values as numbers in the same order.
pub(crate) struct Ranks {
    pub(crate) values: Vec<u64>,
    /// The rank of 0, where quotients round to.
    pub(crate) zero: u64,
}

impl Sorting {
    pub(crate) fn new<'a>(keys: impl Iterator<Item = (Table, &'a SortingKey)>) -> Self {
        Sorting(keys.map(|(table, key)| (table.number(), key.clone())).collect())
    }

    /// The keys of the tables that the sink creates.
    pub(crate) fn of_new_tables() -> Self {
        let key =
            |table: Table| SortingKey::parse(sorting_key(table.signal()?), &KeyColumn::of_table(table), &[]);
        let keys = Table::ALL
            .into_iter()
            .filter_map(|table| Some((table.number(), key(table)?)));
        Sorting(keys.collect())
    }

    /// The order of a table's rows, given the ranks of a column: their places as they are. `None` if they stay so.
    pub(crate) fn order(
        &self,
        table: Table,
        rows: usize,
        ranks: impl Fn(usize) -> Option<Ranks>,
    ) -> Option<Vec<u32>> {
        self.0.get(&table.number())?.order(rows, ranks)
    }
}

impl SortingKey {
    /// Reads `sorting_key` of `system.tables`. `None` if the sink cannot compute all its expressions.
    pub(crate) fn parse(
        key: &str,
        column: &dyn Fn(&str) -> Option<KeyColumn>,
        found: &[Found],
    ) -> Option<Self> {
        // A server may print the brackets of a single expression.
        let parts =
            expressions(unwrapped(key)).map(|expression| Part::parse(expression.trim(), column, found));
        parts.collect::<Option<_>>().map(SortingKey)
    }

    fn order(&self, rows: usize, ranks: impl Fn(usize) -> Option<Ranks>) -> Option<Vec<u32>> {
        let place_bits = bits(rows as u64);
        // A row's key and its place in one number: rows with equal keys keep their order.
        let mut keys = vec![0u128; rows];
        let mut free = u128::BITS - place_bits;
        for Part { column, divisor } in &self.0 {
            let Ranks { mut values, zero } = ranks(*column)?;
            for value in &mut values {
                // The quotient of a negative number rounds down.
                *value = value.saturating_sub(zero % divisor) / divisor;
            }
            let least = values.iter().min().copied().unwrap_or(0);
            let width = bits(values.iter().max().map_or(0, |max| max - least));
            free = free.checked_sub(width)?;
            for (key, value) in keys.iter_mut().zip(values) {
                *key = *key << width | u128::from(value - least);
            }
        }
        if keys.is_sorted() {
            return None;
        }
        for (key, place) in keys.iter_mut().zip(0..) {
            *key = *key << place_bits | place;
        }
        keys.sort_unstable();
        let mask = (1 << place_bits) - 1;
        let place = |key: u128| u32::try_from(key & mask).expect("a chunk has under 2^32 rows");
        Some(keys.into_iter().map(place).collect())
    }
}

/// The number of bits of a number.
fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// A key without brackets around all of it.
fn unwrapped(key: &str) -> &str {
    let inside = key.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let closes_first = |inside: &str| {
        let mut depth = 0_usize;
        inside.chars().any(|character| {
            depth += usize::from(character == '(');
            let closed = character == ')' && depth == 0;
            depth -= usize::from(character == ')' && !closed);
            closed
        })
    };
    inside.filter(|inside| !closes_first(inside)).unwrap_or(key)
}

/// Splits a key at its top-level commas.
fn expressions(key: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    key.split(move |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

impl KeyColumn {
    /// Finds the columns of a signal's table by their names.
    pub(crate) fn of_table(table: Table) -> impl Fn(&str) -> Option<KeyColumn> {
        move |name| {
            let (place, column) = table
                .columns()
                .enumerate()
                .find(|(_, column)| column.name == name)?;
            Some(KeyColumn {
                place,
                is_ranked: !matches!(column.kind, STRING | MAP | "Float64")
                    && item_kind(column.kind).is_none(),
                second: match column.kind {
                    "DateTime" => Some(1),
                    "DateTime64(9)" => Some(1_000_000_000),
                    _ => None,
                },
            })
        }
    }
}

impl Part {
    fn parse(expression: &str, column: &dyn Fn(&str) -> Option<KeyColumn>, found: &[Found]) -> Option<Part> {
        if let Some(KeyColumn { place, is_ranked, .. }) = column(expression) {
            return is_ranked.then_some(Part {
                column: place,
                divisor: 1,
            });
        }
        // `TimestampTime` of older tables: the server computes it.
        let computed = found.iter().find(|found| found.name == expression);
        let expression = computed.map_or(expression, |computed| &computed.default_expression);
        let (function, argument) = expression.strip_suffix(')')?.split_once('(')?;
        let KeyColumn { place, second, .. } = column(argument)?;
        let ticks = second?;
        let seconds = match function {
            "toUnixTimestamp64Nano" | "toUnixTimestamp64Micro" | "toUnixTimestamp64Milli" => {
                return Some(Part {
                    column: place,
                    divisor: 1,
                });
            }
            "toDateTime" | "toUnixTimestamp" | "toStartOfSecond" => 1,
            "toStartOfMinute" => 60,
            "toStartOfFiveMinutes" | "toStartOfFiveMinute" => 300,
            "toStartOfTenMinutes" => 600,
            "toStartOfFifteenMinutes" => 900,
            // As in most time zones. In others the server sorts.
            "toStartOfHour" => 3_600,
            "toDate" | "toStartOfDay" => 86_400,
            _ => return None,
        };
        Some(Part {
            column: place,
            divisor: seconds * ticks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Column, Dictionary, Maps, Numbers, Ticks};

    fn computed(name: &str, expression: &str) -> Found {
        Found {
            name: name.to_owned(),
            kind: "DateTime".to_owned(),
            default_kind: "DEFAULT".to_owned(),
            default_expression: expression.to_owned(),
            is_in_partition_key: 0,
        }
    }

    fn parsed(key: &str, table: Table) -> Option<Vec<(&'static str, u64)>> {
        let found = [computed("TimestampTime", "toDateTime(Timestamp)")];
        let key = SortingKey::parse(key, &KeyColumn::of_table(table), &found)?;
        let name = |part: &Part| table.columns().nth(part.column).unwrap().name;
        Some(key.0.iter().map(|part| (name(part), part.divisor)).collect())
    }

    fn order(key: &SortingKey, columns: &[&dyn Column]) -> Option<Vec<u32>> {
        key.order(columns[0].rows(), |column| columns[column].ranks())
    }

    #[test]
    fn a_key_is_known_as_a_whole_or_not_at_all() {
        const SECOND: u64 = 1_000_000_000;
        for (table, key, expected) in [
            (
                Table::Logs,
                "toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp",
                vec![("Timestamp", 300 * SECOND), ("ServiceName", 1), ("Timestamp", 1)],
            ),
            (
                Table::Logs,
                "ServiceName, TimestampTime, Timestamp",
                vec![("ServiceName", 1), ("Timestamp", SECOND), ("Timestamp", 1)],
            ),
            (
                Table::Traces,
                "ServiceName, SpanName, toDateTime(Timestamp)",
                vec![("ServiceName", 1), ("SpanName", 1), ("Timestamp", SECOND)],
            ),
            (Table::Logs, "(ServiceName)", vec![("ServiceName", 1)]),
            (
                Table::Gauge,
                "ServiceName, MetricName, toUnixTimestamp(TimeUnix)",
                vec![("ServiceName", 1), ("MetricName", 1), ("TimeUnix", 1)],
            ),
        ] {
            assert_eq!(parsed(key, table), Some(expected), "{key}");
        }
        for key in [
            "",
            "tuple()",
            "lower(Body), Timestamp",
            "ServiceName, Body",
            "ServiceName, ScopeAttributes",
            "toDate(Body)",
            "x(",
            "(ServiceName), (Timestamp)",
            "Timestamp DESC",
            "ServiceName, toStartOfInterval(Timestamp, toIntervalHour(1)), Timestamp",
        ] {
            assert_eq!(parsed(key, Table::Logs), None, "{key}");
        }
        let metrics = sorting_key(Table::Gauge.signal().unwrap());
        assert_eq!(parsed(metrics, Table::Gauge), None);
    }

    #[test]
    fn rows_with_equal_keys_keep_their_order() {
        let mut service = Dictionary::default();
        let mut time = Ticks::default();
        for (name, at) in [
            ("b", 5),
            ("a", 7),
            ("b", -1),
            ("a", 5),
            ("", 9),
            ("a", 5),
            ("b", 5),
        ] {
            service.push(name.as_bytes());
            time.0.push(at);
        }
        let by = |parts: &[(usize, u64)]| {
            let parts = parts.iter().map(|&(column, divisor)| Part { column, divisor });
            order(&SortingKey(parts.collect()), &[&service, &time])
        };
        assert_eq!(by(&[(0, 1), (1, 1)]), Some(vec![4, 3, 5, 1, 2, 0, 6]));
        assert_eq!(by(&[(1, 1)]), Some(vec![2, 0, 3, 5, 6, 1, 4]));
        assert_eq!(by(&[(0, 1)]), Some(vec![4, 1, 3, 5, 0, 2, 6]));
        // -1 / 6 is -1; 5 / 6 is 0; 7 / 6 and 9 / 6 are 1.
        assert_eq!(by(&[(1, 6)]), Some(vec![2, 0, 3, 5, 6, 1, 4]));
    }

    #[test]
    fn rows_stay_as_they_are_where_their_keys_have_no_numbers() {
        let wide = Numbers(vec![u64::MAX, 0]);
        let mut maps = Maps::default();
        maps.end_row();
        maps.end_row();
        let by = |parts: &[usize]| {
            let parts = parts.iter().map(|&column| Part { column, divisor: 1 });
            order(&SortingKey(parts.collect()), &[&wide, &maps])
        };
        assert_eq!(by(&[0]), Some(vec![1, 0]));
        assert_eq!(by(&[0, 1]), None);
        assert_eq!(by(&[0, 0]), None);
    }

    #[test]
    fn rows_in_order_stay_as_they_are() {
        let time = Numbers(vec![1u32, 1, 2]);
        let part = Part {
            column: 0,
            divisor: 1,
        };
        let key = SortingKey(vec![part]);
        assert_eq!(order(&key, &[&time]), None);
        assert_eq!(order(&key, &[&Numbers::<u32>(vec![])]), None);
    }
}
