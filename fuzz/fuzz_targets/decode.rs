//! Encoded bodies: a decoder returns at most the requested number of bytes in a call and uses no
//! more memory than it reports. Chunk boundaries change neither the content nor the verdict.
#![no_main]

use addons::decode::{Decoder, Side};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;

/// The most decoded bytes of a body that are read. The rest stays in the decoder.
const LIMIT: usize = 1 << 20;

/// The longest body in bytes. A body of this length may consist of padding only. The verdict on a
/// longer body may depend on the chunk boundaries, which determine when its share of padding is
/// checked.
const MAX_BODY: usize = 64 * 1024;

fn decoder(selector: u8) -> Option<Decoder> {
    let side = [Side::Request, Side::Response][usize::from(selector & 1)];
    let encoding = ["gzip", "deflate", "br", "zstd"][usize::from(selector >> 1 & 3)];
    let mut headers = HeaderMap::new();
    headers.insert("content-encoding", HeaderValue::from_static(encoding));
    Decoder::of(side, &headers).ok()?
}

/// The decoded content up to [`LIMIT`]; `None` if the body is refused.
fn content(selector: u8, body: &Bytes, chunk: usize, most: usize) -> Option<Vec<u8>> {
    let mut held = Vec::with_capacity(LIMIT);
    let mut reported = 0;
    let mut verdict = None;
    let memory = allocation_counter::measure(|| {
        let Some(mut decoder) = decoder(selector) else {
            return;
        };
        reported = decoder.memory() as u64;
        verdict = read(&mut decoder, body, chunk, most, &mut held);
    });
    // The 32 KiB are for memory that the caller holds: a piece, a denial and the headers.
    assert!(
        memory.bytes_max <= reported + 32 * 1024,
        "the decoder used {} bytes and reports {reported}",
        memory.bytes_max
    );
    verdict.map(|()| held)
}

fn read(
    decoder: &mut Decoder,
    body: &Bytes,
    chunk: usize,
    most: usize,
    held: &mut Vec<u8>,
) -> Option<()> {
    for at in (0..body.len()).step_by(chunk) {
        decoder.feed(body.slice(at..body.len().min(at + chunk)));
        while let Some(piece) = decoder.next(most.min(LIMIT - held.len())).ok()? {
            assert!(!piece.is_empty() && piece.len() <= most);
            if held.len() == LIMIT {
                return Some(());
            }
            held.extend_from_slice(&piece);
        }
    }
    decoder.end().ok()
}

fuzz_target!(|input: &[u8]| {
    let [selector, cut, body @ ..] = input else {
        return;
    };
    let body = Bytes::copy_from_slice(&body[..body.len().min(MAX_BODY)]);
    let chunk = usize::from(*cut).max(1);
    let whole = content(*selector, &body, MAX_BODY, LIMIT);
    let pieces = content(*selector, &body, chunk, chunk * 64);
    assert!(whole == pieces, "chunks of {chunk} bytes make a difference");
});
