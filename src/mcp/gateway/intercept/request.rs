//! Reads questions: the body, and which dialect it is in.

use std::sync::Arc;

use addons::contract::Denial;
use addons::json::strict::{self, StrictJsonError};
use addons::json::{Members, RawJsonError, same_name};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::Claims;
use super::super::super::message::Outcome;
use super::super::PARSED_IN_PLACE;
use super::super::unreadable;
use super::super::visit::Visit;
use super::paths::Endpoint;
use super::reply::Dialect;
use super::{Known, docker, hooks, structured};
use crate::mcp::message::MessageError;

/// The longest id of a caller, in bytes.
const MAX_ID: usize = 256;

/// A question.
pub enum Asked {
    /// There is nothing to judge: the call failed, or its result is a block of ours.
    Nothing,
    Before {
        claims: Claims,
        method: Arc<str>,
        tool: Option<Tool>,
        params: Option<Box<RawValue>>,
    },
    After {
        claims: Claims,
        tool: Option<Tool>,
        outcome: Outcome,
    },
}

/// Reads the body of a question, and sets the dialect.
pub async fn read(
    visit: &mut Visit<'_>,
    endpoint: Endpoint,
    known: &mut Known,
) -> Result<Asked, Denial> {
    check_type(visit.headers())?;
    let traceparent = visit.traceparent();
    let limits = &visit.request.snapshot.config.proxy.limits;
    let (most, values) = (limits.inspect_body_bytes, limits.inspect_values);
    let body = visit.request.body(most, "inspect_body_bytes").await?;
    let is_long = body.len() > PARSED_IN_PLACE;
    let parse = move || parsed(&body, values);
    let text = match is_long {
        true => visit.request.inspect_on_worker(parse).await??,
        false => parse()?,
    };
    let mut asked = match endpoint {
        Endpoint::ClaudeCode => hooks::read(&text, known)?,
        _ => {
            let is_response = endpoint == Endpoint::After;
            match structured::is_structured(&text, is_response)? {
                true => {
                    known.dialect = Dialect::Structured;
                    structured::read(&text, is_response)?
                }
                false => docker::read(&text, is_response, &visit.lease.own_denials)?,
            }
        }
    };
    if let Asked::Before { claims, .. } | Asked::After { claims, .. } = &mut asked {
        claims.traceparent = traceparent;
    }
    Ok(asked)
}

/// One JSON value without duplicate keys.
fn parsed(body: &Bytes, most_values: usize) -> Result<Box<RawValue>, Denial> {
    let text = strict::check_at_most(most_values, body);
    let text = text.map_err(|error: StrictJsonError| unreadable(MessageError::Json(error)))?;
    RawValue::from_string(text.trim_ascii().to_owned()).map_err(Denial::malformed)
}

/// Refuses a body that the headers declare as something else than JSON in UTF-8. Docker's gateway may
/// declare nothing.
fn check_type(headers: &HeaderMap) -> Result<(), Denial> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = match types.next().map(|value| value.to_str()) {
        None => true,
        Some(Ok(value)) => {
            let mut parts = value.split(';').map(str::trim);
            let is_json = parts
                .next()
                .is_some_and(|one| one.eq_ignore_ascii_case("application/json"));
            is_json && parts.all(is_utf8)
        }
        Some(Err(_)) => false,
    };
    if is_json && types.next().is_none() && !headers.contains_key(CONTENT_ENCODING) {
        return Ok(());
    }
    Err(invalid(
        "Content-Type must be application/json in UTF-8, without a Content-Encoding",
    ))
}

/// Whether a parameter of the media type is no charset, or UTF-8.
fn is_utf8(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let value = value.trim().trim_matches('"');
    !name.trim().eq_ignore_ascii_case("charset") || value.eq_ignore_ascii_case("utf-8")
}

pub fn invalid(what: &str) -> Denial {
    Denial::malformed(what)
}

/// The members of an object. Refuses other spellings of these keys: Go reads keys without regard to
/// case, and takes the last of several.
pub fn members<'t>(text: &'t str, keys: &[&str]) -> Result<Members<'t>, Denial> {
    let members =
        Members::parse(text).map_err(|error: RawJsonError| invalid(&error.to_string()))?;
    let is_other = |key: &&str| !keys.contains(key) && keys.iter().any(|name| same_name(key, name));
    let other = members.iter().map(|(key, _)| key).find(is_other);
    if let Some(key) = other {
        return Err(invalid(&format!(
            "{key:?}: a reader that ignores case would confuse it with another key"
        )));
    }
    Ok(members)
}

/// A member that is a short text, or absent. Refuses other values.
pub fn id(members: &Members<'_>, key: &str) -> Result<Option<Box<str>>, Denial> {
    let Some(json) = members.get(key).filter(|json| *json != "null") else {
        return Ok(None);
    };
    match members.text(key) {
        Some(text) if text.len() <= MAX_ID => {
            Ok(Some((&*text).into()).filter(|id: &Box<str>| !id.is_empty()))
        }
        _ => Err(invalid(&format!(
            "`{key}` must be a text of at most {MAX_ID} bytes, and is {json:.32}"
        ))),
    }
}

/// JSON text as a value.
pub fn raw(json: &str) -> Result<Box<RawValue>, Denial> {
    RawValue::from_string(json.to_owned()).map_err(Denial::malformed)
}
