//! Decodes bytes in JSON text in place: ids from hexadecimal, others from base64.

/// The value of a hexadecimal digit.
pub(super) fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Replaces hexadecimal digits with their bytes, and returns the number of bytes.
pub(super) fn decode_hex(bytes: &mut [u8]) -> Option<usize> {
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    let length = bytes.len() / 2;
    for place in 0..length {
        bytes[place] = nibble(bytes[2 * place])? << 4 | nibble(bytes[2 * place + 1])?;
    }
    Some(length)
}

/// Replaces base64 with its bytes, and returns their number. proto3's JSON allows standard and URL-safe base64, padded
/// or not.
pub(super) fn decode_base64(bytes: &mut [u8]) -> Option<usize> {
    let padding = bytes.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = bytes.len() - padding;
    if padding > 2 || digits % 4 == 1 || padding > 0 && !bytes.len().is_multiple_of(4) {
        return None;
    }
    let mut length = 0;
    let (mut pending, mut bits) = (0_u32, 0);
    for place in 0..digits {
        pending = pending << 6 | u32::from(sextet(bytes[place])?);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes[length] = (pending >> bits).to_le_bytes()[0];
            length += 1;
        }
    }
    Some(length)
}

fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64(text: &str) -> Option<Vec<u8>> {
        let mut bytes = text.as_bytes().to_vec();
        let length = decode_base64(&mut bytes)?;
        bytes.truncate(length);
        Some(bytes)
    }

    #[test]
    fn base64_of_either_alphabet_padded_or_not() {
        // RFC 4648, section 10.
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zg", b"f"),
            ("Zm8=", b"fo"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("-_-_", &[0xfb, 0xff, 0xbf]),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        for text in [
            "Z",
            "Zm9vY",
            "Zg=",
            "Zg===",
            "=",
            "====",
            "Z g=",
            "Zm9v=",
            "Zm=9",
            "Zm9\u{e9}",
        ] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    #[test]
    fn hexadecimal_of_either_case() {
        let hex = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            let length = decode_hex(&mut bytes)?;
            bytes.truncate(length);
            Some(bytes)
        };
        assert_eq!(hex("00aAfF"), Some(vec![0, 0xaa, 0xff]));
        assert_eq!(hex(""), Some(Vec::new()));
        assert_eq!(hex("abc"), None);
        assert_eq!(hex("0g"), None);
    }
}
