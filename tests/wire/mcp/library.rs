//! A server that speaks one era or both, with tools, a resource and prompts.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::client::{Era, message};
use super::hostile::server::{Answer, McpServer, Seen, event, text_result, tool};

pub const URI: &str = "note://first";
/// The names of the server's tools.
pub const TOOLS: [&str; 6] = ["echo", "ask", "sample", "work", "never", "cancelled"];

/// Starts a server that speaks the era `only`, or both eras if `None`. The tool `echo` returns its
/// own name and the arguments; `ask` and `sample` send the client a request and return the client's
/// answer; `work` reports progress once a second for 4 s; `never` does not answer; `cancelled`
/// returns whether the most recent call of `never` was cancelled. The prompt `ask` is like the tool.
pub fn library(only: Option<Era>) -> McpServer {
    McpServer::scripted(TOOLS.map(tool).to_vec(), move |seen| {
        let is_unknown = match only {
            Some(Era::Legacy) => seen.method() == "server/discover",
            Some(Era::Modern) => seen.method() == "initialize",
            None => false,
        };
        match is_unknown {
            true => Some(not_found()),
            false => answer(seen),
        }
    })
}

fn not_found() -> Answer {
    Answer::Error(json!({ "code": -32601, "message": "Method not found" }))
}

/// Whether a request is of the modern era.
pub fn is_modern(seen: &Seen) -> bool {
    seen.header("mcp-protocol-version") == Some("2026-07-28")
}

fn answer(seen: &Seen) -> Option<Answer> {
    let params = &seen.message["params"];
    let capabilities = json!({ "tools": {}, "resources": {}, "prompts": {} });
    Some(complete(match seen.method() {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": { "name": "library", "version": "1" },
        }),
        "server/discover" => {
            json!({ "supportedVersions": ["2026-07-28"], "capabilities": capabilities })
        }
        "resources/list" => json!({ "resources": [{ "uri": URI, "name": "first" }] }),
        "resources/templates/list" => json!({ "resourceTemplates": [] }),
        "resources/read" => {
            let text = format!("what {} says", params["uri"].as_str().unwrap());
            json!({ "contents": [{ "uri": params["uri"], "text": text }] })
        }
        "prompts/list" => json!({ "prompts": [{ "name": "greet" }, { "name": "ask" }] }),
        "prompts/get" if params["name"] == "ask" => {
            return Some(ask(seen, "elicitation/create", &form()));
        }
        "prompts/get" => {
            let text = format!("Greet {}", params["arguments"]["who"]);
            let content = json!({ "type": "text", "text": text });
            json!({ "messages": [{ "role": "user", "content": content }] })
        }
        "tools/call" => match seen.tool() {
            "ask" => return Some(ask(seen, "elicitation/create", &form())),
            "sample" => return Some(ask(seen, "sampling/createMessage", &sample())),
            "work" => return Some(work(seen)),
            "never" => return Some(never()),
            "cancelled" => return Some(cancelled(seen)),
            _ => return None,
        },
        _ => return None,
    }))
}

/// Adds the members that modern results require; the legacy era allows additional members.
fn complete(mut result: Value) -> Answer {
    result["resultType"] = "complete".into();
    result["ttlMs"] = 600_000.into();
    result["cacheScope"] = "private".into();
    Answer::Result(result)
}

/// Sends a request to the client: as a message in the legacy era, in the result in the modern one.
fn ask(seen: &Seen, method: &'static str, params: &Value) -> Answer {
    if is_modern(seen) {
        return match seen.message["params"]["inputResponses"].get("question") {
            Some(answer) => Answer::text(&answer.to_string()),
            None => Answer::Result(json!({
                "resultType": "input_required",
                "inputRequests": { "question": { "method": method, "params": params } },
                "requestState": "of-the-server",
            })),
        };
    }
    let (id, question_id) = (seen.message["id"].clone(), seen.tool().to_owned());
    let question = message(&question_id.clone().into(), method, params.clone());
    Answer::stream(move |stream, state| {
        stream.write_all(event(&question).as_bytes())?;
        let answer = state.wait_for_answer(&question_id)?;
        let told = answer.get("result").or(answer.get("error"));
        let result = text_result(&told.unwrap().to_string());
        let result = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        stream.write_all(event(&result).as_bytes())
    })
}

fn work(seen: &Seen) -> Answer {
    let id = seen.message["id"].clone();
    let token = seen.message["params"]["_meta"]["progressToken"].clone();
    Answer::stream(move |stream, _| {
        for number in 0..4 {
            std::thread::sleep(Duration::from_secs(1));
            let params = json!({ "progressToken": token, "progress": number });
            let progress = json!({
                "jsonrpc": "2.0", "method": "notifications/progress", "params": params,
            });
            stream.write_all(event(&progress).as_bytes())?;
        }
        let result = json!({ "jsonrpc": "2.0", "id": id, "result": text_result("worked") });
        stream.write_all(event(&result).as_bytes())
    })
}

fn never() -> Answer {
    Answer::stream(|stream, _| {
        // Returns when the gateway closes the connection.
        drop(stream.read(&mut [0]));
        Ok(())
    })
}

fn cancelled(seen: &Seen) -> Answer {
    let id = seen.message["id"].clone();
    Answer::stream(move |stream, state| {
        let seen = state.seen();
        let unanswered = seen.iter().rev().find(|one| one.tool() == "never");
        let unanswered = unanswered.map(|call| &call.message["id"]);
        let is_cancelled = seen.iter().any(|one| {
            one.method() == "notifications/cancelled"
                && Some(&one.message["params"]["requestId"]) == unanswered
        });
        let result = text_result(&is_cancelled.to_string());
        let result = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        stream.write_all(event(&result).as_bytes())
    })
}

fn form() -> Value {
    let schema = json!({ "type": "object", "properties": { "by": { "type": "string" } } });
    json!({ "mode": "form", "message": "Who answers?", "requestedSchema": schema })
}

fn sample() -> Value {
    let content = json!({ "type": "text", "text": "Say something" });
    json!({ "messages": [{ "role": "user", "content": content }], "maxTokens": 10 })
}
