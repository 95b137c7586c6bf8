//! Requests that are held while a person decides.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Asking, decide};
use crate::support::{Reply, SOON, Setup, eventually};

fn holds(setup: &mut Setup) {
    setup.proxy["approvals"] = json!({ "hold": "8s" });
}

/// Waits until one question is open for which one request is held, and returns its id.
fn held(asking: &Asking) -> String {
    let mut questions = Vec::new();
    eventually("the question is open and waited for", SOON, || {
        questions = asking.questions();
        questions.first().is_some_and(|one| one["waiting"] == 1)
    });
    questions[0]["id"].as_str().unwrap().to_owned()
}

fn reload(asking: &Asking) {
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn a_held_request_passes_as_soon_as_it_is_approved() {
    let asking = Asking::start(holds);
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| asking.fetch("one.example.org"));
        let id = held(&asking);
        assert_eq!(asking.nameserver.asked(), [""; 0]);
        decide(&asking.proxy, &id, "approve", json!({}));
        assert_eq!(fetched.join().unwrap(), 200);
        let line = asking
            .proxy
            .audited(json!({ "kind": "tunnel", "approval": id }));
        assert!(line["waited_ms"].is_u64(), "{line}");
    });
}

/// What becomes of a request in absolute form that is held over a reload with this `policy`, and then
/// approved. Tried again if the machine was too busy to approve it while it was held.
fn held_over_a_reload(policy: &Value) -> (u16, Value) {
    let mut tried = (0..5).map(|_| try_over_a_reload(policy));
    let in_time = tried.find(|(_, code)| *code != "approval_pending");
    in_time.expect("five times too late")
}

fn try_over_a_reload(policy: &Value) -> (u16, Value) {
    let asking = Asking::start(holds);
    let url = format!("http://one.example.org:{}/echo", asking.origin.http.port());
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| asking.proxy.get(&url, &[]));
        let id = held(&asking);
        let file = json!({ "version": 1, "policy": policy });
        std::fs::write(asking.proxy.path("config/policy.yaml"), file.to_string()).unwrap();
        reload(&asking);
        // Long enough for the reload to end a flow that it forbids.
        std::thread::sleep(Duration::from_millis(300));
        decide(&asking.proxy, &id, "approve", json!({}));
        let reply = sent.join().unwrap();
        let code = match reply.status {
            200 => Value::Null,
            _ => reply.json()["code"].clone(),
        };
        (reply.status, code)
    })
}

#[test]
fn a_reload_does_not_cut_off_a_held_request_in_absolute_form() {
    let same = json!({ "unknown_hosts": "ask" });
    assert_eq!(held_over_a_reload(&same), (200, Value::Null));
}

const PUT: &str = "PUT /echo HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0\r\n\r\n";

/// The reply to a request about which a rule asks, held over a reload that adds a rule before it.
fn held_by_a_rule(first: &Value) -> Reply {
    let asks = json!({
        "name": "writes", "effect": "ask", "hosts": ["api.example.com"], "methods": ["PUT"],
    });
    let policy = |rules: &[&Value]| json!({ "version": 1, "policy": { "rules": rules } });
    let asking = Asking::start(|setup| {
        holds(setup);
        setup.policy = Some(policy(&[&asks]));
    });
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| asking.proxy.https("api.example.com", PUT));
        let id = held(&asking);
        let file = policy(&[first, &asks]).to_string();
        std::fs::write(asking.proxy.path("config/policy.yaml"), file).unwrap();
        reload(&asking);
        decide(&asking.proxy, &id, "approve", json!({}));
        let reply = sent.join().unwrap();
        asking.origin.assert_untouched();
        reply
    })
}

#[test]
fn a_held_request_is_not_sent_by_rules_that_are_no_longer_in_force() {
    for effect in ["deny", "allow"] {
        let first = json!({
            "name": "first", "effect": effect, "hosts": ["api.example.com"], "methods": ["PUT"],
        });
        let reply = held_by_a_rule(&first);
        assert_eq!(reply.status, 403, "{effect}");
        assert_eq!(reply.json()["code"], "approval_pending", "{effect}");
    }
}

#[test]
fn a_held_request_in_absolute_form_is_judged_again_by_the_configuration_in_force() {
    let denies = json!({
        "unknown_hosts": "ask",
        "rules": [{ "name": "shut", "effect": "deny", "hosts": ["one.example.org"] }],
    });
    let code = json!("rule_denied");
    assert_eq!(held_over_a_reload(&denies), (403, code));
}
