//! Clients of either era with servers of either era.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::each_row;

use super::hostile::client::{Client, ERAS, Era, Gateway, text};
use super::hostile::server::McpServer;
use super::library::{URI, is_modern, library};

/// Runs a test for each pair of a client's era and a server's era.
fn each_cell(test: impl Fn(&Client<'_>, &McpServer)) {
    let cells = ERAS
        .into_iter()
        .flat_map(|client| ERAS.map(|server| (client, server)));
    each_row(cells, |(client, server)| {
        let library = library(Some(server));
        let gateway = Gateway::start(&json!({ "mcpServers": { "kb": library.mount() } }));
        let client = Client::open(&gateway, client).wait_for(&["kb_echo"]);
        test(&client, &library);
        // The server got only messages of its era, apart from the gateway's probes.
        for seen in library.seen() {
            let probes = ["server/discover", "initialize", ""];
            if !probes.contains(&seen.method()) {
                assert_eq!(is_modern(&seen), server == Era::Modern, "{seen:?}");
            }
        }
    });
}

/// For a modern client, asserts that the `resultType` is `complete`.
fn assert_complete(client: &Client<'_>, response: &Value) {
    if client.era == Era::Modern {
        assert_eq!(response["result"]["resultType"], "complete", "{response}");
    }
}

#[test]
fn a_tool_is_called_across_eras() {
    each_cell(|client, server| {
        let called = client.call("kb_echo", json!({ "a": 1.50 }));
        assert_eq!(text(&called), "\"echo\" {\"a\":1.5}");
        assert_complete(client, &called);
        assert_eq!(server.calls().len(), 1);
    });
}

#[test]
fn a_resource_is_read_across_eras() {
    each_cell(|client, server| {
        let listed = client.request("resources/list", json!({}));
        assert_eq!(listed["result"]["resources"][0]["uri"], URI, "{listed}");
        let read = client.request("resources/read", json!({ "uri": URI }));
        assert_eq!(
            read["result"]["contents"][0]["text"], "what note://first says",
            "{read}"
        );
        assert_complete(client, &read);
        assert_eq!(server.of("resources/read").len(), 1);
    });
}

#[test]
fn a_prompt_is_read_across_eras() {
    each_cell(|client, server| {
        let listed = client.request("prompts/list", json!({}));
        assert_eq!(
            listed["result"]["prompts"][0]["name"], "kb_greet",
            "{listed}"
        );
        let params = json!({ "name": "kb_greet", "arguments": { "who": "alice" } });
        let got = client.request("prompts/get", params);
        let said = &got["result"]["messages"][0]["content"]["text"];
        assert_eq!(said, "Greet \"alice\"", "{got}");
        assert_complete(client, &got);
        assert_eq!(
            server.of("prompts/get")[0].message["params"]["name"],
            "greet"
        );
    });
}

#[test]
fn requests_of_servers_reach_clients_across_eras() {
    each_cell(|client, _| {
        let answer = json!({ "action": "accept", "content": { "by": "alice" } });
        let done = client.call_and_answer("kb_ask", &answer, Duration::ZERO);
        let told: Value = serde_json::from_str(text(&done)).unwrap();
        assert_eq!(told, answer);
        assert_complete(client, &done);
    });
}

/// Approves every question until `done`.
fn approve_all(gateway: &Gateway, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        for question in questions(gateway, "pending") {
            let id = question["id"].as_str().unwrap();
            let path = format!("/internal/approvals/{id}/approve");
            let reply = gateway.proxy.admin("POST", &path, Some(json!({})));
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn questions(gateway: &Gateway, state: &str) -> Vec<Value> {
    let path = format!("/internal/approvals?state={state}");
    let listed = gateway.proxy.admin("GET", &path, None).json();
    listed["approvals"].as_array().unwrap().clone()
}

/// The answers to a server of the older era belong to the call. At one of 2026-07-28, each round is a
/// call with answers of its own, which a person sees; no round is sent twice.
#[test]
fn people_approve_each_round_of_a_call_that_asks_its_client_across_eras() {
    let rules = "package mcp.authz\n\ndecision := \"ask\"\n\nreason := \"it costs money\"\n";
    let bundle = tempfile::tempdir().unwrap();
    std::fs::write(bundle.path().join("authz.rego"), rules).unwrap();
    let rounds = [(Era::Legacy, 1), (Era::Modern, 2)];
    let cells = ERAS
        .into_iter()
        .flat_map(|client| rounds.map(|server| (client, server)));
    each_row(cells, |(client, (server, rounds))| {
        let library = library(Some(server));
        let bundles = json!([{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }]);
        let gateway = Gateway::start(&json!({
            "mcpServers": { "kb": library.mount() }, "policies": { "bundles": bundles },
        }));
        let mut client = Client::open(&gateway, client);
        client.takes_tasks = false;
        let client = client.wait_for(&["kb_ask"]);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| approve_all(&gateway, &done));
            let answer = json!({ "action": "accept", "content": { "by": "alice" } });
            let answered = client.call_and_answer("kb_ask", &answer, Duration::ZERO);
            done.store(true, Ordering::Release);
            let told: Value = serde_json::from_str(text(&answered)).unwrap();
            assert_eq!(told, answer);
        });
        let used = questions(&gateway, "used");
        assert_eq!(used.len(), rounds, "{used:?}");
        assert_eq!(library.calls().len(), rounds);
        let shows_answers = |question: &Value| question["arguments"]["inputResponses"].is_object();
        let with_answers = used.iter().filter(|one| shows_answers(one)).count();
        assert_eq!(with_answers, rounds - 1, "{used:?}");
    });
}
