//! Limits on bodies that are buffered and judged: bytes, time, JSON values and memory.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use testkit::each_row;

use crate::bodies;
use crate::support::frames::{self, DATA, END_HEADERS, HEADERS, RST_STREAM, frame};
use crate::support::{
    Origin, Proxy, RawOrigin, SOON, Setup, Tls, eventually, handshake, read_reply,
};

const MB: usize = 1 << 20;
const API: &str = "api.example.com";
const GIT: &str = "git.example.com";
/// Address of a second sandbox, which does not attack.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Requests whose bodies are judged: host, path, and the first bytes of a body.
const JUDGED: [(&str, &str, &str); 4] = [
    (
        GIT,
        "/acme/web.git/info/lfs/objects/batch",
        "{\"operation\":",
    ),
    (GIT, "/acme/web.git/git-receive-pack", "0fff"),
    (API, "/graphql", "{\"query\":"),
    (API, "/repos/acme/web/issues", "{\"title\":"),
];

struct Fixture {
    origin: Origin,
    proxy: Proxy,
}

fn start(limits: serde_json::Value) -> Fixture {
    let origin = Origin::start();
    origin.create_repository("acme/web");
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    setup.proxy["limits"] = limits;
    setup.proxy["limits"]["tunnels_per_second"] = 1000.into();
    let hosts = json!([{ "host": GIT, "api": API }]);
    setup.policy = Some(json!({
        "version": 1,
        "git": { "hosts": hosts },
        "rate_limits": { "enabled": false },
    }));
    let proxy = setup.start();
    for (address, id) in [("127.0.0.1", "greedy"), ("127.0.0.2", "other")] {
        proxy.register_as(
            json!({ "container_ip": address, "container_id": id, "repos": ["acme/web"] }),
        );
    }
    Fixture { origin, proxy }
}

fn head(host: &str, path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
}

fn tls_from(proxy: &Proxy, source: Ipv4Addr, host: &str) -> Tls {
    let (reply, stream) = proxy.connect_from(source, &format!("{host}:443"));
    assert_eq!(reply.status, 200, "{reply:?}");
    handshake(stream, host, proxy.tls_config(&["http/1.1"])).unwrap()
}

/// Sends small requests from the other sandbox, one at a time, until `done` returns true; `done`
/// gets the number of requests so far. Returns the 99th percentile of the requests' durations.
fn p99_until(proxy: &Proxy, done: impl Fn(usize) -> bool) -> Duration {
    let mut stream = tls_from(proxy, OTHER, "other.example.com");
    let mut took = Vec::new();
    while !done(took.len()) {
        let begun = Instant::now();
        stream
            .write_all(b"GET /zen HTTP/1.1\r\nHost: other.example.com\r\n\r\n")
            .unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, 200);
        took.push(begun.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    took.sort_unstable();
    took[took.len() - 1 - took.len() / 100]
}

#[test]
fn two_lfs_bombs_cost_less_than_64_mb_and_keep_no_other_container_waiting() {
    let objects = |object: &str| {
        let mut body = "{\"operation\":\"upload\",\"objects\":[".to_owned();
        body += &format!("{object},").repeat((8 * MB - 10_000) / (object.len() + 1));
        body + object + "]}"
    };
    let unknown = "a".repeat(4000);
    let long = format!("{{\"oid\":\"ab\",\"size\":1,\"path\":\"{unknown}\"}}");
    each_row(
        [
            (objects("{\"\":0}"), 413, "inspect_values"),
            (objects("{}"), 413, "inspect_values"),
            (objects("[]"), 413, "inspect_values"),
            (objects(&long), 200, ""),
        ],
        |(body, status, limit)| {
            let Fixture { origin, proxy } = start(json!({}));
            let quiet = p99_until(&proxy, |count| count == 200);
            let before = proxy.memory("VmHWM");
            let done = AtomicBool::new(false);
            let bomb = || {
                let fields = format!("Content-Length: {}\r\n", body.len());
                let head = head(GIT, JUDGED[0].1, &fields);
                for _ in 0..3 {
                    let mut stream = proxy.tls(GIT);
                    let sent = stream
                        .write_all(head.as_bytes())
                        .and_then(|()| stream.write_all(body.as_bytes()));
                    let reply = read_reply(&mut stream)
                        .unwrap_or_else(|error| panic!("{sent:?}, {error}: {}", &body[..60]));
                    assert_eq!(reply.status, status, "{}", reply.text());
                    if status == 413 {
                        assert_eq!(reply.json()["code"], "body_too_large_to_inspect");
                        assert_eq!(reply.json()["limit"], limit);
                        assert!(
                            reply.json()["message"].is_string(),
                            "git-lfs needs a message to show"
                        );
                    }
                }
            };
            let loud = || {
                done.store(false, Ordering::Relaxed);
                std::thread::scope(|scope| {
                    let bombs = [scope.spawn(bomb), scope.spawn(bomb)];
                    let p99 = scope.spawn(|| p99_until(&proxy, |_| done.load(Ordering::Relaxed)));
                    let bombs = bombs.map(|bomb| bomb.join());
                    done.store(true, Ordering::Relaxed);
                    bombs.into_iter().for_each(|bomb| bomb.unwrap());
                    p99.join().unwrap()
                })
            };
            // Other load on the machine can only raise the percentile of a round, so the test takes
            // the lowest of three.
            let most = 2 * quiet + Duration::from_millis(50);
            let rounds: Vec<_> = (0..3).map(|_| loud()).collect();
            let grown = (proxy.memory("VmHWM") - before) / 1024;
            assert!(grown < 64, "memory grew by {grown} MB for {}", &body[..60]);
            let least = rounds.iter().min().unwrap();
            assert!(
                *least < most,
                "{rounds:?} with bombs, {quiet:?} without: {}",
                &body[..60]
            );
            drop(origin);
        },
    );
}

#[test]
fn a_trickling_request_body_is_denied_at_the_inspection_timeout() {
    let Fixture { origin, proxy } = start(json!({ "inspect_timeout": "1s" }));
    each_row(JUDGED, |(host, path, beginning)| {
        let mut stream = proxy.tls(host);
        let begun = Instant::now();
        let head = head(host, path, "Content-Length: 1000\r\n");
        stream.write_all((head + beginning).as_bytes()).unwrap();
        stream
            .sock
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let reply = loop {
            match read_reply(&mut stream) {
                Ok(reply) => break reply,
                Err(_) => assert!(begun.elapsed() < SOON, "{path}: no answer in time"),
            }
            let _ = stream.write_all(b" ");
        };
        reply.assert_denied(
            408,
            "body_timeout",
            "The request body was not complete within 1",
        );
        assert_eq!(reply.header("connection"), Some("close"), "{path}");
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(900), "{path}: {took:?}");
        assert!(took < SOON, "{path}: {took:?}");
        stream.sock.set_read_timeout(Some(SOON)).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{path}: more bytes follow the response");
    });
    assert!(proxy.metric("proxy_inspection_rejected_total", &["timeout"]) >= 4.0);
    origin.assert_untouched();
}

#[test]
fn over_http2_a_body_timeout_resets_only_its_stream_with_the_code_no_error() {
    let Fixture { origin, proxy } = start(json!({ "inspect_timeout": "1s" }));
    each_row(JUDGED, |(host, path, beginning)| {
        let mut stream = proxy.tls_as(host, host, &["h2"]).unwrap();
        let mut opening = frames::opening();
        opening.extend(frame(HEADERS, END_HEADERS, 1, &frames::post(host, path)));
        opening.extend(frame(DATA, 0, 1, beginning.as_bytes()));
        stream.write_all(&opening).unwrap();
        let mut kinds = Vec::new();
        // Collects the frame types of the response, up to the RST_STREAM that follows it.
        let reason = loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).unwrap();
            if head[3] == RST_STREAM {
                break payload;
            }
            kinds.push(head[3]);
        };
        assert!(
            kinds.contains(&HEADERS) && kinds.contains(&DATA),
            "{path}: {kinds:?}"
        );
        assert_eq!(reason, [0, 0, 0, 0], "{path}: NO_ERROR");
        assert!(!kinds.contains(&frames::GOAWAY), "{path}: {kinds:?}");
    });
    proxy.audited(json!({ "code": "body_timeout", "status": 408 }));
    origin.assert_untouched();
}

#[test]
fn bodies_of_one_container_take_at_most_a_quarter_of_the_memory_and_another_can_push() {
    let Fixture { origin, proxy } = start(json!({ "inspect_memory": "32MB" }));
    let before = proxy.memory("VmHWM");
    let path = JUDGED[0].1;
    let beginning = head(GIT, path, &format!("Content-Length: {}\r\n", 8 * MB));
    let part = vec![b' '; MB];
    let mut held = Vec::new();
    let mut refused = 0;
    let reserved = || proxy.metric("proxy_inspection_memory_bytes", &[]) as usize;
    for _ in 0..200 {
        let mut stream = proxy.tls(GIT);
        // The write fails if the proxy refuses the body and closes the connection meanwhile.
        let sent = stream
            .write_all(beginning.as_bytes())
            .and_then(|()| stream.write_all(&part[..MB / 2]));
        stream
            .sock
            .set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
        let mut answer = None;
        eventually("the body is refused or held", SOON, || {
            answer = read_reply(&mut stream).ok();
            answer.is_some() || reserved() >= (held.len() + 1) * MB / 2
        });
        match answer {
            Some(reply) => {
                let sentence = "Too many request bodies are being inspected";
                reply.assert_denied(503, "inspection_busy", sentence);
                assert_eq!(reply.header("retry-after"), Some("1"));
                assert!(
                    reply.json()["message"].is_string(),
                    "git-lfs needs a message to show"
                );
                refused += 1;
            }
            None => {
                sent.unwrap();
                held.push(stream);
            }
        }
    }
    let reserved = reserved();
    assert!(reserved <= 8 * MB, "{reserved} bytes are reserved");
    assert!(
        (4..=16).contains(&held.len()),
        "{} bodies are held",
        held.len()
    );
    assert!(refused > 150, "{refused} bodies were refused");
    assert!(proxy.metric("proxy_inspection_rejected_total", &["memory"]) >= 150.0);
    let grown = (proxy.memory("VmHWM") - before) / 1024;
    assert!(grown < 40, "{grown} MB");

    let mut push = tls_from(&proxy, OTHER, GIT);
    let zero = "0".repeat(40);
    let line = format!("{zero} {} refs/heads/main\0 report-status", "1".repeat(40));
    let body = format!("{:04x}{line}0000", line.len() + 4);
    let fields = format!(
        "Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\n",
        body.len()
    );
    let request = head(GIT, "/acme/web.git/git-receive-pack", &fields) + &body;
    push.write_all(request.as_bytes()).unwrap();
    assert_eq!(
        read_reply(&mut push).unwrap().header("x-proxy-denied"),
        None
    );
    let seen = origin.seen();
    assert!(
        seen.iter()
            .any(|seen| seen.target.ends_with("/git-receive-pack"))
    );

    drop(held);
    eventually("the memory is released", SOON, || {
        proxy.metric("proxy_inspection_memory_bytes", &[]) == 0.0
    });
}

#[test]
fn a_content_length_over_the_inspection_limit_is_refused() {
    let Fixture { origin, proxy } = start(json!({ "inspect_body_bytes": "4KB" }));
    // The limit does not apply to the length of a push, whose pack is not buffered.
    let judged = JUDGED.iter().filter(|(_, path, _)| !path.ends_with("pack"));
    for (host, path, _) in judged {
        let reply = proxy.https(host, head(host, path, "Content-Length: 4097\r\n"));
        reply.assert_denied(
            413,
            "body_too_large_to_inspect",
            "Body too large to inspect",
        );
        assert_eq!(reply.json()["limit"], "inspect_body_bytes", "{path}");
        assert_eq!(reply.json()["limit_bytes"], 4096, "{path}");
    }
    assert!(proxy.metric("proxy_inspection_rejected_total", &["bytes"]) >= 3.0);
    origin.assert_untouched();
}

#[test]
fn a_trickling_response_body_is_denied_at_the_inspection_timeout() {
    let slow = RawOrigin::start(|mut stream| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"objects\":")?;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all(b" ")?;
        }
    });
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    setup.host("lfs.example.com", slow.address);
    setup.proxy["limits"] = json!({ "inspect_timeout": "1s" });
    setup.policy = Some(json!({ "version": 1, "git": { "hosts": ["lfs.example.com"] } }));
    let proxy = setup.start();
    proxy.register_as(
        json!({ "container_ip": "127.0.0.1", "container_id": "web", "repos": ["acme/web"] }),
    );
    let body = "{\"operation\":\"download\",\"objects\":[]}";
    let reply = proxy.exchange(format!(
        "POST http://lfs.example.com{} HTTP/1.1\r\nHost: lfs.example.com\r\n\
         Content-Length: {}\r\n\r\n{body}",
        JUDGED[0].1,
        body.len()
    ));
    reply.assert_denied(
        504,
        "upstream_timeout",
        "The response body of lfs.example.com",
    );
    assert_eq!(
        proxy.metric("proxy_inspection_rejected_total", &["timeout"]),
        1.0
    );
    assert_eq!(proxy.metric("proxy_inspection_memory_bytes", &[]), 0.0);
}

/// For each encoding, about `padding` bytes that decode to nothing, then a body that decodes to
/// 64 MiB.
fn padded_bombs(padding: usize) -> [(&'static str, Vec<u8>); 3] {
    let mut zeros = GzEncoder::new(Vec::new(), Compression::best());
    zeros.write_all(&vec![0; 64 * MB]).unwrap();
    let zeros = zeros.finish().unwrap();
    let empty = GzEncoder::new(Vec::new(), Compression::best())
        .finish()
        .unwrap();
    let gzip = [empty.repeat(padding / empty.len()), zeros].concat();
    let frame = [&*bodies::zstd_header(22), &[1, 0, 0]].concat();
    let zstd = [
        frame.repeat(padding / frame.len()),
        bodies::zstd_bomb(22, 512),
    ]
    .concat();
    [
        ("gzip", gzip),
        ("br", bodies::padded_brotli(22, padding, 4)),
        ("zstd", zstd),
    ]
}

#[test]
fn a_padded_bomb_costs_less_than_16_mb_in_each_encoding() {
    let mut failures = Vec::new();
    for padding in [0, 32 * 1024, 2 * MB] {
        for (encoding, bomb) in padded_bombs(padding) {
            let Fixture { origin, proxy } = start(json!({}));
            // Sends a request before the measurement, so that memory that the proxy allocates only
            // once does not count.
            let small = "Content-Length: 2\r\n\r\n{}";
            assert_eq!(proxy.https(API, head(API, "/graphql", small)).status, 400);
            let before = proxy.memory("VmHWM");
            let fields = format!("Content-Encoding: {encoding}\r\nTransfer-Encoding: chunked\r\n");
            let mut stream = proxy.tls(API);
            stream
                .write_all(head(API, "/graphql", &fields).as_bytes())
                .unwrap();
            for chunk in bomb.chunks(16 * 1024) {
                let sent = write!(stream, "{:x}\r\n", chunk.len())
                    .and_then(|()| stream.write_all(chunk))
                    .and_then(|()| stream.write_all(b"\r\n"));
                // The proxy may refuse the body before all of it has been sent.
                if sent.is_err() {
                    break;
                }
            }
            let _ = stream.write_all(b"0\r\n\r\n");
            // A client that sends after the refusal may get a reset instead of the response, so the
            // status is read from the audit log. 400 is the status of the small request above.
            let mut status = 0;
            eventually("the bomb is audited", SOON, || {
                let line = proxy
                    .audit()
                    .into_iter()
                    .rfind(|line| line["kind"] == "http");
                status = line.map_or(0, |line| line["status"].as_u64().unwrap());
                status != 0 && status != 400
            });
            let grown = (proxy.memory("VmHWM") - before) as usize / 1024;
            if !matches!(status, 413 | 415) || grown >= 16 {
                failures.push((encoding, padding, status, grown));
            }
            origin.assert_untouched();
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_denied_push_of_many_refs_is_reported_in_less_than_three_times_its_size() {
    let Fixture { origin, proxy } = start(json!({}));
    let (id, zero) = ("1".repeat(40), "0".repeat(40));
    let mut body = String::new();
    for number in 0..10_000 {
        let name = match number {
            0 => format!("{}\0 report-status", "x".repeat(1000)),
            number => number.to_string(),
        };
        let line = format!("{id} {zero} refs/heads/{name}");
        body += &format!("{:04x}{line}", line.len() + 4);
    }
    body += "0000";
    let fields = format!("Content-Length: {}\r\n", body.len());
    let head = head(GIT, "/acme/web.git/git-receive-pack", &fields);
    let reply = proxy.https(GIT, head + &body);
    assert_eq!(
        reply.header("x-proxy-denied"),
        Some("branch_deletion_blocked")
    );
    let (answer, request) = (reply.body.len(), body.len());
    assert!(
        answer < 3 * request,
        "the report has {answer} bytes, the request {request}"
    );
    let told = reply
        .body
        .windows(14)
        .filter(|bytes| *bytes == b"ng refs/heads/");
    assert_eq!(told.count(), 10_000);
    origin.assert_untouched();
}
