//! `mcp.yaml`, which a later version reads: here only its outline is checked.

use addons::contract::settings::{Document, check_version};

/// The keys of `mcp.yaml` itself.
const KEYS: [&str; 8] = [
    "mcpServers",
    "overrides",
    "policies",
    "mcp_hosts",
    "approvals",
    "context",
    "tokens",
    "version",
];

/// The keys that files of the polis gateway have besides.
const POLIS_KEYS: [&str; 4] = ["tools", "secrets", "interceptor_addr", "mcp_server_addr"];

/// Checks the outline of the file, if it is there, and warns that nothing of it is in force.
pub fn check(document: &Document<'_>) {
    if document.is_absent() {
        return;
    }
    if let Some(fields) = document.root().and_then(|root| root.fields()) {
        if let Some(version) = fields.find("version") {
            check_version(&version);
        }
        for key in KEYS.into_iter().chain(POLIS_KEYS) {
            fields.find(key);
        }
    }
    document.refuse_unknown_keys();
    document
        .report()
        .warn("the MCP gateway is not part of this version: nothing in this file is in force");
}
