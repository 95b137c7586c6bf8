//! What the gateway says of itself to clients and servers.

use serde_json::{Value, json};

/// Our `Implementation`: name and version.
pub fn implementation() -> Value {
    json!({ "name": "unified-proxy", "version": env!("CARGO_PKG_VERSION") })
}
