//! Explains the verdict on a request without sending it.

use std::sync::Arc;

use addons::contract::{
    Authority, Client, Container, ContainerId, Denial, Endpoint, Flow, Kind, Path, Request, Scheme,
    Unavailable, names,
};
use http::{HeaderMap, Method, Uri};

use crate::admin::{ExplainRequest, ExplainStep, Explanation, StepVerdict, not_registered};
use crate::registry::Registry;
use crate::snapshot::Snapshot;

/// Judges a request in a dry run. The chain judges it like a real request, but addons count
/// nothing, and nothing is sent except a DNS look-up of the host. Returns an error if the method,
/// the URL, their combination or the container id is invalid. Also returns an error if the
/// container has no live lease, or if the registry is unavailable.
pub async fn explain(
    snapshot: &Snapshot,
    registry: &Registry,
    question: ExplainRequest,
) -> Result<Explanation, String> {
    let method: Method = question
        .method
        .parse()
        .map_err(|_| format!("{:?} is not an HTTP method", question.method))?;
    let (kind, endpoint, uri) = match method {
        Method::CONNECT => {
            let endpoint = tunnel_destination(&question.url)?;
            (Kind::Tunnel, endpoint, Uri::default())
        }
        _ => destination(&question.url)?,
    };
    if kind == Kind::Websocket && method != Method::GET {
        return Err(format!("a WebSocket is opened with GET, not with {method}"));
    }
    let container = find(registry, &question.container)?;
    let mut start = snapshot
        .chain()
        .to_upstream(kind, client(&container), endpoint);
    start.principal = Some(Arc::clone(&container).into());
    let mut flow = start.begin_dry();
    let mut request = Request::new(
        method,
        Path::parse(uri.path()),
        uri.query().map(Into::into),
        HeaderMap::new(),
    );
    request.websocket = kind == Kind::Websocket;
    let verdict = dry_run(snapshot, &mut flow, &mut request).await;
    // An addon can end a flow with an answer instead of a refusal. The request counts as allowed
    // then, and the addon's note describes the answer.
    Ok(report(
        snapshot,
        &flow,
        verdict.err().filter(Denial::refuses),
    ))
}

/// Passes the flow through the phases of its kind, up to `dial`, which judges the host's addresses.
async fn dry_run(
    snapshot: &Snapshot,
    flow: &mut Flow,
    request: &mut Request,
) -> Result<(), Denial> {
    let chain = snapshot.chain();
    let permit = chain.tunnel(flow).await?;
    let permit = match flow.kind {
        // A real tunnel reaches the phase `dial` with its first request, or at once with
        // passthrough. Here `dial` runs in both cases, since a tunnel is useless if `dial` denies
        // every request in it.
        Kind::Tunnel => permit,
        _ => chain.request(flow, request).await?,
    };
    let addresses = snapshot.network.resolver.lookup(&permit).await;
    let addresses = addresses.map_err(|denial| denial.by(names::RESOLVE))?;
    chain.dial(flow, addresses).await?;
    Ok(())
}

/// Lists the verdict and the notes of each addon of the chain. If `denial` is `None`, the flow is
/// allowed.
pub fn report(snapshot: &Snapshot, flow: &Flow, denial: Option<Denial>) -> Explanation {
    let denied_by = denial.as_ref().map(Denial::addon);
    let mut names = snapshot.chain().names();
    // A part of the engine, such as the resolver, can deny a flow that the chain has passed.
    names.extend(denied_by.filter(|name| !names.contains(name)));
    let mut reached = true;
    let all_notes = flow.notes();
    let mut steps = Vec::with_capacity(names.len());
    for name in names {
        let denial = denial.as_ref().filter(|_| denied_by == Some(name));
        let verdict = match (reached, denial) {
            (false, _) => StepVerdict::NotReached,
            (true, Some(_)) => StepVerdict::Denies,
            (true, None) => StepVerdict::Passes,
        };
        reached &= denial.is_none();
        let notes = all_notes.iter().filter(|note| note.addon == name);
        steps.push(ExplainStep {
            addon: name.to_owned(),
            verdict,
            notes: notes.map(|note| note.text.clone()).collect(),
            code: denial.map(|denial| denial.code().as_str().to_owned()),
            sentence: denial.map(|denial| denial.sentence().to_owned()),
            rule: denial.and_then(Denial::rule_name).map(str::to_owned),
            edit: denial.and_then(Denial::edit).map(str::to_owned),
        });
    }
    Explanation {
        allowed: denial.is_none(),
        steps,
    }
}

fn tunnel_destination(text: &str) -> Result<Endpoint, String> {
    let authority = Authority::parse(text, None).map_err(|error| {
        format!("{text:?}: {error}; a CONNECT names HOST:PORT, for example api.example.com:443")
    })?;
    Ok(endpoint(Scheme::Https, authority))
}

fn endpoint(scheme: Scheme, Authority { host, port }: Authority) -> Endpoint {
    Endpoint { scheme, host, port }
}

fn destination(url: &str) -> Result<(Kind, Endpoint, Uri), String> {
    let uri: Uri = url
        .parse()
        .map_err(|error| format!("{url:?} is not a URL: {error}"))?;
    let (kind, scheme, port) = match uri.scheme_str() {
        Some("https") => (Kind::Http, Scheme::Https, 443),
        Some("http") => (Kind::Http, Scheme::Http, 80),
        Some("wss") => (Kind::Websocket, Scheme::Https, 443),
        Some("ws") => (Kind::Websocket, Scheme::Http, 80),
        _ => {
            return Err(format!(
                "{url:?} does not begin with https://, http://, wss:// or ws://; HOST:PORT alone goes with CONNECT"
            ));
        }
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let authority =
        Authority::parse(authority, Some(port)).map_err(|error| format!("{url:?}: {error}"))?;
    Ok((kind, endpoint(scheme, authority), uri))
}

/// The client of a flow that the appliance makes on behalf of a container.
pub fn client(container: &Container) -> Client {
    Client {
        source: Some(container.source.clone()),
        peer: None,
    }
}

/// Finds the live lease of a container. Returns an error if the id is invalid, the container has no
/// live lease (the error lists those that have one), or the registry is unavailable.
pub fn find(registry: &Registry, id: &str) -> Result<Arc<Container>, String> {
    let id = ContainerId::parse(id).ok_or_else(|| format!("{id:?} is not a container id"))?;
    let shown = |error: Unavailable| error.to_string();
    if let Some(found) = registry.get(&id).map_err(shown)? {
        return Ok(found);
    }
    let live = registry.list().map_err(shown)?;
    let ids: Vec<_> = live.iter().map(|container| &container.id).collect();
    Err(not_registered(id, &ids))
}
