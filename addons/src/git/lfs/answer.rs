//! Rewrites the response to an LFS batch call before the container sees it.

use bytes::Bytes;
use http::{HeaderName, Uri};
use serde_json::{Map, Value, json};

use super::{Reachable, serialize, tokens};
use crate::contract::{Buffered, Code, Container, Denial, Endpoint, Host, Stage};

/// The keys under which an object may hold its actions; `_links` is the older key.
const ACTION_KEYS: [&str; 2] = ["actions", "_links"];

/// Fields of an action's `header` that hold no credential.
const HARMLESS: [&str; 5] = [
    "accept",
    "content-type",
    "transfer-encoding",
    "x-amz-content-sha256",
    "x-amz-date",
];

/// Returns the body that replaces the response of `host`.
pub(super) fn rewrite_body(
    body: &Buffered,
    host: &Host,
    container: &Container,
    reachable: &Reachable,
) -> Result<Bytes, Denial> {
    let response = body.json();
    let mut response = response.map_err(|denial| blame_upstream(denial, host))?;
    rewrite(&mut response, container, reachable);
    serialize(&response, body)
}

/// Turns the denial of malformed JSON into a fault of the upstream.
fn blame_upstream(denial: Denial, host: &Host) -> Denial {
    if denial.code() != Code::MalformedRequest {
        return denial;
    }
    let sentence = format!("{host} answered an LFS batch with invalid JSON");
    Denial::new(Code::UpstreamUnreachable, sentence).at(Stage::Response)
}

/// Replaces tokens by placeholders. If the URL of one action is invalid, or leads to a host and
/// port that the container may not reach, the object gets an error instead of all its actions.
fn rewrite(response: &mut Value, container: &Container, reachable: &Reachable) {
    let objects = response.get_mut("objects").and_then(Value::as_array_mut);
    for object in objects.into_iter().flatten() {
        if let Some(object) = object.as_object_mut() {
            rewrite_object(object, container, reachable);
        }
    }
}

fn rewrite_object(object: &mut Map<String, Value>, container: &Container, reachable: &Reachable) {
    let mut removed = None;
    for key in ACTION_KEYS {
        let Some(actions) = object.get_mut(key).and_then(Value::as_object_mut) else {
            continue;
        };
        actions.retain(|_, action| match target(action) {
            Ok((host, port)) if reachable(container, &host, port) => {
                hide_tokens(action, container, (&host, port));
                true
            }
            Ok((host, _)) => {
                removed = Some(format!("Domain not allowed: {host}"));
                false
            }
            Err(()) => {
                removed = Some("The git host sent no valid URL for this file".to_owned());
                false
            }
        });
    }
    if let Some(message) = removed {
        // An upload without its verification would be useless, so all actions are removed.
        for key in ACTION_KEYS {
            object.shift_remove(key);
        }
        object.insert(
            "error".to_owned(),
            json!({ "code": 403, "message": message }),
        );
    }
}

fn target(action: &Value) -> Result<(Host, u16), ()> {
    let href = action.get("href").and_then(Value::as_str).ok_or(())?;
    let uri: Uri = href.parse().map_err(|_| ())?;
    let Endpoint { host, port, .. } = Endpoint::of(&uri).ok_or(())?;
    Ok((host, port))
}

/// Replaces the values of an action's header fields by placeholders, except for [`HARMLESS`]
/// fields. Removes a field with an invalid name, or with a value that cannot be replaced.
fn hide_tokens(action: &mut Value, container: &Container, target: (&Host, u16)) {
    let Some(fields) = action.get_mut("header").and_then(Value::as_object_mut) else {
        return;
    };
    fields.retain(|name, value| {
        let Ok(field) = name.parse::<HeaderName>() else {
            return false;
        };
        if HARMLESS.contains(&field.as_str()) {
            return true;
        }
        let Some(token) = value.as_str() else {
            return false;
        };
        let placeholder = tokens::keep(container, target, field, token);
        let kept = placeholder.map(|placeholder| *value = placeholder.into());
        kept.is_some()
    });
}
