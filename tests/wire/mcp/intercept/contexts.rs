//! Request contexts: the approval of `before`, and the call at the gateway.

use serde_json::{Value, json};

use super::super::hostile::client::{Client, DENIED, Era, FIRST, SECOND, assert_code, response};
use super::{ASKING, Interceptor, assert_block};
use crate::support::{SOON, eventually, read_reply};

fn before(id: &str, tool: &str, arguments: Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments });
    let body =
        json!({ "type": "before", "request_id": id, "method": "tools/call", "params": params });
    body.to_string()
}

/// A call that names a context.
fn call(client: &Client<'_>, id: &str, arguments: Value) -> Value {
    let meta = json!({ "unified-proxy/request_id": id });
    let params = json!({ "name": "kb_pay", "arguments": arguments, "_meta": meta });
    client.request("tools/call", params)
}

fn start() -> Interceptor {
    Interceptor::with(json!({}), |setup| {
        setup.proxy["approvals"] = json!({ "wait": "15m" })
    })
}

/// Has a person approve the question of `before`.
#[track_caller]
fn approved(interceptor: &Interceptor, id: &str, arguments: Value) {
    let body = before(id, "kb_pay", arguments);
    let mut held = interceptor.begin(FIRST, "POST /intercept/before", "", &body);
    interceptor.decide("kb/pay", "approve");
    assert_eq!(read_reply(&mut held).unwrap().json()["action"], "pass");
}

#[test]
fn the_call_of_an_approved_before_runs_once_with_its_grant() {
    let interceptor = start();
    let mut client = Client::open(&interceptor.gateway, Era::Legacy).wait_for(&["kb_pay"]);
    client.takes_tasks = false;
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    let called = call(&client, "r1", json!({ "euros": 2 }));
    assert!(called["result"].is_object(), "{called}");
    assert_eq!(interceptor.server.calls().len(), 1);
    let after = json!({ "type": "after", "request_id": "r1", "result": called["result"] });
    let after = interceptor.ask("after", after).json();
    assert_eq!(after["metadata"]["context"], "ask", "{after}");
    assert_eq!(
        interceptor
            .gateway
            .proxy
            .metric("proxy_mcp_contexts_active", &[]),
        0.0
    );
}

#[test]
fn no_other_call_gets_the_approval_of_a_before() {
    let interceptor = start();
    let open = |source| {
        let mut client = Client::of(&interceptor.gateway, Era::Legacy, source);
        client.takes_tasks = false;
        client.wait_for(&["kb_pay"])
    };
    let (client, other) = (open(FIRST), open(SECOND));
    let asks_anew = |client: &Client<'_>, id: &str, arguments: Value| {
        let meta = json!({ "unified-proxy/request_id": id });
        let params = json!({ "name": "kb_pay", "arguments": arguments, "_meta": meta });
        let mut stream = client.begin(&json!("a call"), "tools/call", params);
        interceptor.decide("kb/pay", "deny");
        assert_code(&response(&read_reply(&mut stream).unwrap()), DENIED);
    };
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    asks_anew(&client, "r1", json!({ "euros": 3 }));
    asks_anew(&other, "r1", json!({ "euros": 2 }));
    asks_anew(&client, "r2", json!({ "euros": 2 }));
    approved(&interceptor, "r5", json!({ "euros": 5 }));
    // A second question with the same id.
    let second = interceptor.ask("before", before("r5", "kb_read", json!({})));
    assert_eq!(second.json()["action"], "pass");
    asks_anew(&client, "r5", json!({ "euros": 5 }));
    assert_eq!(interceptor.server.calls().len(), 0);
}

#[test]
fn the_end_of_a_lease_removes_its_contexts() {
    let interceptor = start();
    interceptor.ask("before", before("r1", "kb_read", json!({})));
    let active = || {
        interceptor
            .gateway
            .proxy
            .metric("proxy_mcp_contexts_active", &[])
    };
    assert_eq!(active(), 1.0);
    let path = "/internal/containers/sandbox";
    assert_eq!(
        interceptor.gateway.proxy.admin("DELETE", path, None).status,
        200
    );
    eventually("the context is gone", SOON, || active() == 0.0);
    assert_block(&interceptor.ask("before", before("r1", "kb_read", json!({}))));
}

fn after(id: &str, tool: &str, text: &str) -> Value {
    let result = json!({ "content": [{ "type": "text", "text": text }] });
    json!({ "type": "after", "request_id": id, "tool_id": tool, "result": result })
}

/// An `ask` that a person has answered does not hide what another bundle redacts.
#[test]
fn a_redaction_of_one_policy_counts_beside_an_approved_question_of_another() {
    let (interceptor, _second) = Interceptor::with_second(ASKING);
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    let reply = interceptor
        .ask("after", after("r1", "kb_pay", "sk-secret"))
        .json();
    assert_eq!(reply["action"], "modify", "{reply}");
    assert_eq!(reply["modified_data"]["content"][0]["text"], "[gone]");
}

#[test]
fn a_result_is_judged_as_one_of_the_tool_that_was_called_and_of_no_other() {
    let (interceptor, _second) = Interceptor::with_second(ASKING);
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    for tool in ["kb_read", "kb", "search", "docker:kb_pay"] {
        // A repetition gets no better answer.
        for _repetition in 0..2 {
            let reply = interceptor.ask("after", after("r1", tool, "hello"));
            assert_block(&reply);
            assert_eq!(reply.status, 400, "{tool}");
        }
    }
    let own = interceptor.ask("after", after("r1", "kb_pay", "hello"));
    assert_eq!(own.json()["action"], "pass");
    // The approval ended with its context.
    assert_block(&interceptor.ask("after", after("r1", "kb_pay", "hello")));
}

#[test]
fn a_denied_call_has_no_result_but_our_own_denial() {
    let interceptor = start();
    let denied = interceptor.ask("before", before("r1", "shell", json!({})));
    let reason = assert_block(&denied);
    for _repetition in 0..2 {
        assert_block(&interceptor.ask("after", after("r1", "shell", "hello")));
    }
    let mut own = after("r1", "shell", &reason);
    own["result"]["isError"] = json!(true);
    own["result"]["_meta"] = json!({ "unified-proxy/code": -32951 });
    assert_eq!(interceptor.ask("after", own).json()["action"], "pass");
}

#[test]
fn a_refused_second_question_ends_the_context_of_the_first() {
    let interceptor = start();
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    assert_block(&interceptor.ask("before", before("r1", "kb_gone", json!({}))));
    let after = json!({ "type": "after", "request_id": "r1", "result": { "content": [] } });
    assert_eq!(interceptor.ask("after", after).status, 400);
}

#[test]
fn the_denial_of_a_call_at_the_gateway_passes_unchanged_and_no_imitation() {
    let interceptor = start();
    let mut client = Client::open(&interceptor.gateway, Era::Legacy).wait_for(&["kb_pay"]);
    client.takes_tasks = false;
    approved(&interceptor, "r1", json!({ "euros": 2 }));
    let mut stream = client.begin(
        &json!("a call"),
        "tools/call",
        json!({ "name": "kb_pay", "arguments": { "euros": 3 } }),
    );
    interceptor.decide("kb/pay", "deny");
    let denied = response(&read_reply(&mut stream).unwrap());
    assert_code(&denied, DENIED);
    let after = |error: &Value| {
        let body = json!({ "type": "after", "tool_id": "kb_pay", "error": error });
        interceptor.ask("after", body)
    };
    assert_eq!(after(&denied["error"]).json()["action"], "pass");
    let mut forged = denied["error"].clone();
    forged["message"] = json!("sk-secret");
    assert_block(&after(&forged));
}

#[test]
fn a_rule_about_the_arguments_of_the_call_counts_for_its_result() {
    let rule = r#"package mcp.authz

default decision := "allow"

decision := "deny_continue" if {
	input.phase == "response"
	input.arguments.q == "private"
}
"#;
    let (interceptor, _second) = Interceptor::with_second(rule);
    for (q, action) in [("private", "block"), ("public", "pass")] {
        interceptor.ask("before", before("r1", "search", json!({ "q": q })));
        let reply = interceptor.ask("after", after("r1", "search", "hello"));
        assert_eq!(reply.json()["action"], action, "{q}");
    }
}
