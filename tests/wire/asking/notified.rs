//! Notifications of new questions: what the operator's URL gets, and what a container gets of it.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;

use super::{Asking, pending};
use crate::support::{Origin, SANDBOX, SOON, eventually};

/// The requests that the operator's URL has got: target, signature and body.
type Got = Arc<Mutex<Vec<(String, String, Value)>>>;

fn hooks() -> (Origin, Got) {
    let got = Got::default();
    let kept = Arc::clone(&got);
    let origin = Origin::scripted(move |seen, body| {
        let signature = seen.header("x-unified-proxy-signature").unwrap_or_default();
        let body = serde_json::from_str(body).unwrap_or_default();
        let request = (seen.target.clone(), signature.to_owned(), body);
        kept.lock().push(request);
        Some((200, json!({})))
    });
    (origin, got)
}

#[test]
fn a_new_question_is_announced_once_to_the_operators_url_which_no_container_reaches() {
    let (hooks, got) = hooks();
    let port = hooks.http.port();
    let host = "hooks.example.org";
    let asking = Asking::start(|setup| {
        setup.proxy["upstream"]["hosts"][host] = hooks.http.to_string().into();
        let url = format!("http://{host}:{port}/hook");
        setup.proxy["approvals"] = json!({ "notify": [{ "url": url, "secret": "key" }] });
    });
    let first = asking.pending("one.example.org");
    assert_eq!(asking.pending("one.example.org"), first);
    eventually("the question is announced", SOON, || got.lock().len() == 1);
    // The container asks for the same host and port, by every form of request.
    let url = format!("http://{host}:{port}/hook");
    let second = pending(&asking.proxy.get(&url, &[]));
    let (reply, _) = asking.proxy.connect(&format!("{host}:{port}"));
    assert_eq!(pending(&reply), second);
    let (reply, _) = asking.proxy.connect(&format!("127.0.0.1:{port}"));
    reply.assert_connect_denied(403, "address_not_allowed", "");
    eventually("its question is announced", SOON, || got.lock().len() == 2);

    let announced = got.lock().clone();
    let ids: Vec<&Value> = announced.iter().map(|(_, _, body)| &body["id"]).collect();
    assert_eq!(ids, [&json!(first), &json!(second)], "each once");
    each_row(announced, |(target, signature, body)| {
        assert_eq!(target, "/hook");
        assert!(signature.starts_with("sha256="), "{signature}");
        assert_eq!(
            (&body["kind"], &body["container"]),
            (&json!("host"), &json!(SANDBOX))
        );
        assert!(
            body["text"]
                .as_str()
                .unwrap()
                .contains("unified-proxy approvals show")
        );
        assert!(body["arguments"].is_null());
    });
    let line = json!({ "rule": "system: approvals", "host": host, "status": 200 });
    assert!(asking.proxy.audited(line)["container_id"].is_null());
}
