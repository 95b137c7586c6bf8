//! The Streamable HTTP transport of MCP revision 2026-07-28, and the choice of the protocol era for
//! a session: 2026-07-28 (modern) or the revisions before it (legacy).

use std::time::Duration;

use serde_json::{Value, json};
use testkit::each_row_async;
use unified_proxy::mcp::{MountError, Version};

use super::server::*;
use super::*;

const MODERN: Version = Version::V2026_07_28;

fn discovered(seen: &Seen) -> Option<Scripted> {
    let result = json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern"}},
    });
    (seen.method() == "server/discover").then(|| Scripted::result(&seen.message, result))
}

/// Starts a modern server, which answers `initialize` with an error.
async fn modern(script: impl Fn(&Seen) -> Scripted + Send + Sync + 'static) -> Server {
    Server::start(move |seen| match seen.method() {
        "initialize" => Scripted::error(400, &seen.message, -32020, Value::Null),
        "GET" | "DELETE" => Scripted::status(405),
        _ => discovered(seen).unwrap_or_else(|| script(seen)),
    })
    .await
}

fn tool(schema: Value) -> Arc<Definition> {
    Arc::new(Definition {
        name: "query".into(),
        raw: raw(json!({"name": "query", "inputSchema": schema})),
        may_name_fields: true,
        annotations: Annotations::default(),
        pin: Pin::Accepted,
        memory: HeldMemory::default(),
    })
}

#[tokio::test]
async fn each_request_is_independent_and_header_fields_repeat_values_of_the_body() {
    let server =
        modern(|seen| Scripted::result(&seen.message, json!({"resultType": "complete"}))).await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(MODERN).await;
    assert_eq!(session.version(), MODERN);
    let described = session.described();
    assert_eq!(
        described.capabilities.get(),
        r#"{"tools":{},"extensions":{}}"#
    );
    assert_eq!(
        described.server_info.as_ref().unwrap().get(),
        r#"{"name":"modern"}"#
    );
    fixture.result(&session, "tools/list", json!({})).await;
    let uri = json!({"uri": "file:///ä"});
    fixture.result(&session, "resources/read", uri).await;
    let schema = json!({"properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "rows": {"type": "integer", "x-mcp-header": "Rows"},
    }});
    let params = json!({"name": "query", "arguments": {"region": "eu", "rows": null}});
    let target = McpTarget::of(&"kb".into(), Some(&tool(schema.clone())));
    let frame = Frame::request(Direction::ToServer, target, "tools/call", Some(raw(params)));
    let permit = fixture.permit_for(frame.of_tool(tool(schema))).await;
    session
        .request(permit, Events::uncharged(1).0)
        .await
        .unwrap()
        .unwrap();

    let meta = &server.of("server/discover")[0].message["params"]["_meta"];
    assert_eq!(
        meta["io.modelcontextprotocol/protocolVersion"],
        "2026-07-28"
    );
    let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*capabilities, json!({"elicitation": {}}));
    for seen in server.seen() {
        assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(seen.header("mcp-method"), Some(seen.method()));
        assert_eq!(seen.header("mcp-session-id"), None);
    }
    let read = &server.of("resources/read")[0];
    assert_eq!(read.header("mcp-name"), Some("=?base64?ZmlsZTovLy/DpA==?="));
    let call = &server.of("tools/call")[0];
    assert_eq!(call.header("mcp-name"), Some("query"));
    assert_eq!(call.header("mcp-param-region"), Some("eu"));
    assert_eq!(call.header("mcp-param-rows"), None);
    drop(session);
    assert!(server.of("DELETE").is_empty());
}

#[tokio::test]
async fn a_tool_with_invalid_header_annotations_is_refused_in_2026_07_28_only() {
    let bad = raw(
        json!({"name": "t", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}),
    );
    let server = modern(|_| Scripted::status(500)).await;
    let (session, _events) = Fixture::at(&server.url()).open(MODERN).await;
    assert!(
        session
            .check_definition(&bad)
            .unwrap_err()
            .contains("integers")
    );
    let server = Server::legacy(|_| Scripted::status(500)).await;
    let (session, _events) = Fixture::at(&server.url()).open(Version::V2025_11_25).await;
    assert_eq!(session.check_definition(&bad), Ok(()));
}

#[tokio::test]
async fn dropping_a_request_closes_its_stream_without_a_cancellation() {
    let server = modern(|_| Scripted::events(vec![text(":\n\n"), Part::Hold])).await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(MODERN).await;
    let permit = fixture.permit("tools/call", json!({"name": "slow"})).await;
    let calling = session.request(permit, Events::uncharged(1).0);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), calling)
            .await
            .is_err()
    );
    eventually("the stream is closed", || server.open() == 0).await;
    assert!(server.of("notifications/cancelled").is_empty());
}

#[tokio::test]
async fn a_subscription_outlives_the_timeout_of_a_call() {
    let server = modern(|seen| match seen.method() {
        "subscriptions/listen" => Scripted::events(vec![
            event(&json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"})),
            Part::Wait(Duration::from_millis(1500)),
            event(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})),
            event(&json!({"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage"})),
            event(&json!({"jsonrpc": "2.0", "id": seen.message["id"], "result": {}})),
        ]),
        _ => Scripted::events(vec![Part::Hold]),
    })
    .await;
    let fixture = Fixture::new(&format!("url: \"{}\", timeout: 1s", server.url()));
    let (session, mut unsolicited) = fixture.open(MODERN).await;
    let permit = fixture.permit("subscriptions/listen", json!({})).await;
    let (sender, mut events) = Events::uncharged(EVENT_QUEUE);
    let outcome = session.request(permit, sender).await;
    assert!(outcome.unwrap().is_ok());
    let (method, _) = notification(&events.recv().await.unwrap());
    assert_eq!(method, "notifications/subscriptions/acknowledged");
    assert!(events.recv().await.is_none());
    // A notification of a changed list goes to the session, even if it arrives on the stream of a
    // call.
    let (changed, _) = notification(&unsolicited.recv().await.unwrap());
    assert_eq!(changed, "notifications/tools/list_changed");
    assert_eq!(fixture.dropped("unasked_request"), 1);
    let (outcome, _) = fixture.call(&session, "tools/call", json!({})).await;
    assert!(matches!(outcome, Err(MountError::TimedOut)));
}

#[tokio::test]
async fn a_stream_that_closes_before_its_answer_is_not_resumed() {
    let server = modern(|_| Scripted::events(vec![text("id: 1\nretry: 1\ndata:\n\n")])).await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(MODERN).await;
    let (outcome, _) = fixture.call(&session, "tools/call", json!({})).await;
    assert!(
        outcome
            .unwrap_err()
            .to_string()
            .contains("closed the stream")
    );
    assert!(server.of("GET").is_empty());
}

#[tokio::test]
async fn a_header_mismatch_error_leads_to_a_notification_of_a_changed_tool_list() {
    let server = modern(|seen| Scripted::error(400, &seen.message, -32020, Value::Null)).await;
    let fixture = Fixture::at(&server.url());
    let (session, mut events) = fixture.open(MODERN).await;
    let (outcome, _) = fixture.call(&session, "tools/call", json!({})).await;
    assert_eq!(outcome.unwrap().unwrap_err().code, -32020);
    let (method, _) = notification(&events.recv().await.unwrap());
    assert_eq!(method, "notifications/tools/list_changed");
}

#[tokio::test]
async fn an_http_session_uses_the_clients_era_if_the_server_supports_it() {
    const LEGACY: Version = Version::V2025_06_18;
    /// A server's response to `server/discover`.
    type Probe = fn(&Seen) -> Scripted;
    let legacy: [(&str, Probe); 6] = [
        ("an empty 400", |_| Scripted::status(400)),
        ("a 404", |_| Scripted::status(404)),
        ("HTML", |_| Scripted::typed("text/html", "?")),
        ("an unknown method", |seen| {
            Scripted::error(200, &seen.message, -32601, Value::Null)
        }),
        ("a missing session", |seen| {
            Scripted::error(400, &seen.message, -32600, Value::Null)
        }),
        ("its revisions", |seen| {
            let supported = json!({"supported": ["2025-11-25", "2025-06-18"]});
            Scripted::error(400, &seen.message, -32022, supported)
        }),
    ];
    each_row_async(legacy, async |(name, probe)| {
        let server = Server::legacy(probe).await;
        let fixture = Fixture::at(&server.url());
        let (session, _events) = fixture.open(MODERN).await;
        assert_eq!(session.version(), Version::V2025_11_25, "{name}");
        let (session, _events) = fixture.open(LEGACY).await;
        assert_eq!(session.version(), LEGACY, "{name}");
        assert_eq!(server.of("server/discover").len(), 1, "{name}");
    })
    .await;
    let server = modern(|_| Scripted::status(500)).await;
    let (session, _events) = Fixture::at(&server.url()).open(LEGACY).await;
    assert_eq!(session.version(), MODERN);
    let both = |seen: &Seen| discovered(seen).unwrap_or_else(|| Scripted::status(500));
    let server = Server::legacy(both).await;
    let fixture = Fixture::at(&server.url());
    for version in [LEGACY, MODERN] {
        let (session, _events) = fixture.open(version).await;
        assert_eq!(session.version(), version);
    }
}

#[tokio::test]
async fn the_error_for_a_server_without_mcp_describes_its_response() {
    let server = Server::start(|seen| match seen.method() {
        "server/discover" => Scripted::status(404),
        _ => Scripted::typed("text/html", "<p>It works!</p>"),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    for version in [MODERN, Version::V2025_11_25] {
        let error = fixture.cannot_open(version).await;
        assert!(matches!(error, MountError::Protocol(_)), "{error:?}");
        assert!(error.to_string().contains("text/html"), "{error}");
    }
}
