//! Reads questions: the body, and which dialect it is in.

use std::sync::Arc;

use addons::contract::Denial;
use addons::json::Members;
use addons::json::strict::{self, StrictJsonError};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::value::RawValue;

use super::super::super::message::MessageError;
use super::super::PARSED_IN_PLACE;
use super::super::unreadable;
use super::super::visit::Visit;
use super::asked::{Asked, Parsed};
use super::own_denials::OwnDenials;
use super::paths::Endpoint;
use super::reply::Dialect;
use super::{Known, docker, hooks, structured};

/// Reads the body of a question, and sets the dialect. A long body is read on a worker.
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
    let lease = Arc::clone(&visit.lease);
    let parse = move || {
        let text = parsed(&body, values)?;
        Ok::<_, Denial>(question(&text, endpoint, &lease.own_denials, values))
    };
    let parsed = match is_long {
        true => visit.request.inspect_on_worker(parse).await??,
        false => parse()?,
    };
    (known.dialect, known.kind) = (parsed.dialect, parsed.kind);
    let mut asked = parsed.asked?;
    let claims = match &mut asked {
        Asked::Before { before, .. } => &mut before.claims,
        Asked::After(after) => &mut after.claims,
    };
    claims.traceparent = traceparent;
    Ok(asked)
}

/// Reads a question in the dialect of its endpoint and of its members.
fn question(text: &RawValue, endpoint: Endpoint, own: &OwnDenials, values: usize) -> Parsed {
    if endpoint == Endpoint::ClaudeCode {
        return hooks::read(text);
    }
    let is_response = endpoint == Endpoint::After;
    let (dialect, asked) = match structured::is_structured(text, is_response) {
        _ if is_event(text) => {
            let what = "Claude Code's events are answered at /intercept/claude-code";
            (Dialect::PreToolUse, Err(Denial::malformed(what)))
        }
        Ok(true) => {
            let asked = structured::read(text, is_response, own, values);
            (Dialect::Structured, asked)
        }
        Ok(false) if is_response => (Dialect::Docker, docker::after(text, own)),
        Ok(false) => (Dialect::Docker, docker::before(text, values)),
        Err(denial) => (Dialect::Docker, Err(denial)),
    };
    Parsed {
        dialect,
        kind: endpoint.kind(),
        asked,
    }
}

/// Whether a body is an event of Claude Code, which ignores answers with a status of an error.
fn is_event(text: &RawValue) -> bool {
    let members = Members::read(text);
    members.is_ok_and(|members| members.get(hooks::EVENT).is_some())
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
    Err(Denial::malformed(
        "Content-Type must be application/json in UTF-8, without a Content-Encoding",
    ))
}

/// Whether a parameter of the media type is no charset, or UTF-8.
fn is_utf8(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let value = value.trim().trim_matches('"');
    !name.trim().eq_ignore_ascii_case("charset") || value.eq_ignore_ascii_case("utf-8")
}
