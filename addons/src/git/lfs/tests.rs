use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use testkit::each_row;

use super::super::tests::git;
use super::super::tests::settings;
use super::super::{Git, GitSettings};
use super::*;
use crate::contract::{Addon, Buffered, Kind, OwnedFlow};
use crate::fixtures::{container, flow_of, headers, request, run, send_body, verdict};

/// Judges a batch call of `container`. Returns the flow, and the body to send upstream or the
/// denial.
fn batch(
    git: &Git,
    container: &Arc<Container>,
    repo: &str,
    body: &Value,
) -> (OwnedFlow, Result<Value, Denial>) {
    let mut flow = flow_of(container, Kind::Http, "github.com");
    let mut call = request(&format!("/{repo}/info/lfs/objects/batch"), &[]);
    call.method = Method::POST;
    let sent = verdict(git.request(&mut flow, &mut call)).and_then(|()| {
        let text = body.to_string();
        let (sent, verdict) = send_body(&mut flow, &mut call, &[text.as_bytes()]);
        verdict.map(|()| serde_json::from_slice(&sent).unwrap())
    });
    (flow, sent)
}

fn answered(git: &Git, flow: &mut Flow, body: &Value) -> Value {
    let mut response = Response::new(StatusCode::OK, HeaderMap::new());
    verdict(git.response(flow, &mut response)).unwrap();
    let judges = response.take_judges().unwrap();
    let body = Buffered::unlimited(body.to_string().into());
    let judging = judges.judge(flow, &mut response, body, Duration::from_secs(10));
    serde_json::from_slice(&run(judging).unwrap()).unwrap()
}

fn download() -> Value {
    json!({ "operation": "download", "objects": [{ "oid": "ab", "size": 5000 }] })
}

#[test]
fn lfs_uploads_have_a_size_limit_and_lfs_downloads_have_none() {
    let git = git(settings());
    let upload =
        |size: Value| json!({ "operation": "upload", "objects": [{ "oid": "ab", "size": size }] });
    each_row(
        [
            (download(), None),
            (upload(1000.into()), None),
            (upload(1001.into()), Some(Code::PushTooLarge)),
            (upload("1".into()), Some(Code::MalformedRequest)),
            (
                json!({ "operation": "other" }),
                Some(Code::MalformedRequest),
            ),
            (json!([]), Some(Code::MalformedRequest)),
        ],
        |(body, denied)| {
            let sent = batch(&git, &container("web"), "acme/web", &body).1;
            match denied {
                None => assert_eq!(sent.unwrap(), body),
                Some(code) => assert_eq!(sent.unwrap_err().code(), code, "{body}"),
            }
        },
    );
}

#[test]
fn public_reads_allow_lfs_downloads_from_other_repositories_and_no_uploads() {
    let git = git(GitSettings {
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
fn actions_with_an_invalid_url_or_a_host_outside_the_allowlist_are_removed() {
    let git = git(settings());
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
fn lfs_placeholders_replace_tokens_and_work_once_for_their_container_at_their_host() {
    let git = git(settings());
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

    let other = crate::fixtures::container("other");
    each_row(
        [
            (&container, "other.example.com", false),
            (&other, "files.example.com", false),
            (&container, "files.example.com", true),
            (&container, "files.example.com", false),
        ],
        |(asking, host, redeemed)| {
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
            assert_eq!(flow.record().credential.is_some(), redeemed);
        },
    );
}

#[test]
fn a_compressed_answer_is_refused() {
    let git = git(settings());
    let (mut flow, _) = batch(&git, &container("web"), "acme/web", &download());
    let mut response = Response::new(StatusCode::OK, headers(&[("content-encoding", "gzip")]));
    let denial = verdict(git.response(&mut flow, &mut response)).unwrap_err();
    assert_eq!(denial.code(), Code::UnsupportedEncoding);
}

#[test]
fn denials_have_a_message_that_git_lfs_shows() {
    let git = git(settings());
    let (web, batch_of) = (
        container("web"),
        |size| json!({ "operation": "upload", "objects": [{ "oid": "ab", "size": size }] }),
    );
    let too_large = "Push size exceeds limit: a file of 2 KB, where at most 1000 B may be sent";
    each_row(
        [
            ("acme/other", download(), "Repo not authorized"),
            ("acme/web", batch_of(2048), too_large),
            (
                "acme/web",
                json!({ "operation": "other" }),
                "Malformed request: an LFS batch is an upload or a download",
            ),
        ],
        |(repo, body, message)| {
            let denial = batch(&git, &web, repo, &body).1.unwrap_err();
            assert_eq!(denial.to_json()["message"], message);
        },
    );
}

#[test]
fn the_tokens_of_a_lease_are_bounded() {
    let git = git(settings());
    let container = container("web");
    let (mut flow, _) = batch(&git, &container, "acme/web", &download());
    let with = |token: &str| json!({ "actions": { "download": { "href": "https://files.example.com/ab", "header": { "Authorization": token } } } });
    let long = "t".repeat(15_000);
    let mut objects = vec![with(&"t".repeat(17_000))];
    objects.extend((0..400).map(|number| with(&format!("{number} {long}"))));
    let shown = answered(&git, &mut flow, &json!({ "objects": objects }));
    let field = |at: usize| &shown["objects"][at]["actions"]["download"]["header"]["Authorization"];
    assert!(field(0).is_null(), "a token over 16 KiB is removed");
    each_row(
        [(1, false), (100, false), (200, true), (400, true)],
        |(at, redeemed)| {
            let placeholder = field(at).as_str().unwrap();
            let mut flow = flow_of(&container, Kind::Http, "files.example.com");
            let mut request = request("/ab", &[("authorization", placeholder)]);
            verdict(git.request(&mut flow, &mut request)).unwrap();
            assert_eq!(
                request.headers["authorization"] != placeholder,
                redeemed,
                "{at}"
            );
        },
    );
}

#[test]
fn unknown_members_of_a_batch_are_removed_and_duplicate_members_are_denied() {
    let git = git(settings());
    let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
    let mut call = request("/acme/web/info/lfs/objects/batch", &[]);
    call.method = Method::POST;
    verdict(git.request(&mut flow, &mut call)).unwrap();
    // Some servers match members without regard to case.
    let text = br#"{"operation":"download","Operation":"upload","ref":{"name":"refs/heads/a"},
        "objects":[{"oid":"ab","size":1,"SIZE":9999,"actions":{}}],"transfers":["basic"]}"#;
    let (sent, verdict) = send_body(&mut flow, &mut call, &[text]);
    verdict.unwrap();
    let understood = r#"{"operation":"download","transfers":["basic"],"ref":{"name":"refs/heads/a"},"objects":[{"oid":"ab","size":1}]}"#;
    assert_eq!(String::from_utf8(sent).unwrap(), understood);
    each_row(
        [
            r#"{"operation":"download","operation":"upload"}"#,
            r#"{"operation":"upload","objects":[{"size":1,"size":9999}]}"#,
        ],
        |twice| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut call = request("/acme/web/info/lfs/objects/batch", &[]);
            call.method = Method::POST;
            git.request(&mut flow, &mut call).ready().unwrap().unwrap();
            let denial = send_body(&mut flow, &mut call, &[twice.as_bytes()])
                .1
                .unwrap_err();
            assert_eq!(denial.code(), Code::MalformedRequest, "{twice}");
        },
    );
}
