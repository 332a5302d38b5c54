//! HTTP's content encodings, both ways, beside ClickHouse's own frames: gzip, deflate (zlib), zstd and lz4. Never
//! decodes more than its caller allows, whatever the body claims.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;

use crate::exception::{Code, Exception};
use crate::frames;

/// How a response's body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    /// ClickHouse's own frames (`compress=1`); no header says so.
    Frames,
    Gzip,
    Deflate,
    Zstd,
    Lz4,
}

impl Encoding {
    /// The best of what `Accept-Encoding` lists that we have.
    pub(crate) fn accepted(header: &str) -> Encoding {
        let offered = |name: &str| {
            header.split(',').any(|item| {
                let mut parts = item.split(';').map(str::trim);
                let refused = |weight: &str| weight.replace(' ', "").trim_end_matches(['0', '.']) == "q=";
                parts.next().is_some_and(|offer| offer.eq_ignore_ascii_case(name)) && !parts.any(refused)
            })
        };
        [
            ("zstd", Encoding::Zstd),
            ("lz4", Encoding::Lz4),
            ("gzip", Encoding::Gzip),
            ("deflate", Encoding::Deflate),
        ]
        .into_iter()
        .find(|(name, _)| offered(name))
        .map_or(Encoding::Identity, |(_, encoding)| encoding)
    }

    /// The value of `Content-Encoding`, where there is one.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Encoding::Identity | Encoding::Frames => None,
            Encoding::Gzip => Some("gzip"),
            Encoding::Deflate => Some("deflate"),
            Encoding::Zstd => Some("zstd"),
            Encoding::Lz4 => Some("lz4"),
        }
    }
}

/// Decodes a request's body with this `Content-Encoding`; the result has at most `limit` bytes.
pub(crate) fn decode(body: Bytes, encoding: &str, limit: usize) -> Result<Bytes, Exception> {
    let reader: Box<dyn Read + '_> = match encoding.to_ascii_lowercase().as_str() {
        "" | "identity" => return Ok(body),
        "gzip" | "x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(&body[..])),
        "deflate" => Box::new(flate2::read::ZlibDecoder::new(&body[..])),
        "zstd" => Box::new(
            zstd::stream::read::Decoder::new(&body[..]).map_err(|error| unreadable(encoding, &error))?,
        ),
        "lz4" => Box::new(lz4_flex::frame::FrameDecoder::new(&body[..])),
        other => {
            let message = format!("content encoding {other:?} is none of gzip, deflate, zstd, lz4");
            return Err(Exception::new(Code::UnknownCompressionMethod, message));
        }
    };
    let mut out = Vec::new();
    let room = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader
        .take(room)
        .read_to_end(&mut out)
        .map_err(|error| unreadable(encoding, &error))?;
    if out.len() > limit {
        let message = format!("the decompressed body is larger than {limit} bytes: raise --max-body");
        return Err(Exception::new(Code::RequestTooLarge, message));
    }
    Ok(out.into())
}

fn unreadable(encoding: &str, error: &std::io::Error) -> Exception {
    Exception::new(
        Code::CannotDecompress,
        format!("the body is not whole, valid {encoding}: {error}"),
    )
}

/// Compresses a response that is complete.
pub(crate) fn encode(encoding: Encoding, raw: Bytes) -> std::io::Result<Bytes> {
    let mut encoder = Encoder::new(encoding)?;
    let begun = encoder.push(raw)?;
    let rest = encoder.finish()?;
    Ok(if rest.is_empty() {
        begun
    } else {
        [begun, rest].concat().into()
    })
}

/// Compresses a response piece by piece.
pub(crate) enum Encoder {
    Identity,
    Frames,
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Deflate(flate2::write::ZlibEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Lz4(lz4_flex::frame::FrameEncoder<Vec<u8>>),
}

impl Encoder {
    pub(crate) fn new(encoding: Encoding) -> std::io::Result<Encoder> {
        Ok(match encoding {
            Encoding::Identity => Encoder::Identity,
            Encoding::Frames => Encoder::Frames,
            Encoding::Gzip => Encoder::Gzip(flate2::write::GzEncoder::new(Vec::new(), Compression::fast())),
            Encoding::Deflate => {
                Encoder::Deflate(flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast()))
            }
            Encoding::Zstd => Encoder::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 1)?),
            Encoding::Lz4 => Encoder::Lz4(lz4_flex::frame::FrameEncoder::new(Vec::new())),
        })
    }

    /// What can be sent once `raw` is in; perhaps nothing yet.
    pub(crate) fn push(&mut self, raw: Bytes) -> std::io::Result<Bytes> {
        let out = match self {
            Encoder::Identity => return Ok(raw),
            Encoder::Frames => {
                let mut out = Vec::new();
                frames::encode(&raw, &mut out);
                out
            }
            Encoder::Gzip(encoder) => {
                encoder.write_all(&raw)?;
                std::mem::take(encoder.get_mut())
            }
            Encoder::Deflate(encoder) => {
                encoder.write_all(&raw)?;
                std::mem::take(encoder.get_mut())
            }
            Encoder::Zstd(encoder) => {
                encoder.write_all(&raw)?;
                std::mem::take(encoder.get_mut())
            }
            Encoder::Lz4(encoder) => {
                encoder.write_all(&raw)?;
                std::mem::take(encoder.get_mut())
            }
        };
        Ok(out.into())
    }

    /// What is left to send.
    pub(crate) fn finish(self) -> std::io::Result<Bytes> {
        let out = match self {
            Encoder::Identity | Encoder::Frames => Vec::new(),
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Deflate(encoder) => encoder.finish()?,
            Encoder::Zstd(encoder) => encoder.finish()?,
            Encoder::Lz4(encoder) => encoder.finish().map_err(std::io::Error::other)?,
        };
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let raw: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        for encoding in [Encoding::Gzip, Encoding::Deflate, Encoding::Zstd, Encoding::Lz4] {
            let mut encoder = Encoder::new(encoding).unwrap();
            let mut body = Vec::new();
            for piece in raw.chunks(70_000) {
                body.extend_from_slice(&encoder.push(Bytes::copy_from_slice(piece)).unwrap());
            }
            body.extend_from_slice(&encoder.finish().unwrap());
            let name = encoding.name().unwrap();
            assert_eq!(
                decode(body.clone().into(), name, raw.len()).unwrap(),
                raw,
                "{name}"
            );
            assert_eq!(
                decode(body.clone().into(), name, raw.len() - 1).unwrap_err().code,
                307,
                "{name}"
            );
            body.truncate(body.len() / 2);
            assert_eq!(
                decode(body.into(), name, raw.len()).unwrap_err().code,
                271,
                "{name}"
            );
        }
    }

    #[test]
    fn the_best_accepted_encoding_is_chosen() {
        for (header, expected) in [
            ("", Encoding::Identity),
            ("br", Encoding::Identity),
            ("gzip, deflate, br", Encoding::Gzip),
            ("lz4,zstd;q=0, gzip;q=0.5", Encoding::Lz4),
            ("GZIP;q=0.0, zstd; q=1", Encoding::Zstd),
        ] {
            assert_eq!(Encoding::accepted(header), expected, "{header}");
        }
    }

    #[test]
    fn an_unknown_encoding_is_refused() {
        assert_eq!(decode(Bytes::new(), "snappy", 10).unwrap_err().code, 89);
    }
}
