//! Whatever is not an allow has one body, on every path below `/intercept`.

use std::io::{Read, Write};
use std::net::Ipv4Addr;

use serde_json::json;
use testkit::each_row;

use super::super::hostile::client::FIRST;
use super::{Interceptor, assert_block, assert_block_for_all, assert_nothing, write};
use crate::support::{SOON, eventually, read_reply};

/// An address without a container.
const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
const SEARCH: &str = r#"{"method":"tools/call","params":{"name":"search"}}"#;

#[test]
fn every_method_and_path_below_intercept_is_blocked_but_a_post_to_an_endpoint() {
    let interceptor = Interceptor::start();
    each_row(
        [
            "POST /intercept",
            "POST /intercept/",
            "POST /intercept/unknown",
            "POST /intercept/before/more",
            "POST //intercept/before",
            "POST /intercept//before",
            "POST /INTERCEPT/before",
            "POST /%69ntercept/before",
            "POST /%2569ntercept/before",
            "POST /intercept%2Fbefore",
            "POST /x/../intercept/before",
            "POST /intercept/../mcp",
        ],
        |head| {
            let reply = interceptor.send(FIRST, head, "", SEARCH);
            assert_block_for_all(&reply);
            assert_eq!(reply.status, 200, "{head}");
        },
    );
    each_row(
        [
            "GET /intercept/before",
            "PUT /intercept/before",
            "OPTIONS /intercept/before",
            "BREW /intercept/after",
        ],
        |head| {
            let reply = interceptor.send(FIRST, head, "", SEARCH);
            assert_block(&reply);
            assert_eq!(reply.status, 200, "{head}");
        },
    );
    // A caller that goes on after a status of an error gets no such status.
    let event = r#"{"hook_event_name":"PreToolUse","tool_name":"Read","tool_input":{}}"#;
    for path in ["claude-code/x", "before", "after", "hooks"] {
        let reply = interceptor.ask(path, event);
        assert_block_for_all(&reply);
        assert_eq!(reply.status, 200, "{path}");
    }
}

#[test]
fn callers_and_bodies_that_are_refused_elsewhere_get_the_same_body() {
    let interceptor = Interceptor::with(json!({}), |setup| {
        setup.proxy["limits"] = json!({ "inspect_body_bytes": "1KB" });
    });
    let before = "POST /intercept/before";
    each_row(
        [
            (UNKNOWN, "", 200),
            (FIRST, "host: evil.example.com\r\n", 200),
            (FIRST, "origin: http://evil.example.com\r\n", 200),
            (FIRST, "x-container-id: other\r\n", 200),
            (FIRST, "content-type: text/plain\r\n", 400),
            (
                FIRST,
                "content-type: application/json; charset=utf-16\r\n",
                400,
            ),
            (FIRST, "content-encoding: gzip\r\n", 400),
        ],
        |(source, fields, status)| {
            let reply = interceptor.send(source, before, fields, SEARCH);
            assert_block(&reply);
            assert_eq!(reply.status, status, "{fields}");
        },
    );
    let long = format!(
        r#"{{"method":"tools/call","params":{{"name":"{}"}}}}"#,
        "x".repeat(2000)
    );
    assert_block(&interceptor.ask("before", long));
    assert_nothing(&interceptor.ask("before", SEARCH));
}

#[test]
fn a_body_that_never_arrives_is_blocked() {
    let interceptor = Interceptor::with(json!({}), |setup| {
        setup.proxy["limits"] = json!({ "inspect_timeout": "1s" });
    });
    let mut slow = interceptor.gateway.connect(FIRST);
    let head = "POST /intercept/before HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
    slow.write_all(head.as_bytes()).unwrap();
    assert_block(&read_reply(&mut slow).unwrap());
}

#[test]
fn a_head_that_cannot_be_parsed_gets_no_answer() {
    let interceptor = Interceptor::start();
    let long = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "x".repeat(70_000)
    );
    each_row(
        [
            "POST /intercept/before HTTP/9\r\n\r\n",
            "nonsense\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &long,
        ],
        |bytes| {
            let mut stream = interceptor.gateway.connect(FIRST);
            let _ = stream.write_all(bytes.as_bytes());
            let mut answer = Vec::new();
            // The connection may be reset, since the gateway has not read all of it.
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(String::from_utf8_lossy(&answer), "");
        },
    );
    let mut stream = interceptor.gateway.connect(FIRST);
    write(&mut stream, "POST /intercept/before", "", SEARCH);
    assert_nothing(&read_reply(&mut stream).unwrap());
    stream.write_all(b"nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "");
    // After a request of HTTP/1.0, too.
    let mut stream = interceptor.gateway.connect(FIRST);
    let length = SEARCH.len();
    let old = format!(
        "POST /intercept/before HTTP/1.0\r\nhost: localhost\r\nconnection: keep-alive\r\ncontent-length: {length}\r\n\r\n{SEARCH}"
    );
    stream.write_all(old.as_bytes()).unwrap();
    assert_nothing(&read_reply(&mut stream).unwrap());
    let _ = stream.write_all(b"nonsense\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "");
    interceptor
        .gateway
        .proxy
        .audited(json!({ "code": "malformed_request", "kind": "http" }));
}

#[test]
fn a_policy_that_fails_is_gone_or_takes_too_long_blocks() {
    let failing = Interceptor::start();
    let bundle = failing.bundle.path().join("authz.rego");
    let both = "package mcp.authz\n\ndecision := \"allow\" if input.method\n\ndecision := \"ask\" if input.tool == \"search\"\n";
    std::fs::write(bundle, both).unwrap();
    eventually("the policy fails", SOON, || {
        let reply = failing.ask("before", SEARCH);
        !reply.text().is_empty() && assert_block(&reply).contains("policy_evaluator_error")
    });
    let gone = Interceptor::with(
        json!({ "policies": { "bundles": [{ "id": "main", "path": "/gone", "entrypoint": "mcp/authz" }] } }),
        |_| {},
    );
    assert_block(&gone.ask("before", SEARCH));
    assert_block(&gone.ask("after", json!({ "content": [] })));
}

#[test]
fn a_full_queue_and_a_spent_budget_block() {
    let limited = Interceptor::with(json!({}), |setup| {
        let rates = json!({ "requests_per_second": 1, "burst_size": 1 });
        setup.policy = Some(json!({ "version": 1, "rate_limits": { "defaults": rates } }));
    });
    eventually("the budget is spent", SOON, || {
        let reply = limited.ask("before", SEARCH);
        !reply.text().is_empty() && assert_block(&reply) == "Rate limit exceeded"
    });

    let asking = Interceptor::with(json!({}), |setup| {
        setup.proxy["approvals"] = json!({ "wait": "0s" });
    });
    let ask = |n: usize| {
        let arguments = json!({ "n": n });
        let body =
            json!({ "method": "tools/call", "params": { "name": "pay", "arguments": arguments } });
        assert_block(&asking.ask("before", body))
    };
    let reasons: Vec<_> = (0..40).map(ask).collect();
    assert!(reasons[0].contains("waits for a person"), "{}", reasons[0]);
    assert!(
        reasons[39].contains("no person can be asked now"),
        "{}",
        reasons[39]
    );
}
