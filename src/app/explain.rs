//! What would happen to a request, without sending it.

use std::sync::Arc;

use addons::contract::{
    Authority, Client, ContainerId, Denial, Flow, Kind, Path, Principal, Request, Scheme,
};
use http::{HeaderMap, Method, Uri};
use serde_json::{Value, json};

use crate::admin::ExplainRequest;
use crate::registry::Registry;
use crate::world::World;

/// Rehearses a request: every addon is asked as for a real one, nothing is counted, and
/// nothing is sent but the look-up of the name.
pub async fn explain(
    world: &World,
    registry: &Registry,
    question: ExplainRequest,
) -> Result<Value, String> {
    let (scheme, authority, uri) = destination(&question.url)?;
    let method: Method = question
        .method
        .parse()
        .map_err(|_| format!("{:?} is no method", question.method))?;
    let id = ContainerId::parse(&question.container).ok_or("that is no container id")?;
    let found = registry.get(&id).map_err(|error| error.to_string())?;
    let container = found.ok_or_else(|| format!("no container {id} is registered"))?;
    let client = Client {
        source: Some(container.source.clone()),
        peer: None,
    };
    let mut flow = world
        .flow(
            Kind::Http,
            client,
            scheme,
            authority.host.clone(),
            authority.port,
        )
        .rehearse();
    flow.principal = Some(Principal::Container(Arc::clone(&container)));
    let mut request = Request::new(
        method,
        Path::parse(uri.path()),
        uri.query().map(Into::into),
        HeaderMap::new(),
    );
    let verdict = rehearse(world, &mut flow, &mut request).await;
    Ok(report(world, &flow, verdict))
}

async fn rehearse(world: &World, flow: &mut Flow, request: &mut Request) -> Result<(), Denial> {
    world.chain.tunnel(flow).await?;
    let cleared = world.chain.request(flow, request).await?;
    let addresses = world
        .resolver
        .lookup(&cleared, &flow.host, flow.port)
        .await
        .map_err(|denial| denial.by("resolver"))?;
    world.chain.dial(flow, addresses).await?;
    Ok(())
}

fn report(world: &World, flow: &Flow, verdict: Result<(), Denial>) -> Value {
    let denial = verdict.err();
    let denied_by = denial.as_ref().map(Denial::addon);
    let mut reached = true;
    let mut steps = Vec::new();
    for name in world.chain.names() {
        let notes: Vec<&str> = flow
            .notes()
            .iter()
            .filter(|note| note.addon == name)
            .map(|note| note.text.as_str())
            .collect();
        let verdict = match (reached, denied_by == Some(name)) {
            (true, true) => "denied",
            (true, false) => "passed",
            (false, _) => "not reached",
        };
        reached &= denied_by != Some(name);
        steps.push(json!({"addon": name, "verdict": verdict, "notes": notes}));
    }
    json!({
        "allowed": denial.is_none(),
        "host": flow.host.to_string(),
        "port": flow.port,
        "entry": flow.entry.as_ref().map(|entry| json!({"domain": &*entry.label, "origin": entry.origin.to_string()})),
        "steps": steps,
        "denial": denial.as_ref().map(|denial| json!({
            "status": denial.code().status(),
            "body": denial.to_json(),
            "addon": denial.addon(),
            "rule": denial.rule_name(),
        })),
        "edit": denial.as_ref().and_then(Denial::edit),
    })
}

fn destination(url: &str) -> Result<(Scheme, Authority, Uri), String> {
    let uri: Uri = url
        .parse()
        .map_err(|error| format!("{url:?} is no URL: {error}"))?;
    let (scheme, port) = match uri.scheme_str() {
        Some("https") => (Scheme::Https, 443),
        Some("http") => (Scheme::Http, 80),
        _ => return Err(format!("{url:?} begins with neither https:// nor http://")),
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let authority =
        Authority::parse(authority, Some(port)).map_err(|error| format!("{url:?}: {error}"))?;
    Ok((scheme, authority, uri))
}
