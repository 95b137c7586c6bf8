//! zstd (RFC 8878): a sequence of frames, each a sequence of blocks.

use std::io::Read;

use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::FrameDecoderError;

use super::{CORRUPT, Encoding, Fault, Progress, Side};

/// The largest window of a request, in bytes: 4 MiB, as for brotli. Encoders use larger windows
/// only at their highest levels.
const MAX_REQUEST_WINDOW: usize = 4 * 1024 * 1024;

/// The largest window of a response, in bytes: the maximum of the content encoding (RFC 9659,
/// section 3).
const MAX_WINDOW: usize = 8 * 1024 * 1024;

/// Limit on the bytes of a block, encoded or decoded (RFC 8878, section 3.1.1.2.4).
const MAX_BLOCK: usize = 128 * 1024;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BLOCK_HEADER: usize = 3;
const CHECKSUM: usize = 4;

/// Collects each header and block until it is whole, then decodes it.
///
/// ruzstd delays output by a window until the frame ends, so a zstd stream of events is delayed.
/// Checksums are not verified.
pub(super) struct Zstd {
    decoder: FrameDecoder,
    max_window: usize,
    window_fault: Fault,
    waiting: Vec<u8>,
    part: Part,
    /// The number of bytes that `waiting` must hold before the next call of [`Self::advance`].
    length: usize,
    has_checksum: bool,
}

/// The next part of a frame.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The magic number and the frame header descriptor, from which the header's length follows.
    Descriptor,
    Header,
    BlockHeader,
    Block,
    Checksum,
}

impl Zstd {
    pub(super) fn new(side: Side) -> Self {
        let (max_window, window_fault) = match side {
            Side::Request => (MAX_REQUEST_WINDOW, "has a zstd window of more than 4 MiB"),
            Side::Response => (MAX_WINDOW, "has a zstd window of more than 8 MiB"),
        };
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(max_window as u64);
        Self {
            decoder,
            max_window,
            window_fault,
            waiting: Vec::new(),
            part: Part::Descriptor,
            length: MAGIC.len() + 1,
            has_checksum: false,
        }
    }

    /// Processes `waiting`, which has `length` bytes, and sets the next part.
    fn advance(&mut self) -> Result<(), Fault> {
        match (self.part, self.waiting.as_slice()) {
            (Part::Descriptor, [a, b, c, d, descriptor]) if [*a, *b, *c, *d] == MAGIC => {
                self.part = Part::Header;
                self.has_checksum = descriptor & 4 != 0;
                self.length += header_length(*descriptor)?;
            }
            (Part::Header, mut header) => {
                let is_ready = self.decoder.reset(&mut header);
                is_ready.map_err(|error| match error {
                    FrameDecoderError::WindowSizeTooBig { .. } => self.window_fault,
                    _ => CORRUPT,
                })?;
                self.expect(Part::BlockHeader, BLOCK_HEADER);
            }
            (Part::BlockHeader, [a, b, c]) => {
                self.part = Part::Block;
                self.length += block_length(u32::from_le_bytes([*a, *b, *c, 0]))?;
                if self.length == BLOCK_HEADER {
                    self.decode_block()?;
                }
            }
            (Part::Block, _) => self.decode_block()?,
            (Part::Checksum, _) => self.expect(Part::Descriptor, MAGIC.len() + 1),
            // Skippable frames are refused too: they have no content.
            (Part::Descriptor | Part::BlockHeader, _) => return Err(CORRUPT),
        }
        Ok(())
    }

    fn expect(&mut self, part: Part, length: usize) {
        self.waiting.clear();
        self.part = part;
        self.length = length;
    }

    /// Decodes the block in `waiting`, and sets the next part.
    fn decode_block(&mut self) -> Result<(), Fault> {
        let block = self.waiting.as_slice();
        let [first, _, _, content @ ..] = block else {
            return Err(CORRUPT);
        };
        if *first & 0b110 == 0b100 && literals_length(content) > MAX_BLOCK {
            return Err("has a zstd block of more than 128 KiB");
        }
        let is_last = first & 1 == 1;
        let (read, _) = self
            .decoder
            .decode_from_to(block, &mut [])
            .map_err(|_| CORRUPT)?;
        if read != block.len() {
            return Err(CORRUPT);
        }
        match (is_last, self.has_checksum) {
            (false, _) => self.expect(Part::BlockHeader, BLOCK_HEADER),
            (true, true) => self.expect(Part::Checksum, CHECKSUM),
            (true, false) => self.expect(Part::Descriptor, MAGIC.len() + 1),
        }
        Ok(())
    }
}

impl Encoding for Zstd {
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        // No input while output is pending: only one block may be decoded ahead, and the header of
        // another frame would discard the output.
        let written = self.decoder.read(out).map_err(|_| CORRUPT)?;
        if written > 0 {
            return Ok(Progress { read: 0, written });
        }
        let missing = self.length.saturating_sub(self.waiting.len());
        let piece = input.get(..missing).unwrap_or(input);
        self.waiting.extend_from_slice(piece);
        if piece.len() == missing {
            self.advance()?;
        }
        Ok(Progress {
            read: piece.len(),
            written: 0,
        })
    }

    fn is_complete(&self) -> bool {
        self.part == Part::Descriptor && self.waiting.is_empty()
    }

    /// The sum of:
    /// - two ring buffers, since a buffer that grows is copied into a larger one, even for a block
    ///   that is then found to be over its limit
    /// - the tables, literals and sequences of a block
    /// - two copies of the block
    fn memory(&self) -> usize {
        let ring = |window: usize| window + 2 * MAX_BLOCK;
        // The most sequences of a block (RFC 8878, section 3.1.1.3.2.1), of 12 bytes each.
        let sequences = 0x17eff * 12;
        ring(2 * self.max_window) + ring(self.max_window) + sequences + 4 * MAX_BLOCK
    }

    fn first_byte(&self) -> Option<u8> {
        MAGIC.first().copied()
    }

    fn holds_back(&self) -> usize {
        self.max_window + MAX_BLOCK
    }
}

/// The length of the frame header after its descriptor (RFC 8878, section 3.1.1.1.1).
fn header_length(descriptor: u8) -> Result<usize, Fault> {
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = match descriptor & 3 {
        3 => 4,
        length => usize::from(length),
    };
    let content_size = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        exponent => 1 << exponent,
    };
    match descriptor & 8 {
        0 => Ok(window + dictionary + content_size),
        _ => Err(CORRUPT),
    }
}

/// The length of a block after its header (RFC 8878, section 3.1.1.2).
fn block_length(header: u32) -> Result<usize, Fault> {
    let size = (header >> 3) as usize;
    match header >> 1 & 3 {
        3 => Err(CORRUPT),
        _ if size > MAX_BLOCK => Err("has a zstd block of more than 128 KiB"),
        1 => Ok(1),
        _ => Ok(size),
    }
}

/// The number of literals of a compressed block (RFC 8878, section 3.1.1.3.1.1). The decoder checks
/// the decoded size of the whole block only after it has made up to 1 MiB of literals.
fn literals_length(content: &[u8]) -> usize {
    let [a, b, c, ..] = content else { return 0 };
    let header = u32::from_le_bytes([*a, *b, *c, 0]);
    let length = match (header & 3, header >> 2 & 3) {
        (0 | 1, 0 | 2) => header >> 3 & 0x1f,
        (0 | 1, 1) => header >> 4 & 0xfff,
        (0 | 1, _) => header >> 4,
        (_, 0 | 1) => header >> 4 & 0x3ff,
        (_, 2) => header >> 4 & 0x3fff,
        _ => header >> 4 & 0x3_ffff,
    };
    length as usize
}
