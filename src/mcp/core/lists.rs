//! Lists aggregated over all servers.
//!
//! A server that fails or does not respond in time does not make an aggregated list fail. The list
//! contains the last known entries of that server; if none are known, the list leaves the server
//! out. A list waits at most [`LIST_TIMEOUT`] for a server. After a timeout, lists of the lease no
//! longer wait for that server; they wait again once it has responded or failed. When it responds,
//! clients get `list_changed` for each list that differs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, Definition, Direction, Frame, McpTarget};
use addons::mcp::ExposedPrompt;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;

use super::super::warnings::{Subject, warn};
use super::judged_call::JudgedCall;
use super::lease::Lease;
use super::params::quote;
use super::readiness::SERVERS;
use super::results::object;
use super::target::Target;
use super::view::{Listed, PromptView, ToolView, hash, unique};
use super::{
    Caller, Catalog, ClientRequest, Core, Entry, Known, List, Mount, MountError, Outcome, Pooled,
    RpcError, invalid_params, members, rpc_error,
};

/// Time limit for waiting for a server that is being started or whose list must be read. Agents ask
/// for their tools once, when they start, and go on without them after about 5 s.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_millis(3500);
/// The longest page, in bytes. A longer list is divided into pages. A page of a single entry may be
/// longer.
pub(super) const MAX_PAGE: usize = 2 << 20;

/// A list that clients request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Tools,
    Prompts,
    Resources,
    Templates,
}

/// Reads one kind of list from a server.
pub(super) struct ServerList<T: ?Sized> {
    list: List,
    /// Requests the list, or returns it from the session's cache.
    read: fn(Catalog) -> BoxFuture<'static, Result<Arc<T>, MountError>>,
    /// The list that was read most recently; `None` if none was read.
    last: fn(Known) -> Option<Arc<T>>,
}

pub(super) static TOOLS: ServerList<[Arc<Definition>]> = ServerList {
    list: List::Tools,
    read: |catalog| Box::pin(async move { catalog.tools().await }),
    last: |known| known.tools,
};
pub(super) static PROMPTS: ServerList<[Entry]> = ServerList {
    list: List::Prompts,
    read: |catalog| Box::pin(async move { catalog.prompts().await }),
    last: |known| known.prompts,
};
pub(super) static RESOURCES: ServerList<[Entry]> = ServerList {
    list: List::Resources,
    read: |catalog| Box::pin(async move { catalog.resources().await }),
    last: |known| known.resources,
};
static TEMPLATES: ServerList<[Entry]> = ServerList {
    list: List::Resources,
    read: |catalog| Box::pin(async move { catalog.templates().await }),
    last: |known| known.templates,
};

impl Core {
    /// Handles a request for a list.
    pub(super) async fn list(
        self: &Arc<Self>,
        request: &ClientRequest,
        listing: Listing,
    ) -> Outcome {
        let caller = &request.caller;
        let start = cursor(request)?;
        let work = async {
            let lease = Lease::of(&caller.container);
            let left_out = || lease.left_out.load(Ordering::Relaxed);
            let before = left_out();
            let told = |list: List, hash: &dyn Fn() -> u64| {
                if left_out() != before && lease.view(caller).told(list, hash()) {
                    lease.changed.mark(list);
                }
            };
            let mut meta = None;
            let (member, page) = match listing {
                Listing::Tools => {
                    let view = self.tools(caller, true).await;
                    meta = self.readiness(caller, &view);
                    told(List::Tools, &|| hash_of_tools(&view));
                    (
                        "tools",
                        page(view.exposed.listed(), |tool| tool.json(), start),
                    )
                }
                Listing::Prompts => {
                    let view = self.prompts(caller, true).await;
                    told(List::Prompts, &|| hash_of_prompts(&view));
                    let prompts = view.exposed.all().iter();
                    (
                        "prompts",
                        page(prompts, |prompt| prompt.json().into(), start),
                    )
                }
                Listing::Resources => {
                    let lists = self.read(&RESOURCES, caller, true).await;
                    told(List::Resources, &|| {
                        hash_of_resources(&lists, &self.last_known(&TEMPLATES, caller))
                    });
                    let resources = unique(&lists).into_iter();
                    ("resources", page(resources, Cow::Borrowed, start))
                }
                Listing::Templates => {
                    let lists = self.read(&TEMPLATES, caller, true).await;
                    told(List::Resources, &|| {
                        hash_of_resources(&self.last_known(&RESOURCES, caller), &lists)
                    });
                    let templates = unique(&lists).into_iter();
                    ("resourceTemplates", page(templates, Cow::Borrowed, start))
                }
            };
            let page = page.ok_or_else(|| invalid_params("Unknown cursor"))?;
            let next = page.next.map(|at| quote(&encode(at)));
            let mut members = vec![(member, &*page.entries)];
            members.extend(next.as_deref().map(|next| ("nextCursor", next)));
            let meta = meta.map(|servers| json!({ SERVERS: servers }).to_string());
            members.extend(meta.as_deref().map(|meta| ("_meta", meta)));
            object(caller.version, &members, true)
        };
        self.respond(request, work).await
    }

    /// Handles a request that is not forwarded: has the chain judge the request, and then the
    /// outcome of `work`.
    pub(super) async fn respond(
        self: &Arc<Self>,
        request: &ClientRequest,
        work: impl Future<Output = Outcome>,
    ) -> Outcome {
        self.answer(McpTarget::Gateway, None, request, work).await
    }

    /// As [`Self::respond`], for a request that the gateway refuses with this error. The chain may
    /// deny the request first, for example by a rate limit.
    pub(super) async fn refuse_judged(
        self: &Arc<Self>,
        request: &ClientRequest,
        error: RpcError,
    ) -> Outcome {
        let refused = async { Err(error) };
        self.answer(McpTarget::Refused, None, request, refused)
            .await
    }

    /// As [`Self::respond`], for a request that concerns a server.
    pub(super) async fn respond_for(
        self: &Arc<Self>,
        target: &Target,
        request: &ClientRequest,
        work: impl Future<Output = Outcome>,
    ) -> Outcome {
        let name = target.name.as_ref();
        self.answer(target.judged(), name, request, work).await
    }

    async fn answer(
        self: &Arc<Self>,
        target: McpTarget,
        name: Option<&Arc<str>>,
        request: &ClientRequest,
        work: impl Future<Output = Outcome>,
    ) -> Outcome {
        let chain = (self.rules)().chain;
        let (method, caller) = (&request.method, &request.caller);
        let server = target.server();
        let live = self.flow(&chain, caller, method, server, name);
        let tools = match server {
            Some(server) => self.server_tools(caller, server).await,
            None => None,
        };
        let (direction, params) = (Direction::ToServer, request.params.clone());
        let mut frame = Frame::request(direction, target, Arc::clone(method), params);
        frame.tools = tools;
        let judged = async {
            let mut call = JudgedCall::admit(live, frame).await?.open;
            call.conclude(Ok(work.await)).await
        };
        judged
            .await
            .unwrap_or_else(|denial| Err(rpc_error(&denial)))
    }

    /// Reads the list of each server that the caller sees, in the order of the servers' names. With
    /// `wait`, waits for servers whose list is not cached.
    pub(super) async fn read<T: ?Sized + Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: &'static ServerList<T>,
        caller: &Arc<Caller>,
        wait: bool,
    ) -> Vec<Listed<T>> {
        let mounts = self.mounts.of(&caller.container);
        let lists = mounts.into_iter().map(|mount| async move {
            let settings = mount.settings();
            (settings, self.read_one(kind, caller, &mount, wait).await)
        });
        join_all(lists).await
    }

    /// The list that was read most recently from each server that the caller sees.
    fn last_known<T: ?Sized>(&self, kind: &ServerList<T>, caller: &Caller) -> Vec<Listed<T>> {
        let mounts = self.mounts.of(&caller.container).into_iter();
        let known = mounts.map(|mount| {
            let last = (kind.last)(mount.known(&caller.container));
            (mount.settings(), last)
        });
        known.collect()
    }

    /// The list of one server, as in [`Self::read`].
    async fn read_one<T: ?Sized + Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: &'static ServerList<T>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
        wait: bool,
    ) -> Option<Arc<T>> {
        let mut items = self.cached_list(kind, caller, mount);
        if items.is_none() && wait {
            items = self.read_within_timeout(kind, caller, mount).await;
            if items.is_none() {
                let left_out = &Lease::of(&caller.container).left_out;
                left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        items.or_else(|| (kind.last)(mount.known(&caller.container)))
    }

    /// The tools of a server, by which the chain decides whether a client's text may reach the
    /// server; `None` if the tools are not known. Also `None` if the container's level permits the
    /// open world: the chain then does not need the tools.
    pub(super) fn server_tools<'a>(
        self: &'a Arc<Self>,
        caller: &'a Arc<Caller>,
        server: &'a Arc<str>,
    ) -> BoxFuture<'a, Option<Arc<[Arc<Definition>]>>> {
        Box::pin(async move {
            if !caller.container.level().excludes_open_world() {
                return None;
            }
            let mount = self.mounts.find(&caller.container, server)?;
            self.read_one(&TOOLS, caller, &mount, true).await
        })
    }

    /// The list that an open session has cached; `None` if it would have to be read, or no session
    /// is open.
    fn cached_list<T: ?Sized>(
        self: &Arc<Self>,
        kind: &ServerList<T>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Option<Arc<T>> {
        let pooled = self.session(caller, mount).now_or_never()?.ok()?;
        // A list that is not cached is left to `read_within_timeout`, whose task continues if the
        // client disconnects.
        let is_cached = pooled.catalog.has(kind.list);
        let read = is_cached.then(|| (kind.read)(pooled.catalog.clone()).now_or_never());
        read??.ok()
    }

    /// A server's list, as [`Self::within_timeout`].
    async fn read_within_timeout<T: ?Sized + Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: &'static ServerList<T>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Option<Arc<T>> {
        let read = move |pooled: Arc<Pooled>| (kind.read)(pooled.catalog.clone());
        self.within_timeout(caller, mount, read).await
    }

    /// What `read` returns for a session with a server; waits at most [`LIST_TIMEOUT`]. `None` if the
    /// server does not respond in time or fails. Does not wait for a server that
    /// [is slow](Lease::is_slow), so that a client waits once for a server that takes long to start.
    pub(super) async fn within_timeout<T, R>(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
        read: impl FnOnce(Arc<Pooled>) -> R + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        R: Future<Output = Result<T, MountError>> + Send + 'static,
    {
        let lease = Arc::clone(Lease::of(&caller.container));
        let server = Arc::clone(&mount.settings().name);
        if lease.is_slow(&server) {
            return None;
        }
        let (core, caller, mount) = (Arc::clone(self), Arc::clone(caller), Arc::clone(mount));
        let (slow, name) = (Arc::clone(&lease), Arc::clone(&server));
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended_in_task = Arc::clone(&has_ended);
        let reading = self.runtime.spawn(async move {
            let read = async { read(core.session(&caller, &mount).await?).await };
            let read = read.await;
            ended_in_task.store(true, Ordering::SeqCst);
            if slow.set_slow(&name, false) && read.is_ok() {
                // Meanwhile, lists left out the server or contained its last known entries.
                for list in List::ALL {
                    slow.changed.mark(list);
                }
            }
            read
        });
        match timeout(LIST_TIMEOUT, reading).await {
            Ok(read) => read.ok()?.ok(),
            Err(_elapsed) => {
                lease.set_slow(&server, true);
                if has_ended.load(Ordering::SeqCst) {
                    // The task may have ended before `set_slow` above.
                    lease.set_slow(&server, false);
                }
                warn(&server, Subject::List, |left_out| {
                    tracing::warn!(
                        %server, left_out,
                        "an MCP server does not answer: until it does, lists contain its last \
                         known entries or leave it out"
                    );
                });
                None
            }
        }
    }

    /// Hash of a list, as clients with the caller's revision and capabilities see it.
    pub(super) async fn hash_of(self: &Arc<Self>, caller: &Arc<Caller>, list: List) -> u64 {
        match list {
            List::Tools => hash_of_tools(&*self.tools(caller, true).await),
            List::Prompts => hash_of_prompts(&*self.prompts(caller, true).await),
            List::Resources => {
                let resources = self.read(&RESOURCES, caller, true).await;
                let templates = self.read(&TEMPLATES, caller, true).await;
                hash_of_resources(&resources, &templates)
            }
        }
    }
}

fn hash_of_tools(view: &ToolView) -> u64 {
    hash(view.exposed.tools())
}

fn hash_of_prompts(view: &PromptView) -> u64 {
    hash(view.exposed.all().iter().map(ExposedPrompt::json))
}

fn hash_of_resources(resources: &[Listed<[Entry]>], templates: &[Listed<[Entry]>]) -> u64 {
    hash(unique(resources).into_iter().chain(unique(templates)))
}

/// A page of a list.
struct Page {
    /// JSON array.
    entries: String,
    /// Index of the next page's first entry; `None` for the last page.
    next: Option<usize>,
}

/// The page that begins at this entry; `None` if the list has no such entry. An empty list has an
/// empty page at entry 0. `json` writes an entry.
fn page<'a, T>(
    entries: impl Iterator<Item = T>,
    json: impl Fn(T) -> Cow<'a, str>,
    start: usize,
) -> Option<Page> {
    let mut entries = entries.enumerate().skip(start).peekable();
    if start > 0 && entries.peek().is_none() {
        return None;
    }
    let mut text = String::from("[");
    let mut next = None;
    for (at, entry) in entries {
        let (entry, is_first) = (json(entry), at == start);
        if !is_first && text.len() + entry.len() > MAX_PAGE {
            next = Some(at);
            break;
        }
        if !is_first {
            text.push(',');
        }
        text.push_str(&entry);
    }
    text.push(']');
    Some(Page {
        entries: text,
        next,
    })
}

/// The index of the requested page's first entry, from the cursor; 0 without a cursor.
fn cursor(request: &ClientRequest) -> Result<usize, RpcError> {
    let members = members(request)?;
    if matches!(members.get("cursor"), None | Some("null")) {
        return Ok(0);
    }
    let text = members.text("cursor");
    let decoded = text.and_then(|text| URL_SAFE_NO_PAD.decode(&*text).ok());
    let start = decoded.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
    start.ok_or_else(|| invalid_params("Unknown cursor"))
}

fn encode(at: usize) -> String {
    URL_SAFE_NO_PAD.encode(at.to_string())
}
