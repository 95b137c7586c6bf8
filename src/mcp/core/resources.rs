//! Requests for resources, completions and the log level. A request with a URI goes to the server
//! that has the resource. The gateway does not rewrite URIs, since it would have to rewrite the
//! URIs within results as well.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::RpcError;
use addons::mcp::ServerSettings;
use addons::raw_json::Members;
use serde_json::value::RawValue;

use super::super::error::INVALID_PARAMS;
use super::lease::Lease;
use super::lists::RESOURCES;
use super::params::{edit, quote};
use super::results::{RESOURCE_NOT_FOUND, object};
use super::{
    Caller, ClientRequest, Core, Era, LogLevel, Mount, Outcome, invalid_params, members,
    refuse_other_spellings,
};

/// The most servers to which a read of an unlisted URI is sent, one after the other. Further
/// servers are not tried.
const MAX_TRIED: usize = 8;
/// Limit on the URIs of one result that are remembered with their server; further URIs are ignored.
const MAX_LINKS: usize = 64;

impl Core {
    pub(super) async fn read_resource(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let caller = &request.caller;
        let uri = uri(request)?;
        let owners = self.owners(caller, &uri).await;
        let mut last = Err(not_found(caller, &uri));
        for settings in owners {
            let target = match self.target(request, &settings, Some(&uri)).await {
                Ok(target) => target,
                Err(error) => {
                    last = Err(error);
                    continue;
                }
            };
            last = match self.forward_and_learn(request, &target, &[]).await {
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
        let owner = self.owners(caller, &uri).await.into_iter().next();
        let owner = owner.ok_or_else(|| not_found(caller, &uri))?;
        let target = self.target(request, &owner, Some(&uri)).await?;
        let preferences = lease.preferences(caller);
        let too_many = || {
            let why = "the session is subscribed to too many resources: unsubscribe from one first";
            invalid_params(why)
        };
        if !preferences.may_subscribe(&uri) {
            return self.respond(request, async { Err(too_many()) }).await;
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
                self.respond_for(Some(&target), request, accepted).await?;
            }
        }
        // Concurrent requests may have reached the limit meanwhile.
        let is_subscribed = preferences.subscribe(&uri);
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
        lease.preferences(caller).uris.lock().remove(&uri);
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
                let uri = reference.text("uri");
                let uri = uri.ok_or_else(|| invalid_params("ref.uri is missing"))?;
                let uri: Arc<str> = uri.into();
                let owner = self.template_owner(caller, &uri).await;
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
        let owners = self.owners(&request.caller, &uri).await;
        let first = owners.into_iter().next();
        let first = first.ok_or_else(|| not_found(&request.caller, &uri))?;
        Ok((first, uri))
    }

    /// The servers that may have a resource: the server that lists the resource or a matching
    /// template, or else the server that is remembered for the URI. If there is neither, up to
    /// [`MAX_TRIED`] servers with the capability `resources`.
    async fn owners(self: &Arc<Self>, caller: &Arc<Caller>, uri: &str) -> Vec<Arc<ServerSettings>> {
        let lease = Lease::of(&caller.container);
        if let Some(owner) = self.owner(caller, uri) {
            return vec![owner];
        }
        let learned = lease.learned(uri);
        let learned = learned.and_then(|server| self.mounts.find(&caller.container, &server));
        if let Some(mount) = learned {
            return vec![mount.settings()];
        }
        // Reads the lists that were not read yet.
        self.read(&RESOURCES, caller, true).await;
        if let Some(owner) = self.owner(caller, uri) {
            return vec![owner];
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
        tried.map(|mount| mount.settings()).collect()
    }

    /// The first server that lists a resource, or a template that matches it.
    fn owner(&self, caller: &Caller, uri: &str) -> Option<Arc<ServerSettings>> {
        let mounts = self.mounts.of(&caller.container);
        let mut mounts = mounts.into_iter();
        let owner = mounts.find(|mount| mount.known(&caller.container).owns(uri))?;
        Some(owner.settings())
    }

    /// The server for a template; the first of these that exists:
    ///
    /// - the first server that lists the template,
    /// - the only server that the caller sees,
    /// - the first server that lists the text as a URI, or a template that matches the text.
    async fn template_owner(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        template: &str,
    ) -> Option<Arc<ServerSettings>> {
        self.read(&RESOURCES, caller, true).await;
        let mounts = self.mounts.of(&caller.container);
        let listed = mounts.iter().find(|mount| {
            let templates = mount.known(&caller.container).templates;
            templates.is_some_and(|all| all.iter().any(|entry| *entry.key == *template))
        });
        match (listed, &mounts[..]) {
            (Some(mount), _) => Some(mount.settings()),
            (None, [sole]) => Some(sole.settings()),
            (None, _) => self.owner(caller, template),
        }
    }
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
    let members = members(request)?;
    let uri = members
        .text("uri")
        .ok_or_else(|| invalid_params("uri is missing"))?;
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
