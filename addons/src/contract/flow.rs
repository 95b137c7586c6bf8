//! Flows: a tunnel, a request, a DNS question or an MCP message on its way through the chain.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::asked::ApprovalRecord;
use super::container::Container;
use super::denial::{Code, Denial};
use super::endpoint::{Endpoint, Scheme};
use super::entry::Entry;
use super::host::Host;
use super::mcp::{McpRecord, McpSubject};
use super::principal::{Client, Principal};
use super::record::{Counters, Note, Record};

/// The id of a flow in logs and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u64);

impl FlowId {
    /// Returns a new id. The first id of a process is the time in units of 1/256 µs, so that a
    /// restarted proxy does not repeat ids of the log: no process begins 256 flows each µs.
    pub(crate) fn next() -> Self {
        static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            AtomicU64::new(now.map_or(0, |since| since.as_micros() as u64) << 8)
        });
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The id as a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A tunnel: a CONNECT.
    Tunnel,
    /// A request, inside a tunnel or outside.
    Http,
    /// A request that asks to become a WebSocket.
    Websocket,
    /// A DNS question.
    Dns,
    /// An MCP message.
    Mcp,
}

impl Kind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [Self; Self::Mcp as usize + 1] = [
        Self::Tunnel,
        Self::Http,
        Self::Websocket,
        Self::Dns,
        Self::Mcp,
    ];

    /// The name in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Http => "http",
            Self::Websocket => "websocket",
            Self::Dns => "dns",
            Self::Mcp => "mcp",
        }
    }
}

/// The destination or content of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The upstream of a tunnel, a request or a WebSocket.
    Upstream(Endpoint),
    /// The name of a DNS question.
    Name(Host),
    /// An MCP message.
    Mcp(McpSubject),
}

/// The host of every MCP flow. It stands for the MCP gateway, whatever the gateway's address is.
pub const GATEWAY: &str = "unified-proxy";
/// The port of every MCP flow: the gateway's default port, whatever port it listens on.
const GATEWAY_PORT: u16 = 8090;

static GATEWAY_HOST: LazyLock<Host> = LazyLock::new(|| Host::Name(GATEWAY.into()));

/// The facts that a flow begins with. A [`Flow`] gives read access to them.
#[derive(Debug)]
pub struct FlowStart {
    id: FlowId,
    /// The kind of flow.
    pub kind: Kind,
    /// When it began, on the monotonic clock.
    pub started: Instant,
    /// When it began, on the wall clock, for logs and for the expiry of leases.
    pub at: SystemTime,
    /// The client that sent it.
    pub client: Client,
    /// The container id that a head claims, as [`crate::identity::claimed_id`] reads it. Set for a
    /// CONNECT, and for a request to the proxy's own DNS or MCP endpoint. For any other request,
    /// the identity link reads the claim from the head itself.
    ///
    /// The claim does not identify the container: only the source does. A flow that claims another
    /// container is denied.
    pub claimed_id: Option<Box<str>>,
    /// The principal on whose behalf the flow runs. The engine sets the principal if it is known
    /// already, for example from an earlier flow on the connection. Otherwise the identity link of
    /// the chain finds the principal.
    pub principal: Option<Principal>,
    /// Its destination or content.
    pub subject: Subject,
    /// The allowlist entry that matches the host, for labels and limits. Whether the flow may pass
    /// is the policy addon's decision.
    pub entry: Option<Arc<Entry>>,
    /// The bytes passed so far.
    pub counters: Arc<Counters>,
}

impl FlowStart {
    /// A flow that begins now. `entry` is the allowlist entry of the subject's host.
    #[must_use]
    pub fn new(kind: Kind, client: Client, subject: Subject, entry: Option<Arc<Entry>>) -> Self {
        Self {
            id: FlowId::next(),
            kind,
            started: Instant::now(),
            at: SystemTime::now(),
            client,
            claimed_id: None,
            principal: None,
            subject,
            entry,
            counters: Arc::default(),
        }
    }

    /// Begins a flow whose end is not reported. For a flow that passes the chain, use a
    /// [`LiveFlow`](super::LiveFlow), which reports the end to every addon.
    #[must_use]
    pub fn begin(self) -> OwnedFlow {
        Flow {
            start: self,
            record: Record::default(),
            slots: SmallVec::new(),
            dry_run: None,
            _unsized: [],
        }
    }

    /// Begins a dry run: the flow collects notes, and [`Flow::effect`] and [`Flow::charge`] do
    /// nothing. Its end is not reported.
    #[must_use]
    pub fn begin_dry(self) -> OwnedFlow {
        Flow {
            dry_run: Some(Box::default()),
            ..self.begin()
        }
    }

    /// The id of the flow.
    pub fn id(&self) -> FlowId {
        self.id
    }

    /// The host of the destination, or the name of a DNS question; [`GATEWAY`] for an MCP message.
    pub fn host(&self) -> &Host {
        match &self.subject {
            Subject::Upstream(endpoint) => &endpoint.host,
            Subject::Name(name) => name,
            Subject::Mcp(_) => &GATEWAY_HOST,
        }
    }

    /// The port of the destination; 53 for a DNS question, 8090 for an MCP message.
    pub fn port(&self) -> u16 {
        match &self.subject {
            Subject::Upstream(endpoint) => endpoint.port,
            Subject::Name(_) => 53,
            Subject::Mcp(_) => GATEWAY_PORT,
        }
    }

    /// The scheme of the upstream; `Http` for a DNS question or an MCP message.
    pub fn scheme(&self) -> Scheme {
        self.endpoint()
            .map_or(Scheme::Http, |endpoint| endpoint.scheme)
    }

    /// The upstream; `None` for a DNS question or an MCP message.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match &self.subject {
            Subject::Upstream(endpoint) => Some(endpoint),
            Subject::Name(_) | Subject::Mcp(_) => None,
        }
    }

    /// The subject of an MCP message; `None` for other flows.
    pub fn mcp(&self) -> Option<&McpSubject> {
        match &self.subject {
            Subject::Mcp(subject) => Some(subject),
            Subject::Upstream(_) | Subject::Name(_) => None,
        }
    }

    /// The container on whose behalf the flow runs; an `unknown_source` denial if there is none.
    pub fn container(&self) -> Result<&Arc<Container>, Denial> {
        self.known_container()
            .ok_or_else(|| Denial::unknown_source(self.client.source.as_ref()))
    }

    /// The container on whose behalf the flow runs, if there is one.
    pub fn known_container(&self) -> Option<&Arc<Container>> {
        let lease = self.principal.as_ref()?.lease()?;
        Some(lease)
    }

    /// The denial of a flow that exceeds a rate limit, or that would have to wait while too many
    /// flows wait. `wait` is the time until a retry can succeed.
    pub(crate) fn rate_limited(&self, wait: Duration) -> Denial {
        let denial = Denial::new(Code::RateLimited, "Rate limit exceeded");
        let denial = match self.known_container() {
            Some(container) => denial.with("container_id", container.id.as_str()),
            None => denial,
        };
        let denial = denial.with("upstream", self.upstream_label());
        denial.retry_after(wait)
    }

    /// The metric label of the upstream: the allowlist entry that matched, the MCP server, or
    /// `none`. Clients cannot invent new labels.
    pub fn upstream_label(&self) -> &str {
        let server = self.mcp().and_then(|subject| subject.server.as_deref());
        let label = self.entry.as_ref().map(|entry| &*entry.label);
        server.or(label).unwrap_or("none")
    }
}

/// One flow on its way through the chain. It dereferences to its [`FlowStart`]. Addons may add
/// facts for the audit and store values in slots. A flow has one slot for each type.
///
/// Addons can only read the start of a flow. They cannot swap the flow for another one, since they
/// get a reference to an unsized type:
///
/// ```
/// use addons::contract::{Flow, FlowStart, Principal, Subject};
///
/// fn read(flow: &mut Flow) -> (&Option<Principal>, &Subject) {
///     (&flow.principal, &flow.subject)
/// }
///
/// fn begin(start: FlowStart) {
///     let mut flow = start.begin();
///     read(&mut flow);
/// }
/// ```
///
/// ```compile_fail,E0594
/// use addons::contract::{Flow, Principal};
///
/// fn become_another(flow: &mut Flow, principal: Principal) {
///     flow.principal = Some(principal);
/// }
/// ```
///
/// ```compile_fail,E0594
/// use addons::contract::{Flow, Subject};
///
/// fn go_elsewhere(flow: &mut Flow, subject: Subject) {
///     flow.subject = subject;
/// }
/// ```
///
/// ```compile_fail,E0308
/// use addons::contract::{Flow, FlowStart};
///
/// fn exchange(flow: &mut Flow, start: FlowStart) {
///     *flow = start.begin();
/// }
/// ```
///
/// ```compile_fail,E0277
/// use addons::contract::Flow;
///
/// fn swap(flow: &mut Flow, other: &mut Flow) {
///     std::mem::swap(flow, other);
/// }
/// ```
pub struct Flow<Size: ?Sized = [()]> {
    pub(super) start: FlowStart,
    pub(super) record: Record,
    /// The values in the slots. They are few, so they are searched one by one.
    slots: SmallVec<[Box<dyn Any + Send + Sync>; 1]>,
    dry_run: Option<Box<Mutex<DryRun>>>,
    _unsized: Size,
}

/// An owned flow of known size, for the engine. `&mut OwnedFlow` coerces to `&mut Flow`.
pub type OwnedFlow = Flow<[(); 0]>;

#[derive(Default)]
struct DryRun {
    addon: &'static str,
    notes: Vec<Note>,
}

impl<Size: ?Sized> Deref for Flow<Size> {
    type Target = FlowStart;

    fn deref(&self) -> &FlowStart {
        &self.start
    }
}

impl<Size: ?Sized> Flow<Size> {
    /// Facts for the audit.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Names the rule or entry that decides on the flow, for the audit.
    pub fn set_rule(&mut self, rule: impl Into<Arc<str>>) {
        self.record.rule = Some(rule.into());
    }

    /// Facts about an MCP message, for the audit. Adds an empty record if there is none.
    pub fn mcp_record(&mut self) -> &mut McpRecord {
        self.record.mcp.get_or_insert_default()
    }

    /// The approval that decides, for the audit. Adds an empty record if there is none.
    pub fn approval_record(&mut self) -> &mut ApprovalRecord {
        self.record.approval.get_or_insert_default()
    }

    /// Sets the entry of a granted host, unless the flow has an entry.
    pub(crate) fn admit(&mut self, entry: Arc<Entry>) {
        self.start.entry.get_or_insert(entry);
    }

    /// Adds the name of a credential that was injected, for the audit.
    pub fn add_credential(&mut self, name: &Arc<str>) {
        self.record.credential = Some(match &self.record.credential {
            Some(others) => format!("{others},{name}").into(),
            None => Arc::clone(name),
        });
    }

    /// Stores a value in the slot of its type, for other addons. Replaces an earlier value.
    pub fn put_slot<T: Any + Send + Sync>(&mut self, value: T) {
        let mut slots = self.slots.iter_mut();
        match slots.find_map(|slot| slot.downcast_mut::<T>()) {
            Some(slot) => *slot = value,
            None => self.slots.push(Box::new(value)),
        }
    }

    /// The value in the slot of this type; `None` if the slot is empty.
    pub fn find_slot<T: Any>(&self) -> Option<&T> {
        self.slots.iter().find_map(|slot| slot.downcast_ref::<T>())
    }

    /// Takes the value out of the slot of this type; `None` if the slot is empty.
    pub fn take_slot<T: Any>(&mut self) -> Option<T> {
        let at = self.slots.iter().position(|slot| slot.is::<T>())?;
        let value = self.slots.swap_remove(at).downcast().ok()?;
        Some(*value)
    }

    /// Whether the flow is a dry run, which must have no effects.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// Runs `act`, an effect such as counting, writing a file or sending a request. A dry run does
    /// not run it and returns `None`.
    pub fn effect<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        (!self.is_dry_run()).then(act)
    }

    /// Runs `take`, which takes from a budget. A dry run does not run it and returns `Ok`.
    pub fn charge<E>(&self, take: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.effect(take).unwrap_or(Ok(()))
    }

    /// Adds an explanation in a dry run, and does nothing otherwise. An explanation that an addon
    /// gives in two phases is kept once.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if let Some(dry_run) = &self.dry_run {
            let text = text();
            let mut dry_run = dry_run.lock();
            let addon = dry_run.addon;
            let given = |note: &Note| note.addon == addon && note.text == text;
            if !dry_run.notes.iter().any(given) {
                dry_run.notes.push(Note { addon, text });
            }
        }
    }

    /// The explanations given so far in a dry run; otherwise empty.
    pub fn notes(&self) -> Vec<Note> {
        let dry_run = self.dry_run.as_ref();
        dry_run.map_or_else(Vec::new, |dry_run| dry_run.lock().notes.clone())
    }

    /// In a dry run, sets the addon that the following notes belong to.
    pub(super) fn set_note_author(&self, addon: impl FnOnce() -> &'static str) {
        if let Some(dry_run) = &self.dry_run {
            dry_run.lock().addon = addon();
        }
    }
}

/// Write access for tests of single addons.
#[cfg(test)]
#[allow(clippy::panic)]
impl<Size: ?Sized> Flow<Size> {
    pub(crate) fn start_mut(&mut self) -> &mut FlowStart {
        &mut self.start
    }

    pub(crate) fn endpoint_mut(&mut self) -> &mut Endpoint {
        match &mut self.start.subject {
            Subject::Upstream(endpoint) => endpoint,
            other => panic!("{other:?} has no endpoint"),
        }
    }

    pub(crate) fn record_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}

#[cfg(test)]
impl OwnedFlow {
    pub(crate) fn dry_run(self) -> Self {
        self.start.begin_dry()
    }
}

impl<Size: ?Sized> fmt::Debug for Flow<Size> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, host, port) = (self.kind.as_str(), self.host(), self.port());
        write!(f, "Flow({} {kind} {host}:{port})", self.id)
    }
}
