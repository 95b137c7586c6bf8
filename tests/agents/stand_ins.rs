//! Stand-ins for the agents' APIs, sufficient for one conversation each.

use serde_json::{Value, json};

use crate::support::Seen;

/// The reply of every model.
pub const REPLY: &str = "PONG-4711";
/// The account of the ChatGPT login.
pub const ACCOUNT: &str = "acct-77f3";

/// The hosts of the stand-ins.
pub const HOSTS: [&str; 7] = [
    "api.anthropic.com",
    "platform.claude.com",
    "api.openai.com",
    "auth.openai.com",
    "chatgpt.com",
    "ab.chatgpt.com",
    "generativelanguage.googleapis.com",
];

/// Status and body of the response to a request. The origin sends a JSON string as an event stream,
/// and any other value as JSON.
pub fn answer(seen: &Seen, body: &str) -> (u16, Value) {
    let path = seen.target.split('?').next().unwrap();
    if path.ends_with("/responses") {
        return match seen.method.as_str() {
            "POST" => (200, responses()),
            // Codex first tries to open a WebSocket, and falls back to plain HTTP on this status.
            _ => (426, json!({ "error": "only plain HTTP" })),
        };
    }
    if path.contains(":streamGenerateContent") {
        return (200, stream_of(&candidate(&json!({ "text": REPLY }))));
    }
    if path.contains(":generateContent") {
        return (200, candidate(&json!({ "text": REPLY })));
    }
    if path.ends_with("/models") {
        return (200, json!({ "object": "list", "data": [], "models": [] }));
    }
    match path {
        "/v1/messages" => (200, messages(body)),
        "/v1/oauth/hello" | "/api/hello" => (200, json!({ "message": "hello" })),
        "/backend-api/wham/accounts/check" => (200, accounts()),
        _ => (404, json!({ "error": { "message": "no such route" } })),
    }
}

/// The list of accounts, in which Codex looks for its own account.
fn accounts() -> Value {
    json!({
        "accounts": [{
            "id": ACCOUNT, "account_id": ACCOUNT, "plan_type": "pro", "structure": "personal",
            "is_deactivated": false, "workspace_backend_origin": "https://chatgpt.com",
            "account_routing_override": "NO_CONSTRAINT",
        }],
        "account_ordering": [ACCOUNT], "default_account_id": ACCOUNT,
    })
}

fn events(events: &[Value]) -> Value {
    let event = |event: &Value| {
        let kind = event["type"].as_str().unwrap();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    events.iter().map(event).collect::<String>().into()
}

/// OpenAI's `/responses`, with a text.
fn responses() -> Value {
    let item = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": REPLY, "annotations": [] }],
    });
    let mut began = item.clone();
    began["content"] = json!([]);
    let delta = json!({
        "type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0,
        "content_index": 0, "delta": REPLY,
    });
    response_of(&began, Some(delta), &item)
}

/// A response of `/responses` with one item: as it began, perhaps a part of it, and the whole.
pub fn response_of(began: &Value, delta: Option<Value>, item: &Value) -> Value {
    let response = |status: &str, output: Value| {
        json!({
            "id": "resp_1", "object": "response", "created_at": 1, "status": status,
            "model": "m", "output": output,
            "usage": {
                "input_tokens": 1, "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": 1, "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": 2,
            },
        })
    };
    let mut all = vec![
        json!({ "type": "response.created", "response": response("in_progress", json!([])) }),
        json!({ "type": "response.output_item.added", "output_index": 0, "item": began }),
    ];
    all.extend(delta);
    all.extend([
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": response("completed", json!([item])) }),
    ]);
    events(&all)
}

/// Anthropic's `/v1/messages`, with a text.
fn messages(body: &str) -> Value {
    let asked: Value = serde_json::from_str(body).unwrap_or_default();
    if asked["stream"] == true {
        let block = json!({ "type": "text", "text": "" });
        let delta = json!({ "type": "text_delta", "text": REPLY });
        return message_of(&asked["model"], &block, &delta, "end_turn");
    }
    let mut message = message(&asked["model"]);
    message["content"] = json!([{ "type": "text", "text": REPLY }]);
    message["stop_reason"] = "end_turn".into();
    message
}

/// A message without content.
fn message(model: &Value) -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": { "input_tokens": 1, "output_tokens": 1 },
    })
}

/// A stream of `/v1/messages` with one block: as it begins, and its content.
pub fn message_of(model: &Value, block: &Value, delta: &Value, stop_reason: &str) -> Value {
    events(&[
        json!({ "type": "message_start", "message": message(model) }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({
            "type": "message_delta", "usage": { "output_tokens": 3 },
            "delta": { "stop_reason": stop_reason, "stop_sequence": null },
        }),
        json!({ "type": "message_stop" }),
    ])
}

/// A response of Gemini with one part.
pub fn candidate(part: &Value) -> Value {
    json!({
        "candidates": [{
            "index": 0, "finishReason": "STOP",
            "content": { "role": "model", "parts": [part] },
        }],
        "usageMetadata": { "promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2 },
        "modelVersion": "m",
    })
}

/// A stream of Gemini with this response.
pub fn stream_of(candidate: &Value) -> Value {
    format!("data: {candidate}\r\n\r\n").into()
}
