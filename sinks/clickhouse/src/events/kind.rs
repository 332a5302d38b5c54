//! The types of columns that events can fill, and their names in a block.

use super::wide;
use crate::schema::literal;
use std::fmt;

/// A type. `LowCardinality` is not one: the server builds the dictionary of a plain column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// An object, which the server parses from its text.
    Json,
    FixedText(usize),
    Bool,
    Int {
        width: usize,
        signed: bool,
    },
    Float {
        width: usize,
    },
    BFloat16,
    Decimal {
        precision: u32,
        scale: u32,
    },
    Date,
    Date32,
    DateTime,
    /// The digits of a second.
    DateTime64(u32),
    Time,
    /// The digits of a second.
    Time64(u32),
    Uuid,
    Ipv4,
    Ipv6,
    Enum {
        width: usize,
        names: Vec<(String, i16)>,
    },
    Nullable(Box<Kind>),
    Array(Box<Kind>),
    Map(Box<Kind>, Box<Kind>),
    /// Fields, with names or without.
    Tuple(Vec<(Option<String>, Kind)>),
}

impl Kind {
    /// Parses a type as a server prints it. `None` if events cannot fill it.
    pub(crate) fn parse(text: &str) -> Option<Kind> {
        let text = text.trim();
        let (name, inside) = match text.split_once('(') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(')')?)),
            None => (text, None),
        };
        let Some(inside) = inside else {
            return plain(name);
        };
        let arguments = arguments(inside);
        let only = || match arguments[..] {
            [only] => Some(only),
            _ => None,
        };
        Some(match name {
            "LowCardinality" => Kind::parse(only()?)?,
            "Nullable" => Kind::Nullable(Box::new(Kind::parse(only()?)?)),
            "Array" => Kind::Array(Box::new(Kind::parse(only()?)?)),
            "Map" => match arguments[..] {
                [key, value] => Kind::Map(Box::new(Kind::parse(key)?), Box::new(Kind::parse(value)?)),
                _ => return None,
            },
            "Tuple" => Kind::Tuple(
                arguments
                    .iter()
                    .map(|field| tuple_field(field))
                    .collect::<Option<_>>()?,
            ),
            // The server has the same values as arrays of tuples.
            "Nested" => {
                let fields = arguments.iter().map(|field| tuple_field(field));
                Kind::Array(Box::new(Kind::Tuple(fields.collect::<Option<_>>()?)))
            }
            "SimpleAggregateFunction" => match arguments[..] {
                [_, of] => Kind::parse(of)?,
                _ => return None,
            },
            "JSON" => Kind::Json,
            "FixedString" => Kind::FixedText(only()?.parse().ok().filter(|width| *width > 0)?),
            "DateTime" => Kind::DateTime,
            "DateTime64" => Kind::DateTime64(arguments.first()?.parse().ok().filter(|digits| *digits <= 9)?),
            "Time64" => Kind::Time64(only()?.parse().ok().filter(|digits| *digits <= 9)?),
            "Decimal" => match arguments[..] {
                [precision, scale] => decimal(precision.parse().ok()?, scale.parse().ok()?)?,
                _ => return None,
            },
            "Enum8" => Kind::Enum {
                width: 1,
                names: enumerated(&arguments)?,
            },
            "Enum16" => Kind::Enum {
                width: 2,
                names: enumerated(&arguments)?,
            },
            _ => return None,
        })
    }

    /// The number of a time's ticks in a second.
    pub(crate) fn second(&self) -> Option<u64> {
        match self {
            Kind::DateTime => Some(1),
            Kind::DateTime64(digits) => Some(10_u64.pow(*digits)),
            _ => None,
        }
    }

    /// Bytes of a value of fixed size.
    pub(crate) fn width(&self) -> Option<usize> {
        Some(match self {
            Kind::FixedText(width)
            | Kind::Int { width, .. }
            | Kind::Float { width }
            | Kind::Enum { width, .. } => *width,
            Kind::Bool => 1,
            Kind::Date | Kind::BFloat16 => 2,
            Kind::Date32 | Kind::DateTime | Kind::Time | Kind::Ipv4 => 4,
            Kind::DateTime64(_) | Kind::Time64(_) => 8,
            Kind::Uuid | Kind::Ipv6 => 16,
            Kind::Decimal { precision, .. } => match precision {
                0..=9 => 4,
                10..=18 => 8,
                19..=38 => 16,
                _ => wide::WIDTH,
            },
            Kind::Text | Kind::Json | Kind::Nullable(_) | Kind::Array(_) | Kind::Map(..) | Kind::Tuple(_) => {
                return None;
            }
        })
    }
}

fn plain(name: &str) -> Option<Kind> {
    let int = |width, signed| Some(Kind::Int { width, signed });
    match name {
        "String" => Some(Kind::Text),
        "JSON" => Some(Kind::Json),
        "BFloat16" => Some(Kind::BFloat16),
        "Time" => Some(Kind::Time),
        "Bool" => Some(Kind::Bool),
        "Int8" => int(1, true),
        "Int16" => int(2, true),
        "Int32" => int(4, true),
        "Int64" => int(8, true),
        "Int128" => int(16, true),
        "Int256" => int(wide::WIDTH, true),
        "UInt8" => int(1, false),
        "UInt16" => int(2, false),
        "UInt32" => int(4, false),
        "UInt64" => int(8, false),
        "UInt128" => int(16, false),
        "UInt256" => int(wide::WIDTH, false),
        "Float32" => Some(Kind::Float { width: 4 }),
        "Float64" => Some(Kind::Float { width: 8 }),
        "Date" => Some(Kind::Date),
        "Date32" => Some(Kind::Date32),
        "DateTime" => Some(Kind::DateTime),
        "UUID" => Some(Kind::Uuid),
        "IPv4" => Some(Kind::Ipv4),
        "IPv6" => Some(Kind::Ipv6),
        "Point" => Some(point()),
        "Ring" | "LineString" => Some(nested_points(1)),
        "Polygon" | "MultiLineString" => Some(nested_points(2)),
        "MultiPolygon" => Some(nested_points(3)),
        _ => None,
    }
}

fn point() -> Kind {
    let coordinate = || (None, Kind::Float { width: 8 });
    Kind::Tuple(vec![coordinate(), coordinate()])
}

fn nested_points(depth: usize) -> Kind {
    (0..depth).fold(point(), |items, _| Kind::Array(Box::new(items)))
}

fn decimal(precision: u32, scale: u32) -> Option<Kind> {
    (precision <= 76 && scale <= precision).then_some(Kind::Decimal { precision, scale })
}

/// Splits at commas outside of brackets and quotes.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut quote, mut escaped) = (Vec::new(), 0, 0usize, None, false);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '`') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            (None, _) => {}
        }
    }
    found.push(text[start..].trim());
    found
}

/// A quoted name, and the rest behind it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut characters = text.strip_prefix(quote)?.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                '0' => '\0',
                other => other,
            }),
            end if end == quote => return Some((name, &text[1 + at + 1..])),
            other => name.push(other),
        }
    }
    None
}

fn enumerated(arguments: &[&str]) -> Option<Vec<(String, i16)>> {
    let one = |argument: &&str| {
        let (name, rest) = quoted(argument, '\'')?;
        let number = rest.trim().strip_prefix('=')?.trim().parse().ok()?;
        Some((name, number))
    };
    arguments.iter().map(one).collect()
}

fn tuple_field(text: &str) -> Option<(Option<String>, Kind)> {
    if let Some((name, rest)) = quoted(text, '`') {
        return Some((Some(name), Kind::parse(rest)?));
    }
    // A type's name has no space before its bracket.
    let name = text.split_once(' ').filter(|(name, _)| !name.contains('('));
    match name {
        Some((name, rest)) => Some((Some(name.to_owned()), Kind::parse(rest)?)),
        None => Some((None, Kind::parse(text)?)),
    }
}

/// The name in a block's head.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Text | Kind::Json => f.write_str("String"),
            Kind::FixedText(width) => write!(f, "FixedString({width})"),
            Kind::Bool => f.write_str("Bool"),
            Kind::Int { width, signed } => {
                let sign = if *signed { "" } else { "U" };
                write!(f, "{sign}Int{}", 8 * width)
            }
            Kind::Float { width } => write!(f, "Float{}", 8 * width),
            Kind::BFloat16 => f.write_str("BFloat16"),
            Kind::Time => f.write_str("Time"),
            Kind::Time64(digits) => write!(f, "Time64({digits})"),
            Kind::Decimal { precision, scale } => write!(f, "Decimal({precision}, {scale})"),
            Kind::Date => f.write_str("Date"),
            Kind::Date32 => f.write_str("Date32"),
            Kind::DateTime => f.write_str("DateTime"),
            Kind::DateTime64(digits) => write!(f, "DateTime64({digits})"),
            Kind::Uuid => f.write_str("UUID"),
            Kind::Ipv4 => f.write_str("IPv4"),
            Kind::Ipv6 => f.write_str("IPv6"),
            Kind::Enum { width, names } => {
                let names: Vec<String> = names
                    .iter()
                    .map(|(name, number)| format!("{} = {number}", literal(name)))
                    .collect();
                write!(f, "Enum{}({})", 8 * width, names.join(", "))
            }
            Kind::Nullable(inner) => write!(f, "Nullable({inner})"),
            Kind::Array(items) => write!(f, "Array({items})"),
            Kind::Map(key, value) => write!(f, "Map({key}, {value})"),
            // The server casts tuples by position.
            Kind::Tuple(fields) => {
                let fields: Vec<String> = fields.iter().map(|(_, kind)| kind.to_string()).collect();
                write!(f, "Tuple({})", fields.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_written_without_dictionaries_and_zones() {
        for (text, written) in [
            ("LowCardinality(Nullable(String))", "Nullable(String)"),
            ("DateTime('Europe/Berlin')", "DateTime"),
            ("DateTime64(3, 'UTC')", "DateTime64(3)"),
            (
                "Map(LowCardinality(String), Array(Tuple(a UInt8, `b c` Decimal(18, 4))))",
                "Map(String, Array(Tuple(UInt8, Decimal(18, 4))))",
            ),
            (r"Enum8('a,\'b' = -1, 'c' = 2)", r"Enum8('a,\'b' = -1, 'c' = 2)"),
            (
                "Tuple(String, DateTime64(9, 'UTC'))",
                "Tuple(String, DateTime64(9))",
            ),
            ("UInt128", "UInt128"),
            ("JSON(max_dynamic_paths=3, a UInt8, SKIP b)", "String"),
            ("Array(Nullable(JSON))", "Array(Nullable(String))"),
            ("Nested(a UInt8, b String)", "Array(Tuple(UInt8, String))"),
            ("SimpleAggregateFunction(sum, UInt256)", "UInt256"),
            ("Polygon", "Array(Array(Tuple(Float64, Float64)))"),
        ] {
            let kind = Kind::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(kind.to_string(), written);
            assert_eq!(Kind::parse(written).unwrap().to_string(), written);
        }
    }

    #[test]
    fn other_types_are_told_apart() {
        for text in [
            "Dynamic",
            "Decimal(77, 2)",
            "Geometry",
            "Time64(10)",
            "AggregateFunction(sum, UInt64)",
            "Array(Variant(String, UInt8))",
            "Nullable(Nothing)",
            "Tuple()",
            "Map(String)",
        ] {
            assert_eq!(Kind::parse(text), None, "{text}");
        }
    }
}
