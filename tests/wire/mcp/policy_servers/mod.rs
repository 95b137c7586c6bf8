//! Agents read and propose policies, and people put them in force.

mod people;

use std::fs;
use std::path::PathBuf;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Gateway, call, request};
use crate::support::{Reply, SANDBOX, SOON, eventually};

/// Denies the tool `echo`; in force at the start.
const DENY: &str = "package mcp.authz\n\ndefault decision := \"allow\"\n\ndecision := \"deny_continue\" if input.tool == \"echo\"\n";
/// Allows every tool.
const ALLOW: &str = "package mcp.authz\n\ndecision := \"allow\"\n";
/// Asks about the tool `echo`.
const ASK: &str = "package mcp.authz\n\ndefault decision := \"allow\"\n\ndecision := \"ask\" if input.tool == \"echo\"\n";
const BROKEN: &str = "package mcp.authz\n\ndecision = := 1\n";
const DENIED: i64 = -32951;
const UNKNOWN: i64 = -32602;

/// The policy servers, with a bundle that people may replace.
fn gateway() -> Gateway {
    gateway_with(json!({}))
}

/// The same, with further settings of `mcp.yaml`.
fn gateway_with(settings: Value) -> Gateway {
    Gateway::start_with(|setup| {
        let bundle = setup.dir().join("bundle");
        fs::create_dir(&bundle).unwrap();
        fs::write(bundle.join("authz.rego"), DENY).unwrap();
        let path = setup.dir().join("config/mcp.yaml");
        let mut mcp: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        mcp["policies"] = json!({
            "bundles": [{ "id": "main", "path": bundle, "entrypoint": "mcp/authz" }],
            "servers": ["policy_reader", "policy_approver", "policy_proposer", "loop"],
            "expose_decide": true,
            "editable": "main",
            "evaluator": { "timeout": "30s" },
        });
        for (key, value) in settings.as_object().unwrap() {
            mcp[key] = value.clone();
        }
        fs::write(path, mcp.to_string()).unwrap();
    })
}

/// The response to an agent's request.
fn agent(gateway: &Gateway, method: &str, params: Value) -> Value {
    let reply = gateway.post(&gateway.session(), &request(1, method, params));
    response(&reply)
}

/// The JSON-RPC response of a reply: its body, or the last event of its stream.
fn response(reply: &Reply) -> Value {
    let text = reply.text();
    let last = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(last.unwrap_or(&text)).unwrap_or_else(|_| panic!("{text}"))
}

fn agent_calls(gateway: &Gateway, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    agent(gateway, "tools/call", params)
}

/// The response to a request of the operator as a person.
fn person(gateway: &Gateway, method: &str, params: Value) -> Value {
    let body = request(1, method, params);
    let reply = gateway.proxy.admin("POST", "/internal/mcp", Some(body));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn person_calls(gateway: &Gateway, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    person(gateway, "tools/call", params)
}

/// Proposes a policy as the agent, and returns the question's id.
fn propose(gateway: &Gateway, source: &str) -> String {
    let proposed = agent_calls(
        gateway,
        "policy_proposer_propose_policy",
        json!({ "source": source }),
    );
    let id = &proposed["result"]["structuredContent"]["id"];
    id.as_str()
        .unwrap_or_else(|| panic!("{proposed}"))
        .to_owned()
}

/// The error code of the agent's call of `echo`; 0 if the call passed.
fn decided(gateway: &Gateway) -> i64 {
    let called = gateway.post(&gateway.session(), &call(1, "echo", json!({})));
    response(&called)["error"]["code"]
        .as_i64()
        .unwrap_or_default()
}

/// The policy in force, as the agent reads it.
fn policy(gateway: &Gateway) -> String {
    let params = json!({ "uri": "resource://approval-policy/policy.rego" });
    let read = agent(gateway, "resources/read", params);
    let text = &read["result"]["contents"][0]["text"];
    text.as_str().unwrap_or_else(|| panic!("{read}")).to_owned()
}

/// The state of a question.
fn state(gateway: &Gateway, id: &str) -> String {
    let path = format!("/internal/approvals/{id}");
    let question = gateway.proxy.admin("GET", &path, None).json();
    question["state"].as_str().unwrap().to_owned()
}

fn approve(gateway: &Gateway, id: &str) -> Reply {
    let path = format!("/internal/approvals/{id}/approve");
    gateway.proxy.admin("POST", &path, None)
}

fn stored(gateway: &Gateway) -> PathBuf {
    gateway.proxy.path("data/policy.json")
}

fn names(listed: &Value, key: &str) -> Vec<String> {
    let entries = listed["result"][key].as_array();
    let entries = entries.unwrap_or_else(|| panic!("{listed}")).iter();
    let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    entries.map(name).collect()
}

#[test]
fn a_proposal_that_a_person_approves_is_in_force_at_once_and_after_a_restart_until_it_is_reset() {
    let mut gateway = gateway();
    assert_eq!(policy(&gateway), DENY);
    assert_eq!(decided(&gateway), DENIED);
    let id = propose(&gateway, ALLOW);
    assert_eq!(decided(&gateway), DENIED);
    let shown = gateway.proxy.cli(&["approvals", "show", &id]).ok();
    for line in [
        "kind       policy",
        "- default decision := \"allow\"",
        "+ decision := \"allow\"",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    gateway.proxy.cli(&["approvals", "approve", &id]).ok();
    assert_eq!(decided(&gateway), 0);
    assert_eq!(policy(&gateway), ALLOW);
    let act = json!({ "method": "operator/set_policy", "path": "main", "approval": id });
    let line = gateway.proxy.audited(act);
    assert!(
        line["reason"].as_str().unwrap().starts_with("sha256 "),
        "{line}"
    );
    assert!(
        line["rule"].as_str().unwrap().starts_with("operator: uid "),
        "{line}"
    );

    gateway.proxy.signal(Signal::TERM);
    gateway.proxy.wait(SOON);
    gateway.proxy.restart();
    assert_eq!(decided(&gateway), 0);
    let show = ["mcp", "policy", "show"];
    let shown = gateway.proxy.cli(&show).ok();
    assert!(
        shown.starts_with("# in force: a policy that uid "),
        "{shown}"
    );
    assert!(shown.ends_with(ALLOW), "{shown}");
    gateway.proxy.cli(&["mcp", "policy", "reset"]).ok();
    assert_eq!(decided(&gateway), DENIED);
    assert!(!stored(&gateway).exists());
    let shown = gateway.proxy.cli(&show).ok();
    assert!(
        shown.starts_with("# in force: the bundle main of mcp.yaml"),
        "{shown}"
    );
    gateway
        .proxy
        .audited(json!({ "method": "operator/reset_policy", "path": "main" }));
    let again = gateway.proxy.cli(&["mcp", "policy", "reset"]);
    assert!(again.stderr.contains("no policy is stored"), "{again:?}");
}

#[test]
fn a_principal_sees_and_calls_only_its_own_tools_and_resources() {
    let gateway = gateway();
    let own = [
        "policy_reader_decide",
        "policy_proposer_propose_policy",
        "loop_yield_turn",
    ];
    let listed = names(&agent(&gateway, "tools/list", json!({})), "tools");
    for tool in own {
        assert!(
            listed.iter().any(|name| name == tool),
            "{tool} is not in {listed:?}"
        );
    }
    assert!(
        !listed.iter().any(|name| name.contains("approver")),
        "{listed:?}"
    );
    let of_person = names(&person(&gateway, "tools/list", json!({})), "tools");
    let expected = [
        "policy_reader_decide",
        "policy_approver_approve",
        "policy_approver_deny",
        "policy_approver_set_policy",
        "policy_approver_set_policy_text",
    ];
    assert_eq!(of_person, expected);

    let id = propose(&gateway, ALLOW);
    let unknown = |called: &Value, tool: &str| {
        assert_eq!(called["error"]["code"], UNKNOWN, "{called}");
        assert_eq!(
            called["error"]["message"],
            format!("Unknown tool: {tool}"),
            "{called}"
        );
        assert_eq!(
            called["error"]["data"]["code"], "tool_not_found",
            "{called}"
        );
    };
    // By any name of the tool, and also when an operator sends the call for the container.
    let own_id = format!("/internal/containers/{SANDBOX}/mcp");
    each_row(
        [
            "policy_approver_approve",
            "policy_approver_deny",
            "policy_approver_set_policy",
            "policy_approver_set_policy_text",
            "Policy_Approver_approve",
            "policy_proposer_approve",
            "policy_reader_set_policy_text",
            "loop_approve",
            "approve",
        ],
        |tool| {
            let arguments = json!({ "id": id, "proposal_id": id, "source": ALLOW });
            unknown(&agent_calls(&gateway, tool, arguments.clone()), tool);
            let params = json!({ "name": tool, "arguments": arguments });
            let body = request(1, "tools/call", params);
            let reply = gateway.proxy.admin("POST", &own_id, Some(body)).json();
            unknown(&reply, tool);
        },
    );
    each_row(
        [
            "policy_proposer_propose_policy",
            "loop_yield_turn",
            "by-hand_echo",
        ],
        |tool| {
            unknown(
                &person_calls(&gateway, tool, json!({ "source": ALLOW })),
                tool,
            )
        },
    );
    let uri = format!("approvals://pending/{id}");
    let read = agent(&gateway, "resources/read", json!({ "uri": uri }));
    assert!(read.get("result").is_none(), "{read}");
    let read = person(&gateway, "resources/read", json!({ "uri": uri }));
    let text = read["result"]["contents"][0]["text"].as_str().unwrap();
    let question: Value = serde_json::from_str(text).unwrap();
    assert_eq!(question["arguments"]["new"], ALLOW);
    let resources = names(&person(&gateway, "resources/list", json!({})), "resources");
    assert_eq!(resources, ["policy.rego", "policy main"]);
    let templates = person(&gateway, "resources/templates/list", json!({}));
    let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(template, "approvals://pending/{id}");
    assert_eq!(state(&gateway, &id), "pending");
    assert_eq!(decided(&gateway), DENIED);
}

#[test]
fn only_the_servers_that_the_settings_list_are_mounted() {
    let gateway = gateway_with(json!({ "policies": { "servers": ["loop"] } }));
    let listed = names(&agent(&gateway, "tools/list", json!({})), "tools");
    assert!(listed.contains(&"loop_yield_turn".to_owned()), "{listed:?}");
    assert!(
        !listed.iter().any(|name| name.starts_with("policy_")),
        "{listed:?}"
    );
    assert_eq!(
        names(&person(&gateway, "tools/list", json!({})), "tools"),
        [""; 0]
    );
    let read = person(&gateway, "resources/list", json!({}));
    assert_eq!(read["error"]["code"], -32601, "{read}");
}

#[test]
fn a_person_approves_exactly_the_difference_that_was_shown() {
    let gateway = gateway();
    let first = propose(&gateway, ALLOW);
    let second = propose(&gateway, ASK);
    assert_ne!(first, second);
    assert_eq!(
        propose(&gateway, ALLOW),
        first,
        "an equal proposal joins the open one"
    );
    assert_eq!(approve(&gateway, &first).status, 200);
    // The second was about the policy before.
    eventually("the other proposal expires", SOON, || {
        state(&gateway, &second) == "expired"
    });
    assert_eq!(approve(&gateway, &second).status, 410);
    assert_eq!(policy(&gateway), ALLOW);
    let third = propose(&gateway, ASK);
    let set = person_calls(
        &gateway,
        "policy_approver_set_policy_text",
        json!({ "source": DENY }),
    );
    assert_eq!(
        set["result"]["structuredContent"]["bundle"], "main",
        "{set}"
    );
    let late = approve(&gateway, &third);
    assert!(matches!(late.status, 410 | 422), "{}", late.text());
    assert_eq!(policy(&gateway), DENY);
    // A decided proposal is not decided again.
    let set = person_calls(
        &gateway,
        "policy_approver_set_policy",
        json!({ "proposal_id": first }),
    );
    assert_eq!(set["result"]["isError"], true, "{set}");
    assert!(
        set.to_string()
            .contains("has approved the question already"),
        "{set}"
    );
    assert_eq!(policy(&gateway), DENY);
}

#[test]
fn of_two_approvals_at_once_while_the_configuration_is_reloaded_one_is_in_force() {
    let gateway = gateway();
    let ids = [propose(&gateway, ALLOW), propose(&gateway, ASK)];
    let statuses = thread::scope(|scope| {
        let approving = ids
            .each_ref()
            .map(|id| scope.spawn(|| approve(&gateway, id).status));
        let reloading = scope.spawn(|| {
            for _ in 0..5 {
                gateway.proxy.admin("POST", "/internal/reload", None);
            }
        });
        reloading.join().unwrap();
        approving.map(|approving| approving.join().unwrap())
    });
    let approved = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(approved, 1, "{statuses:?}");
    let (source, late) = match statuses[0] {
        200 => (ALLOW, &ids[1]),
        _ => (ASK, &ids[0]),
    };
    assert_eq!(policy(&gateway), source);
    eventually("the other proposal expires", SOON, || {
        state(&gateway, late) == "expired"
    });
}

#[test]
fn a_policy_that_cannot_be_loaded_is_refused_with_the_errors_and_changes_nothing() {
    let gateway = gateway();
    let id = propose(&gateway, BROKEN);
    let reply = approve(&gateway, &id);
    assert_eq!(reply.status, 422, "{}", reply.text());
    assert!(reply.text().contains("policy.rego:3"), "{}", reply.text());
    assert_eq!(state(&gateway, &id), "pending");
    let set = person_calls(
        &gateway,
        "policy_approver_set_policy_text",
        json!({ "source": BROKEN }),
    );
    assert_eq!(set["result"]["isError"], true, "{set}");
    assert!(set.to_string().contains("policy.rego:3"), "{set}");
    assert!(!stored(&gateway).exists());
    // A mistake in another file does not matter to the policy, in either direction.
    let good = propose(&gateway, ALLOW);
    let allowlist = gateway.proxy.path("config/allowlist.yaml");
    fs::write(&allowlist, "nonsense: [").unwrap();
    let reply = approve(&gateway, &good);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(policy(&gateway), ALLOW);
    assert_eq!(decided(&gateway), 0);
    gateway.proxy.cli(&["mcp", "policy", "reset"]).ok();
    assert_eq!(policy(&gateway), DENY);
    assert_eq!(decided(&gateway), DENIED);
}

#[test]
fn a_policy_that_people_set_never_gives_way_to_its_bundle_by_a_change_of_the_settings() {
    let mut gateway = gateway();
    let set = person_calls(
        &gateway,
        "policy_approver_set_policy_text",
        json!({ "source": ALLOW }),
    );
    assert!(set["result"]["isError"].is_null(), "{set}");
    let path = gateway.proxy.path("config/mcp.yaml");
    let mut mcp: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    mcp["policies"].as_object_mut().unwrap().remove("editable");
    fs::write(&path, mcp.to_string()).unwrap();
    let reloaded = gateway.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reloaded.status, 422, "{}", reloaded.text());
    for words in ["editable: main", "unified-proxy mcp policy reset"] {
        assert!(reloaded.text().contains(words), "{}", reloaded.text());
    }
    assert_eq!(decided(&gateway), 0);
    gateway.proxy.crash_and_restart();
    assert_eq!(decided(&gateway), -32953);
    let checks = gateway.proxy.health().json()["checks"].clone();
    assert_eq!(checks["mcp_stored_policy_loaded"], false, "{checks}");
    let shown = gateway.proxy.cli(&["mcp", "policy", "show"]).ok();
    assert!(shown.starts_with("# not in force: a policy"), "{shown}");
    gateway.proxy.cli(&["mcp", "policy", "reset"]).ok();
    assert_eq!(decided(&gateway), DENIED);
    let checks = gateway.proxy.health().json()["checks"].clone();
    assert_eq!(checks["mcp_stored_policy_loaded"], true, "{checks}");
}

#[test]
fn a_crash_while_an_approval_is_recorded_leaves_no_denied_policy() {
    let mut gateway = gateway();
    let (denied, approved) = (propose(&gateway, ALLOW), propose(&gateway, ASK));
    assert_eq!(approve(&gateway, &approved).status, 200);
    let whole = fs::read_to_string(stored(&gateway)).unwrap();
    // What an approval leaves that is killed before, and after it is recorded.
    let proposed = gateway.proxy.path("data/policy.proposed.json");
    fs::write(&proposed, whole.replace(&approved, &denied)).unwrap();
    gateway.proxy.crash_and_restart();
    assert_eq!(policy(&gateway), ASK);
    assert!(!proposed.exists());
    fs::rename(stored(&gateway), &proposed).unwrap();
    gateway.proxy.crash_and_restart();
    assert_eq!(policy(&gateway), ASK);
    assert!(!proposed.exists());
    let line = json!({ "method": "operator/set_policy", "approval": approved });
    gateway.proxy.audited(line);
}

#[test]
fn a_stored_policy_that_cannot_be_read_denies_until_it_is_restored_or_reset() {
    let mut gateway = gateway();
    let set = person_calls(
        &gateway,
        "policy_approver_set_policy_text",
        json!({ "source": ALLOW }),
    );
    assert!(set["result"]["isError"].is_null(), "{set}");
    let whole = fs::read(stored(&gateway)).unwrap();
    fs::write(stored(&gateway), "{").unwrap();
    gateway.proxy.crash_and_restart();
    assert_eq!(decided(&gateway), -32953);
    let checks = || gateway.proxy.health().json()["checks"].clone();
    assert_eq!(checks()["mcp_policies_loaded"], false);
    assert_eq!(checks()["mcp_stored_policy_loaded"], false);
    let shown = gateway.proxy.cli(&["mcp", "policy", "show"]).ok();
    assert!(shown.contains("# problem: "), "{shown}");
    fs::write(stored(&gateway), whole).unwrap();
    let reloaded = gateway.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(decided(&gateway), 0);
    assert_eq!(checks()["mcp_stored_policy_loaded"], true);
    fs::write(stored(&gateway), "{").unwrap();
    gateway.proxy.cli(&["mcp", "policy", "reset"]).ok();
    assert_eq!(decided(&gateway), DENIED);
}

#[test]
fn what_is_no_policy_is_not_proposed() {
    let gateway = gateway();
    let long = "x".repeat((64 << 10) + 1);
    each_row(
        [
            (json!({ "source": "" }), "a text of 1 to"),
            (json!({ "source": long }), "a text of 1 to"),
            (json!({ "source": DENY }), "the policy in force already"),
            (
                json!({ "source": format!("# a\u{0}\n{ALLOW}") }),
                "line 1, column 4: the character U+0000",
            ),
            (
                json!({ "source": format!("# \u{202e}\n{ALLOW}") }),
                "U+202E",
            ),
        ],
        |(arguments, reason)| {
            let proposed = agent_calls(&gateway, "policy_proposer_propose_policy", arguments);
            assert_eq!(proposed["result"]["isError"], true, "{proposed}");
            assert!(proposed.to_string().contains(reason), "{proposed}");
        },
    );
    each_row(
        [
            json!({}),
            json!({ "source": 1 }),
            json!({ "source": null }),
            json!({ "source": ALLOW, "approved": true }),
        ],
        |arguments| {
            let proposed = agent_calls(&gateway, "policy_proposer_propose_policy", arguments);
            assert_eq!(proposed["error"]["code"], UNKNOWN, "{proposed}");
        },
    );
    let id = propose(&gateway, ALLOW);
    let path = format!("/internal/approvals/{id}/deny");
    let words = json!({ "comment": "too lax" });
    assert_eq!(gateway.proxy.admin("POST", &path, Some(words)).status, 200);
    let again = agent_calls(
        &gateway,
        "policy_proposer_propose_policy",
        json!({ "source": ALLOW }),
    );
    assert!(
        again
            .to_string()
            .contains("denied the same proposal: too lax"),
        "{again}"
    );
}

#[test]
fn the_end_of_a_lease_ends_its_proposals() {
    let gateway = gateway();
    let id = propose(&gateway, ALLOW);
    let path = format!("/internal/containers/{SANDBOX}");
    assert_eq!(gateway.proxy.admin("DELETE", &path, None).status, 200);
    eventually("the proposal ends", SOON, || {
        state(&gateway, &id) == "ended"
    });
    assert_eq!(approve(&gateway, &id).status, 410);
    assert!(!stored(&gateway).exists());
}

#[test]
fn loop_yield_turn_returns_when_a_question_of_the_container_is_decided() {
    let gateway = gateway();
    let yielded = || agent_calls(&gateway, "loop_yield_turn", json!({}));
    let is_ok = |called: &Value| called["result"]["structuredContent"]["ok"] == true;
    assert!(is_ok(&yielded()), "nothing is open");
    let id = propose(&gateway, ALLOW);
    thread::scope(|scope| {
        let waiting = scope.spawn(yielded);
        // The call may not have begun to wait: then it finds no open question.
        let path = format!("/internal/approvals/{id}/deny");
        assert_eq!(gateway.proxy.admin("POST", &path, None).status, 200);
        assert!(is_ok(&waiting.join().unwrap()));
    });
}

#[test]
fn decide_predicts_the_policies_for_agents_and_people_without_a_question() {
    let gateway = gateway();
    let decide = |arguments| agent_calls(&gateway, "policy_reader_decide", arguments);
    let decision = |called: &Value| called["result"]["structuredContent"]["decision"].clone();
    each_row(
        [
            ("by-hand_echo", "deny_continue"),
            ("policy_proposer_propose_policy", "allow"),
        ],
        |(tool, expected)| {
            let called = decide(json!({ "name": tool, "arguments": {} }));
            assert_eq!(decision(&called), expected, "{called}");
        },
    );
    let called = decide(json!({ "name": "by-hand_none" }));
    assert_eq!(called["result"]["isError"], true, "{called}");
    person_calls(
        &gateway,
        "policy_approver_set_policy_text",
        json!({ "source": ASK }),
    );
    let called = decide(json!({ "name": "by-hand_echo" }));
    assert_eq!(decision(&called), "ask", "{called}");
    let arguments = json!({ "name": "by-hand_echo", "container": SANDBOX });
    let called = person_calls(&gateway, "policy_reader_decide", arguments);
    assert_eq!(decision(&called), "ask", "{called}");
    let open = gateway
        .proxy
        .admin("GET", "/internal/approvals?state=pending", None);
    assert_eq!(open.json()["approvals"], json!([]));
    let calls = gateway.proxy.audit().into_iter();
    let of_echo = calls.filter(|line| line["path"] == "echo").count();
    assert_eq!(of_echo, 0, "a prediction is no call");
}
