//! Policies as a command: real processes in real sandboxes.

mod decisions;
mod fixture;
mod processes;
mod turns;
