//! Header fields of the transport.

use addons::contract::Denial;
use http::{HeaderMap, HeaderName, StatusCode};

use super::refusal::{INVALID, refuse};

pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The value of a field that must not stand twice.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Denial> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(value) if values.next().is_none() => Ok(Some(value.trim())),
        _ => {
            let sentence = format!("{name} must be one value of visible ASCII characters");
            Err(refuse(StatusCode::BAD_REQUEST, None, INVALID, sentence))
        }
    }
}
