//! Reads ClickHouse's answers. Pure: bytes in, rows or an error out.
//!
//! A server, or whatever answers in its place, may send anything. Every answer has a limit on its bytes, and nothing here allocates by
//! a length that the answer states: rows come as JSON text (`JSONCompactEachRow`), whose values cost as much as their bytes.

use serde::de::DeserializeOwned;
use thiserror::Error;

/// The format of every answer with rows: a JSON array for each row, one a line.
pub(crate) const FORMAT: &str = "JSONCompactEachRow";

/// Maximum bytes of an answer about tables, settings and other short lists.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of an answer with the identities of a chunk's rows. A chunk has at most a million rows, and a row
/// takes at most eight bytes here, on each of its replicas.
pub(crate) const IDENTITIES_BYTES_MAX: usize = 32 << 20;

/// Maximum bytes of an error's text to keep. An exception can quote a whole query.
pub(crate) const ERROR_BYTES_MAX: usize = 64 << 10;

/// An answer that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum AnswerError {
    /// The answer is larger than the sink accepts.
    #[error("the answer has more than {0} bytes, which no answer to this question needs")]
    TooLarge(usize),
    /// An exception that came after the answer had begun.
    #[error("{text}")]
    Exception {
        /// ClickHouse's error code.
        code: u32,
        /// The exception, as the server wrote it.
        text: String,
    },
    /// The answer has an unexpected form.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

/// Parses rows of an answer while it arrives.
pub(crate) struct Rows<T> {
    /// The current, incomplete line.
    line: Vec<u8>,
    rows: Vec<T>,
    /// Text that is not a row: an exception, from its first line on.
    other: Option<Vec<u8>>,
    limit: usize,
    /// Bytes that rows and text have used so far.
    spent: usize,
}

impl<T: DeserializeOwned> Rows<T> {
    /// `limit`: maximum bytes of the answer. Each row also counts for its size in memory.
    pub(crate) fn new(limit: usize) -> Self {
        Rows {
            line: Vec::new(),
            rows: Vec::new(),
            other: None,
            limit,
            spent: 0,
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), AnswerError> {
        self.spent = self.spent.saturating_add(bytes);
        if self.spent > self.limit {
            return Err(AnswerError::TooLarge(self.limit));
        }
        Ok(())
    }

    /// Reads the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), AnswerError> {
        self.spend(bytes.len())?;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let Some(other) = &mut self.other {
                keep(other, piece);
                continue;
            }
            self.line.extend_from_slice(piece);
            if self.line.last() != Some(&b'\n') {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if line.trim_ascii().is_empty() {
                // An exception in the middle of an answer begins with an empty line.
            } else if line.first() == Some(&b'[') {
                self.spend(size_of::<T>())?;
                let row = serde_json::from_slice(&line);
                self.rows
                    .push(row.map_err(|error| AnswerError::Unreadable(error.to_string()))?);
            } else {
                let mut other = Vec::new();
                keep(&mut other, &line);
                self.other = Some(other);
            }
        }
        Ok(())
    }

    /// Returns all rows.
    pub(crate) fn end(mut self) -> Result<Vec<T>, AnswerError> {
        if self.other.is_none() && self.line.is_empty() {
            return Ok(self.rows);
        }
        let other = self.other.get_or_insert_default();
        keep(other, &self.line);
        let text = String::from_utf8_lossy(other);
        Err(late_exception(&text)
            .unwrap_or_else(|| AnswerError::Unreadable(format!("it ends with {:?}", beginning(&text, 200)))))
    }
}

/// Keeps the beginning of an error's text.
pub(crate) fn keep(text: &mut Vec<u8>, more: &[u8]) {
    let left = ERROR_BYTES_MAX.saturating_sub(text.len());
    text.extend_from_slice(&more[..more.len().min(left)]);
}

/// The first characters of a text.
pub(crate) fn beginning(text: &str, characters: usize) -> &str {
    let end = text.char_indices().nth(characters);
    end.map_or(text, |(end, _)| &text[..end])
}

/// Finds an exception after the rows of an answer, or in the answer to a statement.
pub(crate) fn late_exception(text: &str) -> Option<AnswerError> {
    // Since 25.11 a line with a tag precedes it, and one with its length and the tag follows it.
    let mut lines = text.lines();
    let text = lines.find(|line| line.starts_with("Code: ") && line.contains("Exception: "))?;
    Some(AnswerError::Exception {
        code: exception_code(text)?,
        text: text.to_owned(),
    })
}

/// Parses the code in `Code: 60. DB::Exception: …`, which begins an exception's text. Text in quotes is data and does
/// not count.
pub(crate) fn exception_code(text: &str) -> Option<u32> {
    let outside = crate::failure::outside_quotes(text);
    let (_, rest) = outside.split_once("Code: ")?;
    rest.split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: DeserializeOwned>(answer: &[u8], limit: usize) -> Result<Vec<T>, AnswerError> {
        let mut rows = Rows::new(limit);
        // Byte by byte: a row can arrive in many pieces.
        for byte in answer.chunks(1) {
            rows.push(byte)?;
        }
        rows.end()
    }

    #[test]
    fn rows_are_read_wherever_the_network_cuts_them() {
        let rows =
            read::<(String, u64, Vec<u32>)>(b"[\"a\\nb\",18446744073709551615,[1,2]]\n[\"\",0,[]]\n", 1000);
        assert_eq!(
            rows.unwrap(),
            [
                ("a\nb".to_owned(), u64::MAX, vec![1, 2]),
                (String::new(), 0, vec![])
            ]
        );
        assert_eq!(read::<(u64,)>(b"", 1000), Ok(vec![]));
    }

    #[test]
    fn a_cut_answer_is_no_answer() {
        for cut in [&b"[1]\n[2"[..], b"[1]\n[2]", b"[1"] {
            let error = read::<(u64,)>(cut, 1000).unwrap_err();
            assert!(matches!(error, AnswerError::Unreadable(_)), "{error}");
        }
    }

    #[test]
    fn another_answer_is_not_taken_for_rows() {
        for other in [
            &b"\xff\xff\xff\xff\x07\n"[..],
            b"<html>\n",
            b"[\"a\"]\n",
            b"[1,2]\n",
            b"[1] [2]\n",
        ] {
            let error = read::<(u64,)>(other, 1000).unwrap_err();
            assert!(matches!(error, AnswerError::Unreadable(_)), "{error}");
        }
    }

    #[test]
    fn an_exception_after_rows_is_found() {
        let text = "Code: 159. DB::Exception: Timeout exceeded: 'Code: 6. DB::Exception: x'. (TIMEOUT_EXCEEDED) (version 26.7)";
        let old = format!("[1]\n{text}\n");
        let tagged = format!(
            "[1]\n\r\n__exception__\r\nrnywyenlaeqynhmu\r\n{text}\n142 rnywyenlaeqynhmu\r\n__exception__\r\n"
        );
        for answer in [old, tagged] {
            let found = read::<(u64,)>(answer.as_bytes(), 1000);
            let expected = AnswerError::Exception {
                code: 159,
                text: text.to_owned(),
            };
            assert_eq!(found, Err(expected));
        }
    }

    #[test]
    fn an_answer_has_a_limit() {
        assert_eq!(read::<(u64,)>(&b"[1]\n".repeat(10), 120), Ok(vec![(1,); 10]));
        assert_eq!(
            read::<(u64,)>(&b"[1]\n".repeat(11), 120),
            Err(AnswerError::TooLarge(120))
        );
        let line = [b"[".repeat(1000), b"]".repeat(1000)].concat();
        assert_eq!(read::<(u64,)>(&line, 999), Err(AnswerError::TooLarge(999)));
    }

    #[test]
    fn the_code_of_an_exception_is_not_read_from_data() {
        assert_eq!(exception_code("Code: 60. DB::Exception: x"), Some(60));
        assert_eq!(exception_code("'Code: 6. ' Code: 60."), Some(60));
        assert_eq!(exception_code("503 Service Unavailable"), None);
        assert_eq!(exception_code("Code: 99999999999999."), None);
    }
}
