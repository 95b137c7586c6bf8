//! Exit codes, messages and output of commands.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::app;
use crate::config::ConfigErrors;
pub(super) use crate::exit_code as code;
pub(super) use crate::runtime::printable;

/// Why a command failed: an exit code and a message.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// A failure because of the arguments, with exit code 64.
    pub fn usage(message: impl Display) -> Self {
        Self::new(code::USAGE, message)
    }

    /// A failure of this program or of the machine, with exit code 70.
    pub fn internal(message: impl Display) -> Self {
        Self::new(code::SOFTWARE, message)
    }

    /// A failure without a message, for commands whose output says why they failed.
    pub fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    /// The message, as the server or the system sent it.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to standard error and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            // A write error is ignored: there is no other output for the message.
            let _ = writeln!(
                io::stderr(),
                "unified-proxy: {}",
                printable_lines(&self.message)
            );
        }
        ExitCode::from(self.code)
    }
}

impl From<app::Failure> for Failure {
    fn from(failure: app::Failure) -> Self {
        Self::new(failure.code(), failure)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(code::CONFIG, errors)
    }
}

/// Prints a line. If the reader has closed the pipe (`| head`), returns a failure with exit code 0,
/// which ends the command.
pub(super) fn print(line: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(unwritten)
}

/// The failure of a command whose output cannot be written: with exit code 0 if the reader has closed
/// the pipe.
pub(super) fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(code::DONE),
        _ => Failure::internal(format_args!("cannot write the output: {error}")),
    }
}

/// Writes a warning to standard error.
pub(super) fn warn(message: impl Display) {
    let text = printable_lines(&message.to_string());
    // A write error is ignored: there is no other output for the warning.
    let _ = writeln!(io::stderr(), "unified-proxy: warning: {text}");
}

fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    lines.join("\n")
}
