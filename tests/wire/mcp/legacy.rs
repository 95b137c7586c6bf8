//! Sessions of legacy revisions.

use std::net::Shutdown;
use std::time::Duration;

use serde_json::json;

use super::client::{Gateway, call, initialize, request};
use crate::support::{Reply, SOON, eventually};

#[test]
fn a_session_begins_with_initialize_and_ends_with_delete() {
    let gateway = Gateway::start();
    let reply = gateway.post("", &initialize());
    let result = &reply.json()["result"];
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(result["serverInfo"]["name"], "unified-proxy");
    assert_eq!(result["capabilities"]["tasks"], json!(null));
    let session = format!(
        "mcp-session-id: {}\r\n",
        reply.only("mcp-session-id").unwrap()
    );
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(gateway.post(&session, &initialized).status, 202);
    let ping = gateway.post(&session, &request(1, "ping", json!({})));
    assert_eq!(
        ping.json(),
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} })
    );
    let tools = gateway
        .post(&session, &request(2, "tools/list", json!({})))
        .json();
    assert_eq!(tools["result"]["tools"][0]["name"], "by-hand_echo");
    let echoed = gateway
        .post(&session, &call(3, "echo", json!({ "a": 1.0 })))
        .json();
    assert_eq!(echoed["result"]["content"][0]["text"], "{\"a\":1.0}");
    assert_eq!(gateway.post("", &request(4, "ping", json!({}))).status, 400);
    let twice = gateway.post(&session, &initialize());
    assert_eq!(
        (twice.status, &twice.json()["error"]["code"]),
        (400, &json!(-32600))
    );
    let unknown = format!("{session}mcp-protocol-version: 1900-01-01\r\n");
    assert_eq!(
        gateway
            .post(&unknown, &request(5, "ping", json!({})))
            .status,
        400
    );
    assert_eq!(gateway.send("DELETE /mcp", &session, "").status, 204);
    assert_eq!(
        gateway
            .post(&session, &request(6, "ping", json!({})))
            .status,
        404
    );
    assert_eq!(gateway.send("DELETE /mcp", &session, "").status, 404);
}

#[test]
fn a_session_from_before_a_restart_is_refused_with_the_code_after_which_clients_begin_again() {
    let mut gateway = Gateway::start();
    let session = gateway.session();
    gateway.proxy.crash_and_restart();
    let assert_unknown = |reply: Reply| {
        assert_eq!(reply.status, 404, "{}", reply.text());
        assert_eq!(reply.only("content-type"), Some("application/json"));
        // Claude Code looks for this text.
        assert!(reply.text().contains("\"code\":-32001"), "{}", reply.text());
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains("Session not found"), "{message}");
    };
    for message in [
        request(1, "ping", json!({})),
        request(2, "tools/list", json!({})),
        call(3, "echo", json!({})),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 4, "result": {} }),
    ] {
        assert_unknown(gateway.post(&session, &message));
    }
    assert_unknown(gateway.send("DELETE /mcp", &session, ""));
    let stream = format!("accept: text/event-stream\r\n{session}");
    assert_unknown(gateway.send("GET /mcp", &stream, ""));
    let ping = request(5, "ping", json!({})).to_string();
    assert_unknown(gateway.send("POST /message?sessionId=gone", super::client::POST, &ping));
    let session = gateway.session();
    let echoed = gateway
        .post(&session, &call(6, "echo", json!({ "a": 1 })))
        .json();
    assert_eq!(echoed["result"]["content"][0]["text"], "{\"a\":1}");
}

#[test]
fn a_session_belongs_to_its_container() {
    let gateway = Gateway::start();
    let socket = gateway.proxy.own_listener("inner", json!({}));
    let session = gateway.session();
    let body = request(1, "ping", json!({})).to_string();
    let fields = format!("{}{session}", super::client::POST);
    let ping = crate::support::listener::origin_form("POST", "/mcp", &fields, body.as_bytes());
    let mut other = crate::support::listener::connect(&socket);
    let reply = crate::support::listener::send(&mut other, &ping);
    assert_eq!(reply.status, 404, "{}", reply.text());
    // The other container can open its own session, and the owner's session still exists.
    let body = initialize().to_string();
    let fields = super::client::POST;
    let begin = crate::support::listener::origin_form("POST", "/mcp", fields, body.as_bytes());
    let reply = crate::support::listener::send(&mut other, &begin);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        gateway
            .post(&session, &request(2, "ping", json!({})))
            .status,
        200
    );
}

#[test]
fn a_client_that_prefers_events_gets_a_long_response_as_a_stream() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let accept = "accept: text/event-stream, application/json\r\n";
    let fields = format!("content-type: application/json\r\n{accept}{session}");
    // Longer than the events that the gateway keeps for a client that does not read them.
    let text = "x".repeat(300 * 1024);
    let body = call(1, "echo", json!({ "a": text })).to_string();
    let reply = gateway.send("POST /mcp", &fields, &body);
    assert_eq!(reply.only("content-type"), Some("text/event-stream"));
    assert!(reply.text().contains(&text));
}

#[test]
fn events_of_a_call_precede_its_answer_and_have_ids() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let mut events = gateway.events(&session, &call(1, "tell", json!({})));
    assert_eq!(
        events.next_event().as_deref(),
        Some(""),
        "the first event has an id and no data"
    );
    let first = events.last_id.clone().unwrap();
    for progress in [1, 2] {
        let told = events.next_json();
        assert_eq!(told["method"], "notifications/progress");
        assert_eq!(told["params"]["progressToken"], "mine");
        assert_eq!(told["params"]["progress"], progress);
    }
    let answer = events.next_json();
    assert_eq!(
        (&answer["id"], &answer["result"]["content"][0]["text"]),
        (&json!(1), &json!("told"))
    );
    assert_eq!(events.next(), None);
    // A client that reconnects gets all events after its `Last-Event-ID` again.
    let mut again = gateway.get("/mcp", &format!("{session}last-event-id: {first}\r\n"));
    assert_eq!(again.next_json()["params"]["progress"], 1);
    assert_eq!(again.next_json()["params"]["progress"], 2);
    assert_eq!(again.next_json()["id"], 1);
    assert_eq!(again.next(), None);
    for unknown in ["9-0", "x", ""] {
        let events = gateway.get("/mcp", &format!("{session}last-event-id: {unknown}\r\n"));
        assert_eq!(events.status, 400, "{unknown}");
    }
}

#[test]
fn a_reconnected_client_gets_the_missed_answer() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let mut events = gateway.events(&session, &call(1, "ask", json!({})));
    let question = events.next_json();
    assert_eq!(question["method"], "elicitation/create");
    let last = events.last_id.clone().unwrap();
    drop(events);
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } });
    assert_eq!(gateway.post(&session, &answer).status, 202);
    let mut again = gateway.get("/mcp", &format!("{session}last-event-id: {last}\r\n"));
    let text = again.next_json()["result"]["content"][0]["text"].clone();
    assert!(text.as_str().unwrap().contains("decline"), "{text}");
    // A repeated answer has no effect, and is recorded in the audit log.
    assert_eq!(gateway.post(&session, &answer).status, 202);
    gateway
        .proxy
        .audited(json!({ "kind": "mcp", "method": "response", "code": "malformed_request" }));
}

#[test]
fn a_client_can_answer_only_its_own_questions() {
    let gateway = Gateway::start();
    let (asked, other) = (gateway.session(), gateway.session());
    let mut events = gateway.events(&asked, &call(1, "ask", json!({})));
    let id = events.next_json()["id"].clone();
    let answer = |who: &str| json!({ "jsonrpc": "2.0", "id": id, "result": { "action": "accept", "content": { "who": who } } });
    assert_eq!(gateway.post(&other, &answer("mallory")).status, 202);
    assert_eq!(gateway.post(&asked, &answer("alice")).status, 202);
    let text = events.next_json()["result"]["content"][0]["text"].to_string();
    assert!(
        text.contains("alice") && !text.contains("mallory"),
        "{text}"
    );
}

#[test]
fn progress_of_a_client_reaches_the_asking_server_and_others_cannot_report_it() {
    let gateway = Gateway::start();
    let (asked, other) = (gateway.session(), gateway.session());
    let mut events = gateway.events(&asked, &call(1, "survey", json!({})));
    let question = events.next_json();
    let token = &question["params"]["_meta"]["progressToken"];
    assert!(
        token.is_number(),
        "the token is not the gateway's: {question}"
    );
    let report = |progress: u32, token: &serde_json::Value| {
        let params = json!({ "progressToken": token, "progress": progress, "message": "typing" });
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
    };
    assert_eq!(gateway.post(&other, &report(1, token)).status, 202);
    assert_eq!(
        gateway.post(&asked, &report(2, &json!("survey"))).status,
        202
    );
    assert_eq!(gateway.post(&asked, &report(3, token)).status, 202);
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } });
    assert_eq!(gateway.post(&asked, &answer).status, 202);
    assert_eq!(events.next_json()["params"]["progressToken"], "mine");
    let reports = events.next_json()["result"]["content"][0]["text"].clone();
    let reports: serde_json::Value = serde_json::from_str(reports.as_str().unwrap()).unwrap();
    let expected = json!({ "progressToken": "survey", "progress": 3, "message": "typing" });
    assert_eq!(reports, json!([expected]));
}

#[test]
fn each_request_of_a_session_has_its_own_trace() {
    let gateway = Gateway::start();
    let session = gateway.session();
    for trace in ["1", "2"] {
        let trace = trace.repeat(32);
        let fields = format!("{session}traceparent: 00-{trace}-{}-01\r\n", "a".repeat(16));
        let answer = gateway.post(&fields, &call(1, "trace", json!({}))).json();
        let text = answer["result"]["content"][0]["text"].to_string();
        assert!(text.contains(&trace), "{trace} is not in {text}");
    }
    let answer = gateway.post(&session, &call(2, "trace", json!({}))).json();
    assert_eq!(answer["result"]["content"][0]["text"], "null");
}

#[test]
fn a_call_is_cancelled_by_its_client_and_with_its_session() {
    let gateway = Gateway::start();
    let session = gateway.session();
    for (id, ends) in [(1, "cancelled"), (2, "deleted")] {
        let (before, calls) = (gateway.seen.cancelled(), gateway.seen.calls());
        let mut stream = gateway.connect();
        let fields = format!("{}{session}", super::client::POST);
        let body = call(id, "wait", json!({})).to_string();
        super::client::write_request(&mut stream, "POST /mcp", &fields, &body);
        eventually("the call begins", SOON, || gateway.seen.calls() > calls);
        if ends == "cancelled" {
            let params = json!({ "requestId": id });
            let message =
                json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            assert_eq!(gateway.post(&session, &message).status, 202);
        } else {
            assert_eq!(gateway.send("DELETE /mcp", &session, "").status, 204);
        }
        eventually("the call is cancelled at the server", SOON, || {
            gateway.seen.cancelled() > before
        });
    }
}

#[test]
fn a_client_that_disconnects_before_a_stream_starts_cancels_its_call() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let mut stream = gateway.connect();
    let fields = format!("{}{session}", super::client::POST);
    let body = call(1, "wait", json!({})).to_string();
    super::client::write_request(&mut stream, "POST /mcp", &fields, &body);
    eventually("the call begins", SOON, || gateway.seen.calls() == 1);
    // The stream has not started, so there is no event to resume from.
    stream.shutdown(Shutdown::Both).unwrap();
    eventually("the call is cancelled", Duration::from_secs(4), || {
        gateway.seen.cancelled() == 1
    });
}
