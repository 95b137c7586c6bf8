//! Undoing a content encoding while a body streams, within bounds.

mod zstd;

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use bytes::Bytes;
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::contract::{Code, Denial};
use zstd::Zstd;

/// How many times its size a body may grow to; text seldom passes 30.
const MAX_RATIO: usize = 200;

/// What may come out before the ratio counts.
const FREE_BYTES: usize = 1024 * 1024;

/// What the brotli decoder writes at once.
const BROTLI_BUFFER: usize = 16 * 1024;

/// A decoder for one body.
pub struct Decoder {
    side: Side,
    encoding: Box<dyn Encoding>,
    bytes_in: usize,
    bytes_out: usize,
}

/// Which body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What a client sends: gzip, br and zstd, nothing that is doubtful.
    Request,
    /// What an upstream answers: also `deflate`, in both of its readings.
    Response,
}

/// One encoding. `room` is the most that may come out; more is an error.
trait Encoding: Send {
    /// Decodes a chunk, as far as it goes.
    fn feed(&mut self, chunk: &[u8], room: usize) -> io::Result<Vec<u8>>;

    /// What is left; an error if the encoding did not end where the body does.
    fn finish(&mut self, room: usize) -> io::Result<Vec<u8>>;
}

impl Decoder {
    /// The decoder that a head asks for; none for a plain body. What cannot be decoded cannot
    /// be inspected, and is denied.
    pub fn of(side: Side, headers: &HeaderMap) -> Result<Option<Self>, Denial> {
        let mut encoding: Option<Box<dyn Encoding>> = None;
        for value in headers.get_all(CONTENT_ENCODING) {
            for name in value.to_str().unwrap_or("unreadable").split(',') {
                let name = name.trim().to_ascii_lowercase();
                if matches!(name.as_str(), "" | "identity") {
                    continue;
                }
                let known = named(side, &name).filter(|_| encoding.is_none());
                encoding = Some(known.ok_or_else(|| denied(side, "cannot be undone"))?);
            }
        }
        Ok(encoding.map(|encoding| Self {
            side,
            encoding,
            bytes_in: 0,
            bytes_out: 0,
        }))
    }

    /// Decodes a chunk, as far as it goes.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Bytes, Denial> {
        self.bytes_in = self.bytes_in.saturating_add(chunk.len());
        let decoded = self.encoding.feed(chunk, self.room());
        self.count(decoded)
    }

    /// The body ended: so must its encoding. An empty body needs none.
    pub fn finish(&mut self) -> Result<Bytes, Denial> {
        if self.bytes_in == 0 {
            return Ok(Bytes::new());
        }
        let decoded = self.encoding.finish(self.room());
        self.count(decoded)
    }

    fn room(&self) -> usize {
        let most = self.bytes_in.saturating_mul(MAX_RATIO).max(FREE_BYTES);
        most.saturating_sub(self.bytes_out)
    }

    fn count(&mut self, decoded: io::Result<Vec<u8>>) -> Result<Bytes, Denial> {
        let decoded = decoded.map_err(|_| denied(self.side, "is broken, or expands too far"))?;
        self.bytes_out = self.bytes_out.saturating_add(decoded.len());
        Ok(decoded.into())
    }
}

fn denied(side: Side, why: &str) -> Denial {
    let body = match side {
        Side::Request => "request",
        Side::Response => "response",
    };
    let sentence = format!("Unsupported encoding: that of the {body} {why}");
    Denial::new(Code::UnsupportedEncoding, sentence)
}

fn named(side: Side, name: &str) -> Option<Box<dyn Encoding>> {
    let sink = Bounded::default();
    Some(match name {
        "gzip" | "x-gzip" => Box::new(MultiGzDecoder::new(sink)),
        "deflate" if side == Side::Response => Box::new(Deflate::Undecided(Vec::new())),
        "br" => Box::new(DecompressorWriter::new(sink, BROTLI_BUFFER)),
        "zstd" => Box::new(Zstd::new()),
        _ => return None,
    })
}

/// Takes what a decoder writes, up to a bound.
#[derive(Default)]
struct Bounded {
    out: Vec<u8>,
    room: usize,
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.out.len().saturating_add(data.len()) > self.room {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.out.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! encoding_by_writer {
    ($($writer:ident: $finish:ident),*) => {$(
        impl Encoding for $writer<Bounded> {
            fn feed(&mut self, chunk: &[u8], room: usize) -> io::Result<Vec<u8>> {
                self.get_mut().room = room;
                self.write_all(chunk)?;
                // All that can be told by now, so that a stream is not delayed.
                self.flush()?;
                Ok(std::mem::take(&mut self.get_mut().out))
            }

            fn finish(&mut self, room: usize) -> io::Result<Vec<u8>> {
                self.get_mut().room = room;
                self.$finish()?;
                Ok(std::mem::take(&mut self.get_mut().out))
            }
        }
    )*};
}

encoding_by_writer!(MultiGzDecoder: try_finish, ZlibDecoder: try_finish, DeflateDecoder: try_finish, DecompressorWriter: close);

/// `deflate` means zlib, but some servers send the bare stream: the first two bytes tell.
enum Deflate {
    Undecided(Vec<u8>),
    Decided(Box<dyn Encoding>),
}

impl Encoding for Deflate {
    fn feed(&mut self, chunk: &[u8], room: usize) -> io::Result<Vec<u8>> {
        let begun = match self {
            Self::Decided(encoding) => return encoding.feed(chunk, room),
            Self::Undecided(begun) => begun,
        };
        begun.extend_from_slice(chunk);
        let [first, second, ..] = begun.as_slice() else {
            return Ok(Vec::new());
        };
        // RFC 1950: method 8, and a header that 31 divides.
        let header = u16::from_be_bytes([*first, *second]);
        let is_zlib = first & 15 == 8 && header.is_multiple_of(31);
        let begun = std::mem::take(begun);
        let mut encoding: Box<dyn Encoding> = if is_zlib {
            Box::new(ZlibDecoder::new(Bounded::default()))
        } else {
            Box::new(DeflateDecoder::new(Bounded::default()))
        };
        let decoded = encoding.feed(&begun, room);
        *self = Self::Decided(encoding);
        decoded
    }

    fn finish(&mut self, room: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Decided(encoding) => encoding.finish(room),
            Self::Undecided(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use flate2::Compression;
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::headers;

    /// A body as each encoding writes it; brotli, which is written here by nobody, as stored.
    pub(crate) fn encoded(name: &str, body: &[u8]) -> Vec<u8> {
        use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
        let level = Compression::default();
        match name {
            "gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            "raw deflate" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            "zstd" => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                ruzstd::encoding::compress_to_vec(body, level)
            }
            "br" => stored_brotli(body),
            _ => unreachable!("{name}"),
        }
    }

    /// RFC 7932: a window of 16 bits, then uncompressed meta-blocks, then an empty last one.
    fn stored_brotli(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut bits: u64 = 0;
        let mut count = 1; // WBITS: a zero bit
        for block in body.chunks(1 << 16) {
            let length = block.len() as u64 - 1;
            // ISLAST 0, MNIBBLES 4, MLEN - 1, ISUNCOMPRESSED 1
            bits |= (length << 3 | 1 << 19) << count;
            count += 20;
            while count > 0 {
                out.push(bits as u8);
                bits >>= 8;
                count = if count > 8 { count - 8 } else { 0 };
            }
            out.extend_from_slice(block);
            bits = 0;
        }
        out.push(((3 << count) | bits) as u8); // ISLAST 1, ISLASTEMPTY 1
        out
    }

    pub(crate) const ENCODINGS: [&str; 5] = ["gzip", "deflate", "raw deflate", "br", "zstd"];

    fn decoder(name: &str) -> Result<Option<Decoder>, Denial> {
        let name = name.strip_prefix("raw ").unwrap_or(name);
        Decoder::of(Side::Response, &headers(&[("content-encoding", name)]))
    }

    fn decode(name: &str, body: &[u8], chunk: usize) -> Result<Vec<u8>, Denial> {
        let mut decoder = decoder(name)?.unwrap();
        let mut out = Vec::new();
        for chunk in body.chunks(chunk) {
            out.extend(decoder.feed(chunk)?);
        }
        out.extend(decoder.finish()?);
        Ok(out)
    }

    #[test]
    fn what_cannot_be_undone_is_denied() {
        for name in ["compress", "gzip, br", "gzip, gzip", "aws-chunked", "dcb"] {
            let denial = decoder(name).err().unwrap();
            assert_eq!(denial.code(), Code::UnsupportedEncoding, "{name}");
        }
        for plain in ["", "identity", "Identity, identity"] {
            assert!(decoder(plain).unwrap().is_none(), "{plain}");
        }
    }

    #[test]
    fn a_request_may_not_be_in_an_encoding_with_two_readings() {
        for (name, known) in [
            ("gzip", true),
            ("br", true),
            ("zstd", true),
            ("deflate", false),
        ] {
            let decoder = Decoder::of(Side::Request, &headers(&[("content-encoding", name)]));
            assert_eq!(decoder.is_ok(), known, "{name}");
        }
    }

    #[test]
    fn a_bomb_is_denied_before_it_goes_off() {
        let zeros = vec![0; 64 << 20];
        for name in ["gzip", "deflate", "raw deflate", "zstd"] {
            let bomb = encoded(name, &zeros);
            let denial = decode(name, &bomb, 16 << 10).err().unwrap();
            assert_eq!(denial.code(), Code::UnsupportedEncoding, "{name}");
        }
    }

    #[test]
    fn a_broken_or_cut_stream_is_denied() {
        for name in ENCODINGS {
            let body = encoded(name, &b"0123456789".repeat(100));
            let cut = body.get(..body.len() / 2).unwrap();
            assert!(decode(name, cut, 7).is_err(), "{name}");
            assert!(decode(name, &[0xff; 64], 7).is_err(), "{name}");
        }
    }

    #[test]
    fn all_that_a_flushed_stream_says_comes_out_at_once() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::default());
        let mut decoder = decoder("gzip").unwrap().unwrap();
        for event in ["data: one\n\n", "data: two\n\n"] {
            encoder.write_all(event.as_bytes()).unwrap();
            encoder.flush().unwrap();
            let chunk = std::mem::take(encoder.get_mut());
            assert_eq!(decoder.feed(&chunk).unwrap(), event);
        }
    }

    proptest! {
        #[test]
        fn every_encoding_is_undone_however_it_is_cut(
            body in proptest::collection::vec("[a-f]{1,9}", 0..400),
            chunk in 1..300_usize,
        ) {
            let body = body.concat().into_bytes();
            for name in ENCODINGS {
                let decoded = decode(name, &encoded(name, &body), chunk).unwrap();
                prop_assert_eq!(&decoded, &body, "{}", name);
            }
        }
    }
}
