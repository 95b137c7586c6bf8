//! Docker's MCP Gateway: its bytes, and what Go reads in them.

use serde_json::{Value, json};
use testkit::each_row;

use super::super::hostile::client::FIRST;
use super::{Interceptor, assert_block, assert_nothing};
use crate::support::read_reply;

fn params(name: &str) -> Value {
    json!({ "name": name, "arguments": { "q": "x" } })
}

#[test]
fn the_bytes_of_dockers_gateway_are_judged_in_each_of_its_versions() {
    let interceptor = Interceptor::start();
    let old = |name: &str| {
        format!(
            r#"{{"Session":{{}},"Params":{{"_meta":{{"progressToken":1}},"name":"{name}","arguments":{{"q":"\u003cb\u003e \u0026"}}}},"Extra":null}}"#
        )
    };
    let exec = |arguments: Value| {
        json!({ "method": "tools/call", "params": { "name": "mcp-exec", "arguments": arguments } })
            .to_string()
    };
    let text = |name: &str| exec(json!({ "name": name, "arguments": "{\"q\":1}" }));
    let object = |name: &str| exec(json!({ "name": name, "arguments": { "q": 1 } }));
    let call = |name: &str| json!({ "method": "tools/call", "params": params(name) }).to_string();
    let bare = |name: &str| json!({ "params": params(name) }).to_string();
    let forms: [&dyn Fn(&str) -> String; 5] = [&old, &call, &bare, &object, &text];
    for form in forms {
        for (name, passes) in [("search", true), ("shell", false), ("kb_read", true)] {
            let body = form(name);
            let reply = interceptor.ask("before", &body);
            match passes {
                true => assert_nothing(&reply),
                false => {
                    let reason = assert_block(&reply);
                    assert_eq!(
                        reason, "policy_denied_continue: not with this policy",
                        "{body}"
                    );
                }
            }
        }
    }
    let call = json!({ "server": "interceptor", "tool": "shell", "decision": "deny_continue" });
    interceptor.gateway.proxy.audited(call);
    interceptor
        .gateway
        .proxy
        .audited(json!({ "server": "kb", "tool": "read" }));
}

#[test]
fn what_go_may_read_otherwise_is_invalid() {
    let interceptor = Interceptor::start();
    each_row(
        [
            r#"{"method":"tools/call","Params":{"name":"search"},"params":{"name":"shell"}}"#,
            r#"{"method":"tools/call","params":{"name":"search"},"PARAMS":{"name":"shell"}}"#,
            r#"{"method":"tools/call","params":{"name":"search"},"params":{"name":"shell"}}"#,
            r#"{"method":"tools/call","params":{"name":"search","Name":"shell"}}"#,
            r#"{"method":"tools/call","params":{"name":"search","argument\u017f":{}}}"#,
            r#"{"method":"tools/call","params":{"name":"mcp-exec","arguments":{"name":"search","NAME":"shell"}}}"#,
            r#"{"method":"tools/call","params":{"name":"mcp-exec","arguments":{"name":"search","arguments":"{\"a\":1,\"a\":2}"}}}"#,
            r#"{"method":"tools/call","params":{"name":"mcp-exec","arguments":{"name":"search","arguments":"[1]"}}}"#,
            r#"{"method":"tools/call","params":{"name":"mcp-exec","arguments":{"name":"mcp-exec","arguments":{}}}}"#,
            r#"{"method":"tools/call","params":{"name":"mcp-exec"}}"#,
            r#"{"method":"tools/call","params":{"name":7}}"#,
            r#"{"method":"tools/call","params":{"name":""}}"#,
            r#"{"method":"tools/call","params":{"name":"search","arguments":[]}}"#,
            r#"{"method":"tools/call","params":null}"#,
            r#"{"Params":{"name":"search"},"params":{"name":"shell"}}"#,
            r#"{"method":"tools/call","Params":{"name":"shell"}}"#,
            r#"{"method":"tools/Call","params":{"name":"shell"}}"#,
            r#"{"method":"tools/call ","params":{"name":"shell"}}"#,
            r#"{"method":"","params":{"name":"shell"}}"#,
            r#"{"method":null,"params":{"name":"shell"}}"#,
            r#"{"method":"tools/list","params":{}}"#,
            r#"{"params":7}"#,
            r#"{"\u0050ARAMS":{"name":"search"}}"#,
            r#"{}"#,
            r#"[]"#,
            r#"null"#,
            r#""#,
            r#"{"method":"tools/call","params":{"name":"search"}} {}"#,
        ],
        |body| {
            let reply = interceptor.ask("before", body);
            assert_block(&reply);
            assert_eq!(reply.status, 400, "{body}");
        },
    );
}

#[test]
fn tools_that_change_the_gateway_and_unlisted_ones_of_our_servers_are_denied() {
    let interceptor = Interceptor::start();
    for name in [
        "mcp-add",
        "mcp-config-set",
        "code-mode",
        "code-mode-report",
        "mcp-activate-profile",
        "mcp-create-profile",
        "mcp-registry-import",
        "mcp-remove",
        "kb_gone",
        "KB_read",
    ] {
        for body in [
            json!({ "method": "tools/call", "params": params(name) }),
            json!({ "method": "tools/call", "params": { "name": "mcp-exec", "arguments": params(name) } }),
        ] {
            let reply = interceptor.ask("before", body);
            assert_eq!(reply.status, 200);
            assert_block(&reply);
        }
    }
    let allows = Interceptor::with(json!({ "interceptor": { "allow": ["mcp-add"] } }), |_| {});
    assert_nothing(&allows.ask(
        "before",
        json!({ "method": "tools/call", "params": params("mcp-add") }),
    ));
    assert_block(&allows.ask(
        "before",
        json!({ "method": "tools/call", "params": params("code-mode") }),
    ));
}

#[test]
fn results_are_scrubbed_without_knowing_the_tool_and_only_our_own_denial_is_exempt() {
    let interceptor = Interceptor::start();
    let result = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
    assert_nothing(&interceptor.ask("after", "null"));
    assert_nothing(&interceptor.ask("after", result("hello")));
    let mut structured = result("hello");
    structured["structuredContent"] = json!({ "key": "sk-secret" });
    for leaking in [result("sk-secret"), structured] {
        let reply = interceptor.ask("after", leaking);
        assert_eq!(reply.json(), result("[gone]"));
    }
    let block = interceptor.ask(
        "before",
        json!({ "method": "tools/call", "params": params("shell") }),
    );
    let mut own = block.json();
    // Go writes the members of a result alone.
    for key in ["action", "reason"] {
        own.as_object_mut().unwrap().remove(key);
    }
    assert_nothing(&interceptor.ask("after", &own));
    own["content"][0]["text"] = json!("sk-secret");
    let forged = interceptor.ask("after", &own);
    assert_eq!(forged.json(), result("[gone]"));
    // What could be a result or of the structured form is neither.
    let mut disguised = result("sk-secret");
    disguised["type"] = json!("after");
    disguised["request_id"] = json!("1");
    disguised["result"] = json!({});
    let no_result = json!({ "structuredContent": { "key": "sk-secret" } });
    for body in [disguised, no_result, json!({}), json!([])] {
        let reply = interceptor.ask("after", &body);
        assert_block(&reply);
        assert_eq!(reply.status, 400, "{body}");
    }
}

#[test]
fn the_values_in_a_text_of_mcp_exec_are_limited() {
    let interceptor = Interceptor::start();
    let exec = |values: usize| {
        let text = format!(r#"{{"a":[{}0]}}"#, "0,".repeat(values));
        let arguments = json!({ "name": "search", "arguments": text });
        let params = json!({ "name": "mcp-exec", "arguments": arguments });
        interceptor.ask(
            "before",
            json!({ "method": "tools/call", "params": params }),
        )
    };
    assert_nothing(&exec(1000));
    let reason = assert_block(&exec(100_001));
    assert!(reason.contains("JSON values"), "{reason}");
}

#[test]
fn a_change_of_arguments_is_a_block_since_dockers_gateway_would_ignore_it() {
    let interceptor = Interceptor::start();
    let reply = interceptor.ask(
        "before",
        json!({ "method": "tools/call", "params": params("fix") }),
    );
    let reason = assert_block(&reply);
    assert!(reason.contains("cannot pass changes on"), "{reason}");
}

#[test]
fn a_call_waits_for_a_person_and_an_approval_is_for_one_call() {
    let wait = json!({ "wait": "15m" });
    let interceptor = Interceptor::with(json!({}), |setup| setup.proxy["approvals"] = wait);
    let body = json!({ "method": "tools/call", "params": params("pay") }).to_string();
    let begin = || interceptor.begin(FIRST, "POST /intercept/before", "", &body);
    let mut approved = begin();
    interceptor.decide("interceptor/pay", "approve");
    assert_nothing(&read_reply(&mut approved).unwrap());
    let mut denied = begin();
    interceptor.decide("interceptor/pay", "deny");
    let reason = assert_block(&read_reply(&mut denied).unwrap());
    assert!(reason.contains("denied by a person"), "{reason}");
}
