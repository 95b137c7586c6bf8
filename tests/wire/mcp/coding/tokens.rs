//! Tokens that one side has and the other one has not.

use serde_json::{Value, json};
use testkit::each_row;

use super::super::hostile::client::{Client, Era, Gateway, assert_code, text};
use super::fake::{Answer, FakeSidecar, Seen};

/// What a sidecar does that has a token.
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
fn a_token_that_is_missing_or_wrong_on_either_side_is_named() {
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
            // Whoever operates it reads the same.
            assert_eq!(gateway.state("coding"), "dead");
            assert!(gateway.proxy.log().contains(why));
        },
    );
}

#[test]
fn a_token_is_neither_logged_nor_sent_where_none_is_needed() {
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
