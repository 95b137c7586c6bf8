//! Text of clients outside tool calls, at each security level.

use super::*;
use crate::contract::{Definition, FrameKind};

const OPEN: &str = r#"{"name":"open"}"#;
const CLOSED: &str = r#"{"name":"closed","annotations":{"openWorldHint":false}}"#;
const LEVELS: [Level; 3] = [Level::Public, Level::Confidential, Level::Secret];

fn request(method: &str, params: Value) -> Frame {
    Frame::request(
        Direction::ToServer,
        kb(),
        method,
        Some(raw(params.to_string())),
    )
}

fn listen(uris: Value) -> Frame {
    let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": uris });
    request("subscriptions/listen", json!({ "notifications": filter }))
}

fn notification(method: &str) -> Frame {
    Frame::notification(Direction::ToServer, kb(), method, Some(raw("{}")))
}

/// A client's answer to an input request of a server.
fn answer(method: &str) -> Frame {
    Frame::response(Direction::ToClient, kb(), method, Ok(raw("{}")))
}

/// Messages that carry text of the client.
fn texts() -> Vec<Frame> {
    let methods = [
        "resources/read",
        "resources/subscribe",
        "prompts/get",
        "completion/complete",
        "com.example/run",
        "com.example/list",
    ];
    let mut frames: Vec<_> = methods
        .map(|method| request(method, json!({ "uri": "a:b" })))
        .into();
    frames.extend(["notifications/progress", "notifications/roots/list_changed"].map(notification));
    frames.extend(["elicitation/create", "sampling/createMessage", "roots/list"].map(answer));
    frames.push(listen(json!(["a:b"])));
    frames.push(request(
        "subscriptions/listen",
        json!({ "notifications": 1 }),
    ));
    frames
}

/// Messages that carry no text of the client.
fn others() -> Vec<Frame> {
    let methods = [
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/unsubscribe",
        "logging/setLevel",
        "ping",
        "initialize",
        "server/discover",
    ];
    let mut frames: Vec<_> = methods.map(|method| request(method, json!({}))).into();
    frames.push(notification("notifications/cancelled"));
    frames.push(listen(json!([])));
    frames
}

/// Judges a message for a server that lists these tools; `None` if they are not known.
async fn judge(gate: &Gate, mut frame: Frame, tools: Option<Vec<Arc<Definition>>>) -> Verdict {
    frame.tools = tools.map(Arc::from);
    let mut flow = start(&gate.web, &frame.method, None).begin();
    match frame.kind {
        FrameKind::Response => gate.addon.judge_response(&mut flow, &mut frame).await,
        _ => gate.request(&mut flow, &mut frame).await,
    }
}

fn at(level: Level, settings: McpSettings) -> Gate {
    let gate = gate(settings);
    gate.web.raise_level(level);
    gate
}

#[tokio::test]
async fn from_confidential_on_client_text_reaches_only_servers_known_to_be_closed_world() {
    for level in LEVELS {
        let gate = at(level, settings());
        for (tools, is_closed) in [
            (None, false),
            (Some(vec![]), false),
            (Some(vec![tool(OPEN)]), false),
            (Some(vec![tool(CLOSED), tool(OPEN)]), false),
            (Some(vec![changed(CLOSED)]), false),
            (Some(vec![tool(CLOSED), tool(CLOSED)]), true),
        ] {
            let is_denied = level != Level::Public && !is_closed;
            for frame in texts() {
                let method = Arc::clone(&frame.method);
                let judged = judge(&gate, frame, tools.clone()).await;
                let expected = is_denied.then_some(Code::PolicyDeniedContinue);
                assert_eq!(code(&judged), expected, "{level:?} {method} {tools:?}");
                if let Err(denial) = judged {
                    let details = denial.to_json();
                    assert_eq!(details["decision"], "deny_continue");
                    assert_eq!(details["server"], "kb");
                    assert!(details["reason"].as_str().unwrap().contains(level.as_str()));
                    assert_eq!(denial.rule_name(), Some("security level"));
                }
            }
            for frame in others() {
                let method = Arc::clone(&frame.method);
                judge(&gate, frame, tools.clone())
                    .await
                    .unwrap_or_else(|denial| panic!("{method}: {denial}"));
            }
        }
    }
}

#[tokio::test]
async fn overrides_decide_whether_a_server_reaches_the_open_world_unless_its_hint_is_stricter() {
    let said_open = r#"{"name":"open","annotations":{"openWorldHint":true}}"#;
    for (name, definition, hint, passes) in [
        ("open", OPEN, false, true),
        ("open", said_open, false, false),
        ("closed", CLOSED, true, false),
    ] {
        let rule = OverrideRule {
            open_world: Some(hint),
            ..OverrideRule::default()
        };
        let settings = McpSettings {
            overrides: overriding("kb", name, rule).overrides,
            ..settings()
        };
        let gate = at(Level::Confidential, settings);
        let read = request("resources/read", json!({ "uri": "a:b" }));
        let judged = judge(&gate, read, Some(vec![tool(definition)])).await;
        assert_eq!(judged.is_ok(), passes, "{definition} {hint}");
    }
}

#[tokio::test]
async fn a_level_that_is_raised_during_the_evaluation_denies_the_clients_text() {
    let web = container("web");
    let raised = Arc::clone(&web);
    let mut gate = with_policy(settings(), &["resources/read"], move |_| {
        raised.raise_level(Level::Confidential);
        Ok(vec![decision("a", Effect::Allow)])
    });
    gate.web = web;
    let read = request("resources/read", json!({ "uri": "a:b" }));
    let judged = judge(&gate, read, None).await;
    assert_eq!(code(&judged), Some(Code::PolicyDeniedContinue));
}

#[tokio::test]
async fn the_abort_latch_denies_subscriptions_to_resources_but_not_to_lists() {
    let gate = gate(settings());
    gate.web.abort();
    for (uris, expected) in [
        (json!(["a:b"]), Some(Code::PolicyDenied)),
        (json!([]), None),
    ] {
        let judged = judge(&gate, listen(uris), Some(vec![tool(CLOSED)])).await;
        assert_eq!(code(&judged), expected);
    }
}
