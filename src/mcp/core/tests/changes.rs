//! Messages to clients outside their calls.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::Level;
use addons::mcp::{McpSettings, OverrideRule, Scope, ServerSettings};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::double::{Server, notification, parsed, raw, tool};
use super::fixture::{Fixture, error, settings_of};
use crate::mcp::{
    Event, Events, Filter, Interest, LogLevel, MAX_SESSIONS, MAX_SUBSCRIPTIONS, Version,
};

const LEGACY: Version = Version::V2025_11_25;

/// Waits 300 ms, and returns the methods of the messages received by then.
async fn received(events: &mut mpsc::Receiver<Event>) -> Vec<String> {
    sleep(Duration::from_millis(300)).await;
    let mut methods = Vec::new();
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Notification { method, .. } | Event::Request { method, .. } => {
                methods.push(method.to_string());
            }
        }
    }
    methods
}

#[tokio::test]
async fn a_changed_list_is_announced_once_and_only_if_it_differs() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    fixture.names(&client, "tools/list").await;
    assert!(
        received(&mut events).await.is_empty(),
        "no list changed since the client was attached"
    );
    let changed = || notification("notifications/tools/list_changed", json!({}));
    server.send(changed()).await;
    assert!(
        received(&mut events).await.is_empty(),
        "the list is the same"
    );
    *server.tools.lock() = json!([tool("echo"), tool("new")]);
    server.send(changed()).await;
    server.send(changed()).await;
    assert_eq!(
        received(&mut events).await,
        ["notifications/tools/list_changed"]
    );
    assert_eq!(fixture.names(&client, "tools/list").await, ["echo", "new"]);
}

#[tokio::test]
async fn a_raised_level_hides_tools_and_announces_the_changed_list_once() {
    let server = Server::new(LEGACY);
    *server.tools.lock() = json!([
        tool("read"),
        {"name": "inner", "inputSchema": {}, "annotations": {"openWorldHint": false}},
    ]);
    let fixture = Fixture::sole(&server);
    // The override says that `inner` is no open-world tool, so that a raised level does not hide
    // it.
    let mut settings = McpSettings::clone(&fixture.settings.load());
    let rule = OverrideRule {
        open_world: Some(false),
        ..OverrideRule::default()
    };
    let key = ("only".into(), "inner".into());
    settings.overrides.insert(key, vec![Arc::new(rule)]);
    fixture.settings.store(Arc::new(settings));
    *fixture.judge.raises.lock() = Some("read");
    let legacy = fixture.client(LEGACY);
    let modern = fixture.client(Version::V2026_07_28);
    let (_one, mut of_legacy) = fixture.attach(&legacy, Interest::Everything);
    let filter = Filter {
        tools: true,
        ..Filter::default()
    };
    let (_two, mut of_modern) = fixture.attach(&modern, Interest::Filter(filter));
    let (_three, mut of_unsubscribed) =
        fixture.attach(&modern, Interest::Filter(Filter::default()));
    assert_eq!(
        fixture.names(&legacy, "tools/list").await,
        ["read", "inner"]
    );
    assert!(received(&mut of_legacy).await.is_empty());
    for _ in 0..3 {
        fixture
            .done(&legacy, "tools/call", json!({"name": "read"}))
            .await;
    }
    assert_eq!(
        received(&mut of_legacy).await,
        ["notifications/tools/list_changed"]
    );
    assert_eq!(
        received(&mut of_modern).await,
        ["notifications/tools/list_changed"]
    );
    assert!(
        received(&mut of_unsubscribed).await.is_empty(),
        "the filter of the client is empty"
    );
    assert_eq!(fixture.names(&legacy, "tools/list").await, ["inner"]);
}

/// For example, a call raises the level after its client dropped the call, or an operator resets
/// the level.
#[tokio::test]
async fn a_level_that_changes_outside_a_call_is_announced() {
    let fixture = Fixture::sole(&Server::new(LEGACY));
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    assert_eq!(fixture.names(&client, "tools/list").await, ["echo"]);
    assert!(received(&mut events).await.is_empty());
    let announced = ["notifications/tools/list_changed"];
    for _ in 0..2 {
        fixture.container.raise_level(Level::Confidential);
        assert_eq!(received(&mut events).await, announced);
        fixture.container.reset_standing();
        assert_eq!(received(&mut events).await, announced);
    }
    fixture.container.reset_standing();
    assert!(
        received(&mut events).await.is_empty(),
        "the level is the same"
    );
}

#[tokio::test]
async fn a_reload_is_announced_if_a_list_differs() {
    let (one, two) = (Server::new(LEGACY), Server::new(LEGACY));
    let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    fixture.names(&client, "tools/list").await;
    assert!(received(&mut events).await.is_empty());
    let mut settings = McpSettings::clone(&fixture.settings.load());
    settings.servers.remove("two");
    fixture.settings.store(Arc::new(settings.clone()));
    fixture.core.mounts().apply(&settings.servers);
    assert_eq!(
        received(&mut events).await,
        ["notifications/tools/list_changed"]
    );
    assert_eq!(fixture.names(&client, "tools/list").await, ["one_echo"]);
    fixture.core.mounts().apply(&settings.servers);
    assert!(
        received(&mut events).await.is_empty(),
        "a reload with the same settings"
    );
}

#[tokio::test]
async fn resource_updates_go_to_subscribed_clients() {
    let server = Server::new(LEGACY);
    *server.resources.lock() =
        json!([{"uri": "a://1", "name": "a"}, {"uri": "b://1", "name": "b"}]);
    let fixture = Fixture::sole(&server);
    let capabilities = || json!({"roots": {}});
    let one = fixture.client_with(LEGACY, capabilities(), "one");
    let two = fixture.client_with(LEGACY, capabilities(), "two");
    // The client subscribes before it opens a stream.
    fixture
        .done(&one, "resources/subscribe", json!({"uri": "a://1"}))
        .await;
    let (_one, mut of_one) = fixture.attach(&one, Interest::Everything);
    let (_two, mut of_two) = fixture.attach(&two, Interest::Everything);
    let updated = |uri: &str| notification("notifications/resources/updated", json!({"uri": uri}));
    server.send(updated("a://1")).await;
    server.send(updated("b://1")).await;
    assert_eq!(
        received(&mut of_one).await,
        ["notifications/resources/updated"]
    );
    assert!(received(&mut of_two).await.is_empty());
    fixture
        .done(&two, "resources/subscribe", json!({"uri": "a://1"}))
        .await;
    fixture
        .done(&one, "resources/unsubscribe", json!({"uri": "a://1"}))
        .await;
    server.send(updated("a://1")).await;
    assert!(received(&mut of_one).await.is_empty());
    assert_eq!(
        received(&mut of_two).await,
        ["notifications/resources/updated"]
    );
    assert!(
        server.sent("resources/unsubscribe").is_empty(),
        "another client is subscribed to the resource"
    );
    fixture
        .done(&two, "resources/unsubscribe", json!({"uri": "a://1"}))
        .await;
    received(&mut of_two).await;
    assert_eq!(server.sent("resources/unsubscribe").len(), 1);
}

#[tokio::test]
async fn a_subscription_over_the_limit_is_not_sent_to_the_server() {
    let server = Server::new(LEGACY);
    let uri = |number: usize| json!({"uri": format!("a://{number}"), "name": "a"});
    let resources: Vec<_> = (0..=MAX_SUBSCRIPTIONS).map(uri).collect();
    *server.resources.lock() = json!(resources);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    for number in 0..MAX_SUBSCRIPTIONS {
        fixture
            .done(&client, "resources/subscribe", uri(number))
            .await;
    }
    let refused = fixture
        .ask(&client, "resources/subscribe", uri(MAX_SUBSCRIPTIONS))
        .await;
    assert_eq!(error(refused).code, -32602);
    let sent = server.sent("resources/subscribe");
    let over_limit = format!("a://{MAX_SUBSCRIPTIONS}");
    assert!(sent.iter().all(|seen| seen.params["uri"] != over_limit));
    // A repeated subscription does not count again.
    fixture.done(&client, "resources/subscribe", uri(0)).await;
}

#[tokio::test]
async fn a_client_without_a_session_of_its_own_cannot_subscribe() {
    for version in [LEGACY, Version::V2026_07_28] {
        let server = Server::new(version);
        *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
        let fixture = Fixture::sole(&server);
        let uri = || json!({"uri": "a://1"});
        for number in 0..=MAX_SESSIONS {
            let capabilities = json!({"roots": {"n": number}});
            let client = fixture.client_with(LEGACY, capabilities, &number.to_string());
            let outcome = fixture.ask(&client, "resources/subscribe", uri()).await;
            match number < MAX_SESSIONS {
                true => assert!(outcome.is_ok(), "{number}: {outcome:?}"),
                false => assert!(error(outcome).message.contains("too many sessions")),
            }
            assert!(fixture.ask(&client, "resources/read", uri()).await.is_ok());
        }
    }
}

#[tokio::test]
async fn a_modern_subscription_covers_resources_of_a_legacy_server() {
    let server = Server::new(LEGACY);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2026_07_28);
    let filter = Filter {
        uris: vec!["a://1".into(), "z://none".into()],
        ..Filter::default()
    };
    let (attachment, mut events) = fixture.attach(&client, Interest::Filter(filter));
    received(&mut events).await;
    assert_eq!(server.sent("resources/subscribe")[0].params["uri"], "a://1");
    assert_eq!(server.sent("resources/subscribe").len(), 1);
    server
        .notify("notifications/resources/updated", json!({"uri": "a://1"}))
        .await;
    assert_eq!(
        received(&mut events).await,
        ["notifications/resources/updated"]
    );
    drop(attachment);
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(server.sent("resources/unsubscribe").len(), 1);
}

#[tokio::test]
async fn log_messages_are_filtered_for_each_client_and_the_server_gets_the_lowest_level() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let capabilities = || json!({"roots": {}});
    let one = fixture.client_with(LEGACY, capabilities(), "one");
    let two = fixture.client_with(LEGACY, capabilities(), "two");
    let (_one, mut of_one) = fixture.attach(&one, Interest::Everything);
    let (_two, mut of_two) = fixture.attach(&two, Interest::Everything);
    received(&mut of_one).await;
    for (client, level) in [(&one, "error"), (&two, "debug")] {
        let set = fixture
            .ask(client, "logging/setLevel", json!({"level": level}))
            .await;
        assert_eq!(set.unwrap().get(), "{}");
    }
    let levels: Vec<_> = server.sent("logging/setLevel");
    let levels: Vec<_> = levels
        .iter()
        .map(|seen| seen.params["level"].clone())
        .collect();
    assert_eq!(levels, ["error", "debug"]);
    server
        .notify("notifications/message", json!({"level": "info", "data": 1}))
        .await;
    assert!(received(&mut of_one).await.is_empty());
    assert_eq!(received(&mut of_two).await, ["notifications/message"]);
    let refused = fixture
        .ask(&one, "logging/setLevel", json!({"level": "loud"}))
        .await;
    assert_eq!(error(refused).code, -32602);
}

#[tokio::test]
async fn a_modern_client_gets_log_messages_only_for_calls_with_a_log_level() {
    let server = Server::new(LEGACY);
    server.answers(|_, events| async move {
        for level in ["debug", "error"] {
            let log = json!({"level": level, "data": 1});
            events
                .send(notification("notifications/message", log))
                .await;
        }
        raw(json!({}))
    });
    let fixture = Fixture::sole(&server);
    let silent = fixture.client(Version::V2026_07_28);
    let asking = Arc::new(crate::mcp::Caller {
        log_level: Some(LogLevel::Warning),
        ..silent.without_session()
    });
    for (client, expected) in [(&silent, 0), (&asking, 1)] {
        let (sender, mut events) = Events::uncharged(8);
        let call = fixture
            .ask_with(client, "tools/call", json!({"name": "echo"}), sender)
            .await;
        assert!(call.is_ok());
        assert_eq!(received(&mut events).await.len(), expected);
    }
    assert_eq!(
        server.sent("logging/setLevel")[0].params["level"],
        "warning"
    );
}

#[tokio::test]
async fn a_request_that_belongs_to_no_call_goes_to_the_newest_client_that_can_answer() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let ask = || {
        let (reply, answer) = oneshot::channel();
        let method = "roots/list".into();
        (
            Event::Request {
                method,
                params: None,
                reply,
            },
            answer,
        )
    };
    let capabilities = || json!({"roots": {}});
    let one = fixture.client_with(LEGACY, capabilities(), "one");
    fixture
        .done(&one, "tools/call", json!({"name": "echo"}))
        .await;
    let (event, answer) = ask();
    server.send(event).await;
    assert_eq!(
        error(answer.await.unwrap()).code,
        -32601,
        "no client is attached"
    );
    let two = fixture.client_with(LEGACY, capabilities(), "two");
    let (_one, mut of_one) = fixture.attach(&one, Interest::Everything);
    let (_two, mut of_two) = fixture.attach(&two, Interest::Everything);
    let (event, answer) = ask();
    server.send(event).await;
    let Some(Event::Request { reply, .. }) = of_two.recv().await else {
        panic!("no request");
    };
    reply.send(raw(json!({"roots": []}))).unwrap();
    assert_eq!(parsed(&answer.await.unwrap()), json!({"roots": []}));
    assert!(received(&mut of_one).await.is_empty());
}

#[tokio::test]
async fn changed_roots_are_sent_to_open_sessions() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let tell =
        |method: &str| Arc::clone(&fixture.core).notify(Arc::clone(&client), method.into(), None);
    tell("notifications/roots/list_changed").await;
    assert!(
        server.seen.lock().is_empty(),
        "no session is opened for a notification"
    );
    fixture.names(&client, "tools/list").await;
    tell("notifications/roots/list_changed").await;
    tell("notifications/cancelled").await;
    assert_eq!(server.sent("notifications/roots/list_changed").len(), 1);
    assert!(server.sent("notifications/cancelled").is_empty());
}

#[tokio::test]
async fn the_end_of_a_lease_drops_the_attached_clients() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let (attachment, mut events) = fixture.attach(&client, Interest::Everything);
    fixture.names(&client, "tools/list").await;
    fixture.container.end();
    // After this pause, the lease's task has dropped its references, and only `attachment` keeps
    // the client.
    sleep(Duration::from_millis(100)).await;
    drop(attachment);
    let closed = timeout(Duration::from_secs(1), async {
        while events.recv().await.is_some() {}
    });
    assert!(closed.await.is_ok());
}

#[tokio::test]
async fn a_reopened_session_gets_subscriptions_and_level_again() {
    let server = Server::new(LEGACY);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    fixture
        .done(&client, "resources/subscribe", json!({"uri": "a://1"}))
        .await;
    fixture
        .done(&client, "logging/setLevel", json!({"level": "info"}))
        .await;
    server.die();
    *server.is_down.lock() = false;
    server.seen.lock().clear();
    let again = async {
        while fixture
            .ask(&client, "tools/call", json!({"name": "echo"}))
            .await
            .is_err()
        {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(5), again).await.unwrap();
    received(&mut events).await;
    assert_eq!(server.sent("resources/subscribe").len(), 1);
    assert_eq!(server.sent("logging/setLevel").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn list_changed_is_sent_when_a_server_that_was_left_out_answers() {
    let (good, late) = (Server::new(LEGACY), Server::new(LEGACY));
    *late.hangs.lock() = true;
    let fixture = Fixture::of(&[("good", &good), ("late", &late)]);
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    sleep(Duration::from_secs(15)).await;
    assert!(received(&mut events).await.is_empty());
    *late.hangs.lock() = false;
    sleep(Duration::from_secs(5)).await;
    let received = received(&mut events).await;
    assert!(
        received.contains(&"notifications/tools/list_changed".to_owned()),
        "{received:?}"
    );
    assert_eq!(
        fixture.names(&client, "tools/list").await,
        ["good_echo", "late_echo"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_attaches_after_the_start_of_a_server_hears_of_it_if_its_list_left_it_out() {
    for is_late in [true, false] {
        let (good, late) = (Server::new(LEGACY), Server::new(LEGACY));
        *late.hangs.lock() = is_late;
        let fixture = Fixture::of(&[("good", &good), ("late", &late)]);
        let client = fixture.client(LEGACY);
        let listed = fixture.names(&client, "tools/list").await;
        assert_eq!(listed.contains(&"late_echo".to_owned()), !is_late);
        *late.hangs.lock() = false;
        sleep(Duration::from_secs(1)).await;
        let announced = match is_late {
            true => vec!["notifications/tools/list_changed"],
            false => vec![],
        };
        for expected in [announced, vec![]] {
            let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
            assert_eq!(received(&mut events).await, expected, "late: {is_late}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_attaches_while_it_lists_hears_of_a_server_that_its_list_left_out() {
    let (good, late) = (Server::new(LEGACY), Server::new(LEGACY));
    *late.hangs.lock() = true;
    let fixture = Fixture::of(&[("good", &good), ("late", &late)]);
    let client = fixture.client(LEGACY);
    let attaching = async {
        sleep(Duration::from_secs(1)).await;
        let attached = fixture.attach(&client, Interest::Everything);
        // The comparison of the attached client waits longer than its list.
        sleep(Duration::from_millis(2700)).await;
        *late.hangs.lock() = false;
        attached
    };
    let listing = fixture.names(&client, "tools/list");
    let (listed, (_attachment, mut events)) = tokio::join!(listing, attaching);
    assert_eq!(listed, ["good_echo"]);
    assert_eq!(
        received(&mut events).await,
        ["notifications/tools/list_changed"]
    );
}

#[tokio::test]
async fn messages_of_a_shared_session_reach_only_subscribed_clients() {
    let server = Server::new(LEGACY);
    *server.resources.lock() = json!([{"uri": "a://1", "name": "a"}]);
    let settings = ServerSettings {
        scope: Scope::Shared,
        ..ServerSettings::clone(&settings_of("only", ""))
    };
    let fixture = Fixture::with(&[("only", &server)], vec![Arc::new(settings)]);
    let client = fixture.client(LEGACY);
    let (_attachment, mut events) = fixture.attach(&client, Interest::Everything);
    fixture
        .done(&client, "resources/subscribe", json!({"uri": "a://1"}))
        .await;
    received(&mut events).await;
    server
        .notify(
            "notifications/message",
            json!({"level": "error", "data": 1}),
        )
        .await;
    server
        .notify("notifications/resources/updated", json!({"uri": "b://1"}))
        .await;
    assert!(
        received(&mut events).await.is_empty(),
        "the messages may concern another container"
    );
    server
        .notify("notifications/resources/updated", json!({"uri": "a://1"}))
        .await;
    assert_eq!(
        received(&mut events).await,
        ["notifications/resources/updated"]
    );
    // Subscribed again after an unsubscription, which a shared session only forgets.
    for method in ["resources/unsubscribe", "resources/subscribe"] {
        fixture.done(&client, method, json!({"uri": "a://1"})).await;
        received(&mut events).await;
    }
    server
        .notify("notifications/resources/updated", json!({"uri": "a://1"}))
        .await;
    assert_eq!(
        received(&mut events).await,
        ["notifications/resources/updated"]
    );
}
