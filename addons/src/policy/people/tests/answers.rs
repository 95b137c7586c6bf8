//! What becomes of a flow after each answer of the ledger, and while it is held.

use super::*;

#[tokio::test]
async fn each_answer_of_the_ledger_has_its_denial() {
    let approval = ApprovalId::parse(ID).unwrap();
    let words = |words: &str| ApprovalAnswer::Denied {
        approval,
        words: (!words.is_empty()).then(|| words.into()),
    };
    let rejected = format!("Rejected by a person (approval {ID}): ");
    for (answer, denied, sentence, outcome) in [
        (
            Ok(words("use the mirror\n at  mirror.example.com")),
            Code::ApprovalRejected,
            format!("{rejected}use the mirror at mirror.example.com"),
            None,
        ),
        (
            Ok(words("")),
            Code::ApprovalRejected,
            format!("{rejected}do not repeat the request"),
            None,
        ),
        (
            Ok(ApprovalAnswer::Full(QuestionLimit::Container)),
            Code::DomainNotAllowed,
            format!("Domain not allowed: {HOST}"),
            Some("full"),
        ),
        (
            Ok(ApprovalAnswer::Used),
            Code::DomainNotAllowed,
            format!("Domain not allowed: {HOST}"),
            Some("used"),
        ),
        (
            Err(Unavailable),
            Code::RegistryUnavailable,
            "Registry unavailable".to_owned(),
            None,
        ),
    ] {
        let fixture = Fixture::new(ASK);
        *fixture.ledger.answer.lock() = answer.clone();
        let denial = fixture.connect(&format!("{HOST}:443")).await.unwrap_err();
        assert_eq!(
            (denial.code(), denial.sentence()),
            (denied, &*sentence),
            "{answer:?}"
        );
        assert_eq!(denial.detail("outcome"), outcome, "{answer:?}");
    }
}

#[tokio::test]
async fn a_flow_passes_as_soon_as_a_grant_answers_it_and_can_be_used() {
    let grant = GrantId::parse(ID).unwrap();
    let approval = ApprovalId::parse(ID).unwrap();
    let open = || Ok(ApprovalAnswer::Open(approval));
    for (answer, hold, outcome, usable, denied) in [
        (
            Ok(ApprovalAnswer::Granted {
                grant,
                approval: None,
            }),
            "0s",
            None,
            true,
            None,
        ),
        (
            Ok(ApprovalAnswer::Granted {
                grant,
                approval: None,
            }),
            "0s",
            None,
            false,
            Some(Code::DomainNotAllowed),
        ),
        (
            open(),
            "0s",
            Some(ApprovalOutcome::Granted(grant)),
            true,
            Some(Code::ApprovalPending),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Granted(grant)),
            true,
            None,
        ),
        (open(), "2s", None, true, Some(Code::ApprovalPending)),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Denied(None)),
            true,
            Some(Code::ApprovalRejected),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Expired),
            true,
            Some(Code::DomainNotAllowed),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Ended),
            true,
            Some(Code::DomainNotAllowed),
        ),
    ] {
        let container = container("web");
        let ledger = Answers {
            usable,
            ..Answers::of(&container)
        };
        let row = format!("{answer:?} {hold} {outcome:?}");
        *ledger.answer.lock() = answer;
        if let Some(ApprovalOutcome::Granted(_)) | None = outcome
            && denied.is_none()
        {
            *ledger.granted.lock() = Some(to_host("files.example.com:443"));
        }
        *ledger.outcome.lock() = outcome;
        let fixture = Fixture::with(container, ledger, ASK, hold);
        let judged = fixture.connect("files.example.com:443").await;
        assert_eq!(code(judged), denied, "{row}");
    }
}

#[tokio::test]
async fn beyond_256_held_flows_of_a_container_the_answer_is_pending_at_once() {
    let container = container("web");
    let ledger = Answers {
        hangs: true,
        ..Answers::of(&container)
    };
    let fixture = Fixture::with(container, ledger, ASK, "8s");
    let mut held: Vec<_> = (0..256)
        .map(|_| Box::pin(fixture.connect("files.example.com:443")))
        .collect();
    for _ in 0..2 {
        for one in &mut held {
            assert!(one.as_mut().now_or_never().is_none());
        }
    }
    let denial = fixture.connect("files.example.com:443").await.unwrap_err();
    assert_eq!(denial.code(), Code::ApprovalPending);
    assert_eq!(denial.detail("approval"), Some(ID));
}
