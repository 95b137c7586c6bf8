//! Requests for resources, completions and the log level. A request with a URI goes to the server
//! that has the resource. The gateway does not rewrite URIs, since it would have to rewrite the
//! URIs within results as well.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Container, Denial, RpcError, run_on};
use addons::json::Members;
use addons::mcp::ServerSettings;
use serde_json::value::RawValue;

use super::super::error::{INVALID_PARAMS, SERVER_ERROR};
use super::exchange::Attempt;
use super::lease::Lease;
use super::lists::RESOURCES;
use super::params::{edit, quote};
use super::results::{RESOURCE_NOT_FOUND, object};
use super::{
    Caller, ClientRequest, Core, Era, LogLevel, Mount, Outcome, ResourceIndex, invalid_params,
    members, protocol_error, refuse_other_spellings, rpc_error,
};

/// The most servers to which a read of an unlisted URI is sent, one after the other. Further
/// servers are not tried.
const MAX_TRIED: usize = 8;
/// The longest URI of a request, in bytes. A longer one is refused before it is compared with any
/// list.
pub const MAX_URI: usize = 4 * 1024;
/// The work of matching that is done on the calling thread, in bytes of URIs times parts of
/// templates. It takes less than 1 ms.
const MATCHED_IN_PLACE: usize = 256 * 1024;
/// The work of one turn on a worker, in the same unit: about 50 ms. The next turn waits for the
/// other containers'.
const MATCHED_IN_A_TURN: usize = 32 << 20;
/// Limit on the URIs of one result that are remembered with their server; further URIs are ignored.
const MAX_LINKS: usize = 64;

impl Core {
    pub(super) async fn read_resource(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let uri = uri(request)?;
        let owners = self.owners(caller, &uri).await?;
        let mut last = Err(not_found(caller, &uri));
        for settings in owners {
            let target = match self.target(request, &settings, Some(&uri)).await {
                Ok(target) => target,
                Err(error) => {
                    last = Err(error);
                    continue;
                }
            };
            last = match self
                .forward_and_learn(request, &target, &[], &mut Attempt::default())
                .await
            {
                Ok(Ok(result)) => {
                    Lease::of(&caller.container).learn(&uri, &settings.name);
                    return Ok(result);
                }
                Ok(error) => error,
                Err(failure) if failure.is_of_server() => Err(failure.into()),
                // A denial is final: no other server gets the request.
                Err(failure) => return Err(failure.into()),
            };
        }
        last
    }

    pub(super) async fn subscribe(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let uri = uri(request)?;
        let lease = Lease::of(&caller.container);
        let owner = self.owners(caller, &uri).await?.into_iter().next();
        let owner = owner.ok_or_else(|| not_found(caller, &uri))?;
        let target = self.target(request, &owner, Some(&uri)).await?;
        if !target.pooled.serves(caller) {
            // Notifications of a session go only to the clients that it was opened for.
            let why = "the container has too many sessions with the server for clients of other \
                       capabilities: no session could send this client the changes; try again later";
            let refused = async { Err(protocol_error(SERVER_ERROR, why)) };
            return self.respond_for(&target, request, refused).await;
        }
        let preferences = lease.preferences(caller);
        let too_many = || {
            let why = "the session or the container is subscribed to too many resources: \
                       unsubscribe from one first";
            invalid_params(why)
        };
        if !preferences.may_subscribe(&uri, &lease.uri_room) {
            return self.refuse_judged(request, too_many()).await;
        }
        match target.pooled.session.version().era() {
            Era::Legacy => {
                self.forward(request, &target, &[]).await?;
                let (known, _) = lease.sessions.get(&target.mount, &target.pooled);
                known.subscribed.lock().insert(Arc::clone(&uri));
            }
            // The call of `interest_changed` below sends the server the subscription, in a
            // `subscriptions/listen` request.
            Era::Modern => {
                let accepted = async { object(caller.version, &[], false) };
                self.respond_for(&target, request, accepted).await?;
            }
        }
        // Concurrent requests may have reached the limit meanwhile.
        let is_subscribed = preferences.subscribe(&uri, &lease.uri_room);
        lease.learn(&uri, &owner.name);
        // If the limit was reached, this also unsubscribes at the server, unless another client is
        // subscribed or the session is shared.
        self.interest_changed(lease, caller, Duration::ZERO);
        match is_subscribed {
            true => object(caller.version, &[], false),
            false => Err(too_many()),
        }
    }

    pub(super) async fn unsubscribe(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let uri = uri(request)?;
        let lease = Lease::of(&caller.container);
        lease.preferences(caller).unsubscribe(&uri);
        // Unsubscribes at the server, unless another client is subscribed or the session is shared.
        self.interest_changed(lease, caller, Duration::ZERO);
        let done = async { object(caller.version, &[], false) };
        self.respond(request, done).await
    }

    pub(super) async fn complete(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let members = members(request)?;
        let reference = members.members("ref").ok().flatten();
        let reference = reference.ok_or_else(|| invalid_params("ref is missing"))?;
        refuse_other_spellings(&reference, &["type", "name", "uri"])?;
        let kind = reference.text("type").unwrap_or_default();
        let (settings, name, changed) = match &*kind {
            "ref/prompt" => {
                let exposed = reference.text("name");
                let exposed = exposed.ok_or_else(|| invalid_params("ref.name is missing"))?;
                let found = self.find_prompt(caller, &exposed).await;
                let unknown = || invalid_params(format!("Unknown prompt: {exposed}"));
                let (settings, original) = found.ok_or_else(unknown)?;
                let changed = edit(&reference, &[("name", Some(&quote(&original)))]);
                (settings, original, Some(changed))
            }
            "ref/resource" => {
                let uri = uri_of(&reference, "ref.uri")?;
                let owner = self.template_owner(caller, &uri).await?;
                (owner.ok_or_else(|| not_found(caller, &uri))?, uri, None)
            }
            _ => {
                let why = "ref.type is neither ref/prompt nor ref/resource";
                return Err(invalid_params(why));
            }
        };
        let target = self.target(request, &settings, Some(&name)).await?;
        let change = changed.as_deref().map(|changed| ("ref", Some(changed)));
        self.forward(request, &target, change.as_slice()).await
    }

    /// Sets the lowest severity of log messages that the client's session gets.
    pub(super) async fn set_log_level(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let members = members(request)?;
        let level = members
            .text("level")
            .and_then(|level| LogLevel::parse(&level));
        let level = level.ok_or_else(|| invalid_params("level is not a severity of RFC 5424"))?;
        let work = async {
            let lease = Lease::of(&caller.container);
            *lease.preferences(caller).log_level.lock() = Some(level);
            self.update_sessions(lease, caller).await;
            object(caller.version, &[], false)
        };
        self.respond(request, work).await
    }

    /// The URI that a request reads, and the server that gets the request first.
    pub(super) async fn read_uri(
        self: &Arc<Self>,
        request: &ClientRequest,
    ) -> Result<(Arc<ServerSettings>, Arc<str>), RpcError> {
        let uri = uri(request)?;
        let owners = self.owners(&request.caller, &uri).await?;
        let first = owners.into_iter().next();
        let first = first.ok_or_else(|| not_found(&request.caller, &uri))?;
        Ok((first, uri))
    }

    /// The servers that may have a resource: the server that lists the resource or a matching
    /// template, or else the server that is remembered for the URI. If there is neither, up to
    /// [`MAX_TRIED`] servers with the capability `resources`.
    async fn owners(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        uri: &Arc<str>,
    ) -> Result<Vec<Arc<ServerSettings>>, RpcError> {
        let lease = Lease::of(&caller.container);
        if let Some(owner) = self.owner(caller, uri).await? {
            return Ok(vec![owner]);
        }
        let learned = lease.learned(uri);
        let learned = learned.and_then(|server| self.mounts.find(&caller.container, &server));
        if let Some(mount) = learned {
            return Ok(vec![mount.settings()]);
        }
        // Reads the lists that were not read yet.
        self.read(&RESOURCES, caller, true).await;
        if let Some(owner) = self.owner(caller, uri).await? {
            return Ok(vec![owner]);
        }
        let mounts = self.mounts.of(&caller.container);
        let may_have_it = |mount: &&Arc<Mount>| {
            let described = mount.known(&caller.container).described;
            described.is_some_and(|described| {
                let capabilities = Members::read(&described.capabilities);
                capabilities.is_ok_and(|has| has.get("resources").is_some())
            })
        };
        let tried = mounts.iter().filter(may_have_it).take(MAX_TRIED);
        let mut tried: Vec<_> = tried.map(|mount| mount.settings()).collect();
        // A server raises the level before it answers, so those with the least confidential data
        // are asked first.
        tried.sort_by_key(|server| server.classification);
        Ok(tried)
    }

    /// The first server that lists a resource, or a template that matches it.
    async fn owner(
        &self,
        caller: &Caller,
        uri: &Arc<str>,
    ) -> Result<Option<Arc<ServerSettings>>, RpcError> {
        let mounts = self.mounts.of(&caller.container).into_iter();
        let indexed = mounts.filter_map(|mount| {
            let index = mount.known(&caller.container).index?;
            Some((mount.settings(), index))
        });
        let (servers, indexes): (Vec<_>, Vec<_>) = indexed.unzip();
        let found = self.find_uris(&caller.container, vec![Arc::clone(uri)], indexes);
        let found = found.await.map_err(|denial| rpc_error(&denial))?;
        let first = found.into_iter().next().flatten();
        Ok(first.and_then(|at| servers.into_iter().nth(at)))
    }

    /// For each URI, the first of the indexes that has it. Much work is done on a worker, in turns
    /// with the bodies and URIs of other containers; denied if the container has no memory left, or
    /// if a turn does not come in time.
    pub(super) async fn find_uris(
        &self,
        container: &Arc<Container>,
        uris: Vec<Arc<str>>,
        indexes: Vec<Arc<ResourceIndex>>,
    ) -> Result<Vec<Option<usize>>, Denial> {
        let parts: usize = indexes.iter().map(|index| index.parts()).sum();
        let bytes: usize = uris.iter().map(|uri| uri.len()).sum();
        if bytes.saturating_mul(parts) <= MATCHED_IN_PLACE {
            return Ok(first_with(&uris, &indexes));
        }
        let memory = self.mounts.memory(container);
        let memory = memory.ok_or_else(Denial::internal)?;
        let worker = memory.reserve();
        let worker = worker.inspect_err(|denial| memory.count(denial))?;
        let at_once = MATCHED_IN_A_TURN / parts.max(1) / MAX_URI;
        let mut found = Vec::with_capacity(uris.len());
        for uris in uris.chunks(at_once.max(1)) {
            let (uris, indexes) = (uris.to_vec(), indexes.clone());
            found.extend(run_on(&*worker, move || first_with(&uris, &indexes)).await?);
        }
        Ok(found)
    }

    /// The server for a template; the first of these that exists:
    ///
    /// - the first server that lists the template,
    /// - the only server that the caller sees,
    /// - the first server that lists the text as a URI, or a template that matches the text.
    async fn template_owner(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        template: &Arc<str>,
    ) -> Result<Option<Arc<ServerSettings>>, RpcError> {
        self.read(&RESOURCES, caller, true).await;
        let mounts = self.mounts.of(&caller.container);
        let listed = mounts.iter().find(|mount| {
            let templates = mount.known(&caller.container).templates;
            templates.is_some_and(|all| all.iter().any(|entry| entry.key == *template))
        });
        match (listed, &mounts[..]) {
            (Some(mount), _) => Ok(Some(mount.settings())),
            (None, [sole]) => Ok(Some(sole.settings())),
            (None, _) => self.owner(caller, template).await,
        }
    }
}

/// For each URI, the first of the indexes that has it.
fn first_with(uris: &[Arc<str>], indexes: &[Arc<ResourceIndex>]) -> Vec<Option<usize>> {
    let first = |uri: &Arc<str>| indexes.iter().position(|index| index.has(uri));
    uris.iter().map(first).collect()
}

/// Remembers the server for the URIs in its result, so that `resources/read` is routed to it.
pub(super) fn learn_links(lease: &Lease, server: &Arc<str>, result: &RawValue) {
    let text = result.get();
    if !text.contains("\"resource") {
        return;
    }
    for (at, _) in text.match_indices("\"uri\"").take(MAX_LINKS) {
        let rest = text.get(at + "\"uri\"".len()..).unwrap_or_default();
        let value = rest.trim_start().strip_prefix(':').map(str::trim_start);
        let uri = value.and_then(|value| {
            let mut strings = serde_json::Deserializer::from_str(value).into_iter::<String>();
            strings.next()?.ok()
        });
        if let Some(uri) = uri {
            lease.learn(&uri, server);
        }
    }
}

fn uri(request: &ClientRequest) -> Result<Arc<str>, RpcError> {
    uri_of(&members(request)?, "uri")
}

/// The member `uri`; `name` names it in an error.
fn uri_of(members: &Members<'_>, name: &str) -> Result<Arc<str>, RpcError> {
    let uri = members.text("uri");
    let uri = uri.ok_or_else(|| invalid_params(format!("{name} is missing")))?;
    if uri.len() > MAX_URI {
        let why = format!("{name} is longer than {MAX_URI} bytes");
        return Err(invalid_params(why));
    }
    Ok(uri.into())
}

/// The error for an unknown resource, with the code of the client's era.
fn not_found(caller: &Caller, uri: &str) -> RpcError {
    let code = match caller.version.era() {
        Era::Legacy => RESOURCE_NOT_FOUND,
        Era::Modern => INVALID_PARAMS,
    };
    let data = edit(&Members::default(), &[("uri", Some(&quote(uri)))]);
    RpcError {
        code,
        message: "Resource not found".into(),
        data: RawValue::from_string(data).ok(),
    }
}
