//! Tests of the real binary on real sockets, between real clients and a test origin.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../agents/mod.rs"]
mod agents;
#[path = "../../addons/tests/decode/bodies.rs"]
#[allow(
    dead_code,
    reason = "the tests of the decoders use the other functions"
)]
mod bodies;
#[path = "../compatibility/mod.rs"]
mod compatibility;
#[path = "../run/streams/pseudo_terminal.rs"]
#[allow(dead_code, reason = "the tests of run use the rest")]
mod pseudo_terminal;
#[path = "../support/mod.rs"]
mod support;

mod absolute_form;
mod approvals;
mod asking;
mod audit;
mod clients;
mod commands;
mod control_plane;
mod corpus;
mod credentials;
mod denials;
mod destinations;
mod dev;
mod dialling;
mod disconnects;
mod distrust;
mod dns;
mod dns_https;
mod documents;
mod environment;
mod floods;
mod framing;
mod git;
mod git_limits;
mod github;
mod github_nodes;
mod guarded;
mod identity;
mod idle;
mod inspection;
mod lfs;
mod limits;
mod listener;
mod mcp;
mod mcp_stdio;
mod mcp_tour;
mod migration;
mod nameservers;
mod oauth;
mod oauth_claude;
mod oauth_files;
mod oauth_github_app;
mod observability;
mod packaging;
mod readme;
mod rebinding;
mod reload;
mod rules;
mod security_map;
mod servers;
mod streaming;
mod survival;
mod traces;
mod upstream;
mod verification;
mod websockets;
