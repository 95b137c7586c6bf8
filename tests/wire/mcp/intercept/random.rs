//! A client that behaves as Docker's gateway: it ignores the status, follows redirects and parses any
//! bytes. None of its calls runs that the policy does not allow.

use std::net::TcpStream;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::super::hostile::client::FIRST;
use super::{Interceptor, write};
use crate::support::read_reply;

/// The number of requests, over all faults together.
const REQUESTS: usize = 10_000;
const FAULTS: usize = 5;
/// Further requests go over a new connection.
const PER_CONNECTION: usize = 500;

#[derive(Clone, Debug)]
struct Question {
    head: &'static str,
    fields: &'static str,
    body: String,
    /// Whether the policy allows it, if nothing fails.
    is_allowed: bool,
}

/// Whether the call runs: what Docker's gateway makes of an answer to `before`.
fn runs(answer: &[u8]) -> bool {
    if answer.is_empty() {
        return true;
    }
    // It is the result of the call: nothing runs. What does not parse fails the call. An object without
    // `content` would be a success without a result.
    match serde_json::from_slice::<Value>(answer) {
        Ok(result) => !result["content"].is_array(),
        Err(_) => false,
    }
}

fn question() -> impl Strategy<Value = Question> {
    let name = prop::sample::select(vec![
        "search",
        "kb_read",
        "shell",
        "kb_gone",
        "mcp-add",
        "code-mode",
        "fix",
        "Search",
        "",
    ]);
    let form = 0..6_usize;
    let head = prop::sample::select(vec![
        "POST /intercept/before",
        "POST /intercept/before",
        "POST /intercept/before",
        "POST /intercept//before",
        "POST /%69ntercept/before",
        "GET /intercept/before",
        "POST /intercept/befor",
    ]);
    let fields = prop::sample::select(vec![
        "",
        "",
        "",
        "content-type: application/json\r\n",
        "content-type: text/plain\r\n",
        "host: evil.example.com\r\n",
        "x-container-id: other\r\n",
        "origin: http://evil.example.com\r\n",
    ]);
    let cut = prop::option::weighted(0.1, 0..40_usize);
    let method = prop::sample::select(vec!["tools/Call", "tools/call ", "", "tools/list", "call"]);
    (name, form, head, fields, cut, method, "[a-z<>&\"]{0,20}").prop_map(
        |(name, form, head, fields, cut, method, text)| {
            let params = json!({ "name": name, "arguments": { "q": text } });
            let body = match form {
                0 => json!({ "Session": {}, "Params": params, "Extra": null }),
                1 => json!({ "method": "tools/call", "params": params }),
                2 => json!({ "method": method, "params": params }),
                3 => json!({ "method": "tools/call", "params": { "name": "mcp-exec", "arguments": params } }),
                4 => json!({ "params": params, "Params": params }),
                _ => json!({ "method": "tools/call", "params": { "name": "mcp-exec", "arguments": { "name": name, "arguments": "{}" } } }),
            };
            let mut body = body.to_string();
            let is_cut = cut.is_some_and(|cut| {
                body.truncate(cut);
                true
            });
            let is_allowed = matches!(name, "search" | "kb_read" | "Search")
                && !matches!(form, 2 | 4)
                && head == "POST /intercept/before"
                && (fields.is_empty() || fields.contains("application/json"))
                && !is_cut;
            Question { head, fields, body, is_allowed }
        },
    )
}

/// Asks questions over few connections. Returns how many calls run. Fails if one runs that must not.
/// `padding` is the number of spaces after each body.
fn ask(
    interceptor: &Interceptor,
    padding: usize,
    may_allow: bool,
    runner: &mut TestRunner,
) -> usize {
    let padding = " ".repeat(padding);
    let mut ran = 0;
    let mut open: Option<TcpStream> = None;
    for number in 0..REQUESTS / FAULTS {
        let mut question = question().new_tree(runner).unwrap().current();
        question.body += &padding;
        if number % PER_CONNECTION == 0 {
            open = None;
        }
        let stream = open.get_or_insert_with(|| interceptor.gateway.connect(FIRST));
        write(stream, question.head, question.fields, &question.body);
        let Ok(reply) = read_reply(stream) else {
            // A closed connection fails the call.
            open = None;
            continue;
        };
        assert_eq!(reply.header("location"), None);
        if reply.header("connection") == Some("close") {
            open = None;
        }
        let does_run = runs(reply.text().as_bytes());
        assert!(
            !does_run || (question.is_allowed && may_allow),
            "{question:?}"
        );
        ran += usize::from(does_run);
    }
    ran
}

#[test]
fn no_random_request_runs_a_call_that_the_policy_does_not_allow() {
    let mut runner = TestRunner::new(Config::default());
    let mut interceptor = Interceptor::start();
    assert!(ask(&interceptor, 0, true, &mut runner) > 0);

    // After a crash and a restart.
    interceptor.gateway.proxy.crash_and_restart();
    assert!(ask(&interceptor, 0, true, &mut runner) > 0);

    // The container is away, so no caller is known.
    let path = "/internal/containers/sandbox";
    interceptor.gateway.proxy.admin("DELETE", path, None);
    assert_eq!(ask(&interceptor, 0, false, &mut runner), 0);

    // The policy is away.
    let bundles = json!([{ "id": "main", "path": "/gone", "entrypoint": "mcp/authz" }]);
    let away = Interceptor::with(json!({ "policies": { "bundles": bundles } }), |_| {});
    assert_eq!(ask(&away, 0, false, &mut runner), 0);

    // Every body is too long.
    let short = Interceptor::with(json!({}), |setup| {
        setup.proxy["limits"] = json!({ "inspect_body_bytes": "1KB" });
    });
    assert_eq!(ask(&short, 2048, false, &mut runner), 0);
}
