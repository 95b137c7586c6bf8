//! Servers that flood the log, or forge lines of it.

use serde_json::{Value, json};

use super::client::{Client, Era, Gateway};
use super::server::{Answer, McpServer, tool};

const FORGED: &str = "2026-01-01T00:00:00Z  WARN a forged line";

/// Thousands of entries, of which all but the first are left out.
fn flawed() -> Vec<Value> {
    let flaw = |number: usize| match number % 4 {
        0 => json!({ "description": "no name" }),
        1 => tool("read"),
        2 => tool(&format!("a{number}\n{FORGED}\u{1b}[2J\u{9b}31m")),
        _ => {
            let mut tool = tool(&format!("b{number}"));
            let header = format!("\r\n{FORGED}");
            tool["inputSchema"]["properties"] =
                json!({ header: { "type": "object", "x-mcp-header": "X" } });
            tool
        }
    };
    let first = [tool("read")].into_iter();
    first.chain((0..8_000).map(flaw)).collect()
}

#[test]
fn thousands_of_flawed_tools_cause_few_log_lines_and_no_forged_one() {
    let server = McpServer::start(flawed());
    let bad = McpServer::scripted(Vec::new(), |seen| {
        let error = json!({ "code": -32000, "message": format!("no\n{FORGED}\u{1b}[2J") });
        let is_handshake = ["initialize", "server/discover"].contains(&seen.method());
        is_handshake.then_some(Answer::Error(error))
    });
    let servers = json!({ "mcpServers": { "kb": server.mount(), "bad": bad.mount() } });
    let gateway = Gateway::start(&servers);
    for era in [Era::Legacy, Era::Modern] {
        Client::open(&gateway, era).wait_for(&["kb_read"]);
    }
    let log = gateway.proxy.log();
    assert!(log.contains("cannot open a session"), "{log}");
    let about = log.lines().filter(|line| line.contains("left out")).count();
    assert!((20..200).contains(&about), "{about} lines");
    assert!(log.contains("further warnings of this kind"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with(FORGED)), "{log}");
    let controls = |c: char| c.is_control() && c != '\n';
    assert!(!log.contains(controls), "{log:?}");
}
