//! Standard output. A reader that closes it (`millpond status | head`) ends the command without a failure. Nothing here
//! panics, unlike `println!`.
//!
//! Everything that the program prints goes through [`plain`]: data and names come from tenants, servers and everybody who can write
//! to the bucket, and a terminal obeys control characters.

use anyhow::{Context, anyhow};
use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal, Write};

/// The reader closed standard output.
#[derive(Debug)]
struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader closed standard output")
    }
}

/// Writes all of the text to standard output.
pub(crate) fn write(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    write_raw(&plain(&text.to_string()))
}

/// A colour of a word that decides what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Colour::Green => "\x1b[32m",
            Colour::Yellow => "\x1b[33m",
            Colour::Red => "\x1b[31m",
        }
    }
}

/// Prints a line that begins with a coloured word. Without a terminal, or with `NO_COLOR`, it has no colour.
pub(crate) fn painted(colour: Colour, word: &str, rest: &str) -> anyhow::Result<()> {
    write_raw(&paint(colour, word, rest, wants_colour(&io::stdout())))
}

/// Reports whether colours help there: a terminal, without `NO_COLOR` (no-color.org).
pub(crate) fn wants_colour(stream: &impl IsTerminal) -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_refused
}

fn paint(colour: Colour, word: &str, rest: &str, is_coloured: bool) -> String {
    let (word, rest) = (plain(word), plain(rest));
    match is_coloured {
        true => format!("{}{word}\x1b[0m{rest}\n", colour.code()),
        false => format!("{word}{rest}\n"),
    }
}

/// Clears the terminal and moves the cursor to its first line.
pub(crate) fn clear_terminal() -> anyhow::Result<()> {
    write_raw("\x1b[H\x1b[2J")
}

fn write_raw(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .or_else(failed)
}

/// Escapes the characters that change what a terminal does or the order in which it shows text, as JSON escapes them (`\u001b`), so that
/// JSON stays the same JSON. Line ends and tabs remain.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |character| {
        !matches!(character, '\n' | '\t') && is_unsafe(character)
    })
}

/// Escapes a foreign text for use within a line: like [`plain`], and also line ends and tabs.
pub(crate) fn inline(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// C0, DEL and C1; marks, overrides and isolates of the writing direction; the line ends of Unicode.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' if is_escaped(character) => plain.push_str("\\n"),
            '\r' => plain.push_str("\\r"),
            '\t' if is_escaped(character) => plain.push_str("\\t"),
            _ if is_escaped(character) => {
                // Every escaped character has at most four digits.
                let _ = write!(plain, "\\u{:04x}", u32::from(character));
            }
            _ => plain.push(character),
        }
    }
    Cow::Owned(plain)
}

/// Turns a failed write to standard output into an error.
pub(crate) fn failed(error: io::Error) -> anyhow::Result<()> {
    match error.kind() {
        ErrorKind::BrokenPipe => Err(anyhow!(error).context(ReaderGone)),
        _ => Err(error).context("cannot write to standard output"),
    }
}

/// Returns true if a command ended because the reader closed standard output.
pub(crate) fn is_reader_gone(error: &anyhow::Error) -> bool {
    error.is::<ReaderGone>()
}

/// Prints a line like `println!`. Fails once the reader has closed standard output: with `?` this ends a command that only
/// shows things. A command that changes things ignores the error.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($what)*)))
    };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\x1b]0;x\x07\x08\x7f\u{9b}31m\u{85}\r\0 \u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{2028}z";
        let expected = concat!(
            r"a\u001b]0;x\u0007\u0008\u007f\u009b31m\u0085\r\u0000 ",
            r"\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028z"
        );
        assert_eq!(plain(hostile), expected);
        assert_eq!(inline(hostile), expected);
        let text = "grün → 東京\n\tمرحبا 👩\u{200d}💻";
        assert_eq!(plain(text), text);
        assert_eq!(inline("a\n\tb"), r"a\n\tb");
        assert_eq!(plain(&inline("a\nb\x1b")), r"a\nb\u001b");
    }

    #[test]
    fn a_colour_surrounds_its_word_alone_and_no_text_brings_its_own() {
        assert_eq!(
            paint(Colour::Red, "error", "  a\x1b[0m", true),
            "\x1b[31merror\x1b[0m  a\\u001b[0m\n"
        );
        assert_eq!(paint(Colour::Green, "   ok", "  b", false), "   ok  b\n");
    }

    #[test]
    fn escaped_json_is_the_same_json() {
        let value: String = ('\0'..='\u{2100}').collect();
        let json = serde_json::to_string(&value).unwrap();
        let escaped = plain(&json);
        assert!(!escaped.contains(is_unsafe));
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), value);
    }

    #[test]
    fn a_reader_that_goes_away_is_told_from_a_full_disk() {
        let failed = |kind: ErrorKind| failed(kind.into()).unwrap_err();
        assert!(is_reader_gone(&failed(ErrorKind::BrokenPipe)));
        let full = failed(ErrorKind::StorageFull);
        assert!(!is_reader_gone(&full));
        assert!(full.to_string().contains("standard output"));
        // A broken pipe of the network is a different error.
        assert!(!is_reader_gone(&io::Error::from(ErrorKind::BrokenPipe).into()));
    }
}
