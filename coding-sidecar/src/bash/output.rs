//! The output of a command as lines of JSON.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes that are read from a pipe at once, and the most that is held of a stream. As JSON a
/// delta has up to six times as many, where every byte is a control character.
pub const CHUNK_BYTES: usize = 16 * 1024;

/// Which of the two streams a text came from.
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
    /// Output, as it came.
    Delta {
        /// The text; bytes that are not UTF-8 are replaced by U+FFFD.
        data: &'t str,
        /// Where it came from.
        stream: Source,
    },
    /// The command ended, and nothing of it is left.
    #[serde(rename_all = "camelCase")]
    Done {
        /// The code of the shell; 128 and the signal's number where one ended it.
        exit_code: i32,
        /// True where the time limit ended the command.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        timed_out: bool,
    },
    /// The command ended and there is no code, or it never began.
    Error {
        /// Why.
        message: &'t str,
    },
}

impl Line<'_> {
    /// The line with its newline.
    pub fn encode(&self) -> Bytes {
        // Fails for maps whose keys are not texts; there is none here.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// One stream of a command.
pub struct Output<R> {
    pipe: R,
    source: Source,
    buffer: Box<[u8]>,
    /// Bytes at the beginning of `buffer` that begin a character whose rest was not read yet.
    held: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Output<R> {
    /// The stream that `pipe` reads.
    pub fn new(pipe: R, source: Source) -> Self {
        Self {
            pipe,
            source,
            buffer: vec![0; CHUNK_BYTES].into(),
            held: 0,
            ended: false,
        }
    }

    /// Whether there is no more.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The next text as a line, or `None` at the end. Cancellation safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            let free = self.buffer.get_mut(self.held..).unwrap_or_default();
            // An error of a pipe is as final as its end.
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

/// The text of `bytes`, and how many of the last bytes begin a character that goes on in later ones;
/// there are none `at_end`.
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

    /// The text of all deltas that a pipe with these reads gives.
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
    fn characters_survive_the_borders_of_reads_and_other_bytes_are_replaced() {
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
        fn however_it_is_cut_the_text_is_that_of_the_whole(
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
