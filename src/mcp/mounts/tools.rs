//! Tools as their server lists them, compared with their pins.

use std::collections::HashSet;
use std::sync::Arc;

use super::listed::ListedTool;
use addons::contract::{Code, Definition, Definitions, Denial};
use serde_json::value::RawValue;

use super::MountError;

/// Reads tools. Those that cannot be read, and those whose name an earlier one has, are left out.
/// Where pins cannot be looked up there is no list.
pub(super) async fn pinned(
    server: &str,
    entries: Vec<Box<RawValue>>,
    definitions: &dyn Definitions,
) -> Result<Vec<Arc<Definition>>, MountError> {
    let mut seen = HashSet::new();
    let mut tools = Vec::with_capacity(entries.len());
    for raw in entries {
        let tool = match ListedTool::read(raw) {
            Ok(tool) => tool,
            Err(error) => {
                tracing::warn!(server, %error, "a tool of an MCP server is left out");
                continue;
            }
        };
        if !seen.insert(Arc::clone(tool.name())) {
            tracing::warn!(server, tool = %tool.name(), "an MCP server lists a tool twice");
            continue;
        }
        let pin = definitions.pin(server, tool.name(), tool.digest()).await;
        let unavailable = |_| {
            let sentence = "Tools' definitions cannot be looked up";
            MountError::Denied(Denial::new(Code::RegistryUnavailable, sentence))
        };
        tools.push(Arc::new(tool.pinned(pin.map_err(unavailable)?)));
    }
    Ok(tools)
}
