//! Translates responses to the client's era.

use addons::contract::{Denial, Frame, FrameBody, RpcError};
use addons::json::Members;
use serde_json::value::RawValue;

use super::super::error::{INVALID_PARAMS, SERVER_ERROR};
use super::params::{Change, edit};
use super::{Era, Outcome, Version};

/// Error code for an unknown resource, up to the revision 2025-11-25.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;

/// Members that forbid caching a result.
const NO_CACHE: [Change<'static>; 2] = [("ttlMs", Some("0")), ("cacheScope", Some("\"private\""))];

/// Translates a server's response to the client's era. Between revisions of one era, the response
/// stays unchanged.
pub(super) fn for_client(
    client: Version,
    server: Version,
    method: &str,
    outcome: Outcome,
) -> Outcome {
    match (client.era(), server.era()) {
        (Era::Modern, Era::Legacy) => for_modern_client(outcome, method == "resources/read"),
        (Era::Legacy, Era::Modern) => outcome.map_err(|error| older_error(method, error)),
        _ => outcome,
    }
}

/// Translates a legacy outcome of the gateway itself to the modern era.
pub fn for_modern_client(outcome: Outcome, is_cacheable: bool) -> Outcome {
    match outcome {
        Ok(result) => Ok(complete(result, is_cacheable)),
        Err(error) => Err(newer_error(error)),
    }
}

/// Adds the members that a modern result requires and that `result` lacks. For a cacheable result,
/// these include [`NO_CACHE`].
fn complete(result: Box<RawValue>, is_cacheable: bool) -> Box<RawValue> {
    let Ok(members) = Members::read(&result) else {
        return result;
    };
    let mut changes: Vec<Change<'_>> = vec![("resultType", Some("\"complete\""))];
    if is_cacheable {
        changes.extend(NO_CACHE);
    }
    changes.retain(|(key, _)| members.get(key).is_none());
    if changes.is_empty() {
        return result;
    }
    let text = edit(&members, &changes);
    drop(members);
    RawValue::from_string(text).unwrap_or(result)
}

/// Translates a legacy error code to the modern era.
fn newer_error(error: RpcError) -> RpcError {
    let code = match error.code {
        RESOURCE_NOT_FOUND => INVALID_PARAMS,
        RpcError::URL_ELICITATION_REQUIRED => SERVER_ERROR,
        code => code,
    };
    RpcError { code, ..error }
}

/// Translates a modern error code to the legacy era.
fn older_error(method: &str, error: RpcError) -> RpcError {
    let names_uri =
        |data: &RawValue| Members::read(data).is_ok_and(|data| data.get("uri").is_some());
    let is_unknown = method == "resources/read"
        && error.code == INVALID_PARAMS
        && error.data.as_deref().is_some_and(names_uri);
    let code = if is_unknown {
        RESOURCE_NOT_FOUND
    } else {
        error.code
    };
    RpcError { code, ..error }
}

/// A result of the gateway itself, with the members that the client's era requires.
pub(super) fn object(client: Version, members: &[(&str, &str)], is_cacheable: bool) -> Outcome {
    let mut object = addons::json::ObjectText::default();
    for (key, value) in members {
        object.member(key, value);
    }
    if client.era() == Era::Modern {
        object.text("resultType", "complete");
        if is_cacheable {
            for (key, value) in NO_CACHE {
                object.member(key, value.unwrap_or_default());
            }
        }
    }
    // The object consists of JSON texts, so it always parses.
    RawValue::from_string(object.end())
        .map_err(|_| super::protocol_error(SERVER_ERROR, "Internal error"))
}

/// Takes the judged outcome out of the frame of a response.
pub(super) fn into_outcome(frame: Frame) -> Result<Outcome, Denial> {
    match frame.body {
        FrameBody::Outcome(outcome) => Ok(outcome),
        FrameBody::Params(_) => Err(Denial::internal()),
    }
}

/// The members of an `input_required` result; `None` for another one, or a malformed one.
pub(super) fn input_required(result: &RawValue) -> Option<Members<'_>> {
    let text = result.get();
    // Avoids parsing: few results contain this word, or an escape, which each of its letters could be
    // written as; and some results are large.
    if !text.contains("input_required") && !text.contains("\\u00") {
        return None;
    }
    let members = Members::read(result).ok()?;
    let asks = members.text("resultType").as_deref() == Some("input_required");
    asks.then_some(members)
}
