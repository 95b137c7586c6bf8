//! Sessions with servers of both eras: versions, events, cancellation, failures and reloads.

use std::sync::Arc;
use std::time::Duration;

use addons::mcp::Scope;
use serde_json::json;
use testkit::each_row_async;
use unified_proxy::mcp::*;

use super::fixture::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_stdio_session_uses_the_clients_era_if_the_server_supports_it() {
    use Version::{V2025_06_18, V2025_11_25, V2026_07_28};
    each_row_async(
        [
            ("legacy", V2025_06_18, V2025_06_18),
            ("legacy", V2026_07_28, V2025_11_25),
            ("legacy silent", V2026_07_28, V2025_11_25),
            ("legacy strict", V2026_07_28, V2025_11_25),
            ("modern", V2026_07_28, V2026_07_28),
            ("modern", V2025_06_18, V2026_07_28),
            ("legacy modern", V2025_06_18, V2025_06_18),
            ("legacy modern", V2026_07_28, V2026_07_28),
            ("legacy modern slow", V2026_07_28, V2026_07_28),
            ("modern slow", V2026_07_28, V2026_07_28),
            ("legacy slow", V2026_07_28, V2025_11_25),
        ],
        async |(mode, client, agreed)| {
            let fixture = Fixture::new(vec![mounted("t", python(mode))]);
            let pooled = fixture.session("t", client).await.unwrap();
            assert_eq!(pooled.session.version(), agreed, "{mode}");
            let capabilities = pooled.session.described().capabilities.get();
            assert!(!capabilities.contains("tasks"), "{capabilities}");
            let tools = pooled.catalog.tools().await.unwrap();
            assert_eq!(tools.len(), 1, "{mode}");
            let echoed = fixture.call(&pooled, "echo", json!({"a": 1})).await;
            assert_eq!(echoed.unwrap(), json!({"a": 1}), "{mode}");
            let again = fixture.session("t", client).await.unwrap();
            assert!(Arc::ptr_eq(&pooled, &again), "the session was not pooled");
            let tools_again = again.catalog.tools().await.unwrap();
            assert!(Arc::ptr_eq(&tools, &tools_again));
            let mount = fixture.mounts.find(fixture.container(), "t").unwrap();
            pooled.session.ended().cancel();
            assert_eq!(mount.known(fixture.container()).tools.unwrap().len(), 1);
            fixture.mounts.stop(Duration::from_secs(10)).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_notifications_log_messages_and_questions_of_a_server_reach_their_call() {
    let fixture = Fixture::new(vec![mounted("t", python("legacy"))]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let (events, mut receiver) = Events::uncharged(16);
    let done = fixture
        .call_with(&pooled, "progress", json!({}), events)
        .await;
    assert_eq!(done.unwrap(), json!("done"));
    let Some(Event::Notification { method, .. }) = receiver.recv().await else {
        panic!("no progress notification");
    };
    assert_eq!(&*method, "notifications/progress");
    let (events, mut receiver) = Events::uncharged(16);
    let answering = async {
        let Some(Event::Notification { method, .. }) = receiver.recv().await else {
            panic!("no log message of the server");
        };
        assert_eq!(&*method, "notifications/message");
        let Some(Event::Request { method, reply, .. }) = receiver.recv().await else {
            panic!("no request of the server");
        };
        assert_eq!(&*method, "elicitation/create");
        let answer = serde_json::value::to_raw_value(&json!({"action": "accept"})).unwrap();
        reply.send(Ok(answer)).unwrap();
    };
    let asked = fixture.call_with(&pooled, "ask", json!({}), events);
    let (answer, ()) = tokio::join!(asked, answering);
    assert_eq!(answer.unwrap(), json!({"action": "accept"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_messages_and_questions_of_a_shared_session_reach_no_call() {
    let mut server = mounted("t", python("legacy"));
    server.scope = Scope::Shared;
    let fixture = Fixture::new(vec![server]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let (events, mut receiver) = Events::uncharged(16);
    let asked = fixture.call_with(&pooled, "ask", json!({}), events);
    let asked = tokio::time::timeout(Duration::from_secs(10), asked).await;
    let answer = asked.expect("the question is refused").unwrap();
    assert!(answer["code"].is_i64(), "{answer}");
    let received = receiver.try_recv();
    assert!(received.is_err(), "{received:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_modern_server_is_refused_whatever_the_clients_era() {
    each_row_async(
        [Version::V2025_11_25, Version::V2026_07_28],
        async |client| {
            let fixture = Fixture::new(vec![mounted("t", python("modern"))]);
            let pooled = fixture.session("t", client).await.unwrap();
            assert_eq!(pooled.session.version(), Version::V2026_07_28);
            let asked = fixture.call(&pooled, "ask", json!({})).await;
            assert_eq!(asked.unwrap()["code"], json!(-32601), "{client:?}");
            fixture.mounts.stop(Duration::from_secs(10)).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_is_cancelled_at_the_server() {
    let fixture = Fixture::new(vec![mounted("t", python("legacy"))]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let short = Duration::from_millis(100);
    let dropped = tokio::time::timeout(short, fixture.call(&pooled, "hang", json!({}))).await;
    assert!(dropped.is_err());
    let cancelled = fixture.call(&pooled, "cancelled", json!({})).await.unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 1, "{cancelled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn list_requests_and_notifications_to_a_server_that_reads_nothing_time_out() {
    let mut server = mounted("t", python("legacy deaf"));
    server.timeout = Duration::from_millis(500);
    let fixture = Fixture::new(vec![server]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let limit = Duration::from_secs(10);
    let listed = tokio::time::timeout(limit, pooled.catalog.tools()).await;
    let listed = listed.expect("the list has a time limit");
    assert!(matches!(listed, Err(MountError::TimedOut)));
    // Together, the notifications are longer than the queue and the pipe to the process can hold.
    let params = json!({ "text": "x".repeat(1 << 20) });
    for _ in 0..20 {
        let permit = fixture.permit("notifications/x", params.clone()).await;
        let told = tokio::time::timeout(limit, pooled.session.notify(permit)).await;
        match told.expect("a notification has a time limit") {
            Ok(()) => {}
            Err(MountError::TimedOut) => return,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the process read the notifications");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_is_dead_and_its_health_has_the_reason() {
    let fixture = Fixture::new(vec![
        mounted("gone", stdio(&["/no/such/program"])),
        mounted("t", python("legacy")),
    ]);
    let failed = fixture.session("gone", Version::V2025_11_25).await;
    let Err(MountError::CannotStart(why)) = failed.map(drop) else {
        panic!("the error is not that the server cannot start");
    };
    assert!(why.contains("/no/such/program"), "{why}");
    let health = |name: &str| {
        let all = fixture.mounts.health(None);
        all.into_iter()
            .find(|health| &*health.server == name)
            .unwrap()
    };
    assert_eq!(health("gone").state, MountState::Dead);
    assert!(health("gone").failure.unwrap().contains("/no/such/program"));
    assert_eq!(health("t").state, MountState::Connecting);
    fixture.session("t", Version::V2025_11_25).await.unwrap();
    assert_eq!(health("t").state, MountState::Ready);
    let again = fixture.session("gone", Version::V2025_11_25).await;
    assert!(again.is_err(), "the server was started again at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_ends_only_the_sessions_of_changed_and_removed_servers() {
    let fixture = Fixture::new(vec![
        mounted("same", python("legacy")),
        mounted("changed", python("legacy")),
        mounted("removed", python("legacy")),
    ]);
    let version = Version::V2025_11_25;
    let mut sessions = Vec::new();
    for name in ["same", "changed", "removed"] {
        sessions.push(fixture.session(name, version).await.unwrap());
    }
    let mut changes = fixture.mounts.changes(fixture.container());
    let mut same = mounted("same", python("legacy"));
    same.place.line = 9;
    let mut changed = mounted("changed", python("legacy"));
    changed.timeout = Duration::from_secs(5);
    fixture.mounts.apply(&by_name(vec![same, changed]));
    assert_eq!(changes.next().await, List::ALL);
    let ended = |at: usize| sessions[at].session.ended().clone();
    let limit = Duration::from_secs(15);
    for at in [1, 2] {
        tokio::time::timeout(limit, ended(at).cancelled())
            .await
            .unwrap();
    }
    assert!(!ended(0).is_cancelled());
    assert!(
        fixture
            .mounts
            .find(fixture.container(), "removed")
            .is_none()
    );
    let changed = fixture.session("changed", version).await.unwrap();
    assert!(!Arc::ptr_eq(&changed, &sessions[1]));
}
