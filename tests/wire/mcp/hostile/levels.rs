//! The security level, and the hints in tool definitions on which it depends.

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, DENIED, ERAS, Era, Gateway, SECOND, assert_code, text};
use super::server::{McpServer, tool};

fn closed(name: &str) -> Value {
    json!({
        "name": name, "inputSchema": { "type": "object" },
        "annotations": { "openWorldHint": false },
    })
}

fn gateway(server: &McpServer) -> Gateway {
    Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": { "kb:secrets": { "classification": "Confidential" } },
    }))
}

#[test]
fn a_tool_hidden_by_the_level_is_denied_to_a_client_with_an_old_list() {
    let server = McpServer::start(vec![closed("secrets"), closed("local"), tool("mail")]);
    each_row(ERAS, |era| {
        let mut gateway = gateway(&server);
        let client = Client::open(&gateway, era).wait_for(&["kb_secrets", "kb_mail"]);
        let other = Client::of(&gateway, era, SECOND).wait_for(&["kb_mail"]);
        text(&client.call("kb_mail", json!({})));
        text(&client.call("kb_secrets", json!({})));
        let before = server.calls().len();
        let denied = client.call("kb_mail", json!({}));
        assert_code(&denied, DENIED);
        let reason = denied["error"]["data"]["reason"].as_str().unwrap();
        assert!(reason.contains("Confidential"), "{reason}");
        assert_eq!(server.calls().len(), before);
        assert!(!client.tools().iter().any(|name| name == "kb_mail"));
        text(&client.call("kb_local", json!({})));
        // Neither a new session nor a restart lowers the level. Another container has its own
        // level.
        assert_code(
            &Client::open(&gateway, era).call("kb_mail", json!({})),
            DENIED,
        );
        text(&other.call("kb_mail", json!({})));
        gateway.proxy.crash_and_restart();
        let client = Client::open(&gateway, era).wait_for(&["kb_local"]);
        assert_code(&client.call("kb_mail", json!({})), DENIED);
        gateway.operate("/internal/containers/sandbox/reset");
        text(&client.call("kb_mail", json!({})));
    });
}

#[test]
fn a_servers_hints_tighten_the_operators_hints_but_never_loosen_them() {
    let open = json!({
        "name": "open", "inputSchema": { "type": "object" },
        "annotations": { "openWorldHint": true },
    });
    let server = McpServer::start(vec![
        closed("secrets"),
        closed("said-open"),
        closed("silent"),
        open,
        tool("said-closed"),
    ]);
    let gateway = Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": {
            "kb:secrets": { "classification": "Secret" },
            "kb:said-open": { "annotations": { "openWorldHint": true } },
            "kb:said-closed": { "annotations": { "openWorldHint": false } },
            "kb:open": { "annotations": { "openWorldHint": false } },
        },
    }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_secrets", "kb_open"]);
    text(&client.call("kb_secrets", json!({})));
    // The operator sets `openWorldHint: true`, the server `false`.
    assert_code(&client.call("kb_said-open", json!({})), DENIED);
    // The operator sets `openWorldHint: false`, the server `true`.
    assert_code(&client.call("kb_open", json!({})), DENIED);
    text(&client.call("kb_said-closed", json!({})));
    text(&client.call("kb_silent", json!({})));
}
