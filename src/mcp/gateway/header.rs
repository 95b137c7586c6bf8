//! Reads header fields.

use addons::contract::Denial;
use http::{HeaderMap, HeaderName};

use super::refusal::bad_request;

/// The value of a field, without surrounding white space; `None` without the field. Refuses a
/// repeated field, and a value with characters other than visible ASCII, spaces and tabs.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Denial> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(value) if values.next().is_none() => Ok(Some(value.trim())),
        _ => {
            let sentence =
                format!("{name} must appear once, with a value of visible ASCII characters");
            Err(bad_request(None, sentence))
        }
    }
}
