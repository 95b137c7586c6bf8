//! Request contexts: the approval of `before`, and the call at the gateway.

use serde_json::{Value, json};

use super::super::hostile::client::{Client, DENIED, Era, FIRST, SECOND, assert_code, response};
use super::{Interceptor, assert_block};
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
