//! Denials by limits on requests, tunnels, certificates, questions and connections.

use std::net::Ipv4Addr;

use addons::contract::Code;
use serde_json::json;

use super::files::Transcripts;
use super::policy::outside;
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec};
use super::send::{Question, exchange};
use crate::support::{Origin, SOON, Setup, eventually, handshake};

/// Address of the container that reaches the limit on tunnels. The next three constants are the
/// addresses of the containers that reach other limits.
const TUNNEL_LIMIT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const CERTIFICATE_LIMIT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const CONNECTION_LIMIT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const QUESTION_LIMIT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const CONNECTIONS: usize = 3;

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = start(&origin);
    certificates(&mut recorder);
    requests(&mut recorder);
    tunnels(&mut recorder);
    questions(&mut recorder);
    connections(&mut recorder);
    recorder.finish()
}

fn start(origin: &Origin) -> Recorder {
    let mut setup = Setup::new(origin);
    for name in ["open", "second", "third"] {
        setup.host(&format!("{name}.example.com"), origin.https);
        setup.host(&format!("{name}-plain.example.com"), origin.http);
    }
    setup.proxy["limits"] = json!({
        "tunnels_per_second": 5, "certificates_per_minute": 1,
        "max_connections_per_container": CONNECTIONS,
    });
    setup.proxy["dns"] = json!({ "queries_per_minute": 1, "distinct_names_per_minute": 100 });
    // A bucket that holds one token and gains one per second is empty at the second of two requests
    // in a row.
    let limit = json!({ "requests_per_second": 1, "burst_size": 1 });
    setup.policy = Some(json!({ "version": 1, "rate_limits": { "defaults": limit } }));
    for (address, id) in [
        (TUNNEL_LIMIT, "connects"),
        (CERTIFICATE_LIMIT, "mints"),
        (CONNECTION_LIMIT, "holds"),
        (QUESTION_LIMIT, "asks"),
    ] {
        setup.containers.push((address.to_string(), id.into()));
    }
    Recorder::new(setup.start(), origin, Vec::new())
}

fn requests(recorder: &mut Recorder) {
    let code = Code::RateLimited;
    for (ingress, spec) in [
        (Ingress::Plain, RequestSpec::plain("open")),
        (Ingress::Http1, RequestSpec::http1("open")),
        (Ingress::Http2, RequestSpec::http2("open")),
        (Ingress::WebSocket, RequestSpec::plain("open").websocket()),
        (Ingress::PushReport, RequestSpec::plain("open").push()),
        (Ingress::InfoRefs, RequestSpec::plain("open").info_refs()),
    ] {
        recorder.exhaust(code, ingress, "", &spec);
    }
}

/// Opens both tunnels before the first handshake, since that handshake uses up the limit on
/// certificates, and the proxy then denies a CONNECT to another host.
fn certificates(recorder: &mut Recorder) {
    let code = Code::RateLimited;
    recorder.row(code, Ingress::Tls, "certificates", |proxy| {
        let tunnel = |host: &str| {
            proxy
                .connect_from(CERTIFICATE_LIMIT, &format!("{host}:443"))
                .1
        };
        let tunnels = ["open.example.com", "second.example.com"].map(|host| (host, tunnel(host)));
        let ends = tunnels.map(|(host, stream)| {
            match handshake(stream, host, proxy.tls_config(&["http/1.1"])) {
                Ok(mut stream) => {
                    let head = format!("GET /status/204 HTTP/1.1\r\nhost: {host}\r\n\r\n");
                    let answer = exchange(&mut stream, head.as_bytes(), false);
                    format!("{host}\n{answer}")
                }
                Err(error) => format!("{host}\n[{:?}]\n", error.kind()),
            }
        });
        let asked =
            format!("from {CERTIFICATE_LIMIT}\nTLS in two tunnels, of which one may be served\n");
        (asked, ends.concat())
    });
    let spec = RequestSpec::connect("plain").from(CERTIFICATE_LIMIT);
    recorder.deny(code, Ingress::Connect, "certificates", &spec);
}

fn tunnels(recorder: &mut Recorder) {
    let spec = RequestSpec::connect("open").from(TUNNEL_LIMIT);
    recorder.exhaust(Code::RateLimited, Ingress::Connect, "", &spec);
}

fn questions(recorder: &mut Recorder) {
    for tcp in [false, true] {
        let question = Question::of(QUESTION_LIMIT, tcp, "open.example.com");
        recorder.exhaust_dns(Code::RateLimited, "", &question);
    }
}

fn connections(recorder: &mut Recorder) {
    let held: Vec<_> = (0..CONNECTIONS)
        .map(|_| recorder.proxy.dial_from(CONNECTION_LIMIT))
        .collect();
    eventually("the connections are counted", SOON, || {
        recorder.proxy.metric("proxy_active_connections", &[]) >= CONNECTIONS as f64
    });
    let code = Code::TooManyConnections;
    outside(recorder, code, "", "open", |spec| {
        spec.from(CONNECTION_LIMIT)
    });
    drop(held);
}
