//! Tasks: a client that declares them polls the call about which a person decides.

use serde_json::{Value, json};

use super::approvals::Asking;
use super::client::{Client, Era, assert_code, message, response};
use crate::support::{SECOND, SOON, eventually};

const UNKNOWN: i64 = -32602;
const HEADER_MISMATCH: i64 = -32020;
const MISSING_CLIENT_CAPABILITY: i64 = -32021;

fn client(asking: &Asking) -> Client<'_> {
    Client::open(&asking.gateway, Era::Modern).wait_for(&["kb_pay"])
}

/// Calls `pay`; returns the id of the task.
#[track_caller]
fn begin(client: &Client<'_>) -> String {
    let created = client.call("kb_pay", json!({ "euros": 2 }));
    let task = &created["result"];
    assert_eq!(task["resultType"], "task", "{created}");
    assert_eq!(task["status"], "working", "{created}");
    task["taskId"].as_str().unwrap().to_owned()
}

fn poll(client: &Client<'_>, id: &str) -> Value {
    client.request("tasks/get", json!({ "taskId": id }))
}

/// Polls until the task is over, and returns it.
#[track_caller]
fn over(client: &Client<'_>, id: &str) -> Value {
    let mut task = Value::Null;
    eventually("the task is over", SOON, || {
        task = poll(client, id)["result"].clone();
        assert_eq!(task["resultType"], "complete", "{task}");
        task["status"] != "working"
    });
    task
}

/// The text of a task that is completed with an error of the tool.
#[track_caller]
fn said(task: &Value) -> &str {
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(task["result"]["isError"], true, "{task}");
    task["result"]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn the_call_of_a_task_runs_once_after_the_approval_and_servers_do_not_learn_of_tasks() {
    let asking = Asking::start(json!({ "wait": "15m" }));
    let client = client(&asking);
    let task = begin(&client);
    let id = asking.waiting(1);
    let waiting = &poll(&client, &task)["result"];
    assert_eq!(waiting["status"], "working", "{waiting}");
    let message = waiting["statusMessage"].as_str().unwrap();
    assert!(message.contains(&id), "{message}");
    assert_eq!(asking.calls(), 0);
    asking.decide(&id, "approve", json!({}));
    for _ in 0..2 {
        let done = over(&client, &task);
        assert_eq!(done["status"], "completed", "{done}");
        assert!(done["result"]["content"][0]["text"].is_string(), "{done}");
    }
    assert_eq!(asking.calls(), 1);
    let line = asking
        .gateway
        .proxy
        .audited(json!({ "method": "tools/call", "approval": id }));
    assert_eq!(line["outcome"], "ok");
    assert!(line["waited_ms"].is_u64(), "{line}");
    // An approval is for one call.
    let again = begin(&client);
    assert_ne!(asking.waiting(1), id);
    assert_ne!(again, task);
    assert_eq!(asking.calls(), 1);
    for seen in asking.server.seen() {
        let message = seen.message.to_string();
        assert!(!message.contains("io.modelcontextprotocol/tasks"));
        assert!(!seen.method().starts_with("tasks/"));
    }
}

#[test]
fn what_people_decide_reaches_the_model_as_an_error_of_the_tool() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = client(&asking);
    let task = begin(&client);
    let id = asking.waiting(1);
    asking.decide(&id, "deny", json!({ "comment": "use the test account" }));
    let denied = over(&client, &task);
    assert!(said(&denied).contains("denied by a person: use the test account"));

    let asking = Asking::start(json!({ "wait": "0s", "ttl": "2s" }));
    let client = self::client(&asking);
    let task = begin(&client);
    let expired = over(&client, &task);
    assert!(said(&expired).contains("nobody decided in time"));
    assert_eq!(asking.calls(), 0);
}

#[test]
fn a_cancelled_task_leaves_its_question_to_the_next_equal_call() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = client(&asking);
    let task = begin(&client);
    let id = asking.waiting(1);
    let cancelled = client.request("tasks/cancel", json!({ "taskId": task }));
    assert_eq!(cancelled["result"], json!({ "resultType": "complete" }));
    assert_eq!(over(&client, &task)["status"], "cancelled");
    assert_eq!(asking.waiting(0), id);
    asking.decide(&id, "approve", json!({}));
    assert_eq!(asking.calls(), 0);
    let paid = client.call("kb_pay", json!({ "euros": 2 }));
    assert_eq!(paid["result"]["resultType"], "complete", "{paid}");
    assert_eq!(asking.calls(), 1);
}

#[test]
fn a_task_is_unknown_to_other_containers_and_to_clients_that_do_not_declare_tasks() {
    let asking = Asking::start(json!({ "wait": "0s" }));
    let client = client(&asking);
    let task = begin(&client);
    let id = asking.waiting(1);
    let other = Client::of(&asking.gateway, Era::Modern, SECOND);
    let mut silent = self::client(&asking);
    silent.takes_tasks = false;
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = json!({ "taskId": task });
        assert_code(&other.request(method, params.clone()), UNKNOWN);
        let refused = silent.exchange(method, params.clone());
        assert_eq!(refused.status, 400);
        assert_code(&refused.json(), MISSING_CLIENT_CAPABILITY);
        let mut params = params;
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let body = message(&json!(1), method, params).to_string();
        let headers = [("mcp-method", method), ("mcp-name", "another")];
        let reply = client.post(&headers, body.as_bytes());
        assert_code(&response(&reply), HEADER_MISMATCH);
    }
    assert_eq!(poll(&client, &task)["result"]["status"], "working");
    assert_eq!(asking.waiting(1), id);
}

#[test]
fn after_a_restart_a_task_is_unknown_and_its_question_stays() {
    let mut asking = Asking::start(json!({ "wait": "0s" }));
    let task = begin(&client(&asking));
    let id = asking.waiting(1);
    asking.gateway.proxy.crash_and_restart();
    assert_code(&poll(&client(&asking), &task), UNKNOWN);
    assert_eq!(asking.waiting(0), id);
    asking.decide(&id, "approve", json!({}));
    let paid = client(&asking).call("kb_pay", json!({ "euros": 2 }));
    assert_eq!(paid["result"]["resultType"], "complete", "{paid}");
    assert_eq!(asking.calls(), 1);
}
