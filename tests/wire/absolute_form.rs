//! Requests in absolute form for https, which some clients send to a proxy instead of CONNECT: axios
//! up to 1.15, for example. The proxy does TLS with the upstream. `denials.rs` sends each denied
//! request in this form too.

use std::io::{Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, RawOrigin, SOON, Setup, eventually, read_reply};

const HOST: &str = "api.example.com";
const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";

/// Sends a request in absolute form with further lines of the head, then a body.
fn send(proxy: &Proxy, line: &str, host: &str, rest: &str) -> crate::support::Reply {
    proxy.exchange(format!("{line} HTTP/1.1\r\nHost: {host}\r\n{rest}"))
}

#[test]
fn a_request_in_absolute_form_for_https_reaches_the_origin_over_tls() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.dial();
    for (target, host) in [
        ("https://api.example.com/echo?x=1", "api.example.com"),
        (
            "https://API.example.com:443/echo?x=1",
            "api.example.com:443",
        ),
    ] {
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, 200, "{target}");
    }
    let body = "Content-Length: 5\r\n\r\nhello";
    let reply = send(&proxy, "POST https://api.example.com/echo?x=1", HOST, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    for seen in origin.seen() {
        assert_eq!(
            (seen.target.as_str(), seen.authority.as_str()),
            ("/echo?x=1", HOST)
        );
    }
    assert_eq!(origin.seen()[2].received(), 5);
    let line = proxy.audited(json!({ "kind": "http", "host": HOST, "status": 200 }));
    assert_eq!(line["port"], 443, "{line}");
    let curl = [
        "--noproxy",
        "*",
        "--request-target",
        "https://api.example.com/echo",
        "--header",
        "Host: api.example.com",
    ];
    let at = format!("http://{}/", proxy.address);
    let curl = proxy.curl(&[&curl[..], &[at.as_str()]].concat());
    assert_eq!((curl.exit, curl.status), (0, 200), "{curl:?}");
}

/// An upstream that speaks no TLS gets the beginning of a handshake, and nothing of the request.
#[test]
fn a_request_in_absolute_form_for_https_never_leaves_in_clear_text() {
    let origin = Origin::start();
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&received);
    let raw = RawOrigin::start(move |mut stream| {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes)?;
        log.lock().extend_from_slice(&bytes[..read]);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let reply = send(
        &proxy,
        "GET https://raw.example.com/private-path",
        "raw.example.com",
        "Authorization: private-field\r\n\r\n",
    );
    reply.assert_denied(
        502,
        "upstream_tls",
        "TLS handshake with raw.example.com failed",
    );
    eventually("the upstream was dialled", SOON, || {
        !received.lock().is_empty()
    });
    let received = received.lock();
    assert_eq!(received[0], 0x16, "not a TLS handshake");
    assert!(!String::from_utf8_lossy(&received).contains("private"));
    each_row(["wrong-name", "expired", "self-signed"], |name| {
        let host = format!("{name}.example.com");
        let reply = send(&proxy, &format!("GET https://{host}/echo"), &host, "\r\n");
        reply.assert_denied(502, "upstream_tls", "");
    });
    assert!(origin.seen().is_empty());
}

#[test]
fn a_request_in_absolute_form_for_https_gets_the_credential_and_obeys_the_rules() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.credential(json!({ "name": "vendor", "hosts": [HOST], "bearer": "${VENDOR_KEY}" }));
    let rule = json!({
        "name": "no-admin", "effect": "deny", "hosts": [HOST], "methods": ["POST"],
        "paths": ["^/admin/"],
    });
    setup.policy = Some(json!({ "version": 1, "policy": { "rules": [rule] } }));
    let proxy = setup.start();
    let brought = "Authorization: Bearer brought\r\n\r\n";
    let reply = send(
        &proxy,
        "GET https://api.example.com/reflect/body",
        HOST,
        brought,
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.text().contains("[REDACTED:vendor]"), "{reply:?}");
    let sent = format!("Bearer {SECRET}");
    assert_eq!(origin.only().header("authorization"), Some(sent.as_str()));
    let none = "Content-Length: 0\r\n\r\n";
    each_row(
        ["/admin/users", "/x/../admin/users", "/%61dmin/users"],
        |path| {
            let line = format!("POST https://api.example.com{path}");
            let reply = send(&proxy, &line, HOST, none);
            assert!([400, 403].contains(&reply.status), "{path}: {reply:?}");
            assert!(
                reply.header("x-proxy-denied").is_some(),
                "{path}: {reply:?}"
            );
        },
    );
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn another_scheme_host_or_user_in_absolute_form_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            ("ftp://api.example.com/echo", HOST, 400),
            ("wss://api.example.com/echo", HOST, 400),
            ("https://user:secret@api.example.com/echo", HOST, 400),
            ("https://api.example.com:0443/echo", HOST, 400),
            ("https://api.example.com/echo", "other.example.com", 421),
            ("https://api.example.com/echo", "api.example.com:80", 421),
            ("https://api.example.com:22/echo", "api.example.com:22", 403),
        ],
        |(target, host, status)| {
            let reply = send(&proxy, &format!("GET {target}"), host, "\r\n");
            assert_eq!(reply.status, status, "{target}: {reply:?}");
        },
    );
    origin.assert_untouched();
}

#[test]
fn a_websocket_opens_in_absolute_form_over_tls() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.dial();
    write!(
        stream,
        "GET https://{HOST}/websocket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 101");
}
