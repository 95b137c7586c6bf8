//! The real binary on real sockets, before a real origin and real clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has said what it had to say"
)]

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod control_plane;
mod credentials;
mod destinations;
mod dns;
mod framing;
mod house;
mod identity;
mod oauth;
mod oauth_files;
mod oauth_github_app;
mod observability;
mod streaming;
mod survival;
mod upstream;
