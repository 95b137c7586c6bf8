//! Models that call a tool, once with each of some arguments, before they reply.

use serde_json::{Value, json};

use super::stand_ins;
use crate::support::Seen;

/// The response of a model: a call of the tool whose name ends in `tool`, with the arguments after
/// those whose results the request contains. `None` for the last request, and for requests without
/// the tool.
pub fn answer(seen: &Seen, body: &Value, tool: &str, calls: &[Value]) -> Option<(u16, Value)> {
    let (namespace, name) = offered(&body["tools"], tool)?;
    let number = results(body).len();
    let arguments = calls.get(number)?;
    let response = if seen.target.contains("/responses") {
        let mut item = json!({
            "type": "function_call", "id": format!("fc_{number}"), "status": "completed",
            "call_id": format!("call_{number}"), "name": name,
            "arguments": arguments.to_string(),
        });
        if let Some(namespace) = namespace {
            item["namespace"] = namespace.into();
        }
        let mut began = item.clone();
        began["arguments"] = "".into();
        stand_ins::response_of(&began, None, &item)
    } else if seen.target.contains(":streamGenerateContent") {
        let call = json!({ "functionCall": { "name": name, "args": arguments } });
        stand_ins::stream_of(&stand_ins::candidate(&call))
    } else {
        let id = format!("toolu_{number}");
        let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
        let delta = json!({ "type": "input_json_delta", "partial_json": arguments.to_string() });
        stand_ins::message_of(&body["model"], &block, &delta, "tool_use")
    };
    Some((200, response))
}

/// Namespace and name of the tool whose name ends in `tool`.
fn offered(tools: &Value, tool: &str) -> Option<(Option<String>, String)> {
    objects(tools).into_iter().find_map(|object| {
        let named = |object: &Value| {
            let name = object["name"].as_str()?;
            name.ends_with(tool).then(|| name.to_owned())
        };
        if object["type"] == "namespace" {
            let inner = object["tools"].as_array()?.iter().find_map(named)?;
            return Some((object["name"].as_str().map(str::to_owned), inner));
        }
        Some((None, named(object)?))
    })
}

/// The results of tools in a request to a model, oldest first.
pub fn results(body: &Value) -> Vec<&Value> {
    let histories = ["messages", "input", "contents"].map(|name| objects(&body[name]));
    let is_result = |object: &&Value| {
        let kinds = ["tool_result", "function_call_output"];
        kinds.iter().any(|kind| object["type"] == *kind) || object.get("functionResponse").is_some()
    };
    histories.into_iter().flatten().filter(is_result).collect()
}

/// All objects within a value, outer ones first.
fn objects(value: &Value) -> Vec<&Value> {
    let (own, inner): (_, Vec<&Value>) = match value {
        Value::Object(members) => (Some(value), members.values().collect()),
        Value::Array(elements) => (None, elements.iter().collect()),
        _ => (None, Vec::new()),
    };
    own.into_iter()
        .chain(inner.into_iter().flat_map(objects))
        .collect()
}
