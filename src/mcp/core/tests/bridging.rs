//! Clients of one era with servers of the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::{Direction, RpcError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::double::{Server, notification, parsed, raw};
use super::fixture::{Fixture, error};
use crate::mcp::{Event, Events, Interest, Outcome, Version};

const LEGACY: Version = Version::V2025_11_25;
const MODERN: Version = Version::V2026_07_28;

/// Sends an elicitation to the client and awaits its answer.
async fn elicit(events: &Events, params: Value) -> Outcome {
    let (reply, answer) = oneshot::channel();
    let event = Event::Request {
        method: "elicitation/create".into(),
        params: Some(serde_json::value::to_raw_value(&params).unwrap().into()),
        reply,
    };
    events.send(event).await;
    answer.await.unwrap()
}

/// Answers the next request of a server, and returns its method and params.
async fn answer(events: &mut mpsc::Receiver<Event>, with: Outcome) -> (String, Value) {
    loop {
        match events.recv().await.unwrap() {
            Event::Notification { .. } => {}
            Event::Request {
                method,
                params,
                reply,
            } => {
                reply.send(with).unwrap();
                let params = params.map_or(Value::Null, |params| {
                    serde_json::from_str(params.get()).unwrap()
                });
                return (method.to_string(), params);
            }
        }
    }
}

#[tokio::test]
async fn the_answer_to_a_legacy_servers_request_is_judged_and_relayed() {
    let server = Server::new(LEGACY);
    server.answers(|_, events| async move {
        let answer = parsed(&elicit(&events, json!({"message": "who?"})).await);
        raw(json!({"content": [], "answer": answer}))
    });
    for version in [LEGACY, MODERN] {
        let fixture = Fixture::sole(&server);
        let client = fixture.client(version);
        let (sender, mut events) = Events::uncharged(8);
        let call = fixture.ask_with(&client, "tools/call", json!({"name": "echo"}), sender);
        let (outcome, asked) =
            tokio::join!(call, answer(&mut events, raw(json!({"action": "accept"}))));
        assert_eq!(
            asked,
            ("elicitation/create".to_owned(), json!({"message": "who?"}))
        );
        let result = parsed(&outcome);
        assert_eq!(result["answer"]["action"], "accept");
        assert_eq!(result.get("resultType").is_some(), version == MODERN);
        let to_client = |judged: &(Direction, String, Value)| {
            judged.0 == Direction::ToClient && judged.1 == "elicitation/create"
        };
        assert_eq!(
            fixture
                .judge
                .requests
                .lock()
                .iter()
                .filter(|one| to_client(one))
                .count(),
            1
        );
        assert_eq!(
            fixture
                .judge
                .responses
                .lock()
                .iter()
                .filter(|one| to_client(one))
                .count(),
            1
        );
    }
}

#[tokio::test]
async fn the_task_member_is_removed_from_calls_and_server_requests() {
    let server = Server::new(LEGACY);
    server.answers(|seen, events| async move {
        let asked = json!({"task": {"ttl": 1}, "message": "who?"});
        elicit(&events, asked).await.unwrap();
        raw(json!({"content": [], "seen": seen.params}))
    });
    // The first fixture adds a prefix to the tool's name; the second keeps the name.
    let renamed = Fixture::of(&[("one", &server)]);
    for (fixture, name) in [(&renamed, "one_echo"), (&Fixture::sole(&server), "echo")] {
        let client = fixture.client(LEGACY);
        let (sender, mut events) = Events::uncharged(8);
        let call = json!({"name": name, "arguments": {"task": 1}, "task": {"ttl": 60_000}});
        let call = fixture.ask_with(&client, "tools/call", call, sender);
        let declined = raw(json!({"action": "decline"}));
        let (outcome, (_, asked)) = tokio::join!(call, answer(&mut events, declined));
        assert_eq!(asked, json!({"message": "who?"}));
        let seen = json!({"name": "echo", "arguments": {"task": 1}});
        assert_eq!(parsed(&outcome)["seen"], seen);
    }
}

#[tokio::test]
async fn server_requests_need_the_clients_capability_and_the_chains_permit() {
    let server = Server::new(LEGACY);
    server.answers(|_, events| async move {
        let refused = elicit(&events, json!({})).await;
        raw(json!({"code": refused.unwrap_err().code}))
    });
    let fixture = Fixture::sole(&server);
    let (sender, _events) = Events::uncharged(8);
    let plain = fixture.client_with(LEGACY, json!({"sampling": {}}), "plain");
    let result = parsed(
        &fixture
            .ask_with(
                &plain,
                "tools/call",
                json!({"name": "echo"}),
                sender.clone(),
            )
            .await,
    );
    assert_eq!(result["code"], -32601);
    fixture.judge.denied.lock().push("elicitation/create");
    let able = fixture.client(LEGACY);
    let result = parsed(
        &fixture
            .ask_with(&able, "tools/call", json!({"name": "echo"}), sender)
            .await,
    );
    assert_eq!(result["code"], -32951);
}

fn input_required(state: usize) -> Value {
    json!({
        "resultType": "input_required",
        "inputRequests": {
            "who": {"method": "elicitation/create", "params": {"message": "who?"}},
            "roots": {"method": "roots/list"},
        },
        "requestState": format!("round {state}"),
    })
}

#[tokio::test]
async fn input_required_of_a_modern_server_becomes_requests_to_a_legacy_client() {
    let server = Server::new(MODERN);
    server.answers(|seen, _| async move {
        match seen.params.get("inputResponses") {
            None => raw(input_required(1)),
            Some(answers) => raw(json!({
                "resultType": "complete", "answers": answers, "state": seen.params["requestState"],
                "name": seen.params["name"],
            })),
        }
    });
    let fixture = Fixture::of(&[("one", &server)]);
    let client = fixture.client(LEGACY);
    let (sender, mut events) = Events::uncharged(8);
    let call = fixture.ask_with(&client, "tools/call", json!({"name": "one_echo"}), sender);
    let answering = async {
        let one = answer(&mut events, raw(json!({"n": 1}))).await;
        let two = answer(&mut events, raw(json!({"n": 2}))).await;
        (one.0, two.0)
    };
    let (outcome, asked) = tokio::join!(call, answering);
    let result = parsed(&outcome);
    assert_eq!(
        asked,
        ("elicitation/create".to_owned(), "roots/list".to_owned())
    );
    assert_eq!(
        result["answers"],
        json!({"who": {"n": 1}, "roots": {"n": 2}})
    );
    assert_eq!(result["state"], "round 1");
    assert_eq!(result["name"], "echo");
    assert_eq!(server.sent("tools/call").len(), 2);
    let judged = fixture.judge.requests.lock();
    let calls = judged
        .iter()
        .filter(|(_, method, _)| method == "tools/call");
    assert_eq!(calls.count(), 2, "each round is judged");
}

#[tokio::test]
async fn input_required_rounds_are_bounded() {
    let server = Server::new(MODERN);
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    server.answers(move |_, _| {
        let round = counted.fetch_add(1, Ordering::SeqCst);
        async move { raw(json!({"resultType": "input_required", "requestState": round.to_string()})) }
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let outcome = fixture
        .ask(&client, "tools/call", json!({"name": "echo"}))
        .await;
    assert_eq!(error(outcome).code, -32000);
    assert_eq!(rounds.load(Ordering::SeqCst), 17);
}

#[tokio::test]
async fn input_required_passes_unchanged_between_modern_peers() {
    let server = Server::new(MODERN);
    server.answers(|seen, _| async move {
        match seen.params.get("inputResponses") {
            None => raw(input_required(1)),
            Some(_) => raw(json!({"resultType": "complete", "state": seen.params["requestState"]})),
        }
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(MODERN);
    let first = fixture
        .ask(&client, "tools/call", json!({"name": "echo"}))
        .await;
    assert_eq!(parsed(&first), input_required(1));
    let again = json!({"name": "echo", "inputResponses": {"who": {}}, "requestState": "round 1"});
    let second = parsed(&fixture.ask(&client, "tools/call", again).await);
    assert_eq!(second["state"], "round 1");
}

#[tokio::test]
async fn meta_is_translated_to_the_servers_era() {
    let meta = "io.modelcontextprotocol/";
    let keys = |params: &Value| -> Vec<String> {
        let meta = params.get("_meta").and_then(Value::as_object);
        meta.map(|meta| meta.keys().cloned().collect())
            .unwrap_or_default()
    };
    let own = json!({
        "progressToken": "p", "x.example/mine": 1.50,
        format!("{meta}protocolVersion"): "2026-07-28", format!("{meta}clientInfo"): {"name": "c"},
        format!("{meta}clientCapabilities"): {"tasks": {}}, format!("{meta}logLevel"): "debug",
    });
    let call = json!({"name": "echo", "_meta": own});
    let legacy = Server::new(LEGACY);
    let fixture = Fixture::sole(&legacy);
    assert!(
        fixture
            .ask(&fixture.client(MODERN), "tools/call", call.clone())
            .await
            .is_ok()
    );
    let sent = &legacy.sent("tools/call")[0];
    assert_eq!(keys(&sent.params), ["progressToken", "x.example/mine"]);
    let modern = Server::new(MODERN);
    let fixture = Fixture::sole(&modern);
    let client = fixture.client(MODERN);
    assert!(fixture.ask(&client, "tools/call", call).await.is_ok());
    let sent = &modern.sent("tools/call")[0].params["_meta"];
    assert_eq!(sent[format!("{meta}protocolVersion")], "2026-07-28");
    let capabilities: Value = serde_json::from_str(client.capabilities.get()).unwrap();
    assert_eq!(
        sent[format!("{meta}clientCapabilities")],
        capabilities,
        "the capabilities of the caller, without tasks"
    );
    assert_eq!(
        sent.get(format!("{meta}logLevel")),
        None,
        "the caller has no log level"
    );
    // A legacy client sends neither revision nor capabilities in `_meta`. The gateway adds them,
    // since a modern server requires them.
    let legacy_client = fixture.client(LEGACY);
    fixture
        .done(&legacy_client, "tools/call", json!({"name": "echo"}))
        .await;
    let sent = &modern.sent("tools/call")[1].params["_meta"];
    assert_eq!(sent[format!("{meta}protocolVersion")], "2026-07-28");
    assert_eq!(sent[format!("{meta}clientCapabilities")], capabilities);
}

#[tokio::test]
async fn an_unknown_resource_has_the_error_code_of_the_clients_era() {
    for (server, client, sent, expected) in [
        (LEGACY, LEGACY, -32002, -32002),
        (LEGACY, MODERN, -32002, -32602),
        (MODERN, LEGACY, -32602, -32002),
        (MODERN, MODERN, -32602, -32602),
    ] {
        let mount = Server::new(server);
        mount.answers(move |_, _| async move {
            Err(RpcError {
                code: sent,
                message: "Resource not found".into(),
                data: Some(serde_json::value::to_raw_value(&json!({"uri": "a://1"})).unwrap()),
            })
        });
        let fixture = Fixture::sole(&mount);
        let caller = fixture.client(client);
        let read = fixture
            .ask(&caller, "resources/read", json!({"uri": "a://1"}))
            .await;
        assert_eq!(
            error(read).code,
            expected,
            "client {client:?}, server {server:?}"
        );
    }
}

#[tokio::test]
async fn results_have_the_members_that_the_clients_era_requires() {
    let server = Server::new(LEGACY);
    server.answers(|_, _| async { raw(json!({"contents": [], "x": 1})) });
    let fixture = Fixture::sole(&server);
    let modern = fixture.client(MODERN);
    let read = fixture
        .ask(&modern, "resources/read", json!({"uri": "a://1"}))
        .await;
    let expected =
        r#"{"contents":[],"x":1,"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#;
    assert_eq!(read.unwrap().get(), expected);
    let list = fixture.done(&modern, "tools/list", json!({})).await;
    assert_eq!(
        (&list["resultType"], &list["ttlMs"]),
        (&json!("complete"), &json!(0))
    );
    let legacy = fixture.client(LEGACY);
    let read = fixture
        .ask(&legacy, "resources/read", json!({"uri": "a://1"}))
        .await;
    assert_eq!(read.unwrap().get(), r#"{"contents":[],"x":1}"#);
    let list = fixture.done(&legacy, "tools/list", json!({})).await;
    assert_eq!(list.as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn changes_of_a_modern_server_reach_legacy_clients_through_a_subscription() {
    let server = Server::new(MODERN);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    server.answers(|seen, events| async move {
        if seen.method != "subscriptions/listen" {
            return raw(json!({"resultType": "complete"}));
        }
        let id = json!({"io.modelcontextprotocol/subscriptionId": 7});
        let followed = &seen.params["notifications"]["resourceSubscriptions"];
        for uri in followed.as_array().unwrap() {
            let params = json!({"uri": uri, "_meta": id});
            let updated = notification("notifications/resources/updated", params);
            events.send(updated).await;
        }
        std::future::pending().await
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let (attachment, mut events) = fixture.attach(&client, Interest::Everything);
    let subscribed = fixture
        .ask(&client, "resources/subscribe", json!({"uri": "a://1"}))
        .await;
    assert_eq!(subscribed.unwrap().get(), "{}");
    assert!(
        server.sent("resources/subscribe").is_empty(),
        "a modern server has no such method"
    );
    let received = tokio::time::timeout(Duration::from_secs(5), events.recv())
        .await
        .unwrap();
    let Some(Event::Notification { method, params }) = received else {
        panic!("no notification");
    };
    assert_eq!(&*method, "notifications/resources/updated");
    assert_eq!(params.unwrap().get(), r#"{"uri":"a://1"}"#);
    drop(attachment);
}

#[tokio::test]
async fn a_subscription_to_a_resource_of_a_modern_server_is_judged_although_it_is_not_sent() {
    let server = Server::new(MODERN);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let subscribe = || fixture.ask(&client, "resources/subscribe", json!({"uri": "a://1"}));
    *fixture.judge.denied_once.lock() = Some("resources/subscribe");
    assert!(subscribe().await.is_err());
    assert_eq!(subscribe().await.unwrap().get(), "{}");
    let subject = [Some("only".to_owned()), Some("a://1".to_owned())];
    let subjects = fixture.judge.subjects.lock();
    let judged = subjects.iter().filter(|judged| **judged == subject);
    assert_eq!(judged.count(), 2);
}
