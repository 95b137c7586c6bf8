//! The interceptor API: Docker's gateway, the structured dialect and Claude Code's hooks.

mod blocks;
mod contexts;
mod docker;
mod hooks;
mod random;
mod structured;
mod tokens;

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::hostile::client::{FIRST, Gateway};
use super::hostile::server::{McpServer, tool};
use crate::support::{Reply, SOON, Setup, eventually, read_reply};

/// Asks about `pay`, denies `shell`, changes the arguments of `fix`, and secrets in results.
const POLICY: &str = r#"package mcp.authz

default decision := "allow"

is_secret if {
	input.phase == "response"
	contains(json.marshal(input.result), "sk-secret")
}

decision := "redact" if is_secret

decision := "redact" if {
	input.phase == "request"
	input.tool == "fix"
}

decision := "ask" if {
	input.phase == "request"
	input.tool in {"pay", "Write"}
}

decision := "deny_continue" if {
	input.phase == "request"
	input.tool in {"shell", "Bash"}
}

reason := "not with this policy"

modified := {"content": [{"type": "text", "text": "[gone]"}]} if is_secret

modified := {"q": "clean"} if input.phase == "request"

metadata := {"agent": input.agent_id, "tool": input.tool_id, "context": input.context.decision}
"#;

/// Asks about `pay` in both phases.
pub const ASKING: &str = r#"package mcp.authz

default decision := "allow"

decision := "ask" if input.tool in {"pay", "Write"}
"#;

/// The gateway with the policy above and a server `kb`.
pub struct Interceptor {
    pub gateway: Gateway,
    pub server: McpServer,
    pub bundle: TempDir,
}

impl Interceptor {
    pub fn start() -> Self {
        Self::with(json!({}), |_| {})
    }

    /// Starts the proxy with further members of `mcp.yaml` and a changed set-up.
    pub fn with(more: Value, change: impl FnOnce(&mut Setup)) -> Self {
        Self::of(&[], more, change)
    }

    /// Starts the proxy with a second bundle. Calls wait for people.
    pub fn with_second(policy: &str) -> (Self, TempDir) {
        let second = tempfile::tempdir().unwrap();
        std::fs::write(second.path().join("authz.rego"), policy).unwrap();
        let bundle = json!({ "id": "second", "path": second.path(), "entrypoint": "mcp/authz" });
        let wait = json!({ "wait": "15m" });
        let change = |setup: &mut Setup| setup.proxy["approvals"] = wait;
        (Self::of(&[bundle], json!({}), change), second)
    }

    fn of(bundles: &[Value], more: Value, change: impl FnOnce(&mut Setup)) -> Self {
        let server = McpServer::start(vec![tool("pay"), tool("read")]);
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("authz.rego"), POLICY).unwrap();
        let mut mcp = json!({
            "mcpServers": { "kb": server.mount() },
            "policies": {
                "bundles": [{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }],
                // A busy machine evaluates many calls late.
                "evaluator": { "timeout": "30s" },
            },
        });
        let all = mcp["policies"]["bundles"].as_array_mut().unwrap();
        all.extend_from_slice(bundles);
        for (key, value) in more.as_object().unwrap() {
            mcp[key] = value.clone();
        }
        Self {
            gateway: Gateway::with(&mcp, change),
            server,
            bundle,
        }
    }

    /// Sends a body to a path below `/intercept` from the first container.
    pub fn ask(&self, path: &str, body: impl ToString) -> Reply {
        let head = format!("POST /intercept/{path}");
        self.send(FIRST, &head, "", &body.to_string())
    }

    pub fn send(&self, source: Ipv4Addr, head: &str, fields: &str, body: &str) -> Reply {
        let mut stream = self.begin(source, head, fields, body);
        read_reply(&mut stream).unwrap()
    }

    /// Sends a request whose answer may take long.
    pub fn begin(&self, source: Ipv4Addr, head: &str, fields: &str, body: &str) -> TcpStream {
        let mut stream = self.gateway.connect(source);
        write(&mut stream, head, fields, body);
        stream
    }

    /// Approves or denies the open question about a tool, once there is one.
    #[track_caller]
    pub fn decide(&self, subject: &str, act: &str) {
        let path = "/internal/approvals?state=pending";
        let find = || {
            let listed = self.gateway.proxy.admin("GET", path, None).json();
            let all = listed["approvals"].as_array().unwrap().clone();
            let mut all = all.into_iter();
            all.find(|one| one["subject"] == subject && one["waiting"] != 0)
        };
        eventually("a call waits for a person", SOON, || find().is_some());
        let id = find().unwrap()["id"].as_str().unwrap().to_owned();
        let path = format!("/internal/approvals/{id}/{act}");
        let reply = self.gateway.proxy.admin("POST", &path, Some(json!({})));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

pub fn write(stream: &mut TcpStream, head: &str, fields: &str, body: &str) {
    let host = match fields.contains("host: ") {
        true => "",
        false => "host: localhost\r\n",
    };
    let length = body.len();
    let text = format!("{head} HTTP/1.1\r\n{host}{fields}content-length: {length}\r\n\r\n{body}");
    // The proxy may close the connection after a denial, while the body is still being sent.
    let _ = stream.write_all(text.as_bytes());
}

/// Asserts that a body is that of a block of `before` and `after`; returns its reason.
#[track_caller]
pub fn assert_block(reply: &Reply) -> String {
    let (reason, expected) = expected_block(reply);
    assert_eq!(reply.json(), expected);
    reason
}

/// Asserts that a body is a block also for hooks, as on other paths.
#[track_caller]
pub fn assert_block_for_all(reply: &Reply) -> String {
    let (reason, mut expected) = expected_block(reply);
    expected["decision"] = json!("block");
    expected["hookSpecificOutput"] = json!({
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    });
    assert_eq!(reply.json(), expected);
    reason
}

#[track_caller]
fn expected_block(reply: &Reply) -> (String, Value) {
    let body = reply.json();
    let reason = body["reason"].as_str().unwrap_or_default().to_owned();
    assert!(!reason.is_empty(), "{body}");
    assert!(matches!(reply.status, 200 | 400), "{}", reply.status);
    assert_eq!(reply.header("location"), None);
    let expected = json!({
        "action": "block",
        "reason": reason,
        "content": [{ "type": "text", "text": reason }],
        "isError": true,
        "_meta": { "unified-proxy/code": -32951 },
    });
    (reason, expected)
}

/// Asserts that an answer is nothing.
#[track_caller]
pub fn assert_nothing(reply: &Reply) {
    assert_eq!((reply.status, &*reply.text()), (200, ""));
}
