//! `_meta` of requests that the gateway itself sends in the modern era.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Version;
use crate::mcp::implementation::implementation;

/// The `_meta` of a request that the gateway itself sends.
pub(super) fn of_request(version: Version, capabilities: &RawValue) -> Value {
    // The gateway parsed the capabilities when the client sent them, so this never fails.
    let capabilities = serde_json::from_str(capabilities.get()).unwrap_or_else(|_| json!({}));
    json!({
        "io.modelcontextprotocol/protocolVersion": version.as_str(),
        "io.modelcontextprotocol/clientInfo": implementation(),
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}
