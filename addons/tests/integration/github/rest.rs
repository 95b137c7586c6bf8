//! The REST API: reads stay in the container's repositories, and writes must be on an allowlist.

use super::*;
use serde_json::json;
use testkit::each_row;

const API: &str = "api.github.com";

#[track_caller]
fn assert_codes(cases: &[(&str, Option<Code>)]) {
    let guard = Guard::new(settings());
    for (line, code) in cases {
        assert_eq!(guard.code(API, line, &Value::Null), *code, "{line}");
    }
}

#[test]
fn reads_stay_in_the_containers_repositories() {
    let outside = Some(Code::RepoNotAuthorized);
    assert_codes(&[
        ("GET /repos/acme/web", None),
        ("GET /repos/ACME/Web/", None),
        ("HEAD /Repos/acme/web/pulls/1", None),
        ("GET /repos/acme/web/contents/src/main.rs?ref=main", None),
        ("GET /repos/acme/web/compare/main...topic/one", None),
        ("GET /repos/acme/web/compare/main...acme:topic", None),
        ("GET /repositories/7/issues?page=2", None),
        ("GET /api/v3/repos/acme/web", None),
        ("GET /repos/acme/secret", outside),
        ("GET /repos/acme/webs", outside),
        ("GET /repos/acme/we", outside),
        ("HEAD /repos/acme/secret/contents/key", outside),
        ("OPTIONS /repos/acme/secret", outside),
        ("GET /repositories/8", outside),
        ("GET /repositories/9", outside),
        ("GET /repositories/+7", outside),
        ("GET /api/v3/repos/acme/secret", outside),
        ("GET /repos/acme/web/compare/main...other:topic", outside),
        ("GET /repos/acme/web/compare/main...other%3Atopic", outside),
        (
            "GET /repos/acme/web/compare/acme:secret:main...topic",
            outside,
        ),
    ]);
}

#[test]
fn a_request_whose_path_has_no_repository_is_denied_unless_listed() {
    let outside = Some(Code::RepoNotAuthorized);
    assert_codes(&[
        ("GET /user", None),
        ("GET /USER/", None),
        ("GET /rate_limit", None),
        ("GET /meta", None),
        ("GET /zen", None),
        ("GET /", None),
        ("GET /user/repos", outside),
        ("GET /user/keys", outside),
        ("GET /search/code?q=secret", outside),
        ("GET /search/issues", outside),
        ("GET /notifications", outside),
        ("GET /gists", outside),
        ("GET /gists/1", outside),
        ("GET /repositories", outside),
        ("GET /orgs/acme/repos", outside),
        ("GET /users/somebody/repos", outside),
        ("GET /installation/repositories", outside),
        ("GET /networks/acme/secret/events", outside),
        ("GET /repos", outside),
        ("GET /repos/acme", outside),
        ("PATCH /user", Some(Code::WriteNotAllowed)),
        ("POST /user/repos", Some(Code::WriteNotAllowed)),
        ("POST /gists", Some(Code::WriteNotAllowed)),
        ("PUT /user/starred/acme/web", Some(Code::WriteNotAllowed)),
        ("POST /orgs/acme/repos", Some(Code::WriteNotAllowed)),
        (
            "POST /app/installations/1/access_tokens",
            Some(Code::WriteNotAllowed),
        ),
    ]);
}

#[test]
fn pull_requests_issues_labels_and_reactions_may_be_written() {
    assert_codes(
        &[
            "POST /repos/acme/web/pulls",
            "PATCH /repos/acme/web/pulls/1",
            "POST /repos/acme/web/pulls/1/comments",
            "POST /repos/acme/web/pulls/1/comments/2/replies",
            "PATCH /repos/acme/web/pulls/comments/2",
            "DELETE /repos/acme/web/pulls/comments/2",
            "POST /repos/acme/web/pulls/1/requested_reviewers",
            "POST /repos/acme/web/pulls/1/reviews",
            "PUT /repos/acme/web/pulls/1/reviews/3",
            "POST /repos/acme/web/pulls/1/reviews/3/events",
            "POST /repos/acme/web/issues",
            "PATCH /repos/Acme/WEB/issues/1/",
            "POST /repos/acme/web/issues/1/comments",
            "PATCH /repos/acme/web/issues/comments/5",
            "POST /repos/acme/web/issues/1/labels",
            "PUT /repos/acme/web/issues/1/labels",
            "DELETE /repos/acme/web/issues/1/labels/good%20first%20issue",
            "POST /repos/acme/web/labels",
            "PATCH /repos/acme/web/labels/bug",
            "POST /repos/acme/web/issues/comments/5/reactions",
            "POST /repositories/7/issues/1/comments",
        ]
        .map(|line| (line, None)),
    );
}

#[test]
fn writes_that_are_not_on_the_allowlist_are_denied() {
    let cases = [
        "PUT /repos/acme/web/pulls/1/update-branch",
        "PUT /repos/acme/web/pulls/1/reviews/3/dismissals",
        "POST /repos/acme/web/pulls/x/comments",
        "POST /repos/acme/web/merges",
        "POST /repos/acme/web/merge-upstream",
        "POST /repos/acme/web/git/refs",
        "PATCH /repos/acme/web/git/refs/heads/main",
        "DELETE /repos/acme/web/git/refs/heads/main",
        "POST /repos/acme/web/git/commits",
        "PUT /repos/acme/web/contents/README.md",
        "DELETE /repos/acme/web/contents/README.md",
        "POST /repos/acme/web/branches/main/rename",
        "PUT /repos/acme/web/branches/main/protection",
        "POST /repos/acme/web/rulesets",
        "POST /repos/acme/web/statuses/abc",
        "POST /repos/acme/web/check-runs",
        "POST /repos/acme/web/actions/workflows/1/dispatches",
        "POST /repos/acme/web/actions/runs/1/rerun",
        "POST /repos/acme/web/actions/runs/1/approve",
        "PUT /repos/acme/web/actions/secrets/KEY",
        "POST /repos/acme/web/actions/variables",
        "POST /repos/acme/web/dispatches",
        "POST /repos/acme/web/deployments",
        "PUT /repos/acme/web/environments/live",
        "POST /repos/acme/web/hooks",
        "POST /repos/acme/web/keys",
        "POST /repos/acme/web/actions/runners/registration-token",
        "PUT /repos/acme/web/collaborators/mallory",
        "POST /repos/acme/web/transfer",
        "PATCH /repos/acme/web",
        "POST /repos/acme/web/forks",
        "POST /repos/acme/web/pages",
        "PATCH /repos/acme/web/releases/1",
        "POST /repos/acme/web/releases/generate-notes",
        "POST /repos/acme/web/releases/1/assets?name=x",
        "POST /repos/acme/web/codespaces",
        "PUT /repos/acme/web/issues/1/lock",
        "PUT /repos/acme/web/subscription",
        "POST /repos/acme/web/issues/1",
        "POST /repos/acme/web/pulls/1",
    ];
    assert_codes(&cases.map(|line| (line, Some(Code::WriteNotAllowed))));
    let guard = Guard::new(settings());
    let upload = "POST /repos/acme/web/releases/1/assets?name=x";
    let code = guard.code("uploads.github.com", upload, &Value::Null);
    assert_eq!(code, Some(Code::WriteNotAllowed));
}

#[test]
fn the_denial_of_a_write_names_the_allowed_writes() {
    let guard = Guard::new(settings());
    let denial = guard.send(API, "POST /repos/acme/web/git/refs", b"{}");
    let denial = denial.err().unwrap();
    let body = denial.to_json();
    assert_eq!(
        body["error"],
        "Write not allowed: POST /repos/acme/web/git/refs"
    );
    assert!(body["allowed"].as_str().unwrap().contains("pull requests"));
    assert_eq!(body["repos"], json!(["acme/web"]));
    assert!(denial.edit().unwrap().contains("allowed_api_patterns.POST"));
}

#[test]
fn blocked_requests_are_denied_and_merges_and_releases_have_their_own_sentences() {
    let guard = Guard::new(settings());
    each_row(
        [
            (
                "PUT /repos/acme/web/pulls/1/merge",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "PUT /repos/acme/web/pulls/1/merge/",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "PUT /repos/Acme/Web/Pulls/1/MERGE",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "POST /repos/acme/web/pulls/1/merge",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "PUT /api/v3/repos/acme/web/pulls/1/merge",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "PUT /repositories/7/pulls/1/merge",
                "PR merge blocked - use GitHub UI",
            ),
            (
                "PUT /repos/acme/secret/pulls/1/merge",
                "PR merge blocked - use GitHub UI",
            ),
            ("POST /repos/acme/web/releases", "Release creation blocked"),
            (
                "DELETE /repos/acme/web",
                "API blocked: DELETE /repos/acme/web",
            ),
            ("POST /repos/acme/web", "API blocked: POST /repos/acme/web"),
        ],
        |(line, sentence)| {
            let denial = guard.send(API, line, b"").err().unwrap();
            assert_eq!(denial.code(), Code::ApiBlocked, "{line}");
            assert_eq!(denial.sentence(), sentence, "{line}");
            assert!(denial.to_json()["rule"].is_string());
        },
    );
}

#[test]
fn merging_and_releasing_stay_blocked_without_the_shipped_patterns() {
    let mut settings = settings();
    settings.blocked = patterns(&[("GET", "^/repos/[^/]+/[^/]+/actions/secrets$")]);
    let guard = Guard::new(settings);
    each_row(
        [
            ("PUT /repos/acme/web/pulls/1/merge", Code::ApiBlocked),
            ("POST /repos/acme/web/releases", Code::ApiBlocked),
            ("HEAD /repos/acme/web/actions/secrets", Code::ApiBlocked),
            ("DELETE /repos/acme/web", Code::WriteNotAllowed),
        ],
        |(line, code)| {
            assert_eq!(guard.code(API, line, &Value::Null), Some(code), "{line}");
        },
    );
}

#[test]
fn an_allowed_pattern_adds_a_write_and_overrides_no_blocked_one() {
    let mut settings = settings();
    settings.allowed = patterns(&[
        ("POST", "^/repos/[^/]+/[^/]+/(releases|dispatches)$"),
        ("POST", "^/markdown$"),
    ]);
    let guard = Guard::new(settings);
    each_row(
        [
            ("POST /repos/acme/web/dispatches", None),
            ("POST /markdown", None),
            ("POST /repos/acme/web/releases", Some(Code::ApiBlocked)),
            (
                "POST /repos/acme/secret/dispatches",
                Some(Code::RepoNotAuthorized),
            ),
        ],
        |(line, code)| {
            assert_eq!(guard.code(API, line, &Value::Null), code, "{line}");
        },
    );
}

#[test]
fn a_blocklist_lets_all_other_writes_in_the_containers_repositories_pass() {
    let mut settings = settings();
    settings.writes_are_an_allowlist = false;
    let guard = Guard::new(settings);
    each_row(
        [
            ("PUT /repos/acme/web/contents/README.md", None),
            ("PUT /repos/acme/web/pulls/1/merge", Some(Code::ApiBlocked)),
            (
                "PUT /repos/acme/secret/contents/README.md",
                Some(Code::RepoNotAuthorized),
            ),
        ],
        |(line, code)| {
            assert_eq!(guard.code(API, line, &Value::Null), code, "{line}");
        },
    );
}

#[test]
fn approving_reviews_and_bot_commands_are_denied() {
    let guard = Guard::new(settings());
    let reviews = "POST /repos/acme/web/pulls/1/reviews";
    let events = "POST /repos/acme/web/pulls/1/reviews/3/events";
    let comments = "POST /repos/acme/web/issues/1/comments";
    let labels = "POST /repos/acme/web/issues/1/labels";
    let denied = Some(Code::WriteNotAllowed);
    each_row(
        [
            (reviews, json!({ "event": "COMMENT", "body": "fine" }), None),
            (
                reviews,
                json!({ "event": "REQUEST_CHANGES", "body": "no" }),
                None,
            ),
            (reviews, json!({ "body": "pending" }), None),
            (reviews, json!({ "event": "APPROVE" }), denied),
            (reviews, json!({ "event": "approve" }), denied),
            (reviews, json!({ "event": ["APPROVE"] }), denied),
            (events, json!({ "event": "COMMENT" }), None),
            (events, json!({ "event": "APPROVE" }), denied),
            (
                "POST /repositories/7/pulls/1/reviews/3/events",
                json!({ "event": "APPROVE" }),
                denied,
            ),
            (comments, json!({ "body": "Looks good" }), None),
            (comments, json!({ "body": "@dependabot merge" }), denied),
            (comments, json!({ "body": "/merge" }), denied),
            (labels, json!(["bug"]), None),
            (labels, json!(["automerge"]), denied),
            (
                labels,
                json!({ "labels": [{ "name": "Auto-Merge" }] }),
                denied,
            ),
            (labels, json!("automerge"), denied),
            (
                "PATCH /repos/acme/web/labels/bug",
                json!({ "new_name": "automerge" }),
                denied,
            ),
            (
                "POST /repos/acme/web/issues",
                json!({ "title": "t", "labels": ["automerge"] }),
                denied,
            ),
        ],
        |(line, body, code)| {
            assert_eq!(guard.code(API, line, &body), code, "{line} {body}");
        },
    );
}

#[test]
fn an_ambiguous_body_is_refused() {
    let guard = Guard::new(settings());
    let reviews = "POST /repos/acme/web/pulls/1/reviews";
    each_row(
        [
            &b"{\"event\":\"COMMENT\",\"event\":\"APPROVE\"}"[..],
            b"event=APPROVE",
            b"{\"event\":\"COMMENT\"}&event=APPROVE",
            b"{\"event\":\"COMMENT\xff\"}",
        ],
        |body| {
            let denial = guard.send(API, reviews, body).err().unwrap();
            assert_eq!(denial.code(), Code::MalformedRequest);
        },
    );
    let query = guard.send(API, &format!("{reviews}?event=APPROVE"), b"{}");
    assert_eq!(query.err().unwrap().code(), Code::MalformedRequest);
    // This body is both a form and JSON. It is judged as JSON, so the upstream must not parse it as
    // a form.
    let sent = guard
        .send(API, reviews, b"{\"body\":\"&event=APPROVE\"}")
        .ok()
        .unwrap();
    assert_eq!(
        sent.headers["content-type"],
        "application/json; charset=utf-8"
    );
}

#[test]
fn parameters_that_override_the_method_are_removed() {
    let guard = Guard::new(settings());
    let target = "GET /repos/acme/web/pulls?_method=DELETE&page=2&%5Fmethod=PUT&_METHOD[]=x";
    let sent = guard.send(API, target, b"").ok().unwrap();
    assert_eq!(sent.query.as_deref(), Some("page=2"));
    let sent = guard.send(API, "GET /repos/acme/web?_method=DELETE", b"");
    assert_eq!(sent.ok().unwrap().query, None);
}

#[test]
fn ambiguous_paths_are_refused() {
    let guard = Guard::new(settings());
    each_row(
        [
            "/repos/acme/web/..;/secret",
            "/repos/acme/web/../secret",
            "/repos/acme/web/%2e%2e/secret",
            "/repos/acme%2fweb",
            "/repos//acme/web",
            "/repos/acme/web;x",
            "/repos/acme\\web",
            "/repos/acme/web/%252e%252e/secret",
        ],
        |target| {
            for host in [API, "uploads.github.com", "raw.githubusercontent.com"] {
                let code = guard.code(host, &format!("GET {target}"), &Value::Null);
                assert_eq!(code, Some(Code::MalformedRequest), "{host}{target}");
            }
        },
    );
}

#[test]
fn files_and_archives_are_limited_to_the_containers_repositories() {
    let guard = Guard::new(settings());
    let outside = Some(Code::RepoNotAuthorized);
    each_row(
        [
            (
                "raw.githubusercontent.com",
                "GET /acme/web/main/README.md",
                None,
            ),
            (
                "raw.githubusercontent.com",
                "GET /Acme/Web/main/README.md",
                None,
            ),
            (
                "raw.githubusercontent.com",
                "GET /acme/secret/main/key",
                outside,
            ),
            ("raw.githubusercontent.com", "GET /acme", outside),
            ("raw.githubusercontent.com", "GET /", outside),
            (
                "codeload.github.com",
                "GET /acme/web/zip/refs/heads/main",
                None,
            ),
            ("codeload.github.com", "GET /acme/secret/zip/main", outside),
            (
                "codeload.github.com",
                "POST /acme/web/zip/main",
                Some(Code::WriteNotAllowed),
            ),
            ("gist.github.com", "GET /somebody/1", outside),
            ("gist.githubusercontent.com", "GET /somebody/1/raw", outside),
            ("gist.ghe.example.com", "GET /somebody/1", outside),
        ],
        |(host, line, code)| {
            assert_eq!(guard.code(host, line, &Value::Null), code, "{host} {line}");
        },
    );
}

#[test]
fn requests_to_the_api_of_an_enterprise_server_are_judged_and_other_paths_are_not() {
    let guard = Guard::new(settings());
    each_row(
        [
            ("GET /api/v3/repos/acme/web", None),
            ("GET /api/v3", None),
            (
                "GET /API/V3/repos/acme/secret",
                Some(Code::RepoNotAuthorized),
            ),
            (
                "PUT /api/v3/repos/acme/web/pulls/1/merge",
                Some(Code::ApiBlocked),
            ),
            (
                "POST /api/uploads/repos/acme/web/releases/1/assets",
                Some(Code::WriteNotAllowed),
            ),
            ("POST /api/graphql", Some(Code::MalformedRequest)),
            ("POST /api/graphql/", Some(Code::MalformedRequest)),
            // Web pages and git, which other addons judge.
            ("GET /acme/web.git/info/refs", None),
            ("GET /apidocs", None),
        ],
        |(line, expected)| {
            let code = guard.code("ghe.example.com", line, &Value::Null);
            assert_eq!(code, expected, "{line}");
        },
    );
}

#[test]
fn a_repository_number_in_an_upload_is_looked_up_at_the_api_of_the_same_forge() {
    let policy = json!({ "version": 1, "git": { "hosts": [
        "github.com",
        { "host": "ghe.example.com", "uploads": "uploads.ghe.example.com" },
        {
            "host": "git.example.com",
            "api": "api.git.example.com",
            "uploads": "uploads.git.example.com",
        },
    ] } });
    let files = [("policy.yaml", policy.to_string())];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let guard = Guard::new(read_files(&files, GithubSettings::read).unwrap());
    each_row(
        [
            ("uploads.github.com", "7", Code::WriteNotAllowed),
            ("uploads.github.com", "8", Code::RepoNotAuthorized),
            ("uploads.github.com", "27", Code::RepoNotAuthorized),
            ("uploads.ghe.example.com", "7", Code::WriteNotAllowed),
            ("uploads.ghe.example.com", "8", Code::RepoNotAuthorized),
            ("uploads.git.example.com", "27", Code::WriteNotAllowed),
            ("uploads.git.example.com", "28", Code::RepoNotAuthorized),
            // The number of the container's repository at the other forges.
            ("uploads.git.example.com", "7", Code::RepoNotAuthorized),
        ],
        |(host, id, expected)| {
            let line = format!("POST /repositories/{id}/releases/1/assets?name=x");
            let code = guard.code(host, &line, &Value::Null);
            assert_eq!(code, Some(expected), "{host} {id}");
            let read = guard.code(host, &format!("GET /repositories/{id}"), &Value::Null);
            let is_own = expected == Code::WriteNotAllowed;
            assert_eq!(read.is_none(), is_own, "{host} {id}");
        },
    );
}

#[test]
fn requests_to_a_host_of_no_forge_are_not_judged() {
    let guard = Guard::new(settings());
    let code = guard.code("api.example.com", "DELETE /repos/acme/web", &Value::Null);
    assert_eq!(code, None);
}

#[test]
fn allowed_public_reads_are_sent_without_a_credential() {
    let mut settings = settings();
    settings.public_reads = true;
    let guard = Guard::new(settings);
    let raw = "raw.githubusercontent.com";
    each_row(
        [
            (API, "GET /repos/other/lib/contents/a", None, true),
            (API, "GET /repos/acme/web", None, false),
            (raw, "GET /other/lib/main/a", None, true),
            (
                API,
                "POST /repos/other/lib/issues",
                Some(Code::RepoNotAuthorized),
                false,
            ),
            (API, "GET /repositories/7", None, false),
            (API, "GET /repositories/10", None, true),
            // An unknown number and a private repository that the credential could read are not
            // told apart.
            (
                API,
                "GET /repositories/8",
                Some(Code::RepoNotAuthorized),
                false,
            ),
            (
                API,
                "GET /repositories/9",
                Some(Code::RepoNotAuthorized),
                false,
            ),
            (
                API,
                "GET /search/code",
                Some(Code::RepoNotAuthorized),
                false,
            ),
        ],
        |(host, line, code, is_public)| {
            let sent = guard.send(host, line, b"");
            let denied = sent.as_ref().err().map(Denial::code);
            assert_eq!(denied, code, "{line}");
            let has_credential = sent.is_ok_and(|sent| sent.headers.contains_key("authorization"));
            assert_eq!(has_credential, code.is_none() && !is_public, "{line}");
        },
    );
}
