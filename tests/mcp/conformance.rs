//! The suite finds nothing through the gateway that it does not find without it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::differences::{Expected, Leg};
use crate::gateway::Gateway;
use crate::programs::{Server, everything_on_stdio};
use crate::suite::{Checks, REVISIONS, Run, client_scenarios};
use crate::support::{Origin, SOON, eventually};
use crate::tools::Tools;

/// Fewer checks than this that succeed without the gateway mean that the suite did not run.
const SERVER_CHECKS: usize = 60;

/// The one server of a gateway keeps its names, which the suite knows.
fn alone(mut mount: Value) -> Value {
    mount["prefix"] = "".into();
    json!({ "mcpServers": { "everything": mount } })
}

fn over_http(url: &str) -> Value {
    alone(json!({ "type": "http", "url": url }))
}

fn succeeding(checks: &Checks) -> usize {
    let all = checks.values().flatten();
    all.filter(|status| *status == "SUCCESS").count()
}

#[track_caller]
fn assert_as_expected(expected: &Expected, unexpected: &[String]) {
    assert!(
        unexpected.is_empty(),
        "not in expected-differences.txt:\n{}",
        unexpected.join("\n")
    );
    let stale = expected.stale();
    assert!(stale.is_empty(), "no longer different: {stale:#?}");
}

/// The server leg: the suite is the client.
fn compare_server(leg: Leg, tools: &Tools, mount: impl Fn(&Server) -> Value) {
    each_row(REVISIONS, |revision| {
        let bare = Server::everything(tools);
        let bare = Run::server(tools, revision, &bare.url("/mcp")).checks("bare");
        assert!(succeeding(&bare) >= SERVER_CHECKS, "{revision}: {bare:#?}");
        let (server, origin) = (Server::everything(tools), Origin::start());
        let gateway = Gateway::start(&origin, &mount(&server));
        let through = Run::server(tools, revision, &gateway.url("/mcp")).checks("through");
        let mut expected = Expected::of(leg, revision);
        let unexpected = expected.unexpected(&bare, &through);
        if !unexpected.is_empty() {
            println!("--- log of the proxy ---\n{}", gateway.proxy.log());
        }
        assert_as_expected(&expected, &unexpected);
    });
}

#[test]
fn a_server_mounted_over_http_passes_what_it_passes_alone() {
    if let Some(tools) = Tools::install("conformance of a server mounted over HTTP") {
        compare_server(Leg::Http, &tools, |server| over_http(&server.url("/mcp")));
    }
}

#[test]
fn a_server_mounted_over_stdio_passes_what_it_passes_alone() {
    if let Some(tools) = Tools::install("conformance of a server mounted over stdio") {
        compare_server(Leg::Stdio, &tools, |_| alone(everything_on_stdio(&tools)));
    }
}

/// The client that the Python SDK is tested with. It knows each scenario by its name.
fn client(tools: &Tools) -> String {
    tools.text("source/.github/actions/conformance/client.py")
}

fn without_the_gateway(tools: &Tools, revision: &str, scenario: &str) -> Checks {
    let command = format!("'{}' '{}'", tools.python(2), client(tools));
    let run = Run::client(tools, revision, scenario, |suite| {
        suite.args(["--command", &command]);
    });
    run.checks("bare")
}

/// The suite's server has an address once the client is started with it, so the client waits for
/// the gateway.
fn with_the_gateway(tools: &Tools, revision: &str, scenario: &str) -> Checks {
    let (meeting, origin) = (TempDir::new().unwrap(), Origin::start());
    let at = |name: &str| meeting.path().join(name);
    let command = format!("sh '{}'", tools.text("through.sh"));
    let run = Run::client(tools, revision, scenario, |suite| {
        suite.args(["--command", &command]);
        suite.env("PYTHON", tools.python(2));
        suite.env("CLIENT", client(tools));
        suite.env("MEETING", meeting.path());
    });
    eventually("the suite starts the client", SOON, || {
        at("server").exists()
    });
    let server = fs::read_to_string(at("server")).unwrap();
    let gateway = Gateway::start(&origin, &over_http(&server));
    appear(&at("gateway"), &gateway.url("/mcp"));
    run.checks("through")
}

/// Makes a file that is there only with its content.
fn appear(path: &Path, text: &str) {
    let part = path.with_extension("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, path).unwrap();
}

/// The client leg: the suite is the server that is mounted.
fn compare_client(revision: &str) {
    let test = format!("conformance of a client, {revision}");
    let Some(tools) = Tools::install(&test) else {
        return;
    };
    let mut expected = Expected::of(Leg::Client, revision);
    let mut scenarios = client_scenarios(&tools, revision);
    scenarios.retain(|scenario| !expected.leaves_out(scenario));
    assert!(!scenarios.is_empty());
    let mut unexpected = Vec::new();
    for scenario in &scenarios {
        let bare = without_the_gateway(&tools, revision, scenario);
        assert!(succeeding(&bare) > 0, "{scenario}: {bare:#?}");
        let through = with_the_gateway(&tools, revision, scenario);
        unexpected.extend(expected.unexpected(&bare, &through));
    }
    assert_as_expected(&expected, &unexpected);
}

#[test]
fn a_client_of_2025_11_25_passes_before_the_gateway_what_it_passes_alone() {
    compare_client("2025-11-25");
}

#[test]
fn a_client_of_2026_07_28_passes_before_the_gateway_what_it_passes_alone() {
    compare_client("2026-07-28");
}
