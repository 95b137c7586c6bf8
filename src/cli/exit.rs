//! How a command ends.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

pub(super) use crate::exit_code as code;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// A failure with its exit code, and what to say about it.
    pub fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// A failure that is the fault of this program or its machine.
    pub fn internal(message: impl Display) -> Self {
        Self::new(code::SOFTWARE, message)
    }

    /// Nothing more to say: the output said it.
    pub fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Says it on stderr.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            // Nobody to tell, if this fails.
            let lines: Vec<_> = self.message.lines().map(printable).collect();
            let _ = writeln!(io::stderr(), "unified-proxy: {}", lines.join("\n"));
        }
        ExitCode::from(self.code)
    }
}

/// Prints a line. A reader that has gone away (`| head`) ends the command, and is no failure.
pub(super) fn print(line: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(code::DONE),
        _ => Failure::new(
            code::SOFTWARE,
            format_args!("cannot write the output: {error}"),
        ),
    })
}

/// Says on stderr what deserves a word and ends nothing.
pub(super) fn warn(message: impl Display) {
    // Nobody to tell, if this fails.
    let _ = writeln!(io::stderr(), "unified-proxy: warning: {message}");
}

/// What comes from a sandbox is never let loose on a terminal: control characters, and those
/// that change the direction of text, are written as escapes.
pub(super) fn printable(text: &str) -> String {
    let is_harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => clean.extend(c.escape_unicode()),
            false => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_a_sandbox_reaches_the_terminal_as_a_command() {
        assert_eq!(
            printable("/a\x1b[2J\r\u{202e}é"),
            "/a\\u{1b}[2J\\u{d}\\u{202e}é"
        );
    }
}
