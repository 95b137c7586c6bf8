//! `unified-proxy run`, started by an unprivileged user with a home directory and, for some tests,
//! by root. The *launcher* is the process that the user starts. The *appliance* is the private
//! proxy that the launcher starts, unless the run uses a server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/mcp_servers.rs"]
mod mcp_servers;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the wire tests use the rest")]
mod support;

mod agents;
mod attempts;
mod fixture;
mod processes;

mod confinement;
mod life;
mod requests;
mod streams;
mod toolchains;
