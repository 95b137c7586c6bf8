//! Addons in a chain, as the engine builds it, and guarantees of the whole crate.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test's helpers fail by panicking"
)]

#[path = "../decode/bodies.rs"]
mod bodies;
#[path = "../fixtures/mod.rs"]
mod fixtures;
#[path = "../whole_chain/mod.rs"]
mod whole_chain;

mod chain;
mod decoding;
mod example_addon;
mod github;
mod purity;
mod standard_chain;
