//! The rows of a batch that were read for their keys, so that its chunks need not decompress and parse them again.

use super::{Found, damaged, messages, messages_of};
use crate::events::rows;
use millpond_consumer::{Part, SinkError};
use millpond_segment::{Decompressor, Limits, OpenBlock};
use std::ops::Range;

/// A row of events, or the rest of a message that is not readable and the reason.
pub(super) type Row<'r> = Result<&'r str, (&'r [u8], String)>;

/// The parts of a batch, in order. `None`: one that is read again.
pub(super) type OpenParts = Vec<Option<OpenPart>>;

/// A part with all of its messages.
#[derive(Default)]
pub(super) struct OpenPart {
    blocks: Vec<OpenBlock>,
    messages: Vec<OpenMessage>,
    /// The places of the rows in their messages.
    rows: Vec<Range<u32>>,
    /// The bytes that the blocks have left.
    bytes: u64,
    /// The most of rows, and of messages.
    records: usize,
}

struct OpenMessage {
    /// The end of its rows in `rows`.
    rows: u32,
    /// All of it is rows.
    is_readable: bool,
}

/// Passes on the rows of a part, and keeps them in `open`, if there is one, as long as they fit. Puts the times of the messages, even of
/// those without rows, into `times_us`.
pub(super) fn look(
    part: &Part,
    mut open: Option<OpenPart>,
    decompressor: &mut Decompressor,
    times_us: &mut Vec<i64>,
    take: &mut dyn FnMut(&Found<'_>, Row<'_>) -> bool,
) -> Result<Option<OpenPart>, SinkError> {
    times_us.clear();
    for block in millpond_segment::blocks(&part.data, part.offset, &Limits::default()) {
        let block = block.and_then(|block| block.open(decompressor));
        let block = block.map_err(|error| damaged(part, &error))?;
        let more = messages_of(block.raw(), part, &mut |found| {
            let payload = found.message.payload;
            times_us.push(found.message.received_at_us);
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
            open.take_if(|open| !open.add(is_readable));
            more
        })?;
        open.take_if(|open| !open.has_room(&block));
        match &mut open {
            Some(open) => open.blocks.push(block),
            None => block.close(decompressor),
        }
        if !more {
            break;
        }
    }
    Ok(open)
}

impl OpenPart {
    /// Room for the rows of a part. `None` if their places need more than 32 bits.
    pub(super) fn of(part: &Part) -> Option<OpenPart> {
        Some(OpenPart {
            records: u32::try_from(part.records).ok()? as usize,
            bytes: u32::try_from(part.raw_len).ok()?.into(),
            ..OpenPart::default()
        })
    }

    /// Adds a row of the next message. Returns false if the part has more than the log says: nobody has reserved memory for that.
    fn add_row(&mut self, start: usize, length: usize) -> bool {
        if self.rows.len() >= self.records {
            return false;
        }
        self.rows.push(short(start)..short(start + length));
        true
    }

    /// Adds a message after its rows. Returns false as for those.
    fn add(&mut self, is_readable: bool) -> bool {
        if self.messages.len() >= self.records {
            return false;
        }
        self.messages.push(OpenMessage {
            rows: short(self.rows.len()),
            is_readable,
        });
        true
    }

    /// Returns false if the blocks are longer than the log says.
    fn has_room(&mut self, block: &OpenBlock) -> bool {
        let left = self.bytes.checked_sub(block.raw().len() as u64);
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }
}

fn row<'m>(message: &'m [u8], place: &Range<u32>) -> Row<'m> {
    let bytes = &message[place.start as usize..place.end as usize];
    std::str::from_utf8(bytes).map_err(|error| (bytes, error.to_string()))
}

/// A number below the length of a message, or of the part's records.
fn short(number: usize) -> u32 {
    u32::try_from(number).expect("a message's length and the part's records have 32 bits")
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
    let OpenPart {
        blocks,
        messages,
        rows: places,
        ..
    } = open;
    let (mut messages, mut first) = (messages.iter(), 0);
    let mut more = true;
    for block in blocks {
        more = more
            && messages_of(block.raw(), part, &mut |found| {
                let payload = found.message.payload;
                let Some(message) = messages.next() else {
                    return false;
                };
                let mut places = places[first..message.rows as usize].iter();
                first = message.rows as usize;
                if message.is_readable {
                    places.all(|place| take(&found, row(payload, place)))
                } else {
                    rows(payload, |row| take(&found, row))
                }
            })?;
        block.close(decompressor);
    }
    Ok(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_segment::{BlockBuilder, Compressor, Limits};
    use proptest::prelude::*;

    /// A part with one block of these messages, which the log gives too few bytes by `less`.
    fn part(messages: &[Vec<u8>], less: u64, records: u64) -> Part {
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
            raw_len: block.raw_len - less,
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

    /// The rows that are kept, the times of the messages, and the rows.
    fn looked(part: &Part) -> (Option<OpenPart>, Vec<i64>, Vec<String>) {
        let (mut all, mut times_us) = (Vec::new(), vec![7]);
        let mut decompressor = Decompressor::new().unwrap();
        let open = look(
            part,
            OpenPart::of(part),
            &mut decompressor,
            &mut times_us,
            &mut |found, row| {
                all.push(seen(found, &row));
                true
            },
        );
        (open.unwrap(), times_us, all)
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
            let part = part(&messages, 0, 100);
            let (open, times_us, all) = looked(&part);
            prop_assert_eq!(times_us, (0..messages.len() as i64).collect::<Vec<_>>());
            prop_assert!(open.is_some());
            prop_assert_eq!(&read(&part, open), &all);
            prop_assert_eq!(read(&part, None), all);
        }
    }

    #[test]
    fn a_part_with_more_than_the_log_says_is_not_kept() {
        let messages = [b"{} {}".to_vec(), b"{}".to_vec()];
        for (less, records, is_kept) in [(0, 3, true), (1, 3, false), (0, 2, false), (0, 1, false)] {
            let part = part(&messages, less, records);
            let (open, _, all) = looked(&part);
            assert_eq!((open.is_some(), all.len()), (is_kept, 3), "{less} {records}");
            assert_eq!(read(&part, open), all);
        }
    }
}
