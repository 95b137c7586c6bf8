//! Who we are to clients.

use serde_json::{Value, json};

/// Our name and version.
pub fn server_info() -> Value {
    json!({ "name": "unified-proxy", "version": env!("CARGO_PKG_VERSION") })
}
