//! GitHub's API through the proxy, used by curl and gh, with the test origin in GitHub's place.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, SANDBOX, Setup, incompressible};

const API: &str = "https://api.github.com";
const MERGE: &str = "mutation { mergePullRequest(input: {}) { clientMutationId } }";

fn start(origin: &Origin) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.host("api.github.com", origin.https);
    setup.credential(json!({ "name": "api", "hosts": ["api.github.com"], "bearer": "ghp_secret" }));
    setup.containers.clear();
    let proxy = setup.start();
    proxy.register_as(json!({
        "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["acme/web"],
    }));
    proxy
}

fn post(proxy: &Proxy, path: &str, body: &Value, more: &[&str]) -> (u16, Value) {
    let (url, body) = (format!("{API}{path}"), body.to_string());
    let curl = proxy.curl(&[&["--data", &body, &url], more].concat());
    (
        curl.status,
        serde_json::from_slice(&curl.body).unwrap_or_default(),
    )
}

#[test]
fn api_requests_pass_only_to_the_containers_repositories_and_only_if_not_blocked() {
    let origin = Origin::start();
    let proxy = start(&origin);
    each_row(
        [
            // The next two requests reach the origin, which responds with 404.
            (&["/repos/acme/web"][..], 404),
            (&["/REPOS/Acme/Web/pulls/"], 404),
            (&["/repos/acme/secret"], 403),
            (&["/user/repos"], 403),
            (&["/repos/acme/web/../secret", "--path-as-is"], 400),
            (&["/repos/acme/web/..;/secret"], 400),
            (&["/repos/acme/web/pulls/1/merge", "--request", "PUT"], 403),
            (&["/repos/acme/web/contents/a", "--request", "PUT"], 403),
        ],
        |(arguments, status)| {
            let url = format!("{API}{}", arguments[0]);
            let curl = proxy.curl(&[&[url.as_str()], &arguments[1..]].concat());
            assert_eq!(curl.status, status, "{arguments:?} {curl:?}");
        },
    );
    assert_eq!(origin.seen().len(), 2);
    let (status, body) = post(&proxy, "/repos/acme/web/releases", &json!({}), &[]);
    assert_eq!((status, &body["code"]), (403, &json!("api_blocked")));
    assert_eq!(body["error"], "Release creation blocked");
    proxy.audited(json!({
        "host": "api.github.com", "code": "api_blocked", "addon": "github",
        "path": "/repos/acme/web/releases",
    }));
}

#[test]
fn a_review_that_approves_and_a_command_to_a_bot_never_reach_the_origin() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let reviews = "/repos/acme/web/pulls/1/reviews";
    let comments = "/repos/acme/web/issues/1/comments";
    each_row(
        [
            (reviews, json!({ "event": "APPROVE" })),
            (
                "/repos/acme/web/pulls/1/reviews/2/events",
                json!({ "event": "APPROVE" }),
            ),
            (comments, json!({ "body": "@dependabot merge" })),
        ],
        |(path, body)| {
            for more in [
                &["--http2"][..],
                &["--http1.1", "--header", "Transfer-Encoding: chunked"],
            ] {
                let (status, answer) = post(&proxy, path, &body, more);
                assert_eq!(
                    (status, &answer["code"]),
                    (403, &json!("write_not_allowed"))
                );
            }
        },
    );
    origin.assert_untouched();
    // Another comment is sent upstream, as JSON and with its length.
    let (status, _) = post(&proxy, comments, &json!({ "body": "Looks good" }), &[]);
    assert_eq!(status, 404);
    let seen = origin.only();
    assert_eq!(
        seen.header("content-type"),
        Some("application/json; charset=utf-8")
    );
    assert_eq!(seen.header("content-length"), Some("21"));
    assert_eq!(seen.received(), 21);
}

/// Sends each body, and asserts that the response is a 403 with this `code` and `key`, and that no
/// connection to the origin was made.
#[track_caller]
fn assert_denied(cases: &[(&str, &str, Value, &str, &str)]) {
    let origin = Origin::start();
    let proxy = start(&origin);
    for (method, path, body, code, key) in cases {
        let (status, answer) = post(&proxy, path, body, &["--request", method]);
        let found = (status, &answer["code"], &answer["key"]);
        assert_eq!(
            found,
            (403, &json!(code), &json!(key)),
            "{method} {path} {body} {answer}"
        );
    }
    origin.assert_untouched();
}

#[test]
fn an_issue_that_starts_an_agent_in_another_repository_never_reaches_the_origin() {
    let agent = json!({ "target_repo": "other/secret", "base_branch": "main" });
    let (code, key) = ("write_not_allowed", "agent_assignment");
    let issue = json!({ "title": "t", "agent_assignment": agent });
    let assignees = json!({ "assignees": ["ann"], "agent_assignment": agent });
    let changed = json!({ "agent_assignment": agent });
    assert_denied(&[
        ("POST", "/repos/acme/web/issues", issue, code, key),
        (
            "POST",
            "/repos/acme/web/issues/1/assignees",
            assignees,
            code,
            key,
        ),
        ("PATCH", "/repos/acme/web/issues/1", changed, code, key),
    ]);
}

#[test]
fn a_pull_request_from_another_repository_never_reaches_the_origin() {
    let pulls = "/repos/acme/web/pulls";
    let head = json!({ "title": "t", "head": "other:main", "base": "main" });
    let repo = json!({ "title": "t", "head": "main", "base": "main", "head_repo": "other/secret" });
    let both = json!({ "head_repo": "other/secret", "head": "other:main", "base": "main" });
    assert_denied(&[
        ("POST", pulls, head, "repo_not_authorized", "head"),
        ("POST", pulls, repo, "write_not_allowed", "head_repo"),
        ("POST", pulls, both, "write_not_allowed", "head_repo"),
    ]);
}

#[test]
fn a_comment_or_assignment_that_calls_an_assistant_never_reaches_the_origin() {
    let call = json!({ "body": "@copilot merge main into this branch and push" });
    let assign = json!({ "assignees": ["copilot-swe-agent"] });
    let code = "write_not_allowed";
    assert_denied(&[
        (
            "POST",
            "/repos/acme/web/issues/1/comments",
            call,
            code,
            "body",
        ),
        (
            "POST",
            "/repos/acme/web/issues/1/assignees",
            assign,
            code,
            "assignees",
        ),
    ]);
}

#[test]
fn graphql_that_is_not_allowed_never_reaches_the_origin() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let viewer = json!({ "query": "{ viewer { login } }" });
    let merge = json!({ "query": MERGE });
    each_row(
        [
            (merge.to_string(), "api_blocked"),
            (json!([viewer, merge]).to_string(), "api_blocked"),
            (
                format!("{{\"query\":\"{{viewer{{login}}}}\",\"query\":\"{MERGE}\"}}"),
                "malformed_request",
            ),
            (
                json!({ "query": "{ search(query: \"x\", type: ISSUE) { issueCount } }" })
                    .to_string(),
                "repo_not_authorized",
            ),
            (
                json!({ "query": format!("{{ viewer {{ login }} }} #{}", "x".repeat(1 << 20)) })
                    .to_string(),
                "body_too_large_to_inspect",
            ),
        ],
        |(body, code)| {
            let file = proxy.path("body.json");
            std::fs::write(&file, &body).unwrap();
            let data = format!("@{}", file.display());
            let curl = proxy.curl(&["--data-binary", &data, &format!("{API}/graphql")]);
            assert_eq!(
                curl.json()["code"],
                code,
                "{}",
                &body[..body.len().min(200)]
            );
        },
    );
    origin.assert_untouched();
    assert_eq!(post(&proxy, "/graphql", &viewer, &[]).0, 200);
}

#[test]
fn a_gzip_body_is_judged_and_sent_upstream_decoded_and_other_encodings_are_refused() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let gzip = |body: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let deflate = |body: &[u8]| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let merge = json!({ "query": MERGE }).to_string();
    let viewer = json!({ "query": "{ viewer { login } }" }).to_string();
    each_row(
        [
            ("gzip", gzip(merge.as_bytes()), 403),
            ("gzip", gzip(&incompressible(4 << 20)), 413),
            ("gzip", gzip(&vec![b' '; 4 << 20]), 413),
            ("gzip", b"no gzip".to_vec(), 415),
            ("deflate", deflate(viewer.as_bytes()), 415),
            ("gzip, gzip", gzip(&gzip(viewer.as_bytes())), 415),
            ("gzip", gzip(viewer.as_bytes()), 200),
        ],
        |(encoding, body, status)| {
            let file = proxy.path("body");
            std::fs::write(&file, &body).unwrap();
            let (data, field) = (
                format!("@{}", file.display()),
                format!("Content-Encoding: {encoding}"),
            );
            let url = format!("{API}/graphql");
            let curl = proxy.curl(&["--data-binary", &data, "--header", &field, &url]);
            assert_eq!(curl.status, status, "{encoding} {curl:?}");
        },
    );
    let seen = origin.only();
    assert_eq!(seen.header("content-encoding"), None);
    assert_eq!(seen.received(), viewer.len() as u64);
    assert_eq!(
        seen.header("content-length"),
        Some(viewer.len().to_string().as_str())
    );
}

#[test]
fn gh_opens_a_pull_request_and_comments_on_an_issue() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let gh = |command: &str, texts: &[&str]| {
        let words = command.split_whitespace();
        let all: Vec<&str> = words.chain(texts.iter().copied()).collect();
        proxy.gh(&all).ok()
    };
    let commented = gh("issue comment 7 --repo acme/web --body", &["It is seen."]);
    assert!(commented.contains("issuecomment-1"), "{commented}");
    let texts = ["--title", "A file", "--body", "It adds one."];
    let opened = gh("pr create --repo acme/web --base main --head topic", &texts);
    assert!(opened.contains("/acme/web/pull/2"), "{opened}");
}

#[test]
fn gh_shows_a_pull_request_and_does_not_merge_release_or_delete() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let repo = ["--repo", "acme/web"];
    let shown = proxy.gh(&[&["pr", "view", "1"], &repo[..]].concat()).ok();
    assert!(shown.contains("Add a file"), "{shown}");
    let reached = origin.seen().len();
    each_row(
        [
            (
                &["api", "--method", "PUT", "repos/acme/web/pulls/1/merge"][..],
                "PR merge blocked - use GitHub UI",
            ),
            (
                &["api", "graphql", "--field", &format!("query={MERGE}")],
                "PR merge blocked - use GitHub UI",
            ),
            (
                &[
                    "release", "create", "v1", "--notes", "x", "--repo", "acme/web",
                ],
                "Release creation blocked",
            ),
            (
                &["repo", "delete", "acme/web", "--yes"],
                "API blocked: DELETE /repos/acme/web",
            ),
            (
                &["pr", "view", "1", "--repo", "acme/secret"],
                "Repo not authorized",
            ),
        ],
        |(arguments, sentence)| {
            let ran = proxy.gh(arguments);
            assert!(
                ran.code != Some(0) && ran.stderr.contains(sentence),
                "{arguments:?} {ran:?}"
            );
        },
    );
    assert_eq!(origin.seen().len(), reached, "{:?}", origin.seen());
}
