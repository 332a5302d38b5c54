//! Counts the repeated fields of a protobuf message before decoding it. An empty message takes two bytes on the wire
//! and a hundred in memory, so a limit on the object's bytes alone would let a small object fill the memory.

use crate::FormatError;

/// A limit on the occurrences of a field.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    /// The plural noun for the field, for errors.
    pub of: &'static str,
    /// The field numbers that lead to it, from the outermost message.
    pub path: &'static [u32],
    /// Maximum occurrences in the whole object.
    pub max: usize,
}

/// Maximum number of counts per object.
const COUNTS_MAX: usize = 16;

/// Counts the fields in `body`, an encoded message, and rejects it if there are too many of some kind. It does not
/// allocate. As in protobuf, it skips unknown fields.
pub(crate) fn check(object: &'static str, counts: &[Count], body: &[u8]) -> Result<(), FormatError> {
    let mut found = [0; COUNTS_MAX];
    let content = |reason: String| FormatError::Content { object, reason };
    let mut scan = Scan {
        counts,
        found: &mut found,
    };
    match scan.message(body, 0, u16::MAX) {
        Ok(()) => Ok(()),
        Err(Wrong::Encoding) => Err(content("it is not a protobuf message".into())),
        Err(Wrong::TooMany(Count { of, max, .. })) => {
            Err(content(format!("it has more than the maximum of {max} {of}")))
        }
    }
}

enum Wrong {
    Encoding,
    TooMany(Count),
}

struct Scan<'a> {
    counts: &'a [Count],
    found: &'a mut [usize; COUNTS_MAX],
}

impl Scan<'_> {
    /// Counts in a message at this depth. `among` has a bit for each count whose path leads here.
    fn message(&mut self, mut rest: &[u8], depth: usize, among: u16) -> Result<(), Wrong> {
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            let number = key >> 3;
            let mut field = &[][..];
            match key & 7 {
                0 => {
                    varint(&mut rest)?;
                }
                1 => field = take(&mut rest, 8)?,
                2 => {
                    let length = usize::try_from(varint(&mut rest)?).map_err(|_| Wrong::Encoding)?;
                    field = take(&mut rest, length)?;
                }
                5 => field = take(&mut rest, 4)?,
                // Groups, which no version of the format uses.
                _ => return Err(Wrong::Encoding),
            }
            let mut inside = 0;
            for (place, count) in self.counts.iter().enumerate() {
                let leads = among & (1 << place) != 0
                    && count.path.get(depth).map(|at| u64::from(*at)) == Some(number);
                if !leads {
                    continue;
                }
                if depth + 1 < count.path.len() {
                    inside |= 1 << place;
                    continue;
                }
                // Numbers may be packed: count the bytes that end one.
                let packed = key & 7 == 2 && count.path == PIECES;
                self.found[place] += if packed {
                    field.iter().filter(|byte| **byte < 0x80).count()
                } else {
                    1
                };
                if self.found[place] > count.max {
                    return Err(Wrong::TooMany(*count));
                }
            }
            if inside != 0 && key & 7 == 2 {
                self.message(field, depth + 1, inside)?;
            }
        }
        Ok(())
    }
}

/// The path of the only repeated numbers: `Cursor.refused.pieces`.
pub(crate) const PIECES: &[u32] = &[14, 4];

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Wrong> {
    let (field, after) = rest.split_at_checked(length).ok_or(Wrong::Encoding)?;
    *rest = after;
    Ok(field)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Wrong> {
    let mut value = 0;
    for (place, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            *rest = &rest[place + 1..];
            return Ok(value);
        }
    }
    Err(Wrong::Encoding)
}
