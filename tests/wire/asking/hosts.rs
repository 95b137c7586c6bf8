//! What an approval of a host covers, and which hosts no person is asked about.

use super::*;

#[test]
fn an_unlisted_host_is_resolved_and_reached_only_after_its_approval() {
    let asking = Asking::start(|_| ());
    let (port, host) = (asking.port(), "one.example.org");
    let dig = || asking.proxy.dig(Ipv4Addr::LOCALHOST, &[host, "A"]);
    let (reply, mut stream) = asking.connect(host);
    let id = pending(&reply);
    let sentence = format!("Waiting for approval {id}: repeat the request after it was approved");
    reply.assert_connect_denied(403, "approval_pending", &sentence);
    assert_closes(&mut stream);
    assert_eq!(
        asking.pending(host),
        id,
        "the same request joins the question"
    );
    let plain = asking.proxy.get(&format!("http://{host}:{port}/echo"), &[]);
    assert_eq!(pending(&plain), id);
    assert!(dig().contains("NXDOMAIN"));
    let questions = asking.questions();
    assert_eq!(questions.len(), 1, "{questions:?}");
    assert_eq!(questions[0]["subject"], format!("{host}:{port}"));
    assert_eq!(questions[0]["kind"], "host");
    assert_eq!(questions[0]["container_id"], SANDBOX);
    assert_eq!(asking.nameserver.asked(), [""; 0]);
    asking.origin.assert_untouched();

    decide(&asking.proxy, &id, "approve", json!({}));
    assert_eq!(asking.fetch(host), 200);
    assert_eq!(asking.fetch("ONE.Example.ORG."), 200);
    assert!(dig().contains("\t127.0.0.1\n"));
    assert!(asking.nameserver.asked().iter().all(|asked| asked == host));
    let grant = asking.grant_of(&id);
    let rule = format!("grant {grant}");
    asking
        .proxy
        .audited(json!({ "kind": "tunnel", "host": host, "rule": rule, "approval": grant }));
    asking
        .proxy
        .audited(json!({ "kind": "http", "host": host, "approval": grant, "status": 200 }));
    let denied = json!({ "kind": "tunnel", "code": "approval_pending", "approval": id });
    let line = asking.proxy.audited(denied);
    assert!(line["waited_ms"].is_null(), "it was not held: {line}");
    assert_eq!(asking.proxy.fetch("api.example.com", "/echo").status, 200);
    let line = asking
        .proxy
        .audited(json!({ "host": "api.example.com", "kind": "http" }));
    assert!(line["approval"].is_null(), "nobody was asked: {line}");
    let counted = ["upstream=\"granted\"", "method=\"GET\""];
    assert!(asking.proxy.metric("proxy_requests_total", &counted) >= 1.0);
    assert!(
        !asking
            .proxy
            .admin("GET", "/internal/metrics", None)
            .text()
            .contains("one.example.org")
    );
}

#[test]
fn an_approval_covers_nothing_beside_its_container_host_and_port() {
    let asking = Asking::start(|_| ());
    let (port, host) = (asking.port(), "one.example.org");
    asking.approve(host, json!({ "scope": "lease" }));
    assert_eq!(asking.fetch(host), 200);
    let elsewhere = [
        format!("{host}:{}", asking.origin.http.port()),
        format!("sub.{host}:{port}"),
        format!("two.example.org:{port}"),
        format!("xn--bcher-kva.example.org:{port}"),
    ];
    each_row(elsewhere, |authority| {
        pending(&asking.proxy.connect(&authority).0);
    });
    let subjects: Vec<Value> = asking
        .questions()
        .iter()
        .map(|one| one["subject"].clone())
        .collect();
    let idn = format!("xn--bcher-kva.example.org:{port}");
    assert!(
        subjects.iter().any(|subject| *subject == idn),
        "{subjects:?}"
    );
    let (reply, _) = asking.proxy.connect_from(SECOND, &format!("{host}:{port}"));
    let theirs = pending(&reply);
    let shown = asking
        .proxy
        .admin("GET", &format!("/internal/approvals/{theirs}"), None)
        .json();
    assert_eq!(shown["container_id"], "second");
    // A new lease of the same container begins without grants.
    let lease = json!({ "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["o/n"] });
    asking.proxy.register_as(lease);
    asking.pending(host);
}

#[test]
fn what_no_person_may_permit_is_denied_as_ever() {
    let asking = Asking::start(|setup| {
        setup.policy.as_mut().unwrap()["policy"]["rules"] =
            json!([{ "name": "shut", "effect": "deny", "hosts": ["two.example.org"] }]);
    });
    asking.proxy.register_as(json!({
        "container_ip": SECOND.to_string(), "container_id": "second", "repos": [],
        "allowed_domains": ["api.example.com"],
    }));
    each_row(
        [
            ("93.184.216.34:443", "address_not_allowed"),
            ("169.254.169.254:80", "address_not_allowed"),
            ("[::1]:443", "address_not_allowed"),
            ("localhost:443", "domain_not_allowed"),
            ("com:443", "domain_not_allowed"),
            ("github.io:443", "domain_not_allowed"),
            ("metadata.google.internal:80", "domain_not_allowed"),
            ("two.example.org:443", "rule_denied"),
            ("api.example.com:22", "port_not_allowed"),
        ],
        |(authority, code)| {
            let (reply, _) = asking.proxy.connect(authority);
            reply.assert_connect_denied(403, code, "");
        },
    );
    let (reply, _) = asking.proxy.connect_from(SECOND, "one.example.org:443");
    reply.assert_connect_denied(403, "domain_not_allowed", "");
    assert_eq!(asking.questions(), [Value::Null; 0]);
    assert_eq!(asking.nameserver.asked(), [""; 0]);
}

#[test]
fn an_approved_name_that_resolves_to_a_guarded_address_is_denied() {
    let asking = Asking::start(|setup| {
        setup.proxy["upstream"]["allow_private"] = json!(["127.0.0.1/32"]);
    });
    let host = "guarded.example.org";
    asking
        .nameserver
        .set(host, &[Ipv4Addr::new(169, 254, 169, 254)]);
    asking.approve(host, json!({}));
    assert_eq!(asking.fetch(host), 403);
    asking
        .proxy
        .audited(json!({ "host": host, "code": "address_not_allowed" }));
}
