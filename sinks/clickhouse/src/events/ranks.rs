//! The order of the values of a column, as the server's sorting keys have it.

use super::kind::Kind;
use super::values::Values;
use crate::sorting::Ranks;

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
            (Values::Text(strings), Kind::Text) => Some(ranked(strings.values().map(prefixed))),
            (Values::Fixed { width, bytes }, kind) => {
                let values = bytes.chunks_exact(*width);
                Some(match Comparison::of(kind)? {
                    Comparison::Number { signed } if *width <= 8 => numbers(values, *width, signed),
                    Comparison::Number { signed } => ranked(values.map(|value| wide(value, signed))),
                    Comparison::Bytes => ranked(values.map(prefixed)),
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

/// A little-endian number of 16 or 32 bytes, as a pair in the same order.
fn wide(value: &[u8], signed: bool) -> (u128, u128) {
    const SIGN: u128 = 1 << 127;
    let mut halves = value.as_chunks().0.iter().map(|half| u128::from_le_bytes(*half));
    let (low, high) = (halves.next().unwrap_or(0), halves.next());
    match (high, signed) {
        (Some(high), true) => (high ^ SIGN, low),
        (None, true) => (0, low ^ SIGN),
        (high, false) => (high.unwrap_or(0), low),
    }
}

/// Bytes behind the first of them as a number, which mostly decides a comparison.
fn prefixed(value: &[u8]) -> (u64, &[u8]) {
    let mut first = [0; 8];
    let length = value.len().min(first.len());
    first[..length].copy_from_slice(&value[..length]);
    (u64::from_be_bytes(first), value)
}

/// The places of values among the distinct ones in their order.
fn ranked<K: Ord>(values: impl Iterator<Item = K>) -> Ranks {
    let mut sorted: Vec<(K, usize)> = values.zip(0..).collect();
    sorted.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut ranks = vec![0; sorted.len()];
    for (equal, rank) in sorted.chunk_by(|one, other| one.0 == other.0).zip(0..) {
        equal.iter().for_each(|(_, row)| ranks[*row] = rank);
    }
    Ranks {
        values: ranks,
        zero: 0,
    }
}
