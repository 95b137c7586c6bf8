//! Exit codes, streams, arguments and the terminal of a command.

mod exit_codes;
mod pipes;
mod pseudo_terminal;
mod terminal;
