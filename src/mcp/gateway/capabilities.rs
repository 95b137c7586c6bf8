//! What a client says that it can do.

use std::sync::Arc;

use addons::contract::RpcError;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::super::error::{INVALID_PARAMS, protocol_error};
use super::limits::{MAX_CAPABILITIES, MAX_INFO};

/// Results of tasks would come past the gate of responses.
const TASKS: &str = "tasks";
const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A client's capabilities without tasks. They are kept for as long as its session.
pub fn read(raw: &RawValue) -> Result<Arc<RawValue>, RpcError> {
    let text = raw.get();
    if text.len() > MAX_CAPABILITIES {
        return Err(too_long("the client's capabilities", MAX_CAPABILITIES));
    }
    if !text.starts_with('{') {
        let message = "the client's capabilities are no object";
        return Err(protocol_error(INVALID_PARAMS, message));
    }
    if !text.contains(TASKS) && !text.contains('\\') {
        return Ok(raw.to_owned().into());
    }
    let internal = |_| protocol_error(INVALID_PARAMS, "the client's capabilities cannot be read");
    let mut all: Map<String, Value> = serde_json::from_str(text).map_err(internal)?;
    all.shift_remove(TASKS);
    if let Some(Value::Object(extensions)) = all.get_mut("extensions") {
        extensions.shift_remove(TASKS_EXTENSION);
    }
    Ok(to_raw_value(&all).map_err(internal)?.into())
}

/// A client's name and version, which are kept as long.
pub fn read_info(raw: &RawValue) -> Result<Arc<RawValue>, RpcError> {
    if raw.get().len() > MAX_INFO {
        return Err(too_long("clientInfo", MAX_INFO));
    }
    Ok(raw.to_owned().into())
}

fn too_long(what: &str, most: usize) -> RpcError {
    let message = format!("{what} are longer than {most} bytes");
    protocol_error(INVALID_PARAMS, message)
}

#[derive(Deserialize)]
struct Declared<'a> {
    #[serde(borrow)]
    sampling: Option<&'a RawValue>,
    #[serde(borrow)]
    elicitation: Option<&'a RawValue>,
    #[serde(borrow)]
    roots: Option<&'a RawValue>,
}

/// Whether a client can answer a request of a server.
pub fn can_answer(capabilities: &RawValue, method: &str) -> bool {
    let Ok(declared) = serde_json::from_str::<Declared<'_>>(capabilities.get()) else {
        return false;
    };
    match method {
        "sampling/createMessage" => declared.sampling.is_some(),
        "elicitation/create" => declared.elicitation.is_some(),
        "roots/list" => declared.roots.is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn tasks_are_taken_out_however_they_are_written() {
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
    fn what_is_no_object_or_too_long_is_refused() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_CAPABILITIES));
        each_row(["[]", "null", "\"tasks\"", long.as_str()], |given| {
            assert_eq!(read(&raw(given)).unwrap_err().code, INVALID_PARAMS);
        });
        let long = format!("\"{}\"", "x".repeat(MAX_INFO));
        assert!(read_info(&raw(&long)).is_err());
    }

    #[test]
    fn a_client_is_asked_only_what_it_declared() {
        let declared = raw("{\"elicitation\":{},\"roots\":{\"listChanged\":true}}");
        each_row(
            [
                ("elicitation/create", true),
                ("roots/list", true),
                ("sampling/createMessage", false),
            ],
            |(method, can)| assert_eq!(can_answer(&declared, method), can),
        );
    }
}
