//! The Streamable HTTP transport of the MCP revisions from 2025-03-26 to 2025-11-25.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use addons::contract::{Code, Container, Level};
use serde_json::{Value, json};
use testkit::each_row_async;
use unified_proxy::mcp::{Event, MountError, Version};

use super::server::*;
use super::*;

const LEGACY: Version = Version::V2025_11_25;

fn response(request: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result})
}

#[tokio::test]
async fn a_session_is_initialized_used_and_deleted() {
    let server = Server::legacy(|seen| {
        let result = match seen.method() {
            "tools/list" => json!({"tools": [{"name": "add"}]}),
            _ => json!({"content": [], "said": seen.message["params"]["arguments"]}),
        };
        Scripted::result(&seen.message, result)
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(Version::V2025_06_18).await;
    assert_eq!(session.version(), Version::V2025_06_18);
    assert_eq!(session.described().capabilities.get(), r#"{"tools":{}}"#);
    assert_eq!(
        session.described().instructions.as_deref(),
        Some("Be kind.")
    );
    let tools = fixture.result(&session, "tools/list", json!({})).await;
    assert_eq!(tools["tools"][0]["name"], "add");
    let params = json!({"name": "add", "arguments": {"a": 1}});
    let result = fixture.result(&session, "tools/call", params).await;
    assert_eq!(result["said"]["a"], 1);

    let first = &server.of("initialize")[0];
    assert_eq!(first.header("mcp-session-id"), None);
    assert_eq!(
        first.header("accept"),
        Some("application/json, text/event-stream")
    );
    assert_eq!(first.header("accept-encoding"), Some("identity"));
    assert_eq!(
        first.message["params"]["capabilities"],
        json!({"elicitation": {}})
    );
    assert_eq!(
        first.message["params"]["clientInfo"]["name"],
        "unified-proxy"
    );
    for method in ["notifications/initialized", "tools/list", "tools/call"] {
        let seen = server.until(method).await;
        assert_eq!(seen.header("mcp-session-id"), Some("s1"), "{method}");
        assert_eq!(
            seen.header("mcp-protocol-version"),
            Some("2025-06-18"),
            "{method}"
        );
        assert_eq!(seen.header("mcp-method"), None, "{method}");
    }
    assert_ne!(
        server.of("tools/list")[0].message["id"],
        server.of("tools/call")[0].message["id"]
    );
    drop(session);
    let farewell = server.until("DELETE").await;
    assert_eq!(farewell.header("mcp-session-id"), Some("s1"));
}

#[tokio::test]
async fn an_answer_may_follow_notifications_and_requests_on_a_stream() {
    let server = Server::legacy(|seen| match seen.method() {
        "tools/call" => Scripted::events(vec![
            text(": hello\n\n"),
            event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}})),
            event(&json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {"message": "?"}})),
            event(&json!({"jsonrpc": "2.0", "id": 7, "method": "ping"})),
            event(&json!({"jsonrpc": "2.0", "id": 4711, "result": {"forged": true}})),
            Part::Wait(Duration::from_millis(200)),
            event(&response(&seen.message, json!({"done": true}))),
        ]),
        // Accepts the POSTs with answers to the server's requests.
        _ => Scripted::status(202),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let permit = fixture.permit("tools/call", json!({"name": "ask"})).await;
    let (sender, mut events) = Events::uncharged(EVENT_QUEUE);
    let calling = session.request(permit, sender);
    let answering = async {
        let (method, params) = notification(&events.recv().await.unwrap());
        assert_eq!(
            (method.as_str(), &params["progress"]),
            ("notifications/progress", &json!(1))
        );
        let Some(Event::Request { method, reply, .. }) = events.recv().await else {
            panic!("no request of the server");
        };
        assert_eq!(&*method, "elicitation/create");
        reply.send(Ok(raw(json!({"action": "accept"})))).unwrap();
    };
    let (outcome, ()) = tokio::join!(calling, answering);
    assert_eq!(outcome.unwrap().unwrap().get(), r#"{"done":true}"#);
    eventually("both answers are posted", || {
        let seen = server.seen();
        let answer = |id: &Value| {
            seen.iter()
                .any(|one| one.message["id"] == *id && one.message.get("result").is_some())
        };
        answer(&json!("q")) && answer(&json!(7))
    })
    .await;
    assert_eq!(fixture.dropped("unknown_id"), 1);
    assert_eq!(
        events.try_recv().map(|_| ()).unwrap_err(),
        mpsc::error::TryRecvError::Disconnected
    );
}

#[tokio::test]
async fn a_stream_that_closes_before_its_answer_is_resumed_after_the_servers_retry_time() {
    let server = Server::start(|seen| match seen.method() {
        "tools/call" => Scripted::events(vec![text("id: e-1\nretry: 300\ndata: \n\n")]),
        "GET" if seen.header("last-event-id") == Some("e-1") => Scripted::events(vec![
            text("id: e-2\nretry: 150\ndata:\n\n"),
            Part::Wait(Duration::from_millis(20)),
            Part::Break,
        ]),
        "GET" if seen.header("last-event-id") == Some("e-2") => Scripted::events(vec![
            event(&json!({"jsonrpc": "2.0", "id": 1, "result": {"late": true}})),
            Part::Hold,
        ]),
        _ => handshake(seen, "s1").unwrap(),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    server.until("GET").await;
    let begun = Instant::now();
    let result = fixture
        .result(&session, "tools/call", json!({"name": "slow"}))
        .await;
    assert_eq!(result, json!({"late": true}));
    assert!(
        begun.elapsed() >= Duration::from_millis(450),
        "{:?}",
        begun.elapsed()
    );
    let gets = server.of("GET");
    let last_ids: Vec<_> = gets.iter().map(|one| one.header("last-event-id")).collect();
    assert_eq!(last_ids, [None, Some("e-1"), Some("e-2")]);
    assert!(
        gets.iter()
            .all(|one| one.header("mcp-session-id") == Some("s1"))
    );
}

#[tokio::test]
async fn a_call_fails_if_its_stream_has_no_id_or_was_resumed_three_times_without_an_answer() {
    let endless = AtomicUsize::new(0);
    let server = Server::start(move |seen| match seen.method() {
        "tools/call" if seen.message["params"]["name"] == "no-id" => Scripted::events(vec![]),
        "tools/call" => Scripted::events(vec![text("id: e\nretry: 1\ndata:\n\n")]),
        "GET" if seen.header("last-event-id").is_some() => {
            endless.fetch_add(1, Ordering::SeqCst);
            Scripted::events(vec![])
        }
        _ => handshake(seen, "s1").unwrap(),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    each_row_async(["no-id", "for-ever"], async |name| {
        let (outcome, _) = fixture
            .call(&session, "tools/call", json!({"name": name}))
            .await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, MountError::Protocol(_)), "{error:?}");
        assert!(error.to_string().contains("closed the stream"), "{error}");
    })
    .await;
    let resumed = server
        .of("GET")
        .iter()
        .filter(|one| one.header("last-event-id").is_some())
        .count();
    assert_eq!(resumed, 3);
}

#[tokio::test]
async fn a_call_in_a_session_that_the_server_forgot_is_repeated_in_a_new_one() {
    let sessions = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        let current = format!("s{}", sessions.load(Ordering::SeqCst));
        match seen.method() {
            "initialize" => {
                let next = sessions.fetch_add(1, Ordering::SeqCst) + 1;
                handshake(seen, &format!("s{next}")).unwrap()
            }
            "restart" => {
                sessions.fetch_add(1, Ordering::SeqCst);
                Scripted::result(&seen.message, json!({}))
            }
            _ if seen.header("mcp-session-id") != Some(&current) => Scripted::status(404),
            "tools/call" => Scripted::result(&seen.message, json!({"in": current})),
            _ => handshake(seen, &current).unwrap(),
        }
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    fixture.result(&session, "restart", json!({})).await;
    assert!(!session.ended().is_cancelled());
    let result = fixture
        .result(&session, "tools/call", json!({"name": "a"}))
        .await;
    assert_eq!(result, json!({"in": "s3"}));
    // The session ends, so that the pool opens another for the next call.
    assert!(session.ended().is_cancelled());
    drop(session);
    let farewell = server.until("DELETE").await;
    assert_eq!(farewell.header("mcp-session-id"), Some("s3"));
    assert_eq!(server.of("DELETE").len(), 1);
}

#[tokio::test]
async fn a_call_is_not_repeated_after_the_level_rose_or_the_latch_was_set() {
    let latch: fn(&Container) = |container| container.abort();
    let raise: fn(&Container) = |container| container.raise_level(Level::Confidential);
    let nothing: fn(&Container) = |_| {};
    let rows = [(latch, true), (raise, true), (nothing, false)];
    each_row_async(rows, async |(meanwhile, is_denied)| {
        let opened = AtomicUsize::new(0);
        let set_later: Arc<OnceLock<Arc<Container>>> = Arc::default();
        let known = Arc::clone(&set_later);
        let server = Server::start(move |seen| match seen.method() {
            "initialize" => {
                let count = opened.fetch_add(1, Ordering::SeqCst) + 1;
                if count == 2 {
                    meanwhile(known.get().unwrap());
                }
                handshake(seen, &format!("s{count}")).unwrap()
            }
            "tools/call" if seen.header("mcp-session-id") == Some("s1") => Scripted::status(404),
            "tools/call" => Scripted::result(&seen.message, json!({})),
            _ => handshake(seen, "s1").unwrap(),
        })
        .await;
        let fixture = Fixture::at(&server.url());
        let container = Arc::clone(fixture.container());
        set_later
            .set(container)
            .unwrap_or_else(|_| panic!("set twice"));
        let (session, _events) = fixture.open(LEGACY).await;
        let params = json!({"name": "a"});
        let (outcome, _) = fixture.call(&session, "tools/call", params).await;
        match outcome {
            Err(MountError::Denied(denial)) => {
                assert!(is_denied);
                assert_eq!(denial.code(), Code::PolicyDeniedContinue);
            }
            outcome => assert!(!is_denied, "{outcome:?}"),
        }
        let calls = if is_denied { 1 } else { 2 };
        assert_eq!(server.of("tools/call").len(), calls);
    })
    .await;
}

#[tokio::test]
async fn a_call_that_times_out_or_is_dropped_is_cancelled_at_the_server() {
    let server = Server::legacy(|_| Scripted::events(vec![text(": wait\n\n"), Part::Hold])).await;
    let fixture = Fixture::new(&format!("url: \"{}\", timeout: 1s", server.url()));
    let (session, _events) = fixture.open(LEGACY).await;
    let (outcome, _) = fixture
        .call(&session, "tools/call", json!({"name": "timeout"}))
        .await;
    assert!(matches!(outcome, Err(MountError::TimedOut)), "{outcome:?}");
    let permit = fixture
        .permit("tools/call", json!({"name": "dropped"}))
        .await;
    let calling = session.request(permit, Events::uncharged(1).0);
    tokio::select! {
        outcome = calling => panic!("{outcome:?}"),
        () = eventually("the server got the call", || server.of("tools/call").len() == 2) => {}
    }
    eventually("both calls are cancelled", || {
        server.of("notifications/cancelled").len() == 2
    })
    .await;
    let cancelled = server.of("notifications/cancelled");
    let ids: Vec<_> = cancelled
        .iter()
        .map(|one| &one.message["params"]["requestId"])
        .collect();
    let calls = server.of("tools/call");
    assert_eq!(
        ids,
        calls
            .iter()
            .map(|one| &one.message["id"])
            .collect::<Vec<_>>()
    );
    eventually("the streams are closed", || server.open() == 0).await;
}

#[tokio::test]
async fn the_stream_of_unsolicited_messages_is_read_and_resumed() {
    let server = Server::start(|seen| match (seen.method(), seen.header("last-event-id")) {
        ("GET", None) => Scripted::events(vec![
            event(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})),
            text("id: 7\nretry: 100\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"),
            text("data: no json\n\n"),
        ]),
        ("GET", Some("7")) => Scripted::events(vec![
            event(&json!({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})),
            Part::Hold,
        ]),
        _ if seen.message["id"] == 1 => Scripted::status(202),
        _ => handshake(seen, "s1").unwrap(),
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, mut events) = fixture.open(LEGACY).await;
    let (method, _) = notification(&events.recv().await.unwrap());
    assert_eq!(method, "notifications/tools/list_changed");
    let Some(Event::Request { method, reply, .. }) = events.recv().await else {
        panic!("no request of the server");
    };
    assert_eq!(&*method, "roots/list");
    drop(reply);
    eventually("the request is refused", || {
        let seen = server.seen();
        seen.iter()
            .any(|one| one.message["error"]["code"] == -32000)
    })
    .await;
    assert_eq!(
        (fixture.dropped("unknown_id"), fixture.dropped("malformed")),
        (1, 1)
    );
    drop(session);
    eventually("the stream is closed", || server.open() == 0).await;
}

#[tokio::test]
async fn the_error_for_an_invalid_response_describes_the_response() {
    let server = Server::legacy(|seen| {
        let answer = |text: &str| Scripted::typed("application/json", text);
        match seen.message["params"]["name"].as_str().unwrap() {
            "html" => Scripted::typed("text/html; charset=utf-8", "<p>"),
            "untyped" => Scripted::status(200),
            "no json" => answer("{"),
            "twice" => answer(r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#),
            "batch" => answer(r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#),
            "other id" => answer(r#"{"jsonrpc":"2.0","id":"x","result":{}}"#),
            "accepted" => Scripted::status(202),
            "redirect" => Scripted::status(307).with("location", "http://192.0.2.1/"),
            "forbidden" => Scripted::status(403),
            _ => Scripted::status(500),
        }
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    each_row_async(
        [
            ("html", "text/html"),
            ("untyped", "without a readable Content-Type"),
            ("no json", "invalid MCP message"),
            ("twice", "invalid MCP message"),
            ("batch", "batches"),
            ("other id", "another request"),
            ("accepted", "without a response"),
            ("redirect", "redirects are not followed"),
            ("forbidden", "403"),
            ("broken", "500"),
        ],
        async |(name, part)| {
            let (outcome, _) = fixture
                .call(&session, "tools/call", json!({"name": name}))
                .await;
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.into_denial("kb").code(), Code::UpstreamUnreachable);
        },
    )
    .await;
}

#[tokio::test]
async fn a_json_rpc_error_is_an_outcome_with_any_http_status() {
    let server = Server::legacy(|seen| {
        let status = seen.message["params"]["status"].as_u64().unwrap();
        Scripted::error(status as u16, &seen.message, -32602, json!({"kept": 1.50}))
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    each_row_async([200, 400, 500], async |status| {
        let (outcome, _) = fixture
            .call(&session, "tools/call", json!({"status": status}))
            .await;
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.code, -32602);
        assert_eq!(error.data.unwrap().get(), r#"{"kept":1.5}"#);
    })
    .await;
}
