//! The security level of a container: the calls and flows that it forbids, and the hints in tool
//! definitions that decide which calls these are.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::each_row;

use super::super::library::{TOOLS, URI, library};
use super::client::{Client, DENIED, ERAS, Era, Events, FIRST, Gateway, SECOND, assert_code, text};
use super::server::{McpServer, tool};
use crate::rules::{ends, streaming};
use crate::streaming::open_websocket;
use crate::support::{Origin, SOON, assert_closes, eventually, handshake, tls_config_trusting};

/// Bound on the time from a rise of the level to the end of the flows that the new level forbids.
const IN_FORCE: Duration = Duration::from_secs(5);

fn closed(name: &str) -> Value {
    json!({
        "name": name, "inputSchema": { "type": "object" },
        "annotations": { "openWorldHint": false },
    })
}

fn gateway(server: &McpServer) -> Gateway {
    let here = json!({ "openWorldHint": false });
    Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": {
            "kb:secrets": { "classification": "Confidential", "annotations": here },
            "kb:local": { "annotations": here },
        },
    }))
}

#[test]
fn a_tool_hidden_by_the_level_is_denied_to_a_client_with_an_old_list() {
    let server = McpServer::start(vec![closed("secrets"), closed("local"), tool("mail")]);
    each_row(ERAS, |era| {
        let mut gateway = gateway(&server);
        let client = Client::open(&gateway, era).wait_for(&["kb_secrets", "kb_mail"]);
        let other = Client::of(&gateway, era, SECOND).wait_for(&["kb_mail"]);
        text(&client.call("kb_mail", json!({})));
        text(&client.call("kb_secrets", json!({})));
        let before = server.calls().len();
        let denied = client.call("kb_mail", json!({}));
        assert_code(&denied, DENIED);
        let reason = denied["error"]["data"]["reason"].as_str().unwrap();
        assert!(reason.contains("Confidential"), "{reason}");
        assert_eq!(server.calls().len(), before);
        assert!(!client.tools().iter().any(|name| name == "kb_mail"));
        text(&client.call("kb_local", json!({})));
        // Neither a new session nor a restart lowers the level. Another container has its own
        // level.
        assert_code(
            &Client::open(&gateway, era).call("kb_mail", json!({})),
            DENIED,
        );
        text(&other.call("kb_mail", json!({})));
        gateway.proxy.crash_and_restart();
        let client = Client::open(&gateway, era).wait_for(&["kb_local"]);
        assert_code(&client.call("kb_mail", json!({})), DENIED);
        gateway.operate("/internal/containers/sandbox/reset");
        let act = json!({ "method": "operator/reset", "container_id": "sandbox", "outcome": "ok" });
        let line = gateway.proxy.audited(act);
        assert!(
            line["rule"].as_str().unwrap().starts_with("operator: uid "),
            "{line}"
        );
        text(&client.call("kb_mail", json!({})));
    });
}

#[test]
fn a_level_outlives_the_lease_that_a_container_let_expire_until_an_operator_resets_it() {
    let server = McpServer::start(vec![closed("secrets"), tool("mail")]);
    let gateway = gateway(&server);
    let proxy = &gateway.proxy;
    let register = |lifetime| proxy.register_for(lifetime, FIRST, "sandbox");
    let denied = || {
        let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_secrets"]);
        assert_code(&client.call("kb_mail", json!({})), DENIED);
    };
    register(Duration::from_secs(600));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_secrets", "kb_mail"]);
    text(&client.call("kb_secrets", json!({})));
    // As with a stopped launcher, which renews its lease only when it continues.
    register(Duration::from_secs(2));
    let show = || proxy.admin("GET", "/internal/containers/sandbox", None);
    eventually("the lease expires", SOON, || show().status == 404);
    register(Duration::from_secs(600));
    denied();
    proxy.register_as(json!({
        "container_id": "sandbox", "container_ip": FIRST, "repos": ["other/repository"],
    }));
    denied();
    assert_eq!(
        proxy
            .admin("DELETE", "/internal/containers/sandbox", None)
            .status,
        200
    );
    register(Duration::from_secs(600));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_mail"]);
    text(&client.call("kb_mail", json!({})));
}

#[test]
fn a_raised_and_a_reset_level_are_announced_as_changes_of_the_list_of_tools() {
    let server = McpServer::start(vec![closed("secrets"), tool("mail")]);
    let gateway = gateway(&server);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["kb_secrets", "kb_mail"]);
    let mut events = Events::new(client.send("GET", &[], b""));
    // Waits until the gateway has remembered the list that the client knows.
    std::thread::sleep(Duration::from_millis(500));
    let mut announced = || {
        let (_, message) = events.next().unwrap();
        assert_eq!(message["method"], "notifications/tools/list_changed");
    };
    for _ in 0..2 {
        text(&client.call("kb_secrets", json!({})));
        announced();
        assert_eq!(client.tools(), ["kb_secrets"]);
        gateway.operate("/internal/containers/sandbox/reset");
        announced();
        assert_eq!(client.tools(), ["kb_secrets", "kb_mail"]);
    }
}

#[test]
fn a_clients_text_reaches_only_closed_world_servers_after_the_level_rose() {
    let requests = [
        ("resources/read", json!({ "uri": URI })),
        (
            "prompts/get",
            json!({ "name": "kb_greet", "arguments": { "who": "me" } }),
        ),
    ];
    let cells = ERAS
        .into_iter()
        .flat_map(|client| ERAS.map(|server| (client, server)));
    each_row(cells, |(era, spoken)| {
        for is_closed in [false, true] {
            let server = library(Some(spoken));
            let hints = json!({ "openWorldHint": !is_closed });
            let mut overrides = json!({ "kb:echo": { "classification": "Confidential" } });
            for tool in TOOLS {
                overrides[format!("kb:{tool}")]["annotations"] = hints.clone();
            }
            let mut mount = server.mount();
            // Otherwise, the resource and the prompt would be confidential, as `echo` is.
            mount["classification"] = "Public".into();
            let mut gateway = Gateway::start(&json!({
                "mcpServers": { "kb": mount }, "overrides": overrides,
            }));
            let client = Client::open(&gateway, era).wait_for(&["kb_echo", "kb_ask"]);
            for (method, params) in &requests {
                let before = client.request(method, params.clone());
                assert!(before["result"].is_object(), "{before}");
            }
            text(&client.call("kb_echo", json!({})));
            // After a restart, the gateway has to read the tools again.
            for is_restarted in [false, true] {
                if is_restarted {
                    gateway.proxy.crash_and_restart();
                }
                let client = Client::open(&gateway, era);
                for (method, params) in &requests {
                    let reached = server.of(method).len();
                    let answer = client.request(method, params.clone());
                    if is_closed {
                        assert!(answer["result"].is_object(), "{answer}");
                    } else {
                        assert_code(&answer, DENIED);
                        let reason = answer["error"]["data"]["reason"].as_str().unwrap();
                        assert!(reason.contains("the server reaches the open world"));
                        assert_eq!(server.of(method).len(), reached);
                    }
                }
            }
        }
    });
}

#[test]
fn a_confidential_resource_or_prompt_raises_the_level_before_the_server_gets_the_request() {
    let named =
        json!({ "resources": { "note://*": "Confidential" }, "prompts": { "greet": "Secret" } });
    let of_server = json!({ "classification": "Confidential" });
    let of_tool = json!({});
    let requests = [
        ("resources/read", json!({ "uri": URI })),
        ("resources/read", json!({ "uri": "NOTE://First" })),
        ("prompts/get", json!({ "name": "kb_greet" })),
    ];
    each_row(ERAS, |era| {
        for entry in [&named, &of_server, &of_tool] {
            let server = library(None);
            let mut mount = server.mount();
            let entries = entry.as_object().unwrap().clone();
            mount.as_object_mut().unwrap().extend(entries);
            let mut overrides = json!({});
            if *entry == of_tool {
                overrides = json!({ "kb:echo": { "classification": "Confidential" } });
            }
            let gateway = Gateway::start(&json!({
                "mcpServers": { "kb": mount }, "overrides": overrides,
            }));
            let client = Client::open(&gateway, era).wait_for(&["kb_ask", "kb_work"]);
            for (method, params) in &requests {
                if *entry != of_server {
                    text(&client.call("kb_cancelled", json!({})));
                }
                let reached = server.of(method).len();
                let answer = client.request(method, params.clone());
                assert!(answer["result"].is_object(), "{answer}");
                assert_eq!(server.of(method).len(), reached + 1);
                assert_code(&client.call("kb_cancelled", json!({})), DENIED);
                assert_code(&client.request(method, params.clone()), DENIED);
                gateway.operate("/internal/containers/sandbox/reset");
            }
        }
    });
}

#[test]
fn a_servers_hints_tighten_the_operators_hints_but_never_loosen_them() {
    let open = json!({
        "name": "open", "inputSchema": { "type": "object" },
        "annotations": { "openWorldHint": true },
    });
    let server = McpServer::start(vec![
        closed("secrets"),
        closed("said-open"),
        closed("silent"),
        open,
        tool("said-closed"),
    ]);
    let gateway = Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": {
            "kb:secrets": { "classification": "Secret" },
            "kb:said-open": { "annotations": { "openWorldHint": true } },
            "kb:said-closed": { "annotations": { "openWorldHint": false } },
            "kb:open": { "annotations": { "openWorldHint": false } },
        },
    }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_secrets", "kb_open"]);
    text(&client.call("kb_secrets", json!({})));
    // The operator sets `openWorldHint: true`, the server `false`.
    assert_code(&client.call("kb_said-open", json!({})), DENIED);
    // The operator sets `openWorldHint: false`, the server `true`.
    assert_code(&client.call("kb_open", json!({})), DENIED);
    text(&client.call("kb_said-closed", json!({})));
    // Only the server sets `openWorldHint: false`, which counts for no server over HTTP.
    assert_code(&client.call("kb_silent", json!({})), DENIED);
}

#[test]
fn flows_to_a_host_whose_max_level_is_below_the_new_level_end_within_five_seconds() {
    const PASSTHROUGH: &str = "other.example.com";
    let origin = Origin::start();
    let server = McpServer::start(vec![closed("secrets")]);
    let mcp = json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": { "kb:secrets": { "classification": "Confidential" } },
    });
    let gateway = Gateway::to(&origin, &mcp, |setup| {
        setup.proxy["tls"]["passthrough"] = json!([PASSTHROUGH]);
        for domain in setup.allowlist["domains"].as_array_mut().unwrap() {
            if domain != "git.example.com" {
                *domain = json!({ "domain": domain, "max_level": "Public" });
            }
        }
    });
    let proxy = &gateway.proxy;
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_secrets"]);
    let (events, absolute) = ("/events/1000/50", "http://plain.example.com/events/1000/50");
    let plain = |stream| streaming(stream, absolute, "plain.example.com");
    // A reset lowers the level, so the second round raises it again.
    for _ in 0..2 {
        let mut stays = streaming(proxy.tls("git.example.com"), events, "git.example.com");
        let mut others = plain(proxy.dial_from(SECOND));
        let mut download = plain(proxy.dial());
        let mut stream = streaming(proxy.tls("api.example.com"), events, "api.example.com");
        let mut idle = proxy.tunnel("api.example.com:443");
        let mut websocket = proxy.tls("api.example.com");
        open_websocket(&mut websocket, "api.example.com", "/websocket");
        let trusting = tls_config_trusting(origin.ca_pem.as_bytes(), &["http/1.1"]);
        let raw = proxy.tunnel(&format!("{PASSTHROUGH}:443"));
        let raw = handshake(raw, PASSTHROUGH, trusting).unwrap();
        let mut raw = streaming(raw, events, PASSTHROUGH);
        let begun = Instant::now();
        text(&client.call("kb_secrets", json!({})));
        ends(&mut download);
        ends(&mut stream);
        ends(&mut websocket);
        ends(&mut raw);
        assert_closes(&mut idle);
        assert!(begun.elapsed() < IN_FORCE, "{:?}", begun.elapsed());
        stays.read_exact(&mut [0; 1024]).unwrap();
        others.read_exact(&mut [0; 1024]).unwrap();
        let (denied, _) = proxy.connect("api.example.com:443");
        denied.assert_connect_denied(403, "level_exceeded", "");
        gateway.operate("/internal/containers/sandbox/reset");
    }
    proxy.audited(json!({ "kind": "websocket", "outcome": "aborted" }));
}
