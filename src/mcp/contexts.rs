//! Request contexts: what `before` of the interceptor API, the call at the gateway and `after` know of
//! one another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Container, ContainerId, Effect, Executing, Handover, LeaseId};
use addons::json::ObjectText;
use addons::mcp::ContextSettings;
use parking_lot::Mutex;
use prometheus::IntGauge;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use super::caller::TraceContext;
use super::warnings::{Subject, warn};

/// A container has at most this share of all contexts.
const SHARE: usize = 10;
/// The most bytes of all contexts together, without a fixed amount for each.
const MAX_BYTES: usize = 128 << 20;
/// The memory of a context without its texts.
const FIXED_BYTES: usize = 512;
/// The shortest time between two searches for contexts that have expired.
const LEAST_SWEEP: Duration = Duration::from_secs(1);

/// A tool, as a caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// By the name that the gateway exposes, or that the caller's gateway gave it.
    Named(Box<str>),
    /// A tool of Claude Code itself.
    OfClaudeCode(Box<str>),
}

impl Tool {
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::OfClaudeCode(name) => name,
        }
    }
}

/// What is known of one call that another gateway asked about.
pub struct RequestContext {
    pub request_id: Box<str>,
    pub agent_id: Option<Box<str>>,
    /// The tool, as the caller named it.
    pub tool: Option<Tool>,
    /// The decision of `before`; `None` if `after` made the context.
    pub decision: Option<Effect>,
    pub reason: Option<Box<str>>,
    /// What the policies returned for the call.
    pub metadata: Option<Box<RawValue>>,
    /// The approval for the call at the gateway.
    pub handover: Option<Arc<Handover>>,
    /// Under which `before` let the call pass, for the policies' questions about the result.
    pub executing: Option<Executing>,
    /// The `traceparent` for messages that follow from `before`.
    pub traceparent: Option<Box<str>>,
    created_at: OffsetDateTime,
    execution: Mutex<Execution>,
}

/// The execution of the call at the gateway.
#[derive(Clone, Copy, Default)]
struct Execution {
    started: Option<OffsetDateTime>,
    ended: Option<OffsetDateTime>,
    exit_code: Option<i32>,
}

impl RequestContext {
    /// An empty context for a request.
    pub fn new(request_id: Box<str>) -> Self {
        Self {
            request_id,
            agent_id: None,
            tool: None,
            decision: None,
            reason: None,
            metadata: None,
            handover: None,
            executing: None,
            traceparent: None,
            created_at: OffsetDateTime::now_utc(),
            execution: Mutex::default(),
        }
    }

    /// The trace context for the call at the gateway.
    pub fn trace(&self) -> Option<TraceContext> {
        let parent = self.traceparent.as_deref()?.to_owned();
        Some(TraceContext {
            parent,
            state: None,
        })
    }

    /// Records that the gateway sends the call.
    pub fn started(&self) {
        self.execution.lock().started = Some(OffsetDateTime::now_utc());
    }

    /// Records the end of the call, and the exit code of a server that ended during the call.
    pub fn ended(&self, exit_code: Option<i32>) {
        let mut execution = self.execution.lock();
        execution.ended.get_or_insert_with(OffsetDateTime::now_utc);
        execution.exit_code = execution.exit_code.or(exit_code);
    }

    /// The context as policies see it.
    pub fn to_json(&self) -> String {
        let execution = *self.execution.lock();
        let mut object = ObjectText::default();
        let text = |object: &mut ObjectText, key: &str, text: Option<&str>| match text {
            Some(text) => object.text(key, text),
            None => object.member(key, "null"),
        };
        let time = |at: Option<OffsetDateTime>| at.and_then(|at| at.format(&Rfc3339).ok());
        object.text("request_id", &self.request_id);
        text(&mut object, "agent_id", self.agent_id.as_deref());
        text(&mut object, "tool", self.tool.as_ref().map(Tool::name));
        text(&mut object, "decision", self.decision.map(Effect::as_str));
        text(&mut object, "reason", self.reason.as_deref());
        let created_at = time(Some(self.created_at));
        text(&mut object, "created_at", created_at.as_deref());
        let started = time(execution.started);
        text(&mut object, "execution_started", started.as_deref());
        let ended = time(execution.ended);
        text(&mut object, "execution_ended", ended.as_deref());
        let exit_code = execution.exit_code.map(|code| code.to_string());
        object.member("exit_code", exit_code.as_deref().unwrap_or("null"));
        let metadata = self
            .metadata
            .as_ref()
            .map_or("{}", |metadata| metadata.get());
        object.member("metadata", metadata);
        object.end()
    }

    /// The memory of the context, about.
    fn bytes(&self) -> usize {
        let tool = self.tool.as_ref().map(Tool::name);
        let texts = [self.agent_id.as_deref(), tool, self.reason.as_deref()];
        let texts = texts.into_iter().flatten().map(str::len);
        let metadata = self.metadata.as_ref().map_or(0, |one| one.get().len());
        let ids = self.request_id.len().saturating_mul(3);
        [ids, metadata, FIXED_BYTES].into_iter().chain(texts).sum()
    }
}

/// Why there is no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoContext {
    /// None was made, or it was removed.
    Unknown,
    /// Its time is over.
    Expired,
}

/// The contexts of all leases. Their ids are chosen by callers, so that a context is found only with
/// its lease.
pub struct Contexts {
    kept: Mutex<Kept>,
    active: IntGauge,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<Key, Slot>,
    /// In the order of their creation.
    order: BTreeMap<u64, Key>,
    leases: HashMap<LeaseId, BTreeMap<u64, Box<str>>>,
    next: u64,
    bytes: usize,
    ttl: Duration,
    /// Whether a task removes the contexts whose time is over.
    is_swept: bool,
}

type Key = (LeaseId, Box<str>);

struct Slot {
    number: u64,
    created: Instant,
    /// `None` once its time is over: for as long again, its id is known to have expired.
    context: Option<Arc<RequestContext>>,
}

/// The state of a lease whose end removes its contexts.
struct EndsWithLease;

impl Contexts {
    pub fn new(active: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            active,
        })
    }

    /// Keeps a context, in place of an earlier one with its id. Over a limit, the oldest one goes. The
    /// end of the lease removes its contexts.
    pub fn keep(
        self: &Arc<Self>,
        container: &Arc<Container>,
        context: RequestContext,
        limits: &ContextSettings,
    ) {
        let lease = container.lease;
        let key: Key = (lease, context.request_id.clone());
        let bytes = context.bytes();
        let mut kept = self.kept.lock();
        kept.ttl = limits.ttl;
        self.remove(&mut kept, &key);
        let own = kept.leases.get(&lease);
        let own = own.filter(|own| own.len() >= limits.capacity.div_ceil(SHARE));
        let own = own.and_then(|own| own.values().next().cloned());
        if let Some(oldest) = own {
            evicted(&container.id);
            self.remove(&mut kept, &(lease, oldest));
        }
        while kept.by_id.len() >= limits.capacity || kept.bytes.saturating_add(bytes) > MAX_BYTES {
            let Some(oldest) = kept.order.values().next().cloned() else {
                break;
            };
            evicted(&container.id);
            self.remove(&mut kept, &oldest);
        }
        let number = kept.next;
        kept.next = number.wrapping_add(1);
        kept.bytes = kept.bytes.saturating_add(bytes);
        kept.order.insert(number, key.clone());
        let own = kept.leases.entry(lease).or_default();
        own.insert(number, key.1.clone());
        let slot = Slot {
            number,
            created: Instant::now(),
            context: Some(Arc::new(context)),
        };
        kept.by_id.insert(key, slot);
        self.active.inc();
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::clone(self)));
        }
        drop(kept);
        container.state_or_init(|| {
            let (contexts, ended) = (Arc::clone(self), container.ended().clone());
            tokio::spawn(async move {
                ended.cancelled().await;
                contexts.end(lease);
            });
            EndsWithLease
        });
        if container.has_ended() {
            self.end(lease);
        }
    }

    /// The context of a lease with this id.
    pub fn find(
        &self,
        lease: LeaseId,
        id: &str,
        ttl: Duration,
    ) -> Result<Arc<RequestContext>, NoContext> {
        let kept = self.kept.lock();
        let slot = kept.by_id.get(&(lease, id.into()));
        let slot = slot.ok_or(NoContext::Unknown)?;
        let live = slot.context.as_ref();
        let live = live.filter(|_| slot.created.elapsed() < ttl);
        live.cloned().ok_or(NoContext::Expired)
    }

    /// Takes the context out. An expired one is removed.
    pub fn take(
        &self,
        lease: LeaseId,
        id: &str,
        ttl: Duration,
    ) -> Result<Arc<RequestContext>, NoContext> {
        let found = self.find(lease, id, ttl);
        self.remove(&mut self.kept.lock(), &(lease, id.into()));
        found
    }

    fn end(&self, lease: LeaseId) {
        let mut kept = self.kept.lock();
        let own = kept.leases.get(&lease).cloned().unwrap_or_default();
        for id in own.into_values() {
            self.remove(&mut kept, &(lease, id));
        }
    }

    /// Forgets what has expired. Returns the time until the next look; `None` if nothing is kept.
    fn expire(&self) -> Option<Duration> {
        let mut kept = self.kept.lock();
        let ttl = kept.ttl;
        let is_over = |key: &&Key| {
            let slot = kept.by_id.get(*key);
            slot.is_none_or(|slot| slot.created.elapsed() >= ttl)
        };
        let keys: Vec<Key> = kept.order.values().take_while(is_over).cloned().collect();
        for key in keys {
            let age = kept.by_id.get(&key).map(|slot| slot.created.elapsed());
            match age {
                Some(age) if age < ttl.saturating_mul(2) => self.forget(&mut kept, &key),
                _ => self.remove(&mut kept, &key),
            }
        }
        if kept.order.is_empty() {
            kept.is_swept = false;
            return None;
        }
        Some((ttl / 4).max(LEAST_SWEEP))
    }

    /// Forgets all but the id of a context.
    fn forget(&self, kept: &mut Kept, key: &Key) {
        let slot = kept.by_id.get_mut(key);
        if let Some(context) = slot.and_then(|slot| slot.context.take()) {
            kept.bytes = kept.bytes.saturating_sub(context.bytes());
            self.active.dec();
        }
    }

    fn remove(&self, kept: &mut Kept, key: &Key) {
        self.forget(kept, key);
        let Some(slot) = kept.by_id.remove(key) else {
            return;
        };
        kept.order.remove(&slot.number);
        if let Some(own) = kept.leases.get_mut(&key.0) {
            own.remove(&slot.number);
            if own.is_empty() {
                kept.leases.remove(&key.0);
            }
        }
    }
}

async fn sweep(contexts: Arc<Contexts>) {
    while let Some(pause) = contexts.expire() {
        sleep(pause).await;
    }
}

fn evicted(container: &ContainerId) {
    warn("contexts", Subject::Context, |left_out| {
        tracing::warn!(%container, left_out, "too many request contexts: the oldest one is removed");
    });
}

#[cfg(test)]
mod tests;
