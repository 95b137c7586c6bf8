//! Servers that send endlessly, never or too late: their effect on memory and on other servers.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, ERAS, Era, Gateway, SECOND, text};
use super::isolation::probing;
use super::server::{Answer, McpServer, Seen, event, text_result, tool};

/// Limit on the growth of the proxy's resident memory, in KiB: room for several messages of the
/// maximum length (8 MiB) and their parsed forms.
const GROWTH: u64 = 96 * 1024;
/// Time limit of a call to another server during a flood, long enough for a busy machine.
const MEANWHILE: Duration = Duration::from_secs(10);

/// A gateway with a flooding server, whose timeout is 2 s, and a well-behaved server.
fn beside(flood: &McpServer, quiet: &McpServer) -> Gateway {
    let mut mount = flood.mount();
    mount["timeout"] = "2s".into();
    Gateway::start(&json!({ "mcpServers": { "bad": mount, "kb": quiet.mount() } }))
}

fn quiet() -> McpServer {
    McpServer::start(vec![tool("read")])
}

/// Asserts that both containers can call the well-behaved server.
fn assert_others_go_on(gateway: &Gateway) {
    for source in [super::client::FIRST, SECOND] {
        let client = Client::of(gateway, Era::Legacy, source);
        let began = Instant::now();
        text(&client.call("kb_read", json!({})));
        let took = began.elapsed();
        assert!(took < MEANWHILE, "{source}: {took:?}");
    }
}

/// Writes until the proxy closes the connection or has read about 1 GiB.
fn endless(stream: &mut TcpStream, piece: &[u8]) -> std::io::Result<()> {
    const TOO_MUCH: usize = 1 << 30;
    for _ in 0..TOO_MUCH / piece.len() {
        stream.write_all(piece)?;
    }
    Ok(())
}

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
    connection: close\r\n\r\n";

/// The flood that the called tool names; `None` for a request that is not a tool call.
fn flood(seen: &Seen) -> Option<Answer> {
    let id = seen.message["id"].clone();
    let write: fn(&mut TcpStream) -> std::io::Result<()> = match seen.tool() {
        "json" => |stream| {
            stream.write_all(HEAD)?;
            stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"")?;
            endless(stream, &[b'a'; 65_536])
        },
        "values" => |stream| {
            stream.write_all(HEAD)?;
            stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":[")?;
            endless(stream, &b"{},".repeat(20_000))
        },
        "head" => |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ")?;
            endless(stream, &[b'a'; 65_536])
        },
        _ => {
            let (what, id) = (seen.tool().to_owned(), id);
            let answer = Answer::stream(move |stream, _| {
                let log = json!({ "level": "error", "data": "x".repeat(1000) });
                let piece = match &*what {
                    "event" => "data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".repeat(1000),
                    "comments" => ": nothing at all\n\n".repeat(1000),
                    "logs" => notification("notifications/message", &log).repeat(50),
                    "changes" => {
                        notification("notifications/tools/list_changed", &json!({})).repeat(500)
                    }
                    "questions" => (0..200).map(ping).collect::<String>(),
                    "answers" => {
                        let other = json!({
                            "jsonrpc": "2.0", "id": format!("not {id}"), "result": text_result("x"),
                        });
                        event(&other).repeat(200)
                    }
                    _ => return Ok(()),
                };
                endless(stream, piece.as_bytes())
            });
            return (!seen.tool().is_empty()).then_some(answer);
        }
    };
    Some(Answer::Raw(Box::new(move |stream, _| write(stream))))
}

fn notification(method: &str, params: &Value) -> String {
    event(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
}

fn ping(number: u32) -> String {
    event(&json!({ "jsonrpc": "2.0", "id": number, "method": "ping" }))
}

const FLOODS: [&str; 9] = [
    "json",
    "values",
    "head",
    "event",
    "comments",
    "logs",
    "changes",
    "questions",
    "answers",
];

#[test]
fn an_endless_answer_is_cut_off_and_other_servers_work() {
    let (bad, good) = (
        McpServer::scripted(FLOODS.map(tool).to_vec(), flood),
        quiet(),
    );
    each_row(ERAS, |era| {
        let gateway = beside(&bad, &good);
        let client = Client::open(&gateway, era).wait_for(&["bad_json", "kb_read"]);
        let other = Client::of(&gateway, era, SECOND).wait_for(&["kb_read"]);
        text(&other.call("kb_read", json!({})));
        let before = gateway.proxy.memory("VmRSS");
        for name in FLOODS {
            let began = Instant::now();
            let params = json!({ "name": format!("bad_{name}"), "arguments": {} });
            let stream = client.begin(&format!("flood-{name}").into(), "tools/call", params);
            assert_others_go_on(&gateway);
            let ended = read_to_end(stream);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(20), "{name}: {took:?}");
            assert!(ended.contains("\"error\""), "{name}: {ended}");
        }
        let grown = gateway.proxy.memory("VmHWM").saturating_sub(before);
        assert!(grown < GROWTH, "{era:?}: memory grew by {grown} KiB");
    });
}

/// Reads until the end; returns the last 4 KiB.
fn read_to_end(mut stream: TcpStream) -> String {
    use std::io::Read;
    let (mut tail, mut piece) = (Vec::new(), [0; 65_536]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        tail.extend(&piece[..read]);
        let surplus = tail.len().saturating_sub(4096);
        tail.drain(..surplus);
    }
    String::from_utf8_lossy(&tail).into_owned()
}

#[test]
fn an_endless_list_is_bounded_and_other_servers_work() {
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    let bad = McpServer::scripted(Vec::new(), move |seen| {
        (seen.method() == "tools/list").then(|| {
            let page = counted.fetch_add(1, Ordering::SeqCst);
            let name = |at: usize| format!("t{page}-{at}");
            let tools = (0..500).map(|at| {
                let mut tool = tool(&name(at));
                tool["description"] = "d".repeat(1000).into();
                tool
            });
            Answer::Result(json!({
                "tools": tools.collect::<Vec<_>>(), "nextCursor": format!("c{page}"),
                "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            }))
        })
    });
    let good = quiet();
    let gateway = beside(&bad, &good);
    let before = gateway.proxy.memory("VmRSS");
    // The gateway divides its own list into pages of at most 2 MiB (`src/mcp/core/lists.rs`).
    for source in [super::client::FIRST, SECOND] {
        let client = Client::of(&gateway, Era::Legacy, source);
        let page = client.exchange("tools/list", json!({}));
        assert_eq!(page.status, 200);
        assert!(page.body.len() < 3 << 20, "{} bytes", page.body.len());
    }
    assert_others_go_on(&gateway);
    crate::support::eventually("no further page is read", Duration::from_secs(20), || {
        let asked = pages.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1500));
        asked > 1 && pages.load(Ordering::SeqCst) == asked
    });
    // For each container, the gateway reads at most 100 pages, 10,000 tools and 16 MiB of a list
    // (`src/mcp/mounts/pages.rs`). With 500 tools on a page, it stops after about 20 pages.
    let asked = pages.load(Ordering::SeqCst);
    assert!(asked <= 100, "{asked} pages");
    let grown = gateway.proxy.memory("VmHWM").saturating_sub(before);
    assert!(grown < GROWTH, "memory grew by {grown} KiB");
}

#[test]
fn a_missing_or_late_answer_affects_only_its_own_call() {
    let bad = McpServer::scripted(vec![tool("never"), tool("late"), tool("soon")], |seen| {
        let id = seen.message["id"].clone();
        let name = seen.tool().to_owned();
        matches!(&*name, "never" | "late").then(|| {
            Answer::Raw(Box::new(move |stream, _| {
                let wait = if name == "late" { 3 } else { 30 };
                std::thread::sleep(Duration::from_secs(wait));
                let result = json!({ "jsonrpc": "2.0", "id": id, "result": text_result("late") });
                let body = result.to_string();
                stream.write_all(HEAD)?;
                stream.write_all(body.as_bytes())
            }))
        })
    });
    let good = quiet();
    let gateway = beside(&bad, &good);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["bad_never", "kb_read"]);
        let _other = Client::of(&gateway, era, SECOND).wait_for(&["kb_read"]);
        for name in ["bad_never", "bad_late"] {
            let began = Instant::now();
            let params = json!({ "name": name, "arguments": {} });
            let id = format!("{era:?}-{name}");
            let mut stream = client.begin(&id.into(), "tools/call", params);
            assert_others_go_on(&gateway);
            let reply = crate::support::read_reply(&mut stream).unwrap();
            let error = super::client::response(&reply);
            assert_eq!(error["error"]["data"]["code"], "tool_timeout", "{error}");
            assert_eq!(error["error"]["data"]["status"], 504);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(6), "{name}: {took:?}");
        }
        // Waits until the late answer has arrived: the next call must get its own answer.
        std::thread::sleep(Duration::from_secs(2));
        assert!(text(&client.call("bad_soon", json!({}))).starts_with("\"soon\""));
    });
}

#[test]
fn a_flooding_stdio_server_is_bounded_and_other_servers_work() {
    let good = quiet();
    each_row(["stderr", "stdout", "notifications"], |kind| {
        let mut probe = probing();
        probe["timeout"] = "5s".into();
        let gateway = Gateway::start(&json!({
            "mcpServers": { "p": probe, "kb": good.mount() },
        }));
        let client = Client::open(&gateway, Era::Legacy).wait_for(&["p_flood", "kb_read"]);
        let _other = Client::of(&gateway, Era::Legacy, SECOND).wait_for(&["kb_read"]);
        let before = gateway.proxy.memory("VmRSS");
        let params = json!({ "name": "p_flood", "arguments": { "kind": kind } });
        let stream = client.begin(&"flood".into(), "tools/call", params);
        assert_others_go_on(&gateway);
        let ended = read_to_end(stream);
        // A flood on stderr is not an error: the call gets its result, or times out.
        let is_answered = ended.contains("\"error\"") || kind == "stderr";
        assert!(is_answered, "{ended}");
        assert_others_go_on(&gateway);
        let grown = gateway.proxy.memory("VmHWM").saturating_sub(before);
        assert!(grown < GROWTH, "{kind}: memory grew by {grown} KiB");
        let log = gateway.proxy.log().len();
        assert!(log < 2 << 20, "{kind}: the log has {log} bytes");
    });
}
/// A server that sends log messages of 1 MB without end, outside calls.
fn logging() -> McpServer {
    McpServer::scripted(vec![tool("x")], |seen| {
        (seen.http == "GET").then(|| {
            Answer::stream(|stream, _| {
                let log = json!({ "level": "error", "data": "x".repeat(1_000_000) });
                endless(
                    stream,
                    notification("notifications/message", &log).as_bytes(),
                )
            })
        })
    })
}

#[test]
fn large_messages_for_a_client_that_stops_reading_take_bounded_memory() {
    let (logs, good) = (logging(), quiet());
    let cells = [
        ("stdio", Era::Legacy),
        ("stdio", Era::Modern),
        ("http", Era::Legacy),
    ];
    each_row(cells, |(transport, era)| {
        let mut mount = match transport {
            "stdio" => probing(),
            _ => logs.mount(),
        };
        mount["timeout"] = "60s".into();
        let gateway = Gateway::start(&json!({ "mcpServers": { "p": mount, "kb": good.mount() } }));
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        let _other = Client::of(&gateway, Era::Legacy, SECOND).wait_for(&["kb_read"]);
        let before = gateway.proxy.memory("VmRSS");
        let unread = match transport {
            "stdio" => {
                let meta = json!({ "progressToken": 1 });
                let arguments = json!({ "kind": "large" });
                let params = json!({ "name": "p_flood", "arguments": arguments, "_meta": meta });
                client
                    .wait_for(&["p_flood"])
                    .begin(&"flood".into(), "tools/call", params)
            }
            _ => client.send("GET", &[("accept", "text/event-stream")], b""),
        };
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            assert_others_go_on(&gateway);
        }
        let grown = gateway.proxy.memory("VmHWM").saturating_sub(before);
        assert!(grown < GROWTH, "memory grew by {grown} KiB");
        drop(unread);
    });
}
