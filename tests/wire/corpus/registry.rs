//! Denials of expired leases, and denials while the registry cannot be read.

use std::net::Ipv4Addr;
use std::time::Duration;

use addons::contract::Code;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::files::Transcripts;
use super::policy::{dns, outside};
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec};
use super::send::{Connection, Question};
use crate::support::{Origin, Setup};

/// Lifetime of the leases: long enough to register all of them before they expire.
const LEASE: Duration = Duration::from_secs(5);

/// Last byte of the first container's address. Each request comes from a different container: the
/// first flow of an expired lease removes the lease, and later flows get `unknown_source`.
const BRIEF: u8 = 20;

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.host("open.example.com", origin.https);
    setup.host("open-plain.example.com", origin.http);
    let mut recorder = Recorder::new(setup.start(), &origin, Vec::new());
    expired(&mut recorder);
    unavailable(&mut recorder);
    recorder.finish()
}

fn expired(recorder: &mut Recorder) {
    let code = Code::RegistrationExpired;
    let requests = [
        (Ingress::Plain, RequestSpec::plain("open")),
        (Ingress::Connect, RequestSpec::connect("open")),
        (Ingress::WebSocket, RequestSpec::plain("open").websocket()),
        (Ingress::PushReport, RequestSpec::plain("open").push()),
        (Ingress::InfoRefs, RequestSpec::plain("open").info_refs()),
    ];
    let address = |number: usize| Ipv4Addr::new(127, 0, 0, BRIEF + u8::try_from(number).unwrap());
    let end = OffsetDateTime::now_utc() + LEASE;
    for number in 0..requests.len() + 2 {
        recorder.proxy.register_as(json!({
            "container_ip": address(number), "container_id": format!("brief-{number}"),
            "repos": [], "expires_at": end.format(&Rfc3339).unwrap(),
        }));
    }
    while OffsetDateTime::now_utc() < end + Duration::from_millis(50) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for (number, (ingress, spec)) in requests.into_iter().enumerate() {
        recorder.deny(code, ingress, "", &spec.from(address(number)));
    }
    for (number, tcp) in [(5, false), (6, true)] {
        let question = Question::of(address(number), tcp, "open.example.com");
        recorder.deny_dns(code, "", &question);
    }
}

fn unavailable(recorder: &mut Recorder) {
    let code = Code::RegistryUnavailable;
    let (http1, http2) = (RequestSpec::http1("open"), RequestSpec::http2("open"));
    let websocket = RequestSpec::http1("open").websocket();
    // Opens the tunnels first: while the registry is unreadable, the proxy denies a CONNECT.
    let connections =
        [&http1, &http2, &websocket].map(|spec| Connection::open(&recorder.proxy, spec));
    recorder.proxy.damage_registry();
    outside(recorder, code, "", "open", |spec| spec);
    dns(recorder, code, Ipv4Addr::LOCALHOST, "open.example.com");
    let [on_http1, on_http2, on_websocket] = connections;
    recorder.deny_on(code, Ingress::Http1, "", &http1, on_http1);
    recorder.deny_on(code, Ingress::Http2, "", &http2, on_http2);
    recorder.deny_on(
        code,
        Ingress::WebSocket,
        "in-a-tunnel",
        &websocket,
        on_websocket,
    );
    recorder.proxy.repair_registry();
}
