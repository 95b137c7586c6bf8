//! Servers that deviate from the protocol: their tools are there, and the log says what was odd.

use serde_json::{Value, json};

use super::hostile::client::{Client, ERAS, Gateway, text};
use super::hostile::server::{Answer, McpServer, Seen, text_result, tool};
use crate::support::{SOON, eventually};

const JSON: &str = "content-type: application/json";

/// A server whose only tool is `read`.
fn server(script: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> McpServer {
    McpServer::scripted(vec![tool("read")], script)
}

/// The results of a server's handshakes, with these capabilities.
fn handshake(seen: &Seen, capabilities: &Value) -> Option<Value> {
    match seen.method() {
        "initialize" => Some(json!({
            "protocolVersion": seen.message["params"]["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": { "name": "odd", "version": "1" },
        })),
        "server/discover" => Some(json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "resultType": "complete",
        })),
        _ => None,
    }
}

fn declaring(capabilities: Value) -> McpServer {
    server(move |seen| handshake(seen, &capabilities).map(Answer::Result))
}

/// Answers with the id as a string.
fn with_text_id(seen: &Seen) -> Option<Answer> {
    let result = match seen.method() {
        "tools/list" => json!({ "tools": [tool("read")], "resultType": "complete" }),
        "tools/call" => text_result("read"),
        _ => handshake(seen, &json!({ "tools": {} }))?,
    };
    let id = seen.message["id"].to_string();
    let message = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    Some(Answer::Http(200, JSON.to_owned(), message.to_string()))
}

/// Lists `read` on a second page, to which the number 1 leads.
fn with_number_as_cursor(seen: &Seen) -> Option<Answer> {
    if seen.method() != "tools/list" {
        return None;
    }
    let page = match &seen.message["params"]["cursor"] {
        Value::Null => json!({ "tools": [tool("other")], "nextCursor": 1 }),
        cursor if cursor == 1 => json!({ "tools": [tool("read")] }),
        _ => return Some(Answer::status(400)),
    };
    Some(Answer::Result(page))
}

/// Answers the request for the page to which the cursor 2 leads with an error.
fn with_meaningless_cursor(seen: &Seen) -> Option<Answer> {
    if seen.method() != "tools/list" {
        return None;
    }
    Some(match seen.message["params"].get("cursor") {
        None => Answer::Result(json!({ "tools": [tool("read")], "nextCursor": 2 })),
        Some(_) => Answer::Error(json!({ "code": -32602, "message": "Unknown cursor" })),
    })
}

#[test]
fn a_server_that_deviates_from_the_protocol_keeps_its_tools_and_is_logged_once() {
    let servers = [
        (
            "flag",
            declaring(json!({ "tools": { "listChanged": null } })),
            "capability",
        ),
        (
            "flat",
            declaring(json!({ "tools": true, "prompts": false })),
            "capability",
        ),
        ("number", server(with_number_as_cursor), "cursor"),
        ("end", server(with_meaningless_cursor), "cursor"),
        ("id", server(with_text_id), "ids"),
        (
            "notice",
            server(|seen| {
                let is_notice = seen.method().starts_with("notifications/");
                is_notice.then(|| Answer::Http(200, JSON.to_owned(), "{}".to_owned()))
            }),
            "notifications",
        ),
        (
            "moved",
            server(|seen| {
                let moved = || Answer::Http(307, "location: /mcp/".to_owned(), String::new());
                (seen.path == "/mcp").then(moved)
            }),
            "redirects",
        ),
    ];
    let mounts = servers
        .iter()
        .map(|(name, server, _)| ((*name).to_owned(), server.mount()));
    let gateway = Gateway::start(&json!({ "mcpServers": mounts.collect::<Value>() }));
    for era in ERAS {
        let tools = servers.iter().map(|(name, _, _)| format!("{name}_read"));
        let tools: Vec<_> = tools.collect();
        let names: Vec<_> = tools.iter().map(String::as_str).collect();
        let client = Client::open(&gateway, era).wait_for(&names);
        for name in names {
            text(&client.call(name, json!({})));
        }
    }
    let lines = |server: &str| {
        let log = gateway.proxy.log();
        let quoted = format!("\"{server}\"");
        let about = log
            .lines()
            .filter(|line| line.contains("deviates from the protocol"));
        let about = about.filter(|line| line.contains(&quoted));
        about.map(str::to_owned).collect::<Vec<_>>()
    };
    for (name, _, deviation) in &servers {
        eventually(&format!("{name} is logged"), SOON, || {
            !lines(name).is_empty()
        });
        let lines = lines(name);
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        assert!(lines[0].contains(deviation), "{lines:?}");
    }
}

#[test]
fn a_list_that_cannot_be_read_is_logged_with_the_reason() {
    let odd = server(|seen| {
        let is_list = seen.method() == "tools/list";
        is_list.then(|| Answer::Result(json!({ "tools": "read" })))
    });
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": odd.mount() } }));
    let client = Client::open(&gateway, ERAS[0]);
    assert_eq!(client.tools(), [""; 0]);
    eventually("the reason is logged", SOON, || {
        let log = gateway.proxy.log();
        log.contains("a list of an MCP server cannot be read") && log.contains("tools/list:")
    });
}
