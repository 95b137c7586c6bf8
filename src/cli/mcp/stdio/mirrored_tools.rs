//! Remembers the tools whose arguments are mirrored in header fields: `x-mcp-header` (2026-07-28).

use std::collections::HashMap;

use addons::json::Members;
use http::HeaderMap;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::add_param_fields;

const ANNOTATION: &str = "x-mcp-header";
/// Limit on the number of remembered definitions. Further ones are not remembered.
const MAX_TOOLS: usize = 10_000;
/// The largest definition that is remembered, in bytes of JSON.
const MAX_DEFINITION: usize = 64 * 1024;

/// The most recently listed definition of each tool whose definition may contain [`ANNOTATION`], by
/// the tool's name.
#[derive(Default)]
pub struct MirroredTools(Mutex<HashMap<String, Box<RawValue>>>);

impl MirroredTools {
    /// Remembers the definitions on a page of `tools/list` that may contain [`ANNOTATION`]. Forgets
    /// the earlier definition of every tool on the page.
    pub fn learn(&self, result: &RawValue) {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            tools: Vec<Box<RawValue>>,
        }
        let Ok(page) = serde_json::from_str::<Page>(result.get()) else {
            return;
        };
        let mut known = self.0.lock();
        for tool in page.tools {
            let name = Members::read(&tool).ok();
            let Some(name) = name.and_then(|tool| Some(tool.text("name")?.into_owned())) else {
                continue;
            };
            let text = tool.get();
            // JSON may spell the annotation's name with escapes.
            let may_have = text.contains(ANNOTATION) || text.contains("\\u");
            let has_room = known.len() < MAX_TOOLS || known.contains_key(&name);
            match may_have && has_room && text.len() <= MAX_DEFINITION {
                true => known.insert(name, tool),
                false => known.remove(&name),
            };
        }
    }

    /// Adds the header fields that mirror a call's arguments, if its tool is remembered.
    pub fn add_fields(&self, params: Option<&RawValue>, fields: &mut HeaderMap) {
        let name = params.and_then(|params| Members::read(params).ok());
        let Some(name) = name.and_then(|params| Some(params.text("name")?.into_owned())) else {
            return;
        };
        let Some(tool) = self.0.lock().get(&name).cloned() else {
            return;
        };
        // An error means that the definition or the arguments are invalid. The call is sent without
        // the fields, and the gateway decides about it.
        let _ = add_param_fields(&tool, params, fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn mirrored_fields_follow_the_last_listed_definition() {
        let tools = MirroredTools::default();
        let call = raw(r#"{"name":"sql","arguments":{"region":"eu"}}"#);
        let field = || {
            let mut fields = HeaderMap::new();
            tools.add_fields(Some(&call), &mut fields);
            fields.get("mcp-param-region").cloned()
        };
        assert_eq!(field(), None);
        let annotated = r#"{"tools":[{"name":"sql","inputSchema":{"type":"object","properties":
            {"region":{"type":"string","x-mcp-header":"Region"}}}}]}"#;
        tools.learn(&raw(annotated));
        assert_eq!(field().unwrap(), "eu");
        tools.learn(&raw(
            r#"{"tools":[{"name":"sql","inputSchema":{"type":"object"}}]}"#,
        ));
        assert_eq!(field(), None);
    }
}
