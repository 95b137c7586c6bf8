//! The states of servers in `_meta` of a list of tools.

use std::sync::Arc;
use std::time::Duration;

use addons::mcp::{Confine, McpSettings, OverrideRule, ServerKind, ServerSettings};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::double::{Server, tool};
use super::fixture::{Fixture, container, settings_of};
use crate::mcp::Version;
use crate::mcp::core::{Caller, SERVERS_META};

/// The settings of a server whose process reaches no network.
fn confined(name: &str) -> Arc<ServerSettings> {
    let mut settings = ServerSettings::clone(&settings_of(name, name));
    if let ServerKind::Stdio(process) = &mut settings.kind {
        process.confine = Confine::Namespaces;
    }
    Arc::new(settings)
}

#[tokio::test]
async fn a_server_that_works_for_a_container_has_no_reason_even_if_it_fails_for_another() {
    let version = Version::V2025_11_25;
    let (good, bad) = (Server::new(version), Server::new(version));
    *bad.is_down.lock() = true;
    let fixture = Fixture::with(
        &[("good", &good), ("bad", &bad)],
        vec![confined("good"), confined("bad")],
    );
    let one = fixture.client(version);
    let container = container();
    let another = Arc::new(Caller {
        principal: Arc::clone(&container).into(),
        container,
        ..one.without_session()
    });
    let listed = async |caller: &Arc<Caller>| -> Value {
        let list = fixture.done(caller, "tools/list", json!({})).await;
        list["_meta"][SERVERS_META].clone()
    };
    let said = |server: &Value| {
        let reason = server["reason"].as_str().unwrap_or_default().to_owned();
        reason.starts_with("it is down; it has no `hosts`")
    };
    let states = listed(&one).await;
    assert_eq!(states["good"], json!({ "state": "ready" }));
    assert_eq!(states["bad"]["state"], "dead");
    assert!(said(&states["bad"]), "{states}");

    *good.is_down.lock() = true;
    let states = listed(&another).await;
    assert_eq!(states["good"]["state"], "degraded");
    assert!(said(&states["good"]), "{states}");
    assert_eq!(listed(&one).await["good"], json!({ "state": "degraded" }));
}

/// A server that answers and one that is being started, for a client.
fn one_starts() -> (Arc<Server>, Fixture) {
    let version = Version::V2025_11_25;
    let (good, late) = (Server::new(version), Server::new(version));
    *late.hangs.lock() = true;
    let fixture = Fixture::of(&[("good", &good), ("late", &late)]);
    (late, fixture)
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_less_than_four_seconds_in_all_for_a_server_that_is_being_started() {
    let (_late, fixture) = one_starts();
    let client = fixture.client(Version::V2025_11_25);
    let began = Instant::now();
    fixture.core.describe(&client).await;
    for list in ["tools/list", "prompts/list", "resources/list"] {
        fixture.done(&client, list, json!({})).await;
    }
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    assert!(began.elapsed() < Duration::from_secs(4));

    let (_late, fixture) = one_starts();
    let client = fixture.client(Version::V2025_11_25);
    let began = Instant::now();
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_longer_for_its_server_than_lists_do() {
    for (method, name) in [
        ("tools/call", "late_echo"),
        ("tools/call", "renamed"),
        ("prompts/get", "late_ask"),
    ] {
        let (late, fixture) = one_starts();
        *late.tools.lock() = json!([tool("echo"), tool("other")]);
        *late.prompts.lock() = json!([{ "name": "ask" }]);
        let mut settings = McpSettings::clone(&fixture.settings.load());
        let rule = OverrideRule {
            rename: Some("renamed".into()),
            ..OverrideRule::default()
        };
        let key = ("late".into(), "other".into());
        settings.overrides.insert(key, vec![Arc::new(rule)]);
        fixture.settings.store(Arc::new(settings));
        let client = fixture.client(Version::V2025_11_25);
        assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
        let starting = async {
            sleep(Duration::from_secs(5)).await;
            *late.hangs.lock() = false;
        };
        let params = json!({ "name": name, "arguments": {} });
        let (called, ()) = tokio::join!(fixture.done(&client, method, params), starting);
        assert_eq!(called["content"], json!([]), "{name}");
    }
}
