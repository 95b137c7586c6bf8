//! What a request of the modern era says of its client.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Version;

/// What we say of ourselves.
pub(super) fn our_info() -> Value {
    json!({ "name": "unified-proxy", "version": env!("CARGO_PKG_VERSION") })
}

/// The `_meta` of a request of our own.
pub(super) fn of_request(version: Version, capabilities: &RawValue) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version.as_str(),
        "io.modelcontextprotocol/clientInfo": our_info(),
        "io.modelcontextprotocol/clientCapabilities": parsed(capabilities),
    })
}

/// Capabilities as a value. They were checked when they came.
pub(super) fn parsed(capabilities: &RawValue) -> Value {
    serde_json::from_str(capabilities.get()).unwrap_or_else(|_| json!({}))
}
