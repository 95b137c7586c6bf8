//! A server's lists of tools, prompts, resources and resource templates, as one session reads them.
//!
//! A list is read when it is first requested. It is read again when it is requested after the
//! server announced a change or an operator accepted a tool's definition. Since not every server
//! announces changes, a list also becomes stale after a time:
//!
//! - In the modern era: after its `ttlMs`, but not before [`PAUSE`] and not after
//!   [`MAX_AGE_ANNOUNCED`].
//! - In the legacy era: after [`MAX_AGE_ANNOUNCED`] if the server declares that it announces
//!   changes, otherwise after [`MAX_AGE`].
//!
//! A request for a stale list returns this list, and starts another reading in the background.
//! [`ListChanges`](super::ListChanges) notifies clients if the new list differs. If a list cannot
//! be read, the list that was read last is returned. Each request for a page of a list is a flow of
//! the container for which the list is read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use addons::contract::{
    BoxFuture, Client, Container, Definition, Denial, Direction, Frame, FrameBody, HeldMemory,
    LiveFlow, McpSubject, McpTarget, Principal,
};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::cache::{Cache, Differs, Found, PAUSE, Resources};
use super::changes::{List, ListNews};
use super::handshake::request_meta;
use super::known::{Entry, Known, ResourceIndex, named};
use super::pages::{Kind, Pages};
use super::ports::{Clients, Mounted};
use super::tools::pinned;
use super::{Era, Events, MessageReservation, MountError, MountSession, Outcome};
use crate::mcp::warnings::{Subject, excerpt, warn};

/// From this age on, a request for a list of a legacy server starts another reading in the
/// background.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Like [`MAX_AGE`], for a legacy server that announces changes. Also the longest `ttlMs` of a
/// modern server; a longer one counts as this time.
const MAX_AGE_ANNOUNCED: Duration = Duration::from_secs(600);

/// The size up to which a list is not charged to the server's memory, in bytes. A session has at
/// most four lists, so at most 1 MiB of them is not charged.
const UNCHARGED: usize = 256 << 10;

/// The lists of one session's server.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    /// Keeps the lists that were read last, also after the end of the session.
    known: Arc<Mutex<Known>>,
    /// Announces changes of the lists.
    news: Arc<ListNews>,
    server: Arc<str>,
    session: Arc<dyn MountSession>,
    /// The capabilities of the session's clients.
    capabilities: Arc<RawValue>,
    /// The lease on whose behalf lists are requested.
    container: Mutex<Weak<Container>>,
    mount: Arc<Mounted>,
    /// The value of `Mounted::acceptances` when the tools were last requested.
    acceptances: AtomicU64,
    tools: Cache<Arc<[Arc<Definition>]>>,
    prompts: Cache<Arc<[Entry]>>,
    resources: Cache<Resources>,
}

impl Catalog {
    pub(super) fn new(
        mount: &Arc<Mounted>,
        known: &Arc<Mutex<Known>>,
        session: Arc<dyn MountSession>,
        clients: &Clients,
    ) -> Self {
        Self(Arc::new(Inner {
            known: Arc::clone(known),
            news: Arc::clone(&clients.news),
            server: Arc::clone(&mount.settings().name),
            session,
            capabilities: Arc::clone(&clients.key.capabilities),
            container: Mutex::new(clients.requested_by.clone()),
            acceptances: AtomicU64::new(mount.acceptances.load(Ordering::Relaxed)),
            mount: Arc::clone(mount),
            tools: Cache::default(),
            prompts: Cache::default(),
            resources: Cache::default(),
        }))
    }

    /// The tools, in the server's order, without repeated names. Returns the same `Arc` until a
    /// reading differs.
    pub async fn tools(&self) -> Result<Arc<[Arc<Definition>]>, MountError> {
        self.0.look_for_acceptances();
        let read = |inner: Arc<Inner>| -> Reading<_> { Box::pin(inner.read_tools()) };
        self.get(|inner| &inner.tools, read, List::Tools).await
    }

    /// The prompts, in the server's order, without repeated names.
    pub async fn prompts(&self) -> Result<Arc<[Entry]>, MountError> {
        let read = |inner: Arc<Inner>| -> Reading<_> { Box::pin(inner.read_prompts()) };
        self.get(|inner| &inner.prompts, read, List::Prompts).await
    }

    /// The resources, in the server's order, without repeated URIs.
    pub async fn resources(&self) -> Result<Arc<[Entry]>, MountError> {
        let (resources, _, _) = self.all_resources().await?;
        Ok(resources)
    }

    /// The templates of resources, in the server's order, without repetitions.
    pub async fn templates(&self) -> Result<Arc<[Entry]>, MountError> {
        let (_, templates, _) = self.all_resources().await?;
        Ok(templates)
    }

    /// An index of the resources and templates.
    pub async fn index(&self) -> Result<Arc<ResourceIndex>, MountError> {
        let (_, _, index) = self.all_resources().await?;
        Ok(index)
    }

    /// Whether a list can be returned at once.
    pub fn has(&self, list: List) -> bool {
        match list {
            List::Tools => {
                self.0.look_for_acceptances();
                self.0.tools.is_there()
            }
            List::Prompts => self.0.prompts.is_there(),
            List::Resources => self.0.resources.is_there(),
        }
    }

    /// The server's name.
    pub fn server(&self) -> &Arc<str> {
        &self.0.server
    }

    /// Marks a list as outdated and notifies clients. Called when the server announced a change,
    /// either in a message that belongs to no request or on a subscription.
    pub fn changed(&self, list: List) {
        match list {
            List::Tools => self.0.tools.outdate(),
            List::Prompts => self.0.prompts.outdate(),
            List::Resources => self.0.resources.outdate(),
        }
        self.0.news.changed(list);
    }

    /// From now on, requests for lists are flows of this container. Needed for shared sessions,
    /// which belong to no container.
    pub(super) fn request_for(&self, container: &Arc<Container>) {
        *self.0.container.lock() = Arc::downgrade(container);
    }

    async fn all_resources(&self) -> Result<Resources, MountError> {
        let read = |inner: Arc<Inner>| -> Reading<_> { Box::pin(inner.read_resources()) };
        self.get(|inner| &inner.resources, read, List::Resources)
            .await
    }

    async fn get<T: Clone + Send + Sync + Differs + 'static>(
        &self,
        cache: fn(&Inner) -> &Cache<T>,
        read: fn(Arc<Inner>) -> Reading<T>,
        list: List,
    ) -> Result<T, MountError> {
        let inner = &self.0;
        match cache(inner).find() {
            Found::Fresh(value) => return Ok(value),
            Found::Old(value) => {
                let inner = Arc::clone(inner);
                if !cache(&inner).is_being_read() {
                    let (before, runtime) = (value.clone(), inner.mount.common.runtime.clone());
                    runtime.spawn(async move {
                        let now = cache(&inner).read(read(Arc::clone(&inner))).await;
                        if now.is_ok_and(|(now, read)| read && now.differs(&before)) {
                            inner.news.changed(list);
                        }
                    });
                }
                return Ok(value);
            }
            Found::Nothing => {}
        }
        let (value, _) = cache(inner).read(read(Arc::clone(inner))).await?;
        Ok(value)
    }
}

/// A reading of a list. Returns the list, and for how long it is fresh.
type Reading<T> = BoxFuture<'static, Result<(T, Duration), MountError>>;

/// The entries of a list.
struct Entries {
    entries: Vec<Box<RawValue>>,
    /// How long the list is fresh.
    age: Duration,
    memory: MessageReservation,
}

impl Inner {
    /// Marks the tools as outdated if an operator accepted a definition since the tools were last
    /// requested.
    fn look_for_acceptances(&self) {
        let now = self.mount.acceptances.load(Ordering::Relaxed);
        if self.acceptances.swap(now, Ordering::Relaxed) != now {
            self.tools.outdate();
        }
    }

    async fn read_tools(self: Arc<Self>) -> Result<(Arc<[Arc<Definition>]>, Duration), MountError> {
        let read = self.read_pages(Kind::Tools).await?;
        let memory = HeldMemory::of(read.memory);
        let definitions = &self.mount.common.ports.definitions;
        let check = |tool: &RawValue| self.session.check_definition(tool);
        let pins = (!self.session.is_built_in()).then_some(&**definitions);
        let tools = pinned(&self.server, read.entries, check, pins, &memory).await?;
        let mut known = self.known.lock();
        let tools = self.tools.same_or(known.tools.take(), tools.into());
        known.tools = Some(Arc::clone(&tools));
        drop(known);
        Ok((tools, read.age))
    }

    async fn read_prompts(self: Arc<Self>) -> Result<(Arc<[Entry]>, Duration), MountError> {
        let read = self.read_pages(Kind::Prompts).await?;
        let prompts = named(read.entries, "name", &HeldMemory::of(read.memory));
        let mut known = self.known.lock();
        let prompts = self.prompts.same_or(known.prompts.take(), prompts);
        known.prompts = Some(Arc::clone(&prompts));
        drop(known);
        Ok((prompts, read.age))
    }

    async fn read_resources(self: Arc<Self>) -> Result<(Resources, Duration), MountError> {
        let read = self.read_pages(Kind::Resources).await?;
        let read_templates = self.read_pages(Kind::Templates).await?;
        let memory = HeldMemory::of([read.memory, read_templates.memory]);
        let resources = named(read.entries, "uri", &memory);
        let templates = named(read_templates.entries, "uriTemplate", &memory);
        let index = Arc::new(ResourceIndex::of(&resources, &templates, memory));
        let mut known = self.known.lock();
        let before = known.resources.take().zip(known.templates.take());
        let before = before.zip(known.index.take());
        let before = before.map(|((resources, templates), index)| (resources, templates, index));
        let now = (resources, templates, index);
        let all = self.resources.same_or(before, now);
        let (resources, templates, index) = &all;
        known.resources = Some(Arc::clone(resources));
        known.templates = Some(Arc::clone(templates));
        known.index = Some(Arc::clone(index));
        drop(known);
        Ok((all, read.age))
    }

    /// Reads a whole list, and charges it to the server's own memory if it is long. Fails if that
    /// memory is exhausted. The list is empty if the server does not declare the capability, or
    /// declares `resources` and has no method for this list.
    async fn read_pages(&self, kind: Kind) -> Result<Entries, MountError> {
        self.request_pages(kind).await.inspect_err(|error| {
            if let MountError::Protocol(reason) = error {
                let server = &*self.server;
                warn(server, Subject::List, |left_out| {
                    tracing::warn!(
                        server,
                        left_out,
                        reason,
                        "a list of an MCP server cannot be read: clients get its last known \
                         entries, or none"
                    );
                });
            }
        })
    }

    async fn request_pages(&self, kind: Kind) -> Result<Entries, MountError> {
        let mut memory = MessageReservation::default();
        let declared = kind.declared_by(&self.session.described().capabilities);
        let Some(declared) = declared else {
            return Ok(Entries {
                entries: Vec::new(),
                age: MAX_AGE_ANNOUNCED,
                memory,
            });
        };
        let account = self.mount.own_memory.clone();
        let account = account.ok_or_else(|| MountError::Denied(Denial::internal()))?;
        let version = self.session.version();
        let is_modern = version.era() == Era::Modern;
        let meta = is_modern.then(|| request_meta(version, &self.capabilities));
        let mut pages = Pages::default();
        loop {
            let outcome = self.ask(kind.method(), pages.params(meta.as_ref()));
            let result = match outcome.await? {
                Ok(result) => result,
                Err(error) if kind.may_be_missing(&error) || pages.may_have_ended() => break,
                Err(error) => {
                    let why = format!("{}: {}", kind.method(), excerpt(&error.message));
                    return Err(MountError::Protocol(why));
                }
            };
            let is_last = !pages.add(kind, &result, &self.server)?;
            if pages.size() > UNCHARGED {
                let charged = memory.grow_to(&*account, pages.size());
                charged.map_err(MountError::Denied)?;
            }
            if is_last {
                break;
            }
        }
        let age = match (is_modern, declared.list_changed) {
            (true, _) => pages.age().clamp(PAUSE, MAX_AGE_ANNOUNCED),
            (false, true) => MAX_AGE_ANNOUNCED,
            (false, false) => MAX_AGE,
        };
        Ok(Entries {
            entries: pages.entries,
            age,
            memory,
        })
    }

    /// Sends a request as a flow of the container.
    async fn ask(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Outcome, MountError> {
        let container = self.container.lock().upgrade().ok_or_else(gone)?;
        let chain = (self.mount.common.ports.chain)().ok_or_else(gone)?;
        let subject = McpSubject {
            server: Some(Arc::clone(&self.server)),
            method: method.into(),
            name: None,
        };
        let mut start = chain.for_mcp(Client::default(), subject);
        start.principal = Some(Principal::from(container));
        let mut live = LiveFlow::begin(&chain, start);
        let asked = self.exchange(&mut live, method, params).await;
        match &asked {
            Ok(Ok(_)) => {
                live.answered(200);
                live.complete();
            }
            Ok(Err(_)) => {
                live.answered(502);
                live.complete();
            }
            Err(error) => live.denied(&error.clone().into_denial(&self.server)),
        }
        asked
    }

    async fn exchange(
        &self,
        live: &mut LiveFlow,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Outcome, MountError> {
        let chain = Arc::clone(&live.chain);
        let (direction, target) = (
            Direction::ToServer,
            McpTarget::Server(Arc::clone(&self.server)),
        );
        let frame = Frame::request(direction, target.clone(), method, params);
        let permit = chain.mcp_request(&mut live.flow, frame).await;
        let permit = permit.map_err(MountError::Denied)?;
        let answer = timeout(
            self.mount.settings().timeout,
            // No client takes the server's messages during a list request.
            self.session.request(permit, Events::none()),
        );
        let outcome = answer.await.unwrap_or(Err(MountError::TimedOut))?;
        let mut frame = Frame::response(direction, target, method, outcome);
        let judged = chain.mcp_response(&mut live.flow, &mut frame).await;
        judged.map_err(MountError::Denied)?;
        match frame.body {
            FrameBody::Outcome(outcome) => Ok(outcome),
            FrameBody::Params(_) => Err(MountError::Protocol(
                "the chain replaced the server's answer by params".to_owned(),
            )),
        }
    }
}

fn gone() -> MountError {
    MountError::Died { exit: None }
}
