//! Tests of the engine's parts, without a running `unified-proxy serve`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test's helpers fail by panicking"
)]

mod children;
mod command_policy;
mod layers;
mod loopback;
mod mcp_http;

mod admin;
mod approvals;
mod config;
mod dependencies;
mod dial;
mod dns;
mod dns_bounds;
mod dns_https;
mod learning;
mod live_grants;
mod policy_changes;
mod registry;
mod resolve;
mod waiting;
