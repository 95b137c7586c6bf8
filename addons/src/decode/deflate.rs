//! Deflate (RFC 1951), raw or as zlib (RFC 1950).

use flate2::{Decompress, FlushDecompress, Status};

use super::{CORRUPT, Encoding, Fault, Progress, TRAILING};

/// An upper bound for the state of miniz_oxide, in bytes: a window of 32 KiB and three tables. Not
/// computed with `size_of`, since flate2 does not export the type.
pub(super) const INFLATE_MEMORY: usize = 64 * 1024;

/// A decoder of deflate streams.
pub(super) struct Inflate {
    state: Decompress,
    pub(super) is_done: bool,
}

impl Inflate {
    /// Makes a decoder. `is_zlib`: the stream has zlib's header and checksum.
    pub(super) fn new(is_zlib: bool) -> Self {
        Self {
            state: Decompress::new(is_zlib),
            is_done: false,
        }
    }

    /// Resets the decoder for another raw stream.
    pub(super) fn restart(&mut self) {
        self.state.reset(false);
        self.is_done = false;
    }

    /// Decodes at most to the end of the stream. At the end, sets `is_done`; some input may be
    /// left.
    pub(super) fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        let before = (self.state.total_in(), self.state.total_out());
        let status = self
            .state
            .decompress(input, out, FlushDecompress::None)
            .map_err(|_| CORRUPT)?;
        self.is_done = status == Status::StreamEnd;
        // The differences fit: they are at most the lengths of `input` and `out`.
        Ok(Progress {
            read: (self.state.total_in() - before.0) as usize,
            written: (self.state.total_out() - before.1) as usize,
        })
    }
}

/// The encoding `deflate`: zlib, or the raw stream that some servers send. The decoder guesses from
/// the first two bytes which of the two it reads.
#[derive(Default)]
pub(super) struct Deflate {
    first: Option<u8>,
    stream: Option<Inflate>,
}

impl Deflate {
    /// Recognises zlib (RFC 1950, section 2.2) by method 8 and a header that is a multiple of 31.
    fn decide(first: u8, second: u8) -> Inflate {
        let header = u16::from_be_bytes([first, second]);
        Inflate::new(first & 15 == 8 && header.is_multiple_of(31))
    }
}

impl Encoding for Deflate {
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault> {
        let stream = match (&mut self.stream, self.first, input) {
            (Some(stream), _, _) => stream,
            (None, None, [first, ..]) => {
                self.first = Some(*first);
                return Ok(Progress {
                    read: 1,
                    written: 0,
                });
            }
            (None, Some(first), [second, ..]) => {
                let stream = self.stream.insert(Self::decide(first, *second));
                // One byte yields no output: a block's header has three bits, and the shortest code
                // of a fixed block has seven.
                stream.decode(&[first], out)?;
                stream
            }
            (None, _, []) => return Ok(Progress::default()),
        };
        match input {
            [] if stream.is_done => Ok(Progress::default()),
            _ if stream.is_done => Err(TRAILING),
            _ => stream.decode(input, out),
        }
    }

    fn is_complete(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_done)
    }

    fn memory(&self) -> usize {
        INFLATE_MEMORY
    }
}
