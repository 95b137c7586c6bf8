//! Between clients of either era and servers of either era: which server a message is for, what
//! clients see of all servers together, and the chain's verdict on every message.
//!
//! Nothing here knows of HTTP or of processes. [`Core::request`] takes a client's request and
//! returns its answer; [`Core::attach`] tells a client what belongs to no request of its own.
//! Dropping the future of a request cancels it at the server.
//!
//! | client | server | bridged by |
//! | --- | --- | --- |
//! | legacy | legacy | nothing |
//! | modern | modern | nothing |
//! | legacy | modern | `input`: an `input_required` result becomes requests to the client, and the call is repeated with its answers; `listen`: subscriptions |
//! | modern | legacy | `results`: members that the newer revision wants. Requests of the server are events, which the gateway answers `input_required` for |

mod attached;
mod attachment;
mod describe;
mod exchange;
mod execution;
mod extension;
mod input;
mod known_sessions;
mod lease;
mod listen;
mod lists;
mod params;
mod relay;
mod resources;
mod results;
mod sessions;
mod target;
mod tools;
mod unsolicited;
mod view;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use addons::contract::{Chain, Denial, LiveFlow, McpSubject, RpcError};
use addons::mcp::{McpMetrics, McpSettings};
use addons::raw_json::Members;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::caller::{Caller, LogLevel};
use super::error::{INVALID_PARAMS, method_not_found, protocol_error, rpc_error};
use super::event::{EVENT_QUEUE, Event, Events};
use super::message::Outcome;
use super::mounts::{
    Catalog, Described, Entry, Known, List, Mount, MountError, Mounts, Origin, Pooled, Unsolicited,
};
use super::version::{Era, Version};

pub use attached::{Filter, Interest, MAX_SUBSCRIPTIONS};
pub use attachment::Attachment;
pub use describe::Description;
pub use lease::MAX_CALLS_PER_LEASE;

use lease::{Lease, too_many};
use lists::Listing;

/// Messages of all clients that may be under way at once.
pub const MAX_CALLS: usize = 8192;

/// What the configuration in force says.
#[derive(Clone)]
pub struct Rules {
    /// Judges messages.
    pub chain: Arc<Chain>,
    /// Which servers there are, and what is changed about their tools.
    pub settings: Arc<McpSettings>,
    /// Every policy could be loaded.
    pub policies_loaded: bool,
}

/// Reads the rules in force.
pub type CurrentRules = Box<dyn Fn() -> Rules + Send + Sync>;

/// Routes, judges and bridges messages.
pub struct Core {
    rules: CurrentRules,
    mounts: Arc<Mounts>,
    metrics: McpMetrics,
    calls: Arc<Semaphore>,
    /// Those whose clients are told of changes.
    watched: Mutex<Vec<Weak<Lease>>>,
    /// Where work goes on that no client waits for.
    runtime: Handle,
    me: Weak<Self>,
}

impl Core {
    /// Whether every policy in force could be loaded.
    pub fn policies_loaded(&self) -> bool {
        (self.rules)().policies_loaded
    }

    /// A core over these mounts. Work that no client waits for runs in the runtime that calls this.
    pub fn new(rules: CurrentRules, mounts: Arc<Mounts>, metrics: McpMetrics) -> Arc<Self> {
        let runtime = Handle::current();
        let core = Arc::new_cyclic(|me: &Weak<Self>| Self {
            rules,
            mounts: Arc::clone(&mounts),
            metrics,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            watched: Mutex::default(),
            runtime,
            me: Weak::clone(me),
        });
        let me: Weak<Self> = Arc::downgrade(&core);
        mounts.follow(me);
        core
    }

    /// The servers.
    pub fn mounts(&self) -> &Arc<Mounts> {
        &self.mounts
    }

    /// Answers a client's request. What the server sends before its answer goes to `events`.
    ///
    /// Dropping the future cancels the request at the server.
    pub async fn request(
        self: Arc<Self>,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        events: Events,
    ) -> Outcome {
        let (caller, method, params) = (&caller, &method, params.as_deref());
        let lease = Lease::of(&caller.container);
        let _ours = lease
            .begin()
            .map_err(|denial| self.refuse(caller, method, None, denial))?;
        let Ok(_all) = Arc::clone(&self.calls).try_acquire_owned() else {
            return Err(self.refuse(caller, method, None, too_many("of all containers")));
        };
        let level = caller.container.level();
        let answer = self.route(caller, method, params, &events).await;
        if caller.container.level() != level {
            lease.changed.tell(List::Tools);
        }
        answer
    }

    async fn route(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        method: &Arc<str>,
        params: Option<&RawValue>,
        events: &Events,
    ) -> Outcome {
        let legacy = caller.version.era() == Era::Legacy;
        match &**method {
            "tools/list" => self.list(caller, method, Listing::Tools, params).await,
            "prompts/list" => self.list(caller, method, Listing::Prompts, params).await,
            "resources/list" => self.list(caller, method, Listing::Resources, params).await,
            "resources/templates/list" => {
                self.list(caller, method, Listing::Templates, params).await
            }
            "tools/call" => self.call_tool(caller, method, params, events).await,
            "prompts/get" => self.get_prompt(caller, method, params, events).await,
            "completion/complete" => self.complete(caller, method, params, events).await,
            "resources/read" => self.read_resource(caller, method, params, events).await,
            "resources/subscribe" if legacy => self.subscribe(caller, method, params, events).await,
            "resources/unsubscribe" if legacy => self.unsubscribe(caller, method, params).await,
            "logging/setLevel" if legacy => self.set_log_level(caller, method, params).await,
            _ => self.extension(caller, method, params, events).await,
        }
    }

    /// Records and renders a denial of a message that was not judged.
    fn refuse(
        &self,
        caller: &Caller,
        method: &Arc<str>,
        server: Option<&Arc<str>>,
        denial: Denial,
    ) -> RpcError {
        let mut live = self.flow(&(self.rules)().chain, caller, method, server, None);
        live.denied(&denial);
        rpc_error(&denial)
    }

    /// The flow of a message.
    fn flow(
        &self,
        chain: &Arc<Chain>,
        caller: &Caller,
        method: &Arc<str>,
        server: Option<&Arc<str>>,
        name: Option<&Arc<str>>,
    ) -> LiveFlow {
        let subject = McpSubject {
            server: server.cloned(),
            method: Arc::clone(method),
            name: name.cloned(),
        };
        let mut start = chain.for_mcp(caller.client.clone(), subject);
        start.principal = Some(caller.principal.clone());
        let mut live = LiveFlow::begin(chain, start);
        live.record().method = Some(method.to_string().into());
        live
    }
}

/// The members of a request's params.
fn members(params: Option<&RawValue>) -> Result<Members<'_>, RpcError> {
    match params {
        Some(params) => Members::read(params).map_err(|_| invalid_params("params is no object")),
        None => Ok(Members::default()),
    }
}

fn invalid_params(why: impl Into<std::borrow::Cow<'static, str>>) -> RpcError {
    protocol_error(INVALID_PARAMS, why)
}
