//! Reads the capabilities and the name that a client declares.

use std::sync::Arc;

use addons::contract::RpcError;
use serde_json::value::RawValue;

use super::super::error::{INVALID_PARAMS, protocol_error};
use super::super::tasks::without_tasks;
use super::limits::{MAX_CAPABILITIES, MAX_INFO};

/// Reads a client's capabilities and removes tasks: the capability and the extension. Fails if the
/// value is not an object, or longer than [`MAX_CAPABILITIES`], since a legacy session keeps it.
pub fn read(raw: &RawValue) -> Result<Arc<RawValue>, RpcError> {
    let text = raw.get();
    if text.len() > MAX_CAPABILITIES {
        return Err(too_long("the client's capabilities", MAX_CAPABILITIES));
    }
    if !text.starts_with('{') {
        let message = "the client's capabilities are not an object";
        return Err(protocol_error(INVALID_PARAMS, message));
    }
    let unreadable = |_| protocol_error(INVALID_PARAMS, "the client's capabilities cannot be read");
    let kept = without_tasks(raw.to_owned()).map_err(unreadable)?;
    Ok(kept.into())
}

/// Reads a client's name and version. Fails if the value is longer than [`MAX_INFO`], since a
/// legacy session keeps it.
pub fn read_info(raw: &RawValue) -> Result<Arc<RawValue>, RpcError> {
    if raw.get().len() > MAX_INFO {
        return Err(too_long("clientInfo", MAX_INFO));
    }
    Ok(raw.to_owned().into())
}

fn too_long(what: &str, most: usize) -> RpcError {
    let message = format!("{what} must not be longer than {most} bytes");
    protocol_error(INVALID_PARAMS, message)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn tasks_are_removed_in_any_spelling() {
        each_row(
            [
                ("{}", "{}"),
                ("{ \"roots\": {} }", "{ \"roots\": {} }"),
                ("{\"tasks\":{\"list\":{}},\"roots\":{}}", "{\"roots\":{}}"),
                ("{\"t\\u0061sks\":{},\"a\":1}", "{\"a\":1}"),
                (
                    "{\"extensions\":{\"io.modelcontextprotocol/tasks\":{},\"a/b\":{}}}",
                    "{\"extensions\":{\"a/b\":{}}}",
                ),
            ],
            |(given, kept)| assert_eq!(read(&raw(given)).unwrap().get(), kept),
        );
    }

    #[test]
    fn capabilities_that_are_not_an_object_or_too_long_are_refused() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_CAPABILITIES));
        each_row(["[]", "null", "\"tasks\"", long.as_str()], |given| {
            assert_eq!(read(&raw(given)).unwrap_err().code, INVALID_PARAMS);
        });
        let long = format!("\"{}\"", "x".repeat(MAX_INFO));
        assert!(read_info(&raw(&long)).is_err());
    }
}
