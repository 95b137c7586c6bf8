//! Tokens that only the gateway or only the sidecar has, and tokens that differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use super::super::hostile::client::{Client, Era, Gateway, assert_code, text};
use super::fake::{Answer, FakeSidecar, Seen};
use crate::support::{SOON, eventually};

/// The script of a sidecar with the token `s3cret`: a wrong token gets a 401, and so does a missing
/// one if `requires` is true. `GET /health` needs no token.
fn guarded(requires: bool) -> impl Fn(&Seen) -> Option<Answer> + Send + Sync {
    move |seen| {
        let is_right = seen.token.as_deref() == Some("s3cret");
        let is_missing = seen.token.is_none() && !requires;
        let passes = is_right || is_missing || seen.line == "GET /health";
        (!passes).then(|| Answer::error(401, "unauthorized"))
    }
}

fn gateway(sidecar: &FakeSidecar, auth: Value) -> Gateway {
    let mut settings = sidecar.endpoint();
    settings["auth"] = auth;
    Gateway::start(&json!({ "mcpServers": { "coding": { "coding_sidecar": settings } } }))
}

#[test]
fn a_missing_or_wrong_token_on_either_side_is_an_error_with_the_reason() {
    let requires = "the coding sidecar requires a token, and mcp.yaml has none";
    let refuses = "the coding sidecar refuses the token";
    let serves = "serves requests without a token: start it with SIDECAR_REQUIRE_AUTH=true";
    each_row(
        [
            (true, json!({}), Some(requires)),
            (true, json!({ "token": "other" }), Some(refuses)),
            (false, json!({ "token": "other" }), Some(refuses)),
            (
                false,
                json!({ "token": "s3cret", "required": true }),
                Some(serves),
            ),
            (false, json!({ "token": "s3cret" }), None),
            (false, json!({}), None),
            (true, json!({ "token": "s3cret", "required": true }), None),
        ],
        |(sidecar_requires, auth, why)| {
            let sidecar = FakeSidecar::tcp(guarded(sidecar_requires));
            let gateway = gateway(&sidecar, auth);
            let client = Client::open(&gateway, Era::Modern);
            let answer = client.call("coding_read", json!({ "path": "a" }));
            let Some(why) = why else {
                assert_eq!(text(&answer), "hello\n");
                return;
            };
            assert_code(&answer, -32000);
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(why), "{message}");
            assert!(!answer.to_string().contains("s3cret"), "{answer}");
            assert_eq!(sidecar.of("read").len(), 0);
            // Operators find the state in the response to `GET /health`, and the reason in the log.
            assert_eq!(gateway.state("coding"), "dead");
            assert!(gateway.proxy.log().contains(why));
        },
    );
}

#[test]
fn a_token_is_neither_logged_nor_sent_with_a_health_check() {
    let sidecar = FakeSidecar::tcp(guarded(true));
    let gateway = gateway(&sidecar, json!({ "token": "s3cret" }));
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["coding_read"]);
    assert_eq!(
        text(&client.call("coding_read", json!({ "path": "a" }))),
        "hello\n"
    );
    let health = sidecar.seen().into_iter();
    let mut health = health.filter(|seen| seen.line == "GET /health");
    assert!(health.all(|seen| seen.token.is_none()));
    assert!(!gateway.proxy.log().contains("s3cret"));
}

#[test]
fn a_restarted_sidecar_is_checked_before_the_next_call() {
    each_row([true, false], |is_unix| {
        let directory = TempDir::new().unwrap();
        let requires = Arc::new(AtomicBool::new(true));
        let shared = Arc::clone(&requires);
        let script = move |seen: &Seen| {
            let is_last = seen.body["path"] == "last";
            let refused = guarded(shared.load(Ordering::Relaxed))(seen);
            refused.or_else(|| is_last.then(|| Answer::raw(answer_and_close)))
        };
        let sidecar = match is_unix {
            true => FakeSidecar::unix(&directory.path().join("c.sock"), script),
            false => FakeSidecar::tcp(script),
        };
        let gateway = gateway(&sidecar, json!({ "token": "s3cret", "required": true }));
        let client = Client::open(&gateway, Era::Modern).wait_for(&["coding_read"]);
        let read = |path: &str| client.call("coding_read", json!({ "path": path }));
        let looks = || {
            let seen = sidecar.seen().into_iter();
            seen.filter(|seen| seen.line == "GET /health").count()
        };
        text(&read("first"));
        let before = looks();
        text(&read("second"));
        assert_eq!(
            looks(),
            before,
            "the call on the open connection caused a check"
        );
        assert_eq!(text(&read("last")), "bye\n");
        eventually("the connections are closed", SOON, || sidecar.open() == 0);
        text(&read("third"));
        assert_eq!(looks(), before + 1);
        text(&read("last"));
        eventually("the connections are closed", SOON, || sidecar.open() == 0);
        requires.store(false, Ordering::Relaxed);
        let answer = read("fourth");
        assert_code(&answer, -32000);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("serves requests without a token"),
            "{message}"
        );
        let served = sidecar.of("read").into_iter();
        assert_eq!(
            served.filter(|seen| seen.body["path"] == "fourth").count(),
            0
        );
    });
}

/// Answers and closes the connection without `Connection: close`, as a sidecar does that exits.
fn answer_and_close(stream: &mut dyn super::fake::Stream) -> std::io::Result<()> {
    let result = json!({ "type": "text", "content": "bye\n", "totalLines": 1, "hasMore": false });
    let body = json!({ "ok": true, "result": result }).to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
