//! Reads messages from stdin and writes messages to stdout, one per line, on separate threads. A
//! read of stdin cannot be cancelled. On a thread of the runtime, it would therefore delay the end
//! of the program.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::cli::mcp::http_client::MAX_MESSAGE;

/// Limit on the lines that wait to be handled, and on those that wait to be written. At the limit,
/// the reading thread or [`Output::message`] waits.
const QUEUE: usize = 64;

/// A line of stdin.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// The text of a line, not parsed yet.
    Text(Vec<u8>),
    /// A line over [`MAX_MESSAGE`], which was skipped.
    TooLong,
}

/// Starts the reading thread and returns the lines of stdin. The channel closes at the end of
/// stdin.
pub fn read_stdin() -> io::Result<mpsc::Receiver<Line>> {
    let (sender, lines) = mpsc::channel(QUEUE);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut input = BufReader::new(io::stdin());
            while let Some(line) = read_line(&mut input, MAX_MESSAGE) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
    Ok(lines)
}

/// Reads the next line that is not empty; `None` at the end of the input and after a read error.
fn read_line(input: &mut impl BufRead, most: usize) -> Option<Line> {
    loop {
        let mut line = Vec::new();
        let limit = (most as u64).saturating_add(1);
        input
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut line)
            .ok()?;
        if line.is_empty() {
            return None;
        }
        if line.last() != Some(&b'\n') && line.len() > most {
            skip_line(input)?;
            return Some(Line::TooLong);
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            return Some(Line::Text(text.to_vec()));
        }
    }
}

fn skip_line(input: &mut impl BufRead) -> Option<()> {
    loop {
        let buffer = input.fill_buf().ok()?;
        if buffer.is_empty() {
            return Some(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(buffer.len(), |end| end.saturating_add(1));
        input.consume(length);
        if end.is_some() {
            return Some(());
        }
    }
}

/// Writes messages to stdout.
#[derive(Clone)]
pub struct Output(mpsc::Sender<Vec<u8>>);

impl Output {
    /// Starts the writing thread. The receiver resolves when every `Output` is dropped and all
    /// messages are written, or when stdout is closed.
    pub fn start() -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (sender, mut lines) = mpsc::channel::<Vec<u8>>(QUEUE);
        let (done, finished) = oneshot::channel();
        thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || {
                let mut output = io::stdout().lock();
                while let Some(line) = lines.blocking_recv() {
                    let written = output.write_all(&line).and_then(|()| output.flush());
                    if written.is_err() {
                        break;
                    }
                }
                let _ = done.send(());
            })?;
        Ok((Self(sender), finished))
    }

    /// Writes one message. Replaces line ends with spaces. This keeps the message's meaning, since
    /// line ends occur in JSON only between tokens.
    pub async fn message(&self, text: impl Into<Vec<u8>>) {
        let mut line = text.into();
        for byte in &mut line {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        // Fails only if stdout is closed. That also ends the program.
        let _ = self.0.send(line).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_message_or_too_long_and_empty_lines_are_skipped() {
        let input = b"one\r\n\n  \n123456\n12345678\n1234567\n1234567\nlast";
        for capacity in 1..10 {
            let mut input = BufReader::with_capacity(capacity, &input[..]);
            let lines: Vec<_> = std::iter::from_fn(|| read_line(&mut input, 6)).collect();
            let text = |text: &str| Line::Text(text.into());
            let expected = [
                text("one"),
                text("123456"),
                Line::TooLong,
                Line::TooLong,
                Line::TooLong,
                text("last"),
            ];
            assert_eq!(lines, expected, "{capacity}");
        }
    }
}
