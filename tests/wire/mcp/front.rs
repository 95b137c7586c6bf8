//! Refusals before a message is routed, and their audit lines.

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Gateway, POST, call, initialize, modern, request};
use crate::support::listener;

#[test]
fn foreign_hosts_and_origins_are_refused_on_every_path() {
    let gateway = Gateway::start();
    each_row(
        [
            ("host: evil.example.com\r\n", "Host"),
            ("origin: http://evil.example.com\r\n", "Origin"),
            ("origin: null\r\n", "Origin"),
        ],
        |(field, name)| {
            for head in [
                "POST /mcp",
                "GET /mcp",
                "GET /sse",
                "POST /message",
                "GET /health",
            ] {
                let reply = gateway.send(head, &format!("{POST}{field}"), "{}");
                reply.assert_denied(403, "domain_not_allowed", &format!("{name} not allowed"));
            }
        },
    );
    let reply = gateway.post("origin: http://localhost:3000\r\n", &initialize());
    assert_eq!(reply.status, 200);
    gateway
        .proxy
        .audited(json!({ "kind": "mcp", "code": "domain_not_allowed", "status": 403 }));
}

#[test]
fn a_post_is_refused_unless_it_has_one_valid_message_and_the_required_header_fields() {
    let gateway = Gateway::start();
    let large = format!("{{\"jsonrpc\":\"2.0\",\"a\":\"{}\"}}", "x".repeat(9 << 20));
    each_row(
        [
            (POST, "{", 400, -32700),
            (
                POST,
                "{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}",
                400,
                -32700,
            ),
            (POST, "[]", 400, -32600),
            (
                POST,
                "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
                400,
                -32600,
            ),
            (
                POST,
                "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
                400,
                -32600,
            ),
            (
                POST,
                "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
                400,
                -32600,
            ),
            (
                "content-type: application/json\r\naccept: text/event-stream\r\n",
                "{}",
                406,
                -32600,
            ),
        ],
        |(fields, body, status, code)| {
            let reply = gateway.send("POST /mcp", fields, body);
            assert_eq!(reply.status, status, "{body}: {}", reply.text());
            assert_eq!(reply.json()["error"]["code"], code, "{body}");
            assert_eq!(reply.header("x-proxy-denied"), Some("malformed_request"));
        },
    );
    let text = "content-type: text/plain\r\naccept: */*\r\n";
    let gzip = format!("{POST}content-encoding: gzip\r\n");
    for fields in [text, &gzip] {
        let reply = gateway.send("POST /mcp", fields, "{}");
        reply.assert_denied(
            415,
            "unsupported_encoding",
            "Content-Type must be application/json",
        );
    }
    let reply = gateway.send("POST /mcp", POST, &large);
    reply.assert_denied(413, "body_too_large_to_inspect", "Body too large");
    assert_eq!(reply.json()["limit"], "inspect_body_bytes");
}

#[test]
fn wrong_http_methods_unknown_paths_and_proxy_requests_are_refused() {
    let gateway = Gateway::start();
    each_row(
        [
            ("PUT /mcp", "GET, POST, DELETE"),
            ("OPTIONS /mcp", "GET, POST, DELETE"),
            ("POST /sse", "GET"),
            ("GET /message", "POST"),
            ("POST /health", "GET"),
        ],
        |(head, allowed)| {
            let reply = gateway.send(head, POST, "");
            reply.assert_denied(405, "method_not_allowed", "Method not allowed");
            assert_eq!(reply.header("allow"), Some(allowed));
        },
    );
    let reply = gateway.send("GET /.well-known/oauth-protected-resource", "", "");
    assert_eq!(reply.status, 404);
    let modern = "mcp-protocol-version: 2026-07-28\r\n";
    assert_eq!(gateway.send("GET /mcp", modern, "").status, 405);
    for head in [
        "GET http://plain.example.com/",
        "CONNECT plain.example.com:80",
    ] {
        gateway
            .send(head, "", "")
            .assert_denied(400, "malformed_request", "Malformed request");
    }
}

#[test]
fn a_slash_at_the_end_of_a_path_is_ignored() {
    let gateway = Gateway::start();
    let body = initialize().to_string();
    let reply = gateway.send("POST /mcp/", POST, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let id = reply.only("mcp-session-id").unwrap();
    let session = format!("{POST}mcp-session-id: {id}\r\n");
    let ping = request(1, "ping", json!({})).to_string();
    assert_eq!(gateway.send("POST /mcp/?a=1", &session, &ping).status, 200);
    assert_eq!(gateway.send("DELETE /mcp/", &session, "").status, 204);
    let (fields, message) = modern(request(7, "tools/list", json!({})));
    let fields = format!("{POST}{fields}");
    let reply = gateway.send("POST /mcp/", &fields, &message.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut stream = gateway.get("/sse/", "");
    let endpoint = stream.next().unwrap().replace('?', "/?");
    let reply = gateway.send(&format!("POST {endpoint}"), POST, &body);
    assert_eq!(reply.status, 202, "{}", reply.text());
    assert_eq!(gateway.send("GET /health/", "", "").status, 200);
    let reply = gateway.send("PUT /mcp/", POST, "");
    assert_eq!(
        (reply.status, reply.header("allow")),
        (405, Some("GET, POST, DELETE"))
    );
    for path in ["/mcp//", "//mcp", "/mcp/x", "/mcp/.", "/MCP/", "/"] {
        let reply = gateway.send(&format!("POST {path}"), POST, &body);
        assert_eq!(reply.status, 404, "{path}");
    }
    // The listener of a container distinguishes the gateway's paths from requests to other hosts.
    let socket = gateway.proxy.own_listener("inner", json!({}));
    let begin = listener::origin_form("POST", "/mcp/", POST, body.as_bytes());
    let reply = listener::send(&mut listener::connect(&socket), &begin);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn a_client_that_accepts_only_json_gets_each_response_without_events() {
    let gateway = Gateway::start();
    let only_json = "content-type: application/json\r\naccept: application/json\r\n";
    let post = |fields: &str, message: &Value| {
        let fields = format!("{only_json}{fields}");
        let reply = gateway.send("POST /mcp", &fields, &message.to_string());
        assert_eq!(reply.only("content-type"), Some("application/json"));
        reply
    };
    let reply = post("", &initialize());
    let id = reply.only("mcp-session-id").unwrap();
    let session = format!("mcp-session-id: {id}\r\n");
    let tools = post(&session, &request(1, "tools/list", json!({}))).json();
    assert_eq!(tools["result"]["tools"][0]["name"], "by-hand_echo");
    // The server reports progress before it answers.
    let told = call(2, "tell", json!({}));
    let answer = post(&session, &told).json();
    assert_eq!(answer["result"]["content"][0]["text"], "told");
    let (fields, told) = modern(told);
    let answer = post(&fields, &told).json();
    assert_eq!(answer["result"]["content"][0]["text"], "told");
    // A question of the server cannot reach the client.
    let answer = post(&session, &call(3, "ask", json!({}))).json();
    let text = answer["result"]["content"][0]["text"].to_string();
    assert!(text.contains("-32000"), "{text}");
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let (fields, listen) = modern(request(4, "subscriptions/listen", params));
    assert_eq!(post(&fields, &listen).status, 406);
    let stream = format!("accept: application/json\r\n{session}");
    assert_eq!(gateway.send("GET /mcp", &stream, "").status, 406);
}

#[test]
fn unknown_sources_and_wrong_container_ids_are_refused() {
    let gateway = Gateway::start_with(|setup| setup.containers.clear());
    for message in [initialize(), call(1, "echo", json!({}))] {
        let reply = gateway.post("", &message);
        reply.assert_denied(403, "unknown_source", "Unknown source IP");
    }
    let gateway = Gateway::start();
    let reply = gateway.post("x-container-id: another\r\n", &initialize());
    reply.assert_denied(403, "container_id_mismatch", "Container ID mismatch");
    let line = json!({ "kind": "mcp", "method": "POST", "code": "container_id_mismatch" });
    gateway.proxy.audited(line);
}

#[test]
fn the_request_determines_the_era_and_contradictions_are_refused() {
    let gateway = Gateway::start();
    let list = || request(7, "tools/list", json!({}));
    let (fields, message) = modern(list());
    assert_eq!(gateway.post(&fields, &message).status, 200);
    let refused = |fields: &str, message: &Value, status, code| {
        let reply = gateway.post(fields, message);
        let json = reply.json();
        assert_eq!(
            (reply.status, &json["error"]["code"]),
            (status, &code),
            "{json}"
        );
        assert_eq!(json["id"], 7);
    };
    let method = "mcp-method: tools/list\r\n";
    let version = "mcp-protocol-version: 2026-07-28\r\n";
    refused(version, &message, 400, json!(-32020));
    refused(method, &message, 400, json!(-32020));
    let old = "mcp-protocol-version: 2025-11-25\r\n";
    refused(&format!("{old}{method}"), &message, 400, json!(-32020));
    refused(&format!("{version}{method}"), &list(), 400, json!(-32602));
    let (fields, mut unknown) = modern(list());
    unknown["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let fields = fields.replace("2026-07-28", "2099-01-01");
    refused(&fields, &unknown, 400, json!(-32022));
    for removed in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
    ] {
        let (fields, message) = modern(request(7, removed, json!({})));
        refused(&fields, &message, 404, json!(-32601));
    }
    let (fields, message) = modern(request(7, "tasks/list", json!({})));
    refused(&fields, &message, 404, json!(-32601));
    let line = json!({ "kind": "mcp", "method": "ping", "code": "not_implemented" });
    gateway.proxy.audited(line);
}
