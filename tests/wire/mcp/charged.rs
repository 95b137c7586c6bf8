//! The memory that clients' messages are charged to, as long as any part of them is held.

use std::io::Write;

use serde_json::{Value, json};

use super::client::{Events, Gateway, POST, call, initialize, modern};
use crate::support::{SOON, eventually};

/// The length of a long message, in bytes.
const LONG: usize = 1 << 20;

/// Reserved memory, in bytes.
fn charged(gateway: &Gateway) -> usize {
    gateway.proxy.metric("proxy_inspection_memory_bytes", &[]) as usize
}

fn long_call(id: u32, tool: &str) -> Value {
    call(id, tool, json!({ "text": "x".repeat(LONG) }))
}

fn assert_released(gateway: &Gateway) {
    eventually("the memory is released", SOON, || charged(gateway) == 0);
}

/// Opens a session over HTTP+SSE. Returns its stream, and a function that posts a message.
fn http_sse(gateway: &Gateway) -> (Events, impl Fn(&Value) -> u16) {
    let mut stream = gateway.get("/sse", "");
    let head = format!("POST {}", stream.next().unwrap());
    let post = move |message: &Value| gateway.send(&head, POST, &message.to_string()).status;
    assert_eq!(post(&initialize()), 202);
    stream.next_json();
    (stream, post)
}

#[test]
fn a_call_over_http_sse_is_charged_after_its_202_until_it_ends() {
    let gateway = Gateway::start();
    let (_stream, post) = http_sse(&gateway);
    assert_eq!(post(&long_call(1, "wait")), 202);
    eventually("the call begins", SOON, || gateway.seen.calls() == 1);
    assert!(charged(&gateway) >= LONG, "{}", charged(&gateway));
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(post(&cancel), 202);
    assert_released(&gateway);
}

#[test]
fn calls_that_never_end_take_at_most_a_quarter_of_the_memory_over_http_sse() {
    let gateway = Gateway::start_with(|setup| {
        setup.proxy["limits"] = json!({ "inspect_memory": "32MB" });
    });
    let (stream, post) = http_sse(&gateway);
    let statuses: Vec<_> = (1..20).map(|id| post(&long_call(id, "wait"))).collect();
    let taken = statuses.iter().filter(|status| **status == 202).count();
    assert!((5..8).contains(&taken), "{statuses:?}");
    assert!(statuses.ends_with(&[503]), "{statuses:?}");
    drop(stream);
    assert_released(&gateway);
}

#[test]
fn a_suspended_call_is_charged_until_its_retry_ends() {
    let gateway = Gateway::start();
    let post = |message| {
        let (fields, message) = modern(message);
        gateway.post(&fields, &message).json()
    };
    let asked = post(long_call(1, "ask"));
    assert_eq!(asked["result"]["resultType"], "input_required");
    assert!(charged(&gateway) >= LONG, "{}", charged(&gateway));
    let mut retry = long_call(2, "ask");
    retry["params"]["requestState"] = asked["result"]["requestState"].clone();
    retry["params"]["inputResponses"] = json!({ "request-1": { "action": "decline" } });
    assert_eq!(post(retry)["result"]["resultType"], "complete");
    assert_released(&gateway);
}

#[test]
fn a_call_is_charged_after_its_client_left_the_stream_until_its_session_ends() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let mut events = gateway.events(&session, &long_call(1, "ask"));
    assert_eq!(events.next_json()["method"], "elicitation/create");
    let open = gateway.proxy.metric("proxy_active_connections", &[]);
    drop(events);
    eventually("the connection is closed", SOON, || {
        gateway.proxy.metric("proxy_active_connections", &[]) < open
    });
    assert!(charged(&gateway) >= LONG, "{}", charged(&gateway));
    assert_eq!(gateway.send("DELETE /mcp", &session, "").status, 204);
    assert_released(&gateway);
}

#[test]
fn a_call_without_an_announced_length_is_charged_for_its_length_while_it_waits() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let body = call(1, "wait", json!({})).to_string();
    let mut stream = gateway.connect();
    let head = format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{POST}{session}");
    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    write!(stream, "{head}transfer-encoding: chunked\r\n\r\n{body}").unwrap();
    eventually("the call begins", SOON, || gateway.seen.calls() == 1);
    let charged = charged(&gateway);
    assert!((1..64 * 1024).contains(&charged), "{charged}");
}
