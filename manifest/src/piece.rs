//! The numbers of chunks and their pieces. A refused chunk is halved, and so is each refused half, down to single rows.
//! Every piece has a number that depends only on the chunk and the halving: it is part of the piece's token. Pure.

/// Numbers from here on belong to pieces. Smaller ones are a chunk's index in its batch.
pub const PIECES: u32 = 1 << 31;

/// Bits of a piece's position in the halving of its chunk: the halves of `p` are `2p` and `2p + 1`, the chunk is 1.
const PLACE_BITS: u32 = 21;

/// Maximum rows of a chunk that can be halved down to single rows.
pub const ROWS_MAX: u64 = 1 << (PLACE_BITS - 1);

/// Chunks of a batch from this index on cannot be halved: their pieces would have no numbers.
pub const CHUNKS_MAX: u32 = PIECES >> PLACE_BITS;

/// Returns true if a chunk with this many rows can be halved.
pub fn can_be_halved(chunk: u32, rows: u64) -> bool {
    chunk < CHUNKS_MAX && rows <= ROWS_MAX
}

/// The numbers of both halves of a chunk or piece that [`can_be_halved`].
pub fn halves(number: u32) -> [u32; 2] {
    let (chunk, place) = split(number);
    [2 * place, 2 * place + 1].map(|place| PIECES | chunk << PLACE_BITS | place)
}

/// The chunk or piece that this piece is half of. `None` for a chunk.
pub fn parent(number: u32) -> Option<u32> {
    let (chunk, place) = split(number);
    match place {
        0 | 1 => None,
        2 | 3 => Some(chunk),
        _ => Some(PIECES | chunk << PLACE_BITS | (place >> 1)),
    }
}

/// A piece and its ancestors, up to the chunk.
pub fn lineage(number: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(number), |number| parent(*number))
}

/// The index of the chunk that this number belongs to.
pub fn chunk(number: u32) -> u32 {
    split(number).0
}

/// The chunk of this number, and its position in the halving.
fn split(number: u32) -> (u32, u32) {
    if number < PIECES {
        return (number, 1);
    }
    let number = number - PIECES;
    (number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1))
}

/// Returns true if [`halves`] can return this number.
pub(crate) fn is_piece(number: u32) -> bool {
    number >= PIECES && split(number).1 >= 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every piece of a chunk, the chunk included, down to single rows.
    fn all(number: u32, rows: u64, found: &mut Vec<u32>) {
        found.push(number);
        if rows > 1 {
            let [first, second] = halves(number);
            all(first, rows.div_ceil(2), found);
            all(second, rows / 2, found);
        }
    }

    #[test]
    fn no_two_pieces_of_a_batch_share_a_number() {
        let mut found = Vec::new();
        for chunk in [0, 1, 2, 7, CHUNKS_MAX - 1] {
            all(chunk, 1_000, &mut found);
        }
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len());
    }

    #[test]
    fn the_last_row_of_the_largest_chunk_has_a_number() {
        let (mut number, mut rows) = (CHUNKS_MAX - 1, ROWS_MAX);
        while rows > 1 {
            [_, number] = halves(number);
            rows -= rows.div_ceil(2);
        }
        assert_eq!(number, u32::MAX);
        let ancestors: Vec<u32> = lineage(number).collect();
        assert_eq!((ancestors.len(), ancestors.last()), (21, Some(&(CHUNKS_MAX - 1))));
        assert!(!can_be_halved(CHUNKS_MAX, 2) && !can_be_halved(0, ROWS_MAX + 1));
    }

    #[test]
    fn a_piece_is_a_half_of_its_parent() {
        let mut found = Vec::new();
        all(5, 100, &mut found);
        for number in found {
            assert_eq!(chunk(number), 5);
            assert_eq!(is_piece(number), number != 5);
            if let Some(parent) = parent(number) {
                assert!(halves(parent).contains(&number));
            } else {
                assert_eq!(number, 5);
            }
        }
        assert_eq!(parent(PIECES), None);
    }
}
