//! The real binary over its Unix socket and TCP.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod access;
mod bounds;
mod commands;
mod leftovers;
mod memory;
mod protocol;
mod start;
mod support;
