//! Splits a body of events into rows: JSON objects, one on each line, in an array, or one after another. Pure: it never
//! builds a value, and never changes the bytes of a row.
//!
//! A message of an `ndjson` stream is the accepted rows with a newline between them. A row that spans lines keeps its own
//! newlines, so row i of a message is its i-th object, not its i-th line.

use std::ops::Range;

use bytes::Bytes;

mod check;
mod division;

pub use check::{DEPTH_MAX, KEYS_MAX, ROW_BYTES_MAX};
pub use division::{Division, Part, Parts};

use check::{Wrong, check};

/// Maximum number of errors that [`Rows`] describes. It counts the others.
pub const ERRORS_MAX: usize = 20;

/// How rows follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One row on each line (NDJSON). A malformed row ends at its newline.
    Lines,
    /// The body shows it: an array if it begins with `[`; else lines, until an object spans several of them: from there on,
    /// one object after another. A malformed row in an array or among those objects makes the rest unreadable.
    Any,
}

/// The content of a body.
#[derive(Debug, Default)]
pub struct Rows {
    /// The accepted rows, with a newline between them.
    pub payload: Bytes,
    /// The number of accepted rows.
    pub accepted: u64,
    /// The number of rejected rows. A row that makes the rest unreadable counts as one.
    pub rejected: u64,
    /// The first [`ERRORS_MAX`] of them.
    pub errors: Vec<RowError>,
    /// The bytes from the row that made the rest unreadable to the end of the body. 0 if all of it was read.
    pub unread_bytes: usize,
    /// Returns true if the body has only whitespace.
    pub is_blank: bool,
}

/// A rejected row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// The line in the body, from 1.
    pub line: u64,
    /// The byte in that line, from 1.
    pub column: u64,
    /// The rule that the row breaks.
    pub reason: String,
}

/// Reads a body. It allocates at most the length of the body and, for each row, what [`ROW_BYTES_MAX`] and [`KEYS_MAX`]
/// allow.
pub fn read(body: &Bytes, form: Form) -> Rows {
    let mut reader = Reader::new(body);
    let start = skip_whitespace(body, 0);
    if start == body.len() {
        return Rows {
            is_blank: true,
            ..Rows::default()
        };
    }
    match form {
        Form::Any if body[start] == b'[' => reader.array(start),
        Form::Any | Form::Lines => reader.lines(form),
    }
    reader.finish()
}

/// Checks one row without whitespace around it. The error says where the row breaks which rule.
pub(crate) fn check_row(row: &[u8]) -> Result<(), String> {
    check(row).map_err(|wrong| match wrong.at(row) {
        0 => wrong.to_string(),
        at => format!("{wrong} at byte {at}"),
    })
}

struct Reader<'a> {
    body: &'a Bytes,
    rows: Rows,
    /// The last accepted rows, as long as exactly a newline is between them in the body too.
    run: Range<usize>,
    /// The accepted rows before the run. Stays empty if all rows are one run: the payload is then a part of the body.
    copied: Vec<u8>,
    place: Place,
}

/// The line of the last error, so that finding the next one does not begin anew.
struct Place {
    line: u64,
    line_start: usize,
    counted: usize,
}

impl<'a> Reader<'a> {
    fn new(body: &'a Bytes) -> Self {
        Reader {
            body,
            rows: Rows::default(),
            run: 0..0,
            copied: Vec::new(),
            place: Place {
                line: 1,
                line_start: 0,
                counted: 0,
            },
        }
    }

    fn lines(&mut self, form: Form) {
        let mut start = 0;
        while start < self.body.len() {
            let rest = &self.body[start..];
            let end = start + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let row = trimmed(self.body, start..end);
            start = end + 1;
            if row.is_empty() {
                continue;
            }
            match check(&self.body[row.clone()]) {
                Ok(()) => self.accept(row),
                // A line of an object that spans lines may itself be an object.
                Err(_) if form == Form::Any && self.spans_lines(&row) => return self.sequence(row.start),
                Err(wrong) => self.reject(row, &wrong, false),
            }
        }
    }

    /// Returns true if the value that begins on this line goes on after it.
    fn spans_lines(&self, line: &Range<usize>) -> bool {
        let end = line.start + extent(&self.body[line.start..]);
        end > line.end && skip_whitespace(self.body, line.end) < self.body.len()
    }

    fn array(&mut self, start: usize) {
        let mut at = skip_whitespace(self.body, start + 1);
        if self.body.get(at) == Some(&b']') {
            return self.end_of_array(at);
        }
        loop {
            let Some(end) = self.element(at) else {
                return;
            };
            at = skip_whitespace(self.body, end);
            match self.body.get(at) {
                Some(b',') => at = skip_whitespace(self.body, at + 1),
                Some(b']') => return self.end_of_array(at),
                Some(_) => return self.stop_at(at, &Wrong::NoComma),
                None => return self.stop_at(at, &Wrong::NoEnd),
            }
        }
    }

    fn end_of_array(&mut self, bracket: usize) {
        let after = skip_whitespace(self.body, bracket + 1);
        if after < self.body.len() {
            self.stop_at(after, &Wrong::AfterArray);
        }
    }

    fn sequence(&mut self, start: usize) {
        let mut at = start;
        while at < self.body.len() {
            let Some(end) = self.element(at) else {
                return;
            };
            at = skip_whitespace(self.body, end);
            // The payload then has no more bytes than the body.
            if at == end && at < self.body.len() {
                return self.stop_at(at, &Wrong::NoGap);
            }
        }
    }

    /// Reads the value at this offset, and returns its end. `None` if the rest is unreadable.
    fn element(&mut self, at: usize) -> Option<usize> {
        let end = at + extent(&self.body[at..]);
        match check(&self.body[at..end]) {
            Ok(()) => self.accept(at..end),
            Err(wrong) if wrong.ends_reading() => {
                self.stop(at..end, &wrong);
                return None;
            }
            Err(wrong) => self.reject(at..end, &wrong, false),
        }
        Some(end)
    }

    fn stop_at(&mut self, at: usize, wrong: &Wrong) {
        self.stop(at..at, wrong);
    }

    fn stop(&mut self, row: Range<usize>, wrong: &Wrong) {
        self.rows.unread_bytes = self.body.len() - row.start;
        self.reject(row, wrong, true);
    }

    fn accept(&mut self, row: Range<usize>) {
        self.rows.accepted += 1;
        let adjoins = row.start == self.run.end + 1 && self.body[self.run.end] == b'\n';
        if adjoins && !self.run.is_empty() {
            self.run.end = row.end;
            return;
        }
        self.copy_run();
        self.run = row;
    }

    /// Copies the run behind the rows before it.
    fn copy_run(&mut self) {
        if self.run.is_empty() {
            return;
        }
        if self.copied.is_empty() {
            self.copied.reserve_exact(self.body.len());
        } else {
            self.copied.push(b'\n');
        }
        self.copied.extend_from_slice(&self.body[self.run.clone()]);
    }

    fn reject(&mut self, row: Range<usize>, wrong: &Wrong, is_last: bool) {
        self.rows.rejected += 1;
        if self.rows.errors.len() == ERRORS_MAX {
            return;
        }
        let offset = row.start + wrong.at(&self.body[row]);
        let (line, column) = self.place.of(self.body, offset);
        let mut reason = wrong.to_string();
        if is_last {
            reason += "; the rest of the body is not read";
        }
        self.rows.errors.push(RowError { line, column, reason });
    }

    fn finish(mut self) -> Rows {
        // A part would keep all of the body in memory.
        let is_most = self.run.len() >= self.body.len() - self.body.len() / 4;
        if self.copied.is_empty() && is_most {
            self.rows.payload = self.body.slice(self.run);
            return self.rows;
        }
        self.copy_run();
        if self.copied.capacity() - self.copied.len() > self.copied.len() / 4 {
            self.copied.shrink_to_fit();
        }
        self.rows.payload = self.copied.into();
        self.rows
    }
}

impl Place {
    /// The line and column of an offset that is not before an earlier one's line.
    fn of(&mut self, body: &[u8], offset: usize) -> (u64, u64) {
        let offset = offset.min(body.len());
        let passed = body.get(self.counted..offset).unwrap_or_default();
        for (at, byte) in (self.counted..).zip(passed) {
            if *byte == b'\n' {
                self.line += 1;
                self.line_start = at + 1;
            }
        }
        self.counted = self.counted.max(offset);
        (self.line, (offset.saturating_sub(self.line_start) + 1) as u64)
    }
}

/// Returns true for JSON's whitespace (RFC 8259, 2).
fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn skip_whitespace(body: &[u8], from: usize) -> usize {
    let rest = body.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .position(|byte| !is_whitespace(*byte))
        .unwrap_or(rest.len())
}

fn trimmed(body: &[u8], line: Range<usize>) -> Range<usize> {
    let start = skip_whitespace(&body[..line.end], line.start);
    let length = body[start..line.end]
        .iter()
        .rposition(|byte| !is_whitespace(*byte))
        .map_or(0, |last| last + 1);
    start..start + length
}

/// The length of the value at the start: up to its last bracket, or to what ends a scalar. Whether it is JSON is for
/// [`check`] to say.
fn extent(rest: &[u8]) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => {
                in_string = !in_string;
                if !in_string && depth == 0 {
                    return at + 1;
                }
            }
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return if depth == 0 { at } else { at + 1 },
            b'}' | b']' => depth -= 1,
            b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests;
