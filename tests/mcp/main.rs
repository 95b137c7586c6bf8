//! Compatibility of the MCP gateway: the official conformance suite with and without it, real
//! clients with real servers, and an agent with simplified tools.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the wire tests use the rest")]
mod support;

#[path = "../wire/mcp/hostile/server.rs"]
#[allow(dead_code, reason = "the wire tests use the rest")]
mod scripted;

mod differences;
mod gateway;
mod programs;
mod suite;
mod table;
mod tools;

mod approvals;
mod clients;
mod conformance;
mod overrides;
mod tasks;
