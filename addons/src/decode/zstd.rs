//! Feeding a zstd decoder that wants whole blocks from a body that comes in pieces.

use std::io::{self, Read};

use ruzstd::decoding::FrameDecoder;

use super::Encoding;

/// RFC 9659: no server may ask a client for a larger window.
const MAX_WINDOW: u64 = 8 * 1024 * 1024;

/// RFC 8878: the longest magic number and frame header together.
const MAX_HEADER: usize = 18;

const CHECKSUM: usize = 4;

/// Holds a block back until it is whole (128 KiB at most), and what the decoder keeps as its
/// window until the frame ends: a zstd stream is delayed, where an upstream sends one unasked.
pub(super) struct Zstd {
    decoder: FrameDecoder,
    waiting: Vec<u8>,
    expects: Expects,
}

#[derive(Clone, Copy, PartialEq)]
enum Expects {
    Header,
    Block,
    Checksum,
}

impl Zstd {
    pub(super) fn new() -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self {
            decoder,
            waiting: Vec::new(),
            expects: Expects::Header,
        }
    }

    fn run(&mut self, ended: bool, room: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(rest) = self.waiting.get(at..).filter(|rest| !rest.is_empty()) {
            let taken = match self.expects {
                Expects::Header if rest.len() < MAX_HEADER && !ended => break,
                Expects::Header => {
                    let mut source = rest;
                    self.decoder.reset(&mut source).map_err(io::Error::other)?;
                    self.expects = Expects::Block;
                    rest.len() - source.len()
                }
                Expects::Block => match whole_block(rest) {
                    Some(block) => self.step(at, block, true)?,
                    None => break,
                },
                Expects::Checksum if rest.len() < CHECKSUM => break,
                Expects::Checksum => self.step(at, CHECKSUM, false)?,
            };
            at += taken;
            // One block at a time, so that what a few bytes expand to is seen early.
            let most = room.saturating_sub(out.len()) as u64;
            (&mut self.decoder).take(most).read_to_end(&mut out)?;
            if self.decoder.can_collect() > 0 {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
        self.waiting.drain(..at);
        Ok(out)
    }

    fn step(&mut self, at: usize, length: usize, is_block: bool) -> io::Result<usize> {
        let piece = self.waiting.get(at..at + length).unwrap_or_default();
        let is_last = is_block && piece.first().is_some_and(|byte| byte & 1 == 1);
        let (taken, _) = self
            .decoder
            .decode_from_to(piece, &mut [])
            .map_err(io::Error::other)?;
        if taken != length {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.decoder.is_finished() {
            self.expects = Expects::Header;
        } else if is_last {
            self.expects = Expects::Checksum;
        }
        Ok(taken)
    }
}

impl Encoding for Zstd {
    fn feed(&mut self, chunk: &[u8], room: usize) -> io::Result<Vec<u8>> {
        self.waiting.extend_from_slice(chunk);
        self.run(false, room)
    }

    fn finish(&mut self, room: usize) -> io::Result<Vec<u8>> {
        let out = self.run(true, room)?;
        if self.expects == Expects::Header && self.waiting.is_empty() {
            Ok(out)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// The length of the block that the data begins with, if all of it is there.
fn whole_block(data: &[u8]) -> Option<usize> {
    let [a, b, c, ..] = data else { return None };
    let header = u32::from_le_bytes([*a, *b, *c, 0]);
    let repeats_one_byte = header >> 1 & 3 == 1;
    let size = if repeats_one_byte { 1 } else { header >> 3 };
    let length = 3 + usize::try_from(size).ok()?;
    (data.len() >= length).then_some(length)
}
