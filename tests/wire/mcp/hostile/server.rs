//! A scripted MCP server over HTTP that speaks both protocol eras: 2025-11-25 with sessions, and
//! 2026-07-28 without.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{SOON, eventually, read_request};

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The HTTP method.
    pub http: String,
    /// The path and query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// The body; null if it is not JSON.
    pub message: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(n, _)| n == name);
        named.next().map(|(_, value)| value.as_str())
    }

    /// The JSON-RPC method; empty if there is none.
    pub fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    /// The called tool; empty for other requests.
    pub fn tool(&self) -> &str {
        match self.method() {
            "tools/call" => self.message["params"]["name"].as_str().unwrap_or_default(),
            _ => "",
        }
    }
}

type Raw = dyn FnOnce(&mut TcpStream, &ServerState) -> io::Result<()> + Send;

/// An answer of the server.
pub enum Answer {
    /// A status, header lines without the last line break, and a body.
    Http(u16, String, String),
    Result(Value),
    /// A JSON-RPC error.
    Error(Value),
    /// Messages, each as one event; then the response ends.
    Events(Vec<Value>),
    /// Arbitrary bytes that the test writes.
    Raw(Box<Raw>),
}

impl Answer {
    pub fn text(text: &str) -> Self {
        Self::Result(text_result(text))
    }

    /// A status without a body.
    pub fn status(status: u16) -> Self {
        Self::Http(status, "content-type: text/plain".to_owned(), String::new())
    }

    /// A stream of events that the test writes.
    pub fn stream(
        write: impl FnOnce(&mut TcpStream, &ServerState) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self::Raw(Box::new(move |stream, state| {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
            )?;
            write(stream, state)
        }))
    }
}

/// The result of a tool call, with one text.
pub fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "resultType": "complete" })
}

/// A message as one event of a stream.
pub fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// A tool without arguments.
pub fn tool(name: &str) -> Value {
    json!({ "name": name, "description": name, "inputSchema": { "type": "object" } })
}

type Script = dyn Fn(&Seen) -> Option<Answer> + Send + Sync;

/// The server's tools, its script, and the requests that it received.
pub struct ServerState {
    tools: Mutex<Vec<Value>>,
    seen: Mutex<Vec<Seen>>,
    script: Box<Script>,
}

impl ServerState {
    /// All requests so far, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// The client's answer to the server's request with this id; `None` before it arrives.
    pub fn answer_to(&self, id: &str) -> Option<Value> {
        let seen = self.seen();
        let mut answers = seen.iter().map(|seen| &seen.message);
        let answer = answers.find(|one| one["id"] == id && one.get("method").is_none());
        answer.cloned()
    }

    /// Waits for the client's answer to the server's request with this id; fails with `TimedOut`
    /// after 20 s.
    pub fn wait_for_answer(&self, id: &str) -> io::Result<Value> {
        for _ in 0..1000 {
            if let Some(answer) = self.answer_to(id) {
                return Ok(answer);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// A server on loopback.
pub struct McpServer {
    address: SocketAddr,
    state: Arc<ServerState>,
}

impl McpServer {
    /// Starts a server that answers every call with the name and arguments of the called tool.
    pub fn start(tools: Vec<Value>) -> Self {
        Self::scripted(tools, |_| None)
    }

    /// Starts a server with a script. If the script returns `None` for a request, the server gives
    /// its default answer.
    pub fn scripted(
        tools: Vec<Value>,
        script: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ServerState {
            tools: Mutex::new(tools),
            seen: Mutex::default(),
            script: Box::new(script),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // The thread ends with its connection.
                std::thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { address, state }
    }

    /// The server's entry in `mcp.yaml`.
    pub fn mount(&self) -> Value {
        json!({ "type": "http", "url": format!("http://{}/mcp", self.address) })
    }

    /// Replaces the listed tools without a notification.
    pub fn list(&self, tools: Vec<Value>) {
        *self.state.tools.lock() = tools;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen()
    }

    /// The requests with this JSON-RPC method.
    pub fn of(&self, method: &str) -> Vec<Seen> {
        let seen = self.seen();
        seen.into_iter()
            .filter(|one| one.method() == method)
            .collect()
    }

    pub fn calls(&self) -> Vec<Seen> {
        self.of("tools/call")
    }

    /// The arguments of the most recent call.
    pub fn arguments(&self) -> Value {
        self.calls().last().unwrap().message["params"]["arguments"].clone()
    }

    pub fn answer_to(&self, id: &str) -> Option<Value> {
        self.state.answer_to(id)
    }

    /// Waits until this many calls have arrived.
    pub fn wait_for_calls(&self, count: usize) {
        eventually(&format!("{count} calls reach the server"), SOON, || {
            self.calls().len() >= count
        });
    }
}

fn serve(stream: TcpStream, state: &ServerState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(seen) = read(&mut reader)? {
        state.seen.lock().push(seen.clone());
        let answer = (state.script)(&seen).unwrap_or_else(|| default_answer(&seen, state));
        let id = &seen.message["id"];
        match answer {
            Answer::Http(status, field, body) => respond(&mut writer, status, &field, &body)?,
            Answer::Result(result) => {
                let message = json!({ "jsonrpc": "2.0", "id": id, "result": result });
                respond(&mut writer, 200, JSON, &message.to_string())?;
            }
            Answer::Error(error) => {
                let message = json!({ "jsonrpc": "2.0", "id": id, "error": error });
                respond(&mut writer, 200, JSON, &message.to_string())?;
            }
            Answer::Events(messages) => {
                let body: String = messages.iter().map(event).collect();
                respond(&mut writer, 200, "content-type: text/event-stream", &body)?;
            }
            Answer::Raw(write) => {
                write(&mut writer, state)?;
                return writer.shutdown(std::net::Shutdown::Both);
            }
        }
    }
    Ok(())
}

const JSON: &str = "content-type: application/json";

fn respond(writer: &mut TcpStream, status: u16, field: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Scripted\r\n{field}\r\ncontent-length: {length}\r\n\r\n");
    writer.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// Reads a request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Seen>> {
    let Some(request) = read_request(reader)? else {
        return Ok(None);
    };
    Ok(Some(Seen {
        http: request.method().to_owned(),
        path: request.line.split(' ').nth(1).unwrap().to_owned(),
        message: serde_json::from_slice(&request.body).unwrap_or(Value::Null),
        headers: request.fields,
    }))
}

/// The default answer to a request.
fn default_answer(seen: &Seen, state: &ServerState) -> Answer {
    let params = &seen.message["params"];
    let capabilities = json!({
        "tools": { "listChanged": true },
        "tasks": { "requests": { "tools": { "call": {} } } },
        "extensions": { "io.modelcontextprotocol/tasks": {} },
    });
    match seen.method() {
        "initialize" => {
            let sessions = state.seen.lock();
            let count = sessions.iter().filter(|one| one.method() == "initialize");
            let session = format!("mcp-session-id: session-{}\r\n{JSON}", count.count());
            let result = json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": capabilities,
                "serverInfo": { "name": "scripted", "version": "1" },
            });
            let id = &seen.message["id"];
            let message = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
            Answer::Http(200, session, message)
        }
        "server/discover" => Answer::Result(json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        })),
        "tools/list" => Answer::Result(json!({
            "tools": *state.tools.lock(),
            "resultType": "complete",
            "ttlMs": 600_000,
            "cacheScope": "private",
        })),
        "tools/call" => Answer::text(&format!("{} {}", params["name"], params["arguments"])),
        "" if seen.http == "GET" => Answer::status(405),
        "" if seen.http == "DELETE" => Answer::status(200),
        "" => Answer::status(202),
        method if method.starts_with("notifications/") => Answer::status(202),
        method => Answer::Error(json!({ "code": -32601, "message": format!("no {method}") })),
    }
}
