//! Policies, overrides and the security level apply to the sidecar's tools.

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::super::hostile::client::{Client, DENIED, ERAS, Era, Gateway, assert_code, text};
use super::super::hostile::server::{McpServer, tool};
use crate::support::{SANDBOX, Sidecar, Transport};

const RULES: &str = r#"package mcp.authz

default decision := "allow"

decision := "deny_continue" if contains(input.arguments.command, "rm -rf")

reason := "nothing is removed here" if decision == "deny_continue"

decision := "redact" if {
	input.phase == "response"
	input.tool == "read"
	contains(input.result.content[0].text, "password")
}

modified := {"content": [{"type": "text", "text": "[gone]"}]} if decision == "redact"
"#;

#[test]
fn a_policy_denies_one_command_and_redacts_one_result() {
    let sidecar = Sidecar::start(Transport::Unix);
    let policy = TempDir::new().unwrap();
    std::fs::write(policy.path().join("authz.rego"), RULES).unwrap();
    let bundle = json!({ "id": "main", "path": policy.path(), "entrypoint": "mcp/authz" });
    let gateway = Gateway::start(&json!({
        "mcpServers": { "coding": sidecar.mount() },
        "policies": { "bundles": [bundle] },
    }));
    let workspace = sidecar.workspace();
    std::fs::create_dir(workspace.join("kept")).unwrap();
    std::fs::write(workspace.join("secret"), "the password is 1234").unwrap();
    std::fs::write(workspace.join("plain"), "nothing").unwrap();
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["coding_bash"]);
        let call = |tool: &str, arguments: Value| client.call(tool, arguments);
        let denied = call("coding_bash", json!({ "command": "rm -rf kept" }));
        assert_code(&denied, DENIED);
        assert_eq!(denied["error"]["data"]["reason"], "nothing is removed here");
        assert!(workspace.join("kept").is_dir());
        let listed = call("coding_bash", json!({ "command": "ls" }));
        assert!(text(&listed).starts_with("kept\n"), "{listed}");
        let redacted = call("coding_read", json!({ "path": "secret" }));
        assert_eq!(text(&redacted), "[gone]");
        assert!(!redacted.to_string().contains("1234"), "{redacted}");
        assert!(text(&call("coding_read", json!({ "path": "plain" }))).starts_with("nothing"));
    });
    gateway.proxy.audited(json!({
        "kind": "mcp", "method": "tools/call", "code": "policy_denied_continue",
    }));
    let explain = |command: &str| {
        let call = json!({ "command": command }).to_string();
        let proxy = &gateway.proxy;
        proxy.cli(&["explain", SANDBOX, "tools/call", "coding", "bash", &call])
    };
    assert!(
        explain("rm -rf kept")
            .exits(1)
            .contains("nothing is removed here")
    );
    explain("ls").ok();
}

#[test]
fn overrides_rename_tools_hide_fields_set_defaults_and_classify_results() {
    let sidecar = Sidecar::start(Transport::Unix);
    let gateway = Gateway::start(&json!({
        "mcpServers": { "coding": sidecar.mount() },
        "overrides": {
            "coding:ls": { "rename": "list_folder", "description": "Lists" },
            "coding:bash": { "hide_fields": ["timeoutSeconds"] },
            "coding:find": { "defaults": { "pattern": "*.md" } },
            "coding:grep": { "classification": "Confidential" },
        },
    }));
    let workspace = sidecar.workspace();
    std::fs::write(workspace.join("a.md"), "needle").unwrap();
    std::fs::write(workspace.join("b.txt"), "").unwrap();
    let client = Client::open(&gateway, Era::Modern).wait_for(&["list_folder"]);
    let listed = client.list();
    let tool = |name: &str| listed.iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(tool("list_folder")["description"], "Lists");
    let fields = |name: &str| tool(name)["inputSchema"]["properties"].clone();
    assert_eq!(fields("coding_bash").as_object().unwrap().len(), 1);
    assert!(fields("coding_find").get("pattern").is_none());
    assert!(text(&client.call("list_folder", json!({}))).contains("a.md"));
    let bash = json!({ "command": "sleep 1.2; echo done", "timeoutSeconds": 1 });
    assert!(text(&client.call("coding_bash", bash)).starts_with("done\n"));
    let found = client.call("coding_find", json!({ "pattern": "*.txt" }));
    assert_eq!(text(&found), "a.md");
    // The result of `coding_grep` is confidential: from here on, open-world tools are denied.
    let found = client.call("coding_grep", json!({ "pattern": "needle" }));
    assert!(text(&found).contains("needle"), "{found}");
    let tools = client.tools();
    assert!(!tools.contains(&"coding_bash".to_owned()), "{tools:?}");
    for kept in ["coding_read", "coding_write", "coding_edit", "list_folder"] {
        assert!(tools.contains(&kept.to_owned()), "{tools:?}");
    }
    assert_code(
        &client.call("coding_bash", json!({ "command": "true" })),
        DENIED,
    );
    assert!(text(&client.call("coding_read", json!({ "path": "a.md" }))).starts_with("needle"));
}

#[test]
fn built_in_definitions_need_no_acceptance() {
    let other = McpServer::start(vec![tool("bash")]);
    let sidecar = Sidecar::start(Transport::Unix);
    let mut gateway = Gateway::start(&json!({ "mcpServers": { "coding": other.mount() } }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
    text(&client.call("coding_bash", json!({})));
    // The proxy now has a pin of another definition of `bash`, as if an older version had stored
    // it.
    let mcp = json!({ "mcpServers": { "coding": sidecar.mount() } });
    std::fs::write(gateway.proxy.path("config/mcp.yaml"), mcp.to_string()).unwrap();
    gateway.proxy.crash_and_restart();
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
    let ran = client.call("coding_bash", json!({ "command": "echo ran" }));
    assert!(text(&ran).starts_with("ran\n"), "{ran}");
}
