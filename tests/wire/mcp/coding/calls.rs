//! Calls of the tools of a real coding sidecar.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use testkit::each_row;

use super::super::hostile::client::{Client, ERAS, Era, Events, Gateway, text};
use crate::support::{SOON, Sidecar, Transport, eventually};

const TRANSPORTS: [Transport; 2] = [Transport::Unix, Transport::TcpWithToken];

pub fn gateway(sidecar: &Sidecar) -> Gateway {
    Gateway::start(&json!({ "mcpServers": { "coding": sidecar.mount() } }))
}

fn bash(client: &Client<'_>, command: &str) -> Value {
    client.call("coding_bash", json!({ "command": command }))
}

#[track_caller]
fn fine(answer: &Value) -> &str {
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    text(answer)
}

#[test]
fn every_operation_is_a_tool_over_both_transports_and_in_both_eras() {
    each_row(TRANSPORTS, |transport| {
        let sidecar = Sidecar::start(transport);
        let gateway = gateway(&sidecar);
        each_row(ERAS, |era| {
            let client = Client::open(&gateway, era).wait_for(&["coding_bash"]);
            let mut tools = client.tools();
            tools.sort();
            let expected = ["bash", "edit", "find", "grep", "ls", "read", "write"];
            assert_eq!(tools, expected.map(|name| format!("coding_{name}")));
            let call =
                |tool: &str, arguments: Value| client.call(&format!("coding_{tool}"), arguments);
            let content = "one\ntwo\nthree\n";
            let written = call("write", json!({ "path": "src/a.txt", "content": content }));
            assert_eq!(fine(&written), "Wrote 14 bytes to src/a.txt.");
            assert_eq!(written["result"]["structuredContent"]["bytes"], 14);
            let read = call("read", json!({ "path": "src/a.txt" }));
            assert_eq!(fine(&read).trim_end(), content.trim_end());
            let part = call(
                "read",
                json!({ "path": "src/a.txt", "offset": 2, "limit": 1 }),
            );
            assert!(fine(&part).starts_with("two\n"), "{part}");
            assert!(
                fine(&part).ends_with("[lines 2 to 2 of 3: read on with offset 3]"),
                "{part}"
            );
            let edit = json!({ "path": "src/a.txt", "oldText": "two", "newText": "2" });
            let edited = call("edit", edit.clone());
            assert!(fine(&edited).contains("\n-two\n+2\n"), "{edited}");
            let again = call("edit", edit);
            assert_eq!(again["result"]["isError"], true, "{again}");
            assert!(fine(&call("ls", json!({}))).contains("src/"));
            assert!(fine(&call("ls", Value::Null)).contains("src/"));
            assert!(fine(&call("ls", json!({ "path": "src" }))).contains("a.txt"));
            let found = call("find", json!({ "pattern": "**/*.txt" }));
            assert_eq!(fine(&found), "src/a.txt");
            assert_eq!(
                found["result"]["structuredContent"]["files"],
                json!(["src/a.txt"])
            );
            assert_eq!(
                fine(&call("find", json!({ "pattern": "*.nothing" }))),
                "No file was found."
            );
            let grep = call("grep", json!({ "pattern": "^th", "path": "src" }));
            assert!(fine(&grep).contains("three"), "{grep}");
            assert_eq!(
                fine(&call("grep", json!({ "pattern": "zzz" }))),
                "No line matches."
            );
            let ran = bash(&client, "cat src/a.txt; echo wrong >&2; exit 3");
            assert_eq!(ran["result"]["structuredContent"]["exitCode"], 3);
            let output = fine(&ran);
            assert!(
                output.contains("one\n2\nthree\n") && output.contains("wrong\n"),
                "{output}"
            );
            assert!(output.ends_with("\n[exit code 3]"), "{output}");
            let missing = call("read", json!({ "path": "none" }));
            assert_eq!(missing["result"]["isError"], true, "{missing}");
            let outside = call("read", json!({ "path": "../c.sock" }));
            assert_eq!(outside["result"]["isError"], true, "{outside}");
            let unknown = call("ls", json!({ "patth": "x" }));
            assert_ne!(unknown["result"]["isError"], false, "{unknown}");
        });
    });
}

#[test]
fn images_stay_images_and_truncated_texts_state_their_range() {
    let sidecar = Sidecar::start(Transport::Unix);
    let gateway = gateway(&sidecar);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["coding_bash"]);
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR rest";
    std::fs::write(sidecar.workspace().join("a.png"), png).unwrap();
    let read = |path: &str| client.call("coding_read", json!({ "path": path }));
    let image = read("a.png");
    let content = &image["result"]["content"][0];
    assert_eq!(
        (&content["type"], &content["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    assert_eq!(content["data"], BASE64_STANDARD.encode(png));
    let lines: String = (1..=5000).map(|number| format!("{number}\n")).collect();
    std::fs::write(sidecar.workspace().join("long"), &lines).unwrap();
    let long = read("long");
    assert!(
        text(&long).ends_with("[lines 1 to 2000 of 5000: read on with offset 2001]"),
        "{long}"
    );
    let ran = bash(&client, "cat long");
    let output = text(&ran);
    assert!(output.starts_with("3001\n"), "{}", &output[..50]);
    assert!(output.ends_with("5000\n\n[the last 2000 of 5000 lines]\n[exit code 0]"));
    let truncation = &ran["result"]["structuredContent"]["truncation"];
    assert_eq!(
        (&truncation["totalLines"], &truncation["truncatedBy"]),
        (&json!(5000), &json!("lines"))
    );
}

#[test]
fn a_very_long_output_takes_little_memory() {
    let sidecar = Sidecar::start(Transport::Unix);
    let gateway = gateway(&sidecar);
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["coding_bash"]);
    fine(&bash(&client, "true"));
    let before = gateway.proxy.memory("VmRSS");
    let ran = bash(
        &client,
        "yes 0123456789abcdef | head -c 60000000; echo; echo end",
    );
    assert!(fine(&ran).contains("\nend\n"), "{}", fine(&ran));
    let grown = gateway.proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 20 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn progress_arrives_before_the_command_ends() {
    each_row(TRANSPORTS, |transport| {
        let sidecar = Sidecar::start(transport);
        let gateway = gateway(&sidecar);
        each_row(ERAS, |era| {
            let client = Client::open(&gateway, era).wait_for(&["coding_bash"]);
            let go_on = sidecar.workspace().join("go-on");
            let command = "echo first; until [ -e go-on ]; do sleep 0.05; done; echo second";
            let params = json!({
                "name": "coding_bash", "arguments": { "command": command },
                "_meta": { "progressToken": "mine" },
            });
            let mut events = Events::new(client.begin(&json!(77), "tools/call", params));
            let mut told = Vec::new();
            let mut last = 0;
            let result = loop {
                let (_, message) = events.next().unwrap();
                if message["method"] != "notifications/progress" {
                    break message;
                }
                let params = &message["params"];
                assert_eq!(params["progressToken"], "mine");
                let progress = params["progress"].as_u64().unwrap();
                assert!(progress > last, "{params}");
                last = progress;
                told.push(params["message"].as_str().unwrap().to_owned());
                // The command waits for this file, so the first line arrives while it still runs.
                std::fs::write(&go_on, "").unwrap();
            };
            assert_eq!(told.concat(), "first\nsecond\n");
            assert!(told.len() > 1, "{told:?}");
            assert!(text(&result).starts_with("first\nsecond\n"), "{result}");
            std::fs::remove_file(&go_on).unwrap();
        });
    });
}

/// Calls a command that never ends; returns the connection of the call and the id of a process that
/// the command started with `setsid`.
fn never_ending(client: &Client<'_>, sidecar: &Sidecar, id: u32) -> (std::net::TcpStream, u32) {
    let file = sidecar.workspace().join("pid");
    let command = "setsid sleep 1000 & echo $! >pid.new; mv pid.new pid; wait";
    let params = json!({ "name": "coding_bash", "arguments": { "command": command } });
    let stream = client.begin(&json!(id), "tools/call", params);
    let mut pid = None;
    eventually("the command runs", SOON, || {
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        pid = written.trim().parse().ok();
        pid.is_some()
    });
    std::fs::remove_file(file).unwrap();
    (stream, pid.unwrap())
}

fn ends(pid: u32) {
    let process = format!("/proc/{pid}");
    eventually("the process ends", SOON, || !Path::new(&process).exists());
}

#[test]
fn a_cancelled_call_ends_every_process_of_its_command() {
    each_row(TRANSPORTS, |transport| {
        let sidecar = Sidecar::start(transport);
        let gateway = gateway(&sidecar);
        let client = Client::open(&gateway, Era::Legacy).wait_for(&["coding_bash"]);
        let (stream, pid) = never_ending(&client, &sidecar, 501);
        client.notify("notifications/cancelled", json!({ "requestId": 501 }));
        ends(pid);
        drop(stream);
        let client = Client::open(&gateway, Era::Modern);
        let (stream, pid) = never_ending(&client, &sidecar, 502);
        drop(stream);
        ends(pid);
        // The sidecar still serves calls.
        fine(&bash(&client, "true"));
    });
}

#[test]
fn a_command_ends_at_its_own_timeout_or_that_of_the_mount() {
    let sidecar = Sidecar::start(Transport::Unix);
    let mut mount = sidecar.mount();
    mount["timeout"] = "2s".into();
    let gateway = Gateway::start(&json!({ "mcpServers": { "coding": mount } }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
    let slow = json!({ "command": "echo begun; sleep 1000", "timeoutSeconds": 1 });
    let ended = client.call("coding_bash", slow);
    assert_eq!(ended["result"]["isError"], true, "{ended}");
    assert!(text(&ended).starts_with("begun\n"), "{ended}");
    assert!(text(&ended).contains("[timed out"), "{ended}");
    assert_eq!(ended["result"]["structuredContent"]["timedOut"], true);
    let (_stream, pid) = never_ending(&client, &sidecar, 503);
    ends(pid);
    let cut = bash(&client, "sleep 1000");
    assert_eq!(cut["error"]["data"]["code"], "tool_timeout", "{cut}");
}

#[test]
fn calls_recover_when_the_sidecar_is_killed_and_started_again() {
    each_row(TRANSPORTS, |transport| {
        let mut sidecar = Sidecar::start(transport);
        let mut mount = sidecar.mount();
        mount["coding_sidecar"]["waitForReadyMs"] = 1500.into();
        let gateway = Gateway::start(&json!({ "mcpServers": { "coding": mount } }));
        let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
        let (stream, pid) = never_ending(&client, &sidecar, 504);
        sidecar.kill();
        ends(pid);
        let reply = crate::support::read_reply(&mut { stream }).unwrap();
        assert!(
            reply.text().contains("before it answered"),
            "{}",
            reply.text()
        );
        // If the sidecar restarts at once, a call waits for it.
        sidecar.restart();
        fine(&bash(&client, "echo back"));
        // If the sidecar stays away, calls fail, and `GET /health` reports the mount as dead.
        sidecar.kill();
        let begun = Instant::now();
        let away = bash(&client, "echo lost");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let message = away["error"]["message"].as_str().unwrap();
        assert!(message.contains("the coding sidecar at "), "{message}");
        // If the first call was sent before the proxy noticed the end, only a later call fails to
        // connect.
        eventually("the mount is dead", SOON, || {
            let is_dead = gateway.state("coding") == "dead";
            if !is_dead {
                bash(&client, "true");
            }
            is_dead
        });
        sidecar.restart();
        eventually("calls recover", SOON, || {
            bash(&client, "true").get("result").is_some()
        });
        assert_eq!(gateway.state("coding"), "ready");
    });
}

#[test]
fn a_crash_of_the_proxy_ends_its_commands_and_leaves_the_sidecar_running() {
    let sidecar = Sidecar::start(Transport::Unix);
    let mut gateway = gateway(&sidecar);
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
    let (stream, pid) = never_ending(&client, &sidecar, 505);
    gateway.proxy.crash_and_restart();
    drop(stream);
    ends(pid);
    let client = Client::open(&gateway, Era::Modern);
    fine(&bash(&client, "true"));
}
