//! The HTTP+SSE transport of MCP revision 2024-11-05: one endpoint for the server's stream, one for
//! the client's messages.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row_async;
use tokio::sync::broadcast;
use unified_proxy::http::Reservation;
use unified_proxy::mcp::{MessageMemory, MountError, Version};

use super::server::*;
use super::*;

/// How long a connection may be idle before the server closes it.
const PATIENCE: Duration = Duration::from_millis(1100);

fn settings(url: &str) -> String {
    format!("type: sse, url: \"{url}\", timeout: 2s")
}

/// A server of HTTP+SSE over raw TCP. Clients POST messages to `/messages`; the server sends the
/// answers on the stream of a GET to `/sse`.
struct Sse {
    url: String,
    posted: Arc<Mutex<Vec<Value>>>,
    events: broadcast::Sender<String>,
}

impl Sse {
    async fn start(endpoint: &'static str, script: fn(&Value) -> Vec<Value>) -> Self {
        Self::refusing("405 Method Not Allowed", endpoint, script).await
    }

    /// Starts a server that answers a POST to the URL of the stream with this status.
    async fn refusing(
        status: &'static str,
        endpoint: &'static str,
        script: fn(&Value) -> Vec<Value>,
    ) -> Self {
        use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, _) = broadcast::channel::<String>(64);
        let posted: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (sender, seen) = (events.clone(), Arc::clone(&posted));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (sender, seen) = (sender.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut latest = Instant::now();
                    loop {
                        let (mut line, mut length) = (String::new(), 0);
                        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                            return;
                        }
                        // As a server that closes idle connections just as a request arrives.
                        if latest.elapsed() > PATIENCE {
                            return;
                        }
                        latest = Instant::now();
                        let request = line.clone();
                        while line != "\r\n" {
                            line.clear();
                            stream.read_line(&mut line).await.unwrap();
                            if let Some(value) = line.strip_prefix("content-length: ") {
                                length = value.trim().parse().unwrap();
                            }
                        }
                        if request.starts_with("GET") {
                            let head = format!(
                                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nevent: endpoint\ndata: {endpoint}\n\n"
                            );
                            let mut news = sender.subscribe();
                            stream.write_all(head.as_bytes()).await.unwrap();
                            while let Ok(event) = news.recv().await {
                                if event == "end"
                                    || stream.write_all(event.as_bytes()).await.is_err()
                                {
                                    return;
                                }
                            }
                            return;
                        }
                        let mut body = vec![0; length];
                        stream.read_exact(&mut body).await.unwrap();
                        if request.starts_with("POST /sse ") {
                            let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                            stream.write_all(head.as_bytes()).await.unwrap();
                            continue;
                        }
                        assert!(
                            request.starts_with("POST /messages?session=1 "),
                            "{request}"
                        );
                        let message: Value = serde_json::from_slice(&body).unwrap();
                        seen.lock().push(message.clone());
                        let accepted = "HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAccepted";
                        stream.write_all(accepted.as_bytes()).await.unwrap();
                        for answer in script(&message) {
                            let _ =
                                sender.send(format!("event: message\r\ndata: {answer}\r\n\r\n"));
                        }
                    }
                });
            }
        });
        Self {
            url: format!("http://{address}/sse"),
            posted,
            events,
        }
    }

    fn posted(&self, method: &str) -> Vec<Value> {
        let posted = self.posted.lock();
        posted
            .iter()
            .filter(|one| one["method"] == method)
            .cloned()
            .collect()
    }
}

fn answers(message: &Value) -> Vec<Value> {
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    match message["method"].as_str() {
        Some("initialize") => {
            let version = &message["params"]["protocolVersion"];
            vec![answer(
                json!({"protocolVersion": version, "capabilities": {"tools": {}}}),
            )]
        }
        Some("tools/call") => {
            let token = &message["params"]["_meta"]["progressToken"];
            vec![
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}),
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "foreign", "progress": 2}}),
                json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
                json!({"jsonrpc": "2.0", "id": "q", "method": "ping"}),
                answer(json!({"ok": true})),
                answer(json!({"again": true})),
            ]
        }
        _ => Vec::new(),
    }
}

fn answers_except_to_calls(message: &Value) -> Vec<Value> {
    match message["method"].as_str() {
        Some("tools/call") => Vec::new(),
        _ => answers(message),
    }
}

#[tokio::test]
async fn a_post_refused_with_400_404_or_405_leads_to_a_get_of_the_stream() {
    let refusals = ["400 Bad Request", "404 Not Found", "405 Method Not Allowed"];
    for (status, version) in refusals.into_iter().flat_map(|status| {
        [
            (status, Version::V2025_11_25),
            (status, Version::V2026_07_28),
        ]
    }) {
        let server = Sse::refusing(status, "/messages?session=1", answers).await;
        let fixture = Fixture::at(&server.url);
        let (session, _events) = fixture.open(version).await;
        assert_eq!(session.version(), Version::V2025_11_25, "{status}");
        let (outcome, _) = fixture
            .call(&session, "tools/call", json!({"name": "a"}))
            .await;
        assert_eq!(outcome.unwrap().unwrap().get(), r#"{"ok":true}"#);
    }
    // Servers of every protocol may answer with these statuses, so these statuses do not lead to a
    // GET.
    for status in ["401 Unauthorized", "500 Internal Server Error"] {
        let server = Sse::refusing(status, "/messages?session=1", answers).await;
        let fixture = Fixture::at(&server.url);
        let error = fixture.cannot_open(Version::V2025_11_25).await.to_string();
        assert!(error.contains(status), "{error}");
        assert!(server.posted("initialize").is_empty());
    }
}

#[tokio::test]
async fn posted_messages_are_answered_on_the_stream() {
    let server = Sse::start("/messages?session=1", answers).await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, mut unsolicited) = fixture.open(Version::V2024_11_05).await;
    assert_eq!(session.version(), Version::V2024_11_05);
    assert_eq!(server.posted("notifications/initialized").len(), 1);
    let params = json!({"name": "a", "_meta": {"progressToken": 5}});
    let (outcome, events) = fixture.call(&session, "tools/call", params).await;
    assert_eq!(outcome.unwrap().unwrap().get(), r#"{"ok":true}"#);
    let told: Vec<_> = events.iter().map(notification).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1["progress"], 1);
    assert_eq!(
        notification(&unsolicited.recv().await.unwrap()).1["progress"],
        2
    );
    let (method, _) = notification(&unsolicited.recv().await.unwrap());
    assert_eq!(method, "notifications/tools/list_changed");
    eventually("the ping is answered", || {
        let posted = server.posted.lock();
        posted
            .iter()
            .any(|one| one["id"] == "q" && one["result"] == json!({}))
    })
    .await;
    eventually("the second answer is dropped", || {
        fixture.dropped("unknown_id") == 1
    })
    .await;
}

#[tokio::test]
async fn a_message_is_not_posted_on_a_connection_that_the_server_may_be_closing() {
    let server = Sse::start("/messages?session=1", answers).await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, _events) = fixture.open(Version::V2025_11_25).await;
    for _ in 0..2 {
        tokio::time::sleep(PATIENCE + Duration::from_millis(100)).await;
        let result = fixture.result(&session, "tools/call", json!({})).await;
        assert_eq!(result, json!({"ok": true}));
    }
}

#[tokio::test]
async fn log_messages_and_requests_go_to_the_only_call_unless_the_session_is_shared() {
    each_row_async([false, true], async |is_shared| {
        let server = Sse::start("/messages?session=1", |message| {
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
            let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"});
            match message["method"].as_str() {
                Some("tools/call") => vec![log, question],
                None => vec![json!({"jsonrpc": "2.0", "id": 1, "result": {}})],
                Some(_) => answers(message),
            }
        })
        .await;
        let fixture = Fixture::new(&settings(&server.url));
        let (mut opening, mut unsolicited) = fixture.opening(Version::V2025_11_25);
        opening.container = opening.container.filter(|_| !is_shared);
        let session = fixture.transport().open(opening).await.unwrap();
        let permit = fixture.permit("tools/call", json!({"name": "a"})).await;
        let (sender, mut of_call) = Events::uncharged(8);
        let answering = async {
            let events = if is_shared {
                &mut unsolicited
            } else {
                &mut of_call
            };
            let (method, _) = notification(&events.recv().await.unwrap());
            assert_eq!(method, "notifications/message");
            let Some(Event::Request { reply, .. }) = events.recv().await else {
                panic!("no request of the server");
            };
            reply.send(Ok(raw(json!({})))).unwrap();
        };
        let asked = async { tokio::join!(session.request(permit, sender), answering).0 };
        let outcome = tokio::time::timeout(Duration::from_secs(10), asked).await;
        outcome.unwrap().unwrap().unwrap();
        assert!(of_call.try_recv().is_err());
    })
    .await;
}

/// Memory that is exhausted.
struct Exhausted;

impl MessageMemory for Exhausted {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        Err(Denial::new(Code::InspectionBusy, "busy"))
    }

    fn count(&self, _: &Denial) {}
}

#[tokio::test]
async fn a_long_answer_needs_memory_while_it_waits_for_its_call() {
    let server = Sse::start("/messages?session=1", |message| {
        match message["method"].as_str() {
            Some("tools/call") => {
                let result = json!({"text": "x".repeat(100_000)});
                vec![json!({"jsonrpc": "2.0", "id": message["id"], "result": result})]
            }
            _ => answers(message),
        }
    })
    .await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, _events) = fixture.open(Version::V2025_11_25).await;
    let permit = fixture.permit("tools/call", json!({"name": "a"})).await;
    let (events, _receiver) = Events::charged(Arc::new(Exhausted));
    let outcome = session.request(permit, events).await;
    let Err(MountError::Denied(denial)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(denial.code(), Code::InspectionBusy);
}

#[tokio::test]
async fn the_end_of_the_stream_ends_the_session_and_its_calls() {
    let server = Sse::start("/messages?session=1", answers_except_to_calls).await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, _events) = fixture.open(Version::V2025_11_25).await;
    let calling = fixture.call(&session, "tools/call", json!({"name": "a"}));
    let ending = async {
        eventually("the call is posted", || {
            server.posted("tools/call").len() == 1
        })
        .await;
        server.events.send("end".to_owned()).unwrap();
    };
    let ((outcome, _), ()) = tokio::join!(calling, ending);
    assert!(
        matches!(outcome, Err(MountError::Died { .. })),
        "{outcome:?}"
    );
    assert!(session.ended().is_cancelled());
}

#[tokio::test]
async fn a_call_outlasts_the_timeout_while_its_server_waits_for_an_answer_of_the_client() {
    let server = Sse::start("/messages?session=1", |message| {
        let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"});
        match message["method"].as_str() {
            Some("tools/call") => vec![question],
            None => vec![json!({"jsonrpc": "2.0", "id": 1, "result": message["result"]})],
            Some(_) => answers(message),
        }
    })
    .await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, _events) = fixture.open(Version::V2025_11_25).await;
    let permit = fixture.permit("tools/call", json!({"name": "a"})).await;
    let (sender, mut events) = Events::uncharged(1);
    let answering = async {
        let Some(Event::Request { reply, .. }) = events.recv().await else {
            panic!("no request of the server");
        };
        tokio::time::sleep(Duration::from_millis(2500)).await;
        reply.send(Ok(raw(json!({"ok": true})))).unwrap();
    };
    let (outcome, ()) = tokio::join!(session.request(permit, sender), answering);
    assert_eq!(outcome.unwrap().unwrap().get(), r#"{"ok":true}"#);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_a_time_out_on_a_silent_stream_ends_the_session() {
    let server = Sse::start("/messages?session=1", answers_except_to_calls).await;
    let fixture = Fixture::new(&settings(&server.url));
    let (session, _events) = fixture.open(Version::V2025_11_25).await;
    let permit = fixture
        .permit("tools/call", json!({"name": "dropped"}))
        .await;
    let calling = session.request(permit, Events::uncharged(1).0);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), calling)
            .await
            .is_err()
    );
    eventually("the call is cancelled", || {
        server.posted("notifications/cancelled").len() == 1
    })
    .await;
    let (outcome, _) = fixture
        .call(&session, "tools/call", json!({"name": "silent"}))
        .await;
    assert!(matches!(outcome, Err(MountError::TimedOut)), "{outcome:?}");
    assert!(session.ended().is_cancelled());
}

#[tokio::test]
async fn the_endpoint_must_have_the_origin_of_the_stream() {
    each_row_async(
        [
            "http://192.0.2.1/messages",
            "//192.0.2.1/messages",
            "https://127.0.0.1/messages",
            "\\\\192.0.2.1\\messages",
            "ftp://127.0.0.1/",
        ],
        async |endpoint| {
            let server = Sse::start(endpoint, answers).await;
            let error = Fixture::new(&settings(&server.url))
                .cannot_open(Version::V2025_11_25)
                .await;
            assert!(
                error.to_string().contains("another scheme, host or port"),
                "{endpoint}: {error}"
            );
        },
    )
    .await;
    let server = Sse::start("messages?session=1", answers).await;
    Fixture::new(&settings(&server.url))
        .open(Version::V2025_11_25)
        .await;
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_an_endpoint_event_is_refused() {
    let server = Server::start(|_| Scripted::events(vec![event(&json!({})), Part::Hold])).await;
    let error = Fixture::new(&settings(&server.url()))
        .cannot_open(Version::V2025_11_25)
        .await;
    assert!(error.to_string().contains("endpoint"), "{error}");
    eventually("the stream is closed", || server.open() == 0).await;
}
