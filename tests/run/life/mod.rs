//! How a sandbox lives and ends.

mod kills;
mod leftovers;
mod signals;
