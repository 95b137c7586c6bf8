//! Claude Code whose HTTP hooks ask the proxy about its own tools.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::support::free_address;

const POLICY: &str = r#"package mcp.authz

default decision := "allow"

decision := "deny_continue" if contains(input.arguments.command, "refused")

decision := "ask" if {
	input.phase == "request"
	contains(input.arguments.command, "approved")
}

reason := "not with this policy"
"#;

/// `URL` stands for the endpoint of the hooks.
const SCRIPT: &str = r#"mkdir -p ~/.claude
    hook='[{"matcher":"*","hooks":[{"type":"http","url":"URL","timeout":60,"onFailure":"block"}]}]'
    echo "{\"hooks\":{\"PreToolUse\":$hook,\"PostToolUse\":$hook}}" >~/.claude/settings.json
    claude -p go --allowedTools Bash"#;

#[test]
fn claude_code_runs_the_command_that_a_person_approves_and_not_the_one_that_the_policy_denies() {
    let agent = claude_with_a_key("Claude Code with hooks that ask the proxy");
    let Some(programs) = packages::programs(agent.name) else {
        return;
    };
    let read: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&read);
    let calls = ["echo x >refused.txt", "echo x >approved.txt"];
    let calls = calls.map(|command| json!({ "command": command, "description": "writes" }));
    let origin = Origin::scripted(move |seen: &Seen, body| {
        let parsed: Value = serde_json::from_str(body).unwrap_or_default();
        let results = tool_calls::results(&parsed);
        if !results.is_empty() {
            *kept.lock() = results.iter().map(ToString::to_string).collect();
        }
        let called = tool_calls::answer(seen, &parsed, "Bash", &calls);
        Some(called.unwrap_or_else(|| stand_ins::answer(seen, body)))
    });
    let bundle = TempDir::new().unwrap();
    fs::write(bundle.path().join("authz.rego"), POLICY).unwrap();
    let mut setup = configured(&agent, &origin);
    let address = free_address();
    setup.proxy["listen"]["mcp"] = json!([address.to_string()]);
    let bundles = json!([{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }]);
    let policies = json!({ "bundles": bundles, "evaluator": { "timeout": "30s" } });
    let mcp = json!({ "policies": policies });
    fs::write(setup.dir().join("config/mcp.yaml"), mcp.to_string()).unwrap();
    let proxy = setup.start();
    let sandbox = Sandbox::new(&agent, &programs, &proxy);
    let script = SCRIPT.replace("URL", &format!("http://{address}/intercept/claude-code"));
    let done = AtomicBool::new(false);
    let run = thread::scope(|scope| {
        scope.spawn(|| approve_until(&proxy, &done));
        let run = sandbox.run(&script);
        done.store(true, Ordering::Release);
        run
    });
    let read = read.lock();
    let said = format!("{}\n{read:#?}", run.output);
    assert!(run.output.contains(REPLY), "{said}");
    let wrote = |name: &str| run.home.path().join("work").join(name).exists();
    assert!(!wrote("refused.txt") && wrote("approved.txt"), "{said}");
    assert!(read[0].contains("not with this policy"), "{said}");
    proxy.audited(json!({ "server": "claude-code", "tool": "Bash", "decision": "deny_continue" }));
    proxy.audited(json!({ "server": "claude-code", "tool": "Bash", "decision": "ask" }));
}

/// Approves each question, until `done`.
fn approve_until(proxy: &Proxy, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        let pending = proxy.admin("GET", "/internal/approvals?state=pending", None);
        for question in pending.json()["approvals"].as_array().unwrap() {
            let id = question["id"].as_str().unwrap();
            let path = format!("/internal/approvals/{id}/approve");
            proxy.admin("POST", &path, Some(json!({})));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
