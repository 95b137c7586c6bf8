//! What operators and clients learn of servers that do not work.

use addons::contract::{Container, Denial};
use addons::mcp::ServerSettings;
use serde_json::{Map, Value};

use super::super::mounts::{MountState, has_no_network, refused_hosts};
use super::view::ToolView;
use super::{Caller, Core, MountError};

/// The member of `_meta` in a list of tools that has the state of each server.
pub const SERVERS: &str = "unified-proxy/servers";
/// The longest reason, in characters.
const MAX_REASON: usize = 500;
/// A reason why a process without hosts may not be ready, in text that begins with its server.
const NO_NETWORK: &str = "it has no `hosts` in mcp.yaml, so it reaches no network; package runners such \
                          as npx and uvx need the hosts of their registry";

impl Core {
    /// The state of each server that the caller sees, why it does not work, and the hosts that were
    /// refused to it; `None` if all are ready and no host was refused. A server whose tools are
    /// missing in `view` is not ready for this container, even if it is for another one.
    pub(super) fn readiness(&self, caller: &Caller, view: &ToolView) -> Option<Value> {
        let mut servers = Map::new();
        let mut is_worth_telling = false;
        for health in self.mounts.health(Some(&caller.container)) {
            let state = match health.state {
                MountState::Ready if !view.has_tools_of(&health.server) => MountState::Connecting,
                state => state,
            };
            is_worth_telling |= state != MountState::Ready || !health.refused_hosts.is_empty();
            let mut server = Map::new();
            server.insert("state".to_owned(), state.as_str().into());
            // A server that works for this container may have failed for another one.
            let works = state != MountState::Dead && view.has_tools_of(&health.server);
            let failure = health.failure.as_deref();
            let failure = failure.map(|failure| failure.chars().take(MAX_REASON).collect());
            let network = health.has_no_network.then(|| NO_NETWORK.to_owned());
            let reasons: Vec<String> = failure.into_iter().chain(network).collect();
            if !works && !reasons.is_empty() {
                server.insert("reason".to_owned(), reasons.join("; ").into());
            }
            if !health.refused_hosts.is_empty() {
                server.insert("refused_hosts".to_owned(), health.refused_hosts.into());
            }
            servers.insert(health.server.to_string(), server.into());
        }
        is_worth_telling.then(|| servers.into())
    }
}

/// The denial for a request that failed at a server. Names the hosts that were refused to it, since
/// they may be the reason.
pub(super) fn denial_of(
    container: &Container,
    settings: &ServerSettings,
    error: MountError,
) -> Denial {
    let may_lack_hosts = matches!(
        error,
        MountError::CannotStart(_) | MountError::Died { .. } | MountError::TimedOut
    );
    let denial = error.into_denial(&settings.name);
    if !may_lack_hosts {
        return denial;
    }
    if has_no_network(settings) {
        let sentence = format!("{}; {NO_NETWORK}", denial.sentence());
        return Denial::new(denial.code(), sentence).with("server", &*settings.name);
    }
    let refused = refused_hosts(container, settings);
    if refused.is_empty() {
        return denial;
    }
    let sentence = format!(
        "{}; hosts that it asked for and that its `hosts` in mcp.yaml do not list: {}",
        denial.sentence(),
        refused.join(", ")
    );
    let denial = Denial::new(denial.code(), sentence).with("server", &*settings.name);
    denial.with("refused_hosts", refused)
}
