//! Resolves the escapes of a JSON string.

use super::reader::Text;

/// The replacement for an unpaired surrogate, as in the Collector: U+FFFD in UTF-8.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl Text<'_> {
    /// Passes the content to `put` in pieces.
    pub(super) fn unescape<E>(&self, mut put: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut rest = self.raw;
        while let Some(length) = rest.iter().position(|byte| *byte == b'\\') {
            put(&rest[..length])?;
            let escape = rest[length + 1];
            rest = &rest[length + 2..];
            match escape {
                b'b' => put(b"\x08")?,
                b'f' => put(b"\x0c")?,
                b'n' => put(b"\n")?,
                b'r' => put(b"\r")?,
                b't' => put(b"\t")?,
                b'u' => rest = unicode(rest, &mut put)?,
                itself => put(&[itself])?,
            }
        }
        put(rest)
    }
}

/// Writes the character of the leading digits, including a second surrogate if there is one. Returns the rest.
fn unicode<'a, E>(rest: &'a [u8], put: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<&'a [u8], E> {
    let (unit, rest) = (hex4(rest), &rest[4..]);
    if let Some(pair) = rest.strip_prefix(b"\\u")
        && let Some(Ok(character)) = char::decode_utf16([unit, hex4(pair)]).next()
        && character > '\u{ffff}'
    {
        put(character.encode_utf8(&mut [0; 4]).as_bytes())?;
        return Ok(&pair[4..]);
    }
    match char::from_u32(u32::from(unit)) {
        Some(character) => put(character.encode_utf8(&mut [0; 4]).as_bytes())?,
        None => put(REPLACEMENT)?,
    }
    Ok(rest)
}

/// The value of four hexadecimal digits, which the reader has verified.
fn hex4(digits: &[u8]) -> u16 {
    digits[..4].iter().fold(0, |number, digit| {
        number << 4 | u16::from(super::id::nibble(*digit).unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use crate::json::reader::Reader;

    fn content(json: &str) -> String {
        let text = Reader::new(json.as_bytes()).string().expect("a string");
        let mut content = Vec::new();
        text.unescape(|piece| {
            content.extend_from_slice(piece);
            Ok::<_, ()>(())
        })
        .expect("no error");
        String::from_utf8(content).expect("UTF-8")
    }

    #[test]
    fn escapes_are_what_json_says() {
        assert_eq!(content(r#""\"\\\/\b\f\n\r\t""#), "\"\\/\u{8}\u{c}\n\r\t");
        assert_eq!(content(r#""a\u00e9b\u20AC\u0000c""#), "aéb€\0c");
        assert_eq!(content(r#""\ud83d\ude00!""#), "😀!");
    }

    #[test]
    fn half_a_character_becomes_the_replacement_character() {
        assert_eq!(content(r#""cut \ud83d""#), "cut \u{fffd}");
        assert_eq!(content(r#""\ude00\ud83d""#), "\u{fffd}\u{fffd}");
        assert_eq!(
            content(r#""\ud83d\u0041\ud83d\ud83d\ude00""#),
            "\u{fffd}A\u{fffd}😀"
        );
        assert_eq!(content(r#""\ud83dx\n""#), "\u{fffd}x\n");
    }
}
