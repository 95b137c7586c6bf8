//! The gateway judges a client's answer to a server by the container's current rights, not by its
//! rights at the start of the call.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::client::{Gateway, call, modern};
use crate::support::eventually;

/// Denies `trace` and latches the container.
const RULES: &str = r#"package mcp.authz

default decision := "allow"

decision := "deny_abort" if input.tool == "trace"
"#;

/// Tools whose call changes the container's rights, and the error code of later calls.
const CHANGES: [(&str, i64); 2] = [("trace", -32950), ("echo", -32951)];

/// A gateway on which `trace` latches the container and `echo` raises the container's level, and
/// the directory of its policy bundle.
fn gateway() -> (Gateway, TempDir) {
    let bundle = tempfile::tempdir().unwrap();
    fs::write(bundle.path().join("authz.rego"), RULES).unwrap();
    let gateway = Gateway::with_mcp(|mcp| {
        let closed = json!({ "openWorldHint": false });
        mcp["overrides"] = json!({
            "by-hand:echo": { "classification": "Confidential", "annotations": closed },
        });
        mcp["policies"] = json!({
            "bundles": [{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }],
        });
    });
    (gateway, bundle)
}

#[test]
fn a_denied_retry_cancels_its_suspended_call() {
    each_row(CHANGES, |(tool, code)| {
        let (gateway, _bundle) = gateway();
        let post = |message: Value| {
            let (fields, message) = modern(message);
            gateway.post(&fields, &message).json()
        };
        let asked = post(call(1, "ask", json!({})));
        let state = &asked["result"]["requestState"];
        assert!(state.is_string(), "{asked}");
        post(call(2, tool, json!({})));
        let mut retry = call(3, "ask", json!({}));
        retry["params"]["requestState"] = state.clone();
        retry["params"]["inputResponses"] = json!({ "request-1": { "action": "accept" } });
        let denied = post(retry);
        assert_eq!(denied["error"]["code"], code, "{denied}");
        assert_eq!(denied["error"]["data"]["tool"], "ask", "{denied}");
        eventually("the call is cancelled", Duration::from_secs(10), || {
            gateway.seen.cancelled() == 1
        });
        assert_eq!(gateway.seen.results(), 0);
        let name = denied["error"]["data"]["code"].clone();
        let line = json!({ "kind": "mcp", "method": "tools/call", "tool": "ask", "code": name });
        gateway.proxy.audited(line);
    });
}

#[test]
fn a_denied_answer_of_a_legacy_client_does_not_reach_the_server() {
    each_row(CHANGES, |(tool, code)| {
        let (gateway, _bundle) = gateway();
        let session = gateway.session();
        let mut events = gateway.events(&session, &call(1, "ask", json!({})));
        let question = events.next_json();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        gateway.post(&session, &call(2, tool, json!({})));
        let answer = json!({
            "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} },
        });
        assert_eq!(gateway.post(&session, &answer).status, 202);
        let done = events.next_json();
        let told = done["result"]["content"][0]["text"].as_str().unwrap();
        let told: Value = serde_json::from_str(told).unwrap();
        assert_eq!(told["error"]["code"], code, "{told}");
        let name = told["error"]["data"]["code"].clone();
        let line = json!({ "kind": "mcp", "method": "elicitation/create", "code": name });
        gateway.proxy.audited(line);
    });
}
