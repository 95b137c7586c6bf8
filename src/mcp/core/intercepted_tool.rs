//! The tool about which another gateway or a hook asks.

use std::sync::Arc;

use addons::contract::{
    Annotations, CLAUDE_CODE, Code, Definition, Denial, HeldMemory, INTERCEPTOR, McpTarget, Pin,
};
use addons::json::Members;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::super::contexts::Tool;
use super::params::quote;
use super::{Caller, Core, List};

/// The longest name of a tool, in bytes.
const MAX_NAME: usize = 256;
/// The longest params that are read on the connection's thread, in bytes.
const READ_IN_PLACE: usize = 64 * 1024;
/// A tool of Docker's gateway that calls another tool, which its arguments name. It is never judged
/// itself, but as the tool that it calls.
pub const EXEC: &str = "mcp-exec";

/// The server and the definition of a tool.
#[derive(Clone)]
pub(super) struct Found {
    pub server: Arc<str>,
    pub definition: Arc<Definition>,
    /// Whether the file or a server's list names the tool.
    is_known: bool,
}

impl Found {
    /// The params with the server's own name of the tool. Long ones are read on a blocking thread.
    pub async fn params(&self, params: Option<Box<RawValue>>) -> Result<Box<RawValue>, Denial> {
        let params = params.ok_or_else(|| Denial::malformed("the call has no params"))?;
        if params.get().len() <= READ_IN_PLACE {
            return self.renamed(&params);
        }
        let found = self.clone();
        let renamed = tokio::task::spawn_blocking(move || found.renamed(&params));
        renamed.await.unwrap_or_else(|_| Err(Denial::internal()))
    }

    pub fn renamed(&self, params: &RawValue) -> Result<Box<RawValue>, Denial> {
        let members = Members::read(params).map_err(Denial::malformed)?;
        let name = quote(&self.definition.name);
        RawValue::from_string(members.with("name", &name)).map_err(Denial::malformed)
    }

    pub fn target(&self) -> McpTarget {
        McpTarget::Tool {
            server: Arc::clone(&self.server),
            name: Arc::clone(&self.definition.name),
        }
    }

    pub fn label(&self) -> Option<(Arc<str>, Arc<str>)> {
        let names = (Arc::clone(&self.server), Arc::clone(&self.definition.name));
        self.is_known.then_some(names)
    }
}

impl Core {
    /// Finds the tool that a caller names: one of a configured server by its exposed name, or else one
    /// of a built-in server. Denies a name with the prefix of a configured server that lists no such
    /// tool for the container.
    pub(super) async fn find(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        tool: &Tool,
    ) -> Result<Found, Denial> {
        let (name, own) = match tool {
            Tool::OfClaudeCode(name) => (name, CLAUDE_CODE),
            Tool::Named(name) => (name, INTERCEPTOR),
        };
        let is_name = name.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || name.len() > MAX_NAME || !is_name {
            let what = "the tool's name must have 1 to 256 visible ASCII characters";
            return Err(Denial::malformed(what));
        }
        let settings = (self.rules)().settings;
        if own == INTERCEPTOR {
            if **name == *EXEC {
                return Err(Denial::malformed(
                    "mcp-exec does not say which tool it calls",
                ));
            }
            if let Some(found) = self.find_listed(caller, name).await {
                return Ok(found);
            }
            let begins = |prefix: &str| {
                let start = name.get(..prefix.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            };
            let mut servers = settings.servers.values();
            if let Some(server) = servers.find(|server| begins(&server.prefix)) {
                let server = &server.name;
                let sentence = format!("Unknown tool: {name}; {server} does not list it");
                return Err(Denial::new(Code::ToolNotFound, sentence)
                    .hint("list the tools: unified-proxy mcp list"));
            }
            if settings.interceptor.denies(name) {
                let reason = format!("{name} changes the gateway that runs the tools");
                let sentence = format!("Denied by policy: {reason}");
                return Err(Denial::new(Code::PolicyDeniedContinue, sentence)
                    .with("reason", reason)
                    .rule("interceptor.allow")
                    .hint("list it under interceptor.allow in mcp.yaml"));
            }
        }
        let (server, name): (Arc<str>, Arc<str>) = (own.into(), (&**name).into());
        let key = (Arc::clone(&server), Arc::clone(&name));
        Ok(Found {
            is_known: settings.overrides.contains_key(&key),
            definition: unlisted(name)?,
            server,
        })
    }

    async fn find_listed(self: &Arc<Self>, caller: &Arc<Caller>, name: &str) -> Option<Found> {
        let mut tool = self.find_tool(caller, name, false).await;
        if tool.is_none() && self.mount_for(caller, List::Tools, name, None).is_some() {
            self.started(caller, List::Tools, name, None).await;
            tool = self.find_tool(caller, name, true).await;
        }
        let tool = tool?;
        Some(Found {
            server: Arc::clone(&tool.settings.name),
            definition: tool.definition,
            is_known: true,
        })
    }
}

/// The definition of a tool that no server lists. Without hints, it counts as reaching the open world.
fn unlisted(name: Arc<str>) -> Result<Arc<Definition>, Denial> {
    let raw = to_raw_value(&json!({ "name": &*name })).map_err(Denial::malformed)?;
    Ok(Arc::new(Definition {
        name,
        raw,
        may_name_fields: false,
        annotations: Annotations::default(),
        pin: Pin::Accepted,
        memory: HeldMemory::default(),
    }))
}
