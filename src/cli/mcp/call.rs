//! `mcp call`: one call of a tool.

use clap::Args;
use serde_json::{Map, Value};

use super::OnBehalf;
use super::waiting::waiting;
use crate::cli::exit::{Failure, code, print, printable};

/// The tool, its arguments, and the container on whose behalf it is called.
#[derive(Args, Debug)]
pub struct CallTool {
    /// The tool's name, as `mcp list` prints it
    tool: String,
    /// The arguments: a JSON object
    #[arg(value_name = "JSON", value_parser = parse_arguments, default_value = "{}")]
    arguments: Map<String, Value>,
    #[command(flatten)]
    by: OnBehalf,
}

/// Reads a JSON object.
pub fn parse_arguments(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

impl CallTool {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let json = self.by.output.json;
        let client = self.by.client()?;
        let what = format!("waiting for the response of {}", printable(&self.tool));
        let result = waiting(&what, client.call(&self.tool, &self.arguments)).await?;
        if result.get("resultType").and_then(Value::as_str) == Some("input_required") {
            let message = "the tool asks its client for input; call it from an MCP client";
            return Err(Failure::new(code::DENIED, message));
        }
        match json {
            true => print(&result)?,
            false => print(lines(&result))?,
        }
        match result.get("isError") {
            Some(Value::Bool(true)) => Err(Failure::silent(code::DENIED)),
            _ => Ok(()),
        }
    }
}

/// Formats a result: the text of text blocks, and the types of other blocks with their MIME type or
/// URI. Without content, formats `structuredContent`.
fn lines(result: &Value) -> String {
    let content = result.get("content").and_then(Value::as_array);
    let blocks = content.into_iter().flatten().map(|block| {
        let text = |key: &str| block.get(key).and_then(Value::as_str);
        match (text("type"), text("text")) {
            (Some("text"), Some(text)) => {
                text.lines().map(printable).collect::<Vec<_>>().join("\n")
            }
            (kind, _) => {
                let detail = text("mimeType").or(text("uri")).unwrap_or_default();
                let kind = kind.unwrap_or("unknown");
                printable(format!("[{kind} {detail}").trim_end()) + "]"
            }
        }
    });
    let blocks: Vec<_> = blocks.collect();
    match (blocks.is_empty(), result.get("structuredContent")) {
        (true, Some(structured)) => printable(&structured.to_string()),
        _ => blocks.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_shown_as_text() {
        let result = json!({"content": [
            {"type": "text", "text": "sunny\n\u{1b}[2J"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "uri": "file:///x"},
        ]});
        let expected = "sunny\n\\u{1b}[2J\n[image image/png]\n[resource_link file:///x]";
        assert_eq!(lines(&result), expected);
        let structured = json!({"structuredContent": {"a": "\u{9b}2J"}});
        assert_eq!(lines(&structured), r#"{"a":"\u{9b}2J"}"#);
    }

    #[test]
    fn the_arguments_of_a_tool_must_be_a_json_object() {
        assert!(parse_arguments(r#"{"a": 1}"#).is_ok());
        assert!(parse_arguments("[1]").is_err());
        assert!(parse_arguments("").is_err());
    }
}
