//! Frames of a WebSocket server: chunk boundaries do not change the messages that are read, and the
//! filtered output is valid.
#![no_main]

use addons::contract::{BodyFilter, BodyOut, MessageFilter, Verdict};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use unified_proxy::http::{FrameReader, Messages, Opcode, Piece, Violation};

/// A filter that passes every message unchanged.
struct Pass;

impl BodyFilter for Pass {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        out.push(chunk);
        Ok(())
    }

    fn end(&mut self, _out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
        Ok(())
    }
}

/// Control frames and messages: the opcode, the payload, and whether the message has ended.
type Read = Vec<(Opcode, Vec<u8>, bool)>;

/// Reads frames in pieces of `size` bytes, up to the first violation.
fn read(bytes: &[u8], size: usize) -> (Read, Option<Violation>) {
    let mut reader = FrameReader::default();
    let mut found = Read::new();
    for chunk in bytes.chunks(size) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match reader.read(&mut input) {
                Ok(Some(piece)) => push(&mut found, piece),
                Ok(None) => break,
                Err(violation) => return (found, Some(violation)),
            }
        }
        assert!(input.is_empty());
    }
    (found, None)
}

fn push(found: &mut Read, piece: Piece) {
    match piece {
        Piece::Control { opcode, payload } => {
            assert!(payload.len() <= 125);
            found.push((opcode, payload.to_vec(), true));
        }
        Piece::Message {
            opcode,
            bytes,
            last,
        } => match found.iter_mut().rev().find(|(_, _, ended)| !ended) {
            Some((begun, payload, ended)) => {
                assert_eq!(*begun, opcode);
                payload.extend_from_slice(&bytes);
                *ended = last;
            }
            None => found.push((opcode, bytes.to_vec(), last)),
        },
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let size = usize::from(size).max(1);
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, size), whole);

    let filters: Vec<MessageFilter> = vec![Box::new(|| Box::new(Pass))];
    let mut messages = Messages::new(filters);
    let mut out = BytesMut::new();
    let failed = bytes.chunks(size).any(|chunk| {
        let chunk = Bytes::copy_from_slice(chunk);
        messages.read(chunk, &mut out).is_err()
    });
    let (sent, violation) = read(&out, out.len().max(1));
    assert_eq!(violation, None, "the output is not valid");
    if failed {
        let last = sent
            .iter()
            .rev()
            .find(|(opcode, ..)| *opcode == Opcode::Close);
        assert!(last.is_some(), "a failure sends no Close frame");
    }
});
