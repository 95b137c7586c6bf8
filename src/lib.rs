//! The engine of unified-proxy. It handles connections and protocols; the crate `addons` decides
//! what is permitted.
//!
//! The binary is a thin `main` over this library, which also gives tests and fuzz targets access to
//! the parsers of untrusted input.

pub mod admin;
pub mod app;
pub mod approvals;
pub mod cli;
pub mod config;
pub mod dns;
mod exit_code;
pub mod http;
pub mod ingress;
pub mod mcp;
pub mod registry;
mod runtime;
pub mod sandbox;
mod secret_files;
pub mod snapshot;
mod sqlite;
pub mod telemetry;
pub mod tls;
pub mod upstream;
