//! The gateway's description of itself for clients and servers.

use serde_json::{Value, json};

/// The gateway's `Implementation`: name and version.
pub fn implementation() -> Value {
    json!({ "name": "unified-proxy", "version": env!("CARGO_PKG_VERSION") })
}
