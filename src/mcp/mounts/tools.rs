//! Reads the tools that a server lists, and compares them with the accepted definitions.

use std::collections::HashSet;
use std::sync::Arc;

use addons::contract::{Code, Definition, Definitions, Denial, HeldMemory, ListedDefinition, Pin};
use addons::mcp::ListedTool;
use serde_json::value::RawValue;

use super::MountError;
use crate::mcp::warnings::{Subject, excerpt, warn};

/// Reads tools and compares them with the accepted ones in `definitions`; without `definitions`,
/// all are accepted. Leaves out tools that cannot be read, tools that `check` refuses and repeated
/// names. Each tool holds the memory of the list. Fails if the accepted definitions cannot be read
/// or written.
pub(super) async fn pinned(
    server: &str,
    entries: Vec<Box<RawValue>>,
    check: impl Fn(&RawValue) -> Result<(), String>,
    definitions: Option<&dyn Definitions>,
    memory: &HeldMemory,
) -> Result<Vec<Arc<Definition>>, MountError> {
    let mut seen = HashSet::new();
    let mut listed = Vec::with_capacity(entries.len());
    for raw in entries {
        let checked = check(&raw);
        let tool = match ListedTool::read(raw) {
            Ok(tool) => tool,
            Err(error) => {
                warn(server, Subject::Tool, |left_out| {
                    tracing::warn!(server, left_out, %error, "a tool of an MCP server is left out");
                });
                continue;
            }
        };
        if let Err(reason) = checked {
            warn(server, Subject::Tool, |left_out| {
                let (tool, reason) = (tool.name(), excerpt(&reason));
                tracing::warn!(server, left_out, %tool, reason, "a tool of an MCP server is left out");
            });
            continue;
        }
        if !seen.insert(Arc::clone(tool.name())) {
            warn(server, Subject::Tool, |left_out| {
                tracing::warn!(
                    server, left_out, tool = %tool.name(),
                    "an MCP server lists a tool twice: the second definition is left out"
                );
            });
            continue;
        }
        listed.push(tool);
    }
    let pins = match definitions {
        Some(definitions) => {
            let compared = listed.iter_mut().map(|tool| ListedDefinition {
                tool: Arc::clone(tool.name()),
                digest: tool.digest(),
                text: tool.take_pinned_members(),
            });
            let pins = definitions.pin(server, compared.collect()).await;
            pins.map_err(|_unavailable| {
                let sentence = "Tools' accepted definitions cannot be read or written";
                MountError::Denied(Denial::new(Code::RegistryUnavailable, sentence))
            })?
        }
        None => vec![Pin::Accepted; listed.len()],
    };
    let tools = listed.into_iter().zip(pins).map(|(tool, pin)| {
        let memory = memory.clone();
        Arc::new(Definition {
            memory,
            ..tool.pinned(pin)
        })
    });
    Ok(tools.collect())
}
