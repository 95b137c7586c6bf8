//! Reads the capabilities and the name that a client declares.

use std::sync::Arc;

use addons::contract::RpcError;
use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;

use super::super::error::{INVALID_PARAMS, SERVER_ERROR, protocol_error};
use super::super::tasks::TASKS_EXTENSION;
use super::limits::{MAX_CAPABILITIES, MAX_INFO};

/// The client capabilities that the gateway passes on to servers, each with the members that are
/// kept. `tasks` is left out, since the results of servers' tasks would bypass the chain.
const PASSED_ON: [(&str, &[&str]); 3] = [
    ("roots", &["listChanged"]),
    ("sampling", &["context", "tools"]),
    ("elicitation", &["form", "url"]),
];

/// Reads a client's capabilities. Keeps only [`PASSED_ON`], and no text that the client chose,
/// since servers get the capabilities in a handshake that the chain does not judge. Fails if the
/// value is not an object, or is longer than [`MAX_CAPABILITIES`].
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
    let given = Members::read(raw).map_err(unreadable)?;
    let mut kept = ObjectText::default();
    for (capability, members) in PASSED_ON {
        if let Ok(Some(declared)) = given.members(capability) {
            kept.member(capability, &flags(&declared, members));
        }
    }
    let kept = RawValue::from_string(kept.end());
    let kept =
        kept.map_err(|_| protocol_error(SERVER_ERROR, "the capabilities cannot be written"))?;
    Ok(kept.into())
}

/// Whether capabilities declare the extension of tasks.
pub fn declare_tasks(raw: &RawValue) -> bool {
    let declared = Members::read(raw).and_then(|given| given.members("extensions"));
    let tasks = declared.ok().flatten();
    let tasks = tasks.and_then(|extensions| extensions.get(TASKS_EXTENSION));
    tasks.is_some_and(|settings| settings.starts_with('{'))
}

/// Keeps the members with these names that are booleans or objects. Objects become empty.
fn flags(declared: &Members<'_>, names: &[&str]) -> String {
    let mut kept = ObjectText::default();
    for name in names {
        match declared.get(name) {
            Some(value @ ("true" | "false")) => kept.member(name, value),
            Some(value) if value.starts_with('{') => kept.member(name, "{}"),
            _ => {}
        }
    }
    kept.end()
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
    fn only_standard_capabilities_without_text_are_kept() {
        each_row(
            [
                ("{}", "{}"),
                ("{ \"roots\": {} }", "{\"roots\":{}}"),
                ("{\"tasks\":{\"list\":{}},\"roots\":{}}", "{\"roots\":{}}"),
                ("{\"t\\u0061sks\":{},\"a\":1}", "{}"),
                (
                    "{\"extensions\":{\"a/b\":{}},\"experimental\":{\"secret\":{}}}",
                    "{}",
                ),
                (
                    "{\"roots\":{\"listChanged\":true,\"secret\":true}}",
                    "{\"roots\":{\"listChanged\":true}}",
                ),
                ("{\"roots\":{\"listChanged\":\"secret\"}}", "{\"roots\":{}}"),
                (
                    "{\"sampling\":{\"tools\":{\"secret\":1},\"context\":{}}}",
                    "{\"sampling\":{\"context\":{},\"tools\":{}}}",
                ),
                (
                    "{\"elicitation\":{\"form\":{},\"url\":[\"secret\"]}}",
                    "{\"elicitation\":{\"form\":{}}}",
                ),
                ("{\"elicitation\":\"secret\",\"sampling\":null}", "{}"),
            ],
            |(given, kept)| assert_eq!(read(&raw(given)).unwrap().get(), kept),
        );
    }

    #[test]
    fn tasks_are_declared_by_an_object_among_the_extensions() {
        let name = "io.modelcontextprotocol/tasks";
        each_row(
            [
                (format!("{{\"extensions\":{{\"{name}\":{{}}}}}}"), true),
                (
                    format!("{{\"extensions\":{{\"a/b\":1,\"{name}\":{{\"a\":1}}}}}}"),
                    true,
                ),
                (format!("{{\"extensions\":{{\"{name}\":true}}}}"), false),
                (format!("{{\"extensions\":{{\"{name}\":null}}}}"), false),
                (format!("{{\"extensions\":[\"{name}\"]}}"), false),
                (format!("{{\"{name}\":{{}}}}"), false),
                ("{\"tasks\":{\"list\":{}}}".to_owned(), false),
                ("{}".to_owned(), false),
            ],
            |(given, declared)| assert_eq!(declare_tasks(&raw(&given)), declared, "{given}"),
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
