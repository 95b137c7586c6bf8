//! Callers without a container, with a token.

use std::net::Ipv4Addr;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;
use testkit::each_row;

use super::{Interceptor, assert_block, assert_nothing};

const TOKEN: &str = "0123456789abcdef-token";
const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
const SEARCH: &str = r#"{"params":{"name":"search"}}"#;

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
