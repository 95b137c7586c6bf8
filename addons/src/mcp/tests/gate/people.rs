//! Calls about which a policy asks, with a ledger whose answers a test sets.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use testkit::{each_row, each_row_async};

use super::super::super::people::Approved;
use super::*;
use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, Executing, GrantId, LeaseId,
    LiveGrant, Question, QuestionKind, QuestionLimit,
};
use crate::fixtures::run;

const CALLS: &[&str] = &["tools/call"];
pub(super) const ID: &str = "00112233445566778899aabbccddeeff";
const GRANT: &str = "ffeeddccbbaa99887766554433221100";

pub(super) fn approval() -> ApprovalId {
    ApprovalId::parse(ID).unwrap()
}

fn grant() -> GrantId {
    GrantId::parse(GRANT).unwrap()
}

/// The answer of an approval that was kept.
fn granted() -> ApprovalAnswer {
    ApprovalAnswer::Granted {
        grant: grant(),
        approval: Some(approval()),
    }
}

/// A ledger whose answers a test sets.
pub(super) struct Ledger {
    pub(super) answer: Mutex<Result<ApprovalAnswer, Unavailable>>,
    outcome: Mutex<Result<Option<ApprovalOutcome>, Unavailable>>,
    /// The answer to a look-up.
    known: Mutex<Option<ApprovalAnswer>>,
    /// Whether the grant can be used; it is for one execution.
    usable: AtomicBool,
    pub(super) asked: Mutex<Vec<Question>>,
    used: Mutex<Vec<(GrantId, LeaseId)>>,
    released: Mutex<Vec<GrantId>>,
    /// Called once, while the grant is being used.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Ledger {
    pub(super) fn answering(answer: ApprovalAnswer) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(Ok(answer)),
            outcome: Mutex::new(Ok(None)),
            known: Mutex::default(),
            usable: AtomicBool::new(true),
            asked: Mutex::default(),
            used: Mutex::default(),
            released: Mutex::default(),
            meanwhile: Mutex::default(),
        })
    }

    pub(super) fn open() -> Arc<Self> {
        Self::answering(ApprovalAnswer::Open(approval()))
    }

    fn uses(&self) -> usize {
        self.used.lock().len()
    }

    fn digests(&self) -> Vec<String> {
        let asked = self.asked.lock();
        asked.iter().map(|one| one.digest().to_owned()).collect()
    }
}

impl ApprovalLedger for Ledger {
    fn live(&self, _: LeaseId) -> Arc<[LiveGrant]> {
        Arc::default()
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        self.asked.lock().push(question);
        let answer = self.answer.lock().clone();
        Box::pin(async move { answer })
    }

    fn look_up(&self, _: Question) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>> {
        let known = self.known.lock().clone();
        Box::pin(async move { Ok(known) })
    }

    fn wait(
        &self,
        _: ApprovalId,
        _: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        let outcome = self.outcome.lock().clone();
        Box::pin(async move { outcome })
    }

    fn release(&self, id: GrantId) {
        self.released.lock().push(id);
    }

    fn use_grant(&self, id: GrantId, lease: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>> {
        if let Some(meanwhile) = self.meanwhile.lock().take() {
            meanwhile();
        }
        let usable = self.usable.swap(false, Ordering::Relaxed);
        self.used.lock().extend(usable.then_some((id, lease)));
        Box::pin(async move { Ok(usable) })
    }
}

/// A gate whose policy decides `ask` on requests of calls, and allows responses.
fn asking(settings: McpSettings, ledger: &Arc<Ledger>) -> Gate {
    let policy = |input: &Value| {
        let effect = match input["phase"] == "request" {
            true => Effect::Ask,
            false => Effect::Allow,
        };
        Ok(vec![decision("money", effect)])
    };
    with_ledger(with_policy(settings, CALLS, policy), ledger)
}

pub(super) fn with_ledger(mut gate: Gate, ledger: &Arc<Ledger>) -> Gate {
    gate.addon.ports.ledger = Arc::clone(ledger) as _;
    gate
}

/// The part of a denial that the model reads: `outcome`, `approval` and the sentence.
#[track_caller]
fn assert_said(denial: &Denial, outcome: &str, approval: Option<&str>, parts: &[&str]) {
    assert_eq!(denial.code(), Code::PolicyDeniedContinue);
    assert_eq!(denial.detail("outcome"), Some(outcome));
    assert_eq!(denial.detail("approval"), approval);
    assert_eq!(denial.detail("tool"), Some("fetch"));
    assert_eq!(denial.rule_name(), Some("money"));
    for part in [parts, &["money says so"]].concat() {
        assert!(denial.sentence().contains(part), "{denial}");
        assert!(denial.detail("reason").unwrap().contains(part), "{denial}");
    }
}

#[test]
fn each_answer_of_the_ledger_has_its_verdict_and_its_words_for_the_model() {
    let denied = |words: Option<&str>| ApprovalAnswer::Denied {
        approval: approval(),
        words: words.map(Into::into),
    };
    let id = Some(ID);
    each_row(
        [
            (
                ApprovalAnswer::Open(approval()),
                "pending",
                id,
                &["waits for a person", ID, "once", "do not poll"][..],
            ),
            (
                denied(Some("use\nthe mirror")),
                "denied",
                id,
                &["denied by a person: use the mirror", "do not repeat"],
            ),
            (denied(None), "denied", id, &["denied by a person;"]),
            (
                ApprovalAnswer::Used,
                "used",
                None,
                &["an equal call got it"],
            ),
            (
                ApprovalAnswer::Full(QuestionLimit::Container),
                "full",
                None,
                &["no person can be asked now"],
            ),
        ],
        |(answer, outcome, approval, parts)| {
            let ledger = Ledger::answering(answer);
            let gate = asking(settings(), &ledger);
            let denial = run(gate.fetch(json!({}))).unwrap_err();
            assert_said(&denial, outcome, approval, parts);
            assert_eq!(ledger.uses(), 0);
        },
    );
}

#[tokio::test]
async fn a_grant_is_used_once_and_answers_the_call() {
    let ledger = Ledger::answering(granted());
    let gate = asking(settings(), &ledger);
    let mut flow = gate.flow();
    let mut frame = fetch(&json!({ "q": 1 }));
    gate.request(&mut flow, &mut frame).await.unwrap();
    assert_eq!(*ledger.used.lock(), [(grant(), gate.web.lease)]);
    assert_eq!(flow.mcp_record().decision, Some(Effect::Ask));
    assert_eq!(flow.approval_record().id.as_deref(), Some(ID));
    // Another call was faster, or an operator revoked the grant.
    let denial = gate.fetch(json!({ "q": 1 })).await.unwrap_err();
    assert_said(&denial, "expired", Some(ID), &["is over: repeat the call"]);
}

#[tokio::test]
async fn a_person_sees_the_original_names_and_the_arguments_that_are_sent() {
    let rule = OverrideRule {
        rename: Some("read".into()),
        hide_fields: vec!["debug".into()],
        defaults: vec![
            ("id".into(), Injected::Uuid),
            ("at".into(), Injected::Now),
            ("unit".into(), Injected::Value(json!("metric"))),
            ("key".into(), Injected::Variable(json!("a secret"))),
        ],
        open_world: Some(false),
        ..OverrideRule::default()
    };
    let ledger = Ledger::open();
    let gate = asking(with_rule(rule), &ledger);
    gate.web.raise_level(Level::Confidential);
    let first = json!({ "q": 2, "debug": 1, "unit": "imperial" });
    gate.fetch(first).await.unwrap_err();
    gate.fetch(json!({ "debug": 1, "q": 2.0 }))
        .await
        .unwrap_err();
    let asked = ledger.asked.lock();
    let topic = asked[0].topic();
    assert_eq!(topic.kind, QuestionKind::Tool);
    assert_eq!(topic.lease, gate.web.lease);
    assert_eq!(topic.server.as_deref(), Some("kb"));
    assert_eq!(&*topic.subject, "fetch");
    assert_eq!(topic.rule.as_deref(), Some("money"));
    assert_eq!(topic.reason.as_deref(), Some("money says so"));
    assert_eq!(topic.level, Level::Confidential);
    let shown = r#"{"at":"now()","id":"uuid()","key":"${…}","q":2,"unit":"metric"}"#;
    assert_eq!(asked[0].arguments(), Some(shown));
    assert_eq!(asked[0].digest(), asked[1].digest());
}

#[tokio::test]
async fn other_members_of_the_params_are_shown_and_make_another_question() {
    let ledger = Ledger::open();
    let gate = asking(settings(), &ledger);
    let inputs = json!({ "to": { "action": "accept", "content": { "to": "b" } } });
    let more = json!({ "inputResponses": inputs, "requestState": "s" });
    let shown = json!({ "arguments": {}, "inputResponses": inputs, "requestState": "s" });
    let calls = [
        json!({ "name": "fetch", "arguments": {} }),
        json!({ "name": "fetch", "arguments": {}, "_meta": { "progressToken": 1 } }),
        json!({ "name": "fetch", "inputResponses": inputs, "requestState": "s" }),
        // Arguments with the members of what was shown.
        json!({ "name": "fetch", "arguments": { "arguments": {}, "inputResponses": inputs, "requestState": "s" } }),
        json!({ "name": "fetch", "arguments": more }),
    ];
    for params in &calls {
        let mut frame = call(params.to_string());
        let asked = gate.request(&mut gate.flow(), &mut frame).await;
        asked.unwrap_err();
    }
    let asked = ledger.asked.lock();
    let texts: Vec<_> = asked.iter().map(|one| one.arguments().unwrap()).collect();
    let expected = [json!({}), json!({}), shown.clone(), shown, more];
    assert_eq!(texts, expected.map(|one| one.to_string()));
    let mut digests: Vec<_> = asked.iter().map(Question::digest).collect();
    assert_eq!(digests[0], digests[1]);
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 4);
}

#[tokio::test]
async fn a_person_sees_the_arguments_that_another_policy_redacted() {
    let ledger = Ledger::open();
    let policy = |_: &Value| {
        let redacted = redact("privacy", r#"{"q":"…"}"#);
        Ok(vec![redacted, decision("money", Effect::Ask)])
    };
    let gate = with_ledger(with_policy(settings(), CALLS, policy), &ledger);
    gate.fetch(json!({ "q": "a secret" })).await.unwrap_err();
    let asked = ledger.asked.lock();
    assert_eq!(asked[0].arguments(), Some(r#"{"q":"…"}"#));
}

#[tokio::test]
async fn the_server_gets_no_keys_of_meta_that_the_person_was_not_shown() {
    let ledger = Ledger::answering(granted());
    let meta = json!({ "progressToken": 1, "traceparent": "00-a-b-01", "io.example/to": "b" });
    let params_of = json!({ "name": "fetch", "arguments": { "q": 1 }, "_meta": meta });
    for (gate, kept) in [
        (asking(settings(), &ledger), 2),
        (with_ledger(gate(settings()), &ledger), 3),
    ] {
        let mut frame = call(params_of.to_string());
        gate.request(&mut gate.flow(), &mut frame).await.unwrap();
        let sent = params(&frame);
        assert_eq!(sent["_meta"].as_object().unwrap().len(), kept, "{sent}");
        assert_eq!(sent["arguments"], json!({ "q": 1 }));
    }
}

#[test]
fn another_call_is_another_question() {
    let first = || (OverrideRule::default(), 0_u8, FETCH);
    let asked = |(rule, revision, definition): (_, u8, &str)| {
        let ledger = Ledger::open();
        let policy = move |_: &Value| {
            Ok(vec![Decision {
                revision: [revision; 32],
                ..decision("money", Effect::Ask)
            }])
        };
        let gate = with_ledger(with_policy(with_rule(rule), CALLS, policy), &ledger);
        let mut frame = fetch(&json!({ "q": 1 })).of_tool(tool(definition));
        run(gate.request(&mut gate.flow(), &mut frame)).unwrap_err();
        // The lease of each gate is another one, so digests cannot be compared.
        let topic = ledger.asked.lock()[0].topic().clone();
        (topic.revision, topic.subject)
    };
    let with_default = |value: Value| OverrideRule {
        defaults: vec![("id".into(), Injected::Value(value))],
        ..OverrideRule::default()
    };
    let one = asked(first());
    assert_eq!(one, asked(first()));
    each_row(
        [
            (with_default(json!(1)), 0, FETCH),
            (with_default(json!(2)), 0, FETCH),
            (OverrideRule::default(), 1, FETCH),
            (
                OverrideRule::default(),
                0,
                r#"{"name":"fetch","description":"other"}"#,
            ),
        ],
        |other| assert_ne!(one, asked(other)),
    );
    let ledger = Ledger::open();
    let gate = asking(settings(), &ledger);
    for arguments in [json!({ "q": 1 }), json!({ "q": 2 }), json!({ "q": 1 })] {
        run(gate.fetch(arguments)).unwrap_err();
    }
    let digests = ledger.digests();
    assert!(digests[0] != digests[1] && digests[0] == digests[2]);
}

/// Asks about a call of `fetch`, and has a person approve it; returns the flow.
async fn approved(gate: &Gate, ledger: &Ledger) -> OwnedFlow {
    let mut flow = gate.flow();
    let asked = gate
        .request(&mut flow, &mut fetch(&json!({ "q": 1 })))
        .await;
    asked.unwrap_err();
    *ledger.outcome.lock() = Ok(Some(ApprovalOutcome::Granted(grant())));
    let question = flow.take_slot::<OpenQuestion>().unwrap();
    assert_eq!(question.approval(), approval());
    let decided = question.decision(&mut flow, Duration::from_secs(1)).await;
    decided.unwrap().unwrap();
    flow
}

#[tokio::test]
async fn an_approved_call_is_judged_again_and_uses_its_grant() {
    let ledger = Ledger::open();
    let gate = asking(settings(), &ledger);
    let mut flow = approved(&gate, &ledger).await;
    assert_eq!(ledger.uses(), 0, "not before the call was judged again");
    let mut frame = fetch(&json!({ "q": 1 }));
    gate.request(&mut flow, &mut frame).await.unwrap();
    assert_eq!(ledger.uses(), 1);
    assert_eq!(
        ledger.asked.lock().len(),
        1,
        "the grant is kept for this call"
    );
    assert_eq!(flow.approval_record().id.as_deref(), Some(ID));
    assert!(flow.approval_record().waited.is_some());
}

#[test]
fn each_outcome_of_the_wait_has_its_words_for_the_model() {
    let denied = |words: Option<&str>| ApprovalOutcome::Denied(words.map(Into::into));
    let id = Some(ID);
    each_row(
        [
            (
                denied(Some("not now")),
                "denied",
                id,
                "denied by a person: not now",
            ),
            (denied(None), "denied", id, "denied by a person"),
            (ApprovalOutcome::Used, "used", id, "an equal call got it"),
            (
                ApprovalOutcome::Expired,
                "expired",
                id,
                "nobody decided in time",
            ),
            (
                ApprovalOutcome::Ended,
                "expired",
                id,
                "nobody decided in time",
            ),
        ],
        |(outcome, word, approval, part)| {
            let ledger = Ledger::open();
            let gate = asking(settings(), &ledger);
            let mut flow = gate.flow();
            run(gate.request(&mut flow, &mut fetch(&json!({})))).unwrap_err();
            let question = flow.take_slot::<OpenQuestion>().unwrap();
            let second = Duration::from_secs(1);
            assert!(run(question.decision(&mut flow, second)).is_none());
            *ledger.outcome.lock() = Ok(Some(outcome));
            let decided = run(question.decision(&mut flow, second));
            let denial = decided.unwrap().unwrap_err();
            assert_said(&denial, word, approval, &[part]);
            assert!(flow.approval_record().waited.is_some());
            let is_denied = word == "denied";
            let decision = flow.mcp_record().decision;
            assert_eq!(decision == Some(Effect::DenyContinue), is_denied);
            assert!(flow.find_slot::<Approved>().is_none());
        },
    );
}

/// What a policy decides, by a number that a test sets.
const EFFECTS: [Effect; 3] = [Effect::Ask, Effect::DenyContinue, Effect::DenyAbort];

#[tokio::test]
async fn an_approval_answers_nothing_but_the_question() {
    type Change = fn(&Gate, &AtomicU8, &mut Frame);
    let closed = OverrideRule {
        open_world: Some(false),
        ..OverrideRule::default()
    };
    let still = "approved, but denied: ";
    let rows: [(&str, Change, Code, &str); 8] = [
        (
            "the latch is set",
            |gate, _, _| gate.web.abort(),
            Code::PolicyDenied,
            still,
        ),
        (
            "the policy denies",
            |_, effect, _| effect.store(1, Ordering::Relaxed),
            Code::PolicyDeniedContinue,
            still,
        ),
        (
            "the policy aborts",
            |_, effect, _| effect.store(2, Ordering::Relaxed),
            Code::PolicyDenied,
            still,
        ),
        (
            "the definition is blocked",
            |_, _, frame| frame.definition = Some(changed(FETCH)),
            Code::PolicyDeniedContinue,
            still,
        ),
        (
            "another definition was accepted",
            |_, _, frame| {
                frame.definition = Some(tool(r#"{"name":"fetch","description":"other"}"#));
            },
            Code::PolicyDeniedContinue,
            "changed meanwhile",
        ),
        (
            "the policy was edited",
            |_, effect, _| effect.store(16, Ordering::Relaxed),
            Code::PolicyDeniedContinue,
            "changed meanwhile",
        ),
        (
            "the level rose",
            |gate, _, _| gate.web.raise_level(Level::Confidential),
            Code::PolicyDeniedContinue,
            "changed meanwhile",
        ),
        (
            "the arguments are others",
            |_, _, frame| *frame = fetch(&json!({ "q": 2 })),
            Code::PolicyDeniedContinue,
            "changed meanwhile",
        ),
    ];
    each_row_async(rows, async |(_, change, code, part)| {
        let ledger = Ledger::open();
        let state = Arc::new(AtomicU8::new(0));
        let read = Arc::clone(&state);
        let policy = move |_: &Value| {
            let state = read.load(Ordering::Relaxed);
            Ok(vec![Decision {
                revision: [state & 16; 32],
                ..decision("money", EFFECTS[usize::from(state & 15)])
            }])
        };
        let gate = with_ledger(
            with_policy(with_rule(closed.clone()), CALLS, policy),
            &ledger,
        );
        let mut flow = approved(&gate, &ledger).await;
        let mut frame = fetch(&json!({ "q": 1 }));
        change(&gate, &state, &mut frame);
        let denial = gate.request(&mut flow, &mut frame).await.unwrap_err();
        assert_eq!(denial.code(), code, "{denial}");
        assert!(denial.sentence().contains(part), "{denial}");
        assert_eq!(denial.detail("approval"), Some(ID));
        assert_eq!(ledger.uses(), 0, "the grant is kept");
        assert_eq!(ledger.asked.lock().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_call_is_denied_if_the_latch_is_set_while_its_grant_is_used() {
    let ledger = Ledger::answering(granted());
    let gate = asking(settings(), &ledger);
    let web = Arc::clone(&gate.web);
    *ledger.meanwhile.lock() = Some(Box::new(move || web.abort()));
    let judged = gate.fetch(json!({})).await;
    assert_eq!(code(&judged), Some(Code::PolicyDenied));
}

#[tokio::test]
async fn a_call_is_denied_if_the_level_rises_while_its_grant_is_used() {
    for (rise, passes) in [
        (Level::Public, true),
        (Level::Confidential, true),
        (Level::Secret, false),
    ] {
        let ledger = Ledger::answering(granted());
        let rule = OverrideRule {
            open_world: Some(false),
            classification: Level::Confidential,
            ..OverrideRule::default()
        };
        let gate = asking(with_rule(rule), &ledger);
        let web = Arc::clone(&gate.web);
        *ledger.meanwhile.lock() = Some(Box::new(move || web.raise_level(rise)));
        let judged = gate.fetch(json!({})).await;
        assert_eq!(judged.is_ok(), passes, "{rise:?}");
        if let Err(denial) = judged {
            assert_said(&denial, "expired", Some(ID), &["level changed meanwhile"]);
        }
    }
}

#[tokio::test]
async fn answers_in_a_retry_belong_to_the_suspended_call_and_no_second_question_is_opened() {
    let inputs = json!({ "to": { "action": "accept" } });
    for (arguments, continues, passes) in [
        (json!({ "q": 1 }), true, true),
        (json!({ "q": 2 }), true, false),
        // The next round of a call is no suspended call.
        (json!({ "q": 1 }), false, false),
    ] {
        let ledger = Ledger::open();
        let gate = asking(settings(), &ledger);
        gate.fetch(json!({ "q": 1 })).await.unwrap_err();
        let digest = ledger.digests().remove(0).into();
        let mut flow = gate.flow();
        flow.put_slot(Executing {
            digest,
            level: Level::Public,
            continues,
        });
        let retry = json!({ "name": "fetch", "arguments": arguments, "inputResponses": inputs });
        let judged = gate.request(&mut flow, &mut call(retry.to_string())).await;
        assert_eq!(judged.is_ok(), passes, "{arguments} {continues}");
        let asked = ledger.asked.lock().len();
        assert_eq!(
            asked,
            1 + usize::from(!continues),
            "{arguments} {continues}"
        );
    }
}

#[tokio::test]
async fn a_grant_that_its_caller_does_not_use_is_given_back() {
    let ledger = Ledger::open();
    let gate = asking(settings(), &ledger);
    drop(approved(&gate, &ledger).await);
    assert_eq!(*ledger.released.lock(), [grant()], "its client has gone");
    let mut flow = approved(&gate, &ledger).await;
    gate.web.abort();
    let denied = gate
        .request(&mut flow, &mut fetch(&json!({ "q": 1 })))
        .await;
    denied.unwrap_err();
    drop(flow);
    assert_eq!(ledger.released.lock().len(), 2, "its call was denied");
    assert_eq!(ledger.uses(), 0);
}

#[tokio::test]
async fn the_approval_of_an_execution_answers_the_ask_about_its_response() {
    let always = |input: &Value, of_request: Effect| {
        let effect = match input["phase"] == "request" {
            true => of_request,
            false => Effect::Ask,
        };
        Ok(vec![decision("money", effect)])
    };
    for (of_request, passes) in [(Effect::Ask, true), (Effect::Allow, false)] {
        let ledger = Ledger::answering(granted());
        let policy = move |input: &Value| always(input, of_request);
        let gate = with_ledger(with_policy(settings(), CALLS, policy), &ledger);
        let (_, judged) = gate.answer(ok(json!({ "content": [] }))).await;
        let expected = (!passes).then_some(Code::PolicyDeniedContinue);
        assert_eq!(code(&judged), expected, "{of_request:?}");
        assert_eq!(ledger.asked.lock().len(), usize::from(passes));
    }
}

#[tokio::test]
async fn nobody_is_asked_about_other_messages_or_in_a_dry_run() {
    let ledger = Ledger::answering(granted());
    let policy = |_: &Value| Ok(vec![decision("money", Effect::Ask)]);
    let methods = &["tools/call", "prompts/get", "elicitation/create"];
    let gate = with_ledger(with_policy(settings(), methods, policy), &ledger);
    for (method, direction) in [
        ("prompts/get", Direction::ToServer),
        ("elicitation/create", Direction::ToClient),
    ] {
        let mut flow = start(&gate.web, method, None).begin();
        let mut frame = Frame::request(direction, kb(), method, Some(raw("{}")));
        let judged = gate.request(&mut flow, &mut frame).await;
        assert_eq!(code(&judged), Some(Code::PolicyDeniedContinue), "{method}");
    }
    let denial = dry_run(&gate).await.unwrap_err();
    assert!(
        denial.sentence().contains("a person would be asked"),
        "{denial}"
    );
    assert!(denial.edit().unwrap().contains("unified-proxy approvals"));
    assert!(ledger.asked.lock().is_empty());
}

/// The notes of a dry run of a call, or its denial.
async fn dry_run(gate: &Gate) -> Result<Vec<String>, Denial> {
    let mut flow = start(&gate.web, "tools/call", Some("fetch")).begin_dry();
    let mut call = fetch(&json!({}));
    gate.addon.judge_request(&mut flow, &mut call).await?;
    let notes = flow.notes().into_iter();
    Ok(notes.map(|note| note.text).collect())
}

#[tokio::test]
async fn a_dry_run_tells_what_answers_the_question_now_and_uses_nothing() {
    let denied = ApprovalAnswer::Denied {
        approval: approval(),
        words: Some("use the test account".into()),
    };
    for (known, says) in [
        (
            ApprovalAnswer::Open(approval()),
            format!("waits for a person (approval {ID})"),
        ),
        (
            denied,
            "denied by a person: use the test account".to_owned(),
        ),
        (ApprovalAnswer::Used, "an equal call got it".to_owned()),
        (granted(), format!("allowed by grant {GRANT} of a person")),
    ] {
        let ledger = Ledger::open();
        *ledger.known.lock() = Some(known.clone());
        let gate = asking(settings(), &ledger);
        let passes = matches!(known, ApprovalAnswer::Granted { .. });
        let said = match dry_run(&gate).await {
            Ok(notes) if passes => notes.concat(),
            Err(denial) if !passes => denial.sentence().to_owned(),
            other => panic!("{known:?}: {other:?}"),
        };
        assert!(said.contains(&says), "{said}");
        assert!(ledger.asked.lock().is_empty() && ledger.uses() == 0);
    }
}

#[tokio::test]
async fn an_unreadable_ledger_denies() {
    let ledger = Ledger::open();
    *ledger.answer.lock() = Err(Unavailable);
    let gate = asking(settings(), &ledger);
    let judged = gate.fetch(json!({})).await;
    assert_eq!(code(&judged), Some(Code::RegistryUnavailable));
}

#[tokio::test]
async fn a_retry_of_an_approved_execution_is_not_asked_about_up_to_its_level() {
    let ledger = Ledger::open();
    let closed = OverrideRule {
        open_world: Some(false),
        ..OverrideRule::default()
    };
    let gate = asking(with_rule(closed), &ledger);
    gate.fetch(json!({ "q": 1 })).await.unwrap_err();
    let digest: Box<str> = ledger.digests().remove(0).into();
    for (arguments, level, passes) in [
        (json!({ "q": 1 }), Level::Public, true),
        (json!({ "q": 2 }), Level::Public, false),
        (json!({ "q": 1 }), Level::Confidential, false),
    ] {
        gate.web.raise_level(level);
        let mut flow = gate.flow();
        flow.put_slot(Executing {
            digest: digest.clone(),
            level: Level::Public,
            continues: false,
        });
        let judged = gate.request(&mut flow, &mut fetch(&arguments)).await;
        assert_eq!(judged.is_ok(), passes, "{arguments}");
    }
    assert_eq!(ledger.uses(), 0);
}
