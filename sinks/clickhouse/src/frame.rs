//! ClickHouse's compressed stream (`decompress=1` over HTTP): frames, each preceded by a CityHash128 v1.0.2.
//!
//! Frames may split the stream anywhere, so buffers of a megabyte or more are compressed in place.

use crate::config::Compression;
use bytes::Bytes;

/// Raw bytes per frame, like the server's own: large enough to compress well, small enough for the cache.
const FRAME_RAW: usize = 1 << 20;
/// Method, compressed size and raw size.
const HEADER: usize = 9;
const CHECKSUM: usize = 16;
const METHOD_NONE: u8 = 0x02;
const METHOD_LZ4: u8 = 0x82;
const METHOD_ZSTD: u8 = 0x90;
const ZSTD_LEVEL: i32 = 1;

/// Turns raw bytes into frames.
#[derive(Default)]
pub(crate) struct Frames {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    compression: Compression,
    pending: Vec<u8>,
    scratch: Vec<u8>,
    frames: Vec<Bytes>,
    raw_bytes: u64,
}

impl Frames {
    /// Frames of this kind.
    ///
    /// # Errors
    /// There is no memory for a zstd compressor.
    pub(crate) fn new(compression: Compression) -> std::io::Result<Frames> {
        let zstd = match compression {
            Compression::Zstd => Some(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
            Compression::Lz4 | Compression::None => None,
        };
        Ok(Frames {
            zstd,
            compression,
            ..Frames::default()
        })
    }

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
        let (method, compressed) = self.compress(raw, prefix);
        let end = prefix + compressed;
        // Both fit: a frame holds at most 1 MiB.
        let sizes = [(HEADER + compressed) as u64, raw.len() as u64]
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        self.scratch[CHECKSUM] = method;
        self.scratch[CHECKSUM + 1..CHECKSUM + 5].copy_from_slice(&sizes[0].to_le_bytes());
        self.scratch[CHECKSUM + 5..prefix].copy_from_slice(&sizes[1].to_le_bytes());
        // ClickHouse writes the low half of the hash first; the crate returns it in the high half.
        let checksum = cityhash_rs::cityhash_102_128(&self.scratch[CHECKSUM..end]).rotate_right(64);
        self.scratch[..CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        self.frames.push(Bytes::copy_from_slice(&self.scratch[..end]));
    }

    /// Compresses into the scratch buffer behind the prefix. Returns the method and the length.
    fn compress(&mut self, raw: &[u8], prefix: usize) -> (u8, usize) {
        let most = match self.compression {
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(raw.len()),
            Compression::Zstd => zstd::zstd_safe::compress_bound(raw.len()),
            Compression::None => raw.len(),
        };
        self.scratch.resize(prefix + most, 0);
        let into = &mut self.scratch[prefix..];
        if self.compression == Compression::Lz4 {
            let compressed = lz4_flex::block::compress_into(raw, into);
            return (
                METHOD_LZ4,
                compressed.expect("the buffer has LZ4's maximum output size"),
            );
        }
        // A frame may also be stored as it is, for example for lack of memory.
        let zstd = self.zstd.as_mut();
        match zstd.and_then(|zstd| zstd.compress_to_buffer(raw, into).ok()) {
            Some(compressed) => (METHOD_ZSTD, compressed),
            None => {
                into[..raw.len()].copy_from_slice(raw);
                (METHOD_NONE, raw.len())
            }
        }
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
        let into = &mut raw[start..];
        let whole = "a frame of ours is whole";
        match header[0] {
            METHOD_NONE => into.copy_from_slice(compressed),
            METHOD_ZSTD => {
                zstd::bulk::decompress_to_buffer(compressed, into).expect(whole);
            }
            _ => {
                lz4_flex::block::decompress_into(compressed, into).expect(whole);
            }
        }
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
        for (compression, method) in [
            (Compression::Lz4, METHOD_LZ4),
            (Compression::Zstd, METHOD_ZSTD),
            (Compression::None, METHOD_NONE),
        ] {
            let mut frames = Frames::new(compression).unwrap();
            for _ in 0..2 {
                for piece in &pieces {
                    frames.write(piece);
                }
                let (frames, raw_bytes) = frames.finish();
                frames.iter().for_each(|frame| check_head(frame, method));
                let raw = decompress(&frames);
                assert_eq!(raw, pieces.concat());
                assert_eq!(raw_bytes, raw.len() as u64);
            }
        }
    }

    fn check_head(frame: &Bytes, method: u8) {
        let (checksum, rest) = frame.split_at(CHECKSUM);
        let expected = cityhash_rs::cityhash_102_128(rest).rotate_right(64);
        assert_eq!(checksum, expected.to_le_bytes());
        assert_eq!(rest[0], method);
        assert_eq!(rest[1..5], u32::try_from(rest.len()).unwrap().to_le_bytes());
    }

    #[test]
    fn nothing_is_no_frame() {
        assert_eq!(Frames::default().finish(), (vec![], 0));
    }
}
