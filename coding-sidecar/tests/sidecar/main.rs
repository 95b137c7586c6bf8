//! The real binary over its Unix socket and TCP.

mod access;
mod bounds;
mod commands;
mod leftovers;
mod memory;
mod protocol;
mod start;
mod support;
