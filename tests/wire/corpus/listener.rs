//! Denials of DNS over HTTP, on Unix sockets that each belong to one container.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use addons::contract::Code;
use rustix::process::Signal;
use serde_json::json;

use super::files::Transcripts;
use super::recorder::Recorder;
use super::request_spec::{Ingress, readable};
use super::send::header;
use super::upstream::failing_nameserver;
use crate::support::listener::{connect, dns_query, origin_form, question, send};
use crate::support::{Origin, Reply, SOON, Setup, eventually};

const CONNECTIONS: usize = 5;

const TYPED: &str = "content-type: application/dns-message\r\n";

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = start(&origin, "3s");
    names(&mut recorder);
    requests(&mut recorder);
    bodies(&mut recorder);
    budgets(&mut recorder);
    registry(&mut recorder);
    recorder.finish()
}

/// Records denials for lack of memory. The `inspect_timeout` is 60 s, so that the held bodies do
/// not time out.
pub fn record_memory() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = start(&origin, "60s");
    memory(&mut recorder);
    recorder.finish()
}

/// Records the denial of a request on a container's listener.
pub fn deny(recorder: &mut Recorder, code: Code, name: &str, socket: &Path, request: &[u8]) {
    recorder.row(code, Ingress::DnsHttp, name, |_| {
        (
            asked(request),
            answered(&send(&mut connect(socket), request)),
        )
    });
}

/// A POST of a DNS query for the A records of a name.
pub fn dns_question(name: &str) -> Vec<u8> {
    dns_query(&question(name))
}

fn start(origin: &Origin, inspect_timeout: &str) -> Recorder {
    let mut setup = Setup::new(origin);
    setup.host("open.example.com", origin.https);
    setup.host("public.example.com", origin.https);
    setup.allow("unresolved.example.org");
    let domains = setup.allowlist["domains"].as_array_mut().unwrap();
    domains.retain(|entry| entry != "public.example.com");
    setup.allow(json!({ "domain": "public.example.com", "max_level": "Public" }));
    setup.proxy["upstream"]["nameservers"] = json!([failing_nameserver().to_string()]);
    setup.proxy["limits"] = json!({
        "max_connections_per_container": CONNECTIONS,
        "inspect_memory": "1MB", "inspect_timeout": inspect_timeout,
    });
    setup.proxy["dns"] = json!({ "queries_per_minute": 10, "distinct_names_per_minute": 100 });
    let mut proxy = setup.start();
    proxy.own_listener("raised", json!({}));
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let registry = rusqlite::Connection::open(proxy.path("data/registry.db")).unwrap();
    let raise = "UPDATE containers SET level = 'Secret' WHERE id = 'raised'";
    assert_eq!(registry.execute(raise, []).unwrap(), 1);
    drop(registry);
    proxy.restart();
    Recorder::new(proxy, origin, Vec::new())
}

fn names(recorder: &mut Recorder) {
    let inner = recorder.proxy.own_listener("inner", json!({}));
    for (code, name) in [
        (Code::DomainNotAllowed, "unlisted.example.com"),
        (Code::AddressNotAllowed, "192.0.2.1"),
        (Code::UpstreamUnreachable, "unresolved.example.org"),
    ] {
        deny(recorder, code, "", &inner, &dns_question(name));
    }
    let raised = recorder.proxy.own_listener("raised", json!({}));
    let public = dns_question("public.example.com");
    deny(recorder, Code::LevelExceeded, "", &raised, &public);
    let fields = format!("{TYPED}x-container-id: another\r\n");
    let claims = origin_form("POST", "/dns-query", &fields, &question("open.example.com"));
    deny(recorder, Code::ContainerIdMismatch, "", &inner, &claims);
}

fn requests(recorder: &mut Recorder) {
    let socket = recorder.proxy.own_listener("requests", json!({}));
    let get = origin_form("GET", "/dns-query?dns=AAAB", "", b"");
    deny(recorder, Code::MethodNotAllowed, "", &socket, &get);
    let untyped = origin_form("POST", "/dns-query", "", &question("open.example.com"));
    deny(recorder, Code::UnsupportedEncoding, "", &socket, &untyped);
    for (name, request) in [
        ("no-message", dns_query(b"no message")),
        ("class", dns_query(&chaos())),
        ("elsewhere", origin_form("GET", "/", "", b"")),
    ] {
        deny(recorder, Code::MalformedRequest, name, &socket, &request);
    }
}

/// The head of a POST to `/dns-query` with this `Content-Length`.
fn announcing(bytes: usize) -> Vec<u8> {
    let head = format!("POST /dns-query HTTP/1.1\r\nhost: localhost\r\n{TYPED}");
    format!("{head}content-length: {bytes}\r\n\r\n").into_bytes()
}

fn bodies(recorder: &mut Recorder) {
    let socket = recorder.proxy.own_listener("bodies", json!({}));
    let longer = announcing(65_536);
    deny(recorder, Code::BodyTooLargeToInspect, "", &socket, &longer);
    deny(recorder, Code::BodyTimeout, "", &socket, &announcing(30));
}

fn memory(recorder: &mut Recorder) {
    let socket = recorder.proxy.own_listener("bodies", json!({}));
    // A container's share is a quarter of the memory, 256 KiB. Three bodies leave less than a
    // fourth one needs.
    let mut held = Vec::new();
    for _ in 0..3 {
        let reserved = || recorder.proxy.metric("proxy_inspection_memory_bytes", &[]);
        let before = reserved();
        let mut stream = connect(&socket);
        stream.write_all(&announcing(65_000)).unwrap();
        eventually("the body is held", SOON, || reserved() > before);
        held.push(stream);
    }
    deny(
        recorder,
        Code::InspectionBusy,
        "",
        &socket,
        &announcing(65_000),
    );
}

fn budgets(recorder: &mut Recorder) {
    let asks = recorder.proxy.own_listener("asks", json!({}));
    let request = dns_question("open.example.com");
    let once = || send(&mut connect(&asks), &request);
    // Uses up the budget without recording rows.
    while once().body[3] & 15 == 0 {}
    deny(recorder, Code::RateLimited, "", &asks, &request);
    let holds = recorder.proxy.own_listener("holds", json!({}));
    let held: Vec<UnixStream> = (0..CONNECTIONS).map(|_| connect(&holds)).collect();
    eventually("the connections are counted", SOON, || {
        recorder.proxy.metric("proxy_active_connections", &[]) >= CONNECTIONS as f64
    });
    deny(recorder, Code::TooManyConnections, "", &holds, &request);
    drop(held);
}

fn registry(recorder: &mut Recorder) {
    let socket = recorder.proxy.own_listener("last", json!({}));
    recorder.proxy.damage_registry();
    let request = dns_question("open.example.com");
    deny(recorder, Code::RegistryUnavailable, "", &socket, &request);
    recorder.proxy.repair_registry();
}

/// A question of class CHAOS.
fn chaos() -> Vec<u8> {
    let mut message = question("version.bind");
    *message.last_mut().unwrap() = 3;
    message
}

/// The transcript of a request: the head as text, and the body as escaped bytes.
fn asked(request: &[u8]) -> String {
    let end = request.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = request.split_at(end.unwrap() + 4);
    let mut shown = String::from("over the container's own listener\n");
    for line in readable(head).lines() {
        let _ = writeln!(shown, "> {line}");
    }
    let _ = writeln!(shown, "> {}", body.escape_ascii());
    shown
}

/// The transcript of a response. A DNS message in its body is shown by [`header`].
fn answered(reply: &Reply) -> String {
    let mut shown = format!("HTTP/1.1 {} {}\n", reply.status, reply.reason);
    for (name, value) in &reply.headers {
        let _ = writeln!(shown, "{name}: {value}");
    }
    let body = match reply.header("content-type") {
        Some("application/dns-message") => header(&reply.body),
        _ => readable(&reply.body),
    };
    let _ = write!(shown, "\n{body}");
    shown
}
