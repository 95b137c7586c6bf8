//! Calls and results that other gateways and hooks ask about.

use proptest::prelude::*;
use testkit::each_row;

use super::*;
use crate::contract::{
    Executing, Handover, INTERCEPTOR, Intercept, RedactedArguments, RedactedOutcome,
};
use crate::fixtures::run;
use crate::mcp::settings::{Injected, OverrideRule};

const CALLS: &[&str] = &["tools/call"];
const ARGUMENTS: &str = r#"{"q":1}"#;

fn built_in(tool: &str) -> McpTarget {
    McpTarget::Tool {
        server: INTERCEPTOR.into(),
        name: tool.into(),
    }
}

fn flow(gate: &Gate, server: &str, tool: Option<&str>, intercept: Intercept) -> OwnedFlow {
    let subject = McpSubject {
        server: Some(server.into()),
        method: "tools/call".into(),
        name: tool.map(Arc::from),
    };
    let mut start = FlowStart::new(Kind::Mcp, client(), Subject::Mcp(subject), None);
    start.principal = Some(Arc::clone(&gate.web).into());
    let mut flow = start.begin();
    flow.put_slot(intercept);
    flow
}

fn unlisted(name: &str, arguments: &str) -> Frame {
    let params = format!(r#"{{"name":"{name}","arguments":{arguments}}}"#);
    let frame = Frame::request(
        Direction::ToServer,
        built_in(name),
        "tools/call",
        Some(raw(params)),
    );
    frame.of_tool(tool(json!({ "name": name }).to_string()))
}

fn unattributed(result: Value) -> Frame {
    let target = McpTarget::Server(INTERCEPTOR.into());
    Frame::response(Direction::ToServer, target, "tools/call", ok(result))
}

#[test]
fn a_built_in_server_is_only_for_questions_of_the_interceptor() {
    let gate = gate(settings());
    each_row(
        [(false, None), (true, Some(Code::ToolNotFound))],
        |(is_at_gateway, denied)| {
            let intercept = Intercept {
                is_at_gateway,
                ..Intercept::default()
            };
            let mut flow = flow(&gate, INTERCEPTOR, Some("search"), intercept);
            let judged = run(gate.request(&mut flow, &mut unlisted("search", "{}")));
            assert_eq!(code(&judged), denied);
        },
    );
}

/// An approval of a call of `fetch` with [`ARGUMENTS`], and the flow of such a call.
fn handed_over(gate: &Gate) -> (Arc<Handover>, OwnedFlow) {
    let mut before = gate.flow();
    run(gate.request(
        &mut before,
        &mut fetch(&serde_json::from_str(ARGUMENTS).unwrap()),
    ))
    .ok();
    let args = before.mcp_record().args_sha256.clone().unwrap();
    let executing = Executing {
        digest: "x".into(),
        level: Level::Secret,
        continues: false,
    };
    let tool = ("kb".into(), "fetch".into());
    let handover = Arc::new(Handover::new(
        tool,
        args,
        Some("approval".into()),
        executing,
    ));
    let mut flow = gate.flow();
    flow.put_slot(Intercept {
        handover: Some(Arc::clone(&handover)),
        is_at_gateway: true,
        ..Intercept::default()
    });
    (handover, flow)
}

#[test]
fn an_approval_is_taken_over_once_by_the_same_call_alone() {
    let gate = gate(settings());
    let same: Value = serde_json::from_str(ARGUMENTS).unwrap();
    let (_, mut other) = handed_over(&gate);
    run(gate.request(&mut other, &mut fetch(&json!({ "q": 2 })))).unwrap();
    assert!(other.find_slot::<Executing>().is_none());
    let (handover, mut first) = handed_over(&gate);
    run(gate.request(&mut first, &mut fetch(&same))).unwrap();
    assert!(first.find_slot::<Executing>().is_some());
    let approval = first.approval_record().id.clone();
    assert_eq!(approval.as_deref(), Some("approval"));
    let mut second = gate.flow();
    second.put_slot(Intercept {
        handover: Some(handover),
        ..Intercept::default()
    });
    run(gate.request(&mut second, &mut fetch(&same))).unwrap();
    assert!(second.find_slot::<Executing>().is_none());
}

#[test]
fn a_denied_call_gives_the_approval_back() {
    let gate = with_policy(settings(), CALLS, |_| {
        Ok(vec![decision("main", Effect::DenyContinue)])
    });
    let (handover, mut flow) = handed_over(&gate);
    let same = serde_json::from_str(ARGUMENTS).unwrap();
    assert!(run(gate.request(&mut flow, &mut fetch(&same))).is_err());
    assert!(flow.find_slot::<Executing>().is_none());
    assert!(
        handover
            .take(("kb", "fetch"), &handover.args_sha256)
            .is_some()
    );
}

#[test]
fn redacted_arguments_lack_what_an_override_sets() {
    let rule = OverrideRule {
        hide_fields: vec!["debug".into()],
        defaults: vec![("key".into(), Injected::Variable(json!("s3cret")))],
        ..OverrideRule::default()
    };
    let gate = with_policy(with_rule(rule), CALLS, |_| {
        Ok(vec![redact(
            "main",
            r#"{"q":"clean","key":"s3cret","debug":1}"#,
        )])
    });
    let mut flow = gate.flow();
    flow.put_slot(Intercept::default());
    run(gate.request(&mut flow, &mut fetch(&json!({ "q": 1 })))).unwrap();
    let redacted = flow.take_slot::<RedactedArguments>().unwrap();
    assert_eq!(redacted.0.get(), r#"{"q":"clean"}"#);
}

#[test]
fn a_result_is_known_to_be_redacted_whatever_the_strictest_decision_is() {
    let gate = with_policy(settings(), CALLS, |_| {
        Ok(vec![
            redact("main", r#"{"content":[]}"#),
            decision("second", Effect::Ask),
        ])
    });
    let mut flow = flow(&gate, INTERCEPTOR, Some("pay"), Intercept::default());
    flow.put_slot(Executing {
        digest: "x".into(),
        level: Level::Secret,
        continues: false,
    });
    let result = ok(json!({ "content": [{ "type": "text", "text": "x" }] }));
    let mut frame = Frame::response(Direction::ToServer, built_in("pay"), "tools/call", result)
        .of_tool(tool(r#"{"name":"pay"}"#));
    run(gate.addon.judge_response(&mut flow, &mut frame)).unwrap();
    assert!(flow.take_slot::<RedactedOutcome>().is_some());
}

/// Of two denials of one bundle, one for the missing tool and one for what the result has.
#[test]
fn a_stricter_or_another_denial_than_that_of_an_empty_result_counts_without_a_call() {
    each_row(
        [
            (Effect::DenyContinue, "unknown tool", None),
            (
                Effect::DenyContinue,
                "a secret",
                Some(Code::PolicyDeniedContinue),
            ),
            (Effect::DenyAbort, "unknown tool", Some(Code::PolicyDenied)),
        ],
        |(effect, reason, expected)| {
            let gate = with_policy(settings(), CALLS, move |input| {
                let is_empty = input["result"]["content"] == json!([]);
                let (effect, reason) = match is_empty {
                    true => (Effect::DenyContinue, "unknown tool"),
                    false => (effect, reason),
                };
                Ok(vec![Decision {
                    depends_on_call: true,
                    reason: Some(reason.into()),
                    ..decision("main", effect)
                }])
            });
            let intercept = Intercept {
                is_unattributed: true,
                ..Intercept::default()
            };
            let mut flow = flow(&gate, INTERCEPTOR, None, intercept);
            let mut frame = unattributed(json!({ "content": [{ "type": "text", "text": "x" }] }));
            let judged = run(gate.addon.judge_response(&mut flow, &mut frame));
            assert_eq!(code(&judged), expected);
        },
    );
}

/// Of a result without its call, what one bundle decides counts if it redacts, if it does not depend
/// on the call, or if it would pass an empty result.
#[test]
fn only_decisions_that_need_no_call_count_for_a_result_without_one() {
    let denied = Some(Code::PolicyDeniedContinue);
    each_row(
        [
            (false, false, denied),
            (false, true, denied),
            (true, false, None),
            (true, true, denied),
        ],
        |(depends_on_call, passes_empty, expected)| {
            let gate = with_policy(settings(), CALLS, move |input| {
                let is_empty = input["result"]["content"] == json!([]);
                let effect = match is_empty && passes_empty {
                    true => Effect::Allow,
                    false => Effect::DenyContinue,
                };
                Ok(vec![Decision {
                    depends_on_call,
                    ..decision("main", effect)
                }])
            });
            let intercept = Intercept {
                is_unattributed: true,
                ..Intercept::default()
            };
            let mut flow = flow(&gate, INTERCEPTOR, None, intercept);
            let mut frame = unattributed(json!({ "content": [{ "type": "text", "text": "x" }] }));
            let judged = run(gate.addon.judge_response(&mut flow, &mut frame));
            assert_eq!(code(&judged), expected);
            let input = &gate.evaluated()[0];
            for key in ["tool", "name", "server", "tool_id", "agent_id", "params"] {
                assert_eq!(input[key], Value::Null, "{key}");
            }
        },
    );
}

fn text() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[ -~]{1,20}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    // Feature: unified-sidecar, Property 4: Intercept Request Evaluation
    #[test]
    fn the_policies_get_the_payload_the_tool_id_and_the_agent_id_of_each_question(
        name in "[a-zA-Z0-9_-]{1,20}",
        arguments in prop::collection::btree_map("[a-z]{1,5}", any::<i32>(), 0..4),
        tool_id in text(),
        agent_id in text(),
        session in text(),
        is_response: bool,
    ) {
        let gate = with_policy(settings(), CALLS, |_| Ok(vec![decision("main", Effect::Allow)]));
        let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
        let intercept = Intercept {
            tool_id: boxed(&tool_id),
            agent_id: boxed(&agent_id),
            session: boxed(&session),
            context: Some(r#"{"request_id":"r"}"#.into()),
            ..Intercept::default()
        };
        let mut flow = flow(&gate, INTERCEPTOR, Some(&name), intercept);
        let payload = json!(arguments);
        if is_response {
            let outcome = ok(payload.clone());
            let mut frame = Frame::response(Direction::ToServer, built_in(&name), "tools/call", outcome)
                .of_tool(tool(json!({ "name": name }).to_string()));
            run(gate.addon.judge_response(&mut flow, &mut frame)).unwrap();
        } else {
            run(gate.request(&mut flow, &mut unlisted(&name, &payload.to_string()))).unwrap();
        }
        let evaluated = gate.evaluated();
        prop_assert_eq!(evaluated.len(), 1);
        let input = &evaluated[0];
        let own = format!("interceptor_{name}");
        prop_assert_eq!(&input["name"], &own);
        prop_assert_eq!(&input["tool"], &name);
        prop_assert_eq!(&input["tool_id"], tool_id.as_deref().unwrap_or(&own));
        prop_assert_eq!(&input["agent_id"], agent_id.as_deref().unwrap_or("web"));
        prop_assert_eq!(&input["container"], "web");
        prop_assert_eq!(&input["session"], &json!(session));
        prop_assert_eq!(&input["context"]["request_id"], "r");
        let key = if is_response { "result" } else { "arguments" };
        prop_assert_eq!(&input[key], &payload);
    }
}
