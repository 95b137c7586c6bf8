//! The approval in the record of a flow, for the audit.

use super::*;

const GRANT: &str = "ffeeddccbbaa99887766554433221100";

/// The ledger's answer, `approvals.hold`, the outcome of the wait, and the recorded id. The flow was
/// held if there is a hold and the question is open.
type Row = (
    Result<ApprovalAnswer, Unavailable>,
    &'static str,
    Option<ApprovalOutcome>,
    Option<&'static str>,
);

fn rows() -> Vec<Row> {
    let grant = GrantId::parse(GRANT).unwrap();
    let approval = ApprovalId::parse(ID).unwrap();
    let open = || Ok(ApprovalAnswer::Open(approval));
    let denied = ApprovalAnswer::Denied {
        approval,
        words: None,
    };
    vec![
        (open(), "0s", None, Some(ID)),
        (open(), "2s", None, Some(ID)),
        (open(), "2s", Some(ApprovalOutcome::Expired), Some(ID)),
        (open(), "2s", Some(ApprovalOutcome::Denied(None)), Some(ID)),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Granted(grant)),
            Some(ID),
        ),
        (
            Ok(ApprovalAnswer::Granted {
                grant,
                approval: None,
            }),
            "2s",
            None,
            Some(GRANT),
        ),
        (Ok(denied), "2s", None, Some(ID)),
        (
            Ok(ApprovalAnswer::Full(QuestionLimit::Rate)),
            "2s",
            None,
            None,
        ),
        (Err(Unavailable), "2s", None, None),
    ]
}

#[tokio::test]
async fn the_record_of_a_flow_names_its_question_or_grant_and_how_long_it_was_held() {
    for (answer, hold, outcome, id) in rows() {
        let row = format!("{answer:?} {hold} {outcome:?}");
        let container = container("web");
        let ledger = Answers::of(&container);
        let is_held = hold != "0s" && matches!(answer, Ok(ApprovalAnswer::Open(_)));
        *ledger.answer.lock() = answer;
        *ledger.outcome.lock() = outcome.clone();
        let granted = ApprovalOutcome::Granted(GrantId::parse(GRANT).unwrap());
        let is_granted = id == Some(GRANT) || outcome == Some(granted);
        if is_granted {
            *ledger.granted.lock() = Some(LiveGrant {
                id: GrantId::parse(GRANT).unwrap(),
                ..to_host("files.example.com:443")
            });
        }
        let fixture = Fixture::with(container, ledger, ASK, hold);
        let mut flow = fixture.flow(Kind::Tunnel, "files.example.com:443");
        let passes = fixture.chain.tunnel(&mut flow).await.is_ok();
        assert_eq!(passes, is_granted, "{row}");
        let record = flow.approval_record();
        assert_eq!(record.id.as_deref(), id, "{row}");
        assert_eq!(record.waited.is_some(), is_held, "{row}");
    }
}

#[tokio::test]
async fn a_flow_that_rests_on_a_grant_names_it_and_another_flow_names_none() {
    let ask_about_writes =
        "rules: [{ name: writes, effect: ask, hosts: [files.example.com], methods: [PUT] }]";
    for (policy, grant, method, named) in [
        (ASK, to_host("files.example.com:443"), Method::GET, true),
        (
            ask_about_writes,
            live(QuestionKind::Request, "PUT files.example.com:443 /a"),
            Method::PUT,
            true,
        ),
        (
            ask_about_writes,
            live(QuestionKind::Request, "PUT files.example.com:443 /a"),
            Method::GET,
            false,
        ),
    ] {
        let fixture = Fixture::new(policy);
        fixture.ledger.live.lock().push(grant);
        let mut flow = match policy == ASK {
            true => fixture.flow(Kind::Http, "files.example.com:443"),
            // On the allowlist.
            false => start_of(&fixture.container, Kind::Http, HOST).begin(),
        };
        let mut request = request("/a", &[]);
        request.method = method;
        fixture
            .chain
            .request(&mut flow, &mut request)
            .await
            .unwrap();
        let record = flow.record().approval.as_deref();
        let id = record.and_then(|record| record.id.as_deref());
        assert_eq!(id, named.then_some(ID), "{policy}");
        assert_eq!(record.and_then(|record| record.waited), None, "{policy}");
    }
}

#[tokio::test]
async fn the_time_is_recorded_too_if_the_client_goes_before_the_decision() {
    let mut record = crate::contract::ApprovalRecord::default();
    record.set(ApprovalId::parse(ID).unwrap());
    let waiting = record.while_held(std::future::pending::<()>());
    let gone = tokio::time::timeout(Duration::ZERO, waiting).await;
    assert!(gone.is_err());
    let first = record.waited.unwrap();
    record.while_held(std::future::ready(())).await;
    assert!(record.waited.unwrap() >= first);
}
