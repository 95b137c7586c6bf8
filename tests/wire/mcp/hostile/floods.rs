//! Clients that open excessive numbers of sessions and streams.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use testkit::each_row;

use super::client::{Client, Era, FIRST, Gateway, SECOND, message, text};
use super::server::{McpServer, tool};
use crate::support::{SOON, eventually, read_reply};

/// The limit on the sessions of a container, and on its streams, from `src/mcp/gateway/limits.rs`.
const MOST: usize = 1024;
/// Limit on the growth of the proxy's resident memory, in KiB.
const GROWTH: u64 = 64 * 1024;

fn gateway(server: &McpServer) -> Gateway {
    Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }))
}

#[test]
fn a_flood_of_sessions_closes_none_of_another_container() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = gateway(&server);
    let other = Client::of(&gateway, Era::Legacy, SECOND).wait_for(&["kb_read"]);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["kb_read"]);
    let host = gateway.address;
    let body = client.initialize();
    let length = body.len();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = gateway.connect(FIRST);
    for number in 0..MOST + 100 {
        stream.write_all(request.as_bytes()).unwrap();
        let reply = read_reply(&mut stream).unwrap();
        assert_eq!(reply.status, 200, "{number}: {}", reply.text());
    }
    let sessions = gateway.proxy.metric("proxy_mcp_sessions", &[]);
    assert_eq!(sessions, (MOST + 1) as f64);
    // The least recently used sessions were closed, first of all the one that `client` opened
    // before the flood.
    let list = message(&1.into(), "tools/list", json!({})).to_string();
    assert_eq!(client.post(&[], list.as_bytes()).status, 404);
    text(&other.call("kb_read", json!({})));
    // The sessions of a container share one session with the server, and there are two containers.
    assert!(server.of("initialize").len() <= 2);
}

#[test]
fn streams_are_bounded_for_each_container() {
    raise_file_limit();
    let server = McpServer::start(vec![tool("read")]);
    let gateway = gateway(&server);
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_read"]);
    let other = Client::of(&gateway, Era::Modern, SECOND).wait_for(&["kb_read"]);
    let before = gateway.proxy.memory("VmRSS");
    let opened: Vec<_> = (0..MOST + 200).map(|at| listen(&client, at)).collect();
    let accepted = opened.iter().filter(|(_, status)| status == "200").count();
    let limited = opened.iter().filter(|(_, status)| status == "429").count();
    assert_eq!((accepted, limited), (MOST, 200));
    let grown = gateway.proxy.memory("VmHWM").saturating_sub(before);
    assert!(grown < GROWTH, "memory grew by {grown} KiB");
    let (_stream, status) = listen(&other, 0);
    assert_eq!(status, "200");
    text(&other.call("kb_read", json!({})));
    text(&client.call("kb_read", json!({})));
    drop(opened);
    // Closed streams no longer count against the limit.
    eventually("a stream is accepted", SOON, || {
        listen(&client, 0).1 == "200"
    });
}

/// Opens a stream; returns its connection and the status.
type Open<'a> = &'a dyn Fn() -> (TcpStream, String);

/// Subscriptions, GET streams of sessions and HTTP+SSE share one limit.
#[test]
fn each_kind_of_stream_counts_against_the_limit_of_a_container() {
    raise_file_limit();
    let server = McpServer::start(vec![tool("read")]);
    let gateway = gateway(&server);
    let modern = Client::open(&gateway, Era::Modern).wait_for(&["kb_read"]);
    let legacy = Client::open(&gateway, Era::Legacy);
    let get_stream = || {
        let accept = [("accept", "text/event-stream")];
        opened(legacy.send("GET", &accept, b""))
    };
    let http_sse = || {
        let mut stream = gateway.connect(FIRST);
        let host = gateway.address;
        let head = "accept: text/event-stream\r\nconnection: close";
        write!(
            stream,
            "GET /sse HTTP/1.1\r\nhost: {host}\r\n{head}\r\n\r\n"
        )
        .unwrap();
        opened(stream)
    };
    let subscription = || listen(&modern, MOST);
    let kinds: [(&str, Open<'_>); 3] = [
        ("subscription", &subscription),
        ("GET /mcp", &get_stream),
        ("GET /sse", &http_sse),
    ];
    let others: Vec<_> = (1..MOST).map(|at| listen(&modern, at)).collect();
    assert!(others.iter().all(|(_, status)| status == "200"));
    each_row([0, 1, 2], |at| {
        let (last, open) = &kinds[at];
        let mut held = None;
        eventually("the last stream is accepted", SOON, || {
            held = Some(open()).filter(|(_, status)| status == "200");
            held.is_some()
        });
        for (name, open) in &kinds {
            assert_eq!(open().1, "429", "{name} beside {last}");
        }
    });
}

/// Permits this process as many open files as it may have.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let files = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, files).unwrap();
}

/// Opens a subscription; returns its connection and the status.
fn listen(client: &Client<'_>, number: usize) -> (TcpStream, String) {
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let id = format!("listen-{number}");
    opened(client.begin(&id.into(), "subscriptions/listen", params))
}

/// A stream that was requested, and the status of the response.
fn opened(mut stream: TcpStream) -> (TcpStream, String) {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    (stream, String::from_utf8_lossy(&head[9..]).into_owned())
}
