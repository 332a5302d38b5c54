//! The order of the values of a column, as the server's sorting keys have it.

use super::kind::Kind;
use super::values::Values;
use crate::native::Column as _;
use crate::sorting::Ranks;
use std::collections::HashMap;
use std::hash::Hash;

/// How the server compares values of fixed size.
enum Comparison {
    /// As little-endian numbers of this sign.
    Number { signed: bool },
    /// As bytes.
    Bytes,
}

impl Comparison {
    /// `None` if the order is not known here: NaN, NULL and nested values have rules that no key needs.
    fn of(kind: &Kind) -> Option<Comparison> {
        Some(match kind {
            Kind::Int { signed, .. } => Comparison::Number { signed: *signed },
            Kind::Decimal { .. }
            | Kind::Date32
            | Kind::DateTime64(_)
            | Kind::Time
            | Kind::Time64(_)
            | Kind::Enum { .. } => Comparison::Number { signed: true },
            // A server compares the second half of UUIDs first.
            Kind::Bool | Kind::Date | Kind::DateTime | Kind::Ipv4 | Kind::Uuid => {
                Comparison::Number { signed: false }
            }
            Kind::FixedText(_) | Kind::Ipv6 => Comparison::Bytes,
            Kind::Text
            | Kind::Json
            | Kind::Float { .. }
            | Kind::BFloat16
            | Kind::Nullable(_)
            | Kind::Array(_)
            | Kind::Map(..)
            | Kind::Tuple(_) => return None,
        })
    }
}

/// Returns true if values of this type have ranks.
pub(crate) fn has(kind: &Kind) -> bool {
    *kind == Kind::Text || Comparison::of(kind).is_some()
}

impl Values {
    /// The values as numbers in the same order; `None` for types whose order is not known here.
    pub(crate) fn ranks(&self, kind: &Kind) -> Option<Ranks> {
        match (self, kind) {
            (Values::Text(strings), Kind::Text) => Some(ranked(strings.values(), strings.rows())),
            (Values::Fixed { width, bytes }, kind) => {
                let values = bytes.chunks_exact(*width);
                Some(match Comparison::of(kind)? {
                    Comparison::Number { signed } if *width <= 8 => numbers(values, *width, signed),
                    Comparison::Number { signed } => {
                        let wide = values.map(|value| big_endian(value, signed));
                        ranked(wide, self.rows())
                    }
                    Comparison::Bytes => ranked(values, self.rows()),
                })
            }
            _ => None,
        }
    }
}

/// Little-endian numbers of at most 8 bytes. Signed ones begin at the least number.
fn numbers<'v>(values: impl Iterator<Item = &'v [u8]>, width: usize, signed: bool) -> Ranks {
    let zero = if signed { 0x80 << (8 * (width - 1)) } else { 0 };
    let number = |value: &[u8]| {
        value
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    let values = values.map(|value| number(value) ^ zero).collect();
    Ranks { values, zero }
}

/// The bytes of a little-endian number in an order in which they compare as the number does.
fn big_endian(value: &[u8], signed: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> = value.iter().rev().copied().collect();
    if let Some(first) = bytes.first_mut().filter(|_| signed) {
        *first ^= 0x80;
    }
    bytes
}

/// Numbers equal values, then the distinct ones in their order: keys have few distinct values or are almost unique.
fn ranked<K: Ord + Hash>(values: impl Iterator<Item = K>, rows: usize) -> Ranks {
    let mut numbers: HashMap<K, u32> = HashMap::new();
    let mut numbered = Vec::with_capacity(rows);
    for value in values {
        let next = u32::try_from(numbers.len()).expect("a chunk has under 2^32 rows");
        numbered.push(*numbers.entry(value).or_insert(next));
    }
    let mut distinct: Vec<(K, u32)> = numbers.into_iter().collect();
    distinct.sort_unstable();
    let mut ranks = vec![0; distinct.len()];
    for ((_, number), rank) in distinct.iter().zip(0..) {
        ranks[*number as usize] = rank;
    }
    let values = numbered
        .into_iter()
        .map(|number| ranks[number as usize])
        .collect();
    Ranks { values, zero: 0 }
}
