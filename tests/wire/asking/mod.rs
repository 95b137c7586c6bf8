//! Hosts on no allowlist, and requests that a rule asks about: a person approves or denies them.

mod ends;
mod learned;

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{
    Nameserver, Origin, Proxy, Reply, SANDBOX, SECOND, SOON, Setup, assert_closes, eventually,
    handshake, read_reply,
};

/// A proxy that asks about unlisted hosts, for two containers, and a nameserver that resolves names
/// below example.org to the origin.
struct Asking {
    origin: Origin,
    nameserver: Nameserver,
    proxy: Proxy,
}

const NAMES: [&str; 4] = [
    "one.example.org",
    "two.example.org",
    "sub.one.example.org",
    "xn--bcher-kva.example.org",
];

impl Asking {
    fn start(change: impl FnOnce(&mut Setup)) -> Self {
        let origin = Origin::start();
        let nameserver = Nameserver::start(&NAMES.map(|name| (name, &[Ipv4Addr::LOCALHOST][..])));
        let mut setup = Setup::new(&origin);
        setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
        setup.policy = Some(json!({ "version": 1, "policy": { "unknown_hosts": "ask" } }));
        setup.containers.push((SECOND.to_string(), "second".into()));
        change(&mut setup);
        let proxy = setup.start();
        Self {
            origin,
            nameserver,
            proxy,
        }
    }

    fn port(&self) -> u16 {
        self.origin.https.port()
    }

    fn connect(&self, host: &str) -> (Reply, TcpStream) {
        self.proxy.connect(&format!("{host}:{}", self.port()))
    }

    /// Connects, asserts that the host waits for an approval, and returns its id.
    #[track_caller]
    fn pending(&self, host: &str) -> String {
        pending(&self.connect(host).0)
    }

    /// Approves the question of a host, and returns its grant.
    #[track_caller]
    fn approve(&self, host: &str, scope: Value) -> String {
        let id = self.pending(host);
        decide(&self.proxy, &id, "approve", scope);
        self.grant_of(&id)
    }

    #[track_caller]
    fn grant_of(&self, approval: &str) -> String {
        let grants = self.proxy.admin("GET", "/internal/grants", None).json();
        let grants = grants["grants"].as_array().unwrap().clone();
        let grant = grants.iter().find(|grant| grant["approval"] == approval);
        grant.unwrap()["id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn revoke(&self, grant: &str) {
        let reply = self
            .proxy
            .admin("DELETE", &format!("/internal/grants/{grant}"), None);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// Connects and sends a GET over TLS; returns its status, or that of the CONNECT.
    fn fetch(&self, host: &str) -> u16 {
        let (reply, stream) = self.connect(host);
        if reply.status != 200 {
            return reply.status;
        }
        let config = self.proxy.tls_config(&["http/1.1"]);
        let mut stream = handshake(stream, host, config).unwrap();
        let authority = format!("{host}:{}", self.port());
        write!(stream, "GET /echo HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
        read_reply(&mut stream).unwrap().status
    }

    fn questions(&self) -> Vec<Value> {
        let listed = self
            .proxy
            .admin("GET", "/internal/approvals?state=pending", None);
        listed.json()["approvals"].as_array().unwrap().clone()
    }
}

#[track_caller]
fn pending(reply: &Reply) -> String {
    reply.assert_denied(403, "approval_pending", "Waiting for approval ");
    reply.json()["approval"].as_str().unwrap().to_owned()
}

#[track_caller]
fn decide(proxy: &Proxy, id: &str, act: &str, body: Value) {
    let path = format!("/internal/approvals/{id}/{act}");
    let reply = proxy.admin("POST", &path, Some(body));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

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
    assert!(dig().contains("127.0.0.1"));
    assert!(asking.nameserver.asked().iter().all(|asked| asked == host));
    let grant = asking.grant_of(&id);
    let rule = format!("grant {grant}");
    asking
        .proxy
        .audited(json!({ "kind": "tunnel", "host": host, "rule": rule, "status": 200 }));
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

#[test]
fn a_person_who_denies_is_quoted_until_the_denial_is_forgotten() {
    let asking = Asking::start(|_| ());
    let host = "one.example.org";
    let id = asking.pending(host);
    decide(
        &asking.proxy,
        &id,
        "deny",
        json!({ "comment": "use the mirror" }),
    );
    for _ in 0..2 {
        let (reply, _) = asking.connect(host);
        let sentence = format!("Rejected by a person (approval {id}): use the mirror");
        reply.assert_connect_denied(403, "approval_rejected", &sentence);
        assert_eq!(reply.json()["approval"], id);
    }
    decide(&asking.proxy, &id, "forget", json!({}));
    assert_ne!(asking.pending(host), id);
    assert_eq!(asking.nameserver.asked(), [""; 0]);
}

#[test]
fn a_held_request_passes_as_soon_as_it_is_approved() {
    let asking = Asking::start(|setup| setup.proxy["approvals"] = json!({ "hold": "8s" }));
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| asking.fetch("one.example.org"));
        let mut questions = Vec::new();
        eventually("the question is open and waited for", SOON, || {
            questions = asking.questions();
            questions.first().is_some_and(|one| one["waiting"] == 1)
        });
        assert_eq!(asking.nameserver.asked(), [""; 0]);
        let id = questions[0]["id"].as_str().unwrap();
        decide(&asking.proxy, id, "approve", json!({}));
        assert_eq!(fetched.join().unwrap(), 200);
    });
}

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

#[test]
fn a_rule_asks_about_one_request_and_its_approval_permits_exactly_that() {
    let asking = Asking::start(|setup| {
        setup.policy.as_mut().unwrap()["policy"]["rules"] = json!([
            { "name": "writes", "effect": "ask", "hosts": ["api.example.com"], "methods": ["PUT"] },
        ]);
    });
    let send = |method: &str, target: &str| {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: api.example.com\r\n");
        let head = format!("{head}Content-Length: 0\r\n\r\n");
        asking.proxy.https("api.example.com", head)
    };
    let asked = send("PUT", "/echo/a?b=c");
    let id = pending(&asked);
    assert_eq!(asked.json()["rule"], "writes");
    let shown = asking
        .proxy
        .admin("GET", &format!("/internal/approvals/{id}"), None)
        .json();
    assert_eq!(shown["subject"], "PUT api.example.com:443 /echo/a");
    asking.origin.assert_untouched();
    decide(&asking.proxy, &id, "approve", json!({}));
    each_row(
        [
            ("PUT", "/echo/a", 200),
            ("PUT", "/echo/a?d=e", 200),
            ("PUT", "/echo/b", 403),
            ("PUT", "/echo/a/", 403),
            ("POST", "/echo/a", 403),
            ("PUT", "/echo/b/../a", 400),
            ("GET", "/echo/b", 200),
        ],
        |(method, target, status)| {
            assert_eq!(send(method, target).status, status, "{method} {target}");
        },
    );
}

#[test]
fn explain_opens_no_question_and_names_the_grant_that_answers() {
    let asking = Asking::start(|_| ());
    let port = asking.port();
    let socket = asking.proxy.path("api.sock");
    let explain = || {
        let authority = format!("one.example.org:{port}");
        let socket = socket.to_str().unwrap();
        let ran = asking.proxy.cli(&[
            "explain", "--socket", socket, SANDBOX, "CONNECT", &authority,
        ]);
        (ran.code, format!("{}{}", ran.stdout, ran.stderr))
    };
    let (code, said) = explain();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("a person would be asked about one.example.org"),
        "{said}"
    );
    assert_eq!(asking.questions(), [Value::Null; 0]);
    assert_eq!(asking.nameserver.asked(), [""; 0]);
    let grant = asking.approve("one.example.org", json!({}));
    let (code, said) = explain();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("allowed by grant {grant}")),
        "{said}"
    );
}
