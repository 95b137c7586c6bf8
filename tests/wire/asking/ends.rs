//! Flows that rest on a grant live over reloads, and end with the grant.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Asking, decide, pending};
use crate::rules::{ends, streaming};
use crate::support::{SANDBOX, SECOND, SOON, eventually, handshake};

/// Bound on the time until the end of a grant, or a reload, ends a flow.
const IN_FORCE: Duration = Duration::from_secs(5);

/// The flows that rest on a grant of `one.example.org`: an event stream in a tunnel, an idle tunnel
/// and a WebSocket.
fn long_flows(asking: &Asking) -> Vec<Box<dyn Read>> {
    let host = "one.example.org";
    let authority = format!("{host}:{}", asking.port());
    let tls = || {
        let config = asking.proxy.tls_config(&["http/1.1"]);
        handshake(asking.proxy.tunnel(&authority), host, config).unwrap()
    };
    let stream = streaming(tls(), "/events/1000/50", &authority);
    let mut websocket = tls();
    write!(
        websocket,
        "GET /websocket HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    websocket.read_exact(&mut [0; 32]).unwrap();
    let idle = asking.proxy.tunnel(&authority);
    vec![Box::new(stream), Box::new(websocket), Box::new(idle)]
}

#[test]
fn granted_flows_live_over_a_reload_and_end_with_their_grant() {
    let asking = Asking::start(|_| ());
    let host = "one.example.org";
    let grant = asking.approve(host, json!({ "scope": "lease" }));
    let mut flows = long_flows(&asking);
    // In absolute form, at the origin's port in clear text.
    let plain_port = asking.origin.http.port();
    let plain = format!("http://{host}:{plain_port}");
    let id = pending(&asking.proxy.get(&plain, &[]));
    decide(&asking.proxy, &id, "approve", json!({ "scope": "lease" }));
    let authority = format!("{host}:{plain_port}");
    let mut absolute = streaming(
        asking.proxy.dial(),
        &format!("{plain}/events/1000/50"),
        &authority,
    );
    let reply = asking.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    std::thread::sleep(Duration::from_secs(1));
    flows[0].read_exact(&mut [0; 256]).unwrap();
    absolute.read_exact(&mut [0; 256]).unwrap();

    let begun = Instant::now();
    asking.revoke(&grant);
    for flow in &mut flows {
        ends(flow);
    }
    assert!(begun.elapsed() < IN_FORCE, "{:?}", begun.elapsed());
    absolute.read_exact(&mut [0; 64]).unwrap();
    asking.pending(host);
    let begun = Instant::now();
    asking.revoke(&asking.grant_of(&id));
    ends(&mut absolute);
    assert!(begun.elapsed() < IN_FORCE, "{:?}", begun.elapsed());
}

#[test]
fn granted_flows_end_when_the_time_of_their_grant_is_over() {
    let asking = Asking::start(|_| ());
    let begun = Instant::now();
    let time = Duration::from_secs(6);
    asking.approve("one.example.org", json!({ "for": "6s" }));
    for mut flow in long_flows(&asking) {
        ends(&mut flow);
    }
    let lasted = begun.elapsed();
    assert!(lasted < time + IN_FORCE, "{lasted:?}");
    asking.pending("one.example.org");
}

#[test]
fn a_reload_that_no_longer_asks_ends_granted_flows_and_open_questions() {
    let asking = Asking::start(|_| ());
    asking.approve("one.example.org", json!({ "scope": "lease" }));
    let open = asking.pending("two.example.org");
    let flows = long_flows(&asking);
    let begun = Instant::now();
    let policy = json!({ "version": 1, "policy": { "unknown_hosts": "deny" } });
    std::fs::write(asking.proxy.path("config/policy.yaml"), policy.to_string()).unwrap();
    for mut flow in flows {
        ends(&mut flow);
    }
    assert!(begun.elapsed() < IN_FORCE, "{:?}", begun.elapsed());
    let (reply, _) = asking.connect("one.example.org");
    reply.assert_connect_denied(403, "domain_not_allowed", "");
    // What an operator grants without a question needs none.
    let grant = json!({ "container": SANDBOX, "host": "one.example.org", "port": asking.port() });
    let given = asking.proxy.admin("POST", "/internal/grants", Some(grant));
    assert_eq!(given.status, 201, "{}", given.text());
    let passes = || asking.fetch("one.example.org") == 200;
    eventually("the grant is in force", SOON, passes);
    let (reply, _) = asking
        .proxy
        .connect_from(SECOND, &format!("one.example.org:{}", asking.port()));
    reply.assert_connect_denied(403, "domain_not_allowed", "");
    asking.revoke(given.json()["id"].as_str().unwrap());
    // Without a request, which would fail in a tunnel that the revocation ends.
    let is_denied = || asking.connect("one.example.org").0.status == 403;
    eventually("the grant ends", SOON, is_denied);
    eventually("the question expires", SOON, || {
        let path = format!("/internal/approvals/{open}");
        asking.proxy.admin("GET", &path, None).json()["state"] == "expired"
    });
}
