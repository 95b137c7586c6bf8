//! Upstreams that are unreachable, slow, broken or hostile.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::each_row;

use crate::support::{
    Nameserver, Origin, Proxy, RawOrigin, SOON, Setup, eventually, frames, read_reply,
};

#[test]
fn a_closed_port_and_an_unknown_name_are_unreachable() {
    let origin = Origin::start();
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut setup = Setup::new(&origin);
    setup.host("closed.example.com", closed);
    setup.allow("unknown.example.com");
    let nameserver = Nameserver::start(&[]);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    let proxy = setup.start();
    each_row(["closed.example.com", "unknown.example.com"], |host| {
        let reply = proxy.get(&format!("http://{host}/"), &[]);
        reply.assert_denied(502, "upstream_unreachable", "");
        assert!(reply.text().contains(host), "{}", reply.text());
        proxy
            .fetch(host, "/")
            .assert_denied(502, "upstream_unreachable", "");
    });
}

#[test]
fn an_upstream_that_takes_too_long_is_a_timeout() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["response_timeout"] = json!("1s");
    let proxy = setup.start();
    proxy
        .fetch("api.example.com", "/slow/5000")
        .assert_denied(504, "upstream_timeout", "");
    let reply = proxy.get("http://plain.example.com/slow/5000", &[]);
    reply.assert_denied(504, "upstream_timeout", "");
    assert_eq!(proxy.fetch("api.example.com", "/slow/100").status, 200);
}

#[test]
fn an_upstream_with_an_invalid_certificate_gets_no_request() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "wrong-name.example.com",
            "expired.example.com",
            "self-signed.example.com",
        ],
        |host| {
            let reply = proxy.fetch(host, "/echo");
            reply.assert_denied(502, "upstream_tls", "");
            assert!(reply.text().contains(host), "{}", reply.text());
        },
    );
    assert!(origin.seen().is_empty());
}

#[test]
fn an_upstream_that_speaks_no_tls_is_a_tls_fault() {
    let origin = Origin::start();
    let raw = RawOrigin::start(|mut stream| stream.write_all(b"SSH-2.0-server\r\n"));
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    proxy
        .fetch("raw.example.com", "/")
        .assert_denied(502, "upstream_tls", "");
}

#[test]
fn an_unrequested_101_ends_the_exchange() {
    let origin = Origin::start();
    let raw = RawOrigin::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096])?;
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        stream.write_all(switch.as_bytes())?;
        stream.write_all(b"smuggled")?;
        stream.read(&mut [0; 4096]).map(drop)
    });
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let mut stream = proxy.dial();
    let request = "GET http://raw.example.com/ HTTP/1.1\r\nHost: raw.example.com\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    if let Ok(reply) = read_reply(&mut stream) {
        assert_eq!(reply.status, 502, "{reply:?}");
        assert!(!reply.text().contains("smuggled"));
    }
}

#[test]
fn a_truncated_response_body_is_an_error_for_the_client() {
    let origin = Origin::start();
    let raw = RawOrigin::start(|mut stream| {
        let read = stream.read(&mut [0; 4096])?;
        assert!(read > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    });
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let curl = proxy.curl(&["http://raw.example.com/"]);
    assert_ne!(curl.exit, 0, "{curl:?}");
}

#[test]
fn alternative_services_are_not_advertised() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let reply = proxy.fetch("api.example.com", "/alt-svc");
    assert_eq!((reply.status, reply.header("alt-svc")), (200, None));
    assert_eq!(
        proxy
            .get("http://plain.example.com/alt-svc", &[])
            .header("alt-svc"),
        None
    );
}

#[test]
fn statuses_of_an_upstream_pass_unchanged() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row([204, 301, 401, 404, 500, 503], |status| {
        let reply = proxy.fetch("api.example.com", &format!("/status/{status}"));
        assert_eq!(
            (reply.status, reply.header("x-proxy-denied")),
            (status, None)
        );
    });
}

#[test]
fn paths_and_queries_arrive_byte_for_byte() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "/echo/a%20b?x=%2F&y=%zz",
            "/echo/a+b",
            "/echo/%E2%82%AC",
            "/echo/?a=b?c",
        ],
        |target| {
            assert_eq!(
                proxy.fetch("api.example.com", target).status,
                200,
                "{target}"
            );
            assert_eq!(origin.seen().last().unwrap().target, target);
        },
    );
}

#[test]
fn streams_that_wait_for_one_dial_share_its_failure() {
    let origin = Origin::start();
    let silent = RawOrigin::start(|mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["hosts"]["api.example.com"] = silent.address.to_string().into();
    setup.proxy["upstream"]["connect_timeout"] = json!("1s");
    let proxy = setup.start();
    let host = "api.example.com";
    let mut stream = proxy.tls_as(host, host, &["h2"]).unwrap();
    let get = frames::get("api.example.com", "/echo");
    let mut requests = [frames::opening(), frames::request(1, &get)].concat();
    for id in [3, 5, 7, 9] {
        requests.extend(frames::request(id, &get));
    }
    let since = Instant::now();
    stream.write_all(&requests).unwrap();
    let timeouts = || {
        let timed_out = |line: &serde_json::Value| line["code"] == "upstream_timeout";
        proxy.audit().into_iter().filter(timed_out).count()
    };
    eventually("all five requests time out", SOON, || timeouts() == 5);
    // Five dials, one after the other, would take a second each.
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(silent.connections(), 1);
}

/// Starts an upstream that answers each request with the bytes listed for its path, and closes the
/// connection at any other path.
fn scripted(answers: &'static [(&'static str, &'static str)]) -> RawOrigin {
    RawOrigin::start(move |mut stream| {
        loop {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer)?;
            let head = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let Some((_, answer)) = answers.iter().find(|(name, _)| *name == path) else {
                return Ok(());
            };
            stream.write_all(answer.as_bytes())?;
        }
    })
}

#[test]
fn ambiguous_framing_of_a_response_is_made_unambiguous_or_refused() {
    let origin = Origin::start();
    let raw = scripted(&[
        (
            "/short-length-and-chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "/long-length-and-chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 30\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "/length-twice",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "/length-listed",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        ),
        (
            "/two-lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        ),
        (
            "/gzip-and-chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
    ]);
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    each_row(
        [
            ("/short-length-and-chunks", [Some("chunked"), None]),
            ("/long-length-and-chunks", [Some("chunked"), None]),
            ("/length-twice", [None, Some("5")]),
            ("/length-listed", [None, Some("5")]),
        ],
        |(path, framing)| {
            let reply = proxy.get(&format!("http://raw.example.com{path}"), &[]);
            assert_eq!(
                (reply.status, reply.text().as_str()),
                (200, "hello"),
                "{path}"
            );
            let fields = ["transfer-encoding", "content-length"].map(|name| reply.only(name));
            assert_eq!(fields, framing, "{path}");
        },
    );
    each_row(["/two-lengths", "/gzip-and-chunks"], |path| {
        let reply = proxy.get(&format!("http://raw.example.com{path}"), &[]);
        reply.assert_denied(502, "upstream_unreachable", "raw.example.com sent");
    });
}

#[test]
fn a_response_with_trailers_is_ok_and_its_connection_is_reused() {
    let origin = Origin::start();
    let raw = scripted(&[(
        "/",
        "HTTP/1.1 200 OK\r\nTrailer: x-end\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\nx-end: 1\r\n\r\n",
    )]);
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let mut stream = proxy.dial();
    for _ in 0..2 {
        let request =
            "GET http://raw.example.com/ HTTP/1.1\r\nHost: raw.example.com\r\nTE: trailers\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let reply = read_reply(&mut stream).unwrap();
        assert_eq!(reply.header("trailer:x-end"), Some("1"), "{reply:?}");
    }
    let line = proxy.audited(json!({ "host": "raw.example.com", "status": 200 }));
    assert_eq!(line["outcome"], "ok", "{line}");
    assert_eq!(raw.connections(), 1);
}

#[test]
fn x_proxy_denied_of_an_upstream_is_removed() {
    let origin = Origin::start();
    let raw = scripted(&[(
        "/",
        "HTTP/1.1 403 No\r\nX-Proxy-Denied: domain_not_allowed\r\nContent-Length: 2\r\n\r\nno",
    )]);
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let reply = proxy.get("http://raw.example.com/", &[]);
    assert_eq!((reply.status, reply.header("x-proxy-denied")), (403, None));
}
