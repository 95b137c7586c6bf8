//! What handshakes with servers say about their clients, and how many sessions clients can open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::Level;
use addons::mcp::{Scope, ServerSettings};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::double::{Server, tool};
use super::fixture::{Fixture, container, settings_of};
use crate::mcp::{Caller, Interest, MAX_SESSIONS, Version};

const LEGACY: Version = Version::V2025_11_25;

/// Clients with many different revisions and capabilities.
fn clients(fixture: &Fixture) -> Vec<Arc<Caller>> {
    let mut clients = Vec::new();
    for version in Version::ALL {
        for number in 0..20_u32 {
            let name = |bit: u32, name: &str| match number >> bit & 1 {
                0 => format!("no-{name}"),
                _ => name.to_owned(),
            };
            let mut capabilities = json!({ "number": number });
            for (bit, capability) in ["roots", "sampling", "elicitation"].into_iter().enumerate() {
                capabilities[name(bit as u32, capability)] = json!({});
            }
            let session = format!("{}-{number}", version.as_str());
            clients.push(fixture.client_with(version, capabilities, &session));
        }
    }
    clients
}

/// Lets a client do what it may do at every level.
async fn visit(fixture: &Fixture, client: &Arc<Caller>) {
    fixture.names(client, "tools/list").await;
    fixture.core.describe(client).await;
    let (_attachment, _events) = fixture.attach(client, Interest::Everything);
    if client.version != Version::V2026_07_28 {
        let level = json!({ "level": "alert" });
        fixture.done(client, "logging/setLevel", level).await;
        let subscribed = json!({ "uri": "a://1" });
        fixture
            .done(client, "resources/unsubscribe", subscribed)
            .await;
    }
    sleep(Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_raise_an_open_world_server_learns_no_choice_of_a_client() {
    for (is_used_before, is_closed) in [(false, false), (true, false), (true, true)] {
        let server = Server::new(LEGACY);
        *server.resources.lock() = json!([{ "uri": "a://1", "name": "a" }]);
        let fixture = Fixture::sole(&server);
        let first = fixture.client(LEGACY);
        if is_closed {
            fixture.close_echo();
        }
        if is_used_before {
            let (_attachment, _events) = fixture.attach(&first, Interest::Everything);
            let subscribed = json!({ "uri": "a://1" });
            fixture
                .done(&first, "resources/subscribe", subscribed)
                .await;
            visit(&fixture, &first).await;
        }
        let before = server.seen.lock().len();
        fixture.container.raise_level(Level::Confidential);
        for client in clients(&fixture).iter().chain([&first]) {
            visit(&fixture, client).await;
        }
        let declared = server.declared.lock().clone();
        if is_closed {
            assert!(declared.len() > 2, "{declared:?}");
            continue;
        }
        assert_eq!(declared.len(), 1, "{declared:?}");
        if !is_used_before {
            assert_eq!(declared[0], (Version::V2026_07_28, "{}".to_owned()));
        }
        let seen = server.seen.lock().split_off(before);
        let methods: Vec<_> = seen.iter().map(|one| &*one.method).collect();
        let lists = [
            "tools/list",
            "prompts/list",
            "resources/list",
            "resources/templates/list",
        ];
        assert!(
            methods.iter().all(|method| lists.contains(method)),
            "{methods:?}"
        );
        assert!(methods.len() <= lists.len(), "{methods:?}");
        // After a reset, clients declare their own revision and capabilities again.
        fixture.container.reset_standing();
        fixture.names(&clients(&fixture)[0], "tools/list").await;
        assert_eq!(server.declared.lock().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_changes_its_capabilities_opens_a_bounded_number_of_sessions() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    let opened = || server.opened.load(Ordering::SeqCst);
    let call = async |client: &Arc<Caller>| {
        let params = json!({ "name": "echo", "arguments": {} });
        fixture.done(client, "tools/call", params).await;
    };
    let clients = clients(&fixture);
    for client in clients.iter().chain(&clients) {
        call(client).await;
    }
    assert_eq!(opened(), MAX_SESSIONS);
    // After a while, unused sessions make room for others.
    sleep(Duration::from_secs(61)).await;
    for client in clients.iter().rev() {
        call(client).await;
    }
    let now = opened();
    assert!(
        (MAX_SESSIONS + 1..=2 * MAX_SESSIONS).contains(&now),
        "{now}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_changes_its_capabilities_disturbs_no_other_at_a_shared_server() {
    let server = Server::new(LEGACY);
    *server.tools.lock() = json!([tool("echo"), tool("wait")]);
    server.answers(|seen, _| async move {
        if seen.params["name"] == "wait" {
            sleep(Duration::from_secs(10)).await;
        }
        super::double::raw(json!({ "content": [] }))
    });
    let settings = ServerSettings {
        scope: Scope::Shared,
        ..ServerSettings::clone(&settings_of("only", ""))
    };
    let fixture = Fixture::with(&[("only", &server)], vec![Arc::new(settings)]);
    let attacker = container();
    let of_attacker = |client: &Arc<Caller>| {
        Arc::new(Caller {
            container: Arc::clone(&attacker),
            principal: Arc::clone(&attacker).into(),
            ..client.without_session()
        })
    };
    let victim = fixture.client(LEGACY);
    let call = async |client: &Arc<Caller>, name: &str| -> Value {
        let params = json!({ "name": name, "arguments": {} });
        fixture.done(client, "tools/call", params).await
    };
    call(&victim, "echo").await;
    let others: Vec<_> = clients(&fixture).iter().map(of_attacker).collect();
    let flood = async {
        for client in others.iter().chain(&others) {
            fixture.names(client, "tools/list").await;
            sleep(Duration::from_millis(50)).await;
        }
        // Many more calls than one session takes.
        let params = json!({ "name": "wait", "arguments": {} });
        let busy = others.iter().cycle().take(800);
        let busy = busy.map(|client| fixture.ask(client, "tools/call", params.clone()));
        let outcomes = futures_util::future::join_all(busy).await;
        assert!(outcomes.iter().any(Result::is_ok) && outcomes.iter().any(Result::is_err));
    };
    let work = async {
        for _ in 0..20 {
            call(&victim, "wait").await;
            sleep(Duration::from_secs(1)).await;
            call(&victim, "echo").await;
        }
    };
    tokio::join!(flood, work);
    let declared = server.declared.lock();
    assert!(declared.len() <= Version::ALL.len(), "{declared:?}");
    assert!(
        declared
            .iter()
            .all(|(_, capabilities)| capabilities == "{}")
    );
}
