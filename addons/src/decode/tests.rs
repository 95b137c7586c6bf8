use std::io::Write;

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
        decoder.feed(Bytes::copy_from_slice(chunk));
        while let Some(piece) = decoder.next(usize::MAX)? {
            out.extend(piece);
        }
    }
    decoder.end()?;
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
fn a_bomb_yields_no_more_than_is_asked_for() {
    let zeros = vec![0; 4 << 20];
    let mut failures = Vec::new();
    for name in ENCODINGS {
        for most in [1, 7, 4096, usize::MAX] {
            let mut decoder = decoder(name).unwrap().unwrap();
            decoder.feed(encoded(name, &zeros).into());
            for _ in 0..100 {
                let piece = decoder.next(most).unwrap().unwrap();
                if piece.is_empty() || piece.len() > most.min(MAX_PIECE) {
                    failures.push((name, most, piece.len()));
                }
            }
        }
    }
    assert_eq!(failures, []);
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
        decoder.feed(chunk.into());
        assert_eq!(decoder.next(MAX_PIECE).unwrap().unwrap(), event);
        assert_eq!(decoder.next(MAX_PIECE).unwrap(), None);
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
