//! A malicious sidecar.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::super::hostile::client::{Client, Era, Gateway, assert_code, text};
use super::super::hostile::server::{McpServer, tool};
use super::fake::{Answer, FakeSidecar, Seen, Stream};

const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n";
/// Limit on the growth of the proxy's resident memory, in KiB.
const MOST_GROWTH: u64 = 40 * 1024;

/// Writes a piece repeatedly until the connection is closed.
fn endless(stream: &mut dyn Stream, piece: &[u8]) -> io::Result<()> {
    let block = piece.repeat(64 * 1024 / piece.len());
    loop {
        stream.write_all(&block)?;
    }
}

fn head(fields: &'static str, rest: &'static [u8]) -> Answer {
    Answer::raw(move |stream| {
        write!(stream, "{OK}{fields}\r\n")?;
        stream.write_all(rest)
    })
}

/// The malicious answer that the command names; `None` for other commands.
fn misbehave(seen: &Seen) -> Option<Answer> {
    Some(match seen.body["command"].as_str()? {
        "endless line" => Answer::stream(|stream| endless(stream, b"x")),
        "endless delta" => Answer::stream(|stream| {
            stream.write_all(b"{\"type\":\"delta\",\"stream\":\"stdout\",\"data\":\"")?;
            endless(stream, b"x")
        }),
        "endless deltas" => Answer::stream(|stream| {
            endless(
                stream,
                b"{\"type\":\"delta\",\"stream\":\"stdout\",\"data\":\"12345678\\n\"}\n",
            )
        }),
        "endless empty lines" => Answer::stream(|stream| endless(stream, b"\n")),
        "endless head" => Answer::raw(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            endless(stream, b"x-filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")
        }),
        "endless json" => Answer::raw(|stream| {
            write!(
                stream,
                "{OK}content-type: application/json\r\n\r\n{{\"ok\":true,\"result\":\""
            )?;
            endless(stream, b"x")
        }),
        "never answers" => Answer::raw(|stream| stream.read_exact(&mut [0])),
        "gzip" => head(
            "content-type: application/json\r\ncontent-encoding: gzip\r\n",
            b"\x1f\x8b\x08\0",
        ),
        "html" => head("content-type: text/html\r\n", b"<html>"),
        "no type" => head("", b"{\"ok\":true,\"result\":{}}"),
        "no http" => Answer::raw(|stream| stream.write_all(b"hello\r\n\r\n")),
        "no json" => head("content-type: application/json\r\n", b"{\"ok\":"),
        "ok twice" => head(
            "content-type: application/json\r\n",
            b"{\"ok\":false,\"ok\":true,\"error\":\"x\"}",
        ),
        "no result" => Answer::Json(200, json!({ "ok": true })),
        "wrong result" => Answer::result(json!({ "content": 1 })),
        "no such line" => Answer::Lines(vec![json!({ "type": "surprise" })]),
        "not utf-8" => head(
            "content-type: application/x-ndjson\r\n",
            b"{\"type\":\"delta\",\"data\":\"\xff\"}\n",
        ),
        "stops" => Answer::stream(|stream| {
            stream.write_all(b"{\"type\":\"delta\",\"stream\":\"stdout\",\"data\":\"a\"}\n")
        }),
        _ => return None,
    })
}

#[test]
fn a_malicious_sidecar_is_cut_off_and_other_servers_work() {
    each_row([true, false], |is_unix| {
        let directory = TempDir::new().unwrap();
        let sidecar = match is_unix {
            true => FakeSidecar::unix(&directory.path().join("c.sock"), misbehave),
            false => FakeSidecar::tcp(misbehave),
        };
        let kb = McpServer::start(vec![tool("look")]);
        let gateway = Gateway::start(&json!({ "mcpServers": {
            "kb": kb.mount(),
            "coding": { "coding_sidecar": sidecar.endpoint(), "timeout": "3s" },
        } }));
        let client = Client::open(&gateway, Era::Modern).wait_for(&["kb_look", "coding_bash"]);
        text(&client.call("coding_bash", json!({ "command": "fine" })));
        let before = gateway.proxy.memory("VmRSS");
        for (command, why) in [
            ("endless line", "a line of more than"),
            ("endless delta", "a line of more than"),
            ("endless deltas", "did not answer in time"),
            ("endless empty lines", "did not answer in time"),
            ("endless head", "cut off before it answered"),
            ("endless json", "more than 8388608 bytes"),
            ("never answers", "did not answer in time"),
            ("gzip", ""),
            ("html", "in a form that no coding sidecar has"),
            ("no type", "in a form that no coding sidecar has"),
            ("no http", "cut off before it answered"),
            ("no json", "in a form that no coding sidecar has"),
            ("ok twice", "in a form that no coding sidecar has"),
            ("no result", "in a form that no coding sidecar has"),
            ("wrong result", "an invalid result of the operation"),
            ("no such line", "not part of a command's stream"),
            ("not utf-8", "not part of a command's stream"),
            ("stops", "cut off before it answered"),
        ] {
            let answer = client.call("coding_bash", json!({ "command": command }));
            assert_code(&answer, -32000);
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(why), "{command}: {message}");
            text(&client.call("kb_look", json!({})));
            text(&client.call("coding_bash", json!({ "command": "fine" })));
        }
        let grown = gateway.proxy.memory("VmRSS").saturating_sub(before);
        assert!(grown < MOST_GROWTH, "memory grew by {grown} KiB");
    });
}

#[test]
fn the_sidecars_errors_become_results_and_its_invalid_results_become_errors() {
    let sidecar = FakeSidecar::tcp(|seen| match seen.body["path"].as_str()? {
        "long" => Some(Answer::error(400, &"ä".repeat(100_000))),
        "busy" => Some(Answer::error(503, "too many operations are under way")),
        "image" => Some(Answer::result(json!({
            "type": "image", "data": "AAAA", "mimeType": "text/html",
        }))),
        _ => None,
    });
    let gateway = Gateway::start(&json!({ "mcpServers": {
        "coding": { "coding_sidecar": sidecar.endpoint() },
    } }));
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["coding_read"]);
    let read = |path: &str| client.call("coding_read", json!({ "path": path }));
    let long = read("long");
    assert_eq!(long["result"]["isError"], true);
    assert_eq!(text(&long).chars().count(), 4096);
    let busy = read("busy");
    assert_eq!(
        (busy["result"]["isError"].clone(), text(&busy)),
        (Value::Bool(true), "too many operations are under way")
    );
    assert_code(&read("image"), -32000);
}

#[test]
fn a_hundred_unanswered_calls_do_not_affect_the_sidecars_other_calls() {
    let sidecar = FakeSidecar::tcp(|seen| {
        let hangs = seen.body["command"] == "hang";
        hangs.then(|| Answer::raw(|stream| stream.read_exact(&mut [0])))
    });
    let gateway = Gateway::start(&json!({ "mcpServers": {
        "coding": { "coding_sidecar": sidecar.endpoint(), "timeout": "20s" },
    } }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_bash"]);
    let hang = json!({ "name": "coding_bash", "arguments": { "command": "hang" } });
    let hanging: Vec<_> = (0..100)
        .map(|number| client.begin(&json!(number), "tools/call", hang.clone()))
        .collect();
    crate::support::eventually("all calls arrive", Duration::from_secs(20), || {
        sidecar.of("bash").len() == hanging.len()
    });
    text(&client.call("coding_bash", json!({ "command": "fine" })));
}
