//! gzip (RFC 1952): a sequence of members, each a header, a deflate stream and a checksum.

use flate2::Crc;

use super::deflate::{INFLATE_MEMORY, Inflate};
use super::{CORRUPT, Encoding, Fault, Progress};

// RFC 1952, section 2.3.1: the bits of FLG.
const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

pub(super) struct Gzip {
    part: Part,
    /// The flags of header parts that have not been read.
    flags: u8,
    field: [u8; 10],
    /// The number of bytes collected in `field`.
    held: usize,
    /// The checksum of the header until the body begins, then of the body.
    crc: Crc,
    body: Inflate,
    has_members: bool,
}

/// The next part of a member.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Fixed,
    ExtraLength,
    Extra(usize),
    /// A file name or a comment, up to a zero byte; it is skipped.
    Text,
    HeaderCrc,
    Body,
    Trailer,
}

impl Gzip {
    pub(super) fn new() -> Self {
        Self {
            part: Part::Fixed,
            flags: 0,
            field: [0; 10],
            held: 0,
            crc: Crc::new(),
            body: Inflate::new(false),
            has_members: false,
        }
    }

    /// Collects a field that may be split over chunks. Returns the bytes read, and `true` when the
    /// field is whole.
    fn collect(&mut self, input: &[u8], length: usize) -> (usize, bool) {
        let missing = length.saturating_sub(self.held);
        let piece = input.get(..missing).unwrap_or(input);
        let room = self.field.iter_mut().skip(self.held);
        room.zip(piece).for_each(|(slot, byte)| *slot = *byte);
        self.held += piece.len();
        let is_whole = self.held == length;
        if is_whole {
            self.held = 0;
        }
        (piece.len(), is_whole)
    }

    /// Reads from a part that is not the body. Returns the number of bytes read.
    fn read(&mut self, input: &[u8]) -> Result<usize, Fault> {
        let (read, is_whole) = match self.part {
            Part::Fixed => self.collect(input, 10),
            Part::ExtraLength | Part::HeaderCrc => self.collect(input, 2),
            Part::Trailer | Part::Body => self.collect(input, 8),
            Part::Extra(length) => {
                let read = length.min(input.len());
                self.part = Part::Extra(length - read);
                (read, read == length)
            }
            Part::Text => match memchr::memchr(0, input) {
                Some(end) => (end + 1, true),
                None => (input.len(), false),
            },
        };
        if !matches!(self.part, Part::HeaderCrc | Part::Trailer) {
            self.crc.update(input.get(..read).unwrap_or_default());
        }
        if is_whole {
            self.finish_part()?;
        }
        Ok(read)
    }

    fn finish_part(&mut self) -> Result<(), Fault> {
        match (self.part, self.field) {
            (Part::Fixed, [0x1f, 0x8b, 8, flags, ..]) if flags & RESERVED == 0 => {
                self.flags = flags;
            }
            (Part::Fixed, _) => return Err(CORRUPT),
            (Part::ExtraLength, [low, high, ..]) => {
                let length = usize::from(u16::from_le_bytes([low, high]));
                if length > 0 {
                    self.part = Part::Extra(length);
                    return Ok(());
                }
            }
            (Part::HeaderCrc, [low, high, ..]) => {
                if self.crc.sum() as u16 != u16::from_le_bytes([low, high]) {
                    return Err(CORRUPT);
                }
            }
            (Part::Trailer, [a, b, c, d, e, f, g, h, ..]) => {
                let sum = u32::from_le_bytes([a, b, c, d]);
                let length = u32::from_le_bytes([e, f, g, h]);
                if sum != self.crc.sum() || length != self.crc.amount() {
                    return Err(CORRUPT);
                }
                self.crc.reset();
                self.has_members = true;
                self.part = Part::Fixed;
                return Ok(());
            }
            (Part::Extra(_) | Part::Text | Part::Body, _) => {}
        }
        self.enter_next_part();
        Ok(())
    }

    /// Advances to the next part of the header whose flag is set, or to the body.
    fn enter_next_part(&mut self) {
        let parts = [
            (FEXTRA, Part::ExtraLength),
            (FNAME, Part::Text),
            (FCOMMENT, Part::Text),
            (FHCRC, Part::HeaderCrc),
        ];
        let next = parts.into_iter().find(|(flag, _)| self.flags & flag != 0);
        let (flag, part) = next.unwrap_or((0, Part::Body));
        self.flags &= !flag;
        self.part = part;
        if part == Part::Body {
            self.crc.reset();
            if self.has_members {
                self.body.restart();
            }
        }
    }
}

impl Encoding for Gzip {
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        if self.part != Part::Body {
            let read = self.read(input)?;
            return Ok(Progress { read, written: 0 });
        }
        let progress = self.body.decode(input, out)?;
        self.crc
            .update(out.get(..progress.written).unwrap_or_default());
        if self.body.is_done {
            self.part = Part::Trailer;
        }
        Ok(progress)
    }

    fn is_complete(&self) -> bool {
        self.has_members && self.part == Part::Fixed && self.held == 0
    }

    fn memory(&self) -> usize {
        INFLATE_MEMORY
    }

    fn first_byte(&self) -> Option<u8> {
        Some(0x1f)
    }
}
