//! The security level, and definitions' hints about it.

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, ERAS, Era, Gateway, SECOND, assert_code, text};
use super::server::{McpServer, tool};

const DENIED: i64 = -32951;

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
fn a_tool_that_the_level_hides_is_denied_to_a_client_that_never_listed_again() {
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
        // Neither other sessions nor a restart lower the level; other containers have their own.
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
fn a_servers_hints_tighten_what_the_operator_said_and_loosen_nothing() {
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
    // The operator says that it reaches the world, the server says that it does not.
    assert_code(&client.call("kb_said-open", json!({})), DENIED);
    // The operator says that it does not, the server that it does.
    assert_code(&client.call("kb_open", json!({})), DENIED);
    text(&client.call("kb_said-closed", json!({})));
    text(&client.call("kb_silent", json!({})));
}
