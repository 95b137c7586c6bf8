//! The time limit of calls to servers over stdio and over Streamable HTTP.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row;

use super::hostile::client::{Client, ERAS, Era, Events, Gateway, text};
use super::library::library;
use crate::support::{SOON, eventually, read_reply};

/// `timeout` of the servers.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a test for both transports to a server and both eras of clients. The server's name in
/// `mcp.yaml` is `kb`.
fn each_cell(test: impl Fn(&Client<'_>)) {
    let script = include_str!("library.py");
    let cells = ["stdio", "http"].into_iter();
    each_row(
        cells.flat_map(|transport| ERAS.map(|era| (transport, era))),
        |(transport, era)| {
            let mut mount = match transport {
                "stdio" => json!({ "command": "python3", "args": ["-c", script] }),
                _ => library(Some(Era::Legacy)).mount(),
            };
            mount["timeout"] = format!("{}s", TIMEOUT.as_secs()).into();
            let gateway = Gateway::start(&json!({ "mcpServers": { "kb": mount } }));
            test(&Client::open(&gateway, era).wait_for(&["kb_ask"]));
        },
    );
}

#[test]
fn a_call_that_waits_for_its_client_longer_than_its_timeout_is_completed_by_the_answer() {
    each_cell(|client| {
        let answer = json!({ "action": "accept", "content": { "by": "alice" } });
        let done = client.call_and_answer("kb_ask", &answer, 2 * TIMEOUT);
        let told: Value = serde_json::from_str(text(&done)).unwrap();
        assert_eq!(told, answer);
    });
}

#[test]
fn a_call_that_makes_progress_may_take_longer_than_its_timeout() {
    each_cell(|client| {
        let meta = json!({ "progressToken": "mine" });
        let params = json!({ "name": "kb_work", "arguments": {}, "_meta": meta });
        let mut events = Events::new(client.begin(&"work".into(), "tools/call", params));
        for number in 0..4 {
            let (_, progress) = events.next().unwrap();
            assert_eq!(progress["params"]["progress"], number, "{progress}");
        }
        assert_eq!(text(&events.next().unwrap().1), "worked");
    });
}

#[test]
fn a_call_to_a_server_that_never_answers_times_out_and_is_cancelled() {
    each_cell(|client| {
        let begun = Instant::now();
        let params = json!({ "name": "kb_never", "arguments": {} });
        let mut stream = client.begin(&"never".into(), "tools/call", params);
        let reply = read_reply(&mut stream).unwrap();
        // The client had the head of the response before the call ended.
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let error = super::hostile::client::response(&reply);
        assert_eq!(error["error"]["data"]["code"], "tool_timeout", "{error}");
        let took = begun.elapsed();
        assert!(took >= TIMEOUT && took < 4 * TIMEOUT, "{took:?}");
        eventually("the call is cancelled at the server", SOON, || {
            text(&client.call("kb_cancelled", json!({}))) == "true"
        });
    });
}
