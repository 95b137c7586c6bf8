//! A sidecar that is missing, starts late, is replaced or breaks a connection.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::super::hostile::client::{Client, ERAS, Era, Gateway, assert_code, text};
use super::super::hostile::server::{McpServer, tool};
use super::fake::{Answer, FakeSidecar};
use crate::support::{SOON, eventually};

fn mount(socket: &std::path::Path, wait: u32) -> Value {
    json!({ "coding_sidecar": { "socketPath": socket, "waitForReadyMs": wait } })
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_default()
}

#[test]
fn calls_to_a_missing_sidecar_fail_with_its_address_and_other_mounts_work() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("c.sock");
    let kb = McpServer::start(vec![tool("look")]);
    let gateway = Gateway::start(&json!({ "mcpServers": {
        "kb": kb.mount(), "coding": mount(&socket, 200),
    } }));
    each_row(ERAS, |era| {
        let client = Client::open(&gateway, era).wait_for(&["kb_look"]);
        text(&client.call("kb_look", json!({})));
        let answer = client.call("coding_bash", json!({ "command": "true" }));
        assert_code(&answer, -32000);
        assert_eq!(answer["error"]["data"]["status"], 503, "{answer}");
        let why = format!(
            "the coding sidecar at {} is not ready: the socket does not exist",
            socket.display()
        );
        assert!(message(&answer).contains(&why), "{answer}");
    });
    assert_eq!(gateway.state("coding"), "dead");
    assert_eq!(gateway.state("kb"), "ready");
    assert!(gateway.proxy.log().contains("the socket does not exist"));
    let client = Client::open(&gateway, Era::Modern);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    eventually("the new reason is reported", SOON, || {
        message(&client.call("coding_bash", json!({}))).contains("nothing listens on the socket")
    });
}

#[test]
fn a_call_waits_for_a_starting_sidecar() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("c.sock");
    let gateway = Gateway::start(&json!({ "mcpServers": { "coding": mount(&socket, 20_000) } }));
    let client = Client::open(&gateway, Era::Modern);
    let begun = Instant::now();
    let starting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        FakeSidecar::unix(&socket, |_| None)
    });
    let answer = client.call("coding_read", json!({ "path": "a" }));
    assert_eq!(text(&answer), "hello\n");
    assert!(begun.elapsed() > Duration::from_millis(900));
    drop(starting.join().unwrap());
}

#[test]
fn a_replaced_sidecar_is_checked_before_the_next_call() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("c.sock");
    let first = FakeSidecar::unix(&socket, |_| None);
    let gateway = Gateway::start(&json!({ "mcpServers": { "coding": mount(&socket, 300) } }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_read"]);
    text(&client.call("coding_read", json!({ "path": "a" })));
    assert_eq!(first.of("read").len(), 1);
    // The idle connection to the old sidecar is still open, and the next call uses it.
    std::fs::remove_file(&socket).unwrap();
    text(&client.call("coding_read", json!({ "path": "b" })));
    assert_eq!(first.of("read").len(), 2);
    let read_c = || client.call("coding_read", json!({ "path": "c" }));
    assert_eq!(first.open(), 1);
    eventually(
        "the idle connection is closed",
        Duration::from_secs(20),
        || first.open() == 0,
    );
    let answer = read_c();
    assert_code(&answer, -32000);
    assert!(message(&answer).contains("is not ready"), "{answer}");
    assert_eq!(gateway.state("coding"), "dead");
    let alive = gateway.proxy.health().json()["checks"]["mcp_servers_alive"].clone();
    assert_eq!(alive, false);
    assert!(gateway.proxy.log().contains("is not ready"));
    assert!(
        client.tools().contains(&"coding_read".to_owned()),
        "the gateway no longer lists the last known tools"
    );
    let second = FakeSidecar::unix(&socket, |_| None);
    eventually("calls reach the new sidecar", SOON, || {
        read_c().get("result").is_some()
    });
    let lines: Vec<_> = second.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines[..2], ["GET /health", "POST /read"]);
    assert_eq!(second.seen()[1].body, json!({}));
    assert_eq!(first.of("read").len(), 2);
    assert_eq!(gateway.state("coding"), "ready");
}

#[test]
fn a_request_that_was_sent_is_never_sent_again() {
    each_row([true, false], |is_unix| {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("c.sock");
        let script = |seen: &super::fake::Seen| {
            let breaks = seen.body["command"] == "break";
            breaks.then(|| Answer::raw(|_| Ok(())))
        };
        let sidecar = match is_unix {
            true => FakeSidecar::unix(&socket, script),
            false => FakeSidecar::tcp(script),
        };
        let gateway = Gateway::start(&json!({ "mcpServers": {
            "coding": { "coding_sidecar": sidecar.endpoint() },
        } }));
        let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
        for count in 1..=3 {
            // The command `break` is sent on the connection that the command `fine` has used.
            text(&client.call("coding_bash", json!({ "command": "fine" })));
            let answer = client.call("coding_bash", json!({ "command": "break" }));
            assert_code(&answer, -32000);
            assert!(
                message(&answer).contains("may have been carried out"),
                "{answer}"
            );
            let broken = sidecar.of("bash").into_iter();
            let broken = broken.filter(|seen| seen.body["command"] == "break");
            assert_eq!(broken.count(), count);
        }
    });
}
