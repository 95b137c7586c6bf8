//! MCP servers that a gateway mounts, and a client that a sandbox starts.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// An MCP server over stdio, or over HTTP with the argument `http`, as a Python program.
pub const TOOLS: &str = include_str!("mcp_tools.py");
const POLICY: &str = "package mcp.authz\n\ndefault decision := \"allow\"\n\n\
    decision := \"deny_continue\" if input.tool == \"erase\"\n\nreason := \"nothing is erased\"\n";

/// A shell script that finds the gateway only through environment variables. It calls tools of the
/// servers `kb` and `notes`: over HTTP with curl, with `unified-proxy mcp call`, and over
/// `unified-proxy mcp stdio`.
pub const CLIENT: &str = r#"
set -u
post() { curl -sS "$UNIFIED_PROXY_MCP_URL" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' "$@"; echo; }
hello='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}'
call='{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"kb_echo","arguments":{"text":"over HTTP"}}}'
session=$(post -D - -o /dev/null -d "$hello" | tr -d '\r' | sed -n 's/^mcp-session-id: //Ip')
post -H "Mcp-Session-Id: $session" -d "$call" | sed 's/^data: //'
unified-proxy mcp call notes_echo '{"text":"by the command"}'
unified-proxy mcp call kb_erase 2>&1
call='{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"notes_echo","arguments":{"text":"over stdio"}}}'
{ echo "$hello"; echo '{"jsonrpc":"2.0","method":"notifications/initialized"}'; echo "$call"; sleep 3; } | unified-proxy mcp stdio
"#;

/// Parts of the output of [`CLIENT`], one for each call that reached the gateway.
const ANSWERS: [&str; 4] = [
    "\"text\":\"echo: over HTTP\"",
    "echo: by the command",
    "policy_denied_continue: nothing is erased (-32951)",
    "\"text\":\"echo: over stdio\"",
];

/// Asserts that every call of the client reached the gateway.
#[track_caller]
pub fn assert_reached(said: &str) {
    let plain = said.replace("\": \"", "\":\"");
    for answer in ANSWERS {
        assert!(plain.contains(answer), "{answer} is not in: {said}");
    }
}

/// An MCP server over HTTP, and the settings of a gateway. The settings mount this server and a
/// second one over stdio; their policy denies calls of the tool `erase`.
pub struct McpServers {
    dir: TempDir,
    http: Child,
    port: u16,
}

impl McpServers {
    /// Starts the server over HTTP, on loopback of the caller's network namespace.
    pub fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let mode = Permissions::from_mode(0o755);
        fs::set_permissions(dir.path(), mode).unwrap();
        fs::write(dir.path().join("tools.py"), TOOLS).unwrap();
        fs::create_dir(dir.path().join("policy")).unwrap();
        fs::write(dir.path().join("policy/authz.rego"), POLICY).unwrap();
        let mut http = Command::new("python3")
            .args(["-c", TOOLS, "http"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = http.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        Self { dir, http, port }
    }

    /// Writes `mcp.yaml`, which mounts both servers, into a configuration directory.
    pub fn mount(&self, config: &Path) {
        let program = self.dir.path().join("tools.py");
        let settings: Value = json!({
            "mcpServers": {
                "kb": { "url": format!("http://127.0.0.1:{}/mcp", self.port) },
                "notes": { "command": "python3", "args": [program], "read": [self.dir.path()] },
            },
            "policies": { "bundles": [
                { "id": "tools", "path": self.dir.path().join("policy"), "entrypoint": "mcp/authz" },
            ] },
        });
        fs::write(config.join("mcp.yaml"), settings.to_string()).unwrap();
    }
}

impl Drop for McpServers {
    fn drop(&mut self) {
        let _ = self.http.kill();
        let _ = self.http.wait();
    }
}
