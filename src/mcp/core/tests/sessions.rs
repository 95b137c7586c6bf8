//! Sessions with servers: the pause after a failure, and the end after a reload.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::mcp::{McpSettings, ServerSettings};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::double::{Server, raw};
use super::fixture::{Fixture, error};
use crate::mcp::Version;

const LEGACY: Version = Version::V2025_11_25;
/// Pause after each attempt of a client to get a session.
const STEP: Duration = Duration::from_millis(50);

async fn is_open(fixture: &Fixture) -> bool {
    let mount = fixture.core.mounts().find(&fixture.container, "only");
    let opened = mount.unwrap().session(&fixture.client(LEGACY)).await;
    opened.is_ok()
}

/// Asks for a session every [`STEP`] during `time`. Returns the pause before each attempt of the
/// mount to open a session, in steps.
async fn pauses(fixture: &Fixture, server: &Server, time: Duration) -> Vec<u128> {
    let begun = Instant::now();
    let mut last = begun;
    let mut pauses = Vec::new();
    while begun.elapsed() < time {
        let before = server.attempts.load(Ordering::SeqCst);
        let asked = Instant::now();
        assert!(!is_open(fixture).await);
        if server.attempts.load(Ordering::SeqCst) > before {
            pauses.push((asked - last).as_millis() / STEP.as_millis());
            last = asked;
        }
        sleep(STEP).await;
    }
    pauses
}

#[tokio::test(start_paused = true)]
async fn the_pause_after_a_failure_doubles_up_to_30_s_and_a_stable_session_resets_it() {
    let server = Server::new(LEGACY);
    let fixture = Fixture::sole(&server);
    *server.is_down.lock() = true;
    let found = pauses(&fixture, &server, Duration::from_secs(95)).await;
    assert_eq!(found, [0, 10, 20, 40, 80, 160, 320, 600, 600]);
    for (lasted, expected) in [(29, [600, 600]), (30, [0, 10])] {
        *server.is_down.lock() = false;
        sleep(Duration::from_secs(30)).await;
        assert!(is_open(&fixture).await);
        sleep(Duration::from_secs(lasted)).await;
        server.die();
        // Lets the mount notice the end of the session.
        sleep(Duration::from_millis(1)).await;
        let found = pauses(&fixture, &server, Duration::from_secs(61)).await;
        assert_eq!(found[..2], expected, "a session of {lasted} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_gives_calls_of_a_changed_server_10_s_to_finish() {
    let server = Server::new(LEGACY);
    server.answers(|seen, _| async move {
        match seen.params["arguments"]["seconds"].as_u64() {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
        raw(json!({ "content": [] }))
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(LEGACY);
    let call = async |arguments| {
        let params = json!({ "name": "echo", "arguments": arguments });
        let begun = Instant::now();
        let outcome = fixture.ask(&client, "tools/call", params).await;
        (outcome, begun.elapsed())
    };
    fixture.names(&client, "tools/list").await;
    let reload = async {
        sleep(Duration::from_secs(1)).await;
        let mut settings = McpSettings::clone(&fixture.settings.load());
        let changed = ServerSettings {
            timeout: Duration::from_secs(21),
            ..ServerSettings::clone(&settings.servers["only"])
        };
        settings.servers.insert("only".into(), Arc::new(changed));
        fixture.settings.store(Arc::new(settings.clone()));
        fixture.core.mounts().apply(&settings.servers);
        sleep(Duration::from_secs(1)).await;
        // A call after the reload has a session of its own.
        call(json!({ "seconds": 0 })).await
    };
    let (short, endless, (after, _)) =
        tokio::join!(call(json!({ "seconds": 5 })), call(json!({})), reload);
    assert!(short.0.is_ok() && after.is_ok(), "{short:?} {after:?}");
    assert_eq!(short.1.as_secs(), 5);
    assert_eq!(error(endless.0).code, -32000);
    assert_eq!(endless.1.as_secs(), 1 + 10);
    assert_eq!(server.opened.load(Ordering::SeqCst), 2);
}
