//! Clients that do not trust the proxy's CA are audited as `client_rejected_certificate`.

use std::io::Write;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{NODE_AGENT, Origin, Proxy, SOON, eventually, read_reply};

const HOST: &str = "api.example.com";

const METRIC: &str = "proxy_client_certificate_rejections_total";

/// Runs a client with the proxy's address but without its CA; panics if the client succeeds.
fn distrusting(proxy: &Proxy, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", proxy.path(""))
        .env("https_proxy", proxy.url())
        .env("HTTPS_PROXY", proxy.url())
        .env("GIT_TERMINAL_PROMPT", "0")
        .args(arguments);
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{program} succeeded: {output:?}");
}

fn rejected(proxy: &Proxy, times: usize) -> Vec<Value> {
    eventually("the rejections are audited", SOON, || {
        rejections(proxy).len() >= times
    });
    rejections(proxy)
}

fn rejections(proxy: &Proxy) -> Vec<Value> {
    let of_code = |line: &Value| line["code"] == "client_rejected_certificate";
    proxy.audit().into_iter().filter(of_code).collect()
}

#[test]
fn each_client_that_does_not_trust_the_ca_is_audited_as_rejecting_it() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let url = "https://api.example.com/echo";
    let python = format!("import urllib.request; urllib.request.urlopen('{url}')");
    let node = format!(
        "{}https.get('{url}', {{ agent: new Tunnels() }}).on('error', () => process.exit(1))",
        NODE_AGENT
    );
    let clients: [(&str, &[&str]); 5] = [
        ("curl", &["--silent", url]),
        ("git", &["ls-remote", "https://api.example.com/acme/web"]),
        ("wget", &["--quiet", "--tries=1", "-O", "/dev/null", url]),
        ("python3", &["-c", &python]),
        ("node", &["-e", &node]),
    ];
    for (before, (program, arguments)) in clients.iter().enumerate() {
        distrusting(&proxy, program, arguments);
        let lines = rejected(&proxy, before + 1);
        let line = lines.last().unwrap();
        assert_eq!(line["host"], HOST, "{program}");
        assert_eq!(line["outcome"], "denied", "{program}");
        assert_eq!(line["status"], Value::Null, "{program}");
        assert_eq!(line["addon"], "proxy", "{program}");
    }
    assert!(proxy.metric(METRIC, &[]) >= clients.len() as f64);
    origin.assert_untouched();
}

#[test]
fn the_audit_line_of_a_rejection_has_the_clients_tls_alert_as_its_rule() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    distrusting(
        &proxy,
        "python3",
        &[
            "-c",
            "import urllib.request; urllib.request.urlopen('https://api.example.com/')",
        ],
    );
    proxy.audited(json!({ "code": "client_rejected_certificate", "rule": "unknown_ca" }));
}

#[test]
fn a_tunnel_that_served_a_request_or_outlasted_1_s_is_not_a_rejection() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
    let idle = proxy.tls(HOST);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    drop(idle);
    eventually("both tunnels are audited", SOON, || {
        let is_tunnel = |line: &&Value| line["kind"] == "tunnel" && line["outcome"] == "ok";
        proxy.audit().iter().filter(is_tunnel).count() == 2
    });
    assert_eq!(proxy.metric(METRIC, &[]), 0.0);
    assert_eq!(rejections(&proxy), Vec::<Value>::new());
}

#[test]
fn a_malformed_request_right_after_the_handshake_is_not_a_rejection() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    stream.write_all(b"no head at all\r\n\r\n").unwrap();
    let reply = read_reply(&mut stream).unwrap();
    assert_eq!(reply.status, 400);
    drop(stream);
    proxy.audited(json!({ "code": "malformed_request" }));
    proxy.audited(json!({ "kind": "tunnel", "outcome": "ok" }));
    assert_eq!(rejections(&proxy), Vec::<Value>::new());
}
