//! The memory that waiting messages and lists are charged to.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::double::{Server, notification, raw, tool};
use super::fixture::{Fixture, MEMORY};
use crate::mcp::message_memory::Account;
use crate::mcp::{Events, Interest, Version};

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
