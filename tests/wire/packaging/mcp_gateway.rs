//! The compose example of Docker's MCP Gateway, and its stand-in.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{assert_known, program, read, root};
use crate::mcp::hostile::client::Gateway;
use crate::support::yaml;

const FILE: &str = "packaging/compose/docker-mcp-gateway.yml";
const TOKEN: &str = "0123456789abcdef";

#[test]
fn the_gateway_of_the_example_reaches_the_proxy_alone_and_asks_before_and_after_each_call() {
    let text = read(FILE);
    let compose = yaml(&text);
    assert_known(FILE, &compose, &["name", "networks", "services", "volumes"]);
    let services = compose["services"].as_object().unwrap();
    let names: Vec<_> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["unified-proxy", "mcp-gateway"]);
    assert_eq!(compose["networks"]["gateway"]["internal"], "true");
    for service in services.values() {
        assert_eq!(service["cap_drop"], json!(["ALL"]));
        let networks: Vec<_> = service["networks"].as_object().unwrap().keys().collect();
        assert_eq!(networks, ["gateway"]);
        assert!(service.get("ports").is_none());
    }
    let gateway = &compose["services"]["mcp-gateway"];
    assert_eq!(gateway["command"], json!(["python3", "/gateway.py"]));
    assert_eq!(gateway["volumes"], json!(["./gateway.py:/gateway.py:ro"]));
    assert!(root().join("packaging/compose/gateway.py").exists());
    for path in ["/intercept/before", "/intercept/after"] {
        assert!(
            text.contains(&format!("@unified-proxy:8090{path}")),
            "{path}"
        );
    }
}

#[test]
fn the_stand_in_runs_what_the_policy_allows_and_returns_its_denials() {
    let Some(python) = program("python3") else {
        return;
    };
    let bundle = tempfile::tempdir().unwrap();
    let policy = "package mcp.authz\n\ndefault decision := \"allow\"\n\ndecision := \"deny_continue\" if input.tool == \"shell\"\n\nreason := \"no shells\"\n";
    std::fs::write(bundle.path().join("authz.rego"), policy).unwrap();
    let proxy = Gateway::start(&json!({
        "tokens": { "agent": TOKEN },
        "policies": {
            "bundles": [{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }],
            "evaluator": { "timeout": "30s" },
        },
    }));
    let mut stand_in = Command::new(python)
        .arg(root().join("packaging/compose/gateway.py"))
        .env(
            "INTERCEPTOR_URL",
            format!("http://any:{TOKEN}@{}", proxy.address),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let calls = [
        json!({ "name": "search", "arguments": { "q": "<a & b>" } }),
        json!({ "name": "shell", "arguments": {} }),
    ];
    let mut input = stand_in.stdin.take().unwrap();
    for call in &calls {
        writeln!(input, "{call}").unwrap();
    }
    drop(input);
    let output = stand_in.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let results: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(results.len(), 2, "{lines}");
    assert_eq!(results[0]["content"][0]["text"], r#"{"q": "<a & b>"}"#);
    assert_eq!(results[1]["isError"], true);
    assert_eq!(
        results[1]["content"][0]["text"],
        "policy_denied_continue: no shells"
    );
}
