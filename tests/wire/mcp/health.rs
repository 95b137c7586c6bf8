//! Health of the gateway and its listener.

use serde_json::json;

use super::client::Gateway;

#[test]
fn health_names_every_part_and_answers_containers_and_this_machine_alone() {
    let gateway = Gateway::start();
    let reply = gateway.send("GET /health", "", "");
    assert_eq!(reply.status, 200);
    let health = reply.json();
    assert_eq!(health["checks"]["gateway"], true);
    assert_eq!(health["checks"]["policy_engine"], true);
    assert!(health["servers"]["by-hand"].is_string(), "{health}");
    assert_eq!(
        gateway.proxy.health().json()["checks"]["mcp_listening"],
        true
    );
    // Nobody is registered at loopback here.
    let gateway = Gateway::start_with(|setup| setup.containers.clear());
    assert_eq!(gateway.send("GET /health", "", "").status, 200);
    let denied = gateway.send("GET /health", "host: evil.example.com\r\n", "");
    assert_eq!(denied.status, 403);
    gateway
        .proxy
        .audited(json!({ "kind": "mcp", "code": "domain_not_allowed" }));
}
