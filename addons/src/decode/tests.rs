use std::io::Write;

use flate2::Compression;
use proptest::prelude::*;
use testkit::each_row;

use super::*;
use crate::fixtures::headers;

/// Encodes a body. `name` is one of [`ENCODINGS`].
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
        "br" => {
            let mut encoder = ::brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
            encoder.write_all(body).unwrap();
            encoder.into_inner()
        }
        _ => unreachable!("{name}"),
    }
}

pub(crate) const ENCODINGS: [&str; 5] = ["gzip", "deflate", "raw deflate", "br", "zstd"];

fn decoder(name: &str) -> Result<Option<Decoder>, Denial> {
    let name = name.strip_prefix("raw ").unwrap_or(name);
    Decoder::of(Side::Response, &headers(&[("content-encoding", name)]))
}

/// Feeds the body in chunks, and pulls pieces of at most `most` bytes.
fn decode(name: &str, body: &[u8], chunk: usize, most: usize) -> Result<Vec<u8>, Denial> {
    let mut decoder = decoder(name)?.unwrap();
    let mut out = Vec::new();
    for chunk in body.chunks(chunk) {
        decoder.feed(Bytes::copy_from_slice(chunk));
        while let Some(piece) = decoder.next(most)? {
            assert!((1..=most).contains(&piece.len()), "{name}: {}", piece.len());
            out.extend(piece);
        }
    }
    decoder.end()?;
    Ok(out)
}

/// Lines of different lengths, some of them repeated; together longer than a deflate window.
fn text() -> Vec<u8> {
    let lines = (0..20_000_u32).map(|n| format!("{} {:x}\n", n * n % 977, n.wrapping_mul(n)));
    lines.collect::<String>().into_bytes()
}

#[test]
fn an_unknown_encoding_and_several_encodings_are_denied_and_identity_needs_no_decoder() {
    each_row(
        ["compress", "gzip, br", "gzip, gzip", "aws-chunked", "dcb"],
        |name| {
            let denial = decoder(name).err().unwrap();
            assert_eq!(denial.code(), Code::UnsupportedEncoding, "{name}");
        },
    );
    each_row(["", "identity", "Identity, identity"], |plain| {
        assert!(decoder(plain).unwrap().is_none(), "{plain}");
    });
}

#[test]
fn names_that_stand_for_no_encoding_are_ignored_in_responses_alone() {
    each_row(["none", "UTF-8", "utf8", "binary", "8bit, gzip"], |name| {
        let fields = headers(&[("content-encoding", name)]);
        assert!(Decoder::of(Side::Response, &fields).is_ok(), "{name}");
        assert!(Decoder::of(Side::Request, &fields).is_err(), "{name}");
    });
}

#[test]
fn text_that_a_response_labels_as_gzip_or_zstd_is_read_as_it_is() {
    each_row(["gzip", "x-gzip", "zstd"], |name| {
        each_row(
            [
                "{}",
                "{\"error\":\"no such key\"}\r\n",
                "caf\u{e9} \u{20ac} \u{1f600}",
                "x",
            ],
            |text| {
                for chunk in 1..9 {
                    let read = decode(name, text.as_bytes(), chunk, 3);
                    assert_eq!(read.unwrap(), text.as_bytes(), "{name}");
                }
            },
        );
        // What is no text may be an encoding that only the client can read.
        each_row(
            [
                &b"\x0b\x02\x80abc\x03"[..],
                b"x\x9c\x03\x00",
                b"ab\0",
                b"caf\xe9",
                b"caf\xc3",
            ],
            |other| {
                for chunk in 1..9 {
                    assert!(decode(name, other, chunk, 3).is_err(), "{name}: {other:?}");
                }
            },
        );
        let fields = headers(&[("content-encoding", name)]);
        let mut request = Decoder::of(Side::Request, &fields).unwrap().unwrap();
        request.feed(Bytes::from_static(b"{\"a\":1, \"b\":2}"));
        assert!(request.next(100).is_err(), "{name}");
    });
    // These encodings may begin with any byte.
    each_row(["br", "deflate"], |name| {
        assert!(
            decode(name, b"{\"error\":\"no such key\"}", 100, 100).is_err(),
            "{name}"
        );
    });
}

#[test]
fn a_request_may_not_use_an_ambiguous_encoding() {
    each_row(
        [
            ("gzip", true),
            ("br", true),
            ("zstd", true),
            ("deflate", false),
        ],
        |(name, known)| {
            let decoder = Decoder::of(Side::Request, &headers(&[("content-encoding", name)]));
            assert_eq!(decoder.is_ok(), known, "{name}");
        },
    );
}

#[test]
fn a_bomb_yields_no_more_than_the_caller_has_room_for() {
    let zeros = vec![0; 4 << 20];
    let mut failures = Vec::new();
    for name in ENCODINGS {
        for most in [0, 1, 7, 4096, MAX_PIECE, usize::MAX] {
            let mut decoder = decoder(name).unwrap().unwrap();
            decoder.feed(encoded(name, &zeros).into());
            for _ in 0..100 {
                let piece = decoder.next(most).unwrap().unwrap();
                // A `most` of 0 counts as 1.
                if piece.is_empty() || piece.len() > most.clamp(1, MAX_PIECE) {
                    failures.push((name, most, piece.len()));
                }
            }
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_body_must_end_exactly_where_its_encoding_ends() {
    let text = b"0123456789".repeat(30);
    let mut failures = Vec::new();
    for name in ENCODINGS {
        let body = encoded(name, &text);
        for end in 1..body.len() {
            let cut = body.get(..end).unwrap();
            if decode(name, cut, 7, 100).is_ok() {
                failures.push((name, "cut", end));
            }
        }
        for (what, trailing) in [("a zero", &b"\0"[..]), ("text", b"some more of it")] {
            if decode(name, &[&*body, trailing].concat(), 7, 100).is_ok() {
                failures.push((name, what, body.len()));
            }
        }
        if decode(name, &[0xff; 64], 7, 100).is_ok() {
            failures.push((name, "garbage", 0));
        }
        if decode(name, &[], 7, 100).as_deref().ok() != Some(&[]) {
            failures.push((name, "an empty body", 0));
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_denied_body_stays_denied() {
    each_row(ENCODINGS, |name| {
        let mut broken = decoder(name).unwrap().unwrap();
        broken.feed(Bytes::from_static(&[0xff; 64]));
        // Fed again before its output was read.
        let mut hurried = decoder(name).unwrap().unwrap();
        hurried.feed(encoded(name, b"first").into());
        hurried.feed(encoded(name, b"second").into());
        for mut decoder in [broken, hurried] {
            let mut next = || loop {
                match decoder.next(100) {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            let denial = next().err().unwrap();
            assert_eq!(denial.code(), Code::UnsupportedEncoding, "{name}");
            decoder.feed(encoded(name, b"another").into());
            assert!(decoder.next(100).is_err(), "{name}");
            assert!(decoder.end().is_err(), "{name}");
        }
    });
}

#[test]
fn several_gzip_members_or_zstd_frames_are_decoded_as_one_body() {
    each_row(["gzip", "zstd"], |name| {
        let parts = ["one ", "", "two"].map(|part| encoded(name, part.as_bytes()));
        for chunk in [1, 5, 1000] {
            let decoded = decode(name, &parts.concat(), chunk, 2).unwrap();
            assert_eq!(decoded, b"one two", "{name}, {chunk}");
        }
    });
}

/// A gzip member with every optional part of the header. The bits of `header_crc_mask` are flipped
/// in the header's checksum.
fn gzip_with_all_parts(header_crc_mask: u16) -> Vec<u8> {
    let mut member = vec![0x1f, 0x8b, 8, 0b1_1111, 0, 0, 0, 0, 0, 3];
    member.extend([5, 0]);
    member.extend(b"extra");
    member.extend(b"name\0comment\0");
    let mut crc = flate2::Crc::new();
    crc.update(&member);
    member.extend((crc.sum() as u16 ^ header_crc_mask).to_le_bytes());
    member.extend(encoded("gzip", b"content").split_off(10));
    member
}

#[test]
fn every_part_of_a_gzip_header_is_read_and_a_wrong_header_or_trailer_is_refused() {
    let body = gzip_with_all_parts(0);
    for chunk in 1..body.len() {
        let decoded = decode("gzip", &body, chunk, 3).unwrap();
        assert_eq!(decoded, b"content", "{chunk}");
    }
    assert!(decode("gzip", &gzip_with_all_parts(1), 9, 9).is_err());
    let plain = encoded("gzip", b"content");
    let end = plain.len();
    let mut failures = Vec::new();
    // Damage to the magic number, the method, the reserved flags, the checksum and the length.
    let damages = [
        (0, 1),
        (2, 1),
        (3, 32),
        (3, 64),
        (3, 128),
        (end - 8, 1),
        (end - 4, 1),
    ];
    for (at, bit) in damages {
        let mut body = plain.clone();
        *body.get_mut(at).unwrap() ^= bit;
        if decode("gzip", &body, 9, 9).is_ok() {
            failures.push((at, bit));
        }
    }
    assert_eq!(failures, []);
}

/// Encodes the events of a stream, with a flush after each.
fn flushed(name: &str, events: &[&str]) -> Vec<Vec<u8>> {
    fn each<W: Write>(
        mut encoder: W,
        out: impl Fn(&mut W) -> &mut Vec<u8>,
        events: &[&str],
    ) -> Vec<Vec<u8>> {
        let flush = |event: &&str| {
            encoder.write_all(event.as_bytes()).unwrap();
            encoder.flush().unwrap();
            std::mem::take(out(&mut encoder))
        };
        events.iter().map(flush).collect()
    }
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    let level = Compression::default();
    match name {
        "gzip" => each(
            GzEncoder::new(Vec::new(), level),
            GzEncoder::get_mut,
            events,
        ),
        "deflate" => each(
            ZlibEncoder::new(Vec::new(), level),
            ZlibEncoder::get_mut,
            events,
        ),
        "raw deflate" => each(
            DeflateEncoder::new(Vec::new(), level),
            DeflateEncoder::get_mut,
            events,
        ),
        "br" => each(
            ::brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22),
            ::brotli::CompressorWriter::get_mut,
            events,
        ),
        _ => unreachable!("{name}"),
    }
}

#[test]
fn flushed_events_are_decoded_at_once() {
    let events = [
        "data: one\n\n",
        "data: two\n\n",
        "data: two\n\ndata: two\n\n",
    ];
    each_row(["gzip", "deflate", "raw deflate", "br"], |name| {
        let mut decoder = decoder(name).unwrap().unwrap();
        for (event, chunk) in events.iter().zip(flushed(name, &events)) {
            decoder.feed(chunk.into());
            let mut decoded = Vec::new();
            while let Some(piece) = decoder.next(4).unwrap() {
                decoded.extend(piece);
            }
            assert_eq!(decoded, event.as_bytes(), "{name}");
        }
    });
}

#[test]
fn a_stream_of_tiny_events_is_not_taken_for_padding() {
    let events = vec!["."; 30_000];
    each_row(["gzip", "deflate", "br"], |name| {
        let mut decoder = decoder(name).unwrap().unwrap();
        let mut length = 0;
        for chunk in flushed(name, &events) {
            decoder.feed(chunk.into());
            while let Some(piece) = decoder.next(10).unwrap() {
                length += piece.len();
            }
        }
        assert_eq!(length, events.len(), "{name}");
    });
}

#[test]
fn a_long_body_is_decoded_in_pieces_of_any_size() {
    let text = text();
    // Incompressible data is not mistaken for padding while a window of it is delayed.
    let noise: Vec<u8> = (0..600_000_u64)
        .map(|n| {
            (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
                .wrapping_mul(n | 1)
                >> 56) as u8
        })
        .collect();
    each_row(ENCODINGS, |name| {
        for body in [&text, &noise] {
            let encoded = encoded(name, body);
            for (chunk, most) in [(usize::MAX, 97), (1000, 97), (50_000, MAX_PIECE)] {
                let decoded = decode(name, &encoded, chunk, most).unwrap();
                assert!(decoded == *body, "{name}, {chunk}, {most}");
            }
        }
    });
}

proptest! {
    #[test]
    fn every_encoding_is_decoded_with_chunks_of_any_size(
        body in proptest::collection::vec("[a-f]{1,9}", 0..400),
        chunk in 1..300_usize,
        most in 1..300_usize,
    ) {
        let body = body.concat().into_bytes();
        for name in ENCODINGS {
            let decoded = decode(name, &encoded(name, &body), chunk, most).unwrap();
            prop_assert_eq!(&decoded, &body, "{}", name);
        }
    }

    #[test]
    fn chunk_sizes_do_not_change_the_result_of_a_damaged_body(
        body in "[a-f]{0,200}",
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        chunk in 1..50_usize,
        most in 1..50_usize,
    ) {
        for name in ENCODINGS {
            let mut body = encoded(name, body.as_bytes());
            for (at, byte) in &damage {
                let at = at.index(body.len());
                *body.get_mut(at).unwrap() = *byte;
            }
            let whole = decode(name, &body, body.len(), usize::MAX).ok();
            let cut = decode(name, &body, chunk, most).ok();
            prop_assert_eq!(whole, cut, "{}", name);
        }
    }
}
