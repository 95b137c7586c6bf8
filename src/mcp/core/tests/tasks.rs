//! Tasks: calls about which a person decides while their client polls.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, BoxFuture, Container, Decision,
    Decisions, Effect, Evaluation, Evaluator, EvaluatorError, GrantId, LeaseId, LeaseRecords, Link,
    LiveGrant, NoDefinitions, Question, RpcError, Standing, Tasks, Unavailable,
};
use addons::mcp::{Mcp, McpPorts};
use serde_json::{Value, json};
use testkit::each_row_async;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::super::lease::Lease;
use super::super::task::MAX_TASKS;
use super::double::{Server, parsed, raw};
use super::fixture::{Fixture, container, error, settings_of};
use crate::mcp::{Caller, Event, Events, Outcome, Version};

const APPROVAL: &str = "00112233445566778899aabbccddeeff";
const TTL: Duration = Duration::from_secs(600);
const UNKNOWN: i64 = -32602;
const DENIED: i64 = -32951;

/// A policy that asks about every call, and allows its result.
struct AskAlways;

impl Evaluator for AskAlways {
    fn covers(&self, method: &str) -> bool {
        method == "tools/call"
    }

    fn evaluate<'a>(
        &'a self,
        _: &'a str,
        evaluation: Evaluation,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>> {
        let is_request = evaluation
            .input
            .members()
            .any(|(name, value)| name == "phase" && value == "\"request\"");
        let effect = match is_request {
            true => Effect::Ask,
            false => Effect::Allow,
        };
        let all = vec![Decision {
            bundle: "main".into(),
            revision: [0; 32],
            effect,
            reason: Some("it costs money".into()),
            modified: None,
            metadata: None,
            depends_on_call: false,
        }];
        Box::pin(async move { Ok(Decisions { all, more: false }) })
    }
}

struct Ports;

impl LeaseRecords for Ports {
    fn reach<'a>(
        &'a self,
        _: &'a Arc<Container>,
        _: Standing,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

impl Tasks for Ports {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// A ledger with one question, which a test decides. The approval is for one execution.
struct People {
    outcome: watch::Sender<Option<ApprovalOutcome>>,
    waiting: AtomicUsize,
    used: AtomicUsize,
}

/// Counts a caller that waits.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ApprovalLedger for People {
    fn live(&self, _: LeaseId) -> Arc<[LiveGrant]> {
        Arc::default()
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn ask(&self, _: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        Box::pin(async { Ok(ApprovalAnswer::Open(ApprovalId::parse(APPROVAL).unwrap())) })
    }

    fn look_up(&self, _: Question) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>> {
        Box::pin(async { Ok(None) })
    }

    fn wait(
        &self,
        _: ApprovalId,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        Box::pin(async move {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _waits = Waits(&self.waiting);
            let mut outcome = self.outcome.subscribe();
            let decided = outcome.wait_for(Option::is_some);
            let decided = timeout(limit, decided).await.ok();
            Ok(decided.and_then(|outcome| outcome.unwrap().clone()))
        })
    }

    fn release(&self, _: GrantId) {}

    fn use_grant(&self, _: GrantId, _: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>> {
        let is_first = self.used.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move { Ok(is_first) })
    }
}

/// A server whose calls are asked about, and a client that takes tasks.
struct Asking {
    server: Arc<Server>,
    people: Arc<People>,
    fixture: Fixture,
    client: Arc<Caller>,
}

impl Asking {
    fn new() -> Self {
        let server = Server::new(Version::V2025_11_25);
        let people = Arc::new(People {
            outcome: watch::Sender::new(None),
            waiting: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        });
        let ports = McpPorts {
            evaluator: Arc::new(AskAlways),
            records: Arc::new(Ports),
            ledger: Arc::clone(&people) as _,
            tasks: Arc::new(Ports),
            accepted: Arc::new(NoDefinitions),
        };
        let fixture = Fixture::with_addon(
            &[("only", &server)],
            vec![settings_of("only", "")],
            |settings| {
                let addon = Mcp::new(Arc::new(settings.clone()), ports);
                Some(Link::from(Arc::new(addon)))
            },
        );
        let client = Arc::new(Caller {
            takes_tasks: true,
            ..fixture.client(Version::V2026_07_28).without_session()
        });
        Self {
            server,
            people,
            fixture,
            client,
        }
    }

    /// A client of another lease that takes tasks.
    fn stranger(&self) -> Arc<Caller> {
        let container = container();
        Arc::new(Caller {
            principal: Arc::clone(&container).into(),
            container,
            takes_tasks: true,
            ..self.client.without_session()
        })
    }

    async fn call(&self) -> Outcome {
        let (events, _) = Events::charged(Arc::clone(&self.fixture.memory) as _);
        let params = json!({ "name": "echo", "arguments": { "n": 1 } });
        let call = self
            .fixture
            .ask_with(&self.client, "tools/call", params, events);
        call.await
    }

    /// Calls the tool; returns the id of the task.
    async fn begin(&self) -> String {
        let created = parsed(&self.call().await);
        assert_eq!(created["resultType"], "task", "{created}");
        created["taskId"].as_str().unwrap().to_owned()
    }

    async fn request(&self, method: &str, id: &str) -> Outcome {
        let params = json!({ "taskId": id });
        self.fixture.ask(&self.client, method, params).await
    }

    /// The task after a poll, once all that the poll causes has happened.
    async fn poll(&self, id: &str) -> Value {
        let task = parsed(&self.request("tasks/get", id).await);
        assert_eq!(task["taskId"], id);
        assert_eq!(task["resultType"], "complete");
        settle().await;
        task
    }

    async fn decide(&self, outcome: ApprovalOutcome) {
        self.people.outcome.send_replace(Some(outcome));
        settle().await;
    }

    async fn approve(&self) {
        let grant = GrantId::parse("ffeeddccbbaa99887766554433221100");
        self.decide(ApprovalOutcome::Granted(grant.unwrap())).await;
    }

    fn calls(&self) -> usize {
        self.server.sent("tools/call").len()
    }

    fn waiting(&self) -> usize {
        self.people.waiting.load(Ordering::SeqCst)
    }
}

/// Lets all other futures run until they wait. Time is paused.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The text of a task that is completed with an error of the tool.
#[track_caller]
fn said(task: &Value) -> &str {
    assert_eq!(task["status"], "completed", "{task}");
    let result = &task["result"];
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["isError"], true);
    assert_eq!(result["content"][0]["type"], "text");
    result["content"][0]["text"].as_str().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_with_tasks_gets_one_at_once_and_polls_the_result_of_the_approved_call() {
    let asking = Asking::new();
    let created = parsed(&asking.call().await);
    settle().await;
    let id = created["taskId"].as_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    for task in [&created, &asking.poll(id).await] {
        assert_eq!(task["status"], "working");
        assert_eq!(task["ttlMs"], 600_000);
        assert_eq!(task["pollIntervalMs"], 3000);
        assert_eq!(task["createdAt"], task["lastUpdatedAt"]);
        let message = task["statusMessage"].as_str().unwrap();
        assert!(message.contains(APPROVAL), "{message}");
        assert!(task.get("result").is_none());
    }
    assert_eq!((asking.calls(), asking.waiting()), (0, 1));
    asking.approve().await;
    assert_eq!((asking.calls(), asking.waiting()), (1, 0));
    // A response may be lost.
    for _ in 0..2 {
        let task = asking.poll(id).await;
        assert_eq!(task["status"], "completed");
        assert_eq!(task["result"]["resultType"], "complete");
        assert_eq!(task["result"]["seen"]["arguments"], json!({ "n": 1 }));
        let kept = task["ttlMs"].as_u64().unwrap();
        assert!((60_000..61_000).contains(&kept), "{kept}");
    }
    sleep(seconds(61)).await;
    assert_eq!(error(asking.request("tasks/get", id).await).code, UNKNOWN);
    assert_eq!(asking.calls(), 1);
    assert_eq!(asking.people.used.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_nobody_fetches_is_kept_and_charged_until_the_ttl() {
    const LONG: usize = 100_000;
    let asking = Asking::new();
    asking
        .server
        .answers(|_, _| async { raw(json!({ "content": [], "long": "x".repeat(LONG) })) });
    let id = asking.begin().await;
    let before = asking.fixture.memory.reserved();
    asking.approve().await;
    assert_eq!(asking.calls(), 1);
    sleep(TTL - seconds(5)).await;
    assert!(asking.fixture.memory.reserved() >= before + LONG);
    sleep(seconds(6)).await;
    assert_eq!(asking.fixture.memory.reserved(), before);
    assert_eq!(error(asking.request("tasks/get", &id).await).code, UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_has_stopped_polling_runs_only_after_the_next_poll() {
    let asking = Asking::new();
    let id = asking.begin().await;
    sleep(seconds(29)).await;
    assert_eq!(asking.poll(&id).await["status"], "working");
    sleep(seconds(29)).await;
    assert_eq!(asking.waiting(), 1);
    sleep(seconds(2)).await;
    assert_eq!(asking.waiting(), 0, "an equal call would get the approval");
    asking.approve().await;
    sleep(seconds(60)).await;
    assert_eq!(asking.calls(), 0);
    assert_eq!(asking.poll(&id).await["status"], "working");
    assert_eq!(asking.calls(), 1);
    assert_eq!(asking.poll(&id).await["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn what_people_decide_or_not_is_the_text_of_an_error_of_the_tool() {
    let denied = ApprovalOutcome::Denied(Some("use the test account".into()));
    let rows = [
        (denied, "denied by a person: use the test account"),
        (ApprovalOutcome::Expired, "nobody decided in time"),
        (ApprovalOutcome::Ended, "nobody decided in time"),
        (ApprovalOutcome::Used, "an equal call got it"),
    ];
    each_row_async(rows, async |(outcome, part)| {
        let asking = Asking::new();
        let id = asking.begin().await;
        asking.decide(outcome).await;
        let task = asking.poll(&id).await;
        let text = said(&task);
        assert!(text.starts_with("policy_denied_continue: ") && text.contains(part));
        assert_eq!(asking.calls(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_nobody_decides_or_polls_ends_with_its_question() {
    let asking = Asking::new();
    let id = asking.begin().await;
    sleep(TTL + seconds(1)).await;
    let task = asking.poll(&id).await;
    assert!(said(&task).contains("nobody decided in time"));
    sleep(seconds(61)).await;
    assert_eq!(error(asking.request("tasks/get", &id).await).code, UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_fails_the_task_and_a_server_that_asks_the_client_gets_an_error() {
    let asking = Asking::new();
    asking.server.answers(|_, _| async {
        Err(RpcError {
            code: -32603,
            message: "broken".into(),
            data: None,
        })
    });
    let id = asking.begin().await;
    asking.approve().await;
    let task = asking.poll(&id).await;
    assert_eq!(task["status"], "failed");
    assert_eq!(task["statusMessage"], "broken");
    assert_eq!(task["error"]["code"], -32603);

    let asking = Asking::new();
    asking.server.answers(|_, events| async move {
        let (reply, answer) = oneshot::channel();
        let method = "elicitation/create".into();
        let params = None;
        events
            .send(Event::Request {
                method,
                params,
                reply,
            })
            .await;
        let is_refused = answer.await.unwrap().is_err();
        raw(json!({ "content": [], "refused": is_refused }))
    });
    let id = asking.begin().await;
    asking.approve().await;
    assert_eq!(asking.poll(&id).await["result"]["refused"], true);

    let asking = Asking::new();
    asking.server.answers(|_, _| async {
        raw(json!({ "resultType": "input_required", "inputRequests": {}, "requestState": "s" }))
    });
    let id = asking.begin().await;
    asking.approve().await;
    assert!(said(&asking.poll(&id).await).contains("asks for input"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_waits_no_longer_and_its_call_is_cancelled() {
    let asking = Asking::new();
    asking.server.answers(|_, _| std::future::pending());
    for approved in [false, true] {
        let id = asking.begin().await;
        settle().await;
        if approved {
            asking.approve().await;
        }
        let answer = parsed(&asking.request("tasks/cancel", &id).await);
        assert_eq!(answer, json!({ "resultType": "complete" }));
        settle().await;
        assert_eq!(asking.poll(&id).await["status"], "cancelled");
        assert_eq!(
            (asking.calls(), asking.waiting()),
            (usize::from(approved), 0)
        );
        let cancelled = asking.server.cancelled.load(Ordering::SeqCst);
        assert_eq!(cancelled, usize::from(approved));
    }
    let asking = Asking::new();
    let id = asking.begin().await;
    asking.approve().await;
    for method in ["tasks/cancel", "tasks/update"] {
        let answer = parsed(&asking.request(method, &id).await);
        assert_eq!(answer, json!({ "resultType": "complete" }));
        assert_eq!(asking.poll(&id).await["status"], "completed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_known_only_to_its_lease_and_to_clients_that_declare_tasks() {
    let asking = Asking::new();
    let id = asking.begin().await;
    let stranger = asking.stranger();
    let silent = asking.fixture.client(Version::V2026_07_28);
    let legacy = asking.fixture.client(Version::V2025_11_25);
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let rows = [
            (&stranger, &*id, UNKNOWN),
            (&asking.client, APPROVAL, UNKNOWN),
            (&silent, &*id, -32021),
            (&legacy, &*id, -32601),
        ];
        for (client, id, code) in rows {
            let params = json!({ "taskId": id });
            let refused = error(asking.fixture.ask(client, method, params).await);
            assert_eq!(refused.code, code, "{method}");
            if code == -32021 {
                let data: Value = serde_json::from_str(refused.data.unwrap().get()).unwrap();
                let extensions = &data["requiredCapabilities"]["extensions"];
                assert_eq!(*extensions, json!({ "io.modelcontextprotocol/tasks": {} }));
            }
        }
        let unnamed = asking.fixture.ask(&asking.client, method, json!({})).await;
        assert_eq!(error(unnamed).code, UNKNOWN);
    }
    assert_eq!(asking.poll(&id).await["status"], "working");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_declare_tasks_waits() {
    let asking = Asking::new();
    let silent = asking.fixture.client(Version::V2026_07_28);
    let call = asking
        .fixture
        .ask(&silent, "tools/call", json!({ "name": "echo" }));
    let deciding = async {
        settle().await;
        assert_eq!(asking.waiting(), 1);
        asking.approve().await;
    };
    let (outcome, ()) = tokio::join!(call, deciding);
    assert_eq!(parsed(&outcome)["resultType"], "complete");
    assert_eq!(asking.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_lease_are_bounded_and_those_that_are_over_make_room() {
    let asking = Asking::new();
    let mut ids = Vec::new();
    for _ in 0..MAX_TASKS {
        ids.push(asking.begin().await);
    }
    settle().await;
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), MAX_TASKS);
    let refused = error(asking.call().await);
    assert_eq!(refused.code, DENIED);
    assert!(refused.message.contains("waits for a person"));
    // Another lease has its own.
    let stranger = asking.stranger();
    let params = json!({ "name": "echo" });
    let other = asking.fixture.ask(&stranger, "tools/call", params).await;
    assert_eq!(parsed(&other)["resultType"], "task");

    asking.request("tasks/cancel", &ids[7]).await.unwrap();
    settle().await;
    let another = asking.begin().await;
    assert_eq!(asking.poll(&another).await["status"], "working");
    let dropped = asking.request("tasks/get", &ids[7]).await;
    assert_eq!(error(dropped).code, UNKNOWN);
    assert_eq!(asking.poll(&ids[0]).await["status"], "working");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_ends_its_tasks() {
    let asking = Asking::new();
    let id = asking.begin().await;
    settle().await;
    assert_eq!(asking.waiting(), 1);
    asking.fixture.container.end();
    settle().await;
    assert_eq!(asking.waiting(), 0);
    asking.approve().await;
    assert_eq!(asking.calls(), 0);
    let lease = Lease::of(&asking.fixture.container);
    assert!(lease.tasks.find(&id).is_none());
}
