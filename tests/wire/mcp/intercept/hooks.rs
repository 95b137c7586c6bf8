//! Claude Code's hooks.

use serde_json::{Value, json};
use testkit::each_row;

use super::super::hostile::client::FIRST;
use super::{ASKING, Interceptor};
use crate::support::read_reply;

fn event(name: &str, tool: &str) -> Value {
    json!({
        "session_id": "s", "hook_event_name": name, "tool_name": tool, "tool_use_id": "toolu_1",
        "tool_input": { "command": "ls" }, "cwd": "/tmp", "permission_mode": "default",
    })
}

fn decision(answer: &Value) -> &Value {
    &answer["hookSpecificOutput"]["permissionDecision"]
}

#[test]
fn a_hook_gets_the_decision_in_the_form_of_its_event() {
    let wait = json!({ "wait": "15m" });
    let interceptor = Interceptor::with(json!({}), |setup| setup.proxy["approvals"] = wait);
    let ask = |body: &Value| interceptor.ask("claude-code", body).json();
    let denied = ask(&event("PreToolUse", "Bash"));
    assert_eq!(decision(&denied), "deny");
    assert_eq!(denied["hookSpecificOutput"]["hookEventName"], "PreToolUse");
    let reason = &denied["hookSpecificOutput"]["permissionDecisionReason"];
    assert!(reason.as_str().unwrap().contains("not with this policy"));
    assert_eq!(ask(&event("PreToolUse", "Read")), json!({}));
    let fixed = ask(&event("PreToolUse", "fix"));
    // Claude Code asks its user as it would without the policy.
    assert_eq!(decision(&fixed), "ask");
    assert_eq!(
        fixed["hookSpecificOutput"]["updatedInput"],
        json!({ "q": "clean" })
    );
    let body = event("PreToolUse", "Write").to_string();
    let mut held = interceptor.begin(FIRST, "POST /intercept/claude-code", "", &body);
    interceptor.decide("claude-code/Write", "approve");
    assert_eq!(decision(&read_reply(&mut held).unwrap().json()), "allow");
    let mut after = event("PostToolUse", "Read");
    // Another call.
    after["tool_use_id"] = json!("toolu_2");
    after["tool_response"] = json!({ "stdout": "hello" });
    assert_eq!(ask(&after), json!({}));
    after["tool_response"] = json!("sk-secret");
    let blocked = ask(&after);
    assert_eq!(blocked["decision"], "block");
    // The output of another event would be an error.
    assert_eq!(blocked["hookSpecificOutput"], Value::Null);
    let line = json!({ "server": "claude-code", "tool": "Bash", "decision": "deny_continue" });
    interceptor.gateway.proxy.audited(line);
}

#[test]
fn a_result_of_another_tool_or_of_a_denied_one_is_blocked() {
    let (interceptor, _second) = Interceptor::with_second(ASKING);
    let ask = |body: &Value| interceptor.ask("claude-code", body).json();
    let after = |tool: &str| {
        let mut after = event("PostToolUse", tool);
        after["tool_response"] = json!({ "stdout": "hello" });
        after
    };
    let body = event("PreToolUse", "Write").to_string();
    let mut held = interceptor.begin(FIRST, "POST /intercept/claude-code", "", &body);
    interceptor.decide("claude-code/Write", "approve");
    assert_eq!(decision(&read_reply(&mut held).unwrap().json()), "allow");
    for _repetition in 0..2 {
        assert_eq!(ask(&after("Read"))["decision"], "block");
    }
    let mut leaking = after("Write");
    leaking["tool_response"] = json!("sk-secret");
    assert_eq!(ask(&leaking)["decision"], "block");
    assert_eq!(decision(&ask(&event("PreToolUse", "Bash"))), "deny");
    for _repetition in 0..2 {
        assert_eq!(ask(&after("Bash"))["decision"], "block");
    }
}

#[test]
fn what_is_no_known_event_is_denied_in_both_forms_with_status_200() {
    let interceptor = Interceptor::start();
    let with = |key: &str, value: Value| {
        let mut body = event("PreToolUse", "Read");
        body[key] = value;
        body.to_string()
    };
    each_row(
        [
            with("hook_event_name", json!("Stop")),
            with("hook_event_name", json!(null)),
            with("Hook_Event_Name", json!("Stop")),
            "{".to_owned(),
            String::new(),
            "null".to_owned(),
        ],
        |body| {
            let reply = interceptor.ask("claude-code", &body);
            let answer = reply.json();
            assert_eq!(reply.status, 200);
            assert_eq!(answer["decision"], "block", "{answer}");
            assert_eq!(decision(&answer), "deny");
        },
    );
    each_row(
        [
            with("tool_name", json!(null)),
            with("tool_name", json!("")),
            with("tool_name", json!("two words")),
            with("tool_input", json!("ls")),
        ],
        |body| {
            let reply = interceptor.ask("claude-code", &body);
            assert_eq!(
                (reply.status, decision(&reply.json())),
                (200, &json!("deny"))
            );
        },
    );
}
