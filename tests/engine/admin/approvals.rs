//! People decide questions: each status, the JSON of the specification, two operators, the stream.

mod grants;
mod lists;
mod metrics;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ContainerId, LeaseId, Level, Question, QuestionKind, Topic,
};
use serde_json::value::RawValue;
use time::format_description::well_known::Rfc3339;
use unified_proxy::approvals::bounds::MAX_BEHIND;
use unified_proxy::approvals::{ApprovalMetrics, Scope, Target};

use super::*;

const TTL: Duration = Duration::from_secs(3600);
/// The id of no question and no grant.
const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// A container that asks.
struct Sandbox {
    id: &'static str,
    lease: LeaseId,
}

impl Sandbox {
    fn new(id: &'static str) -> Self {
        Self {
            id,
            lease: LeaseId::generate(),
        }
    }

    fn question(&self, kind: QuestionKind, subject: &str, arguments: Option<&str>) -> Question {
        let has_server = matches!(kind, QuestionKind::Tool | QuestionKind::Definition);
        let topic = Topic {
            lease: self.lease,
            container: ContainerId::parse(self.id).unwrap(),
            kind,
            server: has_server.then(|| "kb".into()),
            subject: subject.into(),
            rule: Some("freeze".into()),
            reason: Some("no deletes on Fridays".into()),
            level: Level::Confidential,
            revision: "r1".into(),
        };
        let arguments = arguments.map(|text| RawValue::from_string(text.to_owned()).unwrap());
        Question::new(topic, arguments.as_deref()).unwrap()
    }
}

impl Server {
    async fn answer(&self, question: Question) -> ApprovalAnswer {
        self.approvals.ask(question, TTL).await.unwrap()
    }

    async fn opened(&self, question: Question) -> ApprovalId {
        match self.answer(question).await {
            ApprovalAnswer::Open(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// A new question of a kind about a subject of its own.
    async fn asked(&self, kind: QuestionKind) -> ApprovalId {
        let sandbox = Sandbox::new("c1");
        self.opened(sandbox.question(kind, "delete", None)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        // Other tests of the same server may have used up the limit of writes.
        loop {
            let answer = self.call("POST", path, body.clone()).await;
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn act(&self, id: impl std::fmt::Display, act: &str, body: Value) -> Answer {
        let path = format!("/internal/approvals/{id}/{act}");
        self.post(&path, &body).await
    }

    async fn listed(&self, query: &str) -> Vec<String> {
        let answer = self.get(&format!("/internal/approvals{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        let all = answer.body["approvals"].as_array().unwrap().iter();
        all.map(|question| question["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn a_question_has_the_members_of_the_specification_before_and_after_the_decision() {
    let server = Server::start();
    let sandbox = Sandbox::new("c1");
    let arguments = r#"{ "b": [1.0, "é"], "a": null }"#;
    let ask = || sandbox.question(QuestionKind::Tool, "delete", Some(arguments));
    let id = server.opened(ask()).await;
    assert_eq!(server.opened(ask()).await, id);
    let mut question = server.get(&format!("/internal/approvals/{id}")).await.body;
    let created = question["created_at"].as_str().unwrap();
    let created = time::OffsetDateTime::parse(created, &Rfc3339).unwrap();
    let expires = question["expires_at"].as_str().unwrap();
    let expires = time::OffsetDateTime::parse(expires, &Rfc3339).unwrap();
    assert_eq!(expires - created, TTL);
    let expected = json!({
        "id": id.to_string(), "kind": "tool", "state": "pending", "container_id": "c1",
        "lease": sandbox.lease.to_string(), "subject": "kb/delete",
        "arguments": { "a": null, "b": [1, "é"] }, "rule": "freeze",
        "reason": "no deletes on Fridays", "level": "Confidential",
        "created_at": question["created_at"], "expires_at": question["expires_at"], "attempts": 2,
        "waiting": 0, "scopes": ["once", "for", "lease"], "decided_by": null, "decided_at": null,
        "comment": null,
    });
    assert_eq!(question, expected);
    let list = server.get("/internal/approvals?state=pending").await.body;
    assert_eq!(list, json!({ "approvals": [expected] }));

    let decided = server
        .act(id, "approve", json!({ "comment": "once" }))
        .await;
    assert_eq!(decided.status, 200);
    let uid = rustix::process::getuid().as_raw();
    let by = decided.body["decided_by"].as_str().unwrap().to_owned();
    assert!(by.starts_with(&format!("uid {uid}")), "{by}");
    let at = decided.body["decided_at"].as_str().unwrap();
    assert!(time::OffsetDateTime::parse(at, &Rfc3339).unwrap() >= created);
    question["state"] = "approved".into();
    question["comment"] = "once".into();
    for member in ["decided_by", "decided_at"] {
        question[member] = decided.body[member].clone();
    }
    assert_eq!(decided.body, question);
    let grants = server.get("/internal/grants").await.body;
    let grant = &grants["grants"][0];
    let expected = json!({
        "id": grant["id"], "approval": id.to_string(), "kind": "tool", "container_id": "c1",
        "lease": sandbox.lease.to_string(), "subject": "kb/delete", "level": "Confidential",
        "scope": "once", "given_by": by, "created_at": decided.body["decided_at"],
        "expires_at": grant["expires_at"],
    });
    assert_eq!(grants, json!({ "grants": [expected] }));
}

#[tokio::test]
async fn a_decision_gets_200_404_409_410_or_422_and_says_why() {
    let server = Server::start();
    each_row_async(
        [
            ("approve", json!(null), 200, "approved"),
            ("approve", json!({}), 200, "approved"),
            ("approve", json!({ "scope": "once" }), 200, "approved"),
            ("approve", json!({ "scope": "lease" }), 200, "approved"),
            ("approve", json!({ "for": "24h" }), 200, "approved"),
            (
                "approve",
                json!({ "scope": "always" }),
                422,
                "once, for, lease",
            ),
            ("approve", json!({ "for": "25h" }), 422, "1s to 24h"),
            ("approve", json!({ "for": "999ms" }), 422, "1s to 24h"),
            (
                "approve",
                json!({ "for": "soon" }),
                400,
                "for: must be a duration",
            ),
            ("approve", json!({ "for": 10 }), 400, "expected a string"),
            ("approve", json!({ "scope": "for" }), 400, "scope: must be"),
            (
                "approve",
                json!({ "scope": "once", "for": "1m" }),
                400,
                "exclude",
            ),
            ("approve", json!({ "comments": "x" }), 400, "unknown field"),
            (
                "approve",
                json!({ "comment": "x".repeat(512) }),
                200,
                "approved",
            ),
            (
                "approve",
                json!({ "comment": "x".repeat(513) }),
                400,
                "at most 512 bytes",
            ),
            ("approve", json!([]), 400, "invalid"),
            ("approve", json!(["lease"]), 400, "invalid"),
            ("deny", json!(null), 200, "denied"),
            ("deny", json!({ "comment": "no" }), 200, "denied"),
            ("deny", json!({ "scope": "once" }), 400, "unknown field"),
            (
                "deny",
                json!({ "comment": "x".repeat(513) }),
                400,
                "at most 512 bytes",
            ),
            ("forget", json!(null), 409, "nothing to forget"),
        ],
        async |(act, body, status, text)| {
            let id = server.asked(QuestionKind::Tool).await;
            let answer = server.act(id, act, body.clone()).await;
            assert_eq!(answer.status, status, "{act} {body}: {}", answer.body);
            let said = match status {
                200 => &answer.body["state"],
                _ => &answer.body["error"],
            };
            assert!(
                said.as_str().unwrap().contains(text),
                "{act} {body}: {said}"
            );
            let now = server.get(&format!("/internal/approvals/{id}")).await.body;
            let expected = if status == 200 { text } else { "pending" };
            assert_eq!(now["state"], expected, "{act} {body}");
        },
    )
    .await;
    for id in [UNKNOWN, "0", "c1", "0123456789ABCDEF0123456789ABCDEF"] {
        for act in ["approve", "deny", "forget"] {
            let answer = server.act(id, act, json!(null)).await;
            assert_eq!(answer.status, 404, "{act} {id}");
        }
        let answer = server.get(&format!("/internal/approvals/{id}")).await;
        assert_eq!(answer.status, 404, "{id}");
    }
}

#[tokio::test]
async fn what_is_over_gets_410_and_a_denial_can_be_forgotten() {
    let server = Server::start();
    let id = server.asked(QuestionKind::Host).await;
    server.approvals.end_leases(|_| false).await.unwrap();
    for act in ["approve", "deny"] {
        let answer = server.act(id, act, json!(null)).await;
        assert_eq!(answer.status, 410, "{act}");
        let error = answer.body["error"].as_str().unwrap();
        assert!(error.contains("lease has ended"), "{error}");
    }

    let sandbox = Sandbox::new("c1");
    let ask = || sandbox.question(QuestionKind::Host, "a.example.com:443", None);
    let id = server.opened(ask()).await;
    let denied = server.act(id, "deny", json!({ "comment": "use b" })).await;
    assert_eq!(denied.body["comment"], "use b");
    let expected = ApprovalAnswer::Denied {
        approval: id,
        words: Some("use b".into()),
    };
    assert_eq!(server.answer(ask()).await, expected);
    assert_eq!(server.act(id, "forget", json!(null)).await.status, 200);
    assert_ne!(server.opened(ask()).await, id);
    assert_eq!(server.act(id, "forget", json!(null)).await.status, 409);
}

#[tokio::test]
async fn what_cannot_be_put_in_force_for_everyone_is_refused_and_the_question_stays_open() {
    let server = Server::start();
    let always = json!({ "scope": "always" });
    each_row_async(
        [
            (
                QuestionKind::Host,
                always.clone(),
                "approvals.learned is off",
            ),
            (
                QuestionKind::Definition,
                json!(null),
                "server kb never listed a tool delete",
            ),
            (
                QuestionKind::Definition,
                always.clone(),
                "server kb never listed a tool delete",
            ),
            (
                QuestionKind::Policy,
                json!({ "scope": "lease" }),
                "scopes always",
            ),
            (QuestionKind::Request, always.clone(), "scopes for, lease"),
        ],
        async |(kind, body, text)| {
            let id = server.asked(kind).await;
            let answer = server.act(id, "approve", body.clone()).await;
            assert_eq!(answer.status, 422, "{kind:?} {body}: {}", answer.body);
            let error = answer.body["error"].as_str().unwrap();
            assert!(error.contains(text), "{kind:?} {body}: {error}");
            let now = server.get(&format!("/internal/approvals/{id}")).await.body;
            assert_eq!(now["state"], "pending", "{kind:?}");
            let scopes = now["scopes"].as_array().unwrap();
            let has_always = scopes.contains(&json!("always"));
            let is_for_all = matches!(kind, QuestionKind::Definition | QuestionKind::Policy);
            assert_eq!(has_always, is_for_all, "{kind:?}: {scopes:?}");
        },
    )
    .await;
    assert_eq!(
        server.get("/internal/grants").await.body,
        json!({ "grants": [] })
    );
}

#[tokio::test]
async fn of_two_operators_one_decides_and_the_other_learns_who_did() {
    let server = Server::start();
    for _ in 0..3 {
        let id = server.asked(QuestionKind::Tool).await;
        let (one, other) = tokio::join!(
            server.act(id, "approve", json!(null)),
            server.act(id, "deny", json!({ "comment": "no" })),
        );
        let (winner, loser) = match one.status.as_u16() {
            200 => (one, other),
            _ => (other, one),
        };
        assert_eq!((winner.status.as_u16(), loser.status.as_u16()), (200, 409));
        let by = winner.body["decided_by"].as_str().unwrap();
        let state = winner.body["state"].as_str().unwrap();
        let error = loser.body["error"].as_str().unwrap();
        assert_eq!(error, format!("{by} has {state} the question already"));
    }
}

#[tokio::test]
async fn a_ledger_that_cannot_be_read_answers_503() {
    let server = Server::start();
    let id = server.asked(QuestionKind::Tool).await;
    fs::remove_file(server.directory.path().join("approvals.db")).unwrap();
    for path in ["/internal/approvals", "/internal/grants"] {
        assert_eq!(server.get(path).await.status, 503, "{path}");
    }
    let answer = server.act(id, "approve", json!(null)).await;
    assert_eq!(answer.status, 503);
    let error = answer.body["error"].as_str().unwrap();
    assert!(
        error.starts_with("The ledger of approvals cannot be read or written: "),
        "{error}"
    );
}
