//! Calls that wait for a person: each approval runs one call, and none runs without its client.

mod memory;
mod races;

use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::client::{Client, DENIED, ERAS, Era, Events, Gateway, assert_code, response, text};
use super::server::{McpServer, tool};
use crate::support::{SANDBOX, SOON, eventually, read_reply};

/// Asks about `pay`, also in its response.
const ASK: &str = r#"package mcp.authz

default decision := "allow"

decision := "ask" if input.tool == "pay"

reason := "it costs money"
"#;

/// The most calls of a container that wait for people at once.
const MAX_WAITS: usize = 256;

/// A gateway whose policy asks about the tool `pay` of a server that counts its calls.
pub struct Asking {
    pub server: McpServer,
    pub gateway: Gateway,
    bundle: TempDir,
}

impl Asking {
    /// `settings` is the section `approvals` of proxy.yaml. A call of a [`Client`] of the legacy
    /// era with a progress token waits for 15 minutes.
    pub fn start(mut settings: Value) -> Self {
        let server = McpServer::start(vec![tool("pay"), tool("secret")]);
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("authz.rego"), ASK).unwrap();
        let mcp = json!({
            "mcpServers": { "kb": server.mount() },
            "overrides": { "kb:secret": { "classification": "Confidential" } },
            "policies": {
                "bundles": [{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }],
                // A busy machine evaluates many calls late.
                "evaluator": { "timeout": "30s" },
            },
        });
        settings["wait_by_client"] = json!({ "test": "15m" });
        let gateway = Gateway::with(&mcp, |setup| setup.proxy["approvals"] = settings);
        Self {
            server,
            gateway,
            bundle,
        }
    }

    /// A client without tasks, whose calls wait.
    fn client(&self, era: Era) -> Client<'_> {
        let mut client = Client::open(&self.gateway, era);
        client.takes_tasks = false;
        client.wait_for(&["kb_pay"])
    }

    /// The open questions, the newest first.
    fn questions(&self) -> Vec<Value> {
        let path = "/internal/approvals?state=pending";
        let listed = self.gateway.proxy.admin("GET", path, None).json();
        listed["approvals"].as_array().unwrap().clone()
    }

    /// Waits until a number of calls wait for one open question, and returns its id.
    #[track_caller]
    pub fn waiting(&self, calls: usize) -> String {
        eventually(&format!("{calls} calls wait"), SOON, || {
            let questions = self.questions();
            questions.len() == 1 && questions[0]["waiting"] == calls
        });
        self.questions()[0]["id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn decide(&self, id: &str, act: &str, body: Value) {
        let path = format!("/internal/approvals/{id}/{act}");
        let reply = self.gateway.proxy.admin("POST", &path, Some(body));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    pub fn calls(&self) -> usize {
        self.server.calls().len()
    }
}

/// A call of `pay` with a progress token.
fn paying(arguments: Value) -> Value {
    let meta = json!({ "progressToken": "mine" });
    json!({ "name": "kb_pay", "arguments": arguments, "_meta": meta })
}

fn begin(client: &Client<'_>, arguments: Value) -> TcpStream {
    client.begin(&json!("a call"), "tools/call", paying(arguments))
}

/// The response that ends a stream.
#[track_caller]
fn ended(stream: TcpStream) -> Value {
    let mut stream = stream;
    response(&read_reply(&mut stream).unwrap())
}

#[track_caller]
fn assert_outcome(response: &Value, outcome: &str, sentence: &str) {
    assert_code(response, DENIED);
    let error = &response["error"];
    assert_eq!(error["data"]["outcome"], outcome, "{response}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("policy_denied_continue: ") && message.contains(sentence),
        "{message}"
    );
}

#[test]
fn an_approved_call_runs_once_and_its_client_hears_of_it_meanwhile() {
    each_row(ERAS, |era| {
        let asking = Asking::start(json!({ "wait": "15m" }));
        let client = asking.client(era);
        let mut events = Events::new(begin(&client, json!({ "euros": 2 })));
        let (_, progress) = events.next().unwrap();
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "mine");
        let id = asking.waiting(1);
        let message = progress["params"]["message"].as_str().unwrap();
        assert!(message.contains(&id), "{message}");
        let question = &asking.questions()[0];
        assert_eq!(question["subject"], "kb/pay");
        assert_eq!(question["arguments"], json!({ "euros": 2 }));
        assert_eq!(asking.calls(), 0);
        asking.decide(&id, "approve", json!({}));
        let value = |told: &Value| told["params"]["progress"].as_f64().unwrap();
        let mut last = progress;
        // The client may be told that the call waits before it is told of the decision.
        while last["params"]["message"] != "approved" {
            let (_, next) = events.next().unwrap();
            assert!(value(&last) < value(&next), "{last} {next}");
            last = next;
        }
        let (_, paid) = events.next().unwrap();
        text(&paid);
        assert_eq!(asking.calls(), 1);
        let line = asking
            .gateway
            .proxy
            .audited(json!({ "method": "tools/call", "approval": id }));
        assert_eq!(line["decision"], "ask");
        assert_eq!(line["outcome"], "ok");
        assert!(line["waited_ms"].is_u64(), "{line}");
        // An approval is for one call.
        let again = begin(&client, json!({ "euros": 2 }));
        assert_ne!(asking.waiting(1), id);
        drop(again);
        assert_eq!(asking.calls(), 1);
    });
}

#[test]
fn explain_names_the_grant_that_would_answer_a_call_and_leaves_it_for_the_call() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = asking.client(Era::Modern);
    let explained = |code: i32, said: &str| {
        let call = [
            "explain",
            SANDBOX,
            "tools/call",
            "kb",
            "pay",
            r#"{"euros":2}"#,
        ];
        let ran = asking.gateway.proxy.cli(&call);
        let printed = format!("{}{}", ran.stdout, ran.stderr);
        assert!(
            ran.code == Some(code) && printed.contains(said),
            "{printed}"
        );
    };
    explained(1, "a person would be asked");
    assert!(asking.questions().is_empty());
    let pending = client.call("kb_pay", json!({ "euros": 2 }));
    assert_outcome(&pending, "pending", "do not poll");
    let id = asking.waiting(0);
    explained(1, &id);
    asking.decide(&id, "approve", json!({}));
    for _ in 0..2 {
        explained(0, "allowed by grant ");
    }
    assert_eq!(asking.calls(), 0);
    text(&client.call("kb_pay", json!({ "euros": 2 })));
    assert_eq!(asking.calls(), 1);
    explained(1, "a person would be asked");
}

#[test]
fn a_call_whose_client_has_gone_never_runs_and_its_approval_is_for_the_next_one() {
    type Leave = fn(&Client<'_>, TcpStream);
    let ways: [(Era, &str, Leave); 3] = [
        (Era::Modern, "closes the connection", |_, stream| {
            drop(stream)
        }),
        (Era::Legacy, "closes the connection", |_, stream| {
            drop(stream)
        }),
        (Era::Legacy, "cancels", |client, stream| {
            let params = json!({ "requestId": "a call" });
            client.notify("notifications/cancelled", params);
            drop(stream);
        }),
    ];
    each_row(ways, |(era, _, leave)| {
        let asking = Asking::start(json!({ "wait": "15m" }));
        let client = asking.client(era);
        let stream = begin(&client, json!({}));
        let id = asking.waiting(1);
        leave(&client, stream);
        assert_eq!(asking.waiting(0), id);
        asking.decide(&id, "approve", json!({}));
        assert_eq!(asking.calls(), 0);
        text(&client.call("kb_pay", json!({})));
        assert_eq!(asking.calls(), 1);
        let again = begin(&client, json!({}));
        assert_ne!(asking.waiting(1), id);
        drop(again);
        assert_eq!(asking.calls(), 1);
    });
}

#[test]
fn a_client_that_resumes_the_stream_of_a_waiting_call_reads_that_it_must_be_repeated() {
    let asking = Asking::start(json!({ "wait": "15m" }));
    let client = asking.client(Era::Legacy);
    let mut events = Events::new(begin(&client, json!({})));
    let (event, _) = events.next().unwrap();
    let id = asking.waiting(1);
    drop(events);
    assert_eq!(asking.waiting(0), id);
    let event = event.unwrap();
    let resumed = ended(client.send("GET", &[("last-event-id", &event)], b""));
    assert_outcome(&resumed, "pending", &id);
    asking.decide(&id, "approve", json!({}));
    assert_eq!(asking.calls(), 0);
}

#[test]
fn the_words_of_a_denial_reach_the_model_until_it_is_forgotten() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = asking.client(Era::Legacy);
    let stream = begin(&client, json!({}));
    let id = asking.waiting(1);
    asking.decide(&id, "deny", json!({ "comment": "use the test account" }));
    for denied in [ended(stream), client.call("kb_pay", json!({}))] {
        assert_outcome(
            &denied,
            "denied",
            "denied by a person: use the test account",
        );
        assert_eq!(denied["error"]["data"]["approval"], *id);
    }
    asking.decide(&id, "forget", json!({}));
    assert_outcome(&client.call("kb_pay", json!({})), "pending", "do not poll");
    assert_eq!(asking.calls(), 0);
}

#[test]
fn a_call_learns_that_nobody_decided_and_that_the_server_stops() {
    let asking = Asking::start(json!({ "wait": "0s", "ttl": "2s" }));
    let client = asking.client(Era::Legacy);
    let expired = ended(begin(&client, json!({})));
    assert_outcome(&expired, "expired", "nobody decided in time");

    let mut asking = Asking::start(json!({ "wait": "0s" }));
    let stream = begin(&asking.client(Era::Legacy), json!({}));
    asking.waiting(1);
    asking.gateway.proxy.signal(Signal::TERM);
    assert_outcome(&ended(stream), "pending", "waits for a person");
    asking.gateway.proxy.wait(SOON);
    assert_eq!(asking.calls(), 0);
}

#[test]
fn one_approval_runs_one_of_a_thousand_equal_calls() {
    let asking = Asking::start(json!({ "wait": "15m" }));
    let client = asking.client(Era::Modern);
    let mut streams = Vec::new();
    let mut id = String::new();
    // In batches, since few evaluations of policies may wait at once.
    while streams.len() < MAX_WAITS {
        streams.extend((0..16).map(|_| begin(&client, json!({ "n": 1 }))));
        id = asking.waiting(streams.len());
    }
    for _ in MAX_WAITS..1000 {
        let more = client.call("kb_pay", json!({ "n": 1 }));
        assert_outcome(&more, "pending", &id);
    }
    assert_eq!(asking.waiting(MAX_WAITS), id);
    asking.decide(&id, "approve", json!({}));
    let (paid, used): (Vec<_>, Vec<_>) = streams
        .into_iter()
        .map(ended)
        .partition(|ended| ended.get("result").is_some());
    assert_eq!((paid.len(), used.len()), (1, MAX_WAITS - 1));
    for ended in used {
        assert_outcome(&ended, "used", "an equal call got it");
    }
    assert_eq!(asking.calls(), 1);
}

#[test]
fn other_arguments_are_another_question() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = asking.client(Era::Legacy);
    let first = begin(&client, json!({ "euros": 1 }));
    let id = asking.waiting(1);
    let other = client.call("kb_pay", json!({ "euros": 1000 }));
    assert_outcome(&other, "pending", "waits for a person");
    assert_eq!(asking.questions().len(), 2);
    asking.decide(&id, "approve", json!({}));
    text(&ended(first));
    assert_eq!(asking.server.arguments(), json!({ "euros": 1 }));
    let other = client.call("kb_pay", json!({ "euros": 1000 }));
    assert_outcome(&other, "pending", "waits for a person");
    assert_eq!(asking.calls(), 1);
}

#[test]
fn an_approved_call_is_judged_by_what_is_in_force_then() {
    type Change = fn(&Asking, &Client<'_>);
    fn edit(asking: &Asking, rules: &str) {
        let path = asking.bundle.path().join("authz.rego");
        std::fs::write(path, rules).unwrap();
        asking.gateway.operate("/internal/reload");
    }
    let changes: [(&str, Change, usize, Option<&str>); 3] = [
        (
            "the level rises",
            |_, client| drop(client.call("kb_secret", json!({}))),
            1,
            Some("approved, but denied: the tool reaches the open world"),
        ),
        (
            "the policy denies",
            |asking, _| edit(asking, &ASK.replace("\"ask\"", "\"deny_continue\"")),
            0,
            None,
        ),
        (
            "the policy asks for another reason",
            |asking, _| edit(asking, &ASK.replace("money", "time")),
            0,
            None,
        ),
    ];
    each_row(changes, |(_, change, calls, sentence)| {
        let asking = Asking::start(json!({ "wait": "0s" }));
        let client = asking.client(Era::Legacy);
        let stream = begin(&client, json!({}));
        let id = asking.waiting(1);
        change(&asking, &client);
        let path = format!("/internal/approvals/{id}/approve");
        let decided = asking.gateway.proxy.admin("POST", &path, Some(json!({})));
        let denied = ended(stream);
        assert_code(&denied, DENIED);
        match sentence {
            Some(sentence) => {
                let message = denied["error"]["message"].as_str().unwrap();
                assert!(message.contains(sentence), "{message}");
            }
            // The question ends with the rules that asked, perhaps before the decision.
            None => assert!([200, 410].contains(&decided.status), "{}", decided.text()),
        }
        assert_eq!(asking.calls(), calls);
    });
}

#[test]
fn an_approval_survives_a_crash_and_is_used_once() {
    let mut asking = Asking::start(json!({ "wait": "0s" }));
    let asked = asking.client(Era::Modern).call("kb_pay", json!({}));
    assert_outcome(&asked, "pending", "repeat the same call once");
    let id = asking.waiting(0);
    asking.decide(&id, "approve", json!({}));
    asking.gateway.proxy.crash_and_restart();
    text(&asking.client(Era::Modern).call("kb_pay", json!({})));
    asking.gateway.proxy.crash_and_restart();
    let again = asking.client(Era::Modern).call("kb_pay", json!({}));
    assert_outcome(&again, "pending", "waits for a person");
    assert_eq!(asking.calls(), 1);
}
