//! Denials without a policy, for example because of the abort latch, a changed definition, the
//! level, an unknown tool, or a server that is not mounted for the container.

use testkit::{each_row, each_row_async};

use super::*;
use crate::contract::{Endpoint, FrameKind, Host, Scheme};
use crate::fixtures::run;

fn at(level: Level) -> Gate {
    let gate = gate(settings());
    gate.web.raise_level(level);
    gate
}

#[tokio::test]
async fn an_open_world_tool_is_denied_at_confidential_and_above() {
    for (level, denied) in [
        (Level::Public, false),
        (Level::Confidential, true),
        (Level::Secret, true),
    ] {
        let gate = at(level);
        let judged = gate.fetch(json!({})).await;
        let expected = denied.then_some(Code::PolicyDeniedContinue);
        assert_eq!(code(&judged), expected, "{level:?}");
        if let Err(denial) = judged {
            let details = denial.to_json();
            assert_eq!(details["decision"], "deny_continue");
            assert_eq!(
                (&details["server"], &details["tool"]),
                (&json!("kb"), &json!("fetch"))
            );
            assert!(details["reason"].as_str().unwrap().contains(level.as_str()));
        }
        let closed = r#"{"name":"fetch","annotations":{"openWorldHint":false}}"#;
        let mut frame = fetch(&json!({})).of_tool(tool(closed));
        gate.request(&mut gate.flow(), &mut frame).await.unwrap();
    }
}

/// The server `kb` with another process or transport.
fn with_kind(kind: ServerKind) -> McpSettings {
    let server = ServerSettings {
        kind,
        ..(*server("kb")).clone()
    };
    McpSettings {
        servers: [("kb".into(), Arc::new(server))].into(),
        ..McpSettings::default()
    }
}

fn process(change: impl FnOnce(&mut StdioSettings)) -> ServerKind {
    let ServerKind::Stdio(mut process) = server("kb").kind.clone() else {
        panic!("the server has no process");
    };
    change(&mut process);
    ServerKind::Stdio(process)
}

#[test]
fn a_servers_own_closed_world_hint_counts_only_if_its_process_has_no_way_out() {
    let host = Host::parse("api.example.com").unwrap();
    let remote = |transport| {
        ServerKind::Http(HttpSettings {
            url: HiddenValue("https://kb.example.com/mcp".to_owned().into()),
            endpoint: Endpoint {
                scheme: Scheme::Https,
                host: Host::parse("kb.example.com").unwrap(),
                port: 443,
            },
            headers: Vec::new(),
            url_secrets: Default::default(),
            transport,
        })
    };
    let rows = [
        (process(|_| ()), true),
        (process(|process| process.read = vec!["/srv".into()]), true),
        (process(|process| process.unix_sockets = true), true),
        (
            process(|process| process.hosts = vec![(host.clone(), 443)]),
            false,
        ),
        (process(|process| process.confine = Confine::None), false),
        (
            process(|process| {
                process.unix_sockets = true;
                process.write = vec!["/srv".into()];
            }),
            false,
        ),
        (remote(HttpTransport::Streamable), false),
        (remote(HttpTransport::Sse), false),
    ];
    let closed = || tool(r#"{"name":"fetch","annotations":{"openWorldHint":false}}"#);
    each_row(rows, |(kind, counts)| {
        let denied = (!counts).then_some(Code::PolicyDeniedContinue);
        let of_operator = OverrideRule {
            open_world: Some(false),
            ..OverrideRule::default()
        };
        for (rule, expected) in [(OverrideRule::default(), denied), (of_operator, None)] {
            let gate = gate(McpSettings {
                overrides: with_rule(rule).overrides,
                ..with_kind(kind.clone())
            });
            gate.web.raise_level(Level::Confidential);
            let mut call = fetch(&json!({})).of_tool(closed());
            let judged = run(gate.request(&mut gate.flow(), &mut call));
            assert_eq!(code(&judged), expected);
            let mut read =
                Frame::request(Direction::ToServer, kb(), "resources/read", Some(raw("{}")));
            read.tools = Some([closed()].into());
            let mut flow = start(&gate.web, "resources/read", None).begin();
            let judged = run(gate.request(&mut flow, &mut read));
            assert_eq!(code(&judged), expected);
            let settings = &gate.addon.settings;
            let kb = Arc::clone(settings.servers.values().next().unwrap());
            let exposed = Exposed::of(settings, &gate.web, &[(kb, [closed()].into())]);
            assert_eq!(exposed.tools().count(), usize::from(expected.is_none()));
        }
    });
}

#[tokio::test]
async fn a_denial_by_the_level_suggests_a_change_that_lifts_it() {
    let open = r#"{"name":"fetch","annotations":{"openWorldHint":true}}"#;
    let overrides = "set annotations: { openWorldHint: false } under overrides";
    let reset = "unified-proxy container reset web";
    let closed = OverrideRule {
        open_world: Some(false),
        ..OverrideRule::default()
    };
    for (definition, settings, expected) in [
        (FETCH, settings(), Some(overrides)),
        (FETCH, with_rule(closed.clone()), None),
        (open, settings(), Some(reset)),
        (open, with_rule(closed), Some(reset)),
    ] {
        let gate = gate(settings);
        gate.web.raise_level(Level::Confidential);
        let mut frame = fetch(&json!({})).of_tool(tool(definition));
        let judged = gate.request(&mut gate.flow(), &mut frame).await;
        let edit = judged.as_ref().err().and_then(Denial::edit);
        assert_eq!(edit.is_some(), expected.is_some(), "{edit:?}");
        assert!(
            edit.unwrap_or_default()
                .contains(expected.unwrap_or_default())
        );
    }
}

#[tokio::test]
async fn the_level_is_checked_again_after_the_policies() {
    let web = container("web");
    let raised = Arc::clone(&web);
    let mut gate = with_policy(settings(), &["tools/call"], move |_| {
        raised.raise_level(Level::Secret);
        Ok(vec![decision("a", Effect::Allow)])
    });
    gate.web = web;
    let judged = gate.fetch(json!({})).await;
    assert_eq!(code(&judged), Some(Code::PolicyDeniedContinue));
}

#[tokio::test]
async fn a_latch_that_is_set_during_the_evaluation_denies_the_call() {
    let web = container("web");
    let latched = Arc::clone(&web);
    let mut gate = with_policy(settings(), &["tools/call"], move |_| {
        latched.abort();
        Ok(vec![decision("a", Effect::Allow)])
    });
    gate.web = web;
    let judged = gate.fetch(json!({})).await;
    assert_eq!(code(&judged), Some(Code::PolicyDenied));
}

#[tokio::test]
async fn a_latch_that_is_set_during_the_evaluation_denies_a_resources_read() {
    let web = container("web");
    let latched = Arc::clone(&web);
    let mut gate = with_policy(settings(), &["resources/read"], move |_| {
        latched.abort();
        Ok(vec![decision("a", Effect::Allow)])
    });
    gate.web = web;
    let mut flow = start(&gate.web, "resources/read", None).begin();
    let mut read = Frame::request(Direction::ToServer, kb(), "resources/read", Some(raw("{}")));
    let judged = gate.request(&mut flow, &mut read).await;
    assert_eq!(code(&judged), Some(Code::PolicyDenied));
}

#[tokio::test]
async fn a_latch_or_a_higher_level_that_is_set_while_the_level_is_written_denies_the_call() {
    let latch: fn(&Container) = |web| web.abort();
    let raise: fn(&Container) = |web| web.raise_level(Level::Secret);
    let nothing: fn(&Container) = |_| {};
    for (meanwhile, expected) in [
        (latch, Some(Code::PolicyDenied)),
        (raise, Some(Code::PolicyDeniedContinue)),
        (nothing, None),
    ] {
        let gate = gate(with_rule(OverrideRule {
            classification: Level::Confidential,
            ..OverrideRule::default()
        }));
        let web = Arc::clone(&gate.web);
        *gate.records.meanwhile.lock() = Some(Box::new(move || meanwhile(&web)));
        let judged = gate.fetch(json!({})).await;
        assert_eq!(code(&judged), expected);
        assert_eq!(gate.written(), ["level Confidential"]);
    }
}

#[tokio::test]
async fn a_latched_container_can_call_no_tool_until_it_is_reset() {
    let gate = gate(settings());
    gate.web.abort();
    let mut flow = gate.flow();
    let judged = gate.request(&mut flow, &mut fetch(&json!({}))).await;
    let denial = judged.unwrap_err();
    assert_eq!(denial.code(), Code::PolicyDenied);
    let details = denial.to_json();
    assert_eq!(details["type"], "policy_denied");
    assert_eq!(details["decision"], "deny_abort");
    let record = flow.mcp_record();
    assert_eq!(record.decision, Some(Effect::DenyAbort));
    assert!(record.args_sha256.is_some() && record.reason.is_some());
    // The latch belongs to the container, so it also denies a call in another flow.
    assert_eq!(code(&gate.fetch(json!({})).await), Some(Code::PolicyDenied));
    let mut list = Frame::request(Direction::ToServer, kb(), "tools/list", None);
    let mut listing = start(&gate.web, "tools/list", None).begin();
    gate.request(&mut listing, &mut list).await.unwrap();
    gate.web.reset_standing();
    gate.fetch(json!({})).await.unwrap();
}

#[tokio::test]
async fn a_latched_container_can_send_no_request_that_may_carry_text_but_can_list_and_cancel() {
    let gate = gate(settings());
    gate.web.abort();
    let denied = Some(Code::PolicyDenied);
    let request = |method| Frame::request(Direction::ToServer, kb(), method, Some(raw("{}")));
    let rows = [
        (request("resources/read"), denied),
        (request("resources/subscribe"), denied),
        (request("prompts/get"), denied),
        (request("completion/complete"), denied),
        (request("com.example/run"), denied),
        (request("com.example/list"), denied),
        (request("tools/list"), None),
        (request("resources/templates/list"), None),
        (request("resources/unsubscribe"), None),
        (request("logging/setLevel"), None),
        (
            Frame::notification(Direction::ToServer, kb(), "notifications/cancelled", None),
            None,
        ),
    ];
    for (mut frame, expected) in rows {
        let mut flow = start(&gate.web, &frame.method, None).begin();
        let judged = gate.request(&mut flow, &mut frame).await;
        assert_eq!(code(&judged), expected, "{}", frame.method);
    }
}

#[tokio::test]
async fn a_clients_answer_is_judged_like_the_tool_call_that_it_belongs_to_or_else_like_a_request() {
    let closed = r#"{"name":"fetch","annotations":{"openWorldHint":false}}"#;
    for (latched, level, definition, expected) in [
        (false, Level::Public, Some(tool(FETCH)), None),
        (
            true,
            Level::Public,
            Some(tool(FETCH)),
            Some(Code::PolicyDenied),
        ),
        (true, Level::Public, None, Some(Code::PolicyDenied)),
        (
            false,
            Level::Secret,
            Some(tool(FETCH)),
            Some(Code::PolicyDeniedContinue),
        ),
        (false, Level::Secret, Some(tool(closed)), None),
        (false, Level::Secret, None, Some(Code::PolicyDeniedContinue)),
        (
            false,
            Level::Public,
            Some(changed(FETCH)),
            Some(Code::PolicyDeniedContinue),
        ),
    ] {
        let gate = at(level);
        if latched {
            gate.web.abort();
        }
        let method = "elicitation/create";
        let mut flow = start(&gate.web, method, None).begin();
        let mut answer = Frame::response(Direction::ToClient, kb(), method, Ok(raw("{}")));
        answer.definition.clone_from(&definition);
        let judged = gate.addon.judge_response(&mut flow, &mut answer).await;
        assert_eq!(
            code(&judged),
            expected,
            "{latched} {level:?} {definition:?}"
        );
        if let (Err(denial), Some(_)) = (judged, definition) {
            assert_eq!(denial.detail("tool"), Some("fetch"));
        }
    }
}

#[tokio::test]
async fn a_changed_definition_blocks_the_tool_unless_changes_are_only_logged() {
    for (on_change, expected) in [
        (OnChange::Deny, Some(Code::PolicyDeniedContinue)),
        (OnChange::Log, None),
    ] {
        let gate = gate(McpSettings {
            on_definition_change: on_change,
            ..settings()
        });
        let mut frame = fetch(&json!({})).of_tool(changed(FETCH));
        let judged = gate.request(&mut gate.flow(), &mut frame).await;
        assert_eq!(code(&judged), expected);
        if let Err(denial) = judged {
            assert!(
                denial.sentence().contains("mcp accept kb fetch"),
                "{denial}"
            );
        }
    }
}

#[tokio::test]
async fn unlisted_tools_and_unmounted_servers_are_unknown() {
    let gate = gate(settings());
    let mut other = (*server("db")).clone();
    other.containers = vec!["db-*".into()];
    let settings = McpSettings {
        servers: [("kb".into(), Arc::new(other))].into(),
        ..settings()
    };
    let elsewhere = super::gate(settings);
    let call = || fetch(&json!({}));
    let undefined = || Frame {
        definition: None,
        ..call()
    };
    let another = || call().of_tool(tool(r#"{"name":"other"}"#));
    let without_tool = || Frame {
        target: kb(),
        ..call()
    };
    let cases = [
        (&gate, gate.flow(), undefined()),
        (&gate, gate.flow(), another()),
        (&gate, gate.flow(), without_tool()),
        (&elsewhere, elsewhere.flow(), call()),
        (
            &elsewhere,
            start(&elsewhere.web, "prompts/get", Some("a")).begin(),
            Frame::request(Direction::ToServer, kb(), "prompts/get", None),
        ),
    ];
    for (at, (gate, mut flow, mut frame)) in cases.into_iter().enumerate() {
        let judged = gate.request(&mut flow, &mut frame).await;
        assert_eq!(code(&judged), Some(Code::ToolNotFound), "{at}");
    }
}

#[tokio::test]
async fn the_gateway_gets_only_the_methods_that_it_answers_or_refuses() {
    let gate = gate(settings());
    let judge = async |target: McpTarget, method: &str| {
        let subject = McpSubject {
            server: None,
            method: method.into(),
            name: None,
        };
        let mut start = start(&gate.web, method, None);
        start.subject = Subject::Mcp(subject);
        let mut frame = Frame::request(Direction::ToServer, target, method, None);
        let judged = gate.request(&mut start.begin(), &mut frame).await;
        code(&judged)
    };
    let answered = [
        "initialize",
        "ping",
        "server/discover",
        "subscriptions/listen",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/unsubscribe",
        "logging/setLevel",
        "tasks/get",
        "tasks/update",
        "tasks/cancel",
    ];
    let others = [
        "tasks/result",
        "tasks/list",
        "tools/call",
        "prompts/get",
        "resources/read",
        "resources/subscribe",
        "completion/complete",
        "com.example/run",
        "Ping",
        "",
    ];
    let rows = answered.map(|method| (method, None));
    let denied = others.map(|method| (method, Some(Code::MethodNotAllowed)));
    each_row_async(
        rows.into_iter().chain(denied),
        async |(method, expected)| {
            assert_eq!(
                judge(McpTarget::Gateway, method).await,
                expected,
                "{method}"
            );
            assert_eq!(judge(McpTarget::Refused, method).await, None, "{method}");
        },
    )
    .await;
}

#[tokio::test]
async fn a_call_without_an_id_is_refused() {
    let gate = gate(settings());
    let mut frame = Frame {
        kind: FrameKind::Notification,
        ..fetch(&json!({}))
    };
    let judged = gate.request(&mut gate.flow(), &mut frame).await;
    assert_eq!(code(&judged), Some(Code::MalformedRequest));
}

#[tokio::test]
async fn a_flow_without_a_principal_is_denied() {
    let gate = gate(settings());
    let mut start = start(&gate.web, "tools/call", Some("fetch"));
    start.principal = None;
    let mut flow = start.begin();
    let judged = gate.request(&mut flow, &mut fetch(&json!({}))).await;
    assert_eq!(code(&judged), Some(Code::UnknownSource));
    let mut frame = Frame::response(Direction::ToServer, to_fetch(), "tools/call", ok(json!({})));
    let judged = gate.addon.judge_response(&mut flow, &mut frame).await;
    assert_eq!(code(&judged), Some(Code::UnknownSource));
}

#[tokio::test]
async fn verdicts_are_immediate_without_policies_and_dry_runs_explain_them() {
    let gate = gate(settings());
    let mut flow = start(&gate.web, "tools/call", Some("fetch")).begin_dry();
    let mut frame = fetch(&json!({}));
    let verdict = gate.addon.mcp_request(&mut flow, &mut frame).ready();
    assert!(verdict.unwrap().is_ok());
    let notes: Vec<_> = flow.notes().into_iter().map(|note| note.text).collect();
    each_row_async(
        ["kb_fetch may be called", "no policy covers tools/call"],
        async |note| assert!(notes.iter().any(|one| one.starts_with(note)), "{notes:?}"),
    )
    .await;
    let policy = with_policy(settings(), &["tools/call"], |_| Ok(Vec::new()));
    let (mut flow, mut frame) = (policy.flow(), fetch(&json!({})));
    assert!(
        policy
            .addon
            .mcp_request(&mut flow, &mut frame)
            .ready()
            .is_none()
    );
}
