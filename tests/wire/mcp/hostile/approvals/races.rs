//! An approval at the same time as an event that ends its question, its call or the server: never
//! two executions, none without a decision, and no decision is lost.

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::*;
use crate::support::{Reply, SANDBOX};

/// Times from the approval to the event, in milliseconds. In this time, the approved call is judged
/// again, its grant is marked as used, and it is sent.
const DELAYS: [u64; 8] = [0, 4, 8, 16, 24, 32, 64, 128];

/// An event at the same time as an approval.
#[derive(Clone, Copy, Debug)]
struct Event {
    name: &'static str,
    /// Whether an approval that was not used before is used after it.
    keeps_grants: bool,
    happen: fn(&Asking),
    /// Makes new calls possible.
    settle: fn(&mut Asking),
}

const EVENTS: [Event; 4] = [
    Event {
        name: "the server is killed",
        keeps_grants: true,
        happen: |asking| asking.gateway.proxy.signal(Signal::KILL),
        settle: again,
    },
    Event {
        name: "the server stops",
        keeps_grants: true,
        happen: |asking| asking.gateway.proxy.signal(Signal::TERM),
        settle: again,
    },
    Event {
        name: "the lease ends",
        keeps_grants: false,
        happen: |asking| {
            let path = format!("/internal/containers/{SANDBOX}");
            asking.write("DELETE", &path, None).unwrap();
        },
        settle: |asking| asking.gateway.proxy.register("127.0.0.1", SANDBOX),
    },
    Event {
        name: "the policy denies",
        keeps_grants: false,
        happen: |asking| asking.rule(&ASK.replace("\"ask\"", "\"deny_continue\"")),
        settle: |asking| asking.rule(ASK),
    },
];

/// Starts the server again after its end.
fn again(asking: &mut Asking) {
    asking.gateway.proxy.wait(SOON);
    asking.gateway.proxy.restart();
}

impl Asking {
    /// Writes by the admin API, as soon as the limit on writes permits. An error means that the
    /// server has ended.
    fn write(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Reply> {
        loop {
            let reply = self.gateway.proxy.try_admin(method, path, body.cloned())?;
            if reply.status != 429 {
                return Ok(reply);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn approve(&self, id: &str) -> io::Result<Reply> {
        let path = format!("/internal/approvals/{id}/approve");
        self.write("POST", &path, Some(&json!({})))
    }

    /// Puts another policy in force.
    fn rule(&self, policy: &str) {
        std::fs::write(self.bundle.path().join("authz.rego"), policy).unwrap();
        let reply = self.write("POST", "/internal/reload", None).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// Begins a call with this number; returns its stream and its question when it waits.
    fn begun(&self, number: u64) -> (TcpStream, Value) {
        let stream = begin(&self.client(Era::Legacy), json!({ "n": number }));
        let mut question = None;
        eventually("the call waits", SOON, || {
            let mut questions = self.questions().into_iter();
            question = questions.find(|one| one["arguments"]["n"] == number && one["waiting"] == 1);
            question.is_some()
        });
        (stream, question.unwrap())
    }

    fn question(&self, id: &str) -> Value {
        let path = format!("/internal/approvals/{id}");
        self.gateway.proxy.admin("GET", &path, None).json()
    }

    /// How often the call with this number has reached the server of the tool.
    fn executions(&self, number: u64) -> usize {
        let calls = self.server.calls();
        let arguments = calls
            .iter()
            .map(|call| &call.message["params"]["arguments"]);
        arguments.filter(|one| one["n"] == number).count()
    }
}

/// Whether a stream ends with the result of the tool.
fn has_result(mut stream: TcpStream) -> bool {
    let mut text = Vec::new();
    // The server may have been killed.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).contains(r#""content":"#)
}

/// Approves a call at the same time as an event, and asserts that the question, the client and the
/// server of the tool agree on what happened.
fn race(asking: &mut Asking, event: &Event, delay: u64) {
    let (stream, question) = asking.begun(delay);
    let id = question["id"].as_str().unwrap();
    let shared = &*asking;
    let reply = thread::scope(|scope| {
        let approve = scope.spawn(|| shared.approve(id));
        thread::sleep(Duration::from_millis(delay));
        (event.happen)(shared);
        approve.join().unwrap()
    });
    let approved = reply.ok().map(|reply| reply.status == 200);
    let has_result = has_result(stream);
    (event.settle)(asking);
    let (question, executions) = (asking.question(id), asking.executions(delay));
    let state = question["state"].as_str().unwrap();
    let said = format!(
        "{}: approved {approved:?}, {executions} executions, {question}",
        event.name
    );
    assert!(executions <= 1, "{said}");
    assert!(
        !has_result || executions == 1,
        "a result without a call: {said}"
    );
    if executions == 1 {
        assert_eq!(state, "used", "{said}");
        assert_ne!(approved, Some(false), "{said}");
    }
    if approved == Some(true) {
        let decided = ["approved", "used", "expired", "ended"];
        assert!(decided.contains(&state), "{said}");
    }
    let has_decision = question["decided_by"].is_string();
    assert!(
        has_decision || (executions == 0 && approved != Some(true)),
        "{said}"
    );
    if state == "approved" {
        let again = asking
            .client(Era::Legacy)
            .call("kb_pay", json!({ "n": delay }));
        let is_used = again.get("result").is_some();
        assert!(is_used || !event.keeps_grants, "{said}: {again}");
        assert_eq!(asking.question(id)["state"] == "used", is_used, "{said}");
        assert_eq!(asking.executions(delay), usize::from(is_used), "{said}");
    }
}

#[test]
fn whatever_happens_during_an_approval_a_call_runs_at_most_once_and_no_decision_is_lost() {
    each_row(EVENTS, |event| {
        let mut asking = Asking::start(json!({ "wait": "0s" }));
        for delay in DELAYS {
            race(&mut asking, &event, delay);
        }
    });
}

#[test]
fn an_approval_at_the_time_when_its_question_expires_runs_the_call_or_comes_too_late() {
    let asking = Asking::start(json!({ "wait": "0s", "ttl": "4s" }));
    // Approved one after the other, the first ones in time.
    let calls: Vec<_> = (0..8).map(|number| asking.begun(number)).collect();
    let expiry = calls[0].1["expires_at"].as_str().unwrap();
    let expiry = OffsetDateTime::parse(expiry, &Rfc3339).unwrap();
    let until = expiry - OffsetDateTime::now_utc() - Duration::from_millis(20);
    thread::sleep(until.try_into().unwrap_or_default());
    for (number, (stream, question)) in calls.into_iter().enumerate() {
        let reply = asking.approve(question["id"].as_str().unwrap()).unwrap();
        assert!([200, 410].contains(&reply.status), "{}", reply.text());
        let is_approved = reply.status == 200;
        assert_eq!(has_result(stream), is_approved, "{number}");
        assert_eq!(asking.executions(number as u64), usize::from(is_approved));
    }
}

#[test]
fn a_call_that_a_kill_interrupts_is_not_sent_again() {
    let mut asking = Asking::start(json!({ "wait": "0s" }));
    let (stream, question) = asking.begun(1);
    let id = question["id"].as_str().unwrap();
    // Killed while the person decides: the question stays.
    asking.gateway.proxy.crash_and_restart();
    drop(stream);
    assert_eq!(asking.question(id)["state"], "pending");
    let (stream, question) = asking.begun(1);
    assert_eq!(question["id"], id);
    assert_eq!(asking.approve(id).unwrap().status, 200);
    asking.server.wait_for_calls(1);
    // Killed when the server has the call.
    asking.gateway.proxy.crash_and_restart();
    drop(stream);
    assert_eq!(asking.question(id)["state"], "used");
    let (_stream, question) = asking.begun(1);
    assert_ne!(question["id"], id);
    assert_eq!(asking.executions(1), 1);
}
