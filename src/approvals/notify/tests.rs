use addons::contract::{
    BoxFuture, Container, ContainerId, Host, LeaseId, Level, OutboundError, Question, QuestionKind,
    Topic,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;
use time::OffsetDateTime;

use super::*;
use crate::approvals::State;
use crate::approvals::sqlite::SqliteApprovals;

/// Answers with these statuses, one after the other, and then 200.
#[derive(Default)]
struct Receiver {
    statuses: Mutex<Vec<u16>>,
    got: Mutex<Vec<(Arc<System>, Request<Bytes>)>>,
}

impl Outbound for Receiver {
    fn send<'a>(
        &'a self,
        principal: &'a Arc<System>,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>> {
        self.got.lock().push((Arc::clone(principal), request));
        let status = self.statuses.lock().pop().unwrap_or(200);
        let response = http::Response::builder().status(status);
        let response = response.body(Bytes::new()).unwrap();
        Box::pin(async { Ok(response) })
    }

    fn look_up<'a>(
        &'a self,
        _: &'a Arc<Container>,
        _: Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>> {
        panic!("a notification is no look-up")
    }
}

fn target(arguments: bool) -> NotifyTarget {
    NotifyTarget {
        url: "https://hooks.example.com/x".to_owned(),
        authority: (Host::parse("hooks.example.com").unwrap(), 443),
        url_secrets: Default::default(),
        secret: "key".to_owned().into(),
        arguments,
    }
}

fn topic(subject: &str, reason: Option<&str>) -> Topic {
    Topic {
        lease: LeaseId::generate(),
        container: ContainerId::parse("web").unwrap(),
        kind: QuestionKind::Tool,
        server: Some("kb".into()),
        subject: subject.into(),
        rule: Some("freeze".into()),
        reason: reason.map(Into::into),
        level: Level::Public,
        revision: "r1".into(),
    }
}

fn record(subject: &str, reason: Option<&str>) -> Record {
    let at = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
    Record {
        id: addons::contract::ApprovalId::parse("0123456789abcdef0123456789abcdef").unwrap(),
        state: State::Pending,
        topic: topic(subject, reason),
        arguments: Some(r#"{"secret":"s3cr3t"}"#.to_owned()),
        digest: String::new(),
        created_at: at,
        expires_at: at,
        attempts: 1,
        waiting: 0,
        decision: None,
        closed_at: None,
        denied_until: None,
    }
}

fn parsed(question: &Record, with_arguments: bool) -> Value {
    serde_json::from_str(&body(question, with_arguments)).unwrap()
}

#[test]
fn a_body_has_no_arguments_unless_the_operator_wants_them() {
    let expected = json!({
        "text": "web asks: tool `kb/delete` (on Fridays) - unified-proxy approvals show \
                 0123456789abcdef0123456789abcdef",
        "id": "0123456789abcdef0123456789abcdef",
        "kind": "tool",
        "container": "web",
        "subject": "kb/delete",
        "rule": "freeze",
        "reason": "on Fridays",
        "expiry": "2027-01-15T08:00:00Z",
    });
    let question = record("delete", Some("on Fridays"));
    assert_eq!(parsed(&question, false), expected);
    let whole = parsed(&question, true);
    assert_eq!(whole["arguments"], json!({ "secret": "s3cr3t" }));
}

#[test]
fn a_text_mentions_nobody_and_controls_nothing() {
    each_row(
        [
            ("<!channel>", "&lt;!channel&gt;"),
            (
                "<https://evil.example|ok>",
                "&lt;https://evil.example|ok&gt;",
            ),
            ("&lt;!here&gt;", "&amp;lt;!here&amp;gt;"),
            ("a\n\u{202e}b", "a\\u{a}\\u{202e}b"),
        ],
        |(hostile, shown)| {
            for question in [record(hostile, None), record("x", Some(hostile))] {
                let text = parsed(&question, false)["text"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                assert!(text.contains(shown), "{text}");
                assert!(!text.contains(hostile), "{text}");
            }
        },
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_question_is_posted_with_a_signature_up_to_three_times_to_its_host_alone() {
    for (statuses, tries, outcome) in [
        (vec![], 1, "sent"),
        (vec![200, 500], 2, "sent"),
        (vec![302, 404, 500], 3, "failed"),
    ] {
        let receiver = Arc::new(Receiver::default());
        *receiver.statuses.lock() = statuses;
        let registry = Registry::new();
        let notifier = Notifier::new(Arc::clone(&receiver) as _, &registry).unwrap();
        notifier
            .send(&target(false), Bytes::from_static(b"{}"))
            .await;
        assert_eq!(notifier.sent.with_label_values(&[outcome]).get(), 1);
        let got = receiver.got.lock();
        assert_eq!(got.len(), tries);
        for (principal, request) in got.iter() {
            assert_eq!(principal.name, "approvals");
            assert_eq!(principal.hosts, [target(false).authority]);
            assert_eq!(request.method(), http::Method::POST);
            assert_eq!(request.uri(), "https://hooks.example.com/x");
            let signature = request.headers()[SIGNATURE].to_str().unwrap();
            // printf '{}' | openssl dgst -sha256 -hmac key
            let expected =
                "sha256=a777724d943eb48dc69bca8a4a6d57a04db3f9ec7e1de4e581e860265bdf3032";
            assert_eq!(signature, expected);
        }
    }
}

#[tokio::test]
async fn each_new_question_is_announced_once_and_its_decision_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteApprovals::new(directory.path().join("approvals.db"));
    let ledger = Ledger::open(store, Arc::new(OffsetDateTime::now_utc)).unwrap();
    let receiver = Arc::new(Receiver::default());
    let notifier = Notifier::new(Arc::clone(&receiver) as _, &Registry::new()).unwrap();
    let shutdown = CancellationToken::new();
    let following = notifier.follow(
        Arc::clone(&ledger),
        || vec![target(false), target(true)],
        shutdown.clone(),
    );
    let following = tokio::spawn(following);
    tokio::task::yield_now().await;
    let question = || Question::new(topic("delete", None), None).unwrap();
    let hour = Duration::from_secs(3600);
    for _ in 0..2 {
        let addons::contract::ApprovalAnswer::Open(id) =
            ledger.ask(question(), hour).await.unwrap()
        else {
            panic!("the question is new");
        };
        let by = crate::approvals::Decision {
            by: "ann".to_owned(),
            comment: None,
        };
        ledger.deny(id, by).await.unwrap();
    }
    while receiver.got.lock().len() < 4 {
        sleep(Duration::from_millis(10)).await;
    }
    shutdown.cancel();
    following.await.unwrap();
    assert_eq!(receiver.got.lock().len(), 4);
}
