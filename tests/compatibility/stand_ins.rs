//! Stand-ins for the servers of the clients: APIs that stream, package registries, a repository.

use std::process::Command;

use serde_json::{Value, json};

use super::tools::{Tool, Tools};
use crate::support::{Origin, Seen};

/// Host names of the origin besides those of [`Setup::new`].
pub const HOSTS: [&str; 4] = [
    "packages.example.com",
    "api.github.com",
    "api.openai.com",
    "api.anthropic.com",
];
const SECRET: &str = "real-71e0c2aa95d34b08f6";
pub const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";
/// The pieces of a model's reply, each sent as an event.
pub const PIECES: [&str; 8] = ["P", "O", "N", "G", "-", "5", "2", "9"];

const REGISTRIES: &str = include_str!("programs/registries.py");

pub fn credentials() -> [Value; 2] {
    [
        json!({ "name": "openai", "hosts": ["api.openai.com"], "bearer": SECRET }),
        json!({
            "name": "anthropic", "hosts": ["api.anthropic.com"],
            "set_headers": { "x-api-key": SECRET }, "remove_headers": ["authorization"],
        }),
    ]
}

/// Replies of the APIs, as lists of events, to requests with the real credential. A request without
/// that credential gets a 401. Returns `None` for other paths.
pub fn answer(seen: &Seen, _body: &str) -> Option<(u16, Value)> {
    let (credential, reply) = match seen.target.as_str() {
        "/v1/chat/completions" => (seen.header("authorization"), completions()),
        "/v1/messages" => (seen.header("x-api-key"), messages()),
        _ => return None,
    };
    let is_real = credential.is_some_and(|credential| credential.ends_with(SECRET));
    Some(if is_real {
        (200, reply)
    } else {
        (401, json!({}))
    })
}

fn completions() -> Value {
    let chunk = |piece: &&str| {
        let choice = json!({ "index": 0, "delta": { "content": piece }, "finish_reason": null });
        let chunk = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
            "model": "stand-in", "choices": [choice],
        });
        format!("data: {chunk}\n\n")
    };
    let end = ["data: [DONE]\n\n".to_owned()];
    PIECES.iter().map(chunk).chain(end).collect()
}

fn messages() -> Value {
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in",
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": { "input_tokens": 1, "output_tokens": 1 },
    });
    let delta = |piece: &&str| {
        let delta = json!({ "type": "text_delta", "text": piece });
        json!({ "type": "content_block_delta", "index": 0, "delta": delta })
    };
    let block = json!({ "type": "text", "text": "" });
    let begin = [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
    ];
    let stop = json!({ "stop_reason": "end_turn", "stop_sequence": null });
    let end = [
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": stop, "usage": { "output_tokens": 8 } }),
        json!({ "type": "message_stop" }),
    ];
    let events = begin.into_iter().chain(PIECES.iter().map(delta)).chain(end);
    let text = |event: Value| {
        format!(
            "event: {}\ndata: {event}\n\n",
            event["type"].as_str().unwrap()
        )
    };
    events.map(text).collect()
}

/// Writes the files of the package registries.
pub fn registries(origin: &Origin, tools: &Tools) {
    if tools.missing(Tool::Program("python3")).is_some() {
        return;
    }
    let status = Command::new("python3")
        .args(["-c", REGISTRIES])
        .arg(origin.files())
        .arg("https://packages.example.com")
        .status();
    assert!(status.unwrap().success());
}

/// Creates a repository with one commit, whose message is [`GIT_MESSAGE`].
pub fn repository(origin: &Origin) {
    let bare = origin.create_repository("team/project");
    let script = "git init --quiet --initial-branch=main work && cd work \
        && git -c user.name=test -c user.email=test@example.com commit --quiet --allow-empty \
           --message=\"$1\" && git push --quiet \"$0\" main";
    let scratch = tempfile::TempDir::new().unwrap();
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(bare)
        .arg(GIT_MESSAGE)
        .current_dir(scratch.path())
        .status();
    assert!(status.unwrap().success());
}

/// Message of the commit that a clone shows.
pub const GIT_MESSAGE: &str = "The first commit";
