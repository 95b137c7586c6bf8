//! Paths, verbs, statuses and bodies.

use std::fs;

use serde_json::{Value, json};
use testkit::each_row;

use crate::support::Sidecar;

#[test]
fn invalid_requests_are_refused_with_a_status_and_a_reason() {
    let sidecar = Sidecar::start();
    // Verb, path, body, status, part of the error.
    let rows = [
        ("POST", "/nothing", "{}", 404, "no such path"),
        ("GET", "/", "", 404, "no such path"),
        ("POST", "/bash/", "{}", 404, "no such path"),
        ("POST", "/BASH", "{}", 404, "no such path"),
        ("GET", "/bash", "", 405, "/bash accepts only POST"),
        ("PUT", "/write", "{}", 405, "/write accepts only POST"),
        ("OPTIONS", "/read", "", 405, "/read accepts only POST"),
        ("POST", "/health", "{}", 405, "/health accepts only GET"),
        ("POST", "/bash", "", 400, "not valid"),
        ("POST", "/bash", "{", 400, "not valid"),
        ("POST", "/bash", "[]", 400, "not a JSON object"),
        ("POST", "/bash", r#"["true"]"#, 400, "not a JSON object"),
        ("POST", "/ls", "[]", 400, "not a JSON object"),
        ("POST", "/ls", " \n[null, null]", 400, "not a JSON object"),
        ("POST", "/ls", "null", 400, "not a JSON object"),
        ("POST", "/ls", "\n{ ]", 400, "not valid: "),
        ("POST", "/bash", "{}", 400, "missing field `command`"),
        ("POST", "/bash", r#"{"command":1}"#, 400, "invalid type"),
        (
            "POST",
            "/bash",
            r#"{"command":"a","command":"b"}"#,
            400,
            "duplicate field",
        ),
        (
            "POST",
            "/bash",
            r#"{"command":"a","sessionId":"x"}"#,
            400,
            "unknown field `sessionId`",
        ),
        (
            "POST",
            "/bash",
            r#"{"command":"a","timeoutSeconds":0}"#,
            400,
            "timeoutSeconds is 0",
        ),
        (
            "POST",
            "/bash",
            r#"{"command":"a","timeoutSeconds":-1}"#,
            400,
            "timeoutSeconds is -1",
        ),
        (
            "POST",
            "/bash",
            r#"{"command":"a","timeoutSeconds":86401}"#,
            400,
            "up to 86400",
        ),
        (
            "POST",
            "/bash",
            r#"{"command":"a","timeoutSeconds":1e300}"#,
            400,
            "up to 86400",
        ),
        ("POST", "/bash", r#"{"command":"a\u0000b"}"#, 400, "NUL"),
        ("POST", "/read", "{}", 400, "missing field `path`"),
        ("POST", "/read", r#"{"path":"nowhere"}"#, 400, "nowhere"),
        (
            "POST",
            "/read",
            r#"{"path":"a","sessionId":"x"}"#,
            400,
            "unknown field `sessionId`",
        ),
        (
            "POST",
            "/write",
            r#"{"path":"a"}"#,
            400,
            "missing field `content`",
        ),
        (
            "POST",
            "/edit",
            r#"{"path":"a","oldText":"b"}"#,
            400,
            "missing field `newText`",
        ),
        ("POST", "/find", "{}", 400, "missing field `pattern`"),
        ("POST", "/grep", "{}", 400, "missing field `pattern`"),
        ("POST", "/ls", "nonsense", 400, "not valid"),
    ];
    each_row(rows, |(verb, path, body, status, part)| {
        let mut client = sidecar.connect();
        let length = body.len();
        client.send(&format!(
            "{verb} {path} HTTP/1.1\r\nhost: s\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        let response = client.response();
        assert_eq!(response.status, status, "{response:?}");
        let body = response.json();
        assert_eq!(body["ok"], false);
        assert_eq!(body.as_object().unwrap().len(), 2, "{body}");
        assert!(body["error"].as_str().unwrap().contains(part), "{body}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        if status == 405 {
            let verb = if path == "/health" { "GET" } else { "POST" };
            assert_eq!(response.header("allow"), Some(verb));
        }
    });
}

#[test]
fn health_returns_the_version() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    client.send("GET /health HTTP/1.1\r\nhost: s\r\n\r\n");
    let response = client.response();
    assert_eq!(response.status, 200);
    let expected = json!({ "ok": true, "version": env!("CARGO_PKG_VERSION") });
    assert_eq!(response.json(), expected);
}

#[test]
fn every_file_operation_works_over_both_transports() {
    let sidecar = Sidecar::with(&[("TCP_HOST", "127.0.0.1"), ("TCP_PORT", "0")]);
    for mut client in [sidecar.connect(), sidecar.connect_tcp()] {
        // One connection carries all requests.
        let mut result = |path: &str, body: Value| {
            let response = client.post(path, &body);
            let body = response.json();
            assert_eq!(response.status, 200, "{path}: {body}");
            assert_eq!(body["ok"], true);
            assert_eq!(body.as_object().unwrap().len(), 2, "{body}");
            body["result"].clone()
        };
        let written = result(
            "/write",
            json!({ "path": "sub/a.txt", "content": "one\ntwo\n" }),
        );
        assert_eq!(
            written,
            json!({ "ok": true, "path": "sub/a.txt", "bytes": 8 })
        );
        let edit = json!({ "path": "sub/a.txt", "oldText": "two", "newText": "three" });
        let edited = result("/edit", edit);
        assert!(
            edited["diff"].as_str().unwrap().contains("+three"),
            "{edited}"
        );
        let read = result("/read", json!({ "path": "sub/a.txt" }));
        assert_eq!(read["type"], "text");
        assert_eq!(read["totalLines"], 2);
        assert!(
            read["content"].as_str().unwrap().contains("three"),
            "{read}"
        );
        let listed = result("/ls", json!({}));
        assert_eq!(listed["output"].as_str().unwrap().trim_end(), "sub/");
        let found = result("/find", json!({ "pattern": "*.txt" }));
        assert_eq!(found["files"], json!(["sub/a.txt"]));
        let matched = result("/grep", json!({ "pattern": "thr.e" }));
        assert!(
            matched["content"].as_str().unwrap().contains("sub/a.txt"),
            "{matched}"
        );
        fs::remove_dir_all(sidecar.root().join("sub")).unwrap();
    }
}

#[test]
fn a_query_and_pipelined_requests_are_served() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    let one = "GET /health?now HTTP/1.1\r\nhost: s\r\n\r\n";
    client.send(&one.repeat(3));
    for _ in 0..3 {
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn requests_of_web_pages_are_refused() {
    let sidecar = Sidecar::start();
    for origin in ["https://example.com", "null"] {
        let mut client = sidecar.connect();
        let header = format!("origin: {origin}\r\ncontent-type: text/plain\r\n");
        client.request("/bash", &header, r#"{"command":"touch made"}"#);
        let response = client.response();
        assert_eq!(response.status, 403, "{response:?}");
    }
    assert!(!sidecar.root().join("made").exists());
}
