//! Denied requests, plain or in a tunnel, over HTTP/1.1 and HTTP/2, make no upstream connection.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, Setup, handshake, read_reply};

const SANDBOX: Ipv4Addr = Ipv4Addr::LOCALHOST;
const NARROW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const UNKNOWN_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// A guarded address, at which the test listens.
const INSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Plain,
    Http1,
    Http2,
}

const ALL: &[Over] = &[Over::Plain, Over::Http1, Over::Http2];
/// HTTP/2 has no `Upgrade`.
const HTTP1: &[Over] = &[Over::Plain, Over::Http1];

/// A request. The rows below change a part of [`PASSES`].
#[derive(Clone, Copy, Debug)]
struct Asked {
    from: Ipv4Addr,
    /// The first label: `NAME.example.com` over TLS, `NAME-plain.example.com` in clear text.
    name: &'static str,
    port: Option<u16>,
    method: &'static str,
    path: &'static str,
    /// First label of the host in `Host` or `:authority`, if it is not `name`.
    authority: Option<&'static str>,
    fields: &'static [(&'static str, &'static str)],
    over: &'static [Over],
}

const PASSES: Asked = Asked {
    from: SANDBOX,
    name: "open",
    port: None,
    method: "GET",
    path: "/echo",
    authority: None,
    fields: &[],
    over: ALL,
};

const DENIED: &[(&str, Asked)] = &[
    (
        "unknown_source",
        Asked {
            from: UNKNOWN_SOURCE,
            ..PASSES
        },
    ),
    (
        "container_id_mismatch",
        Asked {
            fields: &[("x-container-id", "another")],
            ..PASSES
        },
    ),
    (
        "domain_not_allowed",
        Asked {
            name: "unlisted",
            ..PASSES
        },
    ),
    (
        "domain_not_allowed",
        Asked {
            from: NARROW,
            ..PASSES
        },
    ),
    (
        "port_not_allowed",
        Asked {
            port: Some(8443),
            ..PASSES
        },
    ),
    (
        "address_not_allowed",
        Asked {
            name: "inside",
            ..PASSES
        },
    ),
    (
        "method_not_allowed",
        Asked {
            method: "TRACE",
            ..PASSES
        },
    ),
    (
        "method_not_allowed",
        Asked {
            method: "FROB",
            ..PASSES
        },
    ),
    (
        "websocket_not_allowed",
        Asked {
            name: "silent",
            fields: &[
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
            over: HTTP1,
            ..PASSES
        },
    ),
    (
        "protocol_not_allowed",
        Asked {
            fields: &[("connection", "upgrade"), ("upgrade", "h2c")],
            over: HTTP1,
            ..PASSES
        },
    ),
    (
        "host_mismatch",
        Asked {
            authority: Some("other"),
            ..PASSES
        },
    ),
    (
        "malformed_request",
        Asked {
            name: "git",
            path: "/octocat/..%2fother/info/refs",
            ..PASSES
        },
    ),
    (
        "malformed_request",
        Asked {
            name: "git",
            path: "//octocat/other",
            ..PASSES
        },
    ),
    (
        "credential_misuse",
        Asked {
            fields: &[(
                "x-api-key",
                "up-placeholder-0123456789abcdef0123456789abcdef",
            )],
            ..PASSES
        },
    ),
];

#[test]
fn denied_requests_make_no_upstream_connection() {
    let origin = Origin::start();
    let inside = TcpListener::bind((INSIDE, 0)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let proxy = start(&origin, &inside);
    each_row(DENIED, |(code, asked)| {
        for over in asked.over {
            let got = ask(&proxy, *over, asked);
            assert_eq!(got.1.as_deref(), Some(*code), "{over:?}: {}", got.0);
            assert!((400..500).contains(&got.0), "{code}: {}", got.0);
        }
        proxy.audited(json!({ "code": code, "outcome": "denied" }));
    });
    // The proxy must not even connect: the address or the SNI of a connection could carry data.
    origin.assert_untouched();
    assert!(inside.accept().is_err(), "a guarded address was dialled");
    // A permitted request reaches the origin over each protocol.
    each_row(ALL, |over| {
        assert_eq!(ask(&proxy, *over, &PASSES), (200, None), "{over:?}");
    });
    assert_eq!(origin.seen().len(), ALL.len());
}

fn start(origin: &Origin, inside: &TcpListener) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.proxy["upstream"]["allow_private"] = json!(["127.0.0.1/32"]);
    let inside = inside.local_addr().unwrap();
    setup.allowlist["domains"] = json!([]);
    for name in ["open", "other", "silent", "git", "unlisted", "inside"] {
        for (suffix, address) in [("", origin.https), ("-plain", origin.http)] {
            let host = format!("{name}{suffix}.example.com");
            let address = if name == "inside" { inside } else { address };
            setup.proxy["upstream"]["hosts"][&host] = json!(address.to_string());
            if name != "unlisted" {
                setup.allow(json!({ "domain": host, "websocket": name != "silent" }));
            }
        }
    }
    let git = ["git.example.com", "git-plain.example.com"];
    setup.policy = Some(json!({ "version": 1, "git": { "hosts": git } }));
    let proxy = setup.start();
    proxy.register_as(json!({
        "container_ip": NARROW.to_string(), "container_id": "narrow", "repos": [],
        "allowed_domains": ["git.example.com", "git-plain.example.com"],
    }));
    proxy
}

/// Sends a request; returns status and denial code of its response, or of the response to the
/// CONNECT if the proxy denies the CONNECT. The code is `None` without `X-Proxy-Denied`.
fn ask(proxy: &Proxy, over: Over, asked: &Asked) -> (u16, Option<String>) {
    let suffix = if over == Over::Plain { "-plain" } else { "" };
    let host_of = |name: &str| format!("{name}{suffix}.example.com");
    let host = host_of(asked.name);
    let port = asked
        .port
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let named = asked.authority.map_or(format!("{host}{port}"), host_of);
    let fields: String = asked
        .fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let Asked { method, path, .. } = asked;
    let reply = if over == Over::Plain {
        let mut stream = proxy.dial_from(asked.from);
        let target = format!("http://{host}{port}{path}");
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: {named}\r\n{fields}\r\n"
        )
        .unwrap();
        read_reply(&mut stream).unwrap()
    } else {
        let authority = format!("{host}:{}", asked.port.unwrap_or(443));
        let (reply, stream) = proxy.connect_from(asked.from, &authority);
        if reply.status != 200 {
            reply
        } else if over == Over::Http2 {
            return ask_http2(proxy, asked, &host, &named);
        } else {
            let mut stream = handshake(stream, &host, proxy.tls_config(&["http/1.1"])).unwrap();
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: {named}\r\n{fields}\r\n"
            )
            .unwrap();
            read_reply(&mut stream).unwrap()
        }
    };
    let code = reply.header("x-proxy-denied").map(str::to_owned);
    (reply.status, code)
}

fn ask_http2(proxy: &Proxy, asked: &Asked, host: &str, named: &str) -> (u16, Option<String>) {
    let mut request = http::Request::builder()
        .method(asked.method)
        .uri(format!("https://{named}{}", asked.path));
    for (name, value) in asked.fields {
        request = request.header(*name, *value);
    }
    let reply = proxy.h2(host, request.body("").unwrap()).unwrap();
    let code = reply.headers.get("x-proxy-denied");
    let code = code.map(|code| code.to_str().unwrap().to_owned());
    (reply.status.as_u16(), code)
}
