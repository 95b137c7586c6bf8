//! Tasks (2025-11-25, an extension later): refused, since their results would not pass the chain.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

const TASKS: &str = "tasks";
/// The extension that tasks are since 2026-07-28.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The capabilities of a client or a server without tasks.
pub fn without_tasks(capabilities: Box<RawValue>) -> serde_json::Result<Box<RawValue>> {
    let text = capabilities.get();
    // The name may be written with escapes.
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
