//! The proxy with an MCP gateway.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Origin, Proxy, Setup, eventually, free_address, read_reply};

/// Time limit for servers to start, which is slow on a busy machine. The response to `tools/list`
/// leaves out a server that does not answer within 10 s, so [`Gateway::wait_for`] repeats the
/// request.
const STARTUP: Duration = Duration::from_secs(60);

pub struct Gateway {
    pub proxy: Proxy,
    address: SocketAddr,
}

impl Gateway {
    /// Starts a proxy with this content of `mcp.yaml`.
    pub fn start(origin: &Origin, mcp: &Value) -> Self {
        let mut setup = Setup::new(origin);
        let address = free_address();
        setup.proxy["listen"]["mcp"] = vec![address.to_string()].into();
        let text = serde_json::to_string_pretty(mcp).unwrap();
        std::fs::write(setup.dir().join("config/mcp.yaml"), text).unwrap();
        Self {
            proxy: setup.start(),
            address,
        }
    }

    /// Waits until the gateway lists all of these tools.
    pub fn wait_for(&self, tools: &[String]) {
        eventually(&format!("all of {tools:?} are listed"), STARTUP, || {
            let listed = self.list().unwrap_or_default();
            let is_listed = |name: &String| listed.iter().any(|tool| tool["name"] == **name);
            tools.iter().all(is_listed)
        });
    }

    /// The listed tools.
    fn list(&self) -> io::Result<Vec<Value>> {
        let answer = self.post("tools/list", "", json!({}), json!({}))?;
        Ok(answer["result"]["tools"]
            .as_array()
            .cloned()
            .unwrap_or_default())
    }

    /// Calls a tool without arguments, as a client with these capabilities. Returns the answer.
    pub fn call(&self, tool: &str, capabilities: Value) -> Value {
        let params = json!({ "name": tool, "arguments": {} });
        self.post("tools/call", tool, params, capabilities).unwrap()
    }

    /// Sends a request of revision 2026-07-28. Returns the answer; `null` if there is none.
    fn post(
        &self,
        method: &str,
        name: &str,
        mut params: Value,
        capabilities: Value,
    ) -> io::Result<Value> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1.0.0" },
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(STARTUP))?;
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let reply = read_reply(&mut stream)?.text();
        // The answer is JSON or an event stream.
        let lines = reply.lines();
        let mut json = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
        Ok(json
            .find_map(|line| serde_json::from_str(line).ok())
            .unwrap_or_default())
    }

    /// The command that bridges stdio of a client to HTTP of the gateway.
    pub fn bridge(&self) -> [String; 5] {
        let program = env!("CARGO_BIN_EXE_unified-proxy");
        let words = [program, "mcp", "stdio", "--url"];
        let [program, mcp, stdio, flag] = words.map(str::to_owned);
        [program, mcp, stdio, flag, self.url("/mcp")]
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
