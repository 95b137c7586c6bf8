//! `unified-proxy mcp stdio` with a gateway whose responses the test writes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{SOON, eventually, free_address};

/// A request to the gateway: method and header lines in lower case, and the JSON of the body.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    method: String,
    headers: String,
    message: Value,
}

/// Answers a request on its stream. The number is the count of earlier requests.
type Script = fn(&ReceivedRequest, &mut TcpStream, usize);

/// A gateway that calls a script for each request.
struct Gateway {
    address: SocketAddr,
    got: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Gateway {
    fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&got);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                thread::spawn(move || serve(stream, &all, script));
            }
        });
        Self { address, got }
    }

    fn got(&self) -> Vec<ReceivedRequest> {
        self.got.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, all: &Mutex<Vec<ReceivedRequest>>, script: Script) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or_default() == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let got = ReceivedRequest {
            method: head.split(' ').next().unwrap().to_owned(),
            headers: head,
            message: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let before = {
            let mut all = all.lock().unwrap();
            all.push(got.clone());
            all.len() - 1
        };
        script(&got, &mut stream, before);
    }
}

fn reply(stream: &mut TcpStream, status: &str, fields: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n");
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn answer(stream: &mut TcpStream, fields: &str, got: &ReceivedRequest, result: &Value) {
    let body = json!({ "jsonrpc": "2.0", "id": got.message["id"], "result": result });
    let fields = format!("Content-Type: application/json\r\n{fields}");
    reply(stream, "200 OK", &fields, &body.to_string());
}

/// `unified-proxy mcp stdio`, started as an MCP client starts it.
struct Bridge {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Bridge {
    fn start(gateway: SocketAddr) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
            .args(["mcp", "stdio", "--url", &format!("http://{gateway}/mcp")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
        }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn receive(&self) -> Value {
        self.lines.recv_timeout(SOON).expect("a line of the bridge")
    }

    /// Closes the bridge's standard input, waits until the bridge has ended, and returns its exit
    /// code.
    fn end(mut self) -> Option<i32> {
        self.stdin = None;
        let mut code = None;
        eventually("the bridge ends at the end of stdin", SOON, || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.and_then(|status| status.code())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn initialize() -> Value {
    request(1, "initialize", &json!({ "protocolVersion": "2025-11-25" }))
}

#[test]
fn the_bridge_replaces_a_session_that_the_gateway_ended() {
    let gateway = Gateway::start(|got, stream, before| {
        match (got.method.as_str(), got.message["method"].as_str()) {
            ("post", Some("initialize")) => {
                let field = format!("Mcp-Session-Id: session-{before}\r\n");
                let result = json!({ "protocolVersion": "2025-11-25" });
                answer(stream, &field, got, &result);
            }
            ("post", Some("tools/list")) if got.headers.contains("session-0") => {
                reply(stream, "404 Not Found", "", "");
            }
            ("post", Some("tools/list")) => answer(stream, "", got, &json!({ "tools": [] })),
            ("post", _) => reply(stream, "202 Accepted", "", ""),
            ("get", _) => reply(stream, "405 Method Not Allowed", "", ""),
            _ => reply(stream, "200 OK", "", ""),
        }
    });
    let mut bridge = Bridge::start(gateway.address);
    bridge.send(&initialize());
    assert_eq!(bridge.receive()["result"]["protocolVersion"], "2025-11-25");
    bridge.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    bridge.send(&request(2, "tools/list", &json!({})));
    let listed = bridge.receive();
    assert_eq!(
        listed,
        json!({ "jsonrpc": "2.0", "id": 2, "result": { "tools": [] } })
    );
    assert_eq!(bridge.end(), Some(0));
    let got = gateway.got();
    let named = |method: &str| {
        got.iter()
            .filter(|got| got.message["method"] == *method)
            .count()
    };
    assert_eq!(named("initialize"), 2);
    assert_eq!(named("notifications/initialized"), 2);
    let is_ended = got.iter().any(|got| got.method == "delete");
    assert!(is_ended, "{got:?}");
    let versions = got
        .iter()
        .filter(|got| got.headers.contains("mcp-protocol-version: 2025-11-25"));
    assert!(versions.count() >= 4, "{got:?}");
}

#[test]
fn messages_of_a_stream_and_the_clients_answers_pass_and_a_broken_stream_is_resumed() {
    let gateway = Gateway::start(|got, stream, _| {
        match (got.method.as_str(), got.message["method"].as_str()) {
            ("post", Some("initialize")) => {
                let result = json!({ "protocolVersion": "2025-11-25" });
                answer(stream, "Mcp-Session-Id: s\r\n", got, &result);
            }
            ("post", Some("tools/call")) => {
                let asked = "id: 1\nretry: 100\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"g\",\ndata: \"method\":\"roots/list\"}\n\n";
                reply(
                    stream,
                    "200 OK",
                    "Content-Type: text/event-stream\r\n",
                    asked,
                );
            }
            ("get", _) if got.headers.contains("last-event-id: 1") => {
                let done = "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"n\":1.0}}\n\n";
                reply(
                    stream,
                    "200 OK",
                    "Content-Type: text/event-stream\r\n",
                    done,
                );
            }
            ("get", _) => reply(stream, "405 Method Not Allowed", "", ""),
            _ => reply(stream, "202 Accepted", "", ""),
        }
    });
    let mut bridge = Bridge::start(gateway.address);
    bridge.send(&initialize());
    bridge.receive();
    bridge.send(&request(2, "tools/call", &json!({ "name": "t" })));
    assert_eq!(bridge.receive()["method"], "roots/list");
    bridge.send(&json!({ "jsonrpc": "2.0", "id": "g", "result": { "roots": [] } }));
    assert_eq!(bridge.receive()["result"], json!({ "n": 1.0 }));
    assert_eq!(bridge.end(), Some(0));
    let got = gateway.got();
    assert!(
        got.iter()
            .any(|got| got.message["result"]["roots"].is_array()),
        "{got:?}"
    );
}

#[test]
fn a_request_of_2026_07_28_gets_header_fields_and_is_cancelled_by_closing_its_connection() {
    let gateway = Gateway::start(|got, stream, _| {
        if got.message["params"]["name"] == "slow" {
            let mut byte = [0];
            stream
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
            let closed = stream.read(&mut byte).is_ok_and(|read| read == 0);
            assert!(closed, "the bridge kept the connection open");
            return;
        }
        answer(stream, "", got, &json!({ "resultType": "complete" }));
    });
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
    let call = |id, name: &str| request(id, "tools/call", &json!({ "name": name, "_meta": meta }));
    let mut bridge = Bridge::start(gateway.address);
    bridge.send(&call(1, "slow"));
    eventually("the call arrives", SOON, || gateway.got().len() == 1);
    let params = json!({ "requestId": 1 });
    bridge.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
    }));
    bridge.send(&call(2, "fast"));
    assert_eq!(
        bridge.receive()["id"],
        2,
        "a cancelled request has no answer"
    );
    assert_eq!(bridge.end(), Some(0));
    let got = gateway.got();
    assert_eq!(got.len(), 2, "cancelling posts nothing: {got:?}");
    for field in [
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        "mcp-name: fast",
    ] {
        assert!(got[1].headers.contains(field), "{field}: {got:?}");
    }
}

#[test]
fn messages_that_cannot_be_sent_or_parsed_get_an_error_response() {
    let mut bridge = Bridge::start(free_address());
    bridge.send(&request(7, "tools/list", &json!({})));
    let error = bridge.receive();
    assert_eq!(error["id"], 7);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("cannot reach the gateway at http://"),
        "{message}"
    );
    bridge.send(&json!([1]));
    assert_eq!(bridge.receive()["error"]["code"], -32600);
    writeln!(bridge.stdin.as_mut().unwrap(), "{{").unwrap();
    assert_eq!(bridge.receive()["error"]["code"], -32700);
    assert_eq!(bridge.end(), Some(0));
}
