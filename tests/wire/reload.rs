//! Reloads of the configuration: valid files apply at once, except for settings that need a
//! restart, and invalid or missing ones change nothing.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, SOON, eventually};

const PLAIN: &str = "http://plain.example.com/echo";
/// Bound on the time from the change of a file to its effect.
const PROMISED: Duration = Duration::from_secs(5);

fn start(origin: &Origin) -> Proxy {
    let mut setup = crate::support::Setup::new(origin);
    // A static address, for a name without an allowlist entry.
    setup.proxy["upstream"]["hosts"]["late.example.com"] = json!(origin.http.to_string());
    setup.start()
}

fn write_allowlist(proxy: &Proxy, domains: &[&str]) {
    let text = json!({ "version": 1, "domains": domains }).to_string();
    std::fs::write(proxy.path("config/allowlist.yaml"), text).unwrap();
}

fn status(proxy: &Proxy, url: &str) -> u16 {
    proxy.get(url, &[]).status
}

#[test]
fn a_new_allowlist_entry_is_in_force_within_five_seconds() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let url = "http://late.example.com/echo";
    assert_eq!(status(&proxy, url), 403);
    write_allowlist(&proxy, &["plain.example.com", "late.example.com"]);
    eventually("the new entry is in force", PROMISED, || {
        status(&proxy, url) == 200
    });
    assert_eq!(status(&proxy, PLAIN), 200);
}

#[test]
fn a_changed_certificate_limit_applies_to_existing_leases() {
    let origin = Origin::start();
    let mut setup = crate::support::Setup::new(&origin);
    setup.proxy["limits"]["certificates_per_minute"] = json!(1);
    let mut changed = setup.proxy.clone();
    changed["limits"]["certificates_per_minute"] = json!(3);
    let proxy = setup.start();
    let minted = |host: &str| proxy.fetch(host, "/echo").status != 429;
    assert!(minted("api.example.com"));
    assert!(!minted("git.example.com"));
    std::fs::write(proxy.path("config/proxy.yaml"), changed.to_string()).unwrap();
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(minted("git.example.com"));
    assert!(minted("other.example.com"));
    assert!(!minted("wrong-name.example.com"));
}

#[test]
fn sighup_and_the_admin_api_reload_at_once() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let url = "http://late.example.com/echo";
    let reloads = |status: &str| {
        let label = format!("status=\"{status}\"");
        proxy.metric("proxy_config_reloads_total", &[&label])
    };
    write_allowlist(&proxy, &["plain.example.com", "late.example.com"]);
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(status(&proxy, url), 200, "the reload has not taken effect");

    write_allowlist(&proxy, &["plain.example.com"]);
    let before = reloads("ok");
    proxy.signal(Signal::HUP);
    eventually("the reload is counted", SOON, || reloads("ok") > before);
    assert_eq!(status(&proxy, url), 403);
}

#[test]
fn an_invalid_file_changes_nothing_and_every_error_of_every_file_is_reported() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let mut tunnel = proxy.tls("api.example.com");
    let broken =
        "version: 1\ndomains:\n  - late.example.com\n  - \"*.com\"\n  - \"a b\"\nbogus: 1\n";
    std::fs::write(proxy.path("config/allowlist.yaml"), broken).unwrap();
    let policy = "version: 1\ngit: { push_denials: loudly }\n";
    std::fs::write(proxy.path("config/policy.yaml"), policy).unwrap();

    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 422, "{}", reply.text());
    each_row(
        [
            "allowlist.yaml:4",
            "allowlist.yaml:5",
            "allowlist.yaml:6",
            "policy.yaml:2",
            "push_denials",
        ],
        |place| {
            assert!(
                reply.text().contains(place),
                "{place} is not in {}",
                reply.text()
            );
        },
    );
    let health = proxy.health();
    assert_eq!(health.status, 200, "the old configuration still serves");
    assert_eq!(health.json()["checks"]["configuration_current"], false);
    assert!(proxy.metric("proxy_config_reloads_total", &["status=\"failed\""]) >= 1.0);
    // Not even the valid entry of the invalid file applies.
    assert_eq!(status(&proxy, "http://late.example.com/echo"), 403);
    assert_eq!(status(&proxy, PLAIN), 200);
    proxy.signal(Signal::HUP);
    let request = b"GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    std::io::Write::write_all(&mut tunnel, request).unwrap();
    assert_eq!(crate::support::read_reply(&mut tunnel).unwrap().status, 200);

    std::fs::remove_file(proxy.path("config/policy.yaml")).unwrap();
    write_allowlist(&proxy, &["late.example.com"]);
    eventually("the corrected files are in force", PROMISED, || {
        status(&proxy, "http://late.example.com/echo") == 200
    });
    assert_eq!(
        proxy.health().json()["checks"]["configuration_current"],
        true
    );
    assert_eq!(status(&proxy, PLAIN), 403);
}

#[test]
fn a_removed_file_changes_nothing_and_fails_a_check_until_it_is_back() {
    let origin = Origin::start();
    let mut setup = crate::support::Setup::new(&origin);
    setup.policy = Some(json!({
        "version": 1,
        "policy": { "rules": [{ "name": "no-echo", "effect": "deny", "paths": ["^/echo$"] }] },
    }));
    let proxy = setup.start();
    let (policy, away) = (proxy.path("config/policy.yaml"), proxy.path("policy.away"));
    let is_current = || proxy.health().json()["checks"]["configuration_current"] == true;
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200);
    assert!(is_current(), "the check fails after a valid reload");
    assert_eq!(status(&proxy, PLAIN), 403);
    std::fs::rename(&policy, &away).unwrap();
    eventually("the check fails", PROMISED, || !is_current());
    assert_eq!(status(&proxy, PLAIN), 403);
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 422);
    let said = "policy.yaml was in force and is gone";
    assert!(reply.text().contains(said), "{}", reply.text());
    std::fs::rename(&away, &policy).unwrap();
    eventually("the check passes again", PROMISED, is_current);

    let (config, away) = (proxy.path("config"), proxy.path("config.away"));
    std::fs::rename(&config, &away).unwrap();
    eventually("the check fails", PROMISED, || !is_current());
    assert_eq!(status(&proxy, PLAIN), 403);
    std::fs::rename(&away, &config).unwrap();
    eventually("the check passes again", PROMISED, is_current);
}

#[test]
fn settings_that_need_a_restart_are_logged_and_the_others_apply() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let path = proxy.path("config/proxy.yaml");
    let mut file: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    file["listen"]["proxy"] = json!(["127.0.0.1:1"]);
    file["upstream"]["hosts"]["plain.example.com"] = json!("10.0.0.1:80");
    std::fs::write(&path, file.to_string()).unwrap();
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let log = proxy.log();
    assert!(
        log.contains("listen changed; restart the server to apply it"),
        "{log}"
    );
    proxy
        .get(PLAIN, &[])
        .assert_denied(403, "address_not_allowed", "");
    // A setting that is the one in force again needs no restart.
    let warnings = || proxy.log().matches("admin_uids changed").count();
    let mut reload = |uids: serde_json::Value| {
        file["admin_uids"] = uids;
        std::fs::write(&path, file.to_string()).unwrap();
        let before = warnings();
        proxy.admin("POST", "/internal/reload", None);
        warnings() > before
    };
    assert!(reload(json!([12345])));
    assert!(!reload(json!([])));
}
