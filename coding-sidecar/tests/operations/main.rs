//! The file operations below a workspace root: results, refusals and bounds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod again;
mod fixture;

mod bounds;
mod editing;
mod escapes;
mod finding;
mod listing;
mod permissions;
mod races;
mod reading;
mod searching;
mod trees;
mod writing;
