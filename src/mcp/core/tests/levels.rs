//! From the level `Confidential` on, the chain judges a client's text with the list of the server's
//! tools.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::Level;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::double::{Server, raw};
use super::fixture::Fixture;
use crate::mcp::{Caller, ClientRequest, Event, Events, Filter, Interest, Version};

const LEGACY: Version = Version::V2025_11_25;

/// Sends the server's request for roots, and the client's answer.
async fn ask_for_roots(server: &Server, events: &mut mpsc::Receiver<Event>) {
    let (reply, answer) = oneshot::channel();
    let (method, params) = ("roots/list".into(), None);
    server
        .send(Event::Request {
            method,
            params,
            reply,
        })
        .await;
    let Some(Event::Request { reply, .. }) = events.recv().await else {
        panic!("no request");
    };
    reply.send(raw(json!({"roots": []}))).unwrap();
    answer.await.unwrap().unwrap();
}

#[tokio::test]
async fn from_confidential_on_each_text_of_a_client_is_judged_with_the_servers_tools() {
    for level in [Level::Public, Level::Confidential, Level::Secret] {
        let server = Server::new(LEGACY);
        *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
        *server.prompts.lock() = json!([{"name": "greet"}]);
        let fixture = Fixture::sole(&server);
        // Otherwise, no session says at `Confidential` that the client has roots.
        fixture.close_echo();
        fixture.container.raise_level(level);
        let client = fixture.client(LEGACY);
        let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
        let reference = json!({"type": "ref/prompt", "name": "greet"});
        for (method, params) in [
            ("resources/read", json!({"uri": "a://1"})),
            ("resources/subscribe", json!({"uri": "a://1"})),
            ("prompts/get", json!({"name": "greet"})),
            ("completion/complete", json!({"ref": reference})),
        ] {
            fixture.done(&client, method, params).await;
        }
        ask_for_roots(&server, &mut events).await;
        let changed = "notifications/roots/list_changed";
        let core = Arc::clone(&fixture.core);
        core.notify(client, changed.into(), None).await;
        let expected = (level != Level::Public).then_some(1);
        for method in [
            "resources/read",
            "resources/subscribe",
            "prompts/get",
            "completion/complete",
            "answer to roots/list",
            changed,
        ] {
            let judged = fixture.judge.tools.lock();
            let (_, tools) = judged.iter().find(|(judged, _)| judged == method).unwrap();
            assert_eq!(*tools, expected, "{level:?} {method}");
        }
    }
}

#[tokio::test]
async fn a_retry_continues_with_the_answers_that_a_policy_left() {
    let server = Server::new(LEGACY);
    *server.prompts.lock() = json!([{"name": "greet"}]);
    let fixture = Fixture::sole(&server);
    let redacted = json!({"name": "greet", "inputResponses": {"request-1": {"action": "decline"}}});
    *fixture.judge.redacted.lock() = Some(("prompts/get", redacted.clone()));
    let sent = json!({
        "name": "greet", "requestState": "unified-proxy:1",
        "inputResponses": {"request-1": {"action": "accept", "content": {"key": "secret"}}},
    });
    let request = ClientRequest {
        caller: fixture.client(Version::V2026_07_28),
        method: "prompts/get".into(),
        params: to_raw_value(&sent).ok(),
        tool: None,
        trace: None,
        events: Events::uncharged(1).0,
    };
    let judged = fixture.core.judge_retry(&request).await.unwrap().unwrap();
    let judged: Value = serde_json::from_str(judged.get()).unwrap();
    assert_eq!(judged, redacted);
}

#[tokio::test]
async fn a_subscription_whose_uris_are_denied_covers_the_lists_and_has_no_text_of_the_client() {
    let server = Server::new(Version::V2026_07_28);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    server.answers(|_, _| std::future::pending());
    let fixture = Fixture::sole(&server);
    *fixture.judge.denied_once.lock() = Some("subscriptions/listen");
    let client = Arc::new(Caller {
        info: Some(to_raw_value("secret").unwrap().into()),
        ..fixture.client(Version::V2026_07_28).without_session()
    });
    let filter = Filter {
        uris: vec!["a://1".into()],
        ..Filter::default()
    };
    let (_attachment, _events) = fixture.attach(&client, Interest::Filter(filter));
    let listened = loop {
        if let Some(seen) = server.sent("subscriptions/listen").pop() {
            break seen;
        }
        sleep(Duration::from_millis(10)).await;
    };
    let filter = &listened.params["notifications"];
    assert_eq!(filter["resourceSubscriptions"], json!([]));
    assert_eq!(filter["toolsListChanged"], true);
    assert!(!listened.text.contains("secret"), "{}", listened.text);
    let judged = fixture.judge.requests.lock();
    let listens = judged
        .iter()
        .filter(|(_, method, _)| method == "subscriptions/listen");
    let uris: Vec<Value> = listens
        .map(|(_, _, params)| params["notifications"]["resourceSubscriptions"].clone())
        .collect();
    assert_eq!(uris, [json!(["a://1"]), json!([])]);
}
