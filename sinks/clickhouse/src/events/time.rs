//! Dates and times: ISO 8601, or numbers since the epoch.

use super::scalar::decimal;

/// The unit of times that are numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, with a fraction.
    #[default]
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

impl std::str::FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Unit, String> {
        match text {
            "s" => Ok(Unit::Seconds),
            "ms" => Ok(Unit::Millis),
            "us" => Ok(Unit::Micros),
            "ns" => Ok(Unit::Nanos),
            _ => Err(format!("unknown unit {text:?}: use s, ms, us or ns")),
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unit::Seconds => "s",
            Unit::Millis => "ms",
            Unit::Micros => "us",
            Unit::Nanos => "ns",
        })
    }
}

impl Unit {
    /// The digits of a nanosecond in this unit.
    fn digits(self) -> u32 {
        match self {
            Unit::Seconds => 9,
            Unit::Millis => 6,
            Unit::Micros => 3,
            Unit::Nanos => 0,
        }
    }
}

const SECONDS_OF_A_DAY: i64 = 86_400;
/// 1900-01-01 and 2299-12-31, the range of Date32 and DateTime64, in days since 1970.
const DAYS: std::ops::RangeInclusive<i64> = -25_567..=120_529;

pub(super) fn in_date32(days: i64) -> bool {
    DAYS.contains(&days)
}

pub(super) fn in_date_time64(nanos: i128) -> bool {
    let days = nanos.div_euclid(i128::from(SECONDS_OF_A_DAY) * 1_000_000_000);
    i64::try_from(days).is_ok_and(in_date32)
}

/// Days since 1970 of `YYYY-MM-DD`.
pub(super) fn date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) = (digits(&bytes[..4])?, digits(&bytes[5..7])?, digits(&bytes[8..])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=days_of_month).contains(&day) {
        return None;
    }
    // Years begin in March, so that a leap day is a year's last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn digits(bytes: &[u8]) -> Option<i64> {
    let mut number = 0;
    for byte in bytes {
        number = 10 * number + i64::from(char::from(*byte).to_digit(10)?);
    }
    Some(number)
}

/// Nanoseconds since 1970. A text is a date and a time, in UTC unless it has an offset; a number is in `unit`, also
/// between quotes.
pub(super) fn nanos(value: &str, is_text: bool, unit: Unit) -> Option<i128> {
    match is_text && value.as_bytes().get(4) == Some(&b'-') {
        true => iso(value),
        false => decimal_cut(value, unit.digits()),
    }
}

/// A decimal number in units of 10^-scale. Digits beyond are cut off, towards the past.
fn decimal_cut(text: &str, scale: u32) -> Option<i128> {
    // 38 digits hold any time of the types, with 18 more behind the point than a nanosecond has in seconds.
    let exact = decimal(text, 38, scale + 9)?;
    Some(exact.div_euclid(1_000_000_000))
}

/// Nanoseconds of `[-]h:mm:ss[.fff]`, or of a number in `unit`. A server limits both to 999:59:59.
pub(super) fn of_day(value: &str, is_text: bool, unit: Unit) -> Option<i128> {
    const SECONDS_END: i128 = 3_600_000;
    let nanos = match is_text && value.contains(':') {
        true => clock(value)?,
        false => decimal_cut(value, unit.digits())?,
    };
    (nanos.abs() < SECONDS_END * 1_000_000_000).then_some(nanos)
}

fn clock(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (text, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut fields = text.split(':').map(str::as_bytes);
    let (hour, minute, second) = (fields.next()?, fields.next()?, fields.next()?);
    let lengths = (1..=3).contains(&hour.len()) && minute.len() == 2 && second.len() == 2;
    if !lengths || fields.next().is_some() || fraction.is_empty() {
        return None;
    }
    let (hour, minute, second) = (digits(hour)?, digits(minute)?, digits(second)?);
    if minute > 59 || second > 59 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = (0..9).fold(0, |nanos, place| {
        10 * nanos
            + fraction
                .as_bytes()
                .get(place)
                .map_or(0, |byte| i128::from(byte - b'0'))
    });
    let nanos = i128::from(hour * 3_600 + minute * 60 + second) * 1_000_000_000 + fraction;
    Some(if negative { -nanos } else { nanos })
}

fn iso(text: &str) -> Option<i128> {
    let days = date(text.get(..10)?)?;
    let Some(rest) = text.get(10..).filter(|rest| !rest.is_empty()) else {
        return Some(i128::from(days * SECONDS_OF_A_DAY) * 1_000_000_000);
    };
    let bytes = rest.strip_prefix(['T', 't', ' '])?.as_bytes();
    let clock = bytes.get(..8)?;
    if clock[2] != b':' || clock[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (digits(&clock[..2])?, digits(&clock[3..5])?, digits(&clock[6..])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = &bytes[8..];
    let mut nanos = 0;
    if let Some((b'.' | b',', fraction)) = rest.split_first() {
        let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return None;
        }
        for place in 0..9 {
            let digit = fraction[..count].get(place).map_or(0, |byte| byte - b'0');
            nanos = 10 * nanos + i128::from(digit);
        }
        rest = &fraction[count..];
    }
    let seconds = days * SECONDS_OF_A_DAY + hour * 3_600 + minute * 60 + second - offset(rest)?;
    Some(i128::from(seconds) * 1_000_000_000 + nanos)
}

/// Seconds east of UTC: nothing or `Z`, `±hh`, `±hhmm` or `±hh:mm`.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match rest {
        [a, b] => (digits(&[*a, *b])?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (digits(&[*a, *b])?, digits(&[*c, *d])?),
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_since_1970() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11_016),
            ("1900-01-01", *DAYS.start()),
            ("2299-12-31", *DAYS.end()),
        ] {
            assert_eq!(date(text), Some(days), "{text}");
        }
        for text in [
            "%900-01-01",
            "2024-0 -01",
            "1900-02-29",
            "2023-02-29",
            "2024-13-01",
            "2024-00-01",
            "2024-01-32",
            "2024-1-1",
            "20240101",
        ] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_texts_or_numbers() {
        let seconds = 1_700_000_000_i128 * 1_000_000_000;
        for (text, expected) in [
            ("2023-11-14T22:13:20Z", seconds),
            ("2023-11-14 22:13:20", seconds),
            ("2023-11-14T23:13:20.5+01:00", seconds + 500_000_000),
            ("2023-11-14T20:43:20.1234567891-0130", seconds + 123_456_789),
            ("2023-11-14T22:13:20,000000001z", seconds + 1),
            ("1970-01-02", 86_400_000_000_000),
            ("1700000000", seconds),
        ] {
            assert_eq!(nanos(text, true, Unit::Seconds), Some(expected), "{text}");
        }
        assert_eq!(
            nanos("1700000000.25", false, Unit::Seconds),
            Some(seconds + 250_000_000)
        );
        assert_eq!(nanos("1.7e12", false, Unit::Millis), Some(seconds));
        assert_eq!(
            nanos("1700000000000000.5", false, Unit::Micros),
            Some(seconds + 500)
        );
        assert_eq!(nanos("-0.0000000001", false, Unit::Seconds), Some(-1));
        for text in [
            "2023-11-14T22:13",
            "2023-11-14T24:00:00Z",
            "2023-11-14T22:13:20+1",
            "2023-11-14T22:13:20.Z",
            "2023-11-14é22:13:20",
            "yesterday",
            "",
        ] {
            assert_eq!(nanos(text, true, Unit::Seconds), None, "{text}");
        }
    }
}
