//! Sandboxes of `scripts/sandbox`, the real binary and an origin, in separate network namespaces.
//! The tests need root; if they cannot run, the summary that `scripts/test` prints has the reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/mcp_servers.rs"]
mod mcp_servers;
#[path = "../run/streams/pseudo_terminal.rs"]
#[allow(dead_code, reason = "the tests of run use the rest")]
mod pseudo_terminal;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the wire tests use the rest")]
mod support;

mod attempts;
mod engine;
mod escalations;
mod fixture;
mod machine;
mod summary;

mod compose;
mod docker;
mod files;
mod image;
mod isolation;
mod life;
mod mcp;
mod proxy;
mod redteam;
mod reuse;
mod terminal;
