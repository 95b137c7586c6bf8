//! The states of servers in `_meta` of a list of tools.

use std::sync::Arc;

use addons::mcp::{Confine, ServerKind, ServerSettings};
use serde_json::{Value, json};

use super::double::Server;
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
