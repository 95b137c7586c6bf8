use bytes::Bytes;
use http::Method;
use serde_json::json;

use super::super::tests::settings;
use super::super::{Git, GitSettings};
use super::*;
use crate::contract::{Addon, BodyFilter, BodyOut, Kind};
use crate::fixtures::{container, flow_of, headers, request, verdict};

fn pass(filters: Vec<Box<dyn BodyFilter>>, body: &Value) -> Result<Value, Denial> {
    let text = body.to_string();
    let mut out = BodyOut::default();
    let [mut filter] = <[_; 1]>::try_from(filters).ok().unwrap();
    for piece in text.as_bytes().chunks(7) {
        filter.chunk(Bytes::copy_from_slice(piece), &mut out)?;
    }
    filter.end(&mut out, None)?;
    let passed: Vec<u8> = out.drain().flatten().collect();
    Ok(serde_json::from_slice(&passed).unwrap())
}

/// A batch call by `container`; answers the flow and what would be sent.
fn batch(
    git: &Git,
    container: &Arc<Container>,
    repo: &str,
    body: &Value,
) -> (Flow, Result<Value, Denial>) {
    let mut flow = flow_of(container, Kind::Http, "github.com");
    let mut call = request(&format!("/{repo}/info/lfs/objects/batch"), &[]);
    call.method = Method::POST;
    let sent =
        verdict(git.request(&mut flow, &mut call)).and_then(|()| pass(call.take_filters(), body));
    (flow, sent)
}

fn answered(git: &Git, flow: &mut Flow, body: &Value) -> Value {
    let mut response = Response::new(StatusCode::OK, HeaderMap::new());
    verdict(git.response(flow, &mut response)).unwrap();
    pass(response.take_filters(), body).unwrap()
}

fn download() -> Value {
    json!({ "operation": "download", "objects": [{ "oid": "ab", "size": 5000 }] })
}

#[test]
fn uploads_are_held_to_the_limit_and_downloads_are_not() {
    let git = Git::new(settings());
    let upload =
        |size: Value| json!({ "operation": "upload", "objects": [{ "oid": "ab", "size": size }] });
    for (body, denied) in [
        (download(), None),
        (upload(1000.into()), None),
        (upload(1001.into()), Some(Code::PushTooLarge)),
        (upload("1".into()), Some(Code::MalformedRequest)),
        (
            json!({ "operation": "other" }),
            Some(Code::MalformedRequest),
        ),
        (json!([]), Some(Code::MalformedRequest)),
        (
            json!({ "operation": "download", "x": "y".repeat(20_000) }),
            Some(Code::BodyTooLargeToInspect),
        ),
    ] {
        let sent = batch(&git, &container("web"), "acme/web", &body).1;
        match denied {
            None => assert_eq!(sent.unwrap(), body),
            Some(code) => assert_eq!(sent.unwrap_err().code(), code, "{body}"),
        }
    }
}

#[test]
fn of_public_repositories_files_are_downloaded_and_none_is_uploaded() {
    let git = Git::new(GitSettings {
        public_reads: true,
        ..settings()
    });
    let container = container("web");
    assert!(batch(&git, &container, "acme/other", &download()).1.is_ok());
    let upload = json!({ "operation": "upload", "objects": [] });
    let denial = batch(&git, &container, "acme/other", &upload)
        .1
        .unwrap_err();
    assert_eq!(denial.code(), Code::RepoNotAuthorized);
}

#[test]
fn ways_out_of_the_allowlist_are_removed_from_the_answer() {
    let git = Git::new(settings());
    let (mut flow, _) = batch(&git, &container("web"), "acme/web", &download());
    let to = |href: &str| json!({ "oid": "ab", "actions": { "download": { "href": href } } });
    let hrefs = [
        "https://files.example.com/ab?X-Signature=1",
        "https://evil.example.com/ab",
        "https://EVIL.example.com.:443/ab",
        "ftp://files.example.com/ab",
        "//files.example.com/ab",
        "https://files.example.com\\@evil.example.com/",
    ];
    let answer = json!({ "objects": hrefs.map(to) });
    let shown = answered(&git, &mut flow, &answer);
    let objects = shown["objects"].as_array().unwrap();
    assert_eq!(objects[0], to(hrefs[0]));
    assert_eq!(
        objects[1]["error"],
        json!({ "code": 403, "message": "Domain not allowed: evil.example.com" })
    );
    for object in &objects[1..] {
        assert!(
            object.get("actions").is_none() && object.get("error").is_some(),
            "{object}"
        );
    }
}

#[test]
fn tokens_are_never_seen_and_their_placeholders_work_once_where_they_are_for() {
    let git = Git::new(settings());
    let container = container("web");
    let (mut flow, _) = batch(&git, &container, "acme/web", &download());
    let header =
        json!({ "Authorization": "RemoteAuth secret", "Accept": "application/octet-stream" });
    let answer = json!({ "objects": [{ "actions": { "upload": { "href": "https://files.example.com/ab", "header": header } } }] });
    let shown = answered(&git, &mut flow, &answer);
    assert!(!shown.to_string().contains("secret"));
    let fields = &shown["objects"][0]["actions"]["upload"]["header"];
    assert_eq!(fields["Accept"], "application/octet-stream");
    let placeholder = fields["Authorization"].as_str().unwrap();
    assert_eq!(placeholder.len(), "up-placeholder-".len() + 32);

    let stranger = crate::fixtures::container("other");
    for (asking, host, redeemed) in [
        (&container, "other.example.com", false),
        (&stranger, "files.example.com", false),
        (&container, "files.example.com", true),
        (&container, "files.example.com", false),
    ] {
        let mut flow = flow_of(asking, Kind::Http, host);
        let mut request = request("/ab", &[("authorization", placeholder), ("accept", "*/*")]);
        verdict(git.request(&mut flow, &mut request)).unwrap();
        let sent = if redeemed {
            "RemoteAuth secret"
        } else {
            placeholder
        };
        assert_eq!(
            request.headers,
            headers(&[("authorization", sent), ("accept", "*/*")])
        );
        assert_eq!(flow.record.credential.is_some(), redeemed);
    }
}

#[test]
fn an_answer_that_cannot_be_read_is_refused() {
    let git = Git::new(settings());
    let (mut flow, _) = batch(&git, &container("web"), "acme/web", &download());
    let mut response = Response::new(StatusCode::OK, headers(&[("content-encoding", "gzip")]));
    let denial = verdict(git.response(&mut flow, &mut response)).unwrap_err();
    assert_eq!(denial.code(), Code::UnsupportedEncoding);
}

#[test]
fn a_denial_says_why_where_its_client_looks() {
    let git = Git::new(settings());
    let (web, batch_of) = (
        container("web"),
        |size| json!({ "operation": "upload", "objects": [{ "oid": "ab", "size": size }] }),
    );
    let limit = "Push size exceeds limit: a file of 2 KB, where at most 1000 B may be sent";
    for (repo, body, message) in [
        ("acme/other", download(), "Repo not authorized"),
        ("acme/web", batch_of(2048), limit),
        (
            "acme/web",
            json!([]),
            "Malformed request: an LFS batch is an upload or a download",
        ),
    ] {
        let denial = batch(&git, &web, repo, &body).1.unwrap_err();
        assert_eq!(denial.to_json()["message"], message);
    }
}
