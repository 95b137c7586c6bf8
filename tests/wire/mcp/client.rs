//! A raw MCP client: tests write each message themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{self, Seen};
use crate::support::{Origin, Proxy, RawOrigin, Reply, Setup, free_address, read_reply};

/// Timeout of a read from the gateway.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The header fields that Streamable HTTP requires of a POST.
pub const POST: &str =
    "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";

/// A proxy whose MCP gateway has one server: the raw server of [`server`], named `by-hand`.
pub struct Gateway {
    pub proxy: Proxy,
    pub seen: Seen,
    pub address: SocketAddr,
    _server: RawOrigin,
    _origin: Origin,
}

impl Gateway {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(change: impl FnOnce(&mut Setup)) -> Self {
        let origin = Origin::start();
        let (server, seen) = server::start();
        let mut setup = Setup::new(&origin);
        let address = free_address();
        setup.proxy["listen"]["mcp"] = json!([address.to_string()]);
        let url = format!("http://{}/mcp", server.address);
        let mcp = json!({ "mcpServers": { "by-hand": { "type": "http", "url": url } } });
        let path = setup.dir().join("config/mcp.yaml");
        std::fs::write(path, mcp.to_string()).unwrap();
        change(&mut setup);
        Self {
            proxy: setup.start(),
            seen,
            address,
            _server: server,
            _origin: origin,
        }
    }

    /// Starts a gateway with a changed `mcp.yaml`.
    pub fn with_mcp(change: impl FnOnce(&mut Value)) -> Self {
        Self::start_with(|setup| {
            let path = setup.dir().join("config/mcp.yaml");
            let text = std::fs::read_to_string(&path).unwrap();
            let mut mcp: Value = serde_json::from_str(&text).unwrap();
            change(&mut mcp);
            std::fs::write(path, mcp.to_string()).unwrap();
        })
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends a request on a new connection.
    pub fn send(&self, head: &str, fields: &str, body: &str) -> Reply {
        let mut stream = self.connect();
        write_request(&mut stream, head, fields, body);
        read_reply(&mut stream).unwrap()
    }

    /// Posts a message to `/mcp`.
    pub fn post(&self, fields: &str, message: &Value) -> Reply {
        let fields = format!("{POST}{fields}");
        self.send("POST /mcp", &fields, &message.to_string())
    }

    /// Posts a message; returns the response as a stream of events.
    pub fn events(&self, fields: &str, message: &Value) -> Events {
        let mut stream = self.connect();
        let fields = format!("{POST}{fields}");
        write_request(&mut stream, "POST /mcp", &fields, &message.to_string());
        Events::of(stream)
    }

    /// Opens a stream of events with a GET.
    pub fn get(&self, path: &str, fields: &str) -> Events {
        let mut stream = self.connect();
        let fields = format!("accept: text/event-stream\r\n{fields}");
        write_request(&mut stream, &format!("GET {path}"), &fields, "");
        Events::of(stream)
    }

    /// Opens a session; returns its header field `mcp-session-id`.
    pub fn session(&self) -> String {
        let reply = self.post("", &initialize());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let id = reply.only("mcp-session-id").unwrap();
        format!("mcp-session-id: {id}\r\n")
    }
}

/// Writes a request in origin form. A `host` field among `fields` replaces the default one.
pub fn write_request(stream: &mut TcpStream, head: &str, fields: &str, body: &str) {
    let host = match fields.contains("host: ") {
        true => "",
        false => "host: localhost\r\n",
    };
    let length = body.len();
    // Writes once: with Nagle's algorithm, a second small write would wait for an acknowledgement.
    let text = format!("{head} HTTP/1.1\r\n{host}{fields}content-length: {length}\r\n\r\n{body}");
    // The proxy may close the connection after a denial, while the body is still being sent.
    let _ = stream.write_all(text.as_bytes());
}

/// `initialize` of a client that declares `elicitation` and `tasks`.
pub fn initialize() -> Value {
    request(
        0,
        "initialize",
        json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "elicitation": {}, "tasks": {} },
            "clientInfo": { "name": "by-hand", "version": "1" },
        }),
    )
}

pub fn request(id: u32, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// A call of one of the server's tools.
pub fn call(id: u32, tool: &str, arguments: Value) -> Value {
    let name = format!("by-hand_{tool}");
    let meta = json!({ "progressToken": "mine" });
    let params = json!({ "name": name, "arguments": arguments, "_meta": meta });
    request(id, "tools/call", params)
}

/// Adds the members that revision 2026-07-28 requires to a message. Returns the header fields that
/// mirror the message, and the message.
pub fn modern(mut message: Value) -> (String, Value) {
    let meta = &mut message["params"]["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({ "elicitation": {} });
    let method = message["method"].as_str().unwrap();
    let mut fields = format!("mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n");
    if let Some(name) = message["params"]["name"].as_str() {
        fields.push_str(&format!("mcp-name: {name}\r\n"));
    }
    (fields, message)
}

/// A stream of events, read incrementally.
pub struct Events {
    pub status: u16,
    reader: BufReader<TcpStream>,
    /// The id of the most recent event that had one; `None` before the first event with an id.
    pub last_id: Option<String>,
}

impl Events {
    fn of(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut is_stream = false;
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            is_stream |= line == "content-type: text/event-stream\r\n";
        }
        assert!(
            is_stream || status != 200,
            "the response is not a stream of events"
        );
        Self {
            status,
            reader,
            last_id: None,
        }
    }

    /// The data of the next event that has data; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<String> {
        loop {
            let data = self.next_event()?;
            if !data.is_empty() {
                return Some(data);
            }
        }
    }

    /// The data of the next event that has data, as JSON. Panics at the end of the stream.
    pub fn next_json(&mut self) -> Value {
        serde_json::from_str(&self.next().expect("an event")).unwrap()
    }

    /// The data of the next event, even if it is empty; `None` at the end of the stream.
    pub fn next_event(&mut self) -> Option<String> {
        let mut length = String::new();
        self.reader.read_line(&mut length).unwrap();
        let length = usize::from_str_radix(length.trim(), 16).ok()?;
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).unwrap();
        if length == 0 {
            return None;
        }
        let text = String::from_utf8(chunk).unwrap();
        let mut data = Vec::new();
        for line in text.lines() {
            if let Some(id) = line.strip_prefix("id: ") {
                self.last_id = Some(id.to_owned());
            }
            data.extend(line.strip_prefix("data: "));
        }
        Some(data.join("\n"))
    }
}
