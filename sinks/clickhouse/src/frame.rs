//! ClickHouse's compressed stream (`decompress=1` over HTTP): LZ4 frames, each preceded by a CityHash128 v1.0.2.
//!
//! Frames may split the stream anywhere, so buffers of a megabyte or more are compressed in place.

use bytes::Bytes;

/// Raw bytes per frame, like the server's own: large enough to compress well, small enough for the cache.
const FRAME_RAW: usize = 1 << 20;
/// Method, compressed size and raw size.
const HEADER: usize = 9;
const CHECKSUM: usize = 16;
const METHOD_LZ4: u8 = 0x82;

/// Turns raw bytes into frames.
#[derive(Default)]
pub(crate) struct Frames {
    pending: Vec<u8>,
    scratch: Vec<u8>,
    frames: Vec<Bytes>,
    raw_bytes: u64,
}

impl Frames {
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        self.raw_bytes += bytes.len() as u64;
        if !self.pending.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(FRAME_RAW - self.pending.len()));
            self.pending.extend_from_slice(head);
            bytes = rest;
            if self.pending.len() < FRAME_RAW {
                return;
            }
            self.flush();
        }
        while let Some((frame, rest)) = bytes.split_at_checked(FRAME_RAW) {
            self.frame(frame);
            bytes = rest;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the frames and their number of raw bytes, and resets for the next stream.
    pub(crate) fn finish(&mut self) -> (Vec<Bytes>, u64) {
        if !self.pending.is_empty() {
            self.flush();
        }
        (
            std::mem::take(&mut self.frames),
            std::mem::take(&mut self.raw_bytes),
        )
    }

    fn flush(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        self.frame(&pending);
        pending.clear();
        self.pending = pending;
    }

    fn frame(&mut self, raw: &[u8]) {
        let prefix = CHECKSUM + HEADER;
        self.scratch
            .resize(prefix + lz4_flex::block::get_maximum_output_size(raw.len()), 0);
        let compressed = lz4_flex::block::compress_into(raw, &mut self.scratch[prefix..])
            .expect("the buffer has LZ4's maximum output size");
        let end = prefix + compressed;
        // Both fit: a frame holds at most 1 MiB.
        let sizes = [(HEADER + compressed) as u64, raw.len() as u64]
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        self.scratch[CHECKSUM] = METHOD_LZ4;
        self.scratch[CHECKSUM + 1..CHECKSUM + 5].copy_from_slice(&sizes[0].to_le_bytes());
        self.scratch[CHECKSUM + 5..prefix].copy_from_slice(&sizes[1].to_le_bytes());
        // ClickHouse writes the low half of the hash first; the crate returns it in the high half.
        let checksum = cityhash_rs::cityhash_102_128(&self.scratch[CHECKSUM..end]).rotate_right(64);
        self.scratch[..CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        self.frames.push(Bytes::copy_from_slice(&self.scratch[..end]));
    }
}

/// Decompresses frames from [`Frames`].
pub(crate) fn decompress(frames: &[Bytes]) -> Vec<u8> {
    let mut raw = Vec::new();
    for frame in frames {
        let (header, compressed) = frame[CHECKSUM..].split_at(HEADER);
        let size = u32::from_le_bytes([header[5], header[6], header[7], header[8]]);
        let start = raw.len();
        raw.resize(start + size as usize, 0);
        lz4_flex::block::decompress_into(compressed, &mut raw[start..]).expect("a frame of ours is whole");
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_any_pieces_comes_back() {
        let pieces: Vec<Vec<u8>> = [0, 1, 5, FRAME_RAW - 7, 3, FRAME_RAW, 3 * FRAME_RAW + 1, 0, 9]
            .into_iter()
            .enumerate()
            .map(|(index, length)| {
                (0..length)
                    .map(|byte| (byte * (index + 3) / 7).to_le_bytes()[0])
                    .collect()
            })
            .collect();
        let mut frames = Frames::default();
        for _ in 0..2 {
            for piece in &pieces {
                frames.write(piece);
            }
            let (frames, raw_bytes) = frames.finish();
            frames.iter().for_each(check_head);
            let raw = decompress(&frames);
            assert_eq!(raw, pieces.concat());
            assert_eq!(raw_bytes, raw.len() as u64);
        }
    }

    fn check_head(frame: &Bytes) {
        let (checksum, rest) = frame.split_at(CHECKSUM);
        let expected = cityhash_rs::cityhash_102_128(rest).rotate_right(64);
        assert_eq!(checksum, expected.to_le_bytes());
        assert_eq!(rest[0], METHOD_LZ4);
        assert_eq!(rest[1..5], u32::try_from(rest.len()).unwrap().to_le_bytes());
    }

    #[test]
    fn nothing_is_no_frame() {
        assert_eq!(Frames::default().finish(), (vec![], 0));
    }
}
