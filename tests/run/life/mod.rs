//! Signals to a sandbox, ends of a sandbox, and processes and files that a run must not leave.

mod kills;
mod leftovers;
mod signals;
