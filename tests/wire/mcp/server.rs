//! A raw legacy server (2025-11-25), whose tools behave as the tests need.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{RawOrigin, read_request};

/// The requests that the server recorded, and whether it answers.
#[derive(Clone, Default)]
pub struct Seen(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// Answers of clients, by the id of the question.
    answers: HashMap<String, Value>,
    /// Number of cancelled calls.
    cancelled: usize,
    /// Number of calls.
    calls: usize,
    /// Whether the server closes connections without an answer.
    gone: bool,
    /// Progress notifications of the client.
    reports: Vec<Value>,
}

impl Seen {
    pub fn calls(&self) -> usize {
        self.0.0.lock().unwrap().calls
    }

    /// Number of answers of clients that no call has consumed. Errors do not count: the gateway
    /// sends one itself when a call is cancelled.
    pub fn results(&self) -> usize {
        let state = self.0.0.lock().unwrap();
        let results = state
            .answers
            .values()
            .filter(|answer| answer.get("error").is_none());
        results.count()
    }

    /// Sets whether the server closes connections without an answer.
    pub fn leave(&self, gone: bool) {
        self.change(|state| state.gone = gone);
    }

    pub fn cancelled(&self) -> usize {
        self.0.0.lock().unwrap().cancelled
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    /// Waits until `found` returns a value; gives up with `None` after at most 20 s.
    fn wait<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.0.0.lock().unwrap();
        for _ in 0..20 {
            if let Some(found) = found(&mut state) {
                return Some(found);
            }
            state = self
                .0
                .1
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap()
                .0;
        }
        None
    }
}

/// Starts the server.
pub fn start() -> (RawOrigin, Seen) {
    let seen = Seen::default();
    let own = seen.clone();
    (RawOrigin::start(move |stream| serve(stream, &own)), seen)
}

fn serve(stream: TcpStream, seen: &Seen) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader)? {
        if seen.0.0.lock().unwrap().gone {
            break;
        }
        if request.method() != "POST" {
            write!(stream, "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        }
        let message: Value = serde_json::from_slice(&request.body).unwrap();
        answer(&mut stream, &message, seen)?;
    }
    Ok(())
}

fn answer(stream: &mut TcpStream, message: &Value, seen: &Seen) -> io::Result<()> {
    let id = &message["id"];
    match message["method"].as_str() {
        Some("initialize") => result(
            stream,
            id,
            &json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "by-hand", "version": "1" },
            }),
        ),
        Some("tools/list") => {
            let tool = |name| json!({ "name": name, "inputSchema": { "type": "object" } });
            let tools = ["echo", "tell", "ask", "wait", "trace", "survey", "flood"].map(tool);
            result(stream, id, &json!({ "tools": tools }))
        }
        Some("tools/call") => call(stream, id, &message["params"], seen),
        Some("notifications/cancelled") => {
            seen.change(|state| state.cancelled += 1);
            accepted(stream)
        }
        Some("notifications/progress") => {
            seen.change(|state| state.reports.push(message["params"].clone()));
            accepted(stream)
        }
        Some(method) if method.starts_with("notifications/") => accepted(stream),
        Some(_) => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
            json_answer(stream, "400 Bad Request", &body)
        }
        None => {
            let error = json!({ "error": message["error"] });
            let answer = message.get("result").cloned().unwrap_or(error);
            let id = id.to_string();
            seen.change(|state| drop(state.answers.insert(id, answer)));
            accepted(stream)
        }
    }
}

fn call(stream: &mut TcpStream, id: &Value, params: &Value, seen: &Seen) -> io::Result<()> {
    seen.change(|state| state.calls += 1);
    let token = &params["_meta"]["progressToken"];
    let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
    match params["name"].as_str().unwrap() {
        "tell" => {
            events(stream)?;
            for number in [1, 2] {
                progress(stream, token, number, "")?;
            }
            last_event(stream, id, &text("told"))
        }
        "ask" => {
            events(stream)?;
            let answer = ask(stream, seen, None)?;
            last_event(stream, id, &text(&answer.unwrap_or_default().to_string()))
        }
        // Sends the client a question with a progress token. After the client's answer, reports
        // progress of the call, and returns the progress notifications of the client.
        "survey" => {
            events(stream)?;
            ask(stream, seen, Some("survey"))?;
            let reports = json!(seen.0.0.lock().unwrap().reports);
            progress(stream, token, 1, "")?;
            last_event(stream, id, &text(&reports.to_string()))
        }
        // Reports progress in long messages until the call is cancelled.
        "flood" => {
            events(stream)?;
            let before = seen.cancelled();
            for number in 0.. {
                if seen.cancelled() > before {
                    break;
                }
                progress(stream, token, number, &"x".repeat(65_536))?;
            }
            Ok(())
        }
        "trace" => result(
            stream,
            id,
            &text(&params["_meta"]["traceparent"].to_string()),
        ),
        "wait" => {
            events(stream)?;
            let before = seen.cancelled();
            seen.wait(|state| (state.cancelled > before).then_some(()));
            last_event(stream, id, &text("waited"))
        }
        _ => result(stream, id, &text(&params["arguments"].to_string())),
    }
}

/// Sends the client a question, with a progress token if there is one; returns the answer, or
/// `None` after at most 20 s.
fn ask(stream: &mut TcpStream, seen: &Seen, token: Option<&str>) -> io::Result<Option<Value>> {
    let id = seen.0.0.lock().unwrap().calls + 1000;
    let schema = json!({ "type": "object", "properties": {} });
    let mut params = json!({ "message": "Who?", "requestedSchema": schema });
    if let Some(token) = token {
        params["_meta"] = json!({ "progressToken": token });
    }
    let question =
        json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params });
    event(stream, &question)?;
    Ok(seen.wait(|state| state.answers.remove(&id.to_string())))
}

fn progress(stream: &mut TcpStream, token: &Value, number: u32, text: &str) -> io::Result<()> {
    let mut params = json!({ "progressToken": token, "progress": number });
    if !text.is_empty() {
        params["message"] = text.into();
    }
    event(
        stream,
        &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }),
    )
}

fn accepted(stream: &mut TcpStream) -> io::Result<()> {
    write!(stream, "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
}

fn result(stream: &mut TcpStream, id: &Value, result: &Value) -> io::Result<()> {
    let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    json_answer(stream, "200 OK", &body)
}

fn json_answer(stream: &mut TcpStream, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nmcp-session-id: by-hand\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Writes the head of an event stream in chunked encoding.
fn events(stream: &mut TcpStream) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
}

fn event(stream: &mut TcpStream, message: &Value) -> io::Result<()> {
    let text = format!("event: message\ndata: {message}\n\n");
    write!(stream, "{:x}\r\n{text}\r\n", text.len())
}

fn last_event(stream: &mut TcpStream, id: &Value, result: &Value) -> io::Result<()> {
    event(
        stream,
        &json!({ "jsonrpc": "2.0", "id": id, "result": result }),
    )?;
    write!(stream, "0\r\n\r\n")
}
