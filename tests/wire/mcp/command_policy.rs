//! A command that judges messages: the example of docs/mcp.md, changes while the proxy runs, and
//! what operators and agents learn of failures.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;

use super::hostile::client::{Client, DENIED, ERAS, Era, Gateway, assert_code, response, text};
use super::hostile::server::{Answer, McpServer, text_result, tool};
use crate::support::{Origin, SECOND, SOON, Setup, eventually, free_address, read_reply};

const FAILED: i64 = -32953;
/// Executes the policy in `POLICY_SRC`.
const SHIM: &str = "import os; exec(os.environ['POLICY_SRC'])";

/// The first block in this language below the heading of commands in docs/mcp.md.
fn documented(language: &str) -> &'static str {
    let page = include_str!("../../../docs/mcp.md");
    let (_, section) = page.split_once("### A command that decides").unwrap();
    let (_, block) = section.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0
}

/// A server with the tools of the tests; the result of `secrets` has a password.
fn server() -> McpServer {
    let tools = ["search", "pay", "erase", "secrets"].map(tool).to_vec();
    McpServer::scripted(tools, |seen| match seen.tool() {
        "search" if seen.message["params"]["arguments"]["q"] == "all" => {
            let mut result = text_result("the password is 1234");
            result["structuredContent"] = json!({ "text": "the password is 1234" });
            Some(Answer::Result(result))
        }
        _ => None,
    })
}

/// A gateway to `server` with this policy in `policy.py`, and `policies` of `mcp.yaml`, in which
/// `/etc/unified-proxy` stands for the directory of the policy.
fn gateway(server: &McpServer, policy: &str, policies: &str) -> Gateway {
    let mut setup = Setup::new(&Origin::start());
    let address = free_address();
    setup.proxy["listen"]["mcp"] = json!([address.to_string()]);
    setup.proxy["approvals"] = json!({ "wait": "15m", "wait_by_client": { "test": "15m" } });
    setup.proxy["shutdown_timeout"] = "1s".into();
    setup.containers.push((SECOND.to_string(), "second".into()));
    let directory = setup.dir().to_owned();
    fs::write(directory.join("policy.py"), policy).unwrap();
    let policies = policies.replace("/etc/unified-proxy", &directory.display().to_string());
    let servers = json!({ "kb": server.mount() });
    let text = format!("version: 1\nmcpServers: {servers}\n{policies}");
    fs::write(directory.join("config/mcp.yaml"), text).unwrap();
    let proxy = setup.start();
    Gateway { proxy, address }
}

/// `policies` with the shim, and these further keys of the evaluator.
fn evaluator(keys: &str) -> String {
    format!(
        "policies: {{ evaluator: {{ kind: command, command: [python3, -c, \"{SHIM}\"], source: /etc/unified-proxy/policy.py{keys} }} }}\n"
    )
}

fn client(gateway: &Gateway, era: Era) -> Client<'_> {
    let mut client = Client::open(gateway, era);
    client.takes_tasks = false;
    client.wait_for(&["kb_search"])
}

#[test]
fn the_policy_of_the_page_allows_denies_asks_and_redacts() {
    let server = server();
    let gateway = gateway(&server, documented("python"), documented("yaml"));
    each_row(ERAS, |era| {
        let client = client(&gateway, era);
        text(&client.call("kb_search", json!({ "q": "one" })));
        let erased = client.call("kb_erase", json!({}));
        assert_code(&erased, DENIED);
        assert_eq!(erased["error"]["data"]["reason"], "no rule allows it");
        let redacted = client.call("kb_search", json!({ "q": "all" }));
        assert_eq!(redacted["result"]["content"], json!([]), "{redacted}");
        assert!(!redacted.to_string().contains("password"), "{redacted}");
        let meta = json!({ "progressToken": "mine" });
        let call = json!({ "name": "kb_pay", "arguments": { "euros": era as u8 }, "_meta": meta });
        let mut paying = client.begin(&json!("paying"), "tools/call", call);
        let pending = || {
            let path = "/internal/approvals?state=pending";
            gateway.proxy.admin("GET", path, None).json()["approvals"].clone()
        };
        eventually("a person is asked", SOON, || pending()[0]["waiting"] == 1);
        let question = pending()[0].clone();
        assert_eq!(question["reason"], "it costs money", "{question}");
        let id = question["id"].as_str().unwrap();
        let path = format!("/internal/approvals/{id}/approve");
        let approved = gateway.proxy.admin("POST", &path, Some(json!({})));
        assert_eq!(approved.status, 200, "{}", approved.text());
        text(&response(&read_reply(&mut paying).unwrap()));
    });
    let labels = ["decision=\"redact\"", "bundle=\"command\""];
    let redacted = gateway
        .proxy
        .metric("proxy_mcp_policy_decisions_total", &labels);
    assert_eq!(redacted, 2.0);
}

#[test]
fn a_changed_source_is_in_force_after_a_reload_and_a_command_that_is_gone_is_refused() {
    let server = server();
    let allow = "print('{\"decision\": \"allow\"}')";
    let gateway = gateway(&server, allow, &evaluator(""));
    let client = client(&gateway, Era::Modern);
    let call = || client.call("kb_search", json!({}));
    text(&call());
    let deny = "print('{\"decision\": \"deny_continue\"}')";
    fs::write(gateway.proxy.path("policy.py"), deny).unwrap();
    eventually("the new policy is in force", SOON, || {
        call()["error"]["code"] == DENIED
    });
    fs::remove_file(gateway.proxy.path("policy.py")).unwrap();
    let reload = gateway.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reload.status, 422);
    let said = reload.text();
    for part in [
        "mcp.yaml:3:50: policies.evaluator",
        "policy.py cannot be read",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_code(&call(), DENIED);
}

#[test]
fn check_reports_a_command_that_cannot_run() {
    each_row(
        [
            (
                "command: [/no/such/program]",
                "the program \"/no/such/program\" is not found",
            ),
            (
                "command: [/etc/passwd]",
                "is not found, or is not executable",
            ),
            (
                "command: [cat], work_dir: /no/such/directory",
                "/no/such/directory does not exist",
            ),
            (
                "command: [cat], read: [/no/such/directory]",
                "/no/such/directory does not exist",
            ),
            ("command: [cat], read: [/proc]", "/proc cannot be shown"),
            (
                "command: [cat], env: { PATH: /no/such/directory }",
                "the program \"cat\" is not found",
            ),
            (
                "command: [cat], source: /no/such/file",
                "/no/such/file cannot be read",
            ),
            (
                "command: [cat], source: /dev/null",
                "/dev/null: is not a regular file",
            ),
            (
                "command: [cat], bogus: 1",
                "policies.evaluator.bogus: unknown key",
            ),
        ],
        |(keys, reason)| {
            let setup = Setup::new(&Origin::start());
            setup.write();
            let text = format!("policies: {{ evaluator: {{ kind: command, {keys} }} }}\n");
            fs::write(setup.dir().join("config/mcp.yaml"), text).unwrap();
            let (code, said) = setup.run("check");
            assert_eq!(code, 78, "{said}");
            for part in ["mcp.yaml:1:", "policies.evaluator", reason] {
                assert!(said.contains(part), "{part} is not in {said}");
            }
        },
    );
}

#[test]
fn a_failure_is_in_the_log_and_the_agent_learns_only_that_there_is_one() {
    let server = server();
    let policy = "import sys\nprint('for the operator', file=sys.stderr)\nraise SystemExit(7)";
    let gateway = gateway(&server, policy, &evaluator(""));
    let client = client(&gateway, Era::Modern);
    let failed = client.call("kb_search", json!({}));
    assert_code(&failed, FAILED);
    assert!(!failed.to_string().contains("operator"), "{failed}");
    let log = gateway.proxy.log();
    for part in ["it exited with code 7", "for the operator"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    assert_eq!(server.calls().len(), 0);
}

#[test]
fn a_shutdown_ends_a_running_evaluation_and_so_does_the_death_of_the_proxy() {
    each_row(
        [
            (Signal::TERM, "namespaces"),
            (Signal::TERM, "none"),
            (Signal::KILL, "namespaces"),
            (Signal::KILL, "none"),
        ],
        |(signal, confine)| ends_with_the_proxy(signal, confine),
    );
}

fn ends_with_the_proxy(signal: Signal, confine: &str) {
    let server = server();
    let policy = "import time\ntime.sleep(1000)";
    // The directory of the setup marks the processes of this test.
    let keys = format!(", timeout: 900s, confine: {confine}, args: [/etc/unified-proxy/marker]");
    let mut gateway = gateway(&server, policy, &evaluator(&keys));
    let marker = gateway.proxy.path("marker").display().to_string();
    let client = client(&gateway, Era::Modern);
    let call: Value = json!({ "name": "kb_search", "arguments": {} });
    let _calling = client.begin(&json!("a call"), "tools/call", call);
    let runs = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|one| fs::read(one.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).contains(&marker))
    };
    eventually("the command runs", SOON, runs);
    gateway.proxy.signal(signal);
    let ended = gateway.proxy.wait(Duration::from_secs(20));
    assert_eq!(ended.success(), signal == Signal::TERM);
    eventually("the command is killed", SOON, || !runs());
}
