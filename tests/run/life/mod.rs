//! Signals to a sandbox, its end, and that nothing is left of it.

mod kills;
mod leftovers;
mod signals;
