//! Encodes the output of a command as lines of JSON.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The most bytes of a stream that are read at once and held. The JSON of a delta has up to six
/// times as many, if every byte is a control character.
pub const CHUNK_BYTES: usize = 16 * 1024;

/// The stream from which a text was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of the response.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line<'t> {
    /// A piece of the output.
    Delta {
        /// The text; bytes that are not UTF-8 are replaced by U+FFFD.
        data: &'t str,
        /// The stream from which it was read.
        stream: Source,
    },
    /// The command has ended. Its descendants were killed, except any that belong to another user
    /// or wait for a device.
    #[serde(rename_all = "camelCase")]
    Done {
        /// The exit code of the shell, or 128 + the number of the signal that ended it.
        exit_code: i32,
        /// Whether the time limit ended the command.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        timed_out: bool,
    },
    /// The command could not be started, its exit code is unknown, or the sidecar is shutting down.
    Error {
        /// The reason.
        message: &'t str,
    },
}

impl Line<'_> {
    /// Encodes the line as JSON, with a final newline.
    pub fn encode(&self) -> Bytes {
        // Fails only for a map with keys that are not strings; a line has no map.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// Reads one output stream of a command.
pub struct Output<R> {
    pipe: R,
    source: Source,
    buffer: Box<[u8]>,
    /// The number of bytes at the start of `buffer` that begin a character whose rest was not read
    /// yet.
    held: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Output<R> {
    /// Creates a reader of `pipe`. Its lines name `source` as the stream.
    pub fn new(pipe: R, source: Source) -> Self {
        Self {
            pipe,
            source,
            buffer: vec![0; CHUNK_BYTES].into(),
            held: 0,
            ended: false,
        }
    }

    /// Whether the stream has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Reads the next text and encodes it as a line; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            let free = self.buffer.get_mut(self.held..).unwrap_or_default();
            // An error of the pipe counts as its end.
            let read = self.pipe.read(free).await.unwrap_or(0);
            self.ended = read == 0;
            let filled = self.held.saturating_add(read);
            let bytes = self.buffer.get(..filled).unwrap_or_default();
            let (text, held) = decode(bytes, self.ended);
            let line = (!text.is_empty()).then(|| {
                let delta = Line::Delta {
                    data: &text,
                    stream: self.source,
                };
                delta.encode()
            });
            let rest = filled.saturating_sub(held);
            self.buffer.copy_within(rest..filled, 0);
            self.held = held;
            if line.is_some() {
                return line;
            }
        }
        None
    }
}

/// Decodes UTF-8, with U+FFFD for invalid bytes. Returns the text, and the number of final bytes
/// that begin an incomplete character. If `at_end`, such bytes count as invalid, and the number is
/// 0.
fn decode(bytes: &[u8], at_end: bool) -> (Cow<'_, str>, usize) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return (text.into(), 0);
    }
    let mut text = String::with_capacity(bytes.len());
    let mut held = 0;
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        let incomplete =
            std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if incomplete && !at_end && chunks.peek().is_none() {
            held = invalid.len();
        } else if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    (text.into(), held)
}

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;
    use serde_json::Value;
    use testkit::each_row;

    use super::*;

    /// Reads these pieces from a pipe, and joins the texts of the deltas.
    fn text_of(reads: &[&[u8]]) -> String {
        let mut pipe = tokio_pipe(reads);
        let mut text = String::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            while let Some(line) = pipe.next().await {
                let line: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(line["type"], "delta");
                assert_eq!(line["stream"], "stderr");
                text.push_str(line["data"].as_str().unwrap());
            }
        });
        assert!(pipe.ended());
        text
    }

    fn tokio_pipe<'t>(reads: &'t [&'t [u8]]) -> Output<impl AsyncRead + Unpin + 't> {
        let empty: Box<dyn AsyncRead + Unpin> = Box::new(tokio::io::empty());
        let pipe = reads.iter().rev().fold(empty, |rest, read| {
            Box::new(io::Cursor::new(read.to_vec()).chain(rest))
        });
        Output::new(pipe, Source::Stderr)
    }

    #[test]
    fn characters_split_over_reads_are_joined_and_invalid_bytes_are_replaced() {
        let rows: [(&[&[u8]], &str); 9] = [
            (&[], ""),
            (&[b"plain"], "plain"),
            (&["\u{e9}t\u{e9}\n".as_bytes()], "\u{e9}t\u{e9}\n"),
            (&[b"\xc3", b"\xa9"], "\u{e9}"),
            (&[b"a\xf0", b"\x9f", b"\x98", b"\x80b"], "a\u{1f600}b"),
            (&[b"\xff\xfe"], "\u{fffd}\u{fffd}"),
            (&[b"cut \xe2\x82"], "cut \u{fffd}"),
            (&[b"\xe2\x82", b"x"], "\u{fffd}x"),
            (&[b"\0\x1b[0m\"\\"], "\0\x1b[0m\"\\"),
        ];
        each_row(rows, |(reads, text)| assert_eq!(text_of(reads), text));
    }

    proptest! {
        #[test]
        fn the_text_does_not_depend_on_the_boundaries_of_reads(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0xe0_u8..0xf4, 0x80_u8..0xbf], 0..200),
            cuts in prop::collection::vec(0..200_usize, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let reads: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(text_of(&reads), String::from_utf8_lossy(&bytes));
        }
    }
}
