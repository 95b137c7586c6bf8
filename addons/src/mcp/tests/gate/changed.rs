//! Calls of tools whose definitions changed, about which people are asked.

use testkit::each_row_async;

use super::people::{ID, Ledger, approval, with_ledger};
use super::*;
use crate::contract::{AcceptedDefinitions, ApprovalAnswer, QuestionKind, QuestionLimit};

const NEW: &str = r#"{"name":"fetch","description":"mails it","_meta":{"n":1}}"#;
const OLD: &str = r#"{"name":"fetch"}"#;

/// Keeps `OLD` as the accepted definition of the tool `fetch` of `kb`.
struct Kept;

impl AcceptedDefinitions for Kept {
    fn accepted<'a>(
        &'a self,
        server: &'a str,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<str>>, Unavailable>> {
        assert_eq!((server, tool), ("kb", "fetch"));
        Box::pin(async { Ok(Some(OLD.into())) })
    }
}

fn asking(ledger: &Arc<Ledger>) -> Gate {
    let mut gate = with_ledger(gate(settings()), ledger);
    gate.addon.ports.accepted = Arc::new(Kept);
    gate
}

async fn called(gate: &Gate, flow: &mut OwnedFlow) -> Denial {
    let mut frame = fetch(&json!({ "q": 1 })).of_tool(changed(NEW));
    gate.request(flow, &mut frame).await.unwrap_err()
}

#[tokio::test]
async fn the_question_shows_the_accepted_and_the_new_definition() {
    let ledger = Ledger::open();
    let gate = asking(&ledger);
    let mut flow = gate.flow();
    called(&gate, &mut flow).await;
    let asked = ledger.asked.lock();
    let topic = asked[0].topic();
    assert_eq!(topic.kind, QuestionKind::Definition);
    assert_eq!(topic.server.as_deref(), Some("kb"));
    assert_eq!(&*topic.subject, "fetch");
    assert_eq!(topic.lease, gate.web.lease);
    // Members that are not compared are left out.
    let expected = r#"{"new":{"description":"mails it","name":"fetch"},"old":{"name":"fetch"}}"#;
    assert_eq!(asked[0].arguments(), Some(expected));
    // The digest with which the definition is accepted.
    let listed = ListedTool::read(raw(NEW)).unwrap();
    let digest = listed.digest().map(|byte| format!("{byte:02x}")).concat();
    assert_eq!(*topic.revision, *digest);
    assert_eq!(flow.approval_record().id.as_deref(), Some(ID));
}

#[tokio::test]
async fn each_answer_denies_the_call_at_once_and_says_what_to_do() {
    let denied = |words: &str| ApprovalAnswer::Denied {
        approval: approval(),
        words: Some(words.into()),
    };
    let full = ApprovalAnswer::Full(QuestionLimit::TooLong);
    let open = ApprovalAnswer::Open(approval());
    each_row_async(
        [
            (
                Ok(open),
                Some("pending"),
                Some(ID),
                "repeat the same call once",
            ),
            (
                Ok(denied("use v1")),
                Some("denied"),
                Some(ID),
                "denied by a person: use v1",
            ),
            (Ok(full), Some("full"), None, "too long"),
            (Ok(ApprovalAnswer::Used), None, None, "changed"),
            (Err(Unavailable), None, None, "changed"),
        ],
        async |(answer, outcome, id, part)| {
            let ledger = Ledger::open();
            *ledger.answer.lock() = answer;
            let gate = asking(&ledger);
            let denial = called(&gate, &mut gate.flow()).await;
            assert_eq!(denial.code(), Code::PolicyDeniedContinue);
            assert_eq!(denial.detail("outcome"), outcome);
            assert_eq!(denial.detail("approval"), id);
            assert_eq!(denial.rule_name(), Some("on_definition_change"));
            for part in [part, "mcp accept kb fetch"] {
                assert!(denial.sentence().contains(part), "{denial}");
            }
            assert!(gate.evaluated().is_empty() && gate.written().is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn only_a_call_of_a_blocked_tool_asks() {
    let ledger = Ledger::open();
    let gate = asking(&ledger);
    gate.fetch(json!({})).await.unwrap();
    // A dry run.
    let mut dry = start(&gate.web, "tools/call", Some("fetch")).begin_dry();
    let mut frame = fetch(&json!({})).of_tool(changed(NEW));
    let denial = gate
        .addon
        .judge_request(&mut dry, &mut frame)
        .await
        .unwrap_err();
    assert_eq!(denial.detail("outcome"), None);
    // An answer of the client during a call.
    let mut answer = Frame::response(
        Direction::ToClient,
        kb(),
        "elicitation/create",
        ok(json!({})),
    );
    answer.definition = Some(changed(NEW));
    let mut flow = start(&gate.web, "elicitation/create", None).begin();
    assert!(
        gate.addon
            .judge_response(&mut flow, &mut answer)
            .await
            .is_err()
    );
    // A container whose latch is set.
    gate.web.abort();
    assert_eq!(
        called(&gate, &mut gate.flow()).await.code(),
        Code::PolicyDenied
    );
    assert!(ledger.asked.lock().is_empty());
}

#[tokio::test]
async fn another_lease_or_another_change_is_another_question() {
    let ledger = Ledger::open();
    let gate = asking(&ledger);
    called(&gate, &mut gate.flow()).await;
    called(&gate, &mut gate.flow()).await;
    let other = r#"{"name":"fetch","description":"deletes it"}"#;
    let mut frame = fetch(&json!({})).of_tool(changed(other));
    assert!(gate.request(&mut gate.flow(), &mut frame).await.is_err());
    let second = asking(&ledger);
    called(&second, &mut second.flow()).await;
    let asked = ledger.asked.lock();
    let digests: Vec<_> = asked.iter().map(|question| question.digest()).collect();
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
    assert_eq!(digests[0] == digests[3], gate.web.lease == second.web.lease);
}

#[test]
fn questions_about_definitions_end_where_changes_are_only_logged() {
    let ledger = Ledger::open();
    let gate = asking(&ledger);
    crate::fixtures::run(async {
        called(&gate, &mut gate.flow()).await;
    });
    let asked = ledger.asked.lock();
    for (on_definition_change, stays) in [(OnChange::Deny, true), (OnChange::Log, false)] {
        let settings = McpSettings {
            on_definition_change,
            ..settings()
        };
        assert_eq!(settings.still_asks(asked[0].topic(), ""), stays);
    }
}
