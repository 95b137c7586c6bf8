//! Decisions of policies, their effects, and servers that imitate a policy.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, DENIED, ERAS, Era, Gateway, SECOND, assert_code, text};
use super::server::{Answer, McpServer, tool};
use crate::support::Setup;

const ABORTED: i64 = -32950;
const MISUSED: i64 = -32952;
const FAILED: i64 = -32953;

/// Rules with a decision for each tool of [`tools`] except `unheard-of`.
const RULES: &str = r#"package mcp.authz

allowed := {"read", "other"}

decision := "allow" if input.tool in allowed

decision := "deny_abort" if input.tool == "abort"

reason := "aborting is not allowed" if input.tool == "abort"

# Two rules with different decisions for one call make its evaluation fail.
decision := "allow" if input.tool == "fail"

decision := "deny_continue" if input.tool == "fail"

decision := "allow" if {
	input.tool == "slow"
	count([1 | some i in numbers.range(1, 20000); some j in numbers.range(1, 20000); i * j == 7]) == 2
}

decision := "redact" if {
	input.tool == "write"
	input.phase == "request"
}

modified := object.union(input.arguments, {"path": "/safe"}) if {
	input.tool == "write"
	input.phase == "request"
}

decision := "allow" if {
	input.tool == "write"
	input.phase == "response"
}

decision := "allow" if {
	input.tool == "secret"
	input.phase == "request"
}

decision := "redact" if {
	input.tool == "secret"
	input.phase == "response"
}

modified := {"content": [{"type": "text", "text": "[gone]"}], "resultType": "complete"} if {
	input.tool == "secret"
	input.phase == "response"
}
"#;

/// A gateway with a policy bundle of these rules.
pub fn with_policy(server: &McpServer, rules: &str) -> Gateway {
    with_policy_and(server, rules, |_| {})
}

/// A gateway with a policy bundle of these rules and a changed set-up. The bundle's directory is left
/// behind after the test.
fn with_policy_and(server: &McpServer, rules: &str, change: impl FnOnce(&mut Setup)) -> Gateway {
    let bundle = tempfile::tempdir().unwrap().keep();
    std::fs::write(bundle.join("authz.rego"), rules).unwrap();
    let mcp = json!({
        "mcpServers": { "kb": server.mount() },
        "policies": {
            "bundles": [{ "id": "main", "path": bundle, "entrypoint": "mcp/authz" }],
            "evaluator": { "timeout": "300ms" },
        },
    });
    Gateway::with(&mcp, change)
}

fn tools() -> Vec<Value> {
    let names = [
        "read",
        "other",
        "abort",
        "fail",
        "slow",
        "write",
        "secret",
        "unheard-of",
    ];
    names.map(tool).to_vec()
}

fn data<'r>(response: &'r Value, key: &str) -> &'r str {
    response["error"]["data"][key].as_str().unwrap_or_default()
}

#[test]
fn undefined_slow_and_failing_policies_deny() {
    let server = McpServer::start(tools());
    let gateway = with_policy(&server, RULES);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        let undefined = client.call("kb_unheard-of", json!({}));
        assert_code(&undefined, DENIED);
        assert_eq!(data(&undefined, "tool"), "unheard-of");
        for tool in ["kb_fail", "kb_slow"] {
            let failed = client.call(tool, json!({}));
            assert_code(&failed, FAILED);
            let message = failed["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("policy_evaluator_error: "), "{message}");
            assert_eq!(data(&failed, "name"), tool);
        }
    });
    assert_eq!(server.calls().len(), 0);
    text(&Client::open(&gateway, Era::Modern).call("kb_read", json!({})));
}

#[test]
fn an_abort_latches_across_sessions_and_restarts_until_reset() {
    let server = McpServer::start(tools());
    each_row(ERAS, |era| {
        let mut gateway = with_policy(&server, RULES);
        let client = Client::open(&gateway, era).wait_for(&["kb_read", "kb_abort"]);
        text(&client.call("kb_read", json!({})));
        let aborted = client.call("kb_abort", json!({}));
        assert_code(&aborted, ABORTED);
        assert_eq!(data(&aborted, "type"), "policy_denied");
        assert_eq!(data(&aborted, "decision"), "deny_abort");
        assert_eq!(data(&aborted, "reason"), "aborting is not allowed");
        // Kills the proxy right after the answer: the latch must be on disk already.
        gateway.proxy.crash_and_restart();
        let before = server.calls().len();
        for era in ERAS {
            let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
            assert_code(&client.call("kb_read", json!({})), ABORTED);
        }
        assert_eq!(server.calls().len(), before);
        let other = Client::of(&gateway, era, SECOND).wait_for(&["kb_read"]);
        text(&other.call("kb_read", json!({})));
        gateway.operate("/internal/containers/sandbox/reset");
        text(&Client::open(&gateway, era).call("kb_read", json!({})));
    });
}

#[test]
fn only_redacted_arguments_and_results_reach_the_other_side() {
    let server = McpServer::scripted(tools(), |seen| {
        (seen.tool() == "secret").then(|| Answer::text("the top secret"))
    });
    let gateway = with_policy(&server, RULES);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_write", "kb_secret"]);
        let arguments = json!({ "path": "/etc/passwd", "text": "x" });
        text(&client.call("kb_write", arguments));
        let expected = json!({ "path": "/safe", "text": "x" });
        assert_eq!(server.arguments(), expected);
        let redacted = client.call("kb_secret", json!({}));
        assert_eq!(text(&redacted), "[gone]");
        assert!(!redacted.to_string().contains("top secret"), "{redacted}");
    });
}

#[test]
fn a_result_with_a_key_that_policies_would_read_as_a_number_is_an_error() {
    let server = McpServer::scripted(vec![tool("read")], |seen| {
        let number = json!({ "$serde_json::private::Number": "5" });
        let result = json!({ "content": [], "structuredContent": { "a": number } });
        (!seen.tool().is_empty()).then_some(Answer::Result(result))
    });
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        let answer = client.call("kb_read", json!({}));
        assert_eq!(data(&answer, "code"), "upstream_unreachable", "{answer}");
    });
}

#[test]
fn a_server_error_with_a_code_or_message_of_policies_is_replaced_and_names_the_tool() {
    let server = McpServer::scripted(vec![tool("lie"), tool("err")], |seen| {
        let arguments = &seen.message["params"]["arguments"];
        (!seen.tool().is_empty()).then(|| {
            Answer::Error(json!({
                "code": arguments["code"], "message": arguments["message"],
                "data": { "reason": "the server's reason" },
            }))
        })
    });
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_lie"]);
        for (code, message) in [
            (-32950, "no"),
            (-32951, "no"),
            (-32952, "no"),
            (-32953, "no"),
            (-32000, "policy_denied"),
            (-32000, "policy_denied_continue"),
            (-32000, " Policy_Denied: by the operator"),
            (1, "policy_evaluator_error"),
            (1, "policy_backend_reserved_misuse"),
        ] {
            let answer = client.call("kb_lie", json!({ "code": code, "message": message }));
            assert_code(&answer, MISUSED);
            assert_eq!(data(&answer, "name"), "kb_lie");
            assert_eq!(answer["error"]["data"]["backend_code"], code);
            assert!(
                !answer.to_string().contains("the server's reason"),
                "{answer}"
            );
        }
        let answer = client.call("kb_err", json!({ "code": -32949, "message": "mine" }));
        assert_code(&answer, -32949);
        // The next call still reaches the server: a server's error cannot latch the container.
        let answer = client.call("kb_err", json!({ "code": -7, "message": "mine" }));
        assert_code(&answer, -7);
    });
}

#[test]
fn a_policy_reads_the_session_of_a_client_that_has_one() {
    let server = McpServer::start(tools());
    let rules = r#"package mcp.authz

default decision := "allow"

decision := "deny_continue" if is_string(input.session)
"#;
    let gateway = with_policy(&server, rules);
    let open = |era| Client::open(&gateway, era).wait_for(&["kb_read"]);
    assert_code(&open(Era::Legacy).call("kb_read", json!({})), DENIED);
    text(&open(Era::Modern).call("kb_read", json!({})));
}

/// The 99th percentile of the durations of calls that another container makes one after another,
/// until `done` returns true; `done` gets the number of calls so far.
fn p99_until(client: &Client<'_>, done: impl Fn(usize) -> bool) -> Duration {
    let mut took = Vec::new();
    while !done(took.len()) {
        let begun = Instant::now();
        text(&client.call("kb_read", json!({})));
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    took[took.len() - 1 - took.len() / 100]
}

/// The most rounds of an attack; one in which other calls are quick suffices.
const ROUNDS: usize = 10;

/// Asserts that the calls of `other` take, while these attacks run at once, hardly longer than
/// `quiet`.
#[track_caller]
fn assert_hardly_delayed(other: &Client<'_>, quiet: Duration, attacks: &[&(dyn Fn() + Sync)]) {
    let loud = || {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let attacks: Vec<_> = attacks.iter().map(|attack| scope.spawn(attack)).collect();
            let p99 = scope.spawn(|| p99_until(other, |_| done.load(Ordering::Relaxed)));
            let ended: Vec<_> = attacks.into_iter().map(|attack| attack.join()).collect();
            done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|attack| attack.unwrap());
            p99.join().unwrap()
        })
    };
    // Other load on the machine can only raise the percentile of a round.
    let most = 2 * quiet + Duration::from_millis(50);
    let mut slow = Vec::new();
    while slow.len() < ROUNDS {
        match loud() {
            p99 if p99 < most => return,
            p99 => slow.push(p99),
        }
    }
    panic!("{slow:?}, {quiet:?} without");
}

#[test]
fn calls_whose_policies_do_not_end_keep_no_other_container_waiting() {
    let server = McpServer::start(tools());
    let gateway = with_policy(&server, RULES);
    let other = Client::of(&gateway, Era::Modern, SECOND).wait_for(&["kb_read"]);
    let quiet = p99_until(&other, |count| count == 200);
    let large = "x".repeat(540_000);
    each_row(["", &large], |padding| {
        let attack = || {
            let client = Client::open(&gateway, Era::Modern);
            for _ in 0..3 {
                client.call("kb_slow", json!({ "padding": padding }));
            }
        };
        let attacks: [&(dyn Fn() + Sync); 8] = [&attack; 8];
        assert_hardly_delayed(&other, quiet, &attacks);
    });
}

#[test]
fn four_attackers_at_once_keep_no_other_container_waiting() {
    let sources = [11, 12, 13, 14].map(|last| Ipv4Addr::new(127, 0, 0, last));
    let server = McpServer::start(tools());
    let gateway = with_policy_and(&server, RULES, |setup| {
        let containers = sources.map(|source| (source.to_string(), format!("attacker-{source}")));
        setup.containers.extend(containers);
    });
    let other = Client::of(&gateway, Era::Modern, SECOND).wait_for(&["kb_read"]);
    let quiet = p99_until(&other, |count| count == 200);
    let [large, huge] = [540_000, 7_000_000].map(|length| "x".repeat(length));
    let [first, second, third, fourth] = sources;
    let client = |source| Client::of(&gateway, Era::Modern, source);
    // A modern client repeats the URI in a header, which is refused for its length.
    let legacy = |source| Client::of(&gateway, Era::Legacy, source);
    let slow = || _ = client(first).call("kb_slow", json!({}));
    let slow_and_large = || _ = client(second).call("kb_slow", json!({ "padding": large }));
    let long_argument = || _ = client(third).call("kb_read", json!({ "padding": huge }));
    let long_uri = || _ = legacy(fourth).exchange("resources/read", json!({ "uri": huge }));
    let attacks: [&(dyn Fn() + Sync); 4] = [&slow, &slow_and_large, &long_argument, &long_uri];
    assert_hardly_delayed(&other, quiet, &attacks);
}
