//! Text that a response wrongly labels as gzip or zstd.

use super::{CORRUPT, Encoding, Fault, Progress};

/// Copies UTF-8 text, and refuses the first byte that is not text.
///
/// The proxy searches such a body for secrets as it is, so it must not be an encoding that only the
/// client can read: compressed data contains control bytes, or is not UTF-8.
#[derive(Default)]
pub(super) struct Text {
    /// The continuation bytes that the current character still needs.
    missing: u8,
}

impl Text {
    fn takes(&mut self, byte: u8) -> bool {
        if self.missing > 0 {
            self.missing -= 1;
            return byte & 0b1100_0000 == 0b1000_0000;
        }
        self.missing = match byte {
            b'\t' | b'\n' | b'\r' | 0x20..0x7f => 0,
            0xc2..=0xdf => 1,
            0xe0..=0xef => 2,
            0xf0..=0xf4 => 3,
            _ => return false,
        };
        true
    }
}

impl Encoding for Text {
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        let mut copied = 0;
        for (slot, byte) in out.iter_mut().zip(input) {
            if !self.takes(*byte) {
                return Err(CORRUPT);
            }
            *slot = *byte;
            copied += 1;
        }
        Ok(Progress {
            read: copied,
            written: copied,
        })
    }

    fn is_complete(&self) -> bool {
        self.missing == 0
    }

    fn memory(&self) -> usize {
        0
    }
}
