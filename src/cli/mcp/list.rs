//! `mcp list`: lists the tools that a container sees.

use serde_json::{Value, json};

use super::OnBehalf;
use crate::cli::exit::{Failure, print, printable};

/// The number of characters to which a description is truncated.
const MAX_DESCRIPTION: usize = 100;

pub(super) async fn run(container: OnBehalf) -> Result<(), Failure> {
    let json = container.output.json;
    let tools = container.client()?.tools().await?;
    match json {
        true => print(json!({ "tools": tools })),
        false if tools.is_empty() => print("no tools"),
        false => print(lines(&tools)),
    }
}

/// Formats one tool on each line: its name and the beginning of its description.
fn lines(tools: &[Value]) -> String {
    let text = |tool: &Value, key: &str| {
        let text = tool.get(key).and_then(Value::as_str);
        text.unwrap_or_default().trim().to_owned()
    };
    let names = tools.iter().map(|tool| printable(&text(tool, "name")));
    let names: Vec<_> = names.collect();
    let widths = names.iter().map(|name| name.chars().count());
    let width = widths.max().unwrap_or_default();
    let lines = tools.iter().zip(&names).map(|(tool, name)| {
        let description = text(tool, "description");
        let first = description.lines().next().unwrap_or_default();
        let mut first: String = printable(first);
        if let Some((end, _)) = first.char_indices().nth(MAX_DESCRIPTION) {
            first.truncate(end);
            first.push('…');
        }
        format!("{name:width$}  {first}").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_listed_on_one_line() {
        let tools = [
            json!({"name": "weather_get", "description": "Weather\u{1b}[2J of a city\nand more"}),
            json!({"name": "x"}),
        ];
        let expected = "weather_get  Weather\\u{1b}[2J of a city\nx";
        assert_eq!(lines(&tools), expected);
    }
}
