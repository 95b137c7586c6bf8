//! Containers that flood or reach for the queue, and a ledger that cannot be read.

use super::*;

#[test]
fn a_flood_of_one_container_leaves_the_questions_of_another_unharmed() {
    let asking = Asking::start(|_| ());
    let mut full = 0;
    for number in 0..40 {
        let (reply, _) = asking.connect(&format!("flood-{number}.example.org"));
        if reply.json()["code"] == "domain_not_allowed" {
            assert_eq!(reply.json()["outcome"], "full");
            full += 1;
        } else {
            pending(&reply);
        }
    }
    assert!(full >= 8, "{full}");
    let authority = format!("one.example.org:{}", asking.port());
    let id = pending(&asking.proxy.connect_from(SECOND, &authority).0);
    decide(&asking.proxy, &id, "approve", json!({}));
    let (reply, _) = asking.proxy.connect_from(SECOND, &authority);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(asking.nameserver.asked(), [""; 0]);
}

#[test]
fn a_container_reaches_no_route_of_approvals() {
    let asking = Asking::start(|_| ());
    let id = asking.pending("one.example.org");
    let own = asking.proxy.address;
    let requests = [
        format!("POST /internal/approvals/{id}/approve HTTP/1.1\r\nHost: {own}\r\n"),
        format!("GET /internal/approvals HTTP/1.1\r\nHost: {own}\r\n"),
        "GET /internal/approvals HTTP/1.1\r\nHost: unified-proxy\r\n".to_owned(),
        format!("POST http://{own}/internal/approvals/{id}/approve HTTP/1.1\r\nHost: {own}\r\n"),
        "GET http://localhost/internal/grants HTTP/1.1\r\nHost: localhost\r\n".to_owned(),
    ];
    each_row(requests, |head| {
        let reply = asking
            .proxy
            .exchange(format!("{head}Content-Length: 0\r\n\r\n"));
        assert!((400..500).contains(&reply.status), "{head}: {reply:?}");
        assert!(!reply.text().contains("created_at"), "{reply:?}");
    });
    assert_eq!(asking.pending("one.example.org"), id);
}

#[test]
fn without_its_ledger_the_proxy_denies_what_needs_an_approval_and_nothing_else() {
    let asking = Asking::start(|_| ());
    let ledger = asking.proxy.path("data/approvals.db");
    let aside = asking.proxy.path("data/aside.db");
    let id = asking.pending("one.example.org");
    std::fs::rename(&ledger, &aside).unwrap();
    std::fs::write(&ledger, b"this is no database".repeat(500)).unwrap();
    let (reply, _) = asking.connect("one.example.org");
    reply.assert_connect_denied(503, "registry_unavailable", "Registry unavailable");
    assert_eq!(asking.proxy.fetch("api.example.com", "/echo").status, 200);
    std::fs::rename(&aside, &ledger).unwrap();
    assert_eq!(asking.pending("one.example.org"), id, "nothing is lost");
}
