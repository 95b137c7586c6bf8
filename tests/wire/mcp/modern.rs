//! The modern revision (2026-07-28), which has no handshake.

use serde_json::{Value, json};

use super::client::{Events, Gateway, call, modern, request};
use crate::support::{SOON, eventually};

fn post(gateway: &Gateway, message: Value) -> (u16, Value) {
    let (fields, message) = modern(message);
    let reply = gateway.post(&fields, &message);
    (reply.status, reply.json())
}

fn events(gateway: &Gateway, message: Value) -> Events {
    let (fields, message) = modern(message);
    gateway.events(&fields, &message)
}

#[test]
fn server_discover_describes_the_gateway_and_the_caching_of_the_result() {
    let gateway = Gateway::start();
    let (status, answer) = post(&gateway, request(1, "server/discover", json!({})));
    let result = &answer["result"];
    assert_eq!((status, &result["resultType"]), (200, &json!("complete")));
    assert_eq!(result["supportedVersions"][0], "2026-07-28");
    assert_eq!(result["cacheScope"], "private");
    assert_eq!(result["ttlMs"], 0);
    let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(server["name"], "unified-proxy");
}

#[test]
fn a_question_of_a_legacy_server_is_in_the_result_and_answered_by_the_retry() {
    let gateway = Gateway::start();
    let (status, asked) = post(&gateway, call(1, "ask", json!({ "a": 1, "b": 2 })));
    let asked = &asked["result"];
    assert_eq!(
        (status, &asked["resultType"]),
        (200, &json!("input_required"))
    );
    let (key, question) = asked["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "Who?");
    let answers = json!({ key: { "action": "accept", "content": { "who": "alice" } } });
    let retry = |id, arguments: Value, answers: &Value| {
        let mut message = call(id, "ask", arguments);
        message["params"]["requestState"] = asked["requestState"].clone();
        message["params"]["inputResponses"] = answers.clone();
        post(&gateway, message)
    };
    // `requestState` is bound to its request.
    let (status, other) = retry(2, json!({ "a": 2, "b": 2 }), &answers);
    assert_eq!((status, &other["error"]["code"]), (400, &json!(-32602)));
    let (_, done) = retry(4, json!({ "b": 2, "a": 1 }), &answers);
    let text = done["result"]["content"][0]["text"].to_string();
    assert!(text.contains("alice"), "{done}");
    assert_eq!(done["result"]["resultType"], "complete");
    // `requestState` can be used only once.
    let (status, again) = retry(5, json!({ "a": 1, "b": 2 }), &answers);
    assert_eq!((status, &again["error"]["code"]), (400, &json!(-32602)));
    assert_eq!(gateway.seen.calls(), 1);
}

#[test]
fn unanswered_questions_of_a_retry_are_repeated() {
    let gateway = Gateway::start();
    let (_, asked) = post(&gateway, call(1, "ask", json!({})));
    let mut retry = call(2, "ask", json!({}));
    retry["params"]["requestState"] = asked["result"]["requestState"].clone();
    let (status, again) = post(&gateway, retry);
    assert_eq!(
        (status, &again["result"]["resultType"]),
        (200, &json!("input_required"))
    );
    assert_eq!(
        again["result"]["inputRequests"],
        asked["result"]["inputRequests"]
    );
    assert_ne!(
        again["result"]["requestState"],
        asked["result"]["requestState"]
    );
}

#[test]
fn a_retry_gets_progress_only_with_its_own_token() {
    let gateway = Gateway::start();
    for (number, token) in [json!("again"), json!(null)].into_iter().enumerate() {
        let first = 10 * number as u32;
        let (_, asked) = post(&gateway, call(first, "survey", json!({})));
        let asked = &asked["result"];
        let mut retry = call(first + 1, "survey", json!({}));
        retry["params"]["requestState"] = asked["requestState"].clone();
        retry["params"]["inputResponses"] = json!({ "request-1": { "action": "decline" } });
        retry["params"]["_meta"] = match &token {
            Value::Null => json!({}),
            token => json!({ "progressToken": token }),
        };
        if token.is_null() {
            let (_, done) = post(&gateway, retry);
            assert_eq!(done["result"]["resultType"], "complete");
            continue;
        }
        let mut told = events(&gateway, retry);
        assert_eq!(told.next_json()["params"]["progressToken"], token);
        assert_eq!(told.next_json()["id"], first + 1);
    }
}

#[test]
fn a_modern_call_gets_progress_on_its_stream_and_is_cancelled_by_closing_it() {
    let gateway = Gateway::start();
    let mut told = events(&gateway, call(1, "tell", json!({})));
    for progress in [1, 2] {
        assert_eq!(told.next_json()["params"]["progress"], progress);
    }
    assert_eq!(told.next_json()["id"], 1);
    assert_eq!(told.next(), None);
    let (fields, message) = modern(call(2, "wait", json!({})));
    let mut stream = gateway.connect();
    let fields = format!("{}{fields}", super::client::POST);
    super::client::write_request(&mut stream, "POST /mcp", &fields, &message.to_string());
    eventually("the call begins", SOON, || gateway.seen.calls() == 2);
    drop(stream);
    eventually("the call is cancelled", SOON, || {
        gateway.seen.cancelled() == 1
    });
}

#[test]
fn a_stream_that_is_not_read_is_closed_after_the_idle_time() {
    let gateway = Gateway::start_with(|setup| {
        setup.proxy["upstream"]["idle_timeout"] = "2s".into();
    });
    let (fields, message) = modern(call(1, "flood", json!({})));
    let mut stream = gateway.connect();
    let fields = format!("{}{fields}", super::client::POST);
    super::client::write_request(&mut stream, "POST /mcp", &fields, &message.to_string());
    // The gateway notices an unread stream only when the socket buffers are full.
    eventually("the call is cancelled", 3 * SOON, || {
        gateway.seen.cancelled() == 1
    });
    // The client still gets the buffered events, and then the end of the stream.
    let mut rest = vec![0; 65_536];
    while matches!(std::io::Read::read(&mut stream, &mut rest), Ok(1..)) {}
}

#[test]
fn a_subscription_is_acknowledged_first_and_ends_with_a_response_at_shutdown() {
    let mut gateway = Gateway::start();
    let wanted = json!({ "toolsListChanged": true, "promptsListChanged": true });
    let listen = request(
        9,
        "subscriptions/listen",
        json!({ "notifications": wanted }),
    );
    let mut stream = events(&gateway, listen);
    let first = stream.next_json();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let id = "io.modelcontextprotocol/subscriptionId";
    assert_eq!(first["params"]["_meta"][id], 9);
    assert_eq!(first["params"]["notifications"]["toolsListChanged"], true);
    gateway.proxy.signal(rustix::process::Signal::TERM);
    let last = stream.next_json();
    assert_eq!(
        (&last["id"], &last["result"]["_meta"][id]),
        (&json!(9), &json!(9))
    );
    assert_eq!(stream.next(), None);
    gateway.proxy.wait(SOON);
}

#[test]
fn an_invalid_or_too_long_filter_is_refused() {
    let gateway = Gateway::start();
    let many: Vec<String> = (0..257).map(|number| format!("a://{number}")).collect();
    for filter in [
        json!({}),
        json!({ "notifications": [true] }),
        json!({ "notifications": { "toolsListChanged": "yes" } }),
        json!({ "notifications": { "resourceSubscriptions": many } }),
    ] {
        let (status, answer) = post(&gateway, request(1, "subscriptions/listen", filter));
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32602)));
    }
}
