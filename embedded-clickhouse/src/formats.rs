//! Output formats whose pieces can be joined. chDB formats each piece of a streamed result as if it were a whole
//! one, so a format can be streamed when a result is the concatenation of its blocks, after the names (and
//! types) that some open with are cut from all pieces but the first. Every other format is answered whole.

/// How the pieces of a format are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// As they are.
    Plain,
    /// Each opens with this many lines, where a line end inside double quotes does not count.
    Lines(usize),
    /// Each opens with a count and as many strings, this many times over, the count once.
    Names { lists: usize },
}

/// How to join pieces of `format`, or `None` when it must not be streamed. Formats are named exactly as
/// ClickHouse names them (it is case-sensitive).
pub(crate) fn join(format: &str) -> Option<Join> {
    let join = match format {
        "Native" | "RowBinary" => Join::Plain,
        "TabSeparated" | "TSV" | "TabSeparatedRaw" | "TSVRaw" | "CSV" | "TSKV" => Join::Plain,
        "JSONEachRow" | "JSONLines" | "NDJSON" | "JSONStringsEachRow" => Join::Plain,
        "JSONCompactEachRow" | "JSONCompactStringsEachRow" => Join::Plain,
        "RowBinaryWithNames" => Join::Names { lists: 1 },
        "RowBinaryWithNamesAndTypes" => Join::Names { lists: 2 },
        "TabSeparatedWithNames" | "TSVWithNames" | "TabSeparatedRawWithNames" | "TSVRawWithNames" => {
            Join::Lines(1)
        }
        "CSVWithNames" | "JSONCompactEachRowWithNames" | "JSONCompactStringsEachRowWithNames" => {
            Join::Lines(1)
        }
        "TabSeparatedWithNamesAndTypes" | "TSVWithNamesAndTypes" | "CSVWithNamesAndTypes" => Join::Lines(2),
        "JSONCompactEachRowWithNamesAndTypes" | "JSONCompactStringsEachRowWithNamesAndTypes" => {
            Join::Lines(2)
        }
        _ => return None,
    };
    Some(join)
}

impl Join {
    /// How many bytes of a piece are its header; `None` when the piece is not of that format.
    pub(crate) fn header_length(self, piece: &[u8]) -> Option<usize> {
        match self {
            Join::Plain => Some(0),
            Join::Lines(lines) => {
                let mut quoted = false;
                let mut ends = piece.iter().enumerate().filter(|(_, byte)| {
                    quoted ^= **byte == b'"';
                    **byte == b'\n' && !quoted
                });
                ends.nth(lines - 1).map(|(at, _)| at + 1)
            }
            Join::Names { lists } => {
                let mut at = 0;
                let count = varint(piece, &mut at)?;
                for _ in 0..count.checked_mul(lists)? {
                    let length = varint(piece, &mut at)?;
                    at = at.checked_add(length).filter(|at| *at <= piece.len())?;
                }
                Some(at)
            }
        }
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0_usize;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_measured() {
        assert_eq!(Join::Lines(1).header_length(b"\"a\nb\",\"c\"\n1,2\n"), Some(10));
        assert_eq!(
            Join::Lines(2).header_length(b"a\tb\nUInt8\tUInt8\n1\t2\n"),
            Some(16)
        );
        assert_eq!(
            Join::Names { lists: 2 }.header_length(b"\x01\x01a\x05UInt8\x07"),
            Some(9)
        );
        assert_eq!(
            Join::Names { lists: 1 }.header_length(b"\x02\x01a\x05UInt8\x07"),
            Some(9)
        );
    }

    #[test]
    fn a_header_that_is_cut_is_not_measured() {
        assert_eq!(Join::Lines(2).header_length(b"a\tb\n1"), None);
        for piece in [
            &b""[..],
            b"\x02\x01a",
            b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x01\x05ab",
        ] {
            assert_eq!(Join::Names { lists: 1 }.header_length(piece), None);
        }
    }
}
