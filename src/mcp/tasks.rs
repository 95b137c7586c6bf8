//! Removes the capability `tasks` of servers, since the results of their tasks would bypass the chain.
//! Tasks are part of 2025-11-25, and an extension since 2026-07-28. The gateway has tasks of its own.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

const TASKS: &str = "tasks";
/// The name of the extension that defines tasks since 2026-07-28.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Removes tasks from the capabilities of a server.
pub fn without_tasks(capabilities: Box<RawValue>) -> serde_json::Result<Box<RawValue>> {
    let text = capabilities.get();
    // JSON may spell the name with escapes.
    if !text.contains(TASKS) && !text.contains('\\') {
        return Ok(capabilities);
    }
    let mut all: Map<String, Value> = serde_json::from_str(text)?;
    all.shift_remove(TASKS);
    if let Some(Value::Object(extensions)) = all.get_mut("extensions") {
        extensions.shift_remove(TASKS_EXTENSION);
    }
    to_raw_value(&all)
}
