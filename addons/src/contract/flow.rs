//! What leaves a sandbox: one question, request or tunnel, with its facts.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use super::container::{Container, Source};
use super::denial::{Code, Denial};
use super::entry::Entry;
use super::host::Host;
use super::slots::Slots;

/// How many ids a thread takes at once.
const AT_ONCE: u64 = 256;

/// Tells flows apart in logs and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u64);

impl FlowId {
    /// The next id. Ids begin at a different place in every process, so that logs of two runs
    /// do not share any. Each thread takes some at once.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        static START: OnceLock<u64> = OnceLock::new();
        thread_local! {
            static OWN: Cell<Range<u64>> = const { Cell::new(0..0) };
        }
        let start = START.get_or_init(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(0, |since| since.as_micros() as u64) << 8
        });
        let mut own = OWN.take();
        let next = own.next().unwrap_or_else(|| {
            let first = NEXT.fetch_add(AT_ONCE, Ordering::Relaxed);
            own = first + 1..first + AT_ONCE;
            first
        });
        OWN.set(own);
        Self(start.wrapping_add(next))
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

/// What kind of thing a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A CONNECT.
    Tunnel,
    /// A request, by itself or inside a tunnel.
    Http,
    /// A request that became a WebSocket.
    Websocket,
    /// A DNS question.
    Dns,
}

impl Kind {
    /// As the audit log writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Http => "http",
            Self::Websocket => "websocket",
            Self::Dns => "dns",
        }
    }
}

/// How the upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In clear text.
    Http,
    /// Over TLS whose certificate was verified.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Who is at the other end of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// What identifies it; `None` where the socket tells no address.
    pub source: Option<Source>,
    /// Its address, for the log.
    pub peer: Option<SocketAddr>,
}

/// A container as those hold it who hold it together, such as the flows of a connection: they
/// are counted here, where only they look. The container's own count moves from core to core.
#[derive(Debug)]
pub struct LeaseHandle(Arc<Container>);

impl Deref for LeaseHandle {
    type Target = Arc<Container>;

    fn deref(&self) -> &Arc<Container> {
        &self.0
    }
}

/// On whose behalf a flow runs.
#[derive(Clone, Debug)]
pub enum Principal {
    /// A container, under one lease.
    Container(Arc<LeaseHandle>),
    /// A named part of the appliance itself.
    System(Arc<System>),
}

impl From<Arc<Container>> for Principal {
    fn from(container: Arc<Container>) -> Self {
        Self::Container(Arc::new(LeaseHandle(container)))
    }
}

/// A part of the appliance that speaks for itself, and where it may go: no allowlist holds for
/// it, so its own list does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name, in the audit.
    pub name: &'static str,
    /// The hosts and ports that it may ask.
    pub hosts: Vec<(Host, u16)>,
    /// They are the operator's own: spoken to in clear where the operator says so, and at
    /// private addresses too. All others only over verified TLS and at public ones.
    pub trust_private: bool,
}

/// Bytes that passed, counted where the bodies stream.
#[derive(Debug, Default)]
pub struct Counters {
    /// From the client.
    pub bytes_in: AtomicU64,
    /// To the client.
    pub bytes_out: AtomicU64,
}

/// What the audit wants to know and only some part finds out on the way.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The method, or the DNS record type.
    pub method: Option<Cow<'static, str>>,
    /// The path in normal form, without its query.
    pub path: Option<Arc<str>>,
    /// The rule or entry that decided.
    pub rule: Option<Arc<str>>,
    /// The names of the credentials that were added.
    pub credential: Option<Arc<str>>,
    /// The address that was connected to.
    pub upstream: Option<SocketAddr>,
}

/// What an addon has to say about its verdict, when somebody asks for the reasons.
#[derive(Clone, Debug)]
pub struct Note {
    /// The addon that speaks; empty for the engine.
    pub addon: &'static str,
    /// What it says.
    pub text: String,
}

/// One flow on its way through the chain.
pub struct Flow {
    /// Tells it apart.
    pub id: FlowId,
    /// What it is.
    pub kind: Kind,
    /// When it began, on the clock that never jumps.
    pub started: Instant,
    /// When it began, for the log.
    pub at: SystemTime,
    /// Who sent it.
    pub client: Client,
    /// The container's name as a CONNECT's own head claims it, read with
    /// [`crate::identity::claimed_id`]. A claim proves nothing; a wrong one denies.
    pub claimed_id: Option<Box<str>>,
    /// On whose behalf it runs: set by identity, and by the engine only to what identity found
    /// earlier on the same connection.
    pub principal: Option<Principal>,
    /// Where it wants to go.
    pub host: Host,
    /// The port it asked for; 53 for a DNS question.
    pub port: u16,
    /// How the upstream will be spoken to.
    pub scheme: Scheme,
    /// The allowlist entry that the host falls under, for labels and limits. That there is one
    /// permits nothing: policy decides.
    pub entry: Option<Arc<Entry>>,
    /// Facts for the audit.
    pub record: Record,
    /// What passed so far.
    pub counters: Arc<Counters>,
    /// What addons hand to each other.
    pub slots: Slots,
    dry_run: Option<DryRun>,
}

#[derive(Default)]
struct DryRun {
    addon: &'static str,
    notes: Vec<Note>,
}

impl Flow {
    /// Begins a flow. `entry` is what the allowlist of the configuration in force says of `host`.
    #[must_use]
    pub fn new(
        kind: Kind,
        client: Client,
        scheme: Scheme,
        host: Host,
        port: u16,
        entry: Option<Arc<Entry>>,
    ) -> Self {
        Self {
            id: FlowId::next(),
            kind,
            started: Instant::now(),
            at: SystemTime::now(),
            client,
            claimed_id: None,
            principal: None,
            host,
            port,
            scheme,
            entry,
            record: Record::default(),
            counters: Arc::default(),
            slots: Slots::default(),
            dry_run: None,
        }
    }

    /// The container, or a denial: without an identity nothing goes on.
    pub fn container(&self) -> Result<&Arc<Container>, Denial> {
        match &self.principal {
            Some(Principal::Container(container)) => Ok(container),
            _ => Err(Denial::new(Code::UnknownSource, "Unknown source IP")),
        }
    }

    /// The container, if there is one.
    pub fn known_container(&self) -> Option<&Arc<Container>> {
        match &self.principal {
            Some(Principal::Container(container)) => Some(container),
            _ => None,
        }
    }

    /// The allowlist entry that matched, as a label: `none` where there is none, so that a
    /// client cannot make up label values.
    pub fn upstream(&self) -> &str {
        self.entry.as_ref().map_or("none", |entry| &entry.label)
    }

    /// A value that an addon declared to provide.
    pub fn slot<T: Any>(&self) -> Result<&T, Denial> {
        self.slots.get()
    }

    /// Makes this a dry run: notes are kept, and addons that count must not.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = Some(DryRun::default());
        self
    }

    /// Whether nothing will really be sent, so that nothing must be counted.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// Gives a reason; the text is made only when somebody asked. An addon that gives the same
    /// reason in two phases is quoted once.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(dry_run) = &mut self.dry_run {
            let (addon, text) = (dry_run.addon, text());
            let given = |note: &Note| note.addon == addon && note.text == text;
            if !dry_run.notes.iter().any(given) {
                dry_run.notes.push(Note { addon, text });
            }
        }
    }

    /// The reasons given so far.
    pub fn notes(&self) -> &[Note] {
        self.dry_run.as_ref().map_or(&[], |dry_run| &dry_run.notes)
    }

    pub(super) fn enter(&mut self, addon: &'static str) {
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.addon = addon;
        }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Flow({} {} {}:{})",
            self.id,
            self.kind.as_str(),
            self.host,
            self.port
        )
    }
}

/// How a flow ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The status that the client got; 0 where it got none.
    pub status: u16,
    /// The denial that ended it.
    pub denial: Option<Denial>,
    /// Ended before its time: a side went away, or the lease ended.
    pub aborted: bool,
    /// How long it took.
    pub duration: Duration,
}

impl Outcome {
    /// Every value of [`Outcome::label`].
    pub const LABELS: [&'static str; 4] = ["ok", "denied", "failed", "aborted"];

    /// `ok`, `denied`, `failed` or `aborted`: the outcome as metrics and the audit name it.
    pub fn label(&self) -> &'static str {
        use super::denial::Fault;
        match &self.denial {
            Some(denial) => match denial.code().fault() {
                Fault::Policy | Fault::Client => "denied",
                Fault::Upstream | Fault::Us => "failed",
            },
            None if self.aborted => "aborted",
            None => "ok",
        }
    }
}
