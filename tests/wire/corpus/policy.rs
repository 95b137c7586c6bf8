//! Denials by identity, policy and credentials, and the configuration that the denials of `git.rs`
//! and `tunnels.rs` share.

use std::net::{Ipv4Addr, TcpListener};

use addons::contract::Code;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::files::Transcripts;
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec};
use super::send::Question;
use super::{git, tunnels};
use crate::support::{Origin, Proxy, SANDBOX, SOON, Setup, UNKNOWN_SOURCE};

/// Address of a container that is registered for two hosts only.
const NARROW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Address of a container with a raised security level.
const RAISED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// Address of a container in bot mode.
pub const BOT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
/// A guarded address, which the proxy must not dial.
const INSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";

/// Records a denial of a plain request, and of each kind of request inside a tunnel.
pub fn inside(
    recorder: &mut Recorder,
    code: Code,
    name: &str,
    host: &str,
    change: impl Fn(RequestSpec) -> RequestSpec,
) {
    let asks = [
        (Ingress::Plain, RequestSpec::plain(host)),
        (Ingress::Http1, RequestSpec::http1(host)),
        (Ingress::Http2, RequestSpec::http2(host)),
        (Ingress::WebSocket, RequestSpec::http1(host).websocket()),
        (Ingress::PushReport, RequestSpec::http1(host).push()),
        (Ingress::InfoRefs, RequestSpec::http1(host).info_refs()),
    ];
    for (ingress, spec) in asks {
        recorder.deny(code, ingress, name, &change(spec));
    }
}

/// Records a denial of a CONNECT, and of each kind of plain request.
pub fn outside(
    recorder: &mut Recorder,
    code: Code,
    name: &str,
    host: &str,
    change: impl Fn(RequestSpec) -> RequestSpec,
) {
    let asks = [
        (Ingress::Plain, RequestSpec::plain(host)),
        (Ingress::Connect, RequestSpec::connect(host)),
        (Ingress::WebSocket, RequestSpec::plain(host).websocket()),
        (Ingress::PushReport, RequestSpec::plain(host).push()),
        (Ingress::InfoRefs, RequestSpec::plain(host).info_refs()),
    ];
    for (ingress, spec) in asks {
        recorder.deny(code, ingress, name, &change(spec));
    }
}

/// Records the denial of a DNS question over UDP and over TCP.
pub fn dns(recorder: &mut Recorder, code: Code, from: Ipv4Addr, name: &str) {
    for tcp in [false, true] {
        recorder.deny_dns(code, "", &Question::of(from, tcp, name));
    }
}

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = start(&origin, "report");
    identity(&mut recorder);
    destinations(&mut recorder);
    rules(&mut recorder);
    credentials(&mut recorder);
    git::record(&mut recorder);
    tunnels::record(&mut recorder);
    recorder.finish()
}

/// Records pushes only, with `push_denials: status`.
pub fn record_pushes_by_status() -> Transcripts {
    let origin = Origin::start();
    let mut recorder = start(&origin, "status").of_pushes();
    identity(&mut recorder);
    destinations(&mut recorder);
    rules(&mut recorder);
    credentials(&mut recorder);
    git::record(&mut recorder);
    recorder.finish()
}

/// The configuration for the denials of this file, `git.rs` and `tunnels.rs`, and for the recorded
/// output of `explain`.
pub fn setup(origin: &Origin, push_denials: &str) -> Setup {
    let guarded = TcpListener::bind((INSIDE, 0)).unwrap();
    let guarded = guarded.local_addr().unwrap();
    let mut setup = Setup::new(origin);
    setup.containers.clear();
    setup.proxy["upstream"]["allow_private"] = json!(["127.0.0.1/32"]);
    setup.proxy["upstream"]["hosts"] = json!({});
    setup.proxy["limits"] = json!({ "tunnels_per_second": 1000, "inspect_body_bytes": "4KB" });
    setup.allowlist["domains"] = json!([]);
    let names = [
        "open", "other", "silent", "git", "api", "ruled", "shut", "asked", "waits", "unlisted",
        "inside", "public",
    ];
    for name in names {
        for (suffix, address) in [("", origin.https), ("-plain", origin.http)] {
            let host = format!("{name}{suffix}.example.com");
            let address = if name == "inside" { guarded } else { address };
            setup.proxy["upstream"]["hosts"][&host] = json!(address.to_string());
            if name != "unlisted" {
                setup.allow(entry(&host, name));
            }
        }
    }
    for host in ["pass.example.com", "pass-inside.example.com"] {
        setup.host(
            host,
            if host == "pass.example.com" {
                origin.https
            } else {
                guarded
            },
        );
    }
    setup.proxy["tls"]["passthrough"] = json!(["pass.example.com", "pass-inside.example.com"]);
    setup.policy = Some(policy(push_denials));
    setup.credential(json!({
        "name": "vendor", "hosts": ["other.example.com"],
        "set_headers": { "x-api-key": "${VENDOR_KEY}" }, "remove_headers": ["authorization"],
    }));
    setup.credential(json!({
        "name": "elsewhere", "hosts": ["api.example.com"], "containers": ["narrow"],
        "bearer": "${VENDOR_KEY}",
    }));
    setup
        .env
        .push(("VENDOR_KEY".into(), "sk-live-4f9a1c7be02d58c36e".into()));
    setup
}

/// Starts the proxy, registers the containers, raises the security level of `raised` in the
/// registry's file, and restarts the proxy.
pub fn registered(setup: Setup) -> Proxy {
    let mut proxy = setup.start();
    for (address, id, more) in [
        (
            Ipv4Addr::LOCALHOST,
            SANDBOX,
            json!({ "repos": ["acme/web"] }),
        ),
        (
            BOT,
            "bot",
            json!({ "repos": ["acme/web"], "auth_mode": "bot" }),
        ),
        (RAISED, "raised", json!({})),
        (
            NARROW,
            "narrow",
            json!({ "allowed_domains": ["other.example.com", "other-plain.example.com"] }),
        ),
    ] {
        let mut body = json!({ "container_ip": address, "container_id": id, "repos": [] });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        proxy.register_as(body);
    }
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let registry = rusqlite::Connection::open(proxy.path("data/registry.db")).unwrap();
    let raise = "UPDATE containers SET level = 'Secret' WHERE id = 'raised'";
    assert_eq!(registry.execute(raise, []).unwrap(), 1);
    drop(registry);
    proxy.restart();
    proxy
}

fn start(origin: &Origin, push_denials: &str) -> Recorder {
    Recorder::new(registered(setup(origin, push_denials)), origin, Vec::new())
}

fn entry(host: &str, name: &str) -> Value {
    match name {
        "silent" => json!({ "domain": host, "websocket": false }),
        "public" => json!({ "domain": host, "max_level": "Public" }),
        _ => json!(host),
    }
}

fn policy(push_denials: &str) -> Value {
    let hosts = |name: &str| {
        [
            format!("{name}.example.com"),
            format!("{name}-plain.example.com"),
        ]
    };
    json!({
        "version": 1,
        "policy": { "rules": [
            { "name": "let-zen-pass", "effect": "allow", "hosts": hosts("ruled"),
              "methods": ["GET"], "paths": ["^/zen$"] },
            { "name": "no-reads-or-writes", "effect": "deny", "hosts": hosts("ruled"),
              "methods": ["GET", "POST"] },
            { "name": "shut", "effect": "deny", "hosts": hosts("shut") },
            { "name": "ask-first", "effect": "ask", "hosts": hosts("asked"),
              "methods": ["GET", "POST"] },
            { "name": "ask-always", "effect": "ask", "hosts": hosts("waits") },
        ] },
        "git": {
            "hosts": [
                { "host": "git.example.com", "api": "api.example.com" },
                { "host": "git-plain.example.com", "api": "api-plain.example.com" },
            ],
            "push_denials": push_denials,
            "push_limits": { "warning_bytes": "8KB", "hard_limit_bytes": "8KB" },
        },
    })
}

fn identity(recorder: &mut Recorder) {
    let code = Code::UnknownSource;
    outside(recorder, code, "", "open", |spec| spec.from(UNKNOWN_SOURCE));
    dns(recorder, code, UNKNOWN_SOURCE, "open.example.com");
    let code = Code::ContainerIdMismatch;
    let claims = |spec: RequestSpec| spec.field("x-container-id", "another");
    inside(recorder, code, "", "open", claims);
    recorder.deny(
        code,
        Ingress::Connect,
        "",
        &claims(RequestSpec::connect("open")),
    );
    let agrees_first = claims(RequestSpec::http1("open").field("x-container-id", SANDBOX));
    recorder.deny(code, Ingress::Http1, "two-values", &agrees_first);
}

fn destinations(recorder: &mut Recorder) {
    let code = Code::DomainNotAllowed;
    outside(recorder, code, "", "unlisted", |spec| spec);
    outside(recorder, code, "allowed-domains", "open", |spec| {
        spec.from(NARROW)
    });
    dns(recorder, code, Ipv4Addr::LOCALHOST, "unlisted.example.com");
    outside(recorder, Code::LevelExceeded, "", "public", |spec| {
        spec.from(RAISED)
    });
    dns(recorder, Code::LevelExceeded, RAISED, "public.example.com");
    outside(recorder, Code::PortNotAllowed, "", "open", |spec| {
        spec.port(8443)
    });

    let code = Code::AddressNotAllowed;
    inside(recorder, code, "", "inside", |spec| spec);
    outside(recorder, code, "literal", "open", |spec| {
        spec.host("192.0.2.1")
    });
    outside(recorder, code, "guarded-literal", "open", |spec| {
        spec.host("169.254.169.254")
    });
    recorder.deny(
        code,
        Ingress::Connect,
        "passthrough",
        &RequestSpec::connect("pass-inside"),
    );
    dns(recorder, code, Ipv4Addr::LOCALHOST, "192.0.2.1");

    let code = Code::MethodNotAllowed;
    for (ingress, spec) in [
        (Ingress::Plain, RequestSpec::plain("open")),
        (Ingress::Http1, RequestSpec::http1("open")),
        (Ingress::Http2, RequestSpec::http2("open")),
    ] {
        recorder.deny(code, ingress, "trace", &spec.clone().method("TRACE"));
        recorder.deny(code, ingress, "unknown", &spec.method("FROB"));
    }
    let websocket = [
        RequestSpec::http1("silent").websocket(),
        RequestSpec::plain("silent").websocket(),
    ];
    for (spec, name) in websocket.iter().zip(["", "plain"]) {
        recorder.deny(Code::WebsocketNotAllowed, Ingress::WebSocket, name, spec);
    }
    inside(recorder, Code::HostMismatch, "", "open", |spec| {
        spec.authority("other.example.com")
    });
}

fn rules(recorder: &mut Recorder) {
    inside(recorder, Code::RuleDenied, "", "ruled", |spec| spec);
    outside(recorder, Code::RuleDenied, "whole-host", "shut", |spec| {
        spec
    });
    inside(recorder, Code::ApprovalPending, "", "asked", |spec| spec);
    outside(
        recorder,
        Code::ApprovalPending,
        "whole-host",
        "waits",
        |spec| spec,
    );
}

fn credentials(recorder: &mut Recorder) {
    let code = Code::CredentialMisuse;
    inside(recorder, code, "", "open", |spec| {
        spec.field("x-api-key", PLACEHOLDER)
    });
    let in_query = RequestSpec::http1("open").path(&format!("/echo?key={PLACEHOLDER}"));
    recorder.deny(code, Ingress::Http1, "query", &in_query);
}
