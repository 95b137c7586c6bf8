//! Names, arguments and bodies that the gateway and a server might interpret differently.

use serde_json::{Value, json};
use testkit::each_row;

use super::super::library::library;
use super::client::{Client, ERAS, Era, Gateway, assert_code, response, text};
use super::server::{Answer, McpServer, tool};

const NOT_FOUND: i64 = -32602;

/// A gateway that renames the server's tool `fetch`, hides two of its fields and injects a third.
fn renamed(server: &McpServer) -> Gateway {
    Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "overrides": { "kb:fetch": {
            "rename": "look-up",
            "hide_fields": ["debug", "options.root"],
            "defaults": { "station": "12345" },
        } },
    }))
}

fn fetch() -> Value {
    json!({ "name": "fetch", "inputSchema": { "type": "object", "properties": {
        "city": { "type": "string" },
        "station": { "type": "string" },
        "debug": { "type": "boolean" },
        "options": { "type": "object", "properties": { "root": {}, "depth": {} } },
    } } })
}

#[test]
fn a_renamed_tool_is_unknown_by_its_old_name() {
    let server = McpServer::start(vec![fetch()]);
    let gateway = renamed(&server);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["look-up"]);
        for name in ["kb_fetch", "fetch", "kb:fetch", "kb/fetch"] {
            assert_code(&client.call(name, json!({})), NOT_FOUND);
        }
    });
    assert_eq!(server.calls().len(), 0);
    let client = Client::open(&gateway, Era::Modern);
    assert!(text(&client.call("look-up", json!({}))).starts_with("\"fetch\""));
    // `Mcp-Name` holds the tool's original name, by which the server knows it.
    assert_eq!(server.calls()[0].header("mcp-name"), Some("fetch"));
}

#[test]
fn names_that_resemble_a_tool_name_are_unknown() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        for name in [
            // Cyrillic and full-width characters, zero-width characters, a combining accent, case,
            // spaces, NUL, and two underscores.
            "kb_r\u{435}ad",
            "kb_\u{ff52}ead",
            "kb\u{ff3f}read",
            "kb_re\u{200d}ad",
            "kb_read\u{200b}",
            "kb_re\u{301}ad",
            "KB_READ",
            "kb_read ",
            " kb_read",
            "kb_read\0",
            "kb_read\0x",
            "kb__read",
        ] {
            assert_code(&client.call(name, json!({})), NOT_FOUND);
        }
    });
    assert_eq!(server.calls().len(), 0);
}

#[test]
fn names_that_resemble_a_prompt_name_are_unknown() {
    let server = library(None);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_echo"]);
        let get = |name: &str| client.request("prompts/get", json!({ "name": name }));
        assert!(get("kb_greet")["result"].is_object());
        let reached = server.of("prompts/get").len();
        for name in [
            "greet",
            "kb_gr\u{435}et",
            "kb_\u{ff47}reet",
            "kb\u{ff3f}greet",
            "kb_gre\u{200d}et",
            "kb_gree\u{301}t",
            "KB_greet",
            "kb_greet ",
            "kb_greet\0",
        ] {
            assert_code(&get(name), NOT_FOUND);
        }
        assert_eq!(server.of("prompts/get").len(), reached);
    });
}

/// The gateway does not rewrite URIs. A request with a URI that no server lists goes to the servers
/// with the `resources` capability, one after the other. Servers and policies get the bytes that
/// the client sent.
#[test]
fn a_uri_that_resembles_a_resource_uri_is_neither_matched_nor_rewritten() {
    let uris = [
        "note://fir\u{455}t",
        "note://\u{ff46}irst",
        "n\u{43e}te://first",
        "note:\u{2215}\u{2215}first",
        "note://fi\u{200b}rst",
        "NOTE://first",
        "note://first/",
        "note://first/../first",
        "note://%66irst",
        "note://first\0",
        " note://first",
    ];
    let server = library(None);
    let mcp = json!({ "mcpServers": { "kb": server.mount() } });
    let open = Gateway::start(&mcp);
    let bundle = tempfile::tempdir().unwrap();
    let rules =
        "package mcp.authz\n\ndecision := \"allow\" if input.params.uri == \"note://first\"\n";
    std::fs::write(bundle.path().join("authz.rego"), rules).unwrap();
    let mut mcp = mcp;
    mcp["policies"] = json!({ "bundles": [{
        "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz",
        "methods": ["resources/read"],
    }] });
    let judged = Gateway::start(&mcp);
    each_row(ERAS, |era| {
        let open = Client::open(&open, era).wait_for(&["kb_echo"]);
        let judged = Client::open(&judged, era).wait_for(&["kb_echo"]);
        let read =
            |client: &Client<'_>, uri| client.request("resources/read", json!({ "uri": uri }));
        assert!(read(&judged, "note://first")["result"].is_object());
        for uri in uris {
            let answer = read(&open, uri);
            assert_eq!(answer["result"]["contents"][0]["uri"], uri, "{answer}");
            let sent = server.of("resources/read");
            assert_eq!(sent.last().unwrap().message["params"]["uri"], uri);
            assert_code(&read(&judged, uri), -32951);
            assert_eq!(server.of("resources/read").len(), sent.len(), "{uri:?}");
        }
    });
}

#[test]
fn caller_values_for_hidden_or_injected_fields_never_reach_the_server() {
    let server = McpServer::start(vec![fetch()]);
    let gateway = renamed(&server);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["look-up"]);
        let listed = client.list()[0]["inputSchema"]["properties"].clone();
        assert_eq!(
            listed,
            json!({
                "city": { "type": "string" },
                "options": { "type": "object", "properties": { "depth": {} } },
            })
        );
        let arguments = json!({
            "city": "Oslo", "debug": true, "station": "1",
            "options": { "root": "/", "depth": 1 },
        });
        text(&client.call("look-up", arguments));
        let expected = json!({ "city": "Oslo", "station": "12345", "options": { "depth": 1 } });
        assert_eq!(server.arguments(), expected);
    });
}

#[test]
fn hidden_fields_under_an_escaped_name_are_dropped_too() {
    let server = McpServer::start(vec![fetch()]);
    let gateway = renamed(&server);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["look-up"]);
        let fields = r#""n\u0061me":"look-up","arguments":{"\u0064ebug":true,"sta\u0074ion":"1","city":"Oslo"}"#;
        let reply = client.post(&called(era, "look-up"), call(era, fields).as_bytes());
        text(&response(&reply));
        let expected = json!({ "city": "Oslo", "station": "12345" });
        assert_eq!(server.arguments(), expected);
    });
    assert_eq!(server.calls().len(), 2);
}

#[test]
fn values_that_a_server_might_read_in_place_of_the_judged_ones_are_invalid_params() {
    let server = McpServer::start(vec![fetch()]);
    let gateway = renamed(&server);
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["look-up"]);
        let reached = server.calls().len();
        // A value above the hidden field `options.root`.
        for options in [
            "null",
            "[]",
            r#"[{"root":"/"}]"#,
            "0",
            r#""{\"root\":\"/\"}""#,
        ] {
            let fields = format!(r#""name":"look-up","arguments":{{"options":{options}}}"#);
            let reply = client.post(&called(era, "look-up"), call(era, &fields).as_bytes());
            assert_code(&response(&reply), -32602);
        }
        // A server that ignores case would take the second member.
        for member in [r#""Arguments":{"debug":true}"#, r#""NAME":"other""#] {
            let fields = format!(r#""name":"look-up","arguments":{{}},{member}"#);
            let reply = client.post(&called(era, "look-up"), call(era, &fields).as_bytes());
            assert_code(&response(&reply), -32602);
        }
        let answer = client.request(
            "resources/read",
            json!({ "uri": "kb://a", "URI": "kb://b" }),
        );
        assert_code(&answer, -32602);
        assert_eq!(server.calls().len(), reached);
    });
}

/// The text of a call whose params have these fields and, in the modern era, `_meta`.
fn call(era: Era, fields: &str) -> String {
    let meta = match era {
        Era::Legacy => "",
        Era::Modern => {
            r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#
        }
    };
    format!(r#"{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{{fields}{meta}}}}}"#)
}

/// The header fields that a call has only in the modern era.
fn called(era: Era, tool: &str) -> Vec<(&'static str, &str)> {
    match era {
        Era::Legacy => Vec::new(),
        Era::Modern => vec![("mcp-method", "tools/call"), ("mcp-name", tool)],
    }
}

#[test]
fn an_ambiguous_json_body_is_refused() {
    let server = McpServer::start(vec![tool("read"), tool("write")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        let reached = server.calls().len();
        let right = call(era, r#""name":"kb_read""#);
        let params = |fields: &str| call(era, &format!(r#""name":"kb_read",{fields}"#));
        let twice = |member: &str| right.replacen('{', &format!("{{{member},"), 1);
        let bodies = [
            twice(r#""method":"ping""#),
            twice(r#""params":{"name":"kb_write"}"#),
            params(r#""name":"kb_write""#),
            params(r#""n\u0061me":"kb_write""#),
            params(r#""arguments":{"a":1,"a":2}"#),
            params(r#""arguments":{"a":[{"b":1,"b":2}]}"#),
            // A key that the parser of policies would read as a number.
            params(r#""arguments":{"a":{"$serde_json::private::Number":"5"}}"#),
            format!("[{right}]"),
            format!("{right} {{}}"),
        ];
        for body in bodies {
            let reply = client.post(&called(era, "kb_read"), body.as_bytes());
            assert_eq!(reply.status, 400, "{body}: {}", reply.text());
            let code = reply.json()["error"]["code"].as_i64().unwrap();
            assert!([-32700, -32600].contains(&code), "{body}: {code}");
        }
        let mut invalid = params(r#""arguments":{"a":"?"}"#).into_bytes();
        let at = invalid.iter().position(|byte| *byte == b'?').unwrap();
        invalid.splice(at..=at, *b"\xc0\xaf");
        assert_eq!(client.post(&called(era, "kb_read"), &invalid).status, 400);
        assert_eq!(server.calls().len(), reached);
        // Without the ambiguity, the same request is a call.
        text(&response(
            &client.post(&called(era, "kb_read"), right.as_bytes()),
        ));
        assert_eq!(server.calls().len(), reached + 1);
    });
}

#[test]
fn a_body_that_is_compressed_or_has_another_media_type_is_refused() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        for coding in ["gzip", "br", "zstd", "identity, gzip"] {
            let reply = client.post(&[("content-encoding", coding)], b"\x1f\x8b\x08");
            assert_eq!(reply.status, 415, "{coding}: {}", reply.text());
        }
        let reply = client.post(&[("content-type", "text/plain")], b"{}");
        assert_eq!(reply.status, 415, "{}", reply.text());
    });
    assert_eq!(server.calls().len(), 0);
}

#[test]
fn headers_that_differ_from_the_body_are_refused() {
    let mirrored = json!({ "name": "write", "inputSchema": { "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "zone": { "type": "integer", "x-mcp-header": "Zone" },
    } } });
    let server = McpServer::start(vec![tool("read"), mirrored]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_read", "kb_write"]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "kb_write", "arguments": { "region": "eu" }, "_meta": meta },
    })
    .to_string();
    let (version, method, name) = ("mcp-protocol-version", "mcp-method", "mcp-name");
    let (region, zone) = ("mcp-param-region", "mcp-param-zone");
    let right = [(method, "tools/call"), (name, "kb_write"), (region, "eu")];
    let [right_method, right_name, right_region] = right;
    each_row(
        [
            vec![right_method, right_region, (name, "kb_read")],
            vec![right_name, right_region, (method, "tools/list")],
            vec![right_method, right_region],
            vec![right_name, right_region],
            [&right[..], &[(name, "kb_read")]].concat(),
            [&right[..], &[(version, "2025-11-25")]].concat(),
            // An argument and its header: they differ, the header is missing, the header is sent
            // twice, the argument is missing.
            vec![right_method, right_name, (region, "us")],
            vec![right_method, right_name],
            [&right[..], &[(region, "us")]].concat(),
            [&right[..], &[(zone, "1")]].concat(),
        ],
        |headers| {
            let reply = client.post(&headers, body.as_bytes());
            assert_eq!(reply.status, 400, "{}", reply.text());
            assert_code(&reply.json(), -32020);
        },
    );
    assert_eq!(server.calls().len(), 0);
    text(&response(&client.post(&right, body.as_bytes())));
    let calls = server.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].header(region), Some("eu"));
}

/// A server's task would return a tool's result without the policies on results. The tasks of the
/// gateway are its own.
#[test]
fn no_request_for_a_task_reaches_a_server_and_no_server_learns_that_a_client_takes_tasks() {
    let server = McpServer::scripted(vec![tool("read")], |seen| {
        seen.method()
            .starts_with("tasks/")
            .then(|| Answer::text("a result that no policy judged"))
    });
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_read"]);
        for method in ["get", "result", "list", "cancel", "update", "anything"] {
            let asked = client.request(&format!("tasks/{method}"), json!({ "taskId": "1" }));
            let is_own = era == Era::Modern && ["get", "cancel", "update"].contains(&method);
            assert_code(&asked, if is_own { -32602 } else { -32601 });
        }
        let described = match era {
            Era::Legacy => response(&client.fresh(|client| client.initialize())),
            Era::Modern => client.request("server/discover", json!({})),
        };
        let capabilities = &described["result"]["capabilities"];
        assert!(capabilities["tools"].is_object(), "{capabilities}");
        assert!(capabilities["tasks"].is_null(), "{capabilities}");
        let extensions = match era {
            Era::Legacy => Value::Null,
            Era::Modern => json!({ "io.modelcontextprotocol/tasks": {} }),
        };
        assert_eq!(capabilities["extensions"], extensions, "{capabilities}");
    });
    let seen = server.seen();
    let is_task = |method: &str| method.starts_with("tasks/");
    assert!(!seen.iter().any(|one| is_task(one.method())));
    let opened = server.of("initialize");
    assert!(!opened.is_empty() && !server.of("server/discover").is_empty());
    for one in opened.iter().chain(&server.of("server/discover")) {
        assert!(!one.message.to_string().contains("task"), "{}", one.message);
    }
}
