//! Exact values of JSON numbers.

use super::reader::number_length;

/// The integer value of a number: `12`, but also `12.0` and `1.2e1`, as in proto3's JSON. `None` if the text is not a
/// number, has a fraction, or is far beyond 64 bits.
pub(super) fn integer(text: &[u8]) -> Option<i128> {
    if number_length(text) != Some(text.len()) {
        return None;
    }
    let mut parts = text.splitn(2, |byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = (parts.next()?, parts.next());
    let mut value = 0_i128;
    let mut scale = 0_i32;
    let mut in_fraction = false;
    for byte in mantissa.iter().filter(|byte| **byte != b'-') {
        if *byte == b'.' {
            in_fraction = true;
            continue;
        }
        value = value.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
        scale -= i32::from(in_fraction);
    }
    if let Some(exponent) = exponent {
        scale = scale.checked_add(std::str::from_utf8(exponent).ok()?.parse().ok()?)?;
    }
    while scale > 0 && value != 0 {
        value = value.checked_mul(10)?;
        scale -= 1;
    }
    while scale < 0 && value != 0 {
        if value % 10 != 0 {
            return None;
        }
        value /= 10;
        scale += 1;
    }
    Some(if mantissa.starts_with(b"-") { -value } else { value })
}

/// The double nearest to a number. `None` if the text is not a number or exceeds the largest double.
pub(super) fn double(text: &[u8]) -> Option<f64> {
    if number_length(text) != Some(text.len()) {
        return None;
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_in_every_notation_are_exact() {
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("12", 12),
            ("12.0", 12),
            ("-1.20e1", -12),
            ("1200e-2", 12),
            ("0e999999999", 0),
            ("1.8446744073709551615e19", i128::from(u64::MAX)),
            ("-9223372036854775808", i128::from(i64::MIN)),
        ] {
            assert_eq!(integer(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "1.5",
            "12e-2",
            "1e99",
            "1e999999999",
            "1e99999999999",
            "1e-1",
            "+1",
            "01",
            " 1",
            "1 ",
            "0x1",
            "1.",
            ".1",
            "1e",
            "Infinity",
            "1-",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn doubles_are_the_nearest() {
        assert_eq!(double(b"-0").map(f64::to_bits), Some((-0.0_f64).to_bits()));
        assert_eq!(double(b"0.1"), Some(0.1));
        assert_eq!(double(b"5e-324"), Some(5e-324));
        assert_eq!(double(b"1.7976931348623157e308"), Some(f64::MAX));
        assert_eq!(double(b"9007199254740993"), Some(9_007_199_254_740_992.0));
        for text in ["1e309", "-1e309", "inf", "NaN", "", "1 "] {
            assert_eq!(double(text.as_bytes()), None, "{text}");
        }
    }
}
