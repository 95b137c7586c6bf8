//! The MCP gateway of a run: its own appliance mounts what `mcp.yaml` names.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::fixture::Person;

/// An MCP server over HTTP with two tools, outside the sandbox. Prints its port.
const SERVER: &str = r#"
import http.server, json

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.reply(202, b"")
        params = message.get("params", {})
        results = {
            "initialize": lambda: {"protocolVersion": params["protocolVersion"],
                                   "capabilities": {"tools": {}}, "serverInfo": {"name": "kb", "version": "1"}},
            "tools/list": lambda: {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "erase")]},
            "tools/call": lambda: {"content": [{"type": "text", "text": "done: " + params["name"]}]},
        }
        result = results.get(message["method"])
        answer = {"result": result()} if result else {"error": {"code": -32601, "message": "Method not found"}}
        self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"]} | answer).encode())

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405, b"")

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

const POLICY: &str = "package mcp.authz\n\ndefault decision := \"allow\"\n\n\
    decision := \"deny_continue\" if input.tool == \"erase\"\n\nreason := \"nothing is erased\"\n";

struct Server(Child);

impl Server {
    fn start() -> (Self, u16) {
        let mut child = Command::new("python3")
            .args(["-c", SERVER])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (Self(child), line.trim().parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn call(tool: &str) -> String {
    let params = json!({
        "name": tool,
        "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    format!(
        "curl -sS http://127.0.0.1:8090/mcp -H 'Content-Type: application/json' \
         -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' \
         -H 'Mcp-Method: tools/call' -H 'Mcp-Name: {tool}' -d '{body}'; echo"
    )
}

#[test]
fn a_tool_of_a_mount_is_reached_from_inside_and_a_denied_one_is_not() {
    let Some(person) = Person::new() else { return };
    let (_server, port) = Server::start();
    let config = person.config();
    let policy = person.write("policy/authz.rego", POLICY);
    let policy = policy.parent().unwrap();
    let settings = json!({
        "mcpServers": { "kb": { "url": format!("http://127.0.0.1:{port}/mcp") } },
        "policies": { "bundles": [
            { "id": "kb", "path": policy, "entrypoint": "mcp/authz" },
        ] },
    });
    std::fs::write(config.join("mcp.yaml"), settings.to_string()).unwrap();
    let script = format!("{}; {}", call("kb_read"), call("kb_erase"));
    let said = person.sh(&[], &script).ok();
    let answers = said.lines().filter_map(|line| {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        serde_json::from_str::<Value>(line).ok()
    });
    let answers: Vec<_> = answers.collect();
    let [done, denied] = &answers[..] else {
        panic!("{said}")
    };
    assert_eq!(done["result"]["content"][0]["text"], "done: read");
    assert_eq!(denied["error"]["code"], -32951);
    assert_eq!(denied["error"]["data"]["reason"], "nothing is erased");
}
