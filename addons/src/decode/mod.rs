//! Decodes the `Content-Encoding` of a message body piece by piece, at the pace of its reader.
//!
//! A few bytes of a compressed body may expand to gigabytes. So the caller pulls the output: each
//! call returns at most as much as the caller has room for, however much input was fed. A decoder
//! is ahead of the caller by at most one window of output; the zstd decoder, by a window and a
//! block.

mod brotli;
mod deflate;
mod gzip;
mod text;
mod zstd;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::contract::{Code, Denial};
use brotli::Brotli;
use deflate::Deflate;
use gzip::Gzip;
use text::Text;
use zstd::Zstd;

/// Limit on the bytes that [`Decoder::next`] returns at once, and the size of its buffer.
const MAX_PIECE: usize = 16 * 1024;

/// Limit on the encoded bytes that the decoder reads between two checks of the share of padding.
const MAX_STEP: usize = 16 * 1024;

/// The number of encoded bytes that may be padding in a body of any size. Headers need far less.
///
/// The limit on padding also limits CPU time: to decode an empty deflate block of 10 bits, the
/// decoder builds tables, which takes 2 µs in a test build
/// (`a_padded_bomb_takes_less_than_a_second_of_cpu_time`).
const FREE_BYTES: u64 = 64 * 1024;

/// A decoder for one body. The caller alternates [`feed`](Self::feed) and [`next`](Self::next):
///
/// ```text
/// for each chunk { feed(chunk); while let Some(piece) = next(room)? { … } }
/// end()?
/// ```
pub struct Decoder {
    side: Side,
    encoding: Box<dyn Encoding>,
    input: Bytes,
    out: Box<[u8]>,
    fed: u64,
    read: u64,
    written: u64,
    failed: Option<Fault>,
}

/// The direction of a body. The limits for requests are stricter than those for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A request: gzip, br and zstd, with windows of at most 4 MiB.
    Request,
    /// A response: also `deflate`, as zlib or raw. The windows of br and zstd may be the largest
    /// that RFC 7932 (16 MiB) and RFC 9659 (8 MiB) permit.
    Response,
}

/// Values of `Content-Encoding` in responses that name no encoding of the bytes.
const NO_ENCODINGS: [&str; 6] = ["none", "utf-8", "utf8", "binary", "7bit", "8bit"];

/// Why a body is refused, as the predicate of a sentence about it.
type Fault = &'static str;

const CORRUPT: Fault = "is corrupt";
const CUT_SHORT: Fault = "ends before its encoding does";
const PADDED: Fault = "is mostly padding, which decodes to nothing";
const TRAILING: Fault = "goes on after the end of its encoding";

/// The bytes read and written by one call of [`Encoding::decode`].
#[derive(Default)]
struct Progress {
    read: usize,
    written: usize,
}

/// The decoder of one encoding. It buffers at most one window of output; the zstd decoder, a window
/// and a block.
trait Encoding: Send {
    /// Decodes from `input` to the front of `out`, which is not empty.
    ///
    /// A call may stop at any point. If a call neither reads nor writes, `input` is empty, and all
    /// output of the input so far has been written, except up to [`Self::holds_back`] bytes.
    fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, Fault>;

    /// Whether the input so far is a complete encoding.
    fn is_complete(&self) -> bool;

    /// An upper bound on the bytes that the decoder allocates at any time.
    fn memory(&self) -> usize;

    /// The byte with which every body in this encoding begins; `None` if it may begin with others.
    fn first_byte(&self) -> Option<u8> {
        None
    }

    /// An upper bound on the decoded bytes that the decoder delays although `out` has room for
    /// them.
    fn holds_back(&self) -> usize {
        0
    }
}

impl Decoder {
    /// Makes the decoder for the `Content-Encoding` of a head; `None` for a plain body.
    ///
    /// An unknown encoding, more than one encoding, and `deflate` in a request are denied with
    /// `unsupported_encoding`. The proxy cannot inspect a body that it cannot decode. To decode
    /// `deflate`, it must guess whether the body is zlib or raw deflate.
    ///
    /// In a response, names that stand for no encoding, such as a charset, are ignored, and UTF-8
    /// text that is said to be gzip or zstd is read as it is. Servers send both by mistake.
    pub fn of(side: Side, headers: &HeaderMap) -> Result<Option<Self>, Denial> {
        let mut encoding: Option<Box<dyn Encoding>> = None;
        for value in headers.get_all(CONTENT_ENCODING) {
            for name in value.to_str().unwrap_or("unreadable").split(',') {
                let name = name.trim().to_ascii_lowercase();
                if matches!(name.as_str(), "" | "identity")
                    || (side == Side::Response && NO_ENCODINGS.contains(&name.as_str()))
                {
                    continue;
                }
                let known = named(side, &name).filter(|_| encoding.is_none());
                encoding = Some(known.ok_or_else(|| denied(side, unknown(side)))?);
            }
        }
        Ok(encoding.map(|encoding| Self {
            side,
            encoding,
            input: Bytes::new(),
            out: vec![0; MAX_PIECE].into(),
            fed: 0,
            read: 0,
            written: 0,
            failed: None,
        }))
    }

    /// Takes the next chunk of the encoded body, without a copy. Call it only after
    /// [`next`](Self::next) has returned `None`: otherwise the rest of the former chunk is lost,
    /// and the body counts as corrupt.
    pub fn feed(&mut self, chunk: Bytes) {
        if !self.input.is_empty() {
            self.failed = Some(CORRUPT);
        }
        if self.fed == 0
            && self.side == Side::Response
            && let (Some(first), Some(expected)) = (chunk.first(), self.encoding.first_byte())
            && *first != expected
        {
            self.encoding = Box::new(Text::default());
        }
        self.fed = self.fed.saturating_add(chunk.len() as u64);
        self.input = chunk;
    }

    /// Decodes the next bytes of the body: at least one, and at most `most` or 16 KiB, whichever is
    /// less. `None` when all output of the input so far has been returned.
    ///
    /// A `most` of 0 counts as 1, so that a caller without room learns that the body is too long.
    /// Data that the sender flushed is returned at once, except for zstd, which delays up to a
    /// window until its frame ends. A body that cannot be decoded or is mostly padding is denied
    /// with `unsupported_encoding`. Each later call returns the same denial.
    pub fn next(&mut self, most: usize) -> Result<Option<Bytes>, Denial> {
        loop {
            let Progress { read, written } = self.step(most)?;
            self.input.advance(read);
            if let Some(piece) = self.out.get(..written).filter(|piece| !piece.is_empty()) {
                // A copy: a caller that collects short pieces must not keep whole buffers alive.
                return Ok(Some(Bytes::copy_from_slice(piece)));
            }
            if read == 0 {
                return Ok(None);
            }
        }
    }

    /// Checks that the encoding ends with the body. Call it after [`next`](Self::next) has returned
    /// `None`. An empty body is complete in any encoding.
    pub fn end(&mut self) -> Result<(), Denial> {
        if self.fed == 0 || (self.failed.is_none() && self.encoding.is_complete()) {
            return Ok(());
        }
        Err(denied(self.side, self.failed.unwrap_or(CUT_SHORT)))
    }

    /// An upper bound on the bytes that the decoder allocates at any time: window, tables and
    /// buffers, without the chunk that was fed. The value is constant. The windows and tables of
    /// brotli and zstd, which are by far the largest, are allocated by [`next`](Self::next).
    pub fn memory(&self) -> usize {
        self.out.len().saturating_add(self.encoding.memory())
    }

    fn step(&mut self, most: usize) -> Result<Progress, Denial> {
        let step = match self.failed {
            Some(fault) => Err(fault),
            None => self.decode(most),
        };
        step.map_err(|fault| denied(self.side, self.failed.insert(fault)))
    }

    fn decode(&mut self, most: usize) -> Result<Progress, Fault> {
        let input = self.input.get(..MAX_STEP).unwrap_or(&self.input);
        let room = most.clamp(1, MAX_PIECE);
        let out = self.out.get_mut(..room).unwrap_or_default();
        let step = self.encoding.decode(input, out)?;
        if step.read == 0 && step.written == 0 && !input.is_empty() {
            // The decoder is stuck: the rest of the input would never be decoded.
            return Err(CORRUPT);
        }
        self.read = self.read.saturating_add(step.read as u64);
        self.written = self.written.saturating_add(step.written as u64);
        match self.read > self.most_encoded() {
            true => Err(PADDED),
            false => Ok(step),
        }
    }

    /// The limit on the encoded bytes read so far, which grows with the output.
    fn most_encoded(&self) -> u64 {
        let for_each_byte = match self.side {
            Side::Request => 2,
            // Enough for a stream that flushes after each event, or sends each event as its own
            // gzip member. A flush or a member adds at most about 20 bytes.
            Side::Response => 16,
        };
        let held_back = self.encoding.holds_back() as u64;
        let for_content = self.written.saturating_mul(for_each_byte);
        for_content.saturating_add(held_back + FREE_BYTES)
    }
}

fn denied(side: Side, fault: Fault) -> Denial {
    let body = match side {
        Side::Request => "request",
        Side::Response => "response",
    };
    let sentence = format!("Unsupported encoding: the body of the {body} {fault}");
    Denial::new(Code::UnsupportedEncoding, sentence)
}

fn unknown(side: Side) -> Fault {
    match side {
        Side::Request => "must be plain, or in one of gzip, br and zstd",
        Side::Response => "must be plain, or in one of gzip, deflate, br and zstd",
    }
}

/// Not inlined, since the decoders are built on the stack: their 53 KiB would be in the frame of
/// [`Decoder::of`], which every response calls.
#[inline(never)]
fn named(side: Side, name: &str) -> Option<Box<dyn Encoding>> {
    Some(match name {
        "gzip" | "x-gzip" => Box::new(Gzip::new()),
        // RFC 9110, section 8.4.1.2, defines it as zlib, but some servers send raw deflate. It is
        // ambiguous, so requests may not use it.
        "deflate" if side == Side::Response => Box::<Deflate>::default(),
        "br" => Box::new(Brotli::new(side)),
        "zstd" => Box::new(Zstd::new(side)),
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests;
