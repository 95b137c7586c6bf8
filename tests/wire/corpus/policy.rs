//! Denials by identity, policy and credentials, and the configuration that the denials of `git.rs`
//! and `tunnels.rs` share.

use std::net::{Ipv4Addr, TcpListener};

use addons::contract::Code;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::ask::{Ask, Ingress};
use super::files::Transcripts;
use super::send::Question;
use super::stage::Stage;
use super::{git, tunnels};
use crate::support::{Origin, Proxy, SANDBOX, SOON, Setup};

/// Address of a container that is registered for two hosts only.
const NARROW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Address of a container with a raised security level.
const RAISED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// Address of a container in bot mode.
pub const BOT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// A guarded address, which the proxy must not dial.
const INSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";

/// Records a denial of a plain request, and of each kind of request inside a tunnel.
pub fn inside(stage: &mut Stage, code: Code, name: &str, host: &str, change: impl Fn(Ask) -> Ask) {
    let asks = [
        (Ingress::Plain, Ask::plain(host)),
        (Ingress::Http1, Ask::http1(host)),
        (Ingress::Http2, Ask::http2(host)),
        (Ingress::WebSocket, Ask::http1(host).websocket()),
        (Ingress::PushReport, Ask::http1(host).push()),
        (Ingress::InfoRefs, Ask::http1(host).info_refs()),
    ];
    for (ingress, ask) in asks {
        stage.deny(code, ingress, name, &change(ask));
    }
}

/// Records a denial of a CONNECT, and of each kind of plain request.
pub fn outside(stage: &mut Stage, code: Code, name: &str, host: &str, change: impl Fn(Ask) -> Ask) {
    let asks = [
        (Ingress::Plain, Ask::plain(host)),
        (Ingress::Connect, Ask::connect(host)),
        (Ingress::WebSocket, Ask::plain(host).websocket()),
        (Ingress::PushReport, Ask::plain(host).push()),
        (Ingress::InfoRefs, Ask::plain(host).info_refs()),
    ];
    for (ingress, ask) in asks {
        stage.deny(code, ingress, name, &change(ask));
    }
}

/// Records the denial of a DNS question over UDP and over TCP.
pub fn dns(stage: &mut Stage, code: Code, from: Ipv4Addr, name: &str) {
    for tcp in [false, true] {
        stage.deny_dns(code, "", &Question::of(from, tcp, name));
    }
}

pub fn record() -> Transcripts {
    let origin = Origin::start();
    let mut stage = start(&origin, "report");
    identity(&mut stage);
    destinations(&mut stage);
    rules(&mut stage);
    credentials(&mut stage);
    git::record(&mut stage);
    tunnels::record(&mut stage);
    stage.finish()
}

/// Records pushes only, with `push_denials: status`.
pub fn record_pushes_by_status() -> Transcripts {
    let origin = Origin::start();
    let mut stage = start(&origin, "status").of_pushes();
    identity(&mut stage);
    destinations(&mut stage);
    rules(&mut stage);
    credentials(&mut stage);
    git::record(&mut stage);
    stage.finish()
}

/// The configuration for these denials and for the recorded output of `explain`.
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

fn start(origin: &Origin, push_denials: &str) -> Stage {
    Stage::new(registered(setup(origin, push_denials)), origin, Vec::new())
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

fn identity(stage: &mut Stage) {
    let code = Code::UnknownSource;
    outside(stage, code, "", "open", |ask| ask.from(STRANGER));
    dns(stage, code, STRANGER, "open.example.com");
    let code = Code::ContainerIdMismatch;
    let claims = |ask: Ask| ask.field("x-container-id", "another");
    inside(stage, code, "", "open", claims);
    stage.deny(code, Ingress::Connect, "", &claims(Ask::connect("open")));
    let agrees_first = claims(Ask::http1("open").field("x-container-id", SANDBOX));
    stage.deny(code, Ingress::Http1, "two-values", &agrees_first);
}

fn destinations(stage: &mut Stage) {
    let code = Code::DomainNotAllowed;
    outside(stage, code, "", "unlisted", |ask| ask);
    outside(stage, code, "allowed-domains", "open", |ask| {
        ask.from(NARROW)
    });
    dns(stage, code, Ipv4Addr::LOCALHOST, "unlisted.example.com");
    outside(stage, Code::LevelExceeded, "", "public", |ask| {
        ask.from(RAISED)
    });
    dns(stage, Code::LevelExceeded, RAISED, "public.example.com");
    outside(stage, Code::PortNotAllowed, "", "open", |ask| {
        ask.port(8443)
    });

    let code = Code::AddressNotAllowed;
    inside(stage, code, "", "inside", |ask| ask);
    outside(stage, code, "literal", "open", |ask| ask.host("192.0.2.1"));
    outside(stage, code, "guarded-literal", "open", |ask| {
        ask.host("169.254.169.254")
    });
    stage.deny(
        code,
        Ingress::Connect,
        "passthrough",
        &Ask::connect("pass-inside"),
    );
    dns(stage, code, Ipv4Addr::LOCALHOST, "192.0.2.1");

    let code = Code::MethodNotAllowed;
    for (ingress, ask) in [
        (Ingress::Plain, Ask::plain("open")),
        (Ingress::Http1, Ask::http1("open")),
        (Ingress::Http2, Ask::http2("open")),
    ] {
        stage.deny(code, ingress, "trace", &ask.clone().method("TRACE"));
        stage.deny(code, ingress, "unknown", &ask.method("FROB"));
    }
    let websocket = [
        Ask::http1("silent").websocket(),
        Ask::plain("silent").websocket(),
    ];
    for (ask, name) in websocket.iter().zip(["", "plain"]) {
        stage.deny(Code::WebsocketNotAllowed, Ingress::WebSocket, name, ask);
    }
    inside(stage, Code::HostMismatch, "", "open", |ask| {
        ask.authority("other.example.com")
    });
}

fn rules(stage: &mut Stage) {
    inside(stage, Code::RuleDenied, "", "ruled", |ask| ask);
    outside(stage, Code::RuleDenied, "whole-host", "shut", |ask| ask);
    inside(stage, Code::ApprovalPending, "", "asked", |ask| ask);
    outside(stage, Code::ApprovalPending, "whole-host", "waits", |ask| {
        ask
    });
}

fn credentials(stage: &mut Stage) {
    let code = Code::CredentialMisuse;
    inside(stage, code, "", "open", |ask| {
        ask.field("x-api-key", PLACEHOLDER)
    });
    let in_query = Ask::http1("open").path(&format!("/echo?key={PLACEHOLDER}"));
    stage.deny(code, Ingress::Http1, "query", &in_query);
}
