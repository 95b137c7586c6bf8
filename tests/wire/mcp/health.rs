//! `GET /health` of the gateway's listener.

use serde_json::{Value, json};

use testkit::each_row;

use super::client::{Gateway, call};
use crate::support::{SOON, eventually};

#[test]
fn health_reports_every_part_and_refuses_foreign_hosts() {
    let gateway = Gateway::start();
    let reply = gateway.send("GET /health", "", "");
    assert_eq!(reply.status, 200);
    let health = reply.json();
    assert_eq!(health["checks"]["gateway"], true);
    assert_eq!(health["checks"]["policy_engine"], true);
    assert!(health["servers"]["by-hand"].is_string(), "{health}");
    let checks = gateway.proxy.health().json()["checks"].clone();
    for name in ["mcp_listening", "mcp_policies_loaded", "mcp_servers_alive"] {
        assert_eq!(checks[name], true, "{name}");
    }
    // Without a registered container, a client on loopback still gets the health.
    let gateway = Gateway::start_with(|setup| setup.containers.clear());
    assert_eq!(gateway.send("GET /health", "", "").status, 200);
    let denied = gateway.send("GET /health", "host: evil.example.com\r\n", "");
    assert_eq!(denied.status, 403);
    gateway
        .proxy
        .audited(json!({ "kind": "mcp", "code": "domain_not_allowed" }));
}

#[test]
fn a_policy_that_cannot_be_loaded_degrades_the_gateway_even_with_on_unavailable_allow() {
    each_row(
        [("deny", -32953), ("allow", 0)],
        |(on_unavailable, code)| {
            let gateway = Gateway::start_with(|setup| {
                let bundle = setup.dir().join("bundle");
                std::fs::create_dir(&bundle).unwrap();
                std::fs::write(bundle.join("authz.rego"), "package mcp.authz\n\nno rule").unwrap();
                let path = setup.dir().join("config/mcp.yaml");
                let text = std::fs::read_to_string(&path).unwrap();
                let mut mcp: Value = serde_json::from_str(&text).unwrap();
                mcp["policies"] = json!({
                    "bundles": [{ "id": "main", "path": bundle, "entrypoint": "mcp/authz" }],
                    "on_unavailable": on_unavailable,
                });
                std::fs::write(path, mcp.to_string()).unwrap();
            });
            let reply = gateway.send("GET /health", "", "");
            let health = reply.json();
            assert_eq!((reply.status, &health["status"]), (503, &json!("degraded")));
            assert_eq!(
                health["checks"],
                json!({ "gateway": true, "interceptor": true, "policy_engine": false })
            );
            // The failed check does not degrade the health of the proxy itself.
            let health = gateway.proxy.health();
            assert_eq!(health.status, 200);
            assert_eq!(health.json()["checks"]["mcp_policies_loaded"], false);
            let called = gateway
                .post(&gateway.session(), &call(1, "echo", json!({})))
                .json();
            let failed = called["error"]["code"].as_i64().unwrap_or_default();
            assert_eq!(failed, code, "{called}");
        },
    );
}

#[test]
fn a_server_that_goes_away_is_degraded_until_it_answers_again() {
    let gateway = Gateway::start();
    let session = gateway.session();
    let health = || gateway.send("GET /health", "", "").json();
    let echo = || gateway.post(&session, &call(1, "echo", json!({}))).json();
    assert!(echo()["result"].is_object());
    assert_eq!(health()["servers"]["by-hand"], "ready");
    gateway.seen.leave(true);
    let refused = echo();
    let data = &refused["error"]["data"];
    assert_eq!(
        (&data["code"], &data["status"]),
        (&json!("tool_unavailable"), &json!(503)),
        "{refused}"
    );
    assert_eq!(data["server"], "by-hand");
    let gone = health();
    assert_eq!(
        (&gone["servers"]["by-hand"], &gone["status"]),
        (&json!("degraded"), &json!("degraded")),
    );
    gateway.seen.leave(false);
    assert!(echo()["result"].is_object());
    assert_eq!(health()["servers"]["by-hand"], "ready");
}

#[test]
fn the_check_of_servers_fails_while_a_server_is_dead() {
    let gateway = Gateway::start();
    gateway.seen.leave(true);
    let session = gateway.session();
    let refused = gateway.post(&session, &call(1, "echo", json!({}))).json();
    assert_eq!(refused["error"]["data"]["status"], 503, "{refused}");
    let health = gateway.send("GET /health", "", "");
    assert_eq!(
        (health.status, &health.json()["servers"]["by-hand"]),
        (503, &json!("dead"))
    );
    let checks = || gateway.proxy.health().json()["checks"].clone();
    assert_eq!(gateway.proxy.health().status, 200);
    assert_eq!(checks()["mcp_servers_alive"], false);
    gateway.seen.leave(false);
    eventually("the server is alive again", SOON, || {
        gateway.post(&session, &call(1, "echo", json!({})));
        checks()["mcp_servers_alive"] == true
    });
}

#[test]
fn a_call_to_an_e2b_server_is_not_implemented_and_other_servers_work() {
    let gateway = Gateway::with_mcp(|mcp| {
        mcp["mcpServers"]["analyzer"] = json!({
            "command": ["python", "analyze.py"], "runtime": { "type": "e2b", "template": "t" },
        });
    });
    let session = gateway.session();
    let mut analyze = call(1, "echo", json!({}));
    analyze["params"]["name"] = "analyzer_run".into();
    for _ in 0..2 {
        let error = gateway.post(&session, &analyze).json()["error"].clone();
        assert_eq!(error["code"], -32000, "{error}");
        let data = &error["data"];
        assert_eq!(
            (&data["code"], &data["status"], &data["server"]),
            (&json!("not_implemented"), &json!(501), &json!("analyzer")),
        );
    }
    let labels = [
        "tool=\"other\"",
        "runtime=\"e2b\"",
        "status=\"unavailable\"",
    ];
    let executions = "proxy_mcp_tool_executions_total";
    assert_eq!(gateway.proxy.metric(executions, &labels), 2.0);
    gateway.proxy.audited(json!({
        "kind": "mcp", "code": "not_implemented", "server": "analyzer", "tool": "analyzer_run",
    }));
    // Neither the gateway's nor the proxy's health takes this server into account.
    let health = gateway.send("GET /health", "", "").json();
    assert_eq!(health["status"], "healthy", "{health}");
    assert_eq!(health["servers"].as_object().unwrap().len(), 1, "{health}");
    assert_eq!(
        gateway.proxy.health().json()["checks"]["mcp_servers_alive"],
        true
    );
    let echoed = gateway.post(&session, &call(2, "echo", json!({}))).json();
    assert!(echoed["result"].is_object(), "{echoed}");
}
