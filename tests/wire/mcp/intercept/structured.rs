//! The structured dialect.

use serde_json::{Value, json};

use super::{Interceptor, assert_block};

fn before(name: &str, id: &str) -> Value {
    json!({
        "version": "1.0", "type": "before", "request_id": id, "timestamp": "2026-11-29T12:00:00Z",
        "method": "tools/call", "params": { "name": name, "arguments": { "q": 1 } },
        "tool_id": name, "agent_id": "agent-7", "session_id": "s-1",
    })
}

#[test]
fn a_decision_becomes_pass_block_or_modify_with_the_policys_metadata() {
    let interceptor = Interceptor::start();
    let metadata = |tool: &str| json!({ "agent": "agent-7", "tool": tool });
    let passed = interceptor.ask("before", before("search", "1"));
    assert_eq!(passed.status, 200);
    let pass = passed.json();
    assert_eq!(pass["action"], "pass", "{pass}");
    let modified = interceptor.ask("before", before("fix", "2")).json();
    assert_eq!(modified["action"], "modify");
    assert_eq!(modified["modified_data"], json!({ "q": "clean" }));
    let blocked = interceptor.ask("before", before("shell", "3"));
    assert_eq!(blocked.status, 200);
    assert!(assert_block(&blocked).contains("not with this policy"));
    let after = json!({ "type": "after", "request_id": "1", "agent_id": "agent-7", "tool_id": "search",
        "result": { "content": [{ "type": "text", "text": "sk-secret" }] } });
    let after = interceptor.ask("after", after).json();
    assert_eq!(after["action"], "modify", "{after}");
    assert_eq!(after["modified_data"]["content"][0]["text"], "[gone]");
    let mut expected = metadata("search");
    expected["context"] = json!("allow");
    assert_eq!(after["metadata"], expected);
    let line = json!({ "server": "interceptor", "tool": "search", "agent_id": "agent-7" });
    interceptor.gateway.proxy.audited(line);
}

#[test]
fn what_names_two_tools_or_is_no_question_is_invalid() {
    let interceptor = Interceptor::start();
    let with = |key: &str, value: Value| {
        let mut body = before("search", "1");
        body[key] = value;
        body
    };
    for body in [
        with("tool_id", json!("shell")),
        with("type", json!("after")),
        with("type", json!(1)),
        with("Type", json!("before")),
        with("request_id", json!(7)),
        with("request_id", json!("x".repeat(257))),
        with("method", json!(7)),
        with("method", json!("")),
        with("method", json!("tools/Call")),
        with("method", json!("tools/call ")),
        with("method", json!("tools/list")),
        with("tool_id", json!("docker:search")),
        with("tool_id", json!("sea")),
        with("content", json!([])),
        with("result", json!({})),
        with("params", json!("search")),
    ] {
        let reply = interceptor.ask("before", &body);
        assert_block(&reply);
        assert_eq!(reply.status, 400, "{body}");
    }
    for body in [
        json!({ "type": "after", "request_id": "1" }),
        json!({ "type": "after", "result": { "content": [] } }),
        json!({ "type": "after", "request_id": "unknown", "result": { "content": [] } }),
        json!({ "type": "after", "tool_id": "mcp-exec", "result": { "content": [] } }),
        json!({ "type": "after", "request_id": "1", "result": {}, "error": { "code": 1, "message": "" } }),
        json!({ "type": "after", "request_id": "1", "error": "x" }),
        json!({ "type": "before", "request_id": "1", "result": {} }),
    ] {
        assert_eq!(interceptor.ask("after", &body).status, 400, "{body}");
    }
}

#[test]
fn other_requests_of_clients_are_judged_by_their_method_and_their_results_too() {
    let interceptor = Interceptor::start();
    let params = json!({ "uri": "file:///x" });
    let read = json!({ "type": "before", "request_id": "1", "method": "resources/read", "params": params });
    assert_eq!(interceptor.ask("before", read).json()["action"], "pass");
    let call = json!({ "type": "before", "method": "resources/read", "params": { "name": "shell", "arguments": {} } });
    assert_eq!(interceptor.ask("before", call).status, 400);
    let result = json!({ "contents": [] });
    let of_tool =
        json!({ "type": "after", "request_id": "1", "tool_id": "search", "result": result });
    assert_eq!(interceptor.ask("after", of_tool).status, 400);
    let after = json!({ "type": "after", "request_id": "1", "result": result });
    assert_eq!(interceptor.ask("after", after).json()["action"], "pass");
}

#[test]
fn a_call_within_mcp_exec_is_changed_within_its_arguments() {
    let interceptor = Interceptor::start();
    let mut body = before("mcp-exec", "1");
    body["params"]["arguments"] = json!({ "name": "fix", "arguments": { "q": 1 } });
    let reply = interceptor.ask("before", &body).json();
    assert_eq!(reply["action"], "modify", "{reply}");
    let expected = json!({ "name": "fix", "arguments": { "q": "clean" } });
    assert_eq!(reply["modified_data"], expected);
    let after = json!({ "type": "after", "request_id": "1", "tool_id": "mcp-exec", "result": { "content": [] } });
    assert_eq!(interceptor.ask("after", after).json()["action"], "pass");
    interceptor
        .gateway
        .proxy
        .audited(json!({ "tool": "fix", "phase": "after", "request_id": "1" }));
}

#[test]
fn the_metrics_count_each_answer_by_tools_that_are_listed() {
    let interceptor = Interceptor::start();
    interceptor.ask("before", before("kb_read", "1"));
    interceptor.ask("before", before("shell", "2"));
    let counted = |labels: &[&str]| {
        let name = "proxy_mcp_intercepts_total";
        interceptor.gateway.proxy.metric(name, labels)
    };
    let labels = ["type=\"before\"", "action=\"pass\"", "tool=\"kb_read\""];
    assert_eq!(counted(&labels), 1.0);
    let labels = ["type=\"before\"", "action=\"block\"", "tool=\"other\""];
    assert_eq!(counted(&labels), 1.0);
    let contexts = interceptor
        .gateway
        .proxy
        .metric("proxy_mcp_contexts_active", &[]);
    assert_eq!(contexts, 2.0);
}
