//! What passes between a person and the command: exit codes, streams, arguments, the terminal.

mod exit_codes;
mod pipes;
mod pseudo_terminal;
mod terminal;
