//! Values of fixed size: JSON to the bytes of a column.

use super::json::unescaped;
use super::kind::Kind;
use super::time::{self, Unit};
use super::wide;
use std::net::{Ipv4Addr, Ipv6Addr};
use uuid::Uuid;

/// Characters of a value in an error.
const SHOWN_MAX: usize = 60;

/// A value for an error: its beginning.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// The text between the quotes of a JSON string; `None` if the value is not a string.
pub(super) fn string(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Appends a value of this type.
pub(super) fn push(kind: &Kind, unit: Unit, value: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    let unfit = || format!("{} does not fit {kind}", shown(value));
    let unquoted = match string(value) {
        Some(inner) => unescaped(inner).ok_or_else(unfit)?,
        None => value.into(),
    };
    let is_text = string(value).is_some();
    let text = || is_text.then_some(&*unquoted).ok_or_else(unfit);
    let number = &*unquoted;
    match kind {
        Kind::Int { width, signed } => {
            let taken = push_int(number, *width, *signed, bytes);
            taken.ok_or_else(unfit)?;
        }
        Kind::Float { width } => push_float(number, is_text, *width, bytes).ok_or_else(unfit)?,
        Kind::BFloat16 => push_bfloat(number, is_text, bytes).ok_or_else(unfit)?,
        Kind::Bool => bytes.push(match number {
            "true" | "1" => 1,
            "false" | "0" => 0,
            _ => return Err(unfit()),
        }),
        Kind::Decimal { precision, scale } if *precision > 38 => {
            let units = wide_decimal(number, *precision, *scale).ok_or_else(unfit)?;
            bytes.extend_from_slice(&units);
        }
        Kind::Decimal { precision, scale } => {
            let units = decimal(number, *precision, *scale).ok_or_else(unfit)?;
            let width = kind.width().unwrap_or(16);
            bytes.extend_from_slice(&units.to_le_bytes()[..width]);
        }
        Kind::Date => {
            let days = time::date(text()?).and_then(|days| u16::try_from(days).ok());
            bytes.extend_from_slice(&days.ok_or_else(unfit)?.to_le_bytes());
        }
        Kind::Date32 => {
            let days = time::date(text()?).filter(|days| time::in_date32(*days));
            let days = days.and_then(|days| i32::try_from(days).ok());
            bytes.extend_from_slice(&days.ok_or_else(unfit)?.to_le_bytes());
        }
        Kind::DateTime | Kind::DateTime64(_) => {
            let nanos = time::nanos(number, is_text, unit).ok_or_else(unfit)?;
            push_time(kind, nanos, bytes).ok_or_else(unfit)?;
        }
        Kind::Time => {
            let nanos = time::of_day(number, is_text, unit).ok_or_else(unfit)?;
            let seconds = i32::try_from(nanos / 1_000_000_000).map_err(|_| unfit())?;
            bytes.extend_from_slice(&seconds.to_le_bytes());
        }
        Kind::Time64(digits) => {
            let nanos = time::of_day(number, is_text, unit).ok_or_else(unfit)?;
            let ticks = i64::try_from(nanos / 10i128.pow(9 - digits)).map_err(|_| unfit())?;
            bytes.extend_from_slice(&ticks.to_le_bytes());
        }
        Kind::FixedText(width) => {
            let text = text()?;
            if text.len() > *width {
                return Err(unfit());
            }
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(bytes.len() + width - text.len(), 0);
        }
        Kind::Uuid => {
            let text = Some(text()?).filter(|text| text.len() == 36);
            let id = text
                .and_then(|text| Uuid::parse_str(text).ok())
                .ok_or_else(unfit)?;
            let (high, low) = id.as_u64_pair();
            bytes.extend_from_slice(&high.to_le_bytes());
            bytes.extend_from_slice(&low.to_le_bytes());
        }
        Kind::Ipv4 | Kind::Ipv6 => push_address(kind, text()?, bytes).ok_or_else(unfit)?,
        Kind::Enum { width, names } => {
            let found = names.iter().find(|(name, code)| match is_text {
                true => *name == *unquoted,
                false => code.to_string() == *unquoted,
            });
            let (_, code) = found
                .ok_or_else(|| format!("{} is not a value of {}", shown(value), shown(&kind.to_string())))?;
            bytes.extend_from_slice(&code.to_le_bytes()[..*width]);
        }
        Kind::Text | Kind::Json | Kind::Nullable(_) | Kind::Array(_) | Kind::Map(..) | Kind::Tuple(_) => {
            unreachable!("{kind} has no fixed size")
        }
    }
    Ok(())
}

/// Appends a time to a column of times. `None` if it is outside of the type's range. A fraction that is finer than the
/// type is cut off, towards the past.
pub(super) fn push_time(kind: &Kind, nanos: i128, bytes: &mut Vec<u8>) -> Option<()> {
    match kind {
        Kind::DateTime64(digits) => {
            let ticks = nanos.div_euclid(10i128.pow(9 - digits));
            if !time::in_date_time64(nanos) {
                return None;
            }
            bytes.extend_from_slice(&i64::try_from(ticks).ok()?.to_le_bytes());
        }
        _ => {
            let seconds = u32::try_from(nanos.div_euclid(1_000_000_000)).ok()?;
            bytes.extend_from_slice(&seconds.to_le_bytes());
        }
    }
    Some(())
}

/// A whole number in digits, or `true` and `false` as 1 and 0.
fn push_int(text: &str, width: usize, signed: bool, bytes: &mut Vec<u8>) -> Option<()> {
    let text = match text {
        "true" => "1",
        "false" => "0",
        text => text,
    };
    if text.starts_with('+') {
        return None;
    }
    if width == wide::WIDTH {
        let (negative, digits) = sign(text);
        bytes.extend_from_slice(&wide::bytes(negative, digits, signed)?);
        return Some(());
    }
    let bits = 8 * u32::try_from(width).ok()?;
    let number = match signed {
        true => {
            let number: i128 = text.parse().ok()?;
            let high = i128::MAX >> (128 - bits);
            if number > high || number < -high - 1 {
                return None;
            }
            number.to_le_bytes()
        }
        false => {
            let text = if text == "-0" { "0" } else { text };
            let number: u128 = text.parse().ok()?;
            if number > u128::MAX >> (128 - bits) {
                return None;
            }
            number.to_le_bytes()
        }
    };
    bytes.extend_from_slice(&number[..width]);
    Some(())
}

fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    }
}

/// The upper half of a Float32. The rest is cut off, as a server does.
fn push_bfloat(text: &str, is_text: bool, bytes: &mut Vec<u8>) -> Option<()> {
    let mut single = Vec::with_capacity(4);
    push_float(text, is_text, 4, &mut single)?;
    bytes.extend_from_slice(&single[2..]);
    Some(())
}

fn push_float(text: &str, is_text: bool, width: usize, bytes: &mut Vec<u8>) -> Option<()> {
    let text = float(text, is_text)?;
    // A number that the type rounds to infinity does not fit. A word may be one.
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit());
    if width == 4 {
        let number: f32 = text.parse().ok()?;
        bytes.extend_from_slice(&number.to_le_bytes());
        return (number.is_finite() || !is_number).then_some(());
    }
    let number: f64 = text.parse().ok()?;
    bytes.extend_from_slice(&number.to_le_bytes());
    (number.is_finite() || !is_number).then_some(())
}

fn push_address(kind: &Kind, text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    let four = text.parse::<Ipv4Addr>().ok();
    if *kind == Kind::Ipv4 {
        bytes.extend_from_slice(&u32::from(four?).to_le_bytes());
        return Some(());
    }
    let six = text.parse::<Ipv6Addr>().ok();
    let six = six.or_else(|| four.map(|four| four.to_ipv6_mapped()))?;
    bytes.extend_from_slice(&six.octets());
    Some(())
}

/// A number's text. Only a string can be a NaN or an infinity.
fn float(text: &str, is_text: bool) -> Option<&str> {
    let first = text.trim_start_matches('-').bytes().next()?;
    let is_number = first.is_ascii_digit();
    let word = ["nan", "inf", "infinity"]
        .iter()
        .any(|word| text.trim_start_matches('-').eq_ignore_ascii_case(word));
    (is_number || is_text && word).then_some(text)
}

/// The exact value of a decimal number, in units of its last digit. `None` if it has more digits than the type.
pub(super) fn decimal(text: &str, precision: u32, scale: u32) -> Option<i128> {
    let Number {
        negative,
        whole,
        fraction,
        exponent,
    } = Number::parse(text)?;
    let all = whole.bytes().chain(fraction.bytes());
    let mut units: i128 = 0;
    // Zeros at the end may come before an exponent that takes them away.
    let mut zeros = 0u32;
    for byte in all {
        if byte == b'0' {
            zeros += 1;
            continue;
        }
        if units != 0 {
            units = units.checked_mul(10i128.checked_pow(zeros)?)?;
        }
        zeros = 0;
        units = units.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
    }
    if units == 0 {
        return Some(0);
    }
    let fraction = i64::try_from(fraction.len()).ok()?;
    let shift = i64::from(zeros)
        .checked_add(i64::from(scale))?
        .checked_sub(fraction)?
        .checked_add(exponent)?;
    let shift = u32::try_from(shift).ok()?;
    let units = units.checked_mul(10i128.checked_pow(shift)?)?;
    let fits = units < 10i128.pow(precision);
    fits.then_some(if negative { -units } else { units })
}

/// The same for types of more than 38 digits, as bytes.
fn wide_decimal(text: &str, precision: u32, scale: u32) -> Option<[u8; wide::WIDTH]> {
    let number = Number::parse(text)?;
    let all = format!("{}{}", number.whole, number.fraction);
    let digits = all.trim_end_matches('0');
    let zeros = all.len() - digits.len();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some([0; wide::WIDTH]);
    }
    let shift = i64::try_from(zeros)
        .ok()?
        .checked_add(i64::from(scale))?
        .checked_sub(i64::try_from(number.fraction.len()).ok()?)?
        .checked_add(number.exponent)?;
    let shift = usize::try_from(shift).ok()?;
    if digits.len().checked_add(shift)? > precision as usize {
        return None;
    }
    wide::bytes(number.negative, &format!("{digits}{}", "0".repeat(shift)), true)
}

/// The text of a decimal number, split.
struct Number<'t> {
    negative: bool,
    whole: &'t str,
    fraction: &'t str,
    exponent: i64,
}

impl Number<'_> {
    fn parse(text: &str) -> Option<Number<'_>> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
            None => (text, 0),
        };
        let (negative, digits) = sign(mantissa);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let mut all = whole.bytes().chain(fraction.bytes());
        (!whole.is_empty() && all.all(|byte| byte.is_ascii_digit())).then_some(Number {
            negative,
            whole,
            fraction,
            exponent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: &str, value: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        push(&Kind::parse(kind).unwrap(), Unit::default(), value, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn a_number_fits_or_does_not() {
        for (kind, value, expected) in [
            ("UInt8", "255", &[255][..]),
            ("UInt8", "\"7\"", &[7]),
            ("UInt8", "true", &[1]),
            ("Int8", "-128", &[0x80]),
            ("UInt16", "-0", &[0, 0]),
            ("Int64", "-9223372036854775808", &i64::MIN.to_le_bytes()),
            ("UInt128", "340282366920938463463374607431768211455", &[255; 16]),
            ("Float32", "0.1", &0.1f32.to_le_bytes()),
            ("Float64", "1e-3", &0.001f64.to_le_bytes()),
            ("Decimal(9, 2)", "12.30", &1230i32.to_le_bytes()),
            ("Decimal(18, 4)", "\"-1e-4\"", &(-1i64).to_le_bytes()),
            ("Decimal(9, 0)", "1.20e1", &12i32.to_le_bytes()),
            ("Decimal(76, 2)", "-0.01", &[255; 32]),
            ("UInt256", "true", &[&[1][..], &[0; 31]].concat()),
            ("Time", "\"-01:01:01\"", &(-3_661i32).to_le_bytes()),
            ("Time64(3)", "1.0019", &1_001i64.to_le_bytes()),
            ("Bool", "true", &[1]),
            ("Enum8('a' = -1, 'b' = 2)", "\"a\"", &[255]),
            ("FixedString(3)", "\"é\"", &[0xc3, 0xa9, 0]),
            ("IPv4", "\"1.2.3.4\"", &[4, 3, 2, 1]),
        ] {
            assert_eq!(bytes(kind, value).as_deref(), Ok(expected), "{kind} {value}");
        }
        for (kind, value) in [
            ("UInt8", "256"),
            ("UInt8", "-1"),
            ("UInt8", "1.0"),
            ("UInt8", "\"+1\""),
            ("UInt8", "\"\""),
            ("UInt8", "{}"),
            ("Int8", "128"),
            ("Int8", "-129"),
            ("UInt128", "340282366920938463463374607431768211456"),
            ("UInt256", "-1"),
            ("Decimal(76, 2)", "1.234"),
            ("Decimal(40, 2)", "1e38"),
            ("Decimal(76, 2)", "1e9223372036854775807"),
            ("BFloat16", "1e39"),
            ("Time", "\"1000:00:00\""),
            ("Time", "\"00:60:00\""),
            ("Time", "3600000"),
            ("Float32", "1e39"),
            ("Float64", "1e999"),
            ("Float64", "\"1e999\""),
            ("Float64", "\"x\""),
            ("Float64", "\"\""),
            ("Decimal(9, 2)", "1.234"),
            ("Decimal(4, 2)", "100"),
            ("Decimal(9, 2)", "1e99999999999"),
            ("Decimal(9, 2)", "\"1e-\""),
            ("Bool", "2"),
            ("Enum8('a' = -1)", "\"b\""),
            ("Enum8('a' = -1)", "0"),
            ("FixedString(1)", "\"é\""),
            ("IPv4", "\"1.2.3\""),
            ("UUID", "\"6ba7b8109dad11d180b400c04fd430c8\""),
            ("Date", "19000"),
        ] {
            let reason = bytes(kind, value).unwrap_err();
            assert!(reason.contains(value), "{reason}");
        }
    }

    #[test]
    fn an_error_shows_the_beginning_of_a_long_value() {
        let reason = bytes("UInt8", &format!("\"{}\"", "é".repeat(1_000))).unwrap_err();
        assert_eq!(
            reason.chars().count(),
            SHOWN_MAX + "… does not fit UInt8".chars().count()
        );
    }
}
