//! Routes messages between clients and servers of either era, and aggregates the servers' lists.
//! The chain judges each message that the core relays.
//!
//! The core is independent of HTTP and of processes. [`Core::request`] takes a client's request and
//! returns its outcome; dropping the future cancels the request at the server. [`Core::attach`]
//! delivers messages outside requests.
//!
//! | client | server | bridged by |
//! | --- | --- | --- |
//! | legacy | legacy | nothing |
//! | modern | modern | nothing |
//! | legacy | modern | `input`: an `input_required` result becomes requests to the client, and the call is repeated with the client's answers; `listen`: subscriptions |
//! | modern | legacy | `results`: adds the members that the newer revision requires. A request of the server becomes an event: the gateway suspends the call and returns `input_required` |
//!
//! Between eras, `params` also translates `_meta`, and `results` the codes of errors.

mod attached;
mod attachment;
mod client_progress;
mod describe;
mod exchange;
mod execution;
mod extension;
mod input;
mod intercept;
mod intercept_after;
mod intercepted_tool;
mod judged_call;
mod known_sessions;
mod lease;
mod listen;
mod lists;
mod params;
mod people;
mod readiness;
mod relay;
mod resources;
mod results;
mod retry;
mod sessions;
mod target;
mod task;
mod tasks;
mod tools;
mod unsolicited;
mod view;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use addons::contract::{Chain, Container, Denial, LiveFlow, McpSession, McpSubject, RpcError};
use addons::json::Members;
use addons::mcp::{McpMetrics, McpSettings};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::{Caller, LogLevel, TraceContext};
use super::contexts::Contexts;
use super::error::{INVALID_PARAMS, method_not_found, protocol_error, rpc_error};
use super::event::{Event, Events, Params};
use super::message::Outcome;
use super::message_memory::MessageReservation;
use super::mounts::{
    Catalog, Described, Entry, Known, List, MAX_INSTRUCTIONS, Mount, MountError, MountSession,
    Mounts, Origin, Pooled, ResourceIndex, Unsolicited,
};
use super::version::{Era, Version};

pub use attached::{Filter, Interest, MAX_SUBSCRIPTIONS, MAX_URI_BYTES};
pub use attachment::Attachment;
pub use describe::Description;
pub use intercept::{After, Before, Claims};
pub use intercepted_tool::EXEC;
pub use lease::MAX_CALLS_PER_LEASE;
pub use params::quote;
pub use readiness::SERVERS as SERVERS_META;
pub use resources::MAX_URI;
pub use results::for_modern_client;
pub use tools::FoundTool;

use lease::{Lease, too_many};
use lists::Listing;

/// The most requests of all clients that may be under way at once. A further request is denied.
pub const MAX_CALLS: usize = 8192;

/// The parts of the configuration in force that the core reads.
#[derive(Clone)]
pub struct Rules {
    /// Judges messages.
    pub chain: Arc<Chain>,
    /// Servers and overrides.
    pub settings: Arc<McpSettings>,
    /// Whether every policy could be loaded.
    pub policies_loaded: bool,
}

/// Reads the rules in force.
pub type CurrentRules = Box<dyn Fn() -> Rules + Send + Sync>;

/// Routes, judges and bridges messages.
pub struct Core {
    rules: CurrentRules,
    mounts: Arc<Mounts>,
    metrics: McpMetrics,
    /// The request contexts of the interceptor API.
    contexts: Arc<Contexts>,
    calls: Arc<Semaphore>,
    /// Leases that have or had attached clients. Resource updates of shared sessions go to the
    /// clients of these leases.
    watched: Mutex<Vec<Weak<Lease>>>,
    /// Runs background work.
    runtime: Handle,
}

/// A client's request.
pub struct ClientRequest {
    /// The legacy client's session, or the modern client as this request describes it.
    pub caller: Arc<Caller>,
    /// Its method.
    pub method: Arc<str>,
    /// Its params, as the client wrote them.
    pub params: Option<Box<RawValue>>,
    /// The tool that it calls, if the gateway has looked it up already.
    pub tool: Option<FoundTool>,
    /// The trace context of its HTTP request.
    pub trace: Option<TraceContext>,
    /// Takes the server's messages that belong to this request.
    pub events: Events,
}

impl Core {
    /// Whether every policy in force could be loaded.
    pub fn policies_loaded(&self) -> bool {
        (self.rules)().policies_loaded
    }

    /// Creates a core for these mounts. Background work runs in the calling runtime.
    pub fn new(rules: CurrentRules, mounts: Arc<Mounts>, metrics: McpMetrics) -> Arc<Self> {
        let core = Arc::new(Self {
            rules,
            mounts,
            contexts: Contexts::new(metrics.contexts.clone()),
            metrics,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            watched: Mutex::default(),
            runtime: Handle::current(),
        });
        let taker: Weak<Self> = Arc::downgrade(&core);
        core.mounts.follow(taker);
        core
    }

    /// The chain in force.
    pub fn chain(&self) -> Arc<Chain> {
        (self.rules)().chain
    }

    /// The servers.
    pub fn mounts(&self) -> &Arc<Mounts> {
        &self.mounts
    }

    /// Handles a client's request. Dropping the future cancels the request at the server.
    pub async fn request(self: Arc<Self>, request: ClientRequest) -> Outcome {
        let _permits = self
            .begin(&request.caller.container)
            .map_err(|denial| self.refuse(&request, None, None, denial))?;
        self.route(&request).await
    }

    /// Counts a request of a container as under way until the permits are dropped. Denies it at a
    /// limit.
    fn begin(&self, container: &Container) -> Result<[OwnedSemaphorePermit; 2], Denial> {
        let of_lease = Lease::of(container).begin()?;
        let of_all = Arc::clone(&self.calls).try_acquire_owned();
        let of_all = of_all.map_err(|_| too_many("of all containers"))?;
        Ok([of_lease, of_all])
    }

    /// Dispatches by method. The future for methods other than `tools/call` takes kilobytes. It is
    /// boxed, so that the future of a tool call, the most frequent request, stays small.
    async fn route(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        match &*request.method {
            "tools/call" => self.call_tool(request).await,
            _ => Box::pin(self.route_other(request)).await,
        }
    }

    async fn route_other(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let legacy = request.caller.version.era() == Era::Legacy;
        match &*request.method {
            "tools/list" => self.list(request, Listing::Tools).await,
            "prompts/list" => self.list(request, Listing::Prompts).await,
            "resources/list" => self.list(request, Listing::Resources).await,
            "resources/templates/list" => self.list(request, Listing::Templates).await,
            "prompts/get" => self.get_prompt(request).await,
            "completion/complete" => self.complete(request).await,
            "resources/read" => self.read_resource(request).await,
            "resources/subscribe" if legacy => self.subscribe(request).await,
            "resources/unsubscribe" if legacy => self.unsubscribe(request).await,
            "logging/setLevel" if legacy => self.set_log_level(request).await,
            "tasks/get" | "tasks/update" | "tasks/cancel" if !legacy => {
                self.task_request(request).await
            }
            _ => self.extension(request).await,
        }
    }

    /// Records a denial of a request that the chain did not judge, and renders it. `name` is the
    /// requested tool or prompt.
    fn refuse(
        &self,
        request: &ClientRequest,
        server: Option<&Arc<str>>,
        name: Option<&Arc<str>>,
        denial: Denial,
    ) -> RpcError {
        let chain = (self.rules)().chain;
        let mut live = self.flow(&chain, &request.caller, &request.method, server, name);
        live.denied(&denial);
        rpc_error(&denial)
    }

    /// Begins the flow of a message.
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
        if let Some(session) = &caller.session {
            live.flow.put_slot(McpSession(Arc::clone(session)));
        }
        live
    }
}

/// Records the end of a flow: status 200 for a permitted message, or the denial.
fn record_end<T>(live: &mut LiveFlow, judged: &Result<T, Denial>) {
    match judged {
        Ok(_) => {
            live.answered(200);
            live.complete();
        }
        Err(denial) => live.denied(denial),
    }
}

/// The members of a request's params that the gateway routes by, or changes.
const READ: [&str; 8] = [
    "name",
    "arguments",
    "uri",
    "ref",
    "task",
    "inputResponses",
    "requestState",
    "_meta",
];

/// The members of a request's params. Refuses other spellings of [`READ`].
fn members(request: &ClientRequest) -> Result<Members<'_>, RpcError> {
    let Some(params) = request.params.as_deref() else {
        return Ok(Members::default());
    };
    let members = Members::read(params).map_err(|_| invalid_params("params is not an object"))?;
    refuse_other_spellings(&members, &READ)?;
    Ok(members)
}

/// Refuses an object with another spelling of one of these keys: a server that ignores case might
/// read it instead of the key by which the chain judged the request.
fn refuse_other_spellings(members: &Members<'_>, keys: &[&str]) -> Result<(), RpcError> {
    match members.other_spelling(keys) {
        Some(key) => {
            let why = "a server that ignores case would confuse it with another key";
            Err(invalid_params(format!("params has {key:?}: {why}")))
        }
        None => Ok(()),
    }
}

fn invalid_params(why: impl Into<std::borrow::Cow<'static, str>>) -> RpcError {
    protocol_error(INVALID_PARAMS, why)
}
