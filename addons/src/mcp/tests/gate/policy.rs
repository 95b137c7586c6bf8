//! Decisions of policies on requests.

use testkit::{each_row, each_row_async};

use super::*;
use crate::contract::McpSession;
use crate::fixtures::run;

const CALLS: &[&str] = &["tools/call"];

fn deciding(decisions: Vec<Decision>) -> Gate {
    with_policy(settings(), CALLS, move |_| Ok(decisions.clone()))
}

#[test]
fn the_strictest_decision_counts_in_any_order() {
    let codes = [
        None,
        None,
        // There is no ledger of approvals.
        Some(Code::RegistryUnavailable),
        Some(Code::PolicyDeniedContinue),
        Some(Code::PolicyDenied),
    ];
    let decision = |bundle, at: usize| match Effect::ALL[at] {
        Effect::Redact => redact(bundle, "{}"),
        effect => decision(bundle, effect),
    };
    let pairs = (0..5).flat_map(|one| (0..5).map(move |other| (one, other)));
    each_row(pairs.collect::<Vec<_>>(), |(one, other)| {
        let gate = deciding(vec![decision("one", one), decision("other", other)]);
        let strictest = one.max(other);
        let mut flow = gate.flow();
        let judged = run(gate.request(&mut flow, &mut fetch(&json!({ "q": 1 }))));
        assert_eq!(code(&judged), codes[strictest], "{one} {other}");
        assert_eq!(flow.mcp_record().decision, Some(Effect::ALL[strictest]));
        let bundle = if one >= other { "one" } else { "other" };
        let reason = format!("{bundle} says so");
        assert_eq!(flow.mcp_record().reason.as_deref(), Some(&*reason));
        if let Err(denial) = judged {
            let asks = Effect::ALL[strictest] == Effect::Ask;
            let rule = if asks { "approvals" } else { bundle };
            assert_eq!(denial.rule_name(), Some(rule));
            if !asks {
                assert!(denial.detail("reason").unwrap().contains(&reason));
                assert_eq!(denial.detail("tool"), Some("fetch"));
            }
        }
    });
}

#[tokio::test]
async fn a_latch_is_on_disk_before_the_call_is_denied() {
    let gate = deciding(vec![decision("a", Effect::DenyAbort)]);
    let denial = gate.fetch(json!({})).await.unwrap_err();
    assert_eq!(denial.detail("type"), Some("policy_denied"));
    assert_eq!(denial.detail("decision"), Some("deny_abort"));
    assert_eq!(gate.written(), ["latch"]);
    assert!(gate.web.is_aborted());
    // The latch belongs to the container, so it also denies a call in another flow.
    gate.fetch(json!({})).await.unwrap_err();
    assert_eq!(gate.evaluated().len(), 1, "a latched call is not evaluated");
}

#[tokio::test]
async fn a_latch_that_cannot_be_stored_still_denies_calls() {
    let mut gate = deciding(vec![decision("a", Effect::DenyAbort)]);
    gate.addon.ports.records = Arc::new(Records {
        broken: true,
        ..Records::default()
    });
    for _ in 0..2 {
        assert_eq!(code(&gate.fetch(json!({})).await), Some(Code::PolicyDenied));
    }
}

#[tokio::test]
async fn dropping_a_call_does_not_cancel_the_write_of_the_latch() {
    let gate = deciding(vec![decision("a", Effect::DenyAbort)]);
    {
        let (mut flow, mut frame) = (gate.flow(), fetch(&json!({})));
        let mut judging = Box::pin(gate.request(&mut flow, &mut frame));
        while !gate.web.is_aborted() {
            assert!((&mut judging).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gate.written(), ["latch"]);
}

#[tokio::test]
async fn an_evaluation_that_fails_or_returns_no_decision_denies() {
    let cases = [
        EvaluatorError::Failed("conflict in authz.rego:7".to_owned()),
        EvaluatorError::TimedOut,
        EvaluatorError::Busy,
        EvaluatorError::Unavailable("a: no such file".to_owned()),
    ];
    for error in cases {
        let reason = error.to_string();
        let gate = with_policy(settings(), CALLS, move |_| Err(error.clone()));
        let denial = gate.fetch(json!({})).await.unwrap_err();
        assert_eq!(denial.code(), Code::PolicyEvaluatorError);
        assert_eq!(denial.detail("name"), Some("kb_fetch"));
        assert_eq!(denial.detail("reason"), Some(&*reason));
    }
    let gate = deciding(Vec::new());
    assert_eq!(
        code(&gate.fetch(json!({})).await),
        Some(Code::PolicyDeniedContinue)
    );
}

#[tokio::test]
async fn on_unavailable_allow_applies_only_to_bundles_that_cannot_be_loaded() {
    let allowing = || {
        let mut settings = settings();
        settings.policies.on_unavailable = OnUnavailable::Allow;
        settings
    };
    let unavailable = EvaluatorError::Unavailable("a: no such file".to_owned());
    for (answer, expected) in [
        (Err(unavailable), None),
        // No bundle for the method is loaded.
        (Ok(Vec::new()), None),
        (
            Err(EvaluatorError::TimedOut),
            Some(Code::PolicyEvaluatorError),
        ),
        (
            Ok(vec![decision("a", Effect::DenyContinue)]),
            Some(Code::PolicyDeniedContinue),
        ),
    ] {
        let gate = with_policy(allowing(), CALLS, move |_| answer.clone());
        assert_eq!(code(&gate.fetch(json!({})).await), expected);
    }
}

#[tokio::test]
async fn redactions_apply_in_the_order_of_the_bundles() {
    let hide = |field: &'static str| {
        move |bundle: &str, input: &Value, at: &str| {
            let mut redacted = input[at].clone();
            redacted[field] = json!("***");
            redact(bundle, redacted.to_string())
        }
    };
    let (first, second) = (hide("a"), hide("b"));
    each_row_async(
        [
            ("tools/call", Direction::ToServer, "arguments"),
            ("prompts/get", Direction::ToServer, "params"),
            ("elicitation/create", Direction::ToClient, "params"),
        ],
        async |(method, direction, at)| {
            let answer = move |input: &Value| {
                Ok(vec![
                    decision("one", Effect::Allow),
                    first("two", input, at),
                    decision("three", Effect::Allow),
                    second("four", input, at),
                ])
            };
            let gate = with_policy(settings(), &[method], answer);
            let sent = json!({ "a": 1, "b": 2, "c": 3 });
            let mut frame = match method {
                "tools/call" => fetch(&sent),
                _ => Frame::request(direction, kb(), method, Some(raw(sent.to_string()))),
            };
            let mut flow = start(&gate.web, method, Some("fetch")).begin();
            gate.request(&mut flow, &mut frame).await.unwrap();
            let redacted = json!({ "a": "***", "b": "***", "c": 3 });
            let expected = match method {
                "tools/call" => json!({ "name": "fetch", "arguments": redacted }),
                _ => redacted,
            };
            assert_eq!(params(&frame), expected, "{method}");
            let [_, last] = &gate.evaluated()[..] else {
                panic!("{:?}", gate.evaluated())
            };
            assert_eq!(last[at], json!({ "a": "***", "b": 2, "c": 3 }));
        },
    )
    .await;
}

#[tokio::test]
async fn a_stricter_decision_counts_before_and_after_a_redaction() {
    for at in 0..3 {
        let mut decisions = vec![redact("a", "{}"), redact("b", "{}")];
        decisions.insert(at, decision("c", Effect::DenyAbort));
        let gate = deciding(decisions);
        let denial = gate.fetch(json!({})).await.unwrap_err();
        assert_eq!(denial.rule_name(), Some("c"), "{at}");
    }
}

#[tokio::test]
async fn redacted_arguments_are_sent_byte_for_byte_if_they_are_an_unambiguous_object() {
    let gate = deciding(vec![redact("c", r#"{"q":"***","n":1.0}"#)]);
    let (mut flow, mut frame) = (gate.flow(), fetch(&json!({ "q": "secret" })));
    gate.request(&mut flow, &mut frame).await.unwrap();
    let expected = r#"{"name":"fetch","arguments":{"q":"***","n":1.0}}"#;
    assert_eq!(frame.params().unwrap().get(), expected);
    for modified in ["[]", "null", r#"{"a":1,"a":2}"#] {
        let gate = deciding(vec![redact("a", modified)]);
        let judged = gate.fetch(json!({})).await;
        assert_eq!(
            code(&judged),
            Some(Code::PolicyEvaluatorError),
            "{modified}"
        );
    }
    for other in [Effect::Allow, Effect::DenyAbort] {
        let empty = decision("b", Effect::Redact);
        let gate = deciding(vec![decision("a", other), empty]);
        let judged = gate.fetch(json!({})).await;
        assert_eq!(code(&judged), Some(Code::PolicyEvaluatorError), "{other:?}");
    }
}

#[tokio::test]
async fn the_input_has_original_names_and_the_params_to_be_sent() {
    let rule = OverrideRule {
        rename: Some("read".into()),
        hide_fields: vec!["debug".into()],
        defaults: vec![("units".into(), Injected::Value(json!("metric")))],
        open_world: Some(false),
        ..OverrideRule::default()
    };
    let gate = with_policy(with_rule(rule), CALLS, |_| {
        Ok(vec![decision("a", Effect::Allow)])
    });
    let mut flow = gate.flow();
    flow.put_slot(McpSession("s-1".into()));
    gate.web.raise_level(Level::Confidential);
    let mut frame = call(r#"{"name":"fetch","arguments":{"debug":1,"q":2},"_meta":{"x":1}}"#);
    gate.request(&mut flow, &mut frame).await.unwrap();
    let arguments = json!({ "q": 2, "units": "metric" });
    let expected = json!({
        "phase": "request", "direction": "to_server", "method": "tools/call",
        "params": { "name": "fetch", "arguments": arguments, "_meta": { "x": 1 } },
        "name": "kb_fetch", "server": "kb", "tool": "fetch", "arguments": arguments,
        "tool_id": "kb_fetch", "agent_id": "web", "container": "web", "session": "s-1",
        "security_level": "Confidential",
        "annotations": {
            "readOnlyHint": false, "destructiveHint": true, "idempotentHint": false,
            "openWorldHint": false,
        },
    });
    assert_eq!(gate.evaluated(), [expected]);
}

#[tokio::test]
async fn requests_of_servers_are_evaluated_if_a_bundle_covers_their_method() {
    let gate = with_policy(settings(), &["elicitation/create"], |input| {
        Ok(vec![match input["params"]["message"] == "password?" {
            true => decision("elicitation", Effect::DenyContinue),
            false => redact("elicitation", r#"{"message":"shorter"}"#),
        }])
    });
    let send = async |method: &str, params: Value| {
        let mut flow = start(&gate.web, method, None).begin();
        let params = Some(raw(params.to_string()));
        let mut frame = Frame::request(Direction::ToClient, kb(), method, params);
        let judged = gate.request(&mut flow, &mut frame).await;
        judged.map(|()| super::params(&frame))
    };
    let denial = send("elicitation/create", json!({ "message": "password?" }))
        .await
        .unwrap_err();
    assert_eq!(denial.code(), Code::PolicyDeniedContinue);
    assert_eq!(denial.detail("server"), Some("kb"));
    assert_eq!(denial.detail("tool"), None);
    let passed = send("elicitation/create", json!({ "message": "name?" })).await;
    assert_eq!(passed.unwrap(), json!({ "message": "shorter" }));
    send("sampling/createMessage", json!({})).await.unwrap();
    let evaluated = gate.evaluated();
    assert_eq!(evaluated.len(), 2);
    assert_eq!(evaluated[0]["direction"], "to_client");
    assert_eq!(
        (&evaluated[0]["name"], &evaluated[0]["tool"]),
        (&json!("kb"), &Value::Null)
    );
}

#[tokio::test]
async fn a_dry_run_evaluates_policies_and_changes_nothing() {
    let gate = deciding(vec![decision("a", Effect::DenyAbort)]);
    let mut flow = start(&gate.web, "tools/call", Some("fetch")).begin_dry();
    let judged = gate
        .addon
        .judge_request(&mut flow, &mut fetch(&json!({})))
        .await;
    assert_eq!(code(&judged), Some(Code::PolicyDenied));
    assert!(gate.written().is_empty() && !gate.web.is_aborted());
    let said = |note: &crate::contract::Note| note.text.contains("deny_abort: a says so");
    assert!(flow.notes().iter().any(said), "{:?}", flow.notes());
}

#[tokio::test]
async fn a_reason_is_cut_between_two_characters() {
    let long = Decision {
        reason: Some("é".repeat(5000).into()),
        ..decision("a", Effect::DenyContinue)
    };
    let gate = deciding(vec![long]);
    let mut flow = gate.flow();
    let judged = gate.request(&mut flow, &mut fetch(&json!({}))).await;
    let denial = judged.unwrap_err();
    assert_eq!(denial.detail("reason").unwrap(), "é".repeat(256));
    assert_eq!(
        flow.mcp_record().reason.as_deref().unwrap(),
        "é".repeat(256)
    );
}
