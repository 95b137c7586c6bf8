//! Raw MCP clients of both eras.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use crate::support::{
    Origin, Proxy, Reply, SOON, Setup, connect_from, eventually, free_address, read_reply,
};

/// Source address of the first container; the second container has the address [`SECOND`].
pub const FIRST: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub use crate::support::SECOND;

/// Timeout of a read from the gateway.
const TIMEOUT: Duration = Duration::from_secs(30);

/// JSON-RPC code of a call that a policy (with `deny_continue`), the security level or a changed
/// definition denies.
pub const DENIED: i64 = -32951;

/// The two eras of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// 2025-11-25, with sessions.
    Legacy,
    /// 2026-07-28, without sessions.
    Modern,
}

pub const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// The proxy with an MCP gateway and two containers.
pub struct Gateway {
    pub proxy: Proxy,
    pub address: SocketAddr,
}

impl Gateway {
    /// Starts the proxy with this content of `mcp.yaml`.
    pub fn start(mcp: &Value) -> Self {
        Self::with(mcp, |_| {})
    }

    /// Starts the proxy with this content of `mcp.yaml` and a changed set-up.
    pub fn with(mcp: &Value, change: impl FnOnce(&mut Setup)) -> Self {
        Self::to(&Origin::start(), mcp, change)
    }

    /// Like [`Self::with`], with an origin for the containers' other traffic.
    pub fn to(origin: &Origin, mcp: &Value, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::new(origin);
        let address = free_address();
        setup.proxy["listen"]["mcp"] = vec![address.to_string()].into();
        let second = (SECOND.to_string(), "second".to_owned());
        setup.containers.push(second);
        let rates = json!({ "requests_per_second": 100_000, "burst_size": 200_000 });
        setup.policy = Some(json!({ "version": 1, "rate_limits": { "defaults": rates } }));
        change(&mut setup);
        let text = serde_json::to_string_pretty(mcp).unwrap();
        std::fs::write(setup.dir().join("config/mcp.yaml"), text).unwrap();
        let proxy = setup.start();
        Self { proxy, address }
    }

    /// Sends an operator's POST to the admin API, for example to reset a container's level and
    /// latch or to accept a definition. Panics unless the status is 200.
    pub fn operate(&self, path: &str) {
        let reply = self.proxy.admin("POST", path, None);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// The state of a mount in `GET /health`.
    pub fn state(&self, server: &str) -> String {
        let health = self.health();
        health["servers"][server].as_str().unwrap().to_owned()
    }

    /// The response to `GET /health`, as the first container sees it.
    pub fn health(&self) -> Value {
        let mut stream = self.connect(FIRST);
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .unwrap();
        read_reply(&mut stream).unwrap().json()
    }

    /// Opens a connection to the gateway from a container's address.
    pub fn connect(&self, source: Ipv4Addr) -> TcpStream {
        let stream = connect_from(source, self.address);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }
}

/// A client in a container.
pub struct Client<'g> {
    gateway: &'g Gateway,
    source: Ipv4Addr,
    pub era: Era,
    pub session: Option<String>,
    /// Whether requests of the modern era declare tasks.
    pub takes_tasks: bool,
    next: AtomicU64,
}

/// The capabilities that clients declare, apart from tasks.
fn capabilities() -> Value {
    json!({ "elicitation": { "form": {} }, "sampling": {} })
}

/// Adds the capabilities for tasks of both eras, which the gateway must hide from servers.
fn with_tasks(mut capabilities: Value) -> Value {
    capabilities["tasks"] = json!({ "list": {}, "cancel": {} });
    capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
    capabilities
}

impl<'g> Client<'g> {
    /// Makes a client of the first container.
    pub fn open(gateway: &'g Gateway, era: Era) -> Self {
        Self::of(gateway, era, FIRST)
    }

    /// Makes a client of the container at `source`; in the legacy era, opens a session.
    pub fn of(gateway: &'g Gateway, era: Era, source: Ipv4Addr) -> Self {
        let mut client = Self {
            gateway,
            source,
            era,
            session: None,
            takes_tasks: true,
            next: AtomicU64::new(1),
        };
        if era == Era::Legacy {
            let reply = client.post(&[], client.initialize().as_bytes());
            assert_eq!(reply.status, 200, "{}", reply.text());
            client.session = reply.only("mcp-session-id").map(str::to_owned);
            client.notify("notifications/initialized", json!({}));
        }
        client
    }

    /// The body of the request that opens a session.
    pub fn initialize(&self) -> String {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": with_tasks(capabilities()),
            "clientInfo": { "name": "test", "version": "1" },
        });
        message(&self.next_id(), "initialize", params).to_string()
    }

    /// The response to a body that is posted without a session.
    pub fn fresh(&self, body: impl FnOnce(&Self) -> String) -> Reply {
        let client = Self {
            gateway: self.gateway,
            source: self.source,
            era: Era::Legacy,
            session: None,
            takes_tasks: false,
            next: AtomicU64::new(1),
        };
        client.post(&[], body(&client).as_bytes())
    }

    fn next_id(&self) -> Value {
        self.next.fetch_add(1, Ordering::Relaxed).into()
    }

    /// Waits until the list of tools has all of these names.
    pub fn wait_for(self, tools: &[&str]) -> Self {
        eventually(&format!("all of {tools:?} are listed"), SOON, || {
            let listed = self.tools();
            tools
                .iter()
                .all(|name| listed.iter().any(|one| one == name))
        });
        self
    }

    /// The names of the listed tools.
    pub fn tools(&self) -> Vec<String> {
        let listed = self.list();
        let names = listed
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// The listed tools.
    pub fn list(&self) -> Vec<Value> {
        let response = self.request("tools/list", json!({}));
        response["result"]["tools"].as_array().unwrap().clone()
    }

    /// Calls a tool; returns the JSON-RPC response.
    #[track_caller]
    pub fn call(&self, tool: &str, arguments: Value) -> Value {
        self.request(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        )
    }

    /// Calls a tool that asks the client `Who answers?`. Answers the question after `wait`, and
    /// returns the JSON-RPC response.
    #[track_caller]
    pub fn call_and_answer(&self, tool: &str, answer: &Value, wait: Duration) -> Value {
        let mut call = json!({ "name": tool, "arguments": {} });
        if self.era == Era::Modern {
            let asked = self.request("tools/call", call.clone());
            let result = &asked["result"];
            assert_eq!(result["resultType"], "input_required", "{asked}");
            let requests = result["inputRequests"].as_object().unwrap();
            let (key, question) = requests.iter().next().unwrap();
            assert_question(question);
            std::thread::sleep(wait);
            call["requestState"] = result["requestState"].clone();
            call["inputResponses"] = json!({ key: answer });
            return self.request("tools/call", call);
        }
        let mut events = Events::new(self.begin(&self.next_id(), "tools/call", call));
        let (_, question) = events.next().unwrap();
        assert_question(&question);
        std::thread::sleep(wait);
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer });
        assert_eq!(self.post(&[], answer.to_string().as_bytes()).status, 202);
        events.next().unwrap().1
    }

    /// Sends a request; returns the JSON-RPC response.
    #[track_caller]
    pub fn request(&self, method: &str, params: Value) -> Value {
        response(&self.exchange(method, params))
    }

    /// Sends a request; returns the HTTP response.
    pub fn exchange(&self, method: &str, params: Value) -> Reply {
        let mut stream = self.begin(&self.next_id(), method, params);
        read_reply(&mut stream).unwrap()
    }

    pub fn notify(&self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        let reply = self.post(&[], message.to_string().as_bytes());
        assert_eq!(reply.status, 202, "{}", reply.text());
    }

    /// Sends a request; returns the connection without reading the response.
    pub fn begin(&self, id: &Value, method: &str, params: Value) -> TcpStream {
        let mut message = message(id, method, params);
        if self.era == Era::Modern {
            let meta = &mut message["params"]["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            meta["io.modelcontextprotocol/clientCapabilities"] = match self.takes_tasks {
                true => with_tasks(capabilities()),
                false => capabilities(),
            };
        }
        let named = match method {
            "resources/read" => &message["params"]["uri"],
            "tasks/get" | "tasks/update" | "tasks/cancel" => &message["params"]["taskId"],
            _ => &message["params"]["name"],
        };
        let name = encoded(named.as_str().unwrap_or_default());
        let mut headers = Vec::new();
        if self.era == Era::Modern {
            headers.push(("mcp-method", method));
            if !name.is_empty() {
                headers.push(("mcp-name", &name));
            }
        }
        self.send("POST", &headers, message.to_string().as_bytes())
    }

    /// Posts a body to `/mcp`; returns the HTTP response.
    pub fn post(&self, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        read_reply(&mut self.send("POST", headers, body)).unwrap()
    }

    /// Sends an HTTP request to `/mcp`; returns the connection without reading the response.
    /// `headers` replace default header fields of the same name.
    pub fn send(&self, method: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let length = body.len().to_string();
        let host = self.gateway.address.to_string();
        let mut all = vec![
            ("host", &*host),
            ("connection", "close"),
            ("content-length", &length),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        match (self.era, &self.session) {
            (Era::Modern, _) => all.push(("mcp-protocol-version", "2026-07-28")),
            (Era::Legacy, Some(session)) => all.push(("mcp-session-id", session)),
            (Era::Legacy, None) => {}
        }
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        all.extend(headers);
        let fields = all
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!(
            "{method} /mcp HTTP/1.1\r\n{}\r\n",
            fields.collect::<String>()
        );
        let mut stream = self.gateway.connect(self.source);
        // The proxy may close the connection after a denial, while the body is still being sent.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        stream
    }
}

#[track_caller]
fn assert_question(question: &Value) {
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["message"], "Who answers?", "{question}");
}

/// Makes a JSON-RPC request.
pub fn message(id: &Value, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Encodes a name for a header field: in Base64 if the name has bytes other than visible ASCII.
fn encoded(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain {
        true => name.to_owned(),
        false => format!("=?base64?{}?=", BASE64_STANDARD.encode(name)),
    }
}

/// The JSON-RPC response in an HTTP response, which is JSON or a stream of events.
#[track_caller]
pub fn response(reply: &Reply) -> Value {
    let text = reply.text();
    if reply.header("content-type") != Some("text/event-stream") {
        return reply.json();
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut messages = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let found = messages.find(|one| one.get("result").is_some() || one.get("error").is_some());
    found.unwrap_or_else(|| panic!("no response: {text}"))
}

/// The text of a tool's result.
#[track_caller]
pub fn text(response: &Value) -> &str {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {response}"))
}

/// Asserts an error's code.
#[track_caller]
pub fn assert_code(response: &Value, code: i64) {
    assert_eq!(response["error"]["code"], code, "{response}");
}

/// A stream of events. The gateway sends each event in one chunk, so lines are never cut.
pub struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    pub fn new(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        while line.trim_end() != "" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Self { reader }
    }

    /// The next message, and the latest event id that arrived since the previous message; `None` at
    /// the end of the connection.
    pub fn next(&mut self) -> Option<(Option<String>, Value)> {
        let mut id = None;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(text) = line.trim_end().strip_prefix("id: ") {
                id = Some(text.to_owned());
            }
            let data = line.trim_end().strip_prefix("data: ");
            if let Some(Ok(message)) = data.map(serde_json::from_str) {
                return Some((id, message));
            }
        }
    }
}
