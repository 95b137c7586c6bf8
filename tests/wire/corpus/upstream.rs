//! Denials caused by faulty upstreams and nameservers, and by a missing secret file.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use addons::contract::Code;
use serde_json::json;

use super::files::Transcripts;
use super::listener::{self, dns_question};
use super::policy::{dns, inside};
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec};
use super::send::{Connection, Question};
use crate::support::{Origin, RawOrigin, SOON, Setup, closed_address, eventually};

const SANDBOX: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Faulty upstreams, to which host names of the test proxy resolve.
struct Upstreams {
    closed: SocketAddr,
    silent: RawOrigin,
    no_tls: RawOrigin,
}

impl Upstreams {
    fn start() -> Self {
        Self {
            closed: closed_address(),
            silent: RawOrigin::start(|mut stream| {
                std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
            }),
            no_tls: RawOrigin::start(|mut stream| {
                std::io::Write::write_all(&mut stream, b"SSH-2.0-server\r\n")
            }),
        }
    }

    /// The upstreams' addresses, each with the placeholder that replaces it in transcripts.
    fn known(&self) -> Vec<(String, &'static str)> {
        vec![
            (self.closed.to_string(), "<closed upstream>"),
            (self.silent.address.to_string(), "<silent upstream>"),
            (self.no_tls.address.to_string(), "<upstream without TLS>"),
        ]
    }
}

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let upstreams = Upstreams::start();
    let setup = setup(&origin, &upstreams);
    let secret = setup.dir().join("secret");
    let mut recorder = Recorder::new(setup.start(), &origin, upstreams.known());
    std::fs::remove_file(secret).unwrap();
    failures(&mut recorder);
    circuits(&mut recorder);
    credentials(&mut recorder);
    recorder.finish()
}

/// Records timeouts with a separate proxy, whose timeouts are 1 s. On a busy machine, the requests
/// of the other rows could exceed them.
pub fn record_time_outs() -> Transcripts {
    let origin = Origin::start();
    let upstreams = Upstreams::start();
    let mut setup = setup(&origin, &upstreams);
    setup.proxy["upstream"]["connect_timeout"] = json!("1s");
    setup.proxy["upstream"]["response_timeout"] = json!("1s");
    let mut recorder = Recorder::new(setup.start(), &origin, upstreams.known());
    time_outs(&mut recorder);
    recorder.finish()
}

fn setup(origin: &Origin, upstreams: &Upstreams) -> Setup {
    let mut setup = Setup::new(origin);
    for (name, address) in [
        ("closed", upstreams.closed),
        ("broken", upstreams.closed),
        ("no-tls", upstreams.no_tls.address),
        ("slow", upstreams.silent.address),
    ] {
        setup.host(&format!("{name}.example.com"), address);
        setup.host(&format!("{name}-plain.example.com"), address);
    }
    for name in ["slow", "vendor"] {
        setup.host(&format!("{name}-tls.example.com"), origin.https);
    }
    for name in ["pass-closed", "pass-broken"] {
        setup.host(&format!("{name}.example.com"), upstreams.closed);
    }
    setup.proxy["tls"]["passthrough"] =
        json!(["pass-closed.example.com", "pass-broken.example.com"]);
    let never = json!({ "failure_threshold": 1000 });
    let at_once = json!({ "failure_threshold": 1, "recovery_timeout": 600 });
    let broken = ["broken", "broken-plain", "pass-broken"];
    let broken = broken.map(|name| (format!("{name}.example.com"), at_once.clone()));
    let broken: serde_json::Map<_, _> = broken.into_iter().collect();
    setup.policy = Some(json!({
        "version": 1,
        "circuit_breakers": { "defaults": never, "upstreams": broken },
    }));
    let file = setup.dir().join("secret");
    std::fs::write(&file, "sk-live-4f9a1c7be02d58c36e\n").unwrap();
    setup.credential(json!({
        "name": "vendor", "hosts": ["vendor-tls.example.com"],
        "set_headers": { "x-api-key": { "file": file } },
    }));
    setup
}

fn failures(recorder: &mut Recorder) {
    let code = Code::UpstreamUnreachable;
    inside(recorder, code, "", "closed", |spec| spec);
    recorder.deny(
        code,
        Ingress::Connect,
        "passthrough",
        &RequestSpec::connect("pass-closed"),
    );
    in_tunnels(recorder, Code::UpstreamTls, "", "no-tls");
    for name in ["wrong-name", "expired", "self-signed"] {
        recorder.deny(
            Code::UpstreamTls,
            Ingress::Http1,
            name,
            &RequestSpec::http1(name),
        );
    }
}

fn circuits(recorder: &mut Recorder) {
    let code = Code::CircuitOpen;
    for spec in [
        RequestSpec::plain("broken"),
        RequestSpec::http1("broken"),
        RequestSpec::connect("pass-broken"),
    ] {
        Connection::open(&recorder.proxy, &spec).send(&spec);
    }
    inside(recorder, code, "", "broken", |spec| spec);
    recorder.deny(
        code,
        Ingress::Connect,
        "passthrough",
        &RequestSpec::connect("pass-broken"),
    );
}

fn time_outs(recorder: &mut Recorder) {
    let code = Code::UpstreamTimeout;
    recorder.deny(code, Ingress::Plain, "", &RequestSpec::plain("slow"));
    recorder.deny(
        code,
        Ingress::WebSocket,
        "",
        &RequestSpec::plain("slow").websocket(),
    );
    recorder.deny(
        code,
        Ingress::PushReport,
        "",
        &RequestSpec::plain("slow").push(),
    );
    recorder.deny(
        code,
        Ingress::InfoRefs,
        "",
        &RequestSpec::plain("slow").info_refs(),
    );
    // `slow` never answers the TLS handshake. `slow-tls` completes the handshake, and responds to
    // the request after 5 s.
    recorder.deny(
        code,
        Ingress::Http1,
        "handshake",
        &RequestSpec::http1("slow"),
    );
    for (ingress, spec) in [
        (Ingress::Http1, RequestSpec::http1("slow-tls")),
        (Ingress::Http2, RequestSpec::http2("slow-tls")),
    ] {
        recorder.deny(code, ingress, "", &spec.path("/slow/5000"));
    }
}

fn credentials(recorder: &mut Recorder) {
    let code = Code::CredentialUnavailable;
    let spec = RequestSpec::http1("vendor-tls");
    eventually(
        "requests are denied once the secret file is missing",
        SOON,
        || {
            let answer = Connection::open(&recorder.proxy, &spec).send(&spec);
            std::thread::sleep(Duration::from_millis(100));
            answer.contains(code.as_str())
        },
    );
    in_tunnels(recorder, code, "", "vendor-tls");
}

/// Records a denial of each kind of request inside a tunnel.
fn in_tunnels(recorder: &mut Recorder, code: Code, name: &str, host: &str) {
    for (ingress, spec) in [
        (Ingress::Http1, RequestSpec::http1(host)),
        (Ingress::Http2, RequestSpec::http2(host)),
        (Ingress::WebSocket, RequestSpec::http1(host).websocket()),
        (Ingress::PushReport, RequestSpec::http1(host).push()),
        (Ingress::InfoRefs, RequestSpec::http1(host).info_refs()),
    ] {
        recorder.deny(code, ingress, name, &spec);
    }
}

/// Records denials while the nameserver answers SERVFAIL.
pub fn record_unresolved() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = resolving(&origin, failing_nameserver());
    let code = Code::UpstreamUnreachable;
    dns(&mut recorder, code, SANDBOX, "unresolved.example.org");
    recorder.deny(
        code,
        Ingress::Plain,
        "unresolved",
        &unresolved(RequestSpec::plain("")),
    );
    recorder.finish()
}

/// Starts a nameserver that answers every query with SERVFAIL; returns its address.
pub fn failing_nameserver() -> SocketAddr {
    let nameserver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = nameserver.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, peer)) = nameserver.recv_from(&mut message) {
            message[2] |= 0x80;
            message[3] = 2;
            let _ = nameserver.send_to(&message[..length], peer);
        }
    });
    address
}

/// Records a denial while no nameserver listens at the configured address. The look-up ends only at
/// its time limit of 4.5 s.
pub fn record_slow_look_up(ingress: Ingress) -> Transcripts {
    let origin = Origin::start();
    let mut recorder = resolving(&origin, SocketAddr::from(([127, 0, 0, 1], 9)));
    let code = Code::UpstreamTimeout;
    let question = |tcp| Question::of(SANDBOX, tcp, "unresolved.example.org");
    match ingress {
        Ingress::DnsUdp => recorder.deny_dns(code, "", &question(false)),
        Ingress::DnsTcp => recorder.deny_dns(code, "", &question(true)),
        Ingress::DnsHttp => {
            let socket = recorder.proxy.own_listener("inner", json!({}));
            listener::deny(
                &mut recorder,
                code,
                "",
                &socket,
                &dns_question("unresolved.example.org"),
            );
        }
        _ => recorder.deny(
            code,
            ingress,
            "passthrough",
            &unresolved(RequestSpec::connect("")),
        ),
    }
    recorder.finish()
}

fn resolving(origin: &Origin, nameserver: SocketAddr) -> Recorder {
    let mut setup = Setup::new(origin);
    setup.allow("unresolved.example.org");
    setup.proxy["tls"]["passthrough"] = json!(["unresolved.example.org"]);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.to_string()]);
    Recorder::new(setup.start(), origin, Vec::new())
}

fn unresolved(spec: RequestSpec) -> RequestSpec {
    spec.host("unresolved.example.org")
}
