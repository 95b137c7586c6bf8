//! Metrics, audit lines, the list of flows and `explain`.

use addons::contract::Code;
use serde_json::json;

use crate::support::{Origin, Proxy, SANDBOX, SOON, Setup, eventually};

#[test]
fn requests_are_counted_by_allowlist_entry_and_denials_by_code() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["hosts"]["deep.example.org"] = json!(origin.https.to_string());
    setup.allow("*.example.org");
    let proxy = setup.start();
    proxy.fetch("deep.example.org", "/status/404");
    for number in 0..3 {
        proxy.get(&format!("http://x{number}.example.net/"), &[]);
    }
    eventually("the request is counted", SOON, || {
        let labels = [
            "method=\"GET\"",
            "upstream=\"*.example.org\"",
            "status=\"404\"",
        ];
        proxy.metric("proxy_requests_total", &labels) == 1.0
    });
    assert_eq!(
        proxy.metric("proxy_denials_total", &["code=\"domain_not_allowed\""]),
        3.0
    );
    assert_eq!(proxy.metric("proxy_registered_containers", &[]), 1.0);
    assert!(proxy.metric("proxy_request_duration_seconds_count", &["*.example.org"]) >= 1.0);
    // Clients cannot invent label values.
    let text = proxy.admin("GET", "/internal/metrics", None).text();
    assert!(
        !text.contains("x0.example.net") && !text.contains("deep."),
        "{text}"
    );
}

/// PromQL's `increase` misses the first count of a series that begins with 1, so series must begin
/// with 0.
#[test]
fn series_with_known_labels_exist_from_the_start_with_0() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.credential(json!({
        "name": "fixed", "hosts": ["api.example.com"], "bearer": "a-secret-of-nobody",
    }));
    let token_file = setup.dir().join("auth.json");
    std::fs::write(&token_file, json!({ "tokens": {} }).to_string()).unwrap();
    setup.credential(json!({
        "name": "login", "hosts": ["other.example.com"],
        "oauth": { "provider": "codex", "token_file": token_file },
    }));
    let proxy = setup.start();
    let text = proxy.admin("GET", "/internal/metrics", None).text();
    let missing: Vec<String> = known_series()
        .into_iter()
        .filter(|series| !text.lines().any(|line| line == format!("{series} 0")))
        .collect();
    assert!(missing.is_empty(), "{missing:#?} are not in\n{text}");
}

const OUTCOMES: &[&str] = &["ok", "denied", "failed", "aborted"];
const PUSH_DENIALS: &[&str] = &[
    "repo_not_authorized",
    "branch_deletion_blocked",
    "bot_branch_restricted",
    "push_too_large",
    "body_too_large_to_inspect",
    "unsupported_encoding",
    "malformed_request",
    "write_not_allowed",
];

/// The labels of a family with their values, in the order of the text format.
type Labels<'a> = &'a [(&'a str, &'a [&'a str])];

/// Series that a server with this configuration exposes from its start, with the value 0. A label
/// value that is unknown at the start excludes a family, for example the status in
/// `proxy_requests_total` or the container in `proxy_rate_limit_*`.
fn known_series() -> Vec<String> {
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let entry: Labels<'_> = &[("upstream", &["api.example.com"])];
    let families: [(&str, Labels<'_>); 16] = [
        ("active_connections", &[]),
        ("upstream_dns_failures_total", &[]),
        ("audit_lines_folded_total", &[]),
        ("audit_lines_dropped_total", &[]),
        ("denials_total", &[("code", &codes)]),
        ("git_push_blocked_total", &[("reason", PUSH_DENIALS)]),
        (
            "leaf_certificates_total",
            &[("outcome", &["minted", "cached", "limited", "failed"])],
        ),
        ("config_reloads_total", &[("status", &["ok", "failed"])]),
        (
            "trace_spans_total",
            &[("outcome", &["exported", "refused", "dropped"])],
        ),
        (
            "credentials_injected_total",
            &[("credential", &["fixed", "git-lfs", "login"])],
        ),
        ("circuit_breaker_state", entry),
        ("circuit_breaker_failures_total", entry),
        ("request_duration_seconds_count", entry),
        (
            "git_operations_total",
            &[
                ("operation", &["refs", "fetch", "push", "lfs", "page"]),
                ("outcome", OUTCOMES),
            ],
        ),
        (
            "dns_queries_total",
            &[
                ("outcome", OUTCOMES),
                ("type", &["A", "AAAA", "CNAME", "HTTPS", "ANY", "other"]),
            ],
        ),
        (
            "oauth_refreshes_total",
            &[
                ("outcome", &["ok", "refused", "failed"]),
                ("provider", &["codex"]),
            ],
        ),
    ];
    let of_family = |(name, labels)| combinations(labels).map(move |set| series(name, &set));
    families.into_iter().flat_map(of_family).collect()
}

fn combinations<'a>(labels: Labels<'a>) -> impl Iterator<Item = Vec<(&'a str, &'a str)>> {
    let mut sets = vec![Vec::new()];
    for (label, values) in labels {
        let with_each = |set: &Vec<(&'a str, &'a str)>| {
            let with = |value: &&'a str| [&set[..], &[(*label, *value)]].concat();
            values.iter().map(with).collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(with_each).collect();
    }
    sets.into_iter()
}

fn series(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
    match labels.is_empty() {
        true => format!("proxy_{name}"),
        false => format!("proxy_{name}{{{}}}", labels.join(",")),
    }
}

#[test]
fn every_flow_has_an_audit_line_without_its_query() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.fetch("api.example.com", "/echo/path?token=private");
    proxy.get("http://blocked.example.org/secret?token=private", &[]);
    let passed = proxy.audited(json!({
        "kind": "http", "container_id": SANDBOX, "method": "GET", "host": "api.example.com",
        "port": 443, "path": "/echo/path", "status": 200, "outcome": "ok",
    }));
    assert_eq!(passed["upstream_addr"], origin.https.to_string());
    let bytes_out = passed["bytes_out"].as_u64().unwrap();
    assert!(
        bytes_out > 0 && passed["duration_ms"].is_number(),
        "{passed}"
    );
    proxy.audited(json!({
        "host": "blocked.example.org", "status": 403, "outcome": "denied",
        "code": "domain_not_allowed", "addon": "policy", "path": "/secret",
    }));
    proxy.audited(json!({ "kind": "tunnel", "host": "api.example.com" }));
    let lines = proxy.audit();
    assert!(
        lines
            .iter()
            .all(|line| line["prev"].is_string() && line["flow"].is_string())
    );
    assert!(!format!("{lines:?}").contains("private"));
}

#[test]
fn a_flood_of_equal_flows_is_folded_and_other_containers_keep_their_lines() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["audit"]["lines_per_minute_per_container"] = json!(20);
    setup.containers.push(("127.0.0.2".into(), "second".into()));
    let proxy = setup.start();
    for _ in 0..200 {
        proxy.get("http://blocked.example.org/flood", &[]);
    }
    proxy.curl_from(
        std::net::Ipv4Addr::new(127, 0, 0, 2),
        &["http://blocked.example.org/other"],
    );
    proxy.audited(json!({ "container_id": "second", "path": "/other" }));
    assert!(proxy.metric("proxy_audit_lines_folded_total", &[]) > 100.0);
    let flood = |line: &serde_json::Value| line["path"] == "/flood";
    // 20 lines in each of at most two minutes.
    assert!(proxy.audit().into_iter().filter(flood).count() <= 40);
}

#[test]
fn flows_are_listed_when_they_have_ended() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.get("http://blocked.example.org/", &[]);
    eventually("the flow is listed", SOON, || {
        let reply = proxy.admin("GET", "/internal/flows", None);
        reply.text().contains("blocked.example.org")
    });
}

#[test]
fn explain_names_the_entry_that_permits_or_the_code_of_the_denial() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let socket = proxy.path("api.sock");
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let explain = |url: &str| {
        let socket = socket.to_str().unwrap();
        let ran = proxy.run(
            binary,
            &["explain", "--socket", socket, SANDBOX, "GET", url],
        );
        format!("{}{}", ran.stdout, ran.stderr)
    };
    assert!(explain("https://api.example.com/").contains("allowlist.yaml:"));
    assert!(explain("https://blocked.example.org/").contains("domain_not_allowed"));
    origin.assert_untouched();
}
