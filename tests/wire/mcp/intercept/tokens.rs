//! Callers without a container, with a token.

use std::net::Ipv4Addr;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;
use testkit::each_row;

use super::{Interceptor, assert_block, assert_nothing};
use crate::support::{SOON, eventually, read_reply};

const TOKEN: &str = "0123456789abcdef-token";
const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
const SEARCH: &str = r#"{"method":"tools/call","params":{"name":"search"}}"#;

fn basic(credentials: &str) -> String {
    format!(
        "authorization: Basic {}\r\n",
        BASE64_STANDARD.encode(credentials)
    )
}

#[test]
fn a_caller_with_the_token_is_a_container_of_its_own() {
    let interceptor = Interceptor::with(json!({ "tokens": { "agent": TOKEN } }), |_| {});
    let ask = |fields: &str| interceptor.send(UNKNOWN, "POST /intercept/before", fields, SEARCH);
    for fields in [
        basic(&format!("any:{TOKEN}")),
        format!("authorization: Bearer {TOKEN}\r\n"),
    ] {
        assert_nothing(&ask(&fields));
    }
    each_row(
        [
            String::new(),
            basic(&format!("{TOKEN}:x")),
            basic("any:"),
            format!("authorization: Bearer {TOKEN}x\r\n"),
            format!("authorization: Bearer {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n"),
            format!("authorization: Digest {TOKEN}\r\n"),
            format!("proxy-authorization: Bearer {TOKEN}\r\n"),
        ],
        |fields| assert_eq!(assert_block(&ask(&fields)), "Unknown source IP", "{fields}"),
    );
    interceptor
        .gateway
        .proxy
        .audited(json!({ "container_id": "token-agent", "tool": "search" }));
    // A caller with a container stays that container.
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let first = Ipv4Addr::LOCALHOST;
    assert_nothing(&interceptor.send(first, "POST /intercept/before", &bearer, SEARCH));
    interceptor
        .gateway
        .proxy
        .audited(json!({ "container_id": "sandbox", "tool": "search" }));
    let body = json!({ "container_ip": "127.0.0.5", "container_id": "token-agent", "repos": [] });
    let reply = interceptor
        .gateway
        .proxy
        .admin("POST", "/internal/containers", Some(body));
    assert_eq!(reply.status, 400, "{}", reply.text());
}

#[test]
fn an_empty_token_is_off() {
    let off = Interceptor::with(json!({ "tokens": { "agent": "" } }), |_| {});
    for fields in [basic("any:"), "authorization: Bearer \r\n".to_owned()] {
        assert_block(&off.send(UNKNOWN, "POST /intercept/before", &fields, SEARCH));
    }
}

#[test]
fn a_token_file_that_changes_ends_the_lease_of_its_holders() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let tokens = json!({ "tokens": { "agent": { "file": file } } });
    let interceptor = Interceptor::with(tokens, |_| {});
    let ask = |token: &str, path: &str, body: serde_json::Value| {
        let fields = format!("authorization: Bearer {token}\r\n");
        let head = format!("POST /intercept/{path}");
        interceptor.send(UNKNOWN, &head, &fields, &body.to_string())
    };
    let params = json!({ "name": "search" });
    let before = json!({ "request_id": "r1", "method": "tools/call", "params": params });
    assert_eq!(ask(TOKEN, "before", before).json()["action"], "pass");
    let second = format!("{TOKEN}-2");
    std::fs::write(&file, &second).unwrap();
    // Without the context of the earlier lease, the tool is not known.
    let after = json!({ "request_id": "r1", "result": { "content": [] } });
    eventually("the token has changed", SOON, || {
        ask(&second, "after", after.clone()).status == 400
    });
    eventually("the contexts are gone", SOON, || {
        let active = "proxy_mcp_contexts_active";
        interceptor.gateway.proxy.metric(active, &[]) == 0.0
    });
}

#[test]
fn the_end_of_the_tokens_lease_blocks_a_question_that_waits() {
    let interceptor = Interceptor::with(json!({ "tokens": { "agent": TOKEN } }), |setup| {
        setup.proxy["approvals"] = json!({ "wait": "15m" });
    });
    let fields = format!("authorization: Bearer {TOKEN}\r\n");
    let body = r#"{"method":"tools/call","params":{"name":"pay"}}"#;
    let mut held = interceptor.begin(UNKNOWN, "POST /intercept/before", &fields, body);
    eventually("the question waits", SOON, || {
        let path = "/internal/approvals?state=pending";
        let listed = interceptor.gateway.proxy.admin("GET", path, None).json();
        listed["approvals"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let path = "/internal/containers/token-agent";
    assert_eq!(
        interceptor.gateway.proxy.admin("DELETE", path, None).status,
        200
    );
    assert_eq!(
        assert_block(&read_reply(&mut held).unwrap()),
        "Unknown source IP"
    );
}
