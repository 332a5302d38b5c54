//! The rows of a batch that were read for their keys, so that its chunks need not decompress and parse them again.

use super::{Found, messages};
use crate::events::rows;
use millpond_consumer::{Part, SinkError};
use millpond_segment::{Decompressor, Message};
use std::ops::Range;

/// A row of events, or the rest of a message that is not readable and the reason.
pub(super) type Row<'r> = Result<&'r str, (&'r [u8], String)>;

/// The parts of a batch, in order. `None`: one that is read again.
pub(super) type OpenParts = Vec<Option<OpenPart>>;

/// A part with all of its messages.
#[derive(Default)]
pub(super) struct OpenPart {
    /// The payloads, one after another.
    text: Vec<u8>,
    messages: Vec<OpenMessage>,
    /// The places in `text` of the rows.
    rows: Vec<Range<u32>>,
    /// The most that they may take.
    bytes: usize,
    /// The most of rows, and of messages.
    records: usize,
}

struct OpenMessage {
    received_at_us: i64,
    index: u32,
    block: u64,
    /// The end of its payload in `text`.
    text: u32,
    /// The end of its rows in `rows`.
    rows: u32,
    /// All of it is rows.
    is_readable: bool,
}

/// The result of reading a part once.
pub(super) struct Look {
    /// The latest reception of its messages, even of those without rows.
    pub(super) newest_us: Option<i64>,
    /// Its rows, if they are kept.
    pub(super) open: Option<OpenPart>,
}

/// Passes on the rows of a part, and keeps them in `open`, if there is one, as long as they fit.
pub(super) fn look(
    part: &Part,
    open: Option<OpenPart>,
    decompressor: &mut Decompressor,
    take: &mut dyn FnMut(&Found<'_>, Row<'_>) -> bool,
) -> Result<Look, SinkError> {
    let mut look = Look {
        newest_us: None,
        open,
    };
    let Look { newest_us, open } = &mut look;
    messages(part, decompressor, &mut |found| {
        let payload = found.message.payload;
        *newest_us = (*newest_us).max(Some(found.message.received_at_us));
        let mut is_readable = true;
        let more = rows(payload, |row| {
            match &row {
                Ok(row) => {
                    let start = row.as_ptr() as usize - payload.as_ptr() as usize;
                    open.take_if(|open| !open.add_row(start, row.len()));
                }
                Err(_) => is_readable = false,
            }
            take(&found, row)
        });
        open.take_if(|open| !open.add(&found, is_readable));
        more
    })?;
    Ok(look)
}

impl OpenPart {
    /// Room for the rows of a part. `None` if their places need more than 32 bits.
    pub(super) fn of(part: &Part) -> Option<OpenPart> {
        let bytes = u32::try_from(part.raw_len).ok()? as usize;
        Some(OpenPart {
            text: Vec::with_capacity(bytes),
            records: u32::try_from(part.records).ok()? as usize,
            bytes,
            ..OpenPart::default()
        })
    }

    /// Adds a row of the next message. Returns false if the part has more than the log says: nobody has reserved memory for that.
    fn add_row(&mut self, start: usize, length: usize) -> bool {
        let start = self.text.len() + start;
        let end = start + length;
        if self.rows.len() >= self.records || end > self.bytes {
            return false;
        }
        self.rows.push(short(start)..short(end));
        true
    }

    /// Adds a message after its rows. Returns false as for those.
    fn add(&mut self, found: &Found<'_>, is_readable: bool) -> bool {
        let Message {
            received_at_us,
            payload,
        } = found.message;
        if self.messages.len() >= self.records || self.text.len() + payload.len() > self.bytes {
            return false;
        }
        self.text.extend_from_slice(payload);
        self.messages.push(OpenMessage {
            received_at_us,
            index: short(found.index),
            block: found.block,
            text: short(self.text.len()),
            rows: short(self.rows.len()),
            is_readable,
        });
        true
    }

    fn row(&self, place: &Range<u32>) -> Row<'_> {
        let bytes = &self.text[place.start as usize..place.end as usize];
        std::str::from_utf8(bytes).map_err(|error| (bytes, error.to_string()))
    }
}

/// A number below the length of the part, or of its records.
fn short(number: usize) -> u32 {
    u32::try_from(number).expect("the part's length and records have 32 bits")
}

/// Passes on each row of a part. Returns false if `take` wants no more.
pub(super) fn each_row(
    part: &Part,
    open: Option<OpenPart>,
    decompressor: &mut Decompressor,
    take: &mut dyn FnMut(&Found<'_>, Row<'_>) -> bool,
) -> Result<bool, SinkError> {
    let Some(open) = open else {
        return messages(part, decompressor, &mut |found| {
            rows(found.message.payload, |row| take(&found, row))
        });
    };
    let (mut text, mut first) = (0, 0);
    for message in &open.messages {
        let payload = &open.text[text..message.text as usize];
        let found = Found {
            message: Message {
                received_at_us: message.received_at_us,
                payload,
            },
            index: message.index as usize,
            block: message.block,
            part,
        };
        let more = if message.is_readable {
            let mut places = open.rows[first..message.rows as usize].iter();
            places.all(|place| take(&found, open.row(place)))
        } else {
            rows(payload, |row| take(&found, row))
        };
        if !more {
            return Ok(false);
        }
        (text, first) = (message.text as usize, message.rows as usize);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_segment::{BlockBuilder, Compressor, Limits};
    use proptest::prelude::*;

    /// A part with one block of these messages.
    fn part(messages: &[Vec<u8>], raw_len: u64, records: u64) -> Part {
        let mut builder = BlockBuilder::with_buffer(1, Vec::new(), &Limits::default());
        for (message, at_us) in messages.iter().zip(0..) {
            builder.push(at_us, message).unwrap();
        }
        let block = Compressor::new(1).unwrap().compress(&builder, 0).unwrap();
        Part {
            sequence: 7,
            first_record: 0,
            segment: ulid::Ulid::nil(),
            offset: 8,
            data: block.bytes,
            raw_len,
            records,
            dropped: Default::default(),
        }
    }

    /// All that a reader of a part sees.
    fn seen(found: &Found<'_>, row: &Row<'_>) -> String {
        let payload = found.message.payload;
        let (at_us, place) = (found.message.received_at_us, found.of_row("x"));
        format!("{at_us} {payload:?} {place} {row:?}")
    }

    fn read(part: &Part, open: Option<OpenPart>) -> Vec<String> {
        let mut all = Vec::new();
        let mut decompressor = Decompressor::new().unwrap();
        let more = each_row(part, open, &mut decompressor, &mut |found, row| {
            all.push(seen(found, &row));
            true
        });
        assert!(more.unwrap());
        all
    }

    fn looked(part: &Part) -> (Look, Vec<String>) {
        let mut all = Vec::new();
        let mut decompressor = Decompressor::new().unwrap();
        let look = look(part, OpenPart::of(part), &mut decompressor, &mut |found, row| {
            all.push(seen(found, &row));
            true
        });
        (look.unwrap(), all)
    }

    proptest! {
        #[test]
        fn an_open_part_has_the_rows_of_a_closed_one(
            messages in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec!["{\"a\":1}", " 7", "\n", " ", "[", "\"é\"", "\u{feff}", "nul"]),
                    0..6,
                ),
                1..8,
            ),
            cut in 0_usize..3,
        ) {
            let messages: Vec<Vec<u8>> = messages
                .iter()
                .map(|words| words.concat().into_bytes())
                // An end within a character is no text.
                .map(|text| text[..text.len().saturating_sub(cut)].to_vec())
                .collect();
            let bytes: usize = messages.iter().map(Vec::len).sum();
            let part = part(&messages, bytes as u64, 100);
            let (look, all) = looked(&part);
            prop_assert_eq!(look.newest_us, Some(messages.len() as i64 - 1));
            prop_assert!(look.open.is_some());
            prop_assert_eq!(&read(&part, look.open), &all);
            prop_assert_eq!(read(&part, None), all);
        }
    }

    #[test]
    fn a_part_with_more_than_the_log_says_is_not_kept() {
        let messages = [b"{} {}".to_vec(), b"{}".to_vec()];
        for (raw_len, records, is_kept) in [(7, 3, true), (6, 3, false), (7, 2, false), (7, 1, false)] {
            let part = part(&messages, raw_len, records);
            let (look, all) = looked(&part);
            assert_eq!(
                (look.open.is_some(), all.len()),
                (is_kept, 3),
                "{raw_len} {records}"
            );
            assert_eq!(read(&part, look.open), all);
        }
    }
}
