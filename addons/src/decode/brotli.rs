//! Brotli (RFC 7932).

use brotli_decompressor::{
    BrotliDecoderHasMoreOutput, BrotliDecompressStream, BrotliResult, BrotliState, HuffmanCode,
    StandardAlloc,
};

use super::{CORRUPT, Encoding, Fault, Progress, Side, TRAILING};

/// The largest window of a request: 2^22 bytes (4 MiB), the default of encoders.
const MAX_REQUEST_WINDOW_BITS: u8 = 22;

/// The largest window of a response: 2^24 bytes (16 MiB), the maximum of RFC 7932, section 9.1.
const MAX_WINDOW_BITS: u8 = 24;

/// An upper bound on the bytes of the tables: three groups of at most 256 prefix codes, each with a
/// table of the largest size, and some smaller tables.
const TABLES: usize = (3 * 256 + 8) * 1080 * size_of::<HuffmanCode>() + 128 * 1024;

type State = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

pub(super) struct Brotli {
    state: Box<State>,
    max_window_bits: u8,
    has_begun: bool,
    is_done: bool,
}

impl Brotli {
    pub(super) fn new(side: Side) -> Self {
        let alloc = StandardAlloc::default;
        Self {
            // Strict: without the extension for windows of up to 1 GiB, which RFC 7932 lacks.
            state: Box::new(State::new_strict(alloc(), alloc(), alloc())),
            max_window_bits: match side {
                Side::Request => MAX_REQUEST_WINDOW_BITS,
                Side::Response => MAX_WINDOW_BITS,
            },
            has_begun: false,
            is_done: false,
        }
    }

    /// Refuses a request's window of more than 4 MiB before it is allocated. `first` is the body's
    /// first byte, which encodes the window's size. The byte cannot encode a size that is too large
    /// for a response.
    fn begin(&mut self, first: u8) -> Result<(), Fault> {
        self.has_begun = true;
        match window_bits(first) <= self.max_window_bits {
            true => Ok(()),
            false => Err("has a brotli window of more than 4 MiB"),
        }
    }
}

/// Reads WBITS (RFC 7932, section 9.1) from the first byte. The strict decoder refuses reserved
/// values.
fn window_bits(first: u8) -> u8 {
    match (first & 1, first >> 1 & 7, first >> 4 & 7) {
        (0, _, _) => 16,
        (_, 0, 0) => 17,
        (_, 0, bits) => 8 + bits,
        (_, bits, _) => 17 + bits,
    }
}

impl Encoding for Brotli {
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        match input {
            [_, ..] if self.is_done => return Err(TRAILING),
            [first, ..] if !self.has_begun => self.begin(*first)?,
            [] if self.is_done || !self.has_begun => return Ok(Progress::default()),
            _ => {}
        }
        // No input while output is pending: with input, the decoder would first go on to fill its
        // window, and return the pending output only then.
        let has_more = BrotliDecoderHasMoreOutput(&self.state);
        let input = if has_more { &[] } else { input };
        let (mut read, mut written) = (0, 0);
        let result = BrotliDecompressStream(
            &mut input.len().clone(),
            &mut read,
            input,
            &mut out.len().clone(),
            &mut written,
            out,
            &mut 0,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => return Err(CORRUPT),
            BrotliResult::ResultSuccess => self.is_done = true,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        Ok(Progress { read, written })
    }

    fn is_complete(&self) -> bool {
        self.is_done
    }

    fn memory(&self) -> usize {
        size_of::<State>() + (1 << self.max_window_bits) + TABLES
    }
}
