//! The chain that every flow passes, and the contract it stands on.
//!
//! Decisions only: nothing in this crate opens a socket, a database or a TLS session. What an
//! addon needs from outside is a small trait that the engine implements.
#![deny(missing_docs)]

#[cfg(test)]
extern crate self as addons;

pub mod contract;
pub mod credentials;
pub mod identity;
pub mod policy;
pub mod rate_limit;

#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
mod fold;
