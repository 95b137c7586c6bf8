//! DNS messages over HTTP (RFC 8484), on a Unix socket that belongs to one container.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use testkit::each_row;

use crate::support::listener::{
    NOERROR, NXDOMAIN, REFUSED, SERVFAIL, assert_ends, connect, dns_query, origin_form, question,
    response_code, send,
};
use crate::support::{Nameserver, Origin, Proxy, SANDBOX, Setup, read_reply};

/// Stands in for a public address: the configuration lists 127.0.0.0/8 under `allow_private`, so
/// the proxy keeps this address in answers.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(127, 1, 2, 3);

fn start(change: impl FnOnce(&mut Setup)) -> (Nameserver, Proxy) {
    let names: &[(&str, &[Ipv4Addr])] = &[
        ("a.example.org", &[PUBLIC]),
        ("b.example.org", &[PUBLIC]),
        ("inside.example.org", &[Ipv4Addr::new(10, 0, 0, 1)]),
        ("blocked.example.net", &[PUBLIC]),
    ];
    let nameserver = Nameserver::start(names);
    let mut setup = Setup::new(&Origin::start());
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.allow("*.example.org");
    change(&mut setup);
    (nameserver, setup.start())
}

/// Starts a DNS forwarder like that of a sandbox: it posts each UDP query to a container's socket,
/// and sends the answer back. Returns the forwarder's address.
fn forward(socket: PathBuf) -> SocketAddr {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut packet = [0; 4096];
        while let Ok((length, client)) = udp.recv_from(&mut packet) {
            let answer = send(&mut connect(&socket), &dns_query(&packet[..length]));
            let _ = udp.send_to(&answer.body, client);
        }
    });
    address
}

fn dig(server: SocketAddr, arguments: &[&str]) -> String {
    let (address, port) = (format!("@{}", server.ip()), server.port().to_string());
    let fixed = ["-p", &port, &address, "+tries=1", "+timeout=10"];
    let ran = Command::new("dig").args(fixed).args(arguments).output();
    String::from_utf8(ran.unwrap().stdout).unwrap()
}

#[test]
fn queries_over_a_containers_socket_are_answered_as_over_udp() {
    let (nameserver, proxy) = start(|_| ());
    let server = forward(proxy.own_listener("inner", json!({})));
    each_row(
        [
            ("A.Example.ORG", "NOERROR", Some("\t127.1.2.3\n")),
            ("HTTPS a.example.org", "NOERROR", Some("ANSWER: 0")),
            ("inside.example.org", "NOERROR", Some("ANSWER: 0")),
            ("blocked.example.net", "NXDOMAIN", None),
            ("+notcp a.example.org ANY", "REFUSED", None),
            ("+edns=1 +noednsnegotiation a.example.org", "BADVERS", None),
            ("+opcode=notify a.example.org", "NOTIMP", None),
        ],
        |(arguments, status, shown)| {
            let arguments: Vec<_> = arguments.split(' ').collect();
            let answer = dig(server, &arguments);
            assert!(answer.contains(&format!("status: {status}")), "{answer}");
            assert!(shown.is_none_or(|shown| answer.contains(shown)), "{answer}");
        },
    );
    assert!(!nameserver.asked().contains(&"blocked.example.net".into()));
    let line = proxy.audited(json!({ "kind": "dns", "host": "blocked.example.net" }));
    let told = [
        "container_id",
        "client",
        "method",
        "status",
        "outcome",
        "code",
        "addon",
    ];
    let told = told.map(|member| line[member].clone());
    let wanted = json!([
        "inner",
        null,
        "A",
        3,
        "denied",
        "domain_not_allowed",
        "policy"
    ]);
    assert_eq!(json!(told), wanted, "{line}");
    let line = proxy.audited(json!({ "kind": "dns", "host": "a.example.org", "method": "A" }));
    assert_eq!(line["outcome"], "ok", "{line}");
    assert!(line["bytes_in"].as_u64() > Some(12) && line["bytes_out"].as_u64() > Some(12));
    assert!(proxy.metric("proxy_dns_queries_total", &["type=\"A\""]) >= 3.0);
    assert_eq!(proxy.metric("proxy_requests_total", &[]), 0.0);
}

#[test]
fn dns_query_requests_without_a_valid_query_are_denied() {
    let (_nameserver, proxy) = start(|setup| {
        setup.proxy["limits"] = json!({ "inspect_timeout": "1s" });
    });
    let socket = proxy.own_listener("inner", json!({}));
    let (message, typed) = (
        question("a.example.org"),
        "content-type: application/dns-message\r\n",
    );
    let post = |fields: &str| origin_form("POST", "/dns-query", fields, &message);
    let get = |path: &str| origin_form("GET", path, "", b"");
    let chunked = |piece: &[u8]| {
        let head = format!(
            "POST /dns-query HTTP/1.1\r\nhost: h\r\n{typed}transfer-encoding: chunked\r\n\r\n{:x}\r\n",
            piece.len()
        );
        [head.as_bytes(), piece, b"\r\n0\r\n\r\n"].concat()
    };
    let longer = vec![0; 65_536];
    let mut answer = message.clone();
    answer[2] |= 0x80;
    let whole = dns_query(&message);
    each_row(
        [
            (
                get("/dns-query"),
                405,
                "method_not_allowed",
                "Method not allowed: GET /dns-query",
            ),
            (
                get("/dns-query?dns=AAAB"),
                405,
                "method_not_allowed",
                "Method not allowed: GET /dns-query",
            ),
            (
                post(""),
                415,
                "unsupported_encoding",
                "Content-Type must be application/dns-message",
            ),
            (
                post("content-type: text/plain\r\n"),
                415,
                "unsupported_encoding",
                "Content-Type must be",
            ),
            (
                post(&typed.repeat(2)),
                415,
                "unsupported_encoding",
                "Content-Type must be",
            ),
            (
                post(&format!("{typed}content-encoding: gzip\r\n")),
                415,
                "unsupported_encoding",
                "Content-Type must be",
            ),
            (
                post(&format!("{typed}host: other\r\n")),
                400,
                "malformed_request",
                "Malformed request: Host appears twice",
            ),
            (
                dns_query(&longer),
                413,
                "body_too_large_to_inspect",
                "Body too large: at most 65535 bytes here",
            ),
            (
                chunked(&longer),
                413,
                "body_too_large_to_inspect",
                "Body too large: at most 65535 bytes here",
            ),
            (
                dns_query(b""),
                400,
                "malformed_request",
                "Malformed request: the body is not a DNS message",
            ),
            (
                dns_query(&message[..11]),
                400,
                "malformed_request",
                "Malformed request: the body is not",
            ),
            (
                dns_query(b"Not a DNS message, but long enough for one."),
                400,
                "malformed_request",
                "Malformed request: the body is not",
            ),
            (
                dns_query(&answer),
                400,
                "malformed_request",
                "Malformed request: the body is not",
            ),
            (
                whole[..whole.len() - 1].to_vec(),
                408,
                "body_timeout",
                "The request body was not complete within 1 seconds",
            ),
        ],
        |(request, status, code, sentence)| {
            let reply = send(&mut connect(&socket), &request);
            reply.assert_denied(status, code, sentence);
            let allow = (status == 405).then_some("POST");
            assert_eq!(reply.only("allow"), allow);
            proxy.audited(json!({
                "kind": "http", "container_id": "inner", "path": "/dns-query", "host": "",
                "status": status, "outcome": "denied", "code": code, "addon": "proxy",
            }));
        },
    );
    for accepted in [
        "Application/DNS-Message",
        "application/dns-message; charset=x",
    ] {
        let reply = send(
            &mut connect(&socket),
            &post(&format!("content-type: {accepted}\r\n")),
        );
        assert_eq!(response_code(&reply), NOERROR, "{accepted}");
    }
    let reply = send(&mut connect(&socket), &chunked(&message));
    assert_eq!(response_code(&reply), NOERROR);
    assert_eq!(proxy.metric("proxy_inspection_memory_bytes", &[]), 0.0);
}

#[test]
fn the_proxys_tcp_listener_refuses_dns_queries_over_http() {
    let (nameserver, proxy) = start(|_| ());
    let mut stream = proxy.dial();
    stream
        .write_all(&dns_query(&question("a.example.org")))
        .unwrap();
    let reply = read_reply(&mut stream).unwrap();
    let sentence = "Malformed request: a proxy takes requests in absolute form, or CONNECT";
    reply.assert_denied(400, "malformed_request", sentence);
    assert_eq!(nameserver.asked(), Vec::<String>::new());
}

#[test]
fn queries_are_judged_for_the_container_of_their_listener() {
    let (_nameserver, proxy) = start(|_| ());
    let one = proxy.own_listener("one", json!({ "allowed_domains": ["a.example.org"] }));
    let two = proxy.own_listener("two", json!({ "allowed_domains": ["b.example.org"] }));
    let ask = |socket: &PathBuf, name: &str, claimed: &str| {
        let fields =
            format!("content-type: application/dns-message\r\nx-container-id: {claimed}\r\n");
        let request = origin_form("POST", "/dns-query", &fields, &question(name));
        response_code(&send(&mut connect(socket), &request))
    };
    each_row(
        [
            (&one, "a.example.org", "one", NOERROR),
            (&one, "b.example.org", "one", NXDOMAIN),
            (&one, "b.example.org", "two", REFUSED),
            (&one, "a.example.org", SANDBOX, REFUSED),
            (&two, "b.example.org", "two", NOERROR),
            (&two, "a.example.org", "two", NXDOMAIN),
            (&two, "a.example.org", "one", REFUSED),
        ],
        |(socket, name, claimed, code)| assert_eq!(ask(socket, name, claimed), code),
    );
    for (id, other) in [("one", "b.example.org"), ("two", "a.example.org")] {
        proxy.audited(json!({
            "kind": "dns", "container_id": id, "host": other, "code": "domain_not_allowed",
        }));
        proxy.audited(json!({
            "kind": "dns", "container_id": id, "code": "container_id_mismatch",
        }));
    }
    // A registration with other `allowed_domains` begins a new lease. The proxy closes the
    // connections of the old lease. Until then, a query on such a connection may still get REFUSED.
    let mut stream = connect(&one);
    let reply = send(&mut stream, &dns_query(&question("a.example.org")));
    assert_eq!(response_code(&reply), NOERROR);
    proxy.own_listener("one", json!({ "allowed_domains": ["b.example.org"] }));
    let _ = stream.write_all(&dns_query(&question("b.example.org")));
    if let Ok(reply) = read_reply(&mut stream) {
        assert_eq!(response_code(&reply), REFUSED);
    }
    assert_ends(&mut stream);
}

#[test]
fn queries_over_http_count_against_the_containers_query_budget() {
    let (_nameserver, proxy) = start(|setup| {
        setup.proxy["dns"] = json!({ "queries_per_minute": 3, "distinct_names_per_minute": 100 });
    });
    let socket = proxy.own_listener("inner", json!({}));
    let other = proxy.own_listener("other", json!({}));
    let ask = |socket: &PathBuf| {
        let question = dns_query(&question("a.example.org"));
        response_code(&send(&mut connect(socket), &question))
    };
    let codes: Vec<_> = (0..8).map(|_| ask(&socket)).collect();
    assert_eq!(codes[0], NOERROR);
    assert_eq!(codes.last(), Some(&REFUSED));
    assert_eq!(ask(&other), NOERROR);
    proxy.audited(json!({ "kind": "dns", "container_id": "inner", "code": "rate_limited" }));
}

#[test]
fn a_dns_client_that_disconnects_aborts_its_look_up() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut setup = Setup::new(&Origin::start());
    let nameserver = silent.local_addr().unwrap().to_string();
    setup.proxy["upstream"]["nameservers"] = json!([nameserver]);
    setup.allow("a.example.org");
    let proxy = setup.start();
    let socket = proxy.own_listener("inner", json!({}));
    let mut stream = connect(&socket);
    stream
        .write_all(&dns_query(&question("a.example.org")))
        .unwrap();
    silent.recv(&mut [0; 512]).unwrap();
    drop(stream);
    let line = proxy.audited(json!({ "kind": "dns", "host": "a.example.org" }));
    // Without the abort, the look-up would end at its time limit of 4.5 s.
    assert_eq!(
        (&line["outcome"], &line["status"]),
        (&json!("aborted"), &json!(null)),
        "{line}"
    );
    assert!(line["duration_ms"].as_f64() < Some(3_000.0), "{line}");
}

#[test]
fn a_reload_applies_to_the_next_question_on_the_same_connection() {
    let (_nameserver, proxy) = start(|_| ());
    let socket = proxy.own_listener("inner", json!({}));
    let mut stream = connect(&socket);
    let ask = dns_query(&question("a.example.org"));
    assert_eq!(response_code(&send(&mut stream, &ask)), NOERROR);
    let allowlist = json!({ "version": 1, "domains": ["plain.example.com"] }).to_string();
    std::fs::write(proxy.path("config/allowlist.yaml"), allowlist).unwrap();
    assert_eq!(proxy.admin("POST", "/internal/reload", None).status, 200);
    assert_eq!(response_code(&send(&mut stream, &ask)), NXDOMAIN);
}

#[test]
fn queries_get_servfail_while_the_registry_is_unreadable() {
    let (_nameserver, proxy) = start(|_| ());
    let socket = proxy.own_listener("inner", json!({}));
    let ask = dns_query(&question("a.example.org"));
    let mut standing = connect(&socket);
    assert_eq!(response_code(&send(&mut standing, &ask)), NOERROR);
    proxy.damage_registry();
    assert_eq!(response_code(&send(&mut standing, &ask)), SERVFAIL);
    assert_eq!(response_code(&send(&mut connect(&socket), &ask)), SERVFAIL);
    proxy.repair_registry();
    assert_eq!(response_code(&send(&mut standing, &ask)), NOERROR);
    assert_eq!(response_code(&send(&mut connect(&socket), &ask)), NOERROR);
}
