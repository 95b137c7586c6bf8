//! Questions of servers to clients, and the clients' answers, judged by policies.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::super::library::library;
use super::client::{Client, DENIED, ERAS, Era, Gateway, assert_code, response, text};
use super::server::McpServer;

const QUESTIONS: [(&str, &str); 2] = [
    ("ask", "elicitation/create"),
    ("sample", "sampling/createMessage"),
];
/// Denies every request of a server to a client, by the input's `direction`.
const RULES: &str = r#"package mcp.questions

decision := "deny_continue" if input.direction == "to_client"

reason := sprintf("%s is not for servers", [input.method])
"#;

/// Replaces the answers in retries of `prompts/get`.
const DECLINES: &str = r#"package mcp.questions

default decision := "allow"

decision := "redact" if {
	input.phase == "request"
	input.params.inputResponses
}

modified := object.union(others, {"inputResponses": answers}) if decision == "redact"

others := object.remove(input.params, ["inputResponses"])

answers := {key: {"action": "decline"} | some key, _ in input.params.inputResponses}
"#;

/// A gateway with a bundle of these rules for these methods, and the bundle's directory.
fn with_policy(server: &McpServer, rules: &str, methods: &[&str]) -> (Gateway, TempDir) {
    let bundle = tempfile::tempdir().unwrap();
    fs::write(bundle.path().join("questions.rego"), rules).unwrap();
    let gateway = Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "policies": { "bundles": [{
            "id": "questions", "path": bundle.path(), "entrypoint": "mcp/questions",
            "methods": methods,
        }] },
    }));
    (gateway, bundle)
}

#[test]
fn a_denied_question_reaches_no_client_and_fails_with_the_reason_of_the_policy() {
    let cells = ERAS
        .into_iter()
        .flat_map(|client| ERAS.map(|server| (client, server)));
    each_row(cells, |(client, spoken)| {
        let server = library(Some(spoken));
        let (gateway, _bundle) = with_policy(&server, RULES, &QUESTIONS.map(|(_, method)| method));
        let client = Client::open(&gateway, client).wait_for(&["kb_ask", "kb_sample"]);
        for (tool, method) in QUESTIONS {
            let call = json!({ "name": format!("kb_{tool}"), "arguments": {} });
            let reply = client.exchange("tools/call", call);
            let said = reply.text();
            for question in ["Who answers?", "Say something", "inputRequests"] {
                assert!(!said.contains(question), "{said}");
            }
            let reason = format!("{method} is not for servers");
            let (error, flow) = match spoken {
                // The question is denied, and the server continues.
                Era::Legacy => {
                    let told = server.answer_to(tool).unwrap();
                    let done = response(&reply);
                    let repeated: Value = serde_json::from_str(text(&done)).unwrap();
                    assert_eq!(repeated, told["error"]);
                    (told, method)
                }
                // The question is part of the result, which is denied as a whole.
                Era::Modern => (response(&reply), "tools/call"),
            };
            assert_code(&error, DENIED);
            assert_eq!(error["error"]["data"]["reason"], reason, "{error}");
            gateway.proxy.audited(json!({
                "kind": "mcp", "method": flow, "code": "policy_denied_continue", "rule": "questions",
            }));
            let calls = server.calls();
            let calls = calls.iter().filter(|seen| seen.tool() == tool);
            assert_eq!(calls.count(), 1, "the gateway repeats no call");
        }
        // The bundle does not judge a call without questions.
        text(&client.call("kb_echo", json!({})));
    });
}

#[test]
fn a_retry_reaches_the_server_with_the_answers_that_a_policy_left() {
    each_row(ERAS, |spoken| {
        let server = library(Some(spoken));
        let (gateway, _bundle) = with_policy(&server, DECLINES, &["prompts/get"]);
        let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_ask"]);
        let mut params = json!({ "name": "kb_ask" });
        let asked = client.request("prompts/get", params.clone());
        let asked = &asked["result"];
        let questions = asked["inputRequests"].as_object().unwrap();
        let key = questions.keys().next().unwrap();
        params["requestState"] = asked["requestState"].clone();
        let answer = json!({ "action": "accept", "content": { "by": "secret" } });
        params["inputResponses"] = json!({ key: answer });
        let done = client.request("prompts/get", params);
        assert_eq!(text(&done), json!({ "action": "decline" }).to_string());
    });
}
