//! Judges GraphQL requests by the parsed query, never by a search in its text.

mod allowed;
mod budget;
mod fields;
mod input;
mod mutations;
mod named_nodes;
mod objection;
mod selection;
mod syntax;

use std::fmt::Display;

use serde_json::{Map, Value};

use super::denials;
use super::mentions::Mentions;
use crate::contract::{Buffered, Container, Denial};
use budget::Budget;
use input::Variables;
pub use mutations::Mutations;
use named_nodes::NamedNodes;
use selection::Walk;
use syntax::OperationKind;

/// Limit on the bytes of one body.
pub(super) const MAX_BODY: usize = 1 << 20;

/// Limit on the JSON values in one body, variables included.
const MAX_VALUES: usize = 20_000;

/// Limit on the requests in one body. GitHub refuses batches today; they are judged in case that
/// changes.
const MAX_BATCH: usize = 16;

/// Judges a body: one request or a list of them. Returns the nodes that the body names by id. The
/// caller must look them up, and may let the body pass only if [`NamedNodes::judge`] returns `Ok`.
pub(super) fn judge(
    body: &Buffered,
    mutations: &Mutations,
    mentions: &Mentions,
    container: &Container,
) -> Result<NamedNodes, Denial> {
    let body = body.json_at_most(MAX_VALUES)?;
    let requests = match &body {
        Value::Array(requests) => requests.as_slice(),
        request => std::slice::from_ref(request),
    };
    if requests.is_empty() || requests.len() > MAX_BATCH {
        return Err(malformed(format_args!(
            "a batch has one to {MAX_BATCH} requests"
        )));
    }
    let mut named_nodes = NamedNodes::default();
    let mut budget = Budget::default();
    let rules = Rules {
        mutations,
        mentions,
        container,
    };
    for request in requests {
        judge_request(request, &rules, &mut budget, &mut named_nodes)?;
    }
    Ok(named_nodes)
}

/// Denies a body that is not a GraphQL request, or that takes too much work to judge.
fn malformed(why: impl Display) -> Denial {
    Denial::malformed(format_args!("GraphQL: {why}"))
}

/// The rules by which each request of a body is judged, and the container.
struct Rules<'a> {
    mutations: &'a Mutations,
    mentions: &'a Mentions,
    container: &'a Container,
}

fn judge_request(
    request: &Value,
    rules: &Rules<'_>,
    budget: &mut Budget,
    named_nodes: &mut NamedNodes,
) -> Result<(), Denial> {
    let Value::Object(request) = request else {
        return Err(malformed("a request must be an object"));
    };
    let text = query_text(request)?;
    let given = match request.get("variables") {
        None | Some(Value::Null) => None,
        Some(Value::Object(variables)) => Some(variables),
        Some(_) => return Err(malformed("variables must be an object")),
    };
    let document = syntax::parse(text, budget)?;
    // Each operation is judged, whichever of them `operationName` selects.
    for operation in &document.operations {
        let mut walk = Walk {
            document: &document,
            variables: Variables {
                given,
                defaults: &operation.defaults,
            },
            rules,
            budget,
            named_nodes,
        };
        match operation.kind {
            OperationKind::Query => walk.query(&operation.selections)?,
            OperationKind::Mutation => walk.mutation(&operation.selections)?,
            OperationKind::Subscription => {
                return Err(denials::write("a subscription", rules.container));
            }
        }
    }
    Ok(())
}

/// Returns the text of the query. Denies a request without a text. Also denies a request that has
/// `extensions.persistedQuery` in addition to a text, since the server could run the stored query
/// instead. Also denies unknown members.
fn query_text(request: &Map<String, Value>) -> Result<&str, Denial> {
    const KNOWN: [&str; 4] = ["query", "variables", "operationName", "extensions"];
    if let Some(unknown) = request.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(malformed(format_args!(
            "a request must not have the member {unknown:?}"
        )));
    }
    let persisted = match request.get("extensions") {
        None | Some(Value::Null) => false,
        Some(Value::Object(extensions)) => extensions.contains_key("persistedQuery"),
        Some(_) => return Err(malformed("extensions must be an object")),
    };
    match request.get("query") {
        Some(Value::String(text)) if !persisted => Ok(text),
        Some(Value::String(_)) | None if persisted => Err(malformed(
            "a persisted query cannot be judged; send its text without extensions.persistedQuery",
        )),
        _ => Err(malformed("the request has no query")),
    }
}
