//! Reads JSON (RFC 8259) token by token from complete input. It never copies or allocates, and stops at the position of
//! a fault.

use super::fault::{Fault, JsonReason};

/// Maximum nesting of values in a field that OTLP does not define.
const SKIP_DEPTH_MAX: u32 = 100;

/// The JSON that has not been read yet.
pub(super) struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

/// The text between a string's quotation marks, with verified escapes.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) raw: &'a [u8],
    pub(super) escaped: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0 }
    }

    /// The start of the next token, once [`Reader::peek`] has found it.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The first byte of the next token.
    pub(super) fn peek(&mut self) -> Result<u8, Fault> {
        while let Some(byte) = self.input.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Ok(*byte);
            }
            self.at += 1;
        }
        Err(self.fault(JsonReason::Truncated))
    }

    /// Consumes the next token if it is this byte.
    pub(super) fn take(&mut self, byte: u8) -> Result<bool, Fault> {
        let is_next = self.peek()? == byte;
        self.at += usize::from(is_next);
        Ok(is_next)
    }

    /// Consumes this byte. The fault for any other byte names `name`.
    pub(super) fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), Fault> {
        if self.take(byte)? {
            Ok(())
        } else {
            Err(self.fault(JsonReason::Expected(name)))
        }
    }

    /// After an element of a list that ends with `end`: whether there is another one.
    pub(super) fn another(&mut self, end: u8) -> Result<bool, Fault> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Ok(true)
            }
            byte if byte == end => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.fault(JsonReason::Expected(if end == b']' {
                "a comma or the end of the array"
            } else {
                "a comma or the end of the object"
            }))),
        }
    }

    /// Consumes `null` if it is next.
    pub(super) fn null(&mut self) -> Result<bool, Fault> {
        Ok(self.peek()? == b'n' && self.word(b"null").map(|()| true)?)
    }

    /// Consumes `true` or `false`.
    pub(super) fn boolean(&mut self) -> Result<bool, Fault> {
        match self.peek()? {
            b't' => self.word(b"true").map(|()| true),
            b'f' => self.word(b"false").map(|()| false),
            _ => Err(self.fault(JsonReason::Expected("true or false"))),
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), Fault> {
        if !self.input[self.at..].starts_with(word) {
            return Err(self.fault(JsonReason::Expected("a value")));
        }
        self.at += word.len();
        Ok(())
    }

    /// Consumes a number and checks it against JSON's grammar.
    pub(super) fn number(&mut self) -> Result<&'a [u8], Fault> {
        self.peek()?;
        let rest = &self.input[self.at..];
        let length = number_length(rest).ok_or_else(|| self.fault(JsonReason::Expected("a number")))?;
        self.at += length;
        Ok(&rest[..length])
    }

    /// Consumes a string.
    pub(super) fn string(&mut self) -> Result<Text<'a>, Fault> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.input.get(self.at) {
                None => return Err(self.fault(JsonReason::Truncated)),
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(0..0x20) => return Err(self.fault(JsonReason::ControlCharacter)),
                Some(_) => self.at += 1,
            }
        }
        let raw = &self.input[start..self.at];
        self.at += 1;
        Ok(Text { raw, escaped })
    }

    fn escape(&mut self) -> Result<(), Fault> {
        let length = match self.input.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => match self.input.get(self.at + 2..self.at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => 6,
                Some(_) => return Err(self.fault(JsonReason::Escape)),
                None => return Err(self.fault(JsonReason::Truncated)),
            },
            Some(_) => return Err(self.fault(JsonReason::Escape)),
            None => return Err(self.fault(JsonReason::Truncated)),
        };
        self.at += length;
        Ok(())
    }

    /// Skips a value of any kind.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        self.skip_within(0)
    }

    fn skip_within(&mut self, depth: u32) -> Result<(), Fault> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b't' | b'f' => self.boolean().map(|_| ()),
            b'n' => self.null().map(|_| ()),
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            b'{' | b'[' if depth == SKIP_DEPTH_MAX => Err(self.fault(JsonReason::Depth)),
            b'[' => {
                self.at += 1;
                let mut more = !self.take(b']')?;
                while more {
                    self.skip_within(depth + 1)?;
                    more = self.another(b']')?;
                }
                Ok(())
            }
            b'{' => {
                self.at += 1;
                let mut more = !self.take(b'}')?;
                while more {
                    self.string()?;
                    self.expect(b':', "a colon")?;
                    self.skip_within(depth + 1)?;
                    more = self.another(b'}')?;
                }
                Ok(())
            }
            _ => Err(self.fault(JsonReason::Expected("a value"))),
        }
    }

    /// Accepts only white space up to the end.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Ok(_) => Err(self.fault(JsonReason::Trailing)),
            Err(_) => Ok(()),
        }
    }

    fn fault(&self, reason: JsonReason) -> Fault {
        Fault::at(self.at, reason)
    }
}

/// The length of the number at the start of `bytes`, by JSON's grammar.
pub(super) fn number_length(bytes: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    at += match (bytes.get(at), digits(at)) {
        (_, 0) => return None,
        // No more digits may follow a zero.
        (Some(b'0'), _) => 1,
        (_, count) => count,
    };
    if bytes.get(at) == Some(&b'.') {
        match digits(at + 1) {
            0 => return None,
            count => at += 1 + count,
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        match digits(at + 1 + sign) {
            0 => return None,
            count => at += 1 + sign + count,
        }
    }
    Some(at)
}
