//! Reads questions: the body, and which dialect it is in.

use addons::contract::Denial;
use addons::json::strict::{self, StrictJsonError};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::value::RawValue;

use super::super::super::message::MessageError;
use super::super::PARSED_IN_PLACE;
use super::super::unreadable;
use super::super::visit::Visit;
use super::asked::{Asked, invalid};
use super::paths::Endpoint;
use super::reply::Dialect;
use super::{Known, docker, hooks, structured};

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
