//! ClickHouse's compressed frames, as `compress=1` and `decompress=1` use them: CityHash128 (v1.0.2) of the rest,
//! a method byte, the compressed size with its own 9 bytes, the raw size, the payload. It never decodes a
//! frame whose checksum is wrong and never allocates more than its caller allows.

use crate::exception::{Code, Exception};

const CHECKSUM_BYTES: usize = 16;
const HEADER_BYTES: usize = 9;
const LZ4: u8 = 0x82;
const ZSTD: u8 = 0x90;
const NONE: u8 = 0x02;

/// How much goes into one frame that we write: what ClickHouse uses.
const FRAME_RAW_BYTES: usize = 1 << 20;

/// Appends `raw` to `out` as LZ4 frames.
pub(crate) fn encode(raw: &[u8], out: &mut Vec<u8>) {
    for piece in raw.chunks(FRAME_RAW_BYTES) {
        let payload = lz4_flex::block::compress(piece);
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
        frame.push(LZ4);
        frame.extend_from_slice(&size(HEADER_BYTES + payload.len()));
        frame.extend_from_slice(&size(piece.len()));
        frame.extend_from_slice(&payload);
        out.extend_from_slice(&checksum(&frame));
        out.extend_from_slice(&frame);
    }
}

/// A size of at most [`FRAME_RAW_BYTES`] and LZ4's overhead on it, as the header has it.
fn size(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes)
        .expect("a frame that we write is about 1 MiB at most")
        .to_le_bytes()
}

fn checksum(frame: &[u8]) -> [u8; CHECKSUM_BYTES] {
    // The crate gives the two halves in the other order than ClickHouse writes them.
    cityhash_rs::cityhash_102_128(frame).rotate_left(64).to_le_bytes()
}

/// Decodes a sequence of frames; the result has at most `limit` bytes.
pub(crate) fn decode(mut input: &[u8], limit: usize) -> Result<Vec<u8>, Exception> {
    let mut out = Vec::new();
    while !input.is_empty() {
        input = decode_one(input, &mut out, limit)?;
    }
    Ok(out)
}

/// Decodes the first frame of `input` onto `out` and returns what follows it.
fn decode_one<'a>(input: &'a [u8], out: &mut Vec<u8>, limit: usize) -> Result<&'a [u8], Exception> {
    let cut = || Exception::new(Code::CannotReadAllData, "the body ends within a compressed frame");
    let (expected, rest) = input.split_at_checked(CHECKSUM_BYTES).ok_or_else(cut)?;
    let header = rest.get(..HEADER_BYTES).ok_or_else(cut)?;
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (compressed, raw) = (number(1) as usize, number(5) as usize);
    if compressed < HEADER_BYTES {
        let message = format!("a compressed frame claims {compressed} bytes, fewer than its header has");
        return Err(Exception::new(Code::CannotDecompress, message));
    }
    let (frame, rest) = rest.split_at_checked(compressed).ok_or_else(cut)?;
    if checksum(frame) != expected {
        let message = "checksum does not match: a compressed frame was corrupted on its way";
        return Err(Exception::new(Code::ChecksumDoesntMatch, message));
    }
    if out.len().saturating_add(raw) > limit {
        let message = format!("the decompressed body is larger than {limit} bytes: raise --max-body");
        return Err(Exception::new(Code::RequestTooLarge, message));
    }
    let start = out.len();
    let payload = &frame[HEADER_BYTES..];
    let written = match frame[0] {
        LZ4 => {
            out.resize(start + raw, 0);
            lz4_flex::block::decompress_into(payload, &mut out[start..]).map_err(|error| error.to_string())
        }
        ZSTD => {
            out.resize(start + raw, 0);
            zstd::bulk::decompress_to_buffer(payload, &mut out[start..]).map_err(|error| error.to_string())
        }
        NONE => {
            out.extend_from_slice(payload);
            Ok(payload.len())
        }
        method => {
            let message =
                format!("compression method {method:#04x} is none of 0x82 (LZ4), 0x90 (ZSTD), 0x02 (none)");
            return Err(Exception::new(Code::UnknownCompressionMethod, message));
        }
    };
    match written {
        Ok(written) if written == raw => Ok(rest),
        Ok(written) => {
            let message = format!("a compressed frame has {written} bytes where its header says {raw}");
            Err(Exception::new(Code::CannotDecompress, message))
        }
        Err(error) => Err(Exception::new(
            Code::CannotDecompress,
            format!("cannot decompress a frame: {error}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 20;

    fn framed(raw: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(raw, &mut out);
        out
    }

    fn frame_of(method: u8, payload: &[u8], raw: usize) -> Vec<u8> {
        let mut frame = vec![method];
        frame.extend_from_slice(&size(HEADER_BYTES + payload.len()));
        frame.extend_from_slice(&size(raw));
        frame.extend_from_slice(payload);
        [checksum(&frame).to_vec(), frame].concat()
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for length in [0, 1, 100, FRAME_RAW_BYTES, FRAME_RAW_BYTES * 2 + 7] {
            let raw: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
            assert_eq!(decode(&framed(&raw), LIMIT).unwrap(), raw);
        }
    }

    #[test]
    fn zstd_and_stored_frames_are_decoded() {
        let raw = b"some text, some text, some text".as_slice();
        let zstd = frame_of(ZSTD, &zstd::bulk::compress(raw, 1).unwrap(), raw.len());
        let stored = frame_of(NONE, raw, raw.len());
        assert_eq!(
            decode(&[zstd, stored].concat(), LIMIT).unwrap(),
            [raw, raw].concat()
        );
    }

    #[test]
    fn a_changed_byte_is_refused_wherever_it_is() {
        let good = framed(b"some text, some text, some text");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(&bad, LIMIT).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_cut_frame_is_refused_wherever_it_ends() {
        let good = framed(b"some text, some text, some text");
        for length in 1..good.len() {
            assert_eq!(
                decode(&good[..length], LIMIT).unwrap_err().code,
                33,
                "{length} bytes"
            );
        }
    }

    #[test]
    fn lies_about_sizes_and_methods_are_refused() {
        assert_eq!(decode(&frame_of(NONE, b"abc", 4), LIMIT).unwrap_err().code, 271);
        assert_eq!(
            decode(&frame_of(LZ4, b"\xff\xff\xff", 100), LIMIT)
                .unwrap_err()
                .code,
            271
        );
        assert_eq!(decode(&frame_of(0x33, b"abc", 3), LIMIT).unwrap_err().code, 89);
        assert_eq!(decode(&framed(&[0; 4096]), 4095).unwrap_err().code, 307);
        assert_eq!(
            decode(&frame_of(ZSTD, b"", 0xffff_ffff), LIMIT).unwrap_err().code,
            307
        );
    }
}
