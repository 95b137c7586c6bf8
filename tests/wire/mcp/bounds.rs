//! Clients over the limits of sessions and streams.

use serde_json::json;

use super::client::{Events, Gateway, POST, initialize, modern, request, write_request};
use crate::support::read_reply;

/// Limits from `src/mcp/gateway/limits.rs`.
const MAX_SESSIONS: usize = 1024;
const MAX_STREAMS: usize = 1024;

/// A gateway without a rate limit, so that only the MCP gateway's own limits apply.
fn unlimited() -> Gateway {
    Gateway::start_with(|setup| {
        setup.policy = Some(json!({ "version": 1, "rate_limits": { "enabled": false } }));
    })
}

#[test]
fn of_ten_thousand_sessions_the_newest_1024_stay_open_in_little_memory() {
    let gateway = unlimited();
    let oldest = gateway.session();
    let before = gateway.proxy.memory("VmRSS");
    let mut stream = gateway.connect();
    let mut newest = String::new();
    for _ in 0..10_000 {
        write_request(&mut stream, "POST /mcp", POST, &initialize().to_string());
        let reply = read_reply(&mut stream).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        newest = format!(
            "mcp-session-id: {}\r\n",
            reply.only("mcp-session-id").unwrap()
        );
    }
    let grown = gateway.proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 40_000, "{grown} KiB");
    let ping = request(1, "ping", json!({}));
    assert_eq!(gateway.post(&oldest, &ping).status, 404);
    assert_eq!(gateway.post(&newest, &ping).status, 200);
    let open = gateway.proxy.metric("proxy_mcp_sessions", &[]);
    assert_eq!(open as usize, MAX_SESSIONS);
    assert!(
        gateway
            .proxy
            .metric("proxy_mcp_limited_total", &["sessions"])
            > 8000.0
    );
}

#[test]
fn idle_streams_are_small_and_streams_over_the_limit_are_refused() {
    let gateway = unlimited();
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let listen = || modern(request(1, "subscriptions/listen", wanted.clone()));
    let (fields, message) = listen();
    drop(gateway.events(&fields, &message).next());
    let before = gateway.proxy.memory("VmRSS");
    let mut open: Vec<Events> = Vec::new();
    for _ in 0..1000 {
        let mut stream = gateway.events(&fields, &message);
        assert!(stream.next().is_some());
        open.push(stream);
    }
    let grown = gateway.proxy.memory("VmRSS").saturating_sub(before);
    assert!(
        grown < 30_000,
        "memory grew by {grown} KiB for 1000 streams"
    );
    for _ in 1000..MAX_STREAMS + 10 {
        open.push(gateway.events(&fields, &message));
    }
    let refused = open.iter().filter(|stream| stream.status == 429).count();
    assert!((9..=11).contains(&refused), "{refused}");
    let reply = gateway.post(&fields, &message);
    reply.assert_denied(429, "rate_limited", "Too many MCP streams");
    assert!(reply.header("retry-after").is_some());
    // The same container can still open a session.
    assert_eq!(gateway.post("", &initialize()).status, 200);
}
