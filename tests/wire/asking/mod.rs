//! Hosts on no allowlist, and requests that a rule asks about: a person approves or denies them.

mod ends;
mod held;
mod hostile;
mod hosts;
mod learned;
mod notified;
mod watched;

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{
    Nameserver, Origin, Proxy, Reply, SANDBOX, SECOND, Setup, assert_closes, handshake, read_reply,
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
