//! Attempts to use sessions, ids and streams of other clients.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{
    Client, Era, Events, FIRST, Gateway, SECOND, assert_code, message, response, text,
};
use super::policies::with_policy;
use super::server::{Answer, McpServer, Seen, event, text_result, tool};
use crate::support::{SOON, eventually, read_reply};

/// A server whose tool `ask` sends the client a question and returns the answer, and whose tool
/// `hold` never answers.
fn asking() -> McpServer {
    McpServer::scripted(vec![tool("ask"), tool("hold")], ask)
}

/// Like [`asking`], but the server does not know revision 2026-07-28.
fn asking_legacy() -> McpServer {
    McpServer::scripted(vec![tool("ask"), tool("hold")], |seen| {
        let unknown = json!({ "code": -32601, "message": "Method not found" });
        match seen.method() {
            "server/discover" => Some(Answer::Error(unknown)),
            _ => ask(seen),
        }
    })
}

fn ask(seen: &Seen) -> Option<Answer> {
    let id = seen.message["id"].clone();
    match seen.tool() {
        "ask" => Some(Answer::stream(move |stream, state| {
            let question = message(&"question".into(), "elicitation/create", form());
            stream.write_all(event(&question).as_bytes())?;
            let answer = state.wait_for_answer("question")?;
            let result = text_result(&answer["result"].to_string());
            let result = json!({ "jsonrpc": "2.0", "id": id, "result": result });
            stream.write_all(event(&result).as_bytes())
        })),
        "hold" => Some(Answer::stream(|stream, _| {
            stream.write_all(b": wait\n\n")?;
            // Reads until the proxy closes the connection.
            std::io::copy(stream, &mut std::io::sink()).map(drop)
        })),
        _ => None,
    }
}

fn form() -> Value {
    let schema = json!({ "type": "object", "properties": { "by": { "type": "string" } } });
    json!({ "mode": "form", "message": "Who answers?", "requestedSchema": schema })
}

fn mounted(server: &McpServer) -> Gateway {
    let mut mount = server.mount();
    mount["timeout"] = "20s".into();
    Gateway::start(&json!({ "mcpServers": { "kb": mount } }))
}

fn accepted(by: &str) -> Value {
    json!({ "action": "accept", "content": { "by": by } })
}

fn answer(id: &Value, by: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": accepted(by) }).to_string()
}

/// A client of the second container that uses the session of the client `of`.
fn thief<'g>(gateway: &'g Gateway, of: &Client<'_>) -> Client<'g> {
    let mut thief = Client::of(gateway, Era::Legacy, SECOND);
    thief.session.clone_from(&of.session);
    thief
}

#[test]
fn the_session_of_another_container_is_not_found() {
    let server = asking();
    let gateway = mounted(&server);
    let owner = Client::open(&gateway, Era::Legacy).wait_for(&["kb_hold"]);
    let thief = thief(&gateway, &owner);
    let list = message(&1.into(), "tools/list", json!({})).to_string();
    each_row(["POST", "GET", "DELETE"], |method| {
        let mut stream = thief.send(method, &[], list.as_bytes());
        let reply = read_reply(&mut stream).unwrap();
        assert_eq!(reply.status, 404, "{method}: {}", reply.text());
    });
    // The owner can still use the session.
    assert!(!owner.tools().is_empty());
    let guessed = [("mcp-session-id", "0123456789abcdef0123456789abcdef")];
    assert_eq!(owner.post(&guessed, list.as_bytes()).status, 404);
    let nothing = owner.fresh(|_| list);
    assert_eq!(nothing.status, 400, "{}", nothing.text());
}

#[test]
fn a_question_is_answered_only_by_its_own_session() {
    let server = asking();
    let gateway = mounted(&server);
    let asked = Client::open(&gateway, Era::Legacy).wait_for(&["kb_ask"]);
    let call = json!({ "name": "kb_ask", "arguments": {} });
    let mut events = Events::new(asked.begin(&77.into(), "tools/call", call));
    let (_, question) = events.next().unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let id = &question["id"];
    // The gateway replaces the server's id.
    assert_ne!(*id, "question");

    let beside = Client::open(&gateway, Era::Legacy);
    let elsewhere = Client::of(&gateway, Era::Legacy, SECOND);
    for client in [&beside, &elsewhere] {
        for id in [id, &"question".into(), &77.into()] {
            let reply = client.post(&[], answer(id, "a stranger").as_bytes());
            assert_eq!(reply.status, 202, "{}", reply.text());
        }
    }
    let stolen = thief(&gateway, &asked).post(&[], answer(id, "a thief").as_bytes());
    assert_eq!(stolen.status, 404);
    let modern = Client::open(&gateway, Era::Modern);
    let reply = modern.post(&[], answer(id, "a modern stranger").as_bytes());
    assert_eq!(reply.status, 400, "{}", reply.text());
    // In the right session, an answer with another id does not reach the server either.
    for other in [json!(id.to_string()), json!(99), json!("question")] {
        asked.post(&[], answer(&other, "a guess").as_bytes());
    }
    assert_eq!(server.answer_to("question"), None);

    asked.post(&[], answer(id, "the asked one").as_bytes());
    let (_, result) = events.next().unwrap();
    assert_eq!(result["id"], 77);
    let said: Value = serde_json::from_str(text(&result)).unwrap();
    assert_eq!(said["content"]["by"], "the asked one");
    // A second answer has no effect.
    asked.post(&[], answer(id, "a second thought").as_bytes());
    let answers = server.seen();
    let answers = answers
        .iter()
        .filter(|one| one.http == "POST" && one.method().is_empty());
    assert_eq!(answers.count(), 1);
}

#[test]
fn a_suspended_call_is_resumed_only_by_its_own_container_and_request() {
    let server = asking_legacy();
    let gateway = mounted(&server);
    let asked = Client::open(&gateway, Era::Modern).wait_for(&["kb_ask"]);
    let waiting = asked.call("kb_ask", json!({}));
    let result = &waiting["result"];
    assert_eq!(result["resultType"], "input_required", "{waiting}");
    let key = result["inputRequests"].as_object().unwrap().keys().next();
    let retry = |name: &str, arguments: Value, by: &str| {
        json!({
            "name": name, "arguments": arguments, "requestState": result["requestState"],
            "inputResponses": { key.unwrap(): accepted(by) },
        })
    };
    let stranger = Client::of(&gateway, Era::Modern, SECOND).wait_for(&["kb_ask"]);
    let stolen = stranger.request("tools/call", retry("kb_ask", json!({}), "a stranger"));
    assert_code(&stolen, -32602);
    for (name, arguments) in [("kb_hold", json!({})), ("kb_ask", json!({ "other": 1 }))] {
        let other = asked.request("tools/call", retry(name, arguments, "another request"));
        assert_code(&other, -32602);
    }
    assert_eq!(server.answer_to("question"), None);
    let done = asked.request("tools/call", retry("kb_ask", json!({}), "the asked one"));
    let said: Value = serde_json::from_str(text(&done)).unwrap();
    assert_eq!(said["content"]["by"], "the asked one");
    // A state can be used only once.
    let again = asked.request("tools/call", retry("kb_ask", json!({}), "again"));
    assert_code(&again, -32602);
}

#[test]
fn a_call_is_cancelled_only_by_its_own_session() {
    let server = asking();
    let gateway = mounted(&server);
    let owner = Client::open(&gateway, Era::Legacy).wait_for(&["kb_hold"]);
    let call = json!({ "name": "kb_hold", "arguments": {} });
    let mut held = owner.begin(&4711.into(), "tools/call", call);
    server.wait_for_calls(1);
    let at_server = server.calls()[0].message["id"].clone();
    let cancelled = "notifications/cancelled";
    for client in [
        Client::open(&gateway, Era::Legacy),
        Client::of(&gateway, Era::Legacy, SECOND),
    ] {
        for id in [json!(4711), at_server.clone()] {
            client.notify(cancelled, json!({ "requestId": id }));
        }
    }
    // Neither the id at the server nor the client's id as a string cancels the call.
    if at_server != 4711 {
        owner.notify(cancelled, json!({ "requestId": at_server }));
    }
    owner.notify(cancelled, json!({ "requestId": "4711" }));
    // This call gives a cancellation, if one was wrongly sent, time to reach the server.
    let quick = Client::open(&gateway, Era::Legacy);
    assert_code(&quick.call("kb_nothing", json!({})), -32602);
    assert_eq!(server.of(cancelled).len(), 0);
    owner.notify(cancelled, json!({ "requestId": 4711 }));
    eventually("the cancellation reaches the server", SOON, || {
        server.of(cancelled).len() == 1
    });
    assert_eq!(
        server.of(cancelled)[0].message["params"]["requestId"],
        at_server
    );
    // The stream ends without a response.
    let reply = read_reply(&mut held).unwrap();
    assert!(!reply.text().contains("result"), "{}", reply.text());
}

/// The gateway keeps the judged messages of a stream, not those that the server sent.
#[test]
fn a_resumed_stream_holds_no_denied_result_and_no_text_that_was_redacted() {
    let rules = r#"package mcp.authz

default decision := "allow"

decision := "deny_continue" if {
	input.phase == "response"
	input.tool == "denied"
}

decision := "redact" if {
	input.phase == "response"
	input.tool == "redacted"
}

modified := {"content": [{"type": "text", "text": "[gone]"}]} if input.phase == "response"
"#;
    let server = McpServer::scripted(vec![tool("denied"), tool("redacted")], |seen| {
        let (id, token) = (
            seen.message["id"].clone(),
            &seen.message["params"]["_meta"]["progressToken"],
        );
        let progress = json!({ "progressToken": token, "progress": 1 });
        let progress = json!({
            "jsonrpc": "2.0", "method": "notifications/progress", "params": progress,
        });
        let result = json!({ "jsonrpc": "2.0", "id": id, "result": text_result("top secret") });
        (!seen.tool().is_empty()).then(|| Answer::Events(vec![progress, result]))
    });
    let gateway = with_policy(&server, rules);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["kb_denied", "kb_redacted"]);
    let accept = [("accept", "text/event-stream, application/json")];
    let mut seen = Vec::new();
    each_row(["kb_denied", "kb_redacted"], |name| {
        let params = json!({ "name": name, "_meta": { "progressToken": "p" } });
        let body = message(&name.into(), "tools/call", params).to_string();
        let reply = client.post(&accept, body.as_bytes());
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let text = reply.text();
        assert!(!text.contains("top secret"), "{text}");
        let expected = match name {
            "kb_denied" => "-32951",
            _ => "[gone]",
        };
        let ids: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("id: "))
            .map(str::to_owned)
            .collect();
        assert!(ids.len() >= 3, "{text}");
        // A client that resumes after any event but the last gets the judged result again.
        for (at, id) in ids.iter().enumerate() {
            let mut stream = client.send("GET", &[("last-event-id", id)], b"");
            let again = read_reply(&mut stream).unwrap();
            assert_eq!(again.status, 200);
            let again = again.text();
            assert!(!again.contains("top secret"), "{again}");
            let is_last = at + 1 == ids.len();
            assert_eq!(again.contains(expected), !is_last, "{again}");
        }
        seen.extend(ids);
    });
    // The events belong to the client's session: another session cannot resume their streams.
    let others = [
        Client::open(&gateway, Era::Legacy),
        Client::of(&gateway, Era::Legacy, SECOND),
    ];
    for (other, id) in others
        .iter()
        .flat_map(|other| seen.iter().map(move |id| (other, id)))
    {
        let mut stream = other.send("GET", &[("last-event-id", id)], b"");
        assert_eq!(read_reply(&mut stream).unwrap().status, 400, "{id}");
    }
}

/// In HTTP+SSE, the session id is in the URL of the message endpoint. Another container cannot use
/// the session, even if it knows the URL.
#[test]
fn the_message_endpoint_of_another_container_is_not_found() {
    let server = asking();
    let gateway = mounted(&server);
    let mut sse = gateway.connect(FIRST);
    let host = gateway.address;
    write!(
        sse,
        "GET /sse HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n"
    )
    .unwrap();
    let endpoint = endpoint_of(&mut sse);
    let opening = Client::open(&gateway, Era::Modern).initialize();
    let post = |source| {
        let mut stream: TcpStream = gateway.connect(source);
        let length = opening.len();
        write!(
            stream,
            "POST {endpoint} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{opening}"
        )
        .unwrap();
        read_reply(&mut stream).unwrap()
    };
    let stolen = post(SECOND);
    assert_eq!(stolen.status, 404, "{}", stolen.text());
    let own = post(FIRST);
    assert_eq!(own.status, 202, "{}", own.text());
}

fn endpoint_of(stream: &mut TcpStream) -> String {
    use std::io::{BufRead, BufReader};
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    data.unwrap()
}

/// The gateway refuses a second request with an id in use, so that the answers to the two requests
/// cannot be confused.
#[test]
fn a_request_id_in_use_is_refused() {
    let server = asking();
    let gateway = mounted(&server);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["kb_hold"]);
    let call = || json!({ "name": "kb_hold", "arguments": {} });
    let _held = client.begin(&1_000_001.into(), "tools/call", call());
    server.wait_for_calls(1);
    let again = read_reply(&mut client.begin(&1_000_001.into(), "tools/call", call())).unwrap();
    assert_eq!(again.status, 400);
    assert_code(&response(&again), -32600);
    assert_eq!(server.calls().len(), 1);
}
