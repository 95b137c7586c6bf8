//! Capabilities and instructions of the gateway for one client, combined from those of the servers
//! that the client sees.

use std::sync::Arc;

use addons::mcp::looks_like_instruction;
use addons::raw_json::{Members, ObjectText};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::super::tasks::TASKS_EXTENSION;
use super::lease::Lease;
use super::lists::LIST_TIMEOUT;
use super::params::edit;
use super::{Caller, Core, Described, Era, MAX_INSTRUCTIONS, Mount};

/// Capabilities and instructions, as one client gets them.
#[derive(Clone, Debug)]
pub struct Description {
    /// `ServerCapabilities`.
    pub capabilities: Box<RawValue>,
    /// Instructions for the model.
    pub instructions: Option<String>,
}

impl Core {
    /// Describes the servers that a client sees. Waits at most `LIST_TIMEOUT` for servers that are
    /// being started.
    pub async fn describe(self: &Arc<Self>, caller: &Arc<Caller>) -> Description {
        let mounts = self.mounts.of(&caller.container);
        let described = mounts.iter().map(|mount| self.described(caller, mount));
        let described: Vec<_> = join_all(described).await;
        for (mount, described) in mounts.iter().zip(&described) {
            let text = described
                .as_ref()
                .and_then(|one| one.instructions.as_deref());
            self.flag(caller, mount, text.unwrap_or_default());
        }
        let mut instructions = match &described[..] {
            [Some(sole)] => sole.instructions.clone(),
            _ => {
                let named = mounts
                    .iter()
                    .zip(&described)
                    .filter_map(|(mount, described)| {
                        let text = described.as_ref()?.instructions.as_ref()?;
                        Some(format!("{}:\n{text}", mount.settings().name))
                    });
                let joined = named.collect::<Vec<_>>().join("\n\n");
                (!joined.is_empty()).then_some(joined)
            }
        };
        if let Some(text) = &mut instructions {
            text.truncate(text.floor_char_boundary(MAX_INSTRUCTIONS));
        }
        Description {
            capabilities: union(&described),
            instructions,
        }
    }

    /// If a server's instructions look like an attack, writes an audit record of a handshake with
    /// that server, marked as suspicious.
    fn flag(&self, caller: &Caller, mount: &Mount, instructions: &str) {
        let end = instructions.floor_char_boundary(MAX_INSTRUCTIONS);
        if !looks_like_instruction(instructions.get(..end).unwrap_or_default()) {
            return;
        }
        let method = match caller.version.era() {
            Era::Legacy => "initialize",
            Era::Modern => "server/discover",
        };
        let chain = (self.rules)().chain;
        let server = Some(&mount.settings().name);
        let mut live = self.flow(&chain, caller, &method.into(), server, None);
        live.flow.mcp_record().suspicious = true;
        live.answered(200);
        live.complete();
    }

    /// The description of one server. If no session can be opened in time, returns the last known
    /// description; `None` if no session was ever opened.
    async fn described(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Option<Arc<Described>> {
        let lease = Lease::of(&caller.container);
        let server = Arc::clone(&mount.settings().name);
        let known = || mount.known(&caller.container).described;
        if lease.is_slow(&server) {
            return known();
        }
        match timeout(LIST_TIMEOUT, self.session(caller, mount)).await {
            Ok(Ok(pooled)) => Some(Arc::new(pooled.session.described().clone())),
            _ => known(),
        }
    }
}

/// The capabilities that at least one server has. Extensions and experimental capabilities are
/// included only if there is a sole server. A server whose capabilities are not known counts as
/// having lists of tools, prompts and resources.
fn union(servers: &[Option<Arc<Described>>]) -> Box<RawValue> {
    let known = servers.iter().flatten();
    let known = known.map(|server| Members::read(&server.capabilities).unwrap_or_default());
    let known: Vec<_> = known.collect();
    let is_any_unknown = known.len() < servers.len();
    let any = |key: &str| known.iter().any(|has| has.get(key).is_some());
    let subscribe = known.iter().any(|has| {
        let resources = has.members("resources").ok().flatten();
        resources.is_some_and(|resources| resources.get("subscribe") == Some("true"))
    });
    let sole = known.first().filter(|_| servers.len() == 1);
    let mut object = ObjectText::default();
    if let Some(experimental) = sole.and_then(|sole| sole.get("experimental")) {
        object.member("experimental", experimental);
    }
    let list_changed = "{\"listChanged\":true}";
    let resources = match subscribe {
        true => "{\"subscribe\":true,\"listChanged\":true}",
        false => list_changed,
    };
    for (has_it, key, value) in [
        (any("logging"), "logging", "{}"),
        (any("completions"), "completions", "{}"),
        (is_any_unknown || any("prompts"), "prompts", list_changed),
        (is_any_unknown || any("resources"), "resources", resources),
        (is_any_unknown || any("tools"), "tools", list_changed),
    ] {
        if has_it {
            object.member(key, value);
        }
    }
    if let Some(Ok(Some(extensions))) = sole.map(|sole| sole.members("extensions")) {
        let extensions = edit(&extensions, &[(TASKS_EXTENSION, None)]);
        object.member("extensions", &extensions);
    }
    // The object consists of JSON texts, so it always parses.
    RawValue::from_string(object.end()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
