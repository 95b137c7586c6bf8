//! A client with tasks polls a call until a person has decided about it.

use std::thread;

use serde_json::{Value, json};
use testkit::each_row;

use crate::clients::{CLIENTS, EVERYTHING, Transport};
use crate::gateway::Gateway;
use crate::programs::{STARTUP, Server, node_server};
use crate::support::{Origin, eventually};
use crate::tools::Tools;

const ASK: &str = r#"package mcp.authz

default decision := "allow"

decision := "ask" if input.phase == "request"
"#;

/// The ids of the open questions.
fn questions(gateway: &Gateway) -> Vec<String> {
    let path = "/internal/approvals?state=pending";
    let listed = gateway.proxy.admin("GET", path, None).json();
    let ids = listed["approvals"].as_array().unwrap().iter();
    ids.map(|one| one["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for a question, and approves it.
fn approve(gateway: &Gateway) {
    eventually("a call waits", STARTUP, || questions(gateway).len() == 1);
    let path = format!("/internal/approvals/{}/approve", questions(gateway)[0]);
    let decided = gateway.proxy.admin("POST", &path, Some(json!({})));
    assert_eq!(decided.status, 200, "{}", decided.text());
}

#[test]
fn the_inspector_polls_a_call_until_a_person_approves_it() {
    let Some(tools) = Tools::install("tasks of the Inspector") else {
        return;
    };
    let server = Server::start(|address| {
        let mut command = node_server(&tools);
        command.args([&tools.package(EVERYTHING), "streamableHttp"]);
        command.env("PORT", address.port().to_string());
        command
    });
    let bundle = tempfile::tempdir().unwrap();
    std::fs::write(bundle.path().join("authz.rego"), ASK).unwrap();
    let origin = Origin::start();
    let gateway = Gateway::start(
        &origin,
        &json!({
            "mcpServers": { "kb": { "type": "http", "url": server.url("/mcp") } },
            "policies": {
                "bundles": [{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }],
            },
        }),
    );
    gateway.wait_for(&["kb_echo".to_owned()]);
    let inspector = CLIENTS.iter().find(|client| client.name.contains("modern"));
    let calls: Value = json!([["kb_echo", { "message": "hello" }]]);
    each_row([Transport::Http, Transport::Stdio], |transport| {
        let found = thread::scope(|scope| {
            let call = || inspector.unwrap().run(&tools, transport, &gateway, &calls);
            let calling = scope.spawn(call);
            approve(&gateway);
            calling.join().unwrap()
        });
        assert_eq!(found.results, ["Echo: hello"]);
        let polls = gateway.proxy.audited(json!({ "method": "tasks/get" }));
        assert_eq!(polls["outcome"], "ok", "{polls}");
    });
}
