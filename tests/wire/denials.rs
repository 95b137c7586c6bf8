//! Denied requests, in absolute form or in a tunnel, over HTTP/1.1 and HTTP/2, make no upstream
//! connection.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, Setup, UNKNOWN_SOURCE, handshake, read_reply};

const SANDBOX: Ipv4Addr = Ipv4Addr::LOCALHOST;
const NARROW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// An address that the proxy must not dial, since it is not in `allow_private`. The test listens
/// there.
const INSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// How a request reaches the proxy: in absolute form for an upstream in clear text or over TLS, or
/// in a tunnel over HTTP/1.1 or HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Plain,
    AbsoluteHttps,
    Http1,
    Http2,
}

const ALL: &[Over] = &[Over::Plain, Over::AbsoluteHttps, Over::Http1, Over::Http2];
/// For requests with `Upgrade`, which HTTP/2 does not have.
const HTTP1: &[Over] = &[Over::Plain, Over::AbsoluteHttps, Over::Http1];

/// The request of one row. Each row below changes a part of [`PERMITTED`].
#[derive(Clone, Copy, Debug)]
struct TestRequest {
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

const PERMITTED: TestRequest = TestRequest {
    from: SANDBOX,
    name: "open",
    port: None,
    method: "GET",
    path: "/echo",
    authority: None,
    fields: &[],
    over: ALL,
};

const DENIED: &[(&str, TestRequest)] = &[
    (
        "unknown_source",
        TestRequest {
            from: UNKNOWN_SOURCE,
            ..PERMITTED
        },
    ),
    (
        "container_id_mismatch",
        TestRequest {
            fields: &[("x-container-id", "another")],
            ..PERMITTED
        },
    ),
    (
        "domain_not_allowed",
        TestRequest {
            name: "unlisted",
            ..PERMITTED
        },
    ),
    (
        "domain_not_allowed",
        TestRequest {
            from: NARROW,
            ..PERMITTED
        },
    ),
    (
        "port_not_allowed",
        TestRequest {
            port: Some(8443),
            ..PERMITTED
        },
    ),
    (
        "address_not_allowed",
        TestRequest {
            name: "inside",
            ..PERMITTED
        },
    ),
    (
        "method_not_allowed",
        TestRequest {
            method: "TRACE",
            ..PERMITTED
        },
    ),
    (
        "method_not_allowed",
        TestRequest {
            method: "FROB",
            ..PERMITTED
        },
    ),
    (
        "websocket_not_allowed",
        TestRequest {
            name: "silent",
            fields: &[
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
            over: HTTP1,
            ..PERMITTED
        },
    ),
    (
        "host_mismatch",
        TestRequest {
            authority: Some("other"),
            ..PERMITTED
        },
    ),
    (
        "malformed_request",
        TestRequest {
            name: "git",
            path: "/octocat/..%2fother/info/refs",
            ..PERMITTED
        },
    ),
    (
        "malformed_request",
        TestRequest {
            name: "git",
            path: "//octocat/other",
            ..PERMITTED
        },
    ),
    (
        "credential_misuse",
        TestRequest {
            fields: &[(
                "x-api-key",
                "up-placeholder-0123456789abcdef0123456789abcdef",
            )],
            ..PERMITTED
        },
    ),
];

#[test]
fn denied_requests_make_no_upstream_connection() {
    let origin = Origin::start();
    let inside = TcpListener::bind((INSIDE, 0)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let proxy = start(&origin, &inside);
    each_row(DENIED, |(code, request)| {
        for over in request.over {
            let got = ask(&proxy, *over, request);
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
        assert_eq!(ask(&proxy, *over, &PERMITTED), (200, None), "{over:?}");
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

/// Sends a request. Returns the status and the denial code of the response or, if the proxy denies
/// the CONNECT, of the response to the CONNECT. The code is `None` without `X-Proxy-Denied`.
fn ask(proxy: &Proxy, over: Over, request: &TestRequest) -> (u16, Option<String>) {
    let suffix = if over == Over::Plain { "-plain" } else { "" };
    let host_of = |name: &str| format!("{name}{suffix}.example.com");
    let host = host_of(request.name);
    let port = request
        .port
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let named = request.authority.map_or(format!("{host}{port}"), host_of);
    let fields: String = request
        .fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let TestRequest { method, path, .. } = request;
    let reply = if matches!(over, Over::Plain | Over::AbsoluteHttps) {
        let mut stream = proxy.dial_from(request.from);
        let scheme = if over == Over::Plain { "http" } else { "https" };
        let target = format!("{scheme}://{host}{port}{path}");
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: {named}\r\n{fields}\r\n"
        )
        .unwrap();
        read_reply(&mut stream).unwrap()
    } else {
        let authority = format!("{host}:{}", request.port.unwrap_or(443));
        let (reply, stream) = proxy.connect_from(request.from, &authority);
        if reply.status != 200 {
            reply
        } else if over == Over::Http2 {
            return ask_http2(proxy, request, &host, &named);
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

fn ask_http2(
    proxy: &Proxy,
    request: &TestRequest,
    host: &str,
    named: &str,
) -> (u16, Option<String>) {
    let mut http_request = http::Request::builder()
        .method(request.method)
        .uri(format!("https://{named}{}", request.path));
    for (name, value) in request.fields {
        http_request = http_request.header(*name, *value);
    }
    let reply = proxy.h2(host, http_request.body("").unwrap()).unwrap();
    let code = reply.headers.get("x-proxy-denied");
    let code = code.map(|code| code.to_str().unwrap().to_owned());
    (reply.status.as_u16(), code)
}
