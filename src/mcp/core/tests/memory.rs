//! The memory that waiting messages and lists are charged to.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::double::{Server, notification, parsed, raw, tool};
use super::fixture::{Fixture, MEMORY};
use crate::mcp::message_memory::Account;
use crate::mcp::{Event, Events, Interest, Version};

const LEGACY: Version = Version::V2025_11_25;
/// The length of a long message or definition, in bytes.
const LONG: usize = 100_000;
const SOON: Duration = Duration::from_secs(10);

/// Whether a queue charges a long event to the account.
fn charges(events: &Events, account: &Account) -> bool {
    let before = account.reserved();
    let params = json!({"data": "x".repeat(LONG)});
    let event = notification("notifications/message", params);
    events.try_send(event).unwrap();
    account.reserved() > before + LONG
}

#[tokio::test]
async fn messages_that_wait_for_the_core_are_charged() {
    let server = Server::new(Version::V2026_07_28);
    let fixture = Fixture::sole(&server);
    let charged = Arc::<Mutex<Vec<_>>>::default();
    let (of_server, account) = (Arc::clone(&charged), Arc::clone(&fixture.memory));
    server.answers(move |seen, events| {
        of_server
            .lock()
            .push((seen.method, charges(&events, &account)));
        async { raw(json!({})) }
    });
    let client = fixture.client(LEGACY);
    let (_attachment, _events) = fixture.attach(&client, Interest::Everything);
    let (sender, _receiver) = Events::charged(Arc::clone(&fixture.memory) as _);
    let call = fixture.ask_with(&client, "tools/call", json!({"name": "echo"}), sender);
    call.await.unwrap();
    let listened = async {
        while charged.lock().len() < 2 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, listened).await.unwrap();
    let mut queues = charged.lock().clone();
    queues.sort();
    let expected = ["subscriptions/listen", "tools/call"].map(|method| (method.to_owned(), true));
    assert_eq!(queues, expected);
    let unsolicited = server.unsolicited.lock().clone().unwrap();
    assert!(charges(&unsolicited, &fixture.memory));
}

#[tokio::test]
async fn a_long_list_is_charged_and_the_previous_list_is_kept_if_memory_is_exhausted() {
    let server = Server::new(LEGACY);
    let list = |count: usize| {
        let tools = (0..count).map(|number| {
            let mut tool = tool(&format!("t{number}"));
            tool["description"] = "d".repeat(LONG).into();
            tool
        });
        *server.tools.lock() = tools.collect();
    };
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let expected = [(2, 2), (10, 10), (2 * MEMORY / LONG, 10), (1, 1), (9, 9)];
    let assert_known = async |known: usize| {
        let names = fixture.names(&client, "tools/list").await;
        assert_eq!(names.len(), known);
        let reserved = fixture.memory.reserved();
        // Lists of one and two tools are below 256 KiB, so they are not charged.
        let charged = if known > 2 { known * LONG } else { 0 };
        assert!(reserved >= charged, "{reserved} bytes for {known} tools");
        assert!(
            reserved <= charged * 6 / 5,
            "{reserved} bytes for {known} tools"
        );
    };
    for (readings, (listed, known)) in expected.into_iter().enumerate() {
        list(listed);
        if readings > 0 {
            let changed = "notifications/tools/list_changed";
            server.notify(changed, json!({})).await;
        }
        let is_read = async {
            while server.sent("tools/list").len() <= readings {
                sleep(Duration::from_millis(20)).await;
                fixture.names(&client, "tools/list").await;
            }
        };
        timeout(SOON, is_read).await.unwrap();
        assert_known(known).await;
    }
    // The list outlives its session, and so does its reservation.
    server.die();
    sleep(Duration::from_millis(500)).await;
    assert_known(9).await;
}

#[tokio::test]
async fn a_list_that_clients_with_many_sets_of_capabilities_see_is_held_and_charged_once() {
    let server = Server::new(LEGACY);
    let prompt = |number| json!({"name": format!("p{number}"), "description": "d".repeat(LONG)});
    let long = |number| {
        let mut tool = tool(&format!("t{number}"));
        tool["description"] = "d".repeat(LONG).into();
        tool
    };
    *server.tools.lock() = (0..10).map(long).collect();
    *server.prompts.lock() = (0..10).map(prompt).collect();
    let fixture = Fixture::of(&[("one", &server)]);
    let mut views = Vec::new();
    for number in 0..16 {
        let capabilities = json!({"sampling": {}, "roots": {"n": number}});
        let client = fixture.client_with(LEGACY, capabilities, &number.to_string());
        assert_eq!(fixture.names(&client, "tools/list").await.len(), 10);
        assert_eq!(fixture.names(&client, "prompts/list").await.len(), 10);
        let tools = fixture.core.tools(&client, false).await;
        views.push((tools, fixture.core.prompts(&client, false).await));
    }
    let is_shared = |other: &(Arc<_>, Arc<_>)| {
        Arc::ptr_eq(&other.0, &views[0].0) && Arc::ptr_eq(&other.1, &views[0].1)
    };
    assert!(views.iter().all(is_shared));
    let reserved = fixture.memory.reserved();
    let charged = 2 * 10 * LONG;
    assert!((charged..charged * 6 / 5).contains(&reserved), "{reserved}");
}

#[tokio::test]
async fn a_list_is_charged_while_a_view_or_a_call_holds_a_part_of_it() {
    let server = Server::new(LEGACY);
    let list = |tools: usize| {
        let tools = (0..tools).map(|number| {
            let mut tool = tool(&format!("t{number}"));
            tool["description"] = "d".repeat(LONG).into();
            tool
        });
        *server.tools.lock() = tools.collect();
    };
    list(10);
    let fixture = Fixture::sole(&server);
    let (one, other) = (
        fixture.client_with(LEGACY, json!({}), "one"),
        fixture.client_with(LEGACY, json!({"roots": {}}), "other"),
    );
    assert_eq!(fixture.names(&one, "tools/list").await.len(), 10);
    let session = server.unsolicited.lock().clone().unwrap();
    let called = fixture.core.tool(&one, "t3").await.unwrap();
    list(1);
    let reserved = || fixture.memory.reserved();
    assert_eq!(fixture.names(&other, "tools/list").await.len(), 1);
    assert!(reserved() > 10 * LONG, "the view of another client");
    let is_read = async {
        while fixture.names(&one, "tools/list").await.len() > 1 {
            let changed = notification("notifications/tools/list_changed", json!({}));
            session.send(changed).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, is_read).await.unwrap();
    assert!(reserved() > 10 * LONG, "the definition of a called tool");
    drop(called);
    assert_eq!(reserved(), 0);
}

/// Answers each input request of a server with a long result.
async fn answer_long(events: &mut tokio::sync::mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        if let Event::Request { reply, .. } = event {
            reply.send(raw(json!({"text": "x".repeat(LONG)}))).unwrap();
        }
    }
}

#[tokio::test]
async fn a_clients_answer_is_charged_while_it_is_judged() {
    let server = Server::new(LEGACY);
    server.answers(|_, events| async move {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let method = "elicitation/create".into();
        let params = None;
        let input_request = Event::Request {
            method,
            params,
            reply,
        };
        events.send(input_request).await;
        raw(json!({"got": parsed(&answer.await.unwrap())["text"].as_str().unwrap().len()}))
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let (sender, mut events) = Events::charged(Arc::clone(&fixture.memory) as _);
    let call = fixture.ask_with(&client, "tools/call", json!({"name": "echo"}), sender);
    let (outcome, ()) = tokio::join!(call, answer_long(&mut events));
    assert_eq!(parsed(&outcome)["got"], LONG);
    let reserved = fixture.judge.reserved.lock().clone();
    assert!(reserved.len() == 1 && reserved[0] > LONG, "{reserved:?}");
    assert_eq!(fixture.memory.reserved(), 0);
}

#[tokio::test]
async fn a_legacy_clients_answers_are_charged_while_the_call_is_repeated_with_them() {
    let server = Server::new(Version::V2026_07_28);
    let fixture = Fixture::sole(&server);
    let account = Arc::clone(&fixture.memory);
    server.answers(move |seen, _| {
        let reserved = account.reserved();
        async move {
            let input_request =
                || json!({"method": "elicitation/create", "params": {"message": "?"}});
            match seen.params.get("inputResponses") {
                None => raw(json!({
                    "resultType": "input_required", "requestState": "s",
                    "inputRequests": {"one": input_request(), "two": input_request()},
                })),
                Some(_) => raw(json!({"resultType": "complete", "reserved": reserved})),
            }
        }
    });
    let client = fixture.client(LEGACY);
    let (sender, mut events) = Events::charged(Arc::clone(&fixture.memory) as _);
    let call = fixture.ask_with(&client, "tools/call", json!({"name": "echo"}), sender);
    let (outcome, ()) = tokio::join!(call, answer_long(&mut events));
    let reserved = parsed(&outcome)["reserved"].as_u64().unwrap() as usize;
    assert!(reserved > 2 * LONG, "{reserved}");
    assert_eq!(fixture.memory.reserved(), 0);
}
