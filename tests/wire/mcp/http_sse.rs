//! The legacy transport HTTP+SSE of revision 2024-11-05.

use serde_json::json;

use super::client::{Gateway, POST, call, initialize, request};

#[test]
fn responses_to_posted_messages_arrive_on_the_sse_stream() {
    let gateway = Gateway::start();
    let mut stream = gateway.get("/sse", "");
    let endpoint = stream.next().unwrap();
    assert!(endpoint.starts_with("/message?sessionId="), "{endpoint}");
    let post = |message: &serde_json::Value| {
        let reply = gateway.send(&format!("POST {endpoint}"), POST, &message.to_string());
        reply.status
    };
    assert_eq!(
        post(&request(1, "ping", json!({}))),
        400,
        "a ping before initialize"
    );
    assert_eq!(post(&initialize()), 202);
    assert_eq!(
        stream.next_json()["result"]["serverInfo"]["name"],
        "unified-proxy"
    );
    assert_eq!(post(&initialize()), 400, "a second initialize");
    assert_eq!(post(&request(1, "ping", json!({}))), 202);
    assert_eq!(
        stream.next_json(),
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} })
    );
    assert_eq!(post(&call(2, "ask", json!({}))), 202);
    let question = stream.next_json();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(
        post(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "cancel" } })),
        202
    );
    assert_eq!(stream.next_json()["id"], 2);
    // The session is not valid in Streamable HTTP, and ends with its stream.
    let id = endpoint.split('=').nth(1).unwrap();
    let ping = request(3, "ping", json!({}));
    assert_eq!(
        gateway
            .post(&format!("mcp-session-id: {id}\r\n"), &ping)
            .status,
        404
    );
    drop(stream);
    crate::support::eventually("the session ends", crate::support::SOON, || {
        post(&ping) == 404
    });
    assert_eq!(
        gateway
            .send(
                "POST /message",
                POST,
                "{\"jsonrpc\":\"2.0\",\"method\":\"a\"}"
            )
            .status,
        400
    );
}
