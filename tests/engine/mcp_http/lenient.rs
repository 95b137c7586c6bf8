//! Servers that deviate from the protocol, but with which the official clients work.

use serde_json::json;
use testkit::each_row_async;
use unified_proxy::mcp::{MountError, Version};

use super::server::*;
use super::*;

const VERSIONS: [Version; 2] = [Version::V2025_11_25, Version::V2026_07_28];

/// The answers of a server of both eras.
fn answers(seen: &Seen) -> Scripted {
    if seen.method() == "server/discover" {
        return Scripted::result(&seen.message, json!({"supportedVersions": ["2026-07-28"]}));
    }
    handshake(seen, "s1").unwrap_or_else(|| Scripted::result(&seen.message, json!({"ok": true})))
}

#[tokio::test]
async fn a_redirect_within_the_server_is_followed_when_a_session_begins() {
    each_row_async(
        [
            (307, "/mcp/", "/mcp/"),
            (308, "/mcp/", "/mcp/"),
            (307, "mcp/", "/mcp/"),
            (307, "http://HOST/v2?key=a%20b#top", "/v2?key=a%20b"),
            (308, "?again=1", "/mcp?again=1"),
        ],
        async |(status, location, path)| {
            for version in VERSIONS {
                let server = Server::start(move |seen| match seen.path == "/mcp" {
                    true => {
                        let location = location.replace("HOST", seen.header("host").unwrap());
                        Scripted::status(status).with("location", &location)
                    }
                    false => answers(seen),
                })
                .await;
                let fixture = Fixture::at(&server.url());
                let (session, _events) = fixture.open(version).await;
                for _ in 0..2 {
                    let params = json!({"name": "a"});
                    let result = fixture.result(&session, "tools/call", params).await;
                    assert_eq!(result, json!({"ok": true}));
                }
                let seen = server.seen();
                let redirected = seen.iter().filter(|one| one.path == "/mcp");
                assert_eq!(redirected.count(), 1, "{seen:?}");
                let others = seen.iter().filter(|one| one.path == path);
                assert_eq!(others.count(), seen.len() - 1, "{seen:?}");
            }
        },
    )
    .await;
}

#[tokio::test]
async fn no_other_redirect_is_followed_and_no_other_server_gets_the_configured_fields() {
    let other = Server::start(answers).await;
    let other_port = other.address.port().to_string();
    each_row_async(
        [
            (301, "/mcp/"),
            (302, "/mcp/"),
            (303, "/mcp/"),
            (307, "http://127.0.0.1:OTHER/mcp"),
            (308, "//127.0.0.1:OTHER/mcp"),
            (307, "https://HOST/mcp/"),
            (307, "http://user@HOST/mcp/"),
            (307, "\\\\127.0.0.1:OTHER\\mcp"),
            (307, ""),
            // A loop.
            (307, "/mcp"),
        ],
        async |(status, location)| {
            let location = location.replace("OTHER", &other_port);
            let server = Server::start(move |seen| {
                let location = location.replace("HOST", seen.header("host").unwrap());
                let answer = Scripted::status(status);
                match &*location {
                    "" => answer,
                    location => answer.with("location", location),
                }
            })
            .await;
            let url = server.url();
            let fixture = Fixture::new(&format!(
                "url: \"{url}\", headers: {{ Authorization: \"Bearer secret\" }}"
            ));
            for version in VERSIONS {
                let error = fixture.cannot_open(version).await;
                assert!(matches!(error, MountError::Protocol(_)), "{error:?}");
                assert!(error.to_string().contains("redirects are not"), "{error}");
            }
            assert!(server.seen().len() < 20, "{}", server.seen().len());
        },
    )
    .await;
    assert_eq!(other.seen().len(), 0);
}

#[tokio::test]
async fn a_redirected_call_is_not_repeated() {
    let server = Server::legacy(|_| Scripted::status(307).with("location", "/mcp/")).await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(VERSIONS[0]).await;
    let (outcome, _) = fixture
        .call(&session, "tools/call", json!({"name": "a"}))
        .await;
    assert!(outcome.is_err());
    assert_eq!(server.of("tools/call").len(), 1);
}

#[tokio::test]
async fn an_answer_may_have_the_id_in_another_form() {
    each_row_async(["\"ID\"", "ID.0", "ID"], async |form| {
        for as_event in [false, true] {
            for version in VERSIONS {
                let server = Server::start(move |seen| {
                    let id = &seen.message["id"];
                    let Some(result) = (match seen.method() {
                        "initialize" => Some(json!({
                            "protocolVersion": seen.message["params"]["protocolVersion"],
                            "capabilities": {},
                        })),
                        "server/discover" => Some(json!({"supportedVersions": ["2026-07-28"]})),
                        "tools/call" => Some(json!({"ok": true})),
                        _ => None,
                    }) else {
                        return answers(seen);
                    };
                    let id = form.replace("ID", &id.to_string());
                    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                    match as_event {
                        true => Scripted::events(vec![text(&format!("data: {body}\n\n"))]),
                        false => Scripted::typed("application/json", body),
                    }
                })
                .await;
                let fixture = Fixture::at(&server.url());
                let (session, _events) = fixture.open(version).await;
                assert_eq!(session.version(), version);
                let result = fixture
                    .result(&session, "tools/call", json!({"name": "a"}))
                    .await;
                assert_eq!(result, json!({"ok": true}));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_notification_may_be_accepted_with_any_success() {
    let json = |text: &str| Scripted::typed("application/json", text);
    each_row_async(
        [
            json("{}"),
            json("null"),
            json(""),
            json(r#"{"jsonrpc":"2.0","id":null,"result":{}}"#),
            Scripted::typed("text/html", "<p>ok"),
            Scripted::events(vec![text(": ok\n\n")]),
            Scripted::status(200),
            Scripted::status(201),
            Scripted::status(204),
        ],
        async |answer| {
            for version in VERSIONS {
                let answer = answer.clone();
                let server = Server::start(move |seen| {
                    let is_notification = seen.method().starts_with("notifications/");
                    match is_notification {
                        true => answer.clone(),
                        false => answers(seen),
                    }
                })
                .await;
                let fixture = Fixture::at(&server.url());
                let (session, _events) = fixture.open(version).await;
                let params = json!({"progressToken": 1, "progress": 1});
                let permit = fixture.permit("notifications/progress", params).await;
                session.notify(permit).await.unwrap();
                fixture
                    .result(&session, "tools/call", json!({"name": "a"}))
                    .await;
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_server_may_answer_404_to_a_request_for_a_stream_that_it_does_not_offer() {
    let server = Server::start(|seen| match seen.method() {
        "GET" => Scripted::status(404),
        _ => answers(seen),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(VERSIONS[0]).await;
    server.until("GET").await;
    for _ in 0..3 {
        fixture
            .result(&session, "tools/call", json!({"name": "a"}))
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!session.ended().is_cancelled());
    assert_eq!(server.of("initialize").len(), 1);
}
