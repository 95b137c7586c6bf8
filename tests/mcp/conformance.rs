//! Compares the results of the official conformance suite with and without the gateway.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::differences::{Expected, Leg, differences, succeeds};
use crate::gateway::Gateway;
use crate::programs::{STARTUP, Server, everything_on_stdio};
use crate::suite::{Check, Checks, REVISIONS, Run, client_scenarios, scored};
use crate::support::{Origin, closed_address, eventually};
use crate::tools::Tools;

/// Mounts a server without a prefix, since the suite knows the names of the server's tools.
fn alone(mut mount: Value) -> Value {
    mount["prefix"] = "".into();
    json!({ "mcpServers": { "everything": mount } })
}

fn over_http(url: &str) -> Value {
    alone(json!({ "type": "http", "url": url }))
}

#[track_caller]
fn assert_as_expected(expected: &Expected, unexpected: &[String]) {
    assert!(
        unexpected.is_empty(),
        "differences that are not in expected-differences.txt:\n{}",
        unexpected.join("\n")
    );
    let stale = expected.stale();
    assert!(
        stale.is_empty(),
        "expected-differences.txt has lines without a difference: {stale:#?}"
    );
}

/// The suite's results for the server without a gateway; panics unless every scored scenario
/// passes. The tests of one run of the test runner share these results.
fn bare(tools: &Tools, revision: &str) -> Checks {
    let shared = tools.once_in_a_run(&format!("bare-{revision}"), || {
        let server = Server::everything("both", tools);
        let bare = Run::server(tools, revision, &server.url("/mcp")).end("bare");
        assert!(bare.passed, "{revision}: {bare:#?}");
        json!(bare.checks.into_iter().collect::<Vec<_>>())
    });
    let checks: Vec<_> = serde_json::from_value(shared).unwrap();
    checks.into_iter().collect()
}

/// Runs the suite as client, for each revision, and compares two results: those of a server with
/// both eras without the gateway, and those of `mount` through the gateway.
fn compare_server(leg: Leg, tools: &Tools, revisions: &[&str], mount: &Value) {
    each_row(revisions, |revision| {
        let origin = Origin::start();
        let gateway = Gateway::start(&origin, mount);
        gateway.wait_for(&["test_simple_text".to_owned()]);
        if matches!(leg, Leg::Stdio) {
            // The gateway starts a server process for each set of client capabilities. The suite
            // waits only 600 ms for this tool, and the start of a Python process may take longer.
            // So this call starts the process in advance.
            gateway.call("test_streaming_elicitation", json!({ "elicitation": {} }));
        }
        let through = Run::server(tools, revision, &gateway.url("/mcp")).end("through");
        let bare = bare(tools, revision);
        let scored = match leg {
            Leg::Http | Leg::Stdio => scored(tools, revision, "server"),
            // The mounted server does not support the revision, and does not pass without the
            // gateway either.
            Leg::Legacy | Leg::Modern | Leg::Client => Vec::new(),
        };
        let is_lost = !scored.is_empty() && !through.passed;
        let mut expected = Expected::of(leg, revision, scored);
        let mut unexpected = expected.unexpected(&bare, &through.checks);
        unexpected.extend(is_lost.then(|| "a scored scenario does not pass".to_owned()));
        if !unexpected.is_empty() {
            println!("--- log of the proxy ---\n{}", gateway.proxy.log());
        }
        assert_as_expected(&expected, &unexpected);
    });
}

#[test]
fn a_server_mounted_over_http_passes_the_same_scenarios_as_without_the_gateway() {
    if let Some(tools) = Tools::install("conformance of a server mounted over HTTP") {
        let server = Server::everything("both", &tools);
        let mount = over_http(&server.url("/mcp"));
        compare_server(Leg::Http, &tools, &REVISIONS, &mount);
    }
}

#[test]
fn a_server_mounted_over_stdio_passes_the_same_scenarios_as_without_the_gateway() {
    if let Some(tools) = Tools::install("conformance of a server mounted over stdio") {
        let mount = alone(everything_on_stdio(&tools));
        compare_server(Leg::Stdio, &tools, &REVISIONS, &mount);
    }
}

#[test]
fn a_legacy_server_passes_the_scenarios_of_a_modern_one() {
    if let Some(tools) = Tools::install("conformance of a legacy server for modern clients") {
        let server = Server::everything("legacy", &tools);
        let mount = over_http(&server.url("/mcp"));
        compare_server(Leg::Legacy, &tools, &["2026-07-28"], &mount);
    }
}

#[test]
fn a_modern_server_passes_the_scenarios_of_a_legacy_one() {
    if let Some(tools) = Tools::install("conformance of a modern server for legacy clients") {
        let server = Server::everything("modern", &tools);
        let mount = over_http(&server.url("/mcp"));
        compare_server(Leg::Modern, &tools, &["2025-11-25"], &mount);
    }
}

/// Time limit for the client in a scenario, longer than that of the suite, which is 20 s.
const CLIENT_ENDS: Duration = Duration::from_secs(40);

/// Shows that the comparison finds differences: if nothing listens at the gateway's address, each
/// scenario in which a check succeeds with the bare server differs.
#[test]
fn a_gateway_that_does_not_listen_differs_in_every_scenario() {
    let Some(tools) = Tools::install("conformance of an address without a gateway") else {
        return;
    };
    each_row(REVISIONS, |revision| {
        let url = format!("http://{}/mcp", closed_address());
        let nothing = Run::server(&tools, revision, &url).end("without a gateway");
        let bare = bare(&tools, revision);
        let found = differences(&bare, &nothing.checks);
        let succeeding = bare.iter().filter(|(_, all)| succeeds(all));
        assert_eq!(
            scenarios(found.iter().map(|(check, _)| check)),
            scenarios(succeeding.map(|(check, _)| check)),
        );
    });
}

/// The names of the checks' scenarios. The scenarios of tasks are left out: they are not scored,
/// and some of their checks succeed without any server.
fn scenarios<'a>(checks: impl Iterator<Item = &'a Check>) -> BTreeSet<&'a str> {
    let names = checks.map(|(scenario, _)| scenario.as_str());
    names.filter(|name| !name.starts_with("tasks-")).collect()
}

/// The client with which the Python SDK is tested. It implements each scenario by name.
fn client(tools: &Tools) -> String {
    tools.text("source/.github/actions/conformance/client.py")
}

fn without_the_gateway(tools: &Tools, revision: &str, scenario: &str) -> Checks {
    let command = format!("'{}' '{}'", tools.python(2), client(tools));
    let run = Run::client(tools, revision, scenario, |suite| {
        suite.args(["--command", &command]);
    });
    let bare = run.end("bare").checks;
    assert!(
        bare.values().any(|all| succeeds(all)),
        "{scenario}: {bare:#?}"
    );
    bare
}

/// The suite gives its server's address only to the client that it starts. So the suite starts
/// `through.sh`, which passes the address to the test, waits until the gateway that mounts the
/// suite's server has started, and then runs the client.
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
    eventually("the suite starts the client", STARTUP, || {
        at("server").exists()
    });
    let server = fs::read_to_string(at("server")).unwrap();
    let gateway = Gateway::start(&origin, &over_http(&server));
    appear(&at("gateway"), &gateway.url("/mcp"));
    eventually("the client ends", CLIENT_ENDS, || at("done").exists());
    // The suite's server ends only when no client is connected, but the gateway stays connected to
    // it. So the gateway is stopped first.
    drop(gateway);
    run.end("through").checks
}

/// Creates a file atomically with its content.
fn appear(path: &Path, text: &str) {
    let part = path.with_extension("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, path).unwrap();
}

/// Compares the suite's results for a client without the gateway with those through the gateway,
/// which mounts the suite's server.
fn compare_client(revision: &str) {
    let test = format!("conformance of a client, {revision}");
    let Some(tools) = Tools::install(&test) else {
        return;
    };
    let scored = scored(&tools, revision, "client");
    let mut expected = Expected::of(Leg::Client, revision, scored);
    let mut scenarios = client_scenarios(&tools, revision);
    scenarios.retain(|scenario| !expected.leaves_out(scenario));
    assert!(!scenarios.is_empty());
    let mut unexpected = Vec::new();
    for scenario in &scenarios {
        let bare = without_the_gateway(&tools, revision, scenario);
        let through = with_the_gateway(&tools, revision, scenario);
        unexpected.extend(expected.unexpected(&bare, &through));
    }
    assert_as_expected(&expected, &unexpected);
}

#[test]
fn a_client_of_2025_11_25_passes_the_same_scenarios_as_without_the_gateway() {
    compare_client("2025-11-25");
}

#[test]
fn a_client_of_2026_07_28_passes_the_same_scenarios_as_without_the_gateway() {
    compare_client("2026-07-28");
}
