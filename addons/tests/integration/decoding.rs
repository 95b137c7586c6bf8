//! Bounds on the memory and time of decoding, for any body.

use std::io::Write;
use std::time::Duration;

use addons::contract::{Code, Denial};
use addons::decode::{Decoder, Side};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use http::{HeaderMap, HeaderValue};

use crate::bodies::{
    Block, ZSTD_MAGIC, padded_brotli, padded_deflate, zstd_bomb, zstd_header, zstd_overlong_block,
    zstd_overlong_literals,
};
use crate::fixtures::cpu_time;

/// Decoding stops once a body has yielded more than this number of bytes.
const LIMIT: usize = 1 << 20;

struct Body {
    what: String,
    side: Side,
    encoding: &'static str,
    bytes: Bytes,
}

impl Body {
    fn new(what: &str, side: Side, encoding: &'static str, bytes: Vec<u8>) -> Self {
        Self {
            what: format!("{encoding}, {what}, {side:?}"),
            side,
            encoding,
            bytes: bytes.into(),
        }
    }

    fn decoder(&self) -> Decoder {
        let mut headers = HeaderMap::new();
        headers.insert("content-encoding", HeaderValue::from_static(self.encoding));
        Decoder::of(self.side, &headers).unwrap().unwrap()
    }

    /// Decodes the body in chunks of 16 KiB, up to [`LIMIT`] and one byte. Returns the number of
    /// decoded bytes.
    fn hold(&self) -> Result<usize, Denial> {
        let mut decoder = self.decoder();
        let mut held = Vec::new();
        for at in (0..self.bytes.len()).step_by(16 << 10) {
            let end = self.bytes.len().min(at + (16 << 10));
            decoder.feed(self.bytes.slice(at..end));
            while let Some(piece) = decoder.next(LIMIT - held.len())? {
                held.extend_from_slice(&piece);
                if held.len() > LIMIT {
                    return Ok(held.len());
                }
            }
        }
        decoder.end()?;
        Ok(held.len())
    }
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Bodies with `padding` bytes that decode to nothing or almost nothing, followed by a bomb of
/// 64 MiB, for every kind of padding.
fn padded_bombs(padding: usize) -> Vec<Body> {
    let zeros = vec![0; 64 << 20];
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&zeros).unwrap();
    let deflate = encoder.finish().unwrap();
    let gzip_bomb = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], &*deflate].concat();
    let mut bodies = Vec::new();
    for block in [Block::Stored, Block::Fixed, Block::Dynamic] {
        let padded = padded_deflate(padding, block, &deflate);
        let in_gzip = [&gzip_bomb[..10], &*padded].concat();
        let what = format!("empty {block:?} blocks");
        bodies.push(Body::new(&what, Side::Request, "gzip", in_gzip));
        bodies.push(Body::new(&what, Side::Response, "deflate", padded));
    }
    for (what, data) in [("empty members", ""), ("members of a byte", "1")] {
        let member = gzip(data.as_bytes());
        let members = member.repeat(padding / member.len());
        let body = [&*members, &*gzip_bomb].concat();
        bodies.push(Body::new(what, Side::Request, "gzip", body));
    }
    let body = padded_brotli(22, padding, 4);
    bodies.push(Body::new("metadata blocks", Side::Request, "br", body));
    for bits in [18, 22] {
        let (bomb, header) = (zstd_bomb(bits, 512), zstd_header(bits));
        let frame = [&*header, &[1, 0, 0]].concat();
        let body = [&*frame.repeat(padding / frame.len()), &*bomb].concat();
        bodies.push(Body::new("empty frames", Side::Request, "zstd", body));
        let body = [&*header, &vec![0; padding / 3 * 3], &bomb[header.len()..]].concat();
        bodies.push(Body::new("empty blocks", Side::Request, "zstd", body));
    }
    bodies
}

#[test]
fn a_padded_bomb_takes_less_than_16_mib_of_memory() {
    let mut failures = Vec::new();
    for padding in [0, 32 << 10, 2 << 20] {
        for body in padded_bombs(padding) {
            let mut held = Ok(0);
            let memory = allocation_counter::measure(|| held = body.hold());
            // A body with more padding than `LIMIT` may be refused. Any other body must be decoded
            // until its output exceeds `LIMIT`.
            let is_seen = match held {
                Ok(held) => held == LIMIT + 1,
                Err(denial) => padding > LIMIT && denial.code() == Code::UnsupportedEncoding,
            };
            if memory.bytes_max >= 16 << 20 || !is_seen {
                failures.push((padding, body.what, memory.bytes_max, is_seen));
            }
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_padded_bomb_takes_less_than_a_second_of_cpu_time() {
    let mut failures = Vec::new();
    for body in padded_bombs(4 << 20) {
        let start = cpu_time();
        let held = body.hold();
        let time = cpu_time() - start;
        // Without a limit on padding, 4 MiB of empty blocks take more than 6 s.
        if time > Duration::from_secs(1) {
            failures.push((body.what, time, held.ok()));
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_decoder_uses_no_more_memory_than_it_reports() {
    let zeros = vec![0; 32 << 20];
    let gzip = gzip(&zeros);
    let deflate = padded_deflate(0, Block::Stored, &gzip[10..gzip.len() - 8]);
    let bodies = [
        Body::new("bomb", Side::Request, "gzip", gzip),
        Body::new("bomb", Side::Response, "deflate", deflate),
        Body::new("bomb", Side::Request, "br", padded_brotli(22, 0, 2)),
        Body::new("bomb", Side::Response, "br", padded_brotli(24, 0, 2)),
        Body::new("bomb", Side::Request, "zstd", zstd_bomb(22, 128)),
        Body::new("bomb", Side::Response, "zstd", zstd_bomb(23, 128)),
        Body::new(
            "two bombs",
            Side::Response,
            "zstd",
            zstd_bomb(23, 65).repeat(2),
        ),
        Body::new(
            "overlong block",
            Side::Response,
            "zstd",
            zstd_overlong_block(),
        ),
    ];
    let mut failures = Vec::new();
    for body in bodies {
        let mut reported = 0;
        let mut ended = Ok(());
        let memory = allocation_counter::measure(|| {
            let mut decoder = body.decoder();
            reported = decoder.memory();
            decoder.feed(body.bytes.clone());
            ended = loop {
                match decoder.next(usize::MAX) {
                    Ok(Some(_)) => {}
                    Ok(None) => break decoder.end(),
                    Err(denial) => break Err(denial),
                }
            };
        });
        // Without the piece that the caller holds.
        let held = memory.bytes_max.saturating_sub(16 << 10);
        let is_overlong = body.what.contains("overlong");
        // The report may be higher than the actual memory, but at most four times as high.
        if held > reported as u64 || reported as u64 > held * 4 || ended.is_err() != is_overlong {
            failures.push((body.what, held, reported, ended.err()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn a_body_that_needs_too_much_memory_is_refused_before_allocation() {
    let skippable = |content: &[u8]| [&[0x50, 0x2a, 0x4d, 0x18], content].concat();
    let single_segment = |size: u32| {
        let header = [&ZSTD_MAGIC[..], &[0xa0], &size.to_le_bytes()];
        [&*header.concat(), &[1, 0, 0]].concat()
    };
    // A window of 1 GiB.
    let large_window = padded_brotli(30, 0, 1);
    use Side::{Request, Response};
    let bodies = [
        Body::new("23 bits", Request, "br", padded_brotli(23, 0, 1)),
        Body::new("24 bits", Request, "br", padded_brotli(24, 0, 1)),
        Body::new("large window", Request, "br", large_window.clone()),
        Body::new("large window", Response, "br", large_window),
        Body::new("23 bits", Request, "zstd", zstd_bomb(23, 1)),
        Body::new("24 bits", Response, "zstd", zstd_bomb(24, 1)),
        Body::new("a segment", Request, "zstd", single_segment((4 << 20) + 1)),
        Body::new("a segment", Response, "zstd", single_segment((8 << 20) + 1)),
        Body::new("literals", Request, "zstd", zstd_overlong_literals()),
        Body::new("a block", Request, "zstd", {
            [&*zstd_header(22), &[0, 0, 0x20], &[0; 300_000]].concat()
        }),
        Body::new(
            "a skippable frame",
            Request,
            "zstd",
            skippable(&[0, 0, 0, 0x7f]),
        ),
    ];
    let mut failures = Vec::new();
    for body in bodies {
        let mut held = Ok(0);
        let memory = allocation_counter::measure(|| held = body.hold());
        let code = held.err().map(|denial| denial.code());
        if code != Some(Code::UnsupportedEncoding) || memory.bytes_max > 512 << 10 {
            failures.push((body.what, code, memory.bytes_max));
        }
    }
    assert_eq!(failures, []);
}
