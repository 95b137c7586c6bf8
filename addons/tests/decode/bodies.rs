//! Encoded bodies made by hand: padding that decodes to nothing, bombs (small bodies that decode to
//! many bytes), and zstd blocks over the limits of RFC 8878.

/// Writes fields of bits, lowest bit first, as deflate and brotli do.
#[derive(Default)]
pub struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    pub fn put(&mut self, count: usize, value: u64) {
        for at in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = (value >> at & 1) as u8;
            *self.bytes.last_mut().unwrap() |= bit << (self.used % 8);
            self.used += 1;
        }
    }

    pub fn align(&mut self) {
        self.used = self.bytes.len() * 8;
    }

    pub fn bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The types of an empty deflate block.
#[derive(Clone, Copy, Debug)]
pub enum Block {
    Stored,
    Fixed,
    Dynamic,
}

/// Writes an empty block that is not the last (RFC 1951, section 3.2).
fn put_empty_block(bits: &mut Bits, block: Block) {
    match block {
        Block::Stored => {
            bits.put(3, 0);
            bits.align();
            bits.put(32, 0xffff_0000);
        }
        Block::Fixed => bits.put(10, 0b010),
        Block::Dynamic => {
            // One distance code, 257 literal codes, 18 code lengths.
            bits.put(3, 0b100);
            bits.put(14, 14 << 10);
            // Code lengths: 1 bit each for the symbols 18 (zeros) and 1.
            for symbol in [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1] {
                bits.put(3, u64::from(symbol == 18 || symbol == 1));
            }
            // 138 zeros, 118 zeros, and two codes of length 1: end of block, and a distance.
            bits.put(8, 1 | 127 << 1);
            bits.put(8, 1 | 107 << 1);
            bits.put(2, 0);
            bits.put(1, 0);
        }
    }
}

/// At least `padding` bytes of empty deflate blocks, continued by the stream `rest`.
pub fn padded_deflate(padding: usize, block: Block, rest: &[u8]) -> Vec<u8> {
    let mut bits = Bits::default();
    while bits.bytes.len() < padding {
        put_empty_block(&mut bits, block);
    }
    // A stored block ends on a byte boundary.
    put_empty_block(&mut bits, Block::Stored);
    let mut body = bits.bytes();
    body.extend_from_slice(rest);
    body
}

/// A brotli stream (RFC 7932): `padding` empty metadata blocks, and `blocks` blocks of 16 MiB of
/// zeros.
pub fn padded_brotli(window_bits: u64, padding: usize, blocks: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    match window_bits {
        16 => bits.put(1, 0),
        // The extension for large windows, which uses a pattern that the RFC reserves.
        25.. => {
            bits.put(8, 0x11);
            bits.put(6, window_bits);
        }
        _ => bits.put(4, (window_bits - 17) << 1 | 1),
    }
    for _ in 0..padding {
        // ISLAST 0, MNIBBLES 0 (coded as 3), reserved 0, MSKIPBYTES 0
        bits.put(6, 0b00_0110);
        bits.align();
    }
    for _ in 0..blocks {
        put_zeros(&mut bits, window_bits);
    }
    bits.put(2, 0b11);
    bits.bytes()
}

/// Writes 16 MiB of zeros (RFC 7932, section 9.2): one literal zero, and one copy that repeats the
/// previous byte for the rest.
fn put_zeros(bits: &mut Bits, window_bits: u64) {
    let length = 1 << 24;
    bits.put(1, 0); // ISLAST
    bits.put(2, 2); // MNIBBLES 6
    bits.put(24, length - 1);
    bits.put(1, 0); // ISUNCOMPRESSED
    bits.put(3, 0); // one block type each
    bits.put(6, 0); // NPOSTFIX, NDIRECT
    bits.put(2, 0); // context mode
    bits.put(2, 0); // one tree each
    let one_symbol = |bits: &mut Bits, width, symbol| {
        bits.put(4, 1);
        bits.put(width, symbol);
    };
    one_symbol(bits, 8, 0); // literals: zero
    one_symbol(bits, 10, 399); // insert 1, copy 2118 and more
    let width = if window_bits > 24 { 8 } else { 6 };
    one_symbol(bits, width, 16); // distance 1 or 2
    bits.put(24, length - 1 - 2118);
    bits.put(1, 0);
}

pub const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A zstd frame header (RFC 8878) with a window of `1 << window_bits` bytes.
pub fn zstd_header(window_bits: u8) -> Vec<u8> {
    let mut header = ZSTD_MAGIC.to_vec();
    header.extend([0, (window_bits - 10) << 3]);
    header
}

/// A zstd frame of blocks that each repeat one byte and decode to 128 KiB.
pub fn zstd_bomb(window_bits: u8, blocks: usize) -> Vec<u8> {
    let mut frame = zstd_header(window_bits);
    for _ in 0..blocks {
        frame.extend([0b010, 0, 0x10, 0]);
    }
    frame.extend([1, 0, 0]);
    frame
}

/// A zstd frame of blocks that fill its window of 8 MiB, and of a last block that decodes to 256
/// KiB and one byte, although the limit for a block is 128 KiB.
pub fn zstd_overlong_block() -> Vec<u8> {
    let mut frame = zstd_bomb(23, 64);
    frame.truncate(frame.len() - 3);
    // 131 071 literals that are all zero; one sequence: all literals, and a match of 131 074.
    let literals: u32 = 131_071 << 4 | 0b11 << 2 | 1;
    let mut block = literals.to_le_bytes()[..3].to_vec();
    block.push(0);
    block.extend([1, 0b0101_0100, 35, 0, 52]);
    // The extra bits of the match length and the literals length, all set, below a final bit that
    // is 1.
    block.extend([0xff, 0xff, 0xff, 0xff, 1]);
    let header = (block.len() as u32) << 3 | 2 << 1;
    frame.extend(&header.to_le_bytes()[..3]);
    frame.extend(block);
    frame
}

/// A zstd frame with a block whose literals, all zero, are one byte less than 1 MiB, although the
/// limit for a block is 128 KiB.
pub fn zstd_overlong_literals() -> Vec<u8> {
    let literals: u32 = 0xf_ffff << 4 | 0b11 << 2 | 1;
    let mut frame = zstd_header(22);
    frame.extend([5 << 3 | 2 << 1 | 1, 0, 0]);
    frame.extend(&literals.to_le_bytes()[..3]);
    frame.extend([0, 0]);
    frame
}
