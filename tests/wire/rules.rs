//! The operator's rules, and flows that end when a reload withdraws their permission.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row;

use hickory_proto::rr::RecordType;

use crate::support::nameserver::{Nameserver, Reply as ZoneReply, address_record};
use crate::support::{Origin, Proxy, SANDBOX, Setup, assert_closes, eventually, read_reply};

/// Bound on the time until a change of a configuration file applies, also to running flows.
const IN_FORCE: Duration = Duration::from_secs(5);

fn with_rules(origin: &Origin) -> Setup {
    let mut setup = Setup::new(origin);
    setup.policy = Some(json!({ "version": 1, "policy": { "rules": [
        { "name": "read-projects", "effect": "allow", "hosts": ["api.example.com"],
          "methods": ["GET"], "paths": ["^/echo/projects"] },
        { "name": "no-projects", "effect": "deny", "hosts": ["*.example.com"],
          "paths": ["^/echo/projects"] },
        { "name": "ask-first", "effect": "ask", "hosts": ["other.example.com"], "methods": ["PUT"] },
        { "name": "shut", "effect": "deny", "hosts": ["git.example.com"] },
    ] } }));
    setup
}

#[test]
fn the_first_rule_that_matches_decides_over_the_wire() {
    let origin = Origin::start();
    let proxy = with_rules(&origin).start();
    let send = |method: &str, host: &str, path: &str| {
        proxy.https(
            host,
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"),
        )
    };
    assert_eq!(send("GET", "api.example.com", "/echo/projects").status, 200);
    assert_eq!(
        send("PUT", "other.example.com", "/echo/projects/1").status,
        403
    );
    let denied = send("DELETE", "api.example.com", "/echo/projects");
    denied.assert_denied(403, "rule_denied", "Denied by rule no-projects");
    assert_eq!(denied.json()["rule"], "no-projects");
    let asked = send("PUT", "other.example.com", "/echo/x");
    asked.assert_denied(403, "approval_pending", "");
    assert_eq!(asked.json()["rule"], "ask-first");
    let doubtful = send("GET", "api.example.com", "/x/../echo/projects");
    doubtful.assert_denied(400, "malformed_request", "");
    let (shut, _) = proxy.connect("git.example.com:443");
    shut.assert_connect_denied(403, "rule_denied", "Denied by rule shut");
    proxy.audited(json!({ "code": "rule_denied", "rule": "no-projects", "addon": "policy" }));
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn explain_names_the_rule_with_its_file_and_line() {
    let origin = Origin::start();
    let proxy = with_rules(&origin).start();
    let socket = proxy.path("api.sock");
    let explain = |method: &str| {
        let url = "https://api.example.com/echo/projects";
        let arguments = [
            "explain",
            "--socket",
            socket.to_str().unwrap(),
            SANDBOX,
            method,
            url,
        ];
        let ran = proxy.run(env!("CARGO_BIN_EXE_unified-proxy"), &arguments);
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let allowed = explain("GET");
    assert!(
        allowed.contains("rule read-projects at policy.yaml:"),
        "{allowed}"
    );
    let denied = explain("DELETE");
    assert!(
        denied.contains("rule_denied") && denied.contains("rule no-projects at policy.yaml:"),
        "{denied}"
    );
}

#[test]
fn rules_on_methods_or_paths_of_passthrough_hosts_are_refused() {
    let origin = Origin::start();
    each_row(
        [("api.example.com", true), ("www.example.org", false)],
        |(host, refused)| {
            let mut setup = with_rules(&origin);
            setup.proxy["tls"]["passthrough"] = json!([host]);
            setup.write();
            let (code, said) = setup.run("check");
            assert_eq!(code == 78, refused, "{said}");
            assert_eq!(
                said.contains("rule no-projects at policy.yaml:"),
                refused,
                "{said}"
            );
        },
    );
}

/// Removes hosts from allowlist.yaml without requesting a reload, so that the proxy must notice the
/// change.
fn forbid(proxy: &Proxy, hosts: &[&str]) {
    let path = proxy.path("config/allowlist.yaml");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let domains = list["domains"].as_array_mut().unwrap();
    domains.retain(|domain| !hosts.iter().any(|host| domain == host));
    std::fs::write(&path, list.to_string()).unwrap();
}

/// Starts an event stream of 50 s, and reads its first 64 bytes.
fn stream_of(proxy: &Proxy, host: &str) -> impl Read + Write + use<> {
    streaming(proxy.tls(host), "/events/1000/50", host)
}

/// Requests an event stream on a connection, and reads its first 64 bytes.
pub fn streaming<S: Read + Write>(mut stream: S, target: &str, host: &str) -> S {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    stream
}

/// Reads until the stream ends or fails.
pub fn ends(stream: &mut impl Read) {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer) {}
}

#[test]
fn flows_that_a_reload_forbids_end_within_five_seconds() {
    let origin = Origin::start();
    let proxy = Setup::new(&origin).start();
    let mut stays = stream_of(&proxy, "other.example.com");
    let mut stream = stream_of(&proxy, "api.example.com");
    let mut tunnel = proxy.tunnel("api.example.com:443");
    let mut plain = proxy.dial();
    plain
        .write_all(
            b"GET http://plain.example.com/events/1000/50 HTTP/1.1\r\nHost: plain.example.com\r\n\r\n",
        )
        .unwrap();
    plain.read_exact(&mut [0; 64]).unwrap();
    let mut websocket = proxy.tls("api.example.com");
    websocket
        .write_all(
            b"GET /websocket HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\n\
              Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    websocket.read_exact(&mut [0; 32]).unwrap();
    let begun = Instant::now();
    forbid(&proxy, &["api.example.com", "plain.example.com"]);
    ends(&mut stream);
    ends(&mut plain);
    ends(&mut websocket);
    assert_closes(&mut tunnel);
    assert!(begun.elapsed() < IN_FORCE, "{:?}", begun.elapsed());
    stays.read_exact(&mut [0; 64]).unwrap();
    proxy.audited(json!({ "kind": "websocket", "outcome": "aborted" }));
}

#[test]
fn a_reload_that_forbids_the_previous_request_of_a_connection_does_not_end_its_connect() {
    let origin = Origin::start();
    let slow = "slow.example.org";
    let nameserver = Nameserver::with_zone(|name, kind| match kind {
        RecordType::A => {
            let records = vec![address_record(name, "127.0.0.1")];
            ZoneReply::After(Duration::from_millis(1500), records)
        }
        _ => ZoneReply::Records(Vec::new()),
    });
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.proxy["tls"]["passthrough"] = json!([slow]);
    setup.allow(slow);
    let proxy = setup.start();
    let mut stream = proxy.dial();
    stream
        .write_all(b"GET http://plain.example.com/echo HTTP/1.1\r\nHost: plain.example.com\r\n\r\n")
        .unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
    write!(
        stream,
        "CONNECT {slow}:443 HTTP/1.1\r\nHost: {slow}:443\r\n\r\n"
    )
    .unwrap();
    eventually("the name is resolved", IN_FORCE, || {
        nameserver.asked().iter().any(|asked| asked == slow)
    });
    forbid(&proxy, &["plain.example.com"]);
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    // Nothing listens on port 443. Without a response, the reload would have closed the connection.
    assert_eq!(read_reply(&mut stream).unwrap().status, 502);
}

#[test]
fn a_reload_ends_no_permitted_flow_and_an_invalid_one_changes_nothing() {
    let origin = Origin::start();
    let proxy = Setup::new(&origin).start();
    let mut stream = stream_of(&proxy, "api.example.com");
    forbid(&proxy, &["git.example.com"]);
    eventually("the reload is counted", IN_FORCE, || {
        proxy.metric("proxy_config_reloads_total", &["status=\"ok\""]) == 1.0
    });
    stream.read_exact(&mut [0; 1024]).unwrap();
    std::fs::write(
        proxy.path("config/allowlist.yaml"),
        "version: 1\nbogus: 1\n",
    )
    .unwrap();
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 422, "{}", reply.text());
    assert!(
        reply.text().contains("allowlist.yaml:2"),
        "{}",
        reply.text()
    );
    stream.read_exact(&mut [0; 1024]).unwrap();
    assert_eq!(proxy.fetch("api.example.com", "/status/204").status, 204);
}
