//! Keys of MCP clients that have no effect in a gateway.

use super::coding;
use crate::contract::settings::{Fields, Setting};

/// Keys of a file that are for its readers and editors.
const FOR_READERS: [&str; 4] = ["$schema", "_comment", "//", "description"];
/// Keys that MCP clients read beside the servers.
const OF_FILES: [&str; 4] = ["globalShortcut", "inputs", "preferences", "sandbox"];
/// Keys that MCP clients read in a server's entry.
const OF_SERVERS: [&str; 35] = [
    "alwaysAllow",
    "alwaysLoad",
    "authProviderType",
    "autoApprove",
    "autoStart",
    "cwdPolicy",
    "default_tools_approval_mode",
    "dev",
    "disabled_tools",
    "disabledTools",
    "displayName",
    "enabled_tools",
    "enabledTools",
    "excludeTools",
    "gallery",
    "icon",
    "includeTools",
    "initializationOptions",
    "oauth",
    "oauth_resource",
    "sandbox",
    "sandboxEnabled",
    "scopes",
    "startup_timeout_ms",
    "startup_timeout_sec",
    "supports_parallel_tool_calls",
    "targetAudience",
    "targetServiceAccount",
    "tool_timeout_sec",
    "tools",
    "transportType",
    "trust",
    "version",
    "watch",
    "watchPaths",
];
/// Such keys that are errors in the entry of a coding sidecar, where they would be misplaced.
const NOT_OF_SIDECARS: [&str; 2] = ["auth", "required"];
/// Keys of a server's entry without which the server might not work, each with what to write instead.
const REPLACED: [(&str, &str); 5] = [
    ("bearer_token_env_var", HEADERS),
    ("env_http_headers", HEADERS),
    ("env_vars", "env: { NAME: \"${NAME}\" }"),
    ("envFile", "the variables of the file under env"),
    ("headersHelper", HEADERS),
];
const HEADERS: &str = "headers, such as { Authorization: \"Bearer ${TOKEN}\" }";

/// Claims the keys of a file that have no effect, and warns of those that have one in MCP clients.
pub(super) fn ignore_in_file(fields: &Fields<'_>) {
    for key in FOR_READERS {
        fields.find(key);
    }
    ignore(fields, &OF_FILES);
}

/// As [`ignore_in_file`], for the entry of a server.
pub(super) fn ignore_in_server(fields: &Fields<'_>) {
    for key in FOR_READERS {
        fields.find(key);
    }
    ignore(fields, &OF_SERVERS);
    if !coding::is_sidecar(fields) {
        ignore(fields, &NOT_OF_SIDECARS);
    }
    for (key, instead) in REPLACED {
        if let Some(at) = fields.find(key) {
            let message =
                format!("the gateway does not read {key} of MCP clients: write {instead}");
            at.report().warn_at(at.place(), message);
        }
    }
}

/// Claims keys, and warns of those that are present.
fn ignore(fields: &Fields<'_>, keys: &[&'static str]) {
    for &key in keys {
        if let Some(at) = fields.find(key) {
            let message = format!("{key} is a setting of MCP clients: the gateway ignores it");
            at.report().warn_at(at.place(), message);
        }
    }
}

/// Warns of a value that is a variable as only some clients write it, such as `$NAME`.
pub(super) fn warn_of_bare_variable(at: &Setting<'_>, text: &str) {
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(fits)
    };
    let name = text.strip_prefix('$');
    if name.is_some_and(is_name) && at.expanded().is_empty() {
        let message = "the value is $ and a name, and is passed as it is: write ${NAME} for the value \
                       of a variable";
        at.report().warn_at(at.place(), message);
    }
}
