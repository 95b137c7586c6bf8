//! `mcp list`: lists the tools that a container sees.

use serde_json::{Value, json};

use super::OnBehalf;
use super::waiting::waiting;
use crate::cli::exit::{Failure, code, print, printable, warn};

/// The number of characters to which a description is truncated.
const MAX_DESCRIPTION: usize = 100;
/// The state of a server that works.
const READY: &str = "ready";
/// A session is open, and something failed since.
const DEGRADED: &str = "degraded";

/// Prints the tools, and the servers that are not ready on standard error. Fails if no server is
/// ready.
pub(super) async fn run(container: OnBehalf) -> Result<(), Failure> {
    let json = container.output.json;
    let client = container.client()?;
    let what = "waiting for the MCP servers to list their tools, at most 10 seconds";
    let listed = waiting(what, client.list()).await?;
    let (tools, servers) = (listed.tools, listed.servers);
    match json {
        true if servers.is_empty() => print(json!({ "tools": tools })),
        true => print(json!({ "tools": tools, "servers": servers })),
        false if tools.is_empty() => print("no tools"),
        false => print(lines(&tools)),
    }?;
    for problem in servers
        .iter()
        .filter_map(|(name, server)| problem(name, server))
    {
        warn(problem);
    }
    let works = |server: &Value| [READY, DEGRADED].contains(&text(server, "state").as_str());
    match servers.is_empty() || servers.values().any(works) {
        true => Ok(()),
        false => Err(Failure::new(code::DENIED, "no MCP server is ready")),
    }
}

/// What is wrong with a server; `None` if it is ready and no host was refused to it.
fn problem(name: &str, server: &Value) -> Option<String> {
    let refused = server.get("refused_hosts").and_then(Value::as_array);
    let refused: Vec<_> = refused
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let state = text(server, "state");
    if state == READY && refused.is_empty() {
        return None;
    }
    let mut problem = format!("server {name} is {state}");
    let reason = text(server, "reason");
    if !reason.is_empty() {
        problem = format!("{problem}: {reason}");
    }
    if !refused.is_empty() {
        let hosts = refused.join(", ");
        problem = format!(
            "{problem}; hosts were refused to it: {hosts}: if it may reach them, add them to `hosts` \
             of its entry in mcp.yaml"
        );
    }
    Some(problem)
}

/// The text of a member, without spaces around it; empty if it is missing or not a text.
fn text(object: &Value, key: &str) -> String {
    let text = object.get(key).and_then(Value::as_str);
    text.unwrap_or_default().trim().to_owned()
}

/// Formats one tool on each line: its name and the beginning of its description.
fn lines(tools: &[Value]) -> String {
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
    use testkit::each_row;

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

    #[test]
    fn a_server_that_is_not_ready_is_named_with_its_reason_and_the_refused_hosts() {
        each_row(
            [
                (json!({"state": "ready"}), None),
                (
                    json!({"state": "connecting"}),
                    Some("server kb is connecting"),
                ),
                (
                    json!({"state": "dead", "reason": "not found"}),
                    Some("server kb is dead: not found"),
                ),
                (
                    json!({"state": "ready", "refused_hosts": ["a.example.com", "b.example.com:80"]}),
                    Some(
                        "server kb is ready; hosts were refused to it: a.example.com, \
                         b.example.com:80: if it may reach them, add them to `hosts` of its entry in \
                         mcp.yaml",
                    ),
                ),
            ],
            |(server, expected)| assert_eq!(problem("kb", &server).as_deref(), expected),
        );
    }
}
