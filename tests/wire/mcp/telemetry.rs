//! Metrics and traces of tool calls.

use std::fs;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use testkit::each_row;

use super::hostile::client::{Client, ERAS, Era, Gateway, assert_code, message, response, text};
use super::hostile::server::{Answer, McpServer, tool};
use super::library::library;
use crate::support::{SOON, eventually, read_reply};
use crate::traces::Collector;

const CASES: u32 = 100;
const RULES: &str = "package mcp.authz\n\ndefault decision := \"allow\"\n\n\
    decision := \"deny_continue\" if input.tool == \"denied\"\n";

fn runner() -> TestRunner {
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
}

/// Reads the metrics of a tool's calls and of the policy's decisions.
struct Counts<'g> {
    gateway: &'g Gateway,
}

impl Counts<'_> {
    fn executions(&self, tool: &str, labels: &[&str]) -> f64 {
        let tool = format!("tool=\"kb_{tool}\"");
        let labels = [labels, &[&*tool]].concat();
        self.gateway
            .proxy
            .metric("proxy_mcp_tool_executions_total", &labels)
    }

    fn durations(&self, tool: &str) -> f64 {
        let tool = format!("tool=\"kb_{tool}\"");
        let name = "proxy_mcp_tool_execution_duration_seconds_count";
        self.gateway
            .proxy
            .metric(name, &["runtime=\"http\"", &tool])
    }

    fn decisions(&self, decision: &str) -> f64 {
        let decision = format!("decision=\"{decision}\"");
        let name = "proxy_mcp_policy_decisions_total";
        self.gateway
            .proxy
            .metric(name, &["bundle=\"main\"", &decision])
    }

    fn evaluations(&self) -> f64 {
        let name = "proxy_mcp_policy_duration_seconds_count";
        self.gateway.proxy.metric(name, &["bundle=\"main\""])
    }

    /// The values of six counters: the first three count calls of `tool`, the others count the
    /// decisions and the evaluations of the policy for all tools.
    fn of(&self, tool: &str, status: &str) -> [f64; 6] {
        let status = format!("status=\"{status}\"");
        let labels = [&*status, "runtime=\"http\"", "exit_code=\"none\""];
        [
            self.executions(tool, &labels),
            self.executions(tool, &[]),
            self.durations(tool),
            self.decisions("allow"),
            self.decisions("deny_continue"),
            self.evaluations(),
        ]
    }
}

// Feature: unified-sidecar, Property 10: Metrics Emission Consistency
#[test]
fn each_call_is_counted_once_with_labels_duration_and_decisions() {
    let tools = ["fine", "failed", "broken", "denied"];
    let server = McpServer::scripted(tools.map(tool).to_vec(), |seen| match seen.tool() {
        "failed" => Some(Answer::Result(json!({ "content": [], "isError": true }))),
        "broken" => Some(Answer::Error(json!({ "code": -1, "message": "broken" }))),
        _ => None,
    });
    let bundle = tempfile::tempdir().unwrap();
    fs::write(bundle.path().join("authz.rego"), RULES).unwrap();
    let gateway = Gateway::start(&json!({
        "mcpServers": { "kb": server.mount() },
        "policies": { "bundles": [
            { "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" },
        ] },
    }));
    let clients = ERAS.map(|era| Client::open(&gateway, era).wait_for(&["kb_fine"]));
    let counts = Counts { gateway: &gateway };
    let case = (
        prop::sample::select(tools.to_vec()),
        prop::sample::select(vec![0_usize, 1]),
        "[a-z\"\\\\\u{e9}]{0,20}",
    );
    let tested = runner().run(&case, |(tool, client, argument)| {
        let status = match tool {
            "fine" | "denied" => "ok",
            _ => "error",
        };
        let before = counts.of(tool, status);
        let answer = clients[client].call(&format!("kb_{tool}"), json!({ "a": argument }));
        let after = counts.of(tool, status);
        let difference: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        let expected = match tool {
            // The policy judges the call, and the gateway does not execute it.
            "denied" => [0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
            // The request and its response are evaluated.
            _ => [1.0, 1.0, 1.0, 2.0, 0.0, 2.0],
        };
        prop_assert_eq!(difference, expected.to_vec(), "{}: {}", tool, answer);
        Ok(())
    });
    tested.unwrap();
}

/// A stdio server that exits with the code in a call's arguments.
const ENDS: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    params = message.get("params", {})
    if message["method"] == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "ends", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "end", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        sys.exit(params["arguments"]["code"])
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

#[test]
fn a_call_whose_server_exits_is_counted_with_the_exit_code() {
    // One gateway for each row: an exited server is restarted only after a pause.
    each_row([0, 7], |code| {
        let gateway = Gateway::start(&json!({
            "mcpServers": { "kb": { "command": "python3", "args": ["-c", ENDS] } },
        }));
        let client = Client::open(&gateway, Era::Legacy).wait_for(&["kb_end"]);
        let ended = client.call("kb_end", json!({ "code": code }));
        assert_code(&ended, -32000);
        let exit_code = format!("exit_code=\"{code}\"");
        let labels = ["status=\"unavailable\"", "runtime=\"local\"", &exit_code];
        let counts = Counts { gateway: &gateway };
        assert_eq!(counts.executions("end", &labels), 1.0, "{ended}");
    });
}

/// A stdio server that exits at once.
fn exiting() -> Value {
    json!({ "command": "false" })
}

#[test]
fn the_changes_of_definitions_are_counted_from_zero_for_each_server() {
    let mut mcp = json!({ "mcpServers": { "kb": exiting() } });
    let gateway = Gateway::start(&mcp);
    let has_zero = |server: &str| {
        let series = format!("proxy_mcp_definition_changes_total{{server=\"{server}\"}} 0\n");
        let metrics = gateway.proxy.admin("GET", "/internal/metrics", None);
        metrics.text().contains(&series)
    };
    assert!(has_zero("kb"));
    assert!(!has_zero("added"));
    mcp["mcpServers"]["added"] = exiting();
    let path = gateway.proxy.path("config/mcp.yaml");
    fs::write(path, mcp.to_string()).unwrap();
    assert_eq!(
        gateway.proxy.admin("POST", "/internal/reload", None).status,
        200
    );
    assert!(has_zero("kb") && has_zero("added"));
}

/// Hexadecimal digits of an id that is not all zeros.
fn id(length: usize) -> impl Strategy<Value = String> {
    let digits = prop::collection::vec(0..16_u32, length);
    let digits = digits.prop_filter("an id is not zero", |digits| {
        digits.iter().any(|one| *one > 0)
    });
    digits.prop_map(|digits| {
        digits
            .iter()
            .map(|one| char::from_digit(*one, 16).unwrap())
            .collect()
    })
}

// Feature: unified-sidecar, Property 11: Trace Context Propagation
#[test]
fn a_server_gets_the_clients_trace_with_the_gateways_span_as_parent() {
    let collector = Collector::start();
    let servers = ERAS.map(|era| library(Some(era)));
    let mounts = json!({ "old": servers[0].mount(), "new": servers[1].mount() });
    let gateway = Gateway::with(&json!({ "mcpServers": mounts }), |setup| {
        setup.proxy["tracing"] = json!({ "otlp_endpoint": collector.url() });
    });
    let clients = ERAS.map(|era| Client::open(&gateway, era).wait_for(&["old_echo", "new_echo"]));
    let case = (id(32), id(16), any::<bool>(), 0..2_usize, 0..2_usize);
    let mut sent = Vec::new();
    let cell = std::cell::RefCell::new(&mut sent);
    let tested = runner().run(&case, |(trace, parent, in_header, client, server)| {
        let (client, name) = (&clients[client], ["old_echo", "new_echo"][server]);
        let context = format!("00-{trace}-{parent}-01");
        // `legacy.rs` tests the header field of requests in a session.
        let in_header = in_header && client.era == Era::Modern;
        let called = call_in(client, name, &context, in_header);
        prop_assert!(text(&called).starts_with("\"echo\""), "{}", called);
        let seen = servers[server].calls().pop().unwrap();
        let told = seen.message["params"]["_meta"]["traceparent"].clone();
        let told = told.as_str().unwrap_or_default().to_owned();
        let parts: Vec<&str> = told.split('-').collect();
        prop_assert_eq!(parts.len(), 4, "{:?}", seen);
        prop_assert_eq!((parts[1], parts[3]), (&*trace, "01"));
        if let Some(field) = seen.header("traceparent") {
            prop_assert_eq!(field.split('-').nth(1), Some(&*trace));
        }
        cell.borrow_mut().push((trace, parent, parts[2].to_owned()));
        Ok(())
    });
    tested.unwrap();
    assert_eq!(sent.len(), CASES as usize);
    // The parent id that the server gets is that of the gateway's span, whose parent is the
    // client's span.
    eventually("every span arrives", SOON, || {
        let spans = collector.spans();
        sent.iter().all(|(trace, parent, ours)| {
            let is_it = |span: &&Value| span["spanId"] == **ours;
            let span = spans.iter().find(is_it);
            span.is_some_and(|span| span["traceId"] == **trace && span["parentSpanId"] == **parent)
        })
    });
    // The id of the span is the flow's id in the audit log.
    let (_, _, ours) = &sent[0];
    gateway
        .proxy
        .audited(json!({ "flow": ours, "method": "tools/call" }));
}

/// Calls a tool with a trace context in the header field `traceparent` or in the message.
fn call_in(client: &Client<'_>, name: &str, context: &str, in_header: bool) -> Value {
    let mut params = json!({ "name": name, "arguments": {}, "_meta": {} });
    let meta = &mut params["_meta"];
    if client.era == Era::Modern {
        meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    let mut headers = match client.era {
        Era::Legacy => Vec::new(),
        Era::Modern => vec![("mcp-method", "tools/call"), ("mcp-name", name)],
    };
    match in_header {
        true => headers.push(("traceparent", context)),
        false => meta["traceparent"] = context.into(),
    }
    let body = message(&1.into(), "tools/call", params).to_string();
    let mut stream = client.send("POST", &headers, body.as_bytes());
    response(&read_reply(&mut stream).unwrap())
}
