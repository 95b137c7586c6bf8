//! URIs of clients' requests: their bounds, and the threads that match them with templates.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use addons::contract::InspectionBudget;
use serde_json::json;
use testkit::each_row_async;
use tokio::time::timeout;

use super::double::{Server, raw};
use super::fixture::{Fixture, error};
use crate::mcp::core::{Core, MAX_URI, MAX_URI_BYTES};
use crate::mcp::message_memory::MessageMemory;
use crate::mcp::{Interest, Version};

const LEGACY: Version = Version::V2025_11_25;
const SOON: Duration = Duration::from_secs(10);

/// A server with templates that match every URI that begins with `a`.
fn server() -> Arc<Server> {
    let server = Server::new(LEGACY);
    let templates = (0..199).map(|number| {
        let name = format!("t{number}");
        json!({ "uriTemplate": format!("a{{+x}}{number}"), "name": name })
    });
    let all = json!({ "uriTemplate": "a{+x}", "name": "all" });
    *server.templates.lock() = templates.chain([all]).collect();
    server.answers(|_, _| async { raw(json!({ "contents": [] })) });
    server
}

fn uri(length: usize) -> String {
    format!("a{}", "x".repeat(length - 1))
}

#[tokio::test]
async fn a_uri_over_4_kib_is_refused_before_any_template_sees_it() {
    let (server, other) = (server(), Server::new(LEGACY));
    let fixture = Fixture::of(&[("one", &server), ("two", &other)]);
    let client = fixture.client(LEGACY);
    let rows = [
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
    ];
    each_row_async(rows, async |method| {
        let params = |length| match method {
            "completion/complete" => {
                json!({ "ref": { "type": "ref/resource", "uri": uri(length) } })
            }
            _ => json!({ "uri": uri(length) }),
        };
        for length in [MAX_URI + 1, 1 << 20] {
            let refused = error(fixture.ask(&client, method, params(length)).await);
            assert_eq!(refused.code, -32602);
            assert!(refused.message.contains("longer than 4096"), "{method}");
        }
        assert!(server.sent(method).is_empty(), "{method}");
        fixture.done(&client, method, params(MAX_URI)).await;
    })
    .await;
}

#[tokio::test]
async fn long_uris_are_matched_on_a_worker_when_their_container_has_its_turn() {
    let server = server();
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let read = |length| fixture.ask(&client, "resources/read", json!({ "uri": uri(length) }));
    read(10).await.unwrap();
    let (release, released) = channel::<()>();
    let other = fixture.memory.reserve().unwrap();
    let work = move || {
        let _ = released.recv();
    };
    let held = tokio::spawn(other.run(Box::new(work)));
    tokio::task::yield_now().await;
    assert!(
        timeout(Duration::from_millis(200), read(MAX_URI))
            .await
            .is_err(),
        "the URI was matched on the calling thread"
    );
    timeout(SOON, read(10)).await.unwrap().unwrap();
    drop(release);
    timeout(SOON, held).await.unwrap().unwrap().unwrap();
    timeout(SOON, read(MAX_URI)).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_uris_that_all_clients_of_a_lease_subscribe_to_are_bounded_together() {
    let server = server();
    let fixture = Fixture::sole(&server);
    let mut subscribed = Vec::new();
    let refused = 'all: loop {
        let name = format!("session {}", subscribed.len());
        let client = fixture.client_with(LEGACY, json!({}), &name);
        for number in 0..100 {
            let uri = format!("{}{number:03}", uri(MAX_URI - 3));
            let params = json!({ "uri": uri });
            let outcome = fixture.ask(&client, "resources/subscribe", params.clone());
            match outcome.await {
                Ok(_) => subscribed.push((Arc::clone(&client), params)),
                Err(error) => break 'all error,
            }
        }
    };
    assert_eq!(refused.code, -32602);
    let bytes = subscribed.len() * MAX_URI;
    assert!(
        (MAX_URI_BYTES / 2..MAX_URI_BYTES).contains(&bytes),
        "{bytes}"
    );
    let long = vec![uri(MAX_URI)];
    assert!(Core::take_uri_room(&fixture.container, &long).is_none());
    let (client, params) = &subscribed[0];
    fixture
        .done(client, "resources/unsubscribe", params.clone())
        .await;
    let taken = Core::take_uri_room(&fixture.container, &long);
    assert!(taken.is_some());
    assert!(Core::take_uri_room(&fixture.container, &long).is_none());
    drop(taken);
    // A session that has ended makes room too.
    drop(subscribed);
    let other = fixture.client_with(LEGACY, json!({}), "other");
    let (_attachment, _events) = fixture.attach(&other, Interest::Everything);
    let many = vec![uri(MAX_URI); 200];
    let free = async {
        while Core::take_uri_room(&fixture.container, &many).is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // Preferences of ended sessions are dropped when those of another are looked up.
            let params = json!({ "level": "info" });
            fixture.done(&other, "logging/setLevel", params).await;
        }
    };
    timeout(SOON, free).await.unwrap();
}
