//! Streaming of bodies, back-pressure, WebSockets and gRPC.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Request;
use testkit::each_row;

use crate::support::{Origin, Proxy, RawOrigin, Seen, Tls, eventually, frames, read_reply};

const HOST: &str = "api.example.com";
const MEGABYTE: usize = 1 << 20;

/// Upper bound on the bytes buffered between an origin and a client that does not read: in the
/// socket buffers of two connections on loopback, in HTTP/2 windows and in the HTTP libraries. By
/// Linux's defaults, each end of a connection buffers up to 6 MiB to receive and 4 MiB to send.
const MOST_UNREAD: u64 = 32 * MEGABYTE as u64;

/// Bound on the growth of the proxy's resident memory, in KiB.
const LEEWAY: u64 = 30 * 1024;

#[test]
fn events_arrive_within_100_ms_of_being_sent() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    write!(stream, "GET /events/20/50 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    let mut delays = Vec::new();
    for line in BufReader::new(stream).lines() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        if let Some(sent) = line.unwrap().strip_prefix("data: ") {
            delays.push(now - Duration::from_micros(sent.parse().unwrap()));
        }
        if delays.len() == 20 {
            break;
        }
    }
    assert!(
        delays
            .iter()
            .all(|delay| *delay < Duration::from_millis(100)),
        "{delays:?}"
    );
}

#[test]
fn a_download_of_300_mb_grows_memory_by_less_than_30_mib() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    assert_memory_holds(&proxy, || {
        each_row(["bytes", "chunked"], |kind| {
            let url = format!("https://{HOST}/{kind}/{}", 150 * MEGABYTE);
            let count = [
                "--silent",
                "--output",
                "/dev/null",
                "--write-out",
                "%{size_download}",
            ];
            let size = proxy.run("curl", &[&count[..], &[&url]].concat()).ok();
            assert_eq!(size, (150 * MEGABYTE).to_string());
        });
    });
}

#[test]
fn an_upload_of_300_mb_grows_memory_by_less_than_30_mib() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    assert_memory_holds(&proxy, || {
        each_row(["--http1.1", "--http2"], |version| {
            let mut curl = proxy
                .command("curl")
                .args(["--silent", "--fail", version, "--output", "/dev/null"])
                .args(["--upload-file", "-", &format!("https://{HOST}/echo")])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let mut zeros = std::io::repeat(0).take(150 * MEGABYTE as u64);
            std::io::copy(&mut zeros, &mut curl.stdin.take().unwrap()).unwrap();
            assert!(curl.wait().unwrap().success());
        });
    });
    let received: Vec<u64> = origin.seen().iter().map(|seen| seen.received()).collect();
    assert_eq!(received[1..], [150 * MEGABYTE as u64; 2]);
}

/// Tests HTTP/1.1 on both sides of the proxy, then HTTP/2 on both sides.
#[test]
fn a_client_that_does_not_read_holds_the_origin_back() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    assert_memory_holds(&proxy, || {
        let mut http1 = proxy.tls(HOST);
        let head = "GET /bytes/500000000 HTTP/1.1\r\nHost:";
        write!(http1, "{head} {HOST}\r\n\r\n").unwrap();
        assert_held_back(&origin, "HTTP/1.1");
        // When the client reads, the download continues.
        let more = 2 * MOST_UNREAD;
        let read = std::io::copy(&mut http1.take(more), &mut std::io::sink()).unwrap();
        assert_eq!(read, more);

        let mut http2 = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
        http2.write_all(&frames::opening()).unwrap();
        // The client raises both windows to the maximum of 2^31 - 1 bytes.
        let window = (i32::MAX - 65_535).to_be_bytes();
        let request = frames::get(HOST, "/bytes/500000000");
        let opened = [
            frames::frame(frames::WINDOW_UPDATE, 0, 0, &window),
            frames::request(1, &request),
            frames::frame(frames::WINDOW_UPDATE, 0, 1, &window),
        ];
        http2.write_all(&opened.concat()).unwrap();
        assert_held_back(&origin, "HTTP/2.0");
    });
}

/// Asserts that the latest download, which reached the origin over `version`, stops at fewer than
/// [`MOST_UNREAD`] bytes.
#[track_caller]
fn assert_held_back(origin: &Origin, version: &str) {
    let mut before = 0;
    eventually("the origin stops sending", Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(500));
        let now = origin.seen().last().map_or(0, Seen::sent);
        let still = now > 0 && now == before;
        before = now;
        still
    });
    assert_eq!(origin.seen().last().unwrap().version, version);
    assert!(
        before < MOST_UNREAD,
        "the origin could send {before} bytes to a client that reads none"
    );
}

#[test]
fn an_upload_streams_while_it_is_still_being_sent() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked");
    write!(stream, "{head}\r\n\r\n5\r\nfirst\r\n").unwrap();
    eventually("the first chunk arrives", Duration::from_secs(5), || {
        origin
            .seen()
            .first()
            .is_some_and(|seen| seen.received() == 5)
    });
    write!(stream, "6\r\nsecond\r\n0\r\n\r\n").unwrap();
    let reply = read_reply(&mut stream).unwrap();
    assert_eq!(reply.json()["body"], "firstsecond");
}

#[test]
fn a_response_is_delivered_before_the_upload_ends() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    let head = format!("POST /early HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000000");
    write!(stream, "{head}\r\n\r\nonly the beginning").unwrap();
    let reply = read_reply(&mut stream).unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, "early"));
}

#[test]
fn a_client_that_expects_100_continue_gets_it_before_it_sends() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5");
    write!(stream, "{head}\r\nExpect: 100-continue\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 100);
    write!(stream, "hello").unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().json()["body"], "hello");
}

#[test]
fn one_tunnel_carries_many_requests_over_one_upstream_connection() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    for number in 0..5 {
        write!(
            stream,
            "GET /echo/{number} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
        )
        .unwrap();
        let echo = read_reply(&mut stream).unwrap().json();
        assert_eq!(echo["target"], format!("/echo/{number}"));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_websocket_echoes_through_a_tunnel_and_is_audited_with_its_bytes() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    open_websocket(&mut stream, HOST, "/websocket");
    // A masked text frame, with a mask of zeros.
    for message in ["hello", "again"] {
        let mut frame = vec![0x81, 0x80 | 5, 0, 0, 0, 0];
        frame.extend(message.as_bytes());
        stream.write_all(&frame).unwrap();
        let mut echo = vec![0; frame.len()];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, frame);
    }
    drop(stream);
    let line = proxy.audited(serde_json::json!({ "kind": "websocket", "host": HOST }));
    assert!(line["bytes_in"].as_u64().unwrap() >= 22, "{line}");
    assert!(line["bytes_out"].as_u64().unwrap() >= 22, "{line}");
}

#[test]
fn a_websocket_opens_over_plain_http_too() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.dial();
    open_websocket(
        &mut stream,
        "plain.example.com",
        "http://plain.example.com/websocket",
    );
    stream.write_all(b"\x81\x82\0\0\0\0hi").unwrap();
    let mut echo = [0; 8];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"\x81\x82\0\0\0\0hi");
}

#[test]
fn a_websocket_is_refused_if_the_allowlist_entry_forbids_it() {
    let origin = Origin::start();
    let mut setup = crate::support::Setup::new(&origin);
    setup.proxy["upstream"]["hosts"]["quiet.example.com"] = origin.https.to_string().into();
    setup.allow(serde_json::json!({ "domain": "quiet.example.com", "websocket": false }));
    let proxy = setup.start();
    let reply = proxy.https(
        "quiet.example.com",
        websocket("quiet.example.com", "/websocket"),
    );
    reply.assert_denied(426, "websocket_not_allowed", "");
    assert_eq!(reply.header("upgrade"), Some("HTTP/1.1"));
    assert_eq!(reply.header("connection"), Some("upgrade"));
    assert_eq!(
        proxy.https_get("quiet.example.com", "/echo", &[]).status,
        200
    );
    assert_eq!(origin.only().target, "/echo");
}

#[test]
fn an_invalid_websocket_opening_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let opening = websocket(HOST, "/websocket");
    each_row(
        [
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="),
            ("Version: 13", "Version: 8"),
            (
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13",
            ),
            ("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello"),
        ],
        |(from, to)| {
            let reply = proxy.https(HOST, opening.replace(from, to));
            reply.assert_denied(400, "malformed_request", "");
        },
    );
    assert!(origin.seen().is_empty());
}

#[test]
fn a_101_with_a_wrong_accept_key_opens_no_websocket() {
    let origin = Origin::start();
    let raw = RawOrigin::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096])?;
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n";
        stream.write_all(switch.as_bytes())?;
        stream.read(&mut [0; 4096]).map(drop)
    });
    let mut setup = crate::support::Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let opening = websocket("raw.example.com", "http://raw.example.com/");
    let reply = proxy.exchange(opening);
    reply.assert_denied(502, "upstream_unreachable", "");
}

#[test]
fn the_chunked_body_of_a_get_arrives() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let head = format!("GET /echo HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked");
    let reply = proxy.https(HOST, format!("{head}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    assert_eq!(reply.json()["body"], "hello");
}

#[test]
fn grpc_trailers_arrive_over_http2() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let request = Request::post(format!("https://{HOST}/grpc/Service/Call"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body("\0\0\0\0\x05hello")
        .unwrap();
    let reply = proxy.h2(HOST, request).unwrap();
    assert_eq!(
        (reply.status.as_u16(), &reply.body[5..]),
        (200, &b"hello"[..])
    );
    assert_eq!(reply.trailers["grpc-status"], "0");
    assert_eq!(origin.only().header("te"), Some("trailers"));
}

pub fn websocket(host: &str, target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

pub fn open_websocket(stream: &mut (impl Read + Write), host: &str, target: &str) {
    stream
        .write_all(websocket(host, target).as_bytes())
        .unwrap();
    let reply = read_reply(stream).unwrap();
    assert_eq!(reply.status, 101, "{reply:?}");
    let accept = reply.header("sec-websocket-accept");
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
}

/// Measures resident memory after a first request, runs `work`, and asserts that the peak of
/// resident memory exceeds the measured value by less than [`LEEWAY`].
fn assert_memory_holds(proxy: &Proxy, work: impl FnOnce()) {
    let mut warm: Tls = proxy.tls(HOST);
    write!(warm, "GET /bytes/1000000 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut warm).unwrap().body.len(), 1_000_000);
    let before = proxy.memory("VmRSS");
    work();
    let moved = proxy.memory("VmHWM").saturating_sub(before);
    assert!(
        moved < LEEWAY,
        "memory grew by {moved} KiB from {before} KiB"
    );
}
