//! Hosts that are approved for every container, by `learned.yaml`.

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::each_row;

use super::{Asking, decide};
use crate::support::{Ran, SANDBOX, SECOND, SOON, Setup, assert_closes, eventually};

const HOST: &str = "one.example.org";

impl Asking {
    fn file(&self) -> Option<String> {
        fs::read_to_string(self.proxy.path("data/learned.yaml")).ok()
    }

    /// Approves the host for every container, and returns the question.
    #[track_caller]
    fn learn(&self, host: &str) -> String {
        let id = self.pending(host);
        decide(&self.proxy, &id, "approve", json!({ "scope": "always" }));
        id
    }

    /// The answer to an attempt to approve for every container.
    fn refused(&self, id: &str) -> (u16, String) {
        let path = format!("/internal/approvals/{id}/approve");
        let reply = self
            .proxy
            .admin("POST", &path, Some(json!({ "scope": "always" })));
        (reply.status, reply.text())
    }

    fn approvals(&self, arguments: &[&str]) -> Ran {
        let socket = self.proxy.path("api.sock");
        let socket = ["--socket", socket.to_str().unwrap()];
        self.proxy
            .cli(&[&["approvals"], arguments, &socket].concat())
    }

    fn connect_second(&self, host: &str) -> u16 {
        let authority = format!("{host}:{}", self.port());
        self.proxy.connect_from(SECOND, &authority).0.status
    }
}

#[test]
fn a_learned_host_is_open_for_every_container_over_a_restart_until_it_is_revoked() {
    let mut asking = Asking::start(|_| ());
    let port = asking.port();
    let id = asking.pending(HOST);
    let shown = asking.approvals(&["show", &id]).ok();
    assert!(shown.contains("scopes     for, lease, always\n"), "{shown}");
    let said = asking.approvals(&["approve", &id, "--always"]).ok();
    assert_eq!(
        said,
        format!("approved: {HOST}:{port} for every container\n")
    );
    assert_eq!(asking.fetch(HOST), 200);
    assert_eq!(asking.connect_second(HOST), 200);
    let dig = asking
        .proxy
        .dig(Ipv4Addr::LOCALHOST, &["+short", HOST, "A"]);
    assert_eq!(dig, "127.0.0.1\n");
    // Neither another port nor a name below.
    asking.pending(&format!("sub.{HOST}"));
    super::pending(&asking.proxy.connect(&format!("{HOST}:22")).0);

    let text = asking.file().unwrap();
    let uid = rustix::process::getuid().as_raw();
    for part in [
        format!("domain: \"{HOST}\", ports: [{port}], max_level: Public"),
        format!("author: \"uid {uid}"),
        format!("question: \"{id}\""),
    ] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    let act = json!({ "method": "operator/approve", "approval": id, "reason": "always" });
    asking.proxy.audited(act);
    asking
        .proxy
        .audited(json!({ "kind": "tunnel", "host": HOST, "rule": format!("grant {id}") }));

    let grants = asking.approvals(&["grants", "--json"]).ok();
    let grants: Value = serde_json::from_str(&grants).unwrap();
    let [grant] = grants["grants"].as_array().unwrap().as_slice() else {
        panic!("{grants}");
    };
    assert_eq!(grant["id"], *id);
    assert_eq!(
        (&grant["scope"], &grant["container_id"]),
        (&json!("always"), &json!("*"))
    );
    assert!(grant["given_by"].as_str().unwrap().starts_with("uid "));
    let patch = asking.approvals(&["learned", "--patch"]).ok();
    let line = format!("  - {{ domain: \"{HOST}\", ports: [{port}], max_level: Public }}\n");
    assert!(patch.ends_with(&line), "{patch}");

    asking.proxy.crash_and_restart();
    assert_eq!(asking.fetch(HOST), 200);
    assert_eq!(asking.connect_second(HOST), 200);
    assert_eq!(asking.file().as_ref(), Some(&text));
    let revoked = asking.approvals(&["revoke", &id[..8]]).ok();
    assert_eq!(
        revoked,
        format!("revoked: {HOST}:{port} for every container\n")
    );
    asking.pending(HOST);
    assert_eq!(asking.connect_second(HOST), 403);
    assert!(asking.file().unwrap().ends_with("domains: []\n"));
    assert_eq!(asking.approvals(&["learned"]).ok(), "there is no grant\n");
    asking
        .proxy
        .audited(json!({ "method": "operator/revoke", "approval": id }));
}

#[test]
fn tunnels_that_rest_on_a_learned_host_live_over_a_reload_and_end_when_it_is_revoked() {
    let asking = Asking::start(|_| ());
    let id = asking.learn(HOST);
    let mut tunnel = asking.proxy.tunnel(&format!("{HOST}:{}", asking.port()));
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    tunnel
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let waited = tunnel.read(&mut [0]).unwrap_err();
    assert_eq!(waited.kind(), std::io::ErrorKind::WouldBlock);
    asking.revoke(&id);
    tunnel.set_read_timeout(Some(SOON)).unwrap();
    assert_closes(&mut tunnel);
}

#[test]
fn where_the_configuration_is_broken_nothing_is_learned_and_the_question_stays() {
    let asking = Asking::start(|_| ());
    let id = asking.pending(HOST);
    let allowlist = asking.proxy.path("config/allowlist.yaml");
    let valid = fs::read_to_string(&allowlist).unwrap();
    fs::write(&allowlist, "version: 1\ndomains: [\"*.com\"]\n").unwrap();
    let (status, said) = asking.refused(&id);
    assert_eq!(status, 422, "{said}");
    assert!(said.contains("allowlist.yaml:2:"), "{said}");
    assert_eq!(asking.file(), None);
    assert_eq!(asking.pending(HOST), id);
    fs::write(&allowlist, valid).unwrap();
    asking.learn(HOST);
    assert_eq!(asking.fetch(HOST), 200);
}

#[test]
fn a_damaged_file_prevents_a_start_and_keeps_what_is_in_force() {
    let mut asking = Asking::start(|_| ());
    asking.learn(HOST);
    let path = asking.proxy.path("data/learned.yaml");
    let valid = fs::read_to_string(&path).unwrap();
    fs::write(&path, "version: 1\ndomains:\n- \"*.example.org\"\n").unwrap();
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 422);
    assert!(
        reply.text().contains("learned.yaml:3:3: domains[0]"),
        "{}",
        reply.text()
    );
    assert_eq!(asking.fetch(HOST), 200, "the old list is in force");
    asking.proxy.signal(rustix::process::Signal::TERM);
    asking.proxy.wait(SOON);
    asking.proxy.start_again();
    let status = asking.proxy.wait(SOON);
    assert_eq!(status.code(), Some(78));
    assert!(
        asking.proxy.log().contains("learned.yaml:3:3"),
        "{}",
        asking.proxy.log()
    );
    fs::write(&path, valid).unwrap();
    asking.proxy.restart();
    assert_eq!(asking.fetch(HOST), 200);
}

#[test]
fn the_setting_switches_learning_and_what_was_learned() {
    let asking = Asking::start(|_| ());
    asking.learn(HOST);
    let text = asking.file();
    let path = asking.proxy.path("config/proxy.yaml");
    let written = fs::read_to_string(&path).unwrap();
    let mut proxy: Value = serde_json::from_str(&written).unwrap();
    proxy["approvals"] = json!({ "learned": false });
    fs::write(&path, proxy.to_string()).unwrap();
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let id = asking.pending(HOST);
    let (status, said) = asking.refused(&id);
    assert_eq!(status, 422);
    assert!(said.contains("approvals.learned is off"), "{said}");
    assert_eq!(asking.questions()[0]["scopes"], json!(["for", "lease"]));
    assert_eq!(asking.file(), text);
    fs::write(&path, written).unwrap();
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(asking.fetch(HOST), 200);
}

#[test]
fn a_learned_host_is_judged_as_any_other() {
    let asking = Asking::start(|setup: &mut Setup| {
        setup.proxy["upstream"]["allow_private"] = json!(["127.0.0.1/32"]);
    });
    // It resolves to a guarded address.
    let guarded = "guarded.example.org";
    asking
        .nameserver
        .set(guarded, &[Ipv4Addr::new(169, 254, 169, 254)]);
    asking.learn(guarded);
    assert_eq!(asking.fetch(guarded), 403);
    asking
        .proxy
        .audited(json!({ "host": guarded, "code": "address_not_allowed" }));
    // The container's own list excludes it.
    asking.learn(HOST);
    asking.proxy.register_as(json!({
        "container_ip": SECOND.to_string(), "container_id": "second", "repos": [],
        "allowed_domains": ["api.example.com"],
    }));
    assert_eq!(asking.connect_second(HOST), 403);
    // The operator's rule denies it.
    let rules = json!({ "version": 1, "policy": {
        "unknown_hosts": "ask", "rules": [{ "name": "shut", "effect": "deny", "hosts": [HOST] }],
    } });
    fs::write(asking.proxy.path("config/policy.yaml"), rules.to_string()).unwrap();
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let (reply, _) = asking.connect(HOST);
    reply.assert_connect_denied(403, "rule_denied", "");
}

#[test]
fn a_held_request_passes_when_its_host_is_approved_for_everyone() {
    let asking = Asking::start(|setup| setup.proxy["approvals"] = json!({ "hold": "8s" }));
    std::thread::scope(|scope| {
        // The approval may come after the 8 s on a machine that is busy.
        let fetched = scope.spawn(|| {
            let mut status = 403;
            eventually("the host is approved", SOON, || {
                status = asking.fetch(HOST);
                status != 403
            });
            status
        });
        let mut questions = Vec::new();
        eventually("the question is waited for", SOON, || {
            questions = asking.questions();
            questions.first().is_some_and(|one| one["waiting"] == 1)
        });
        let id = questions[0]["id"].as_str().unwrap();
        decide(&asking.proxy, id, "approve", json!({ "scope": "always" }));
        assert_eq!(fetched.join().unwrap(), 200);
    });
    assert_eq!(asking.questions(), [Value::Null; 0]);
}

#[test]
fn an_entry_whose_approval_a_crash_cut_off_is_completed_or_removed_at_the_start() {
    each_row([None, Some("deny")], |act| {
        let mut asking = Asking::start(|_| ());
        let other = asking.learn("two.example.org");
        let id = asking.pending(HOST);
        let text = asking.file().unwrap();
        let line = text.lines().last().unwrap().to_owned();
        let line = line.replace("two.example.org", HOST).replace(&other, &id);
        if let Some(act) = act {
            decide(&asking.proxy, &id, act, json!({}));
        }
        asking.proxy.signal(rustix::process::Signal::KILL);
        asking.proxy.wait(SOON);
        fs::write(
            asking.proxy.path("data/learned.yaml"),
            format!("{text}{line}\n"),
        )
        .unwrap();
        asking.proxy.restart();
        let path = format!("/internal/approvals/{id}");
        let question = asking.proxy.admin("GET", &path, None).json();
        assert_eq!(question["container_id"], SANDBOX);
        let (state, status) = match act {
            None => ("approved", 200),
            Some(_) => ("denied", 403),
        };
        assert_eq!(question["state"], state);
        assert_eq!(asking.fetch(HOST), status);
        assert_eq!(asking.file().unwrap().contains(HOST), status == 200);
        assert_eq!(asking.fetch("two.example.org"), 200);
    });
}
