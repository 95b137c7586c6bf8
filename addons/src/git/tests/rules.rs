use std::time::Duration;

use http::Method;
use testkit::each_row;

use super::*;
use crate::contract::{Anonymous, Kind, Repo};
use crate::fixtures::{container, flow_of, headers, registration, request, verdict};

fn judged(settings: GitSettings, flow: &mut Flow, request: &mut Request) -> Verdict {
    verdict(git(settings).request(flow, request))
}

fn code(settings: GitSettings, host: &str, method: &str, target: &str) -> Option<Code> {
    let mut flow = flow_of(&container("web"), Kind::Http, host);
    let mut request = request(target, &[]);
    request.method = Method::from_bytes(method.as_bytes()).unwrap();
    let verdict = judged(settings, &mut flow, &mut request);
    verdict.err().map(|denial| denial.code())
}

#[test]
fn on_git_hosts_reads_and_writes_reach_only_the_containers_repositories() {
    let foreign = Some(Code::RepoNotAuthorized);
    each_row(
        [
            (
                "GET",
                "/acme/web.git/info/refs?service=git-upload-pack",
                None,
            ),
            ("GET", "/ACME/Web/info/refs?service=git-upload-pack", None),
            ("POST", "/acme/web.git/git-upload-pack", None),
            ("POST", "/acme/web/git-receive-pack", None),
            ("GET", "/acme/web/releases/download/v1/a.tgz", None),
            (
                "GET",
                "/acme/other.git/info/refs?service=git-upload-pack",
                foreign,
            ),
            ("POST", "/acme/other.git/git-upload-pack", foreign),
            ("POST", "/acme/webs/git-receive-pack", foreign),
            ("GET", "/acme/web/inner.git/info/refs", foreign),
            ("PUT", "/acme/other/objects/a", foreign),
            ("GET", "/acme", foreign),
            ("GET", "/", foreign),
            ("GET", "/search?q=acme/web", foreign),
            ("PUT", "/acme/web/objects/a", Some(Code::WriteNotAllowed)),
            ("GET", "/acme/web/../other", Some(Code::MalformedRequest)),
            (
                "GET",
                "/acme/web%2f..%2fother",
                Some(Code::MalformedRequest),
            ),
        ],
        |(method, target, denied)| {
            let found = code(settings(), "github.com", method, target);
            assert_eq!(found, denied, "{method} {target}");
        },
    );
    let elsewhere = code(settings(), "git.example.com", "GET", "/acme/other");
    assert_eq!(elsewhere, None);
}

#[test]
fn a_denial_names_the_repository_and_the_remedy() {
    let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
    let mut request = request("/acme/other.git/info/refs", &[]);
    let denial = judged(settings(), &mut flow, &mut request).unwrap_err();
    assert_eq!(denial.sentence(), "Repo not authorized");
    assert_eq!(denial.to_json()["repo"], "acme/other");
    assert_eq!(denial.rule_name(), Some("repos of container web"));
    let edit = "register container web with \"acme/other\" in its repos";
    assert_eq!(denial.edit(), Some(edit));
}

#[test]
fn public_reads_allow_only_reads_of_other_repositories_and_remove_credentials() {
    let public = || GitSettings {
        public_reads: true,
        ..settings()
    };
    each_row(
        [
            ("GET", "/acme/other/info/refs?service=git-upload-pack", true),
            ("POST", "/acme/other.git/git-upload-pack", true),
            ("GET", "/acme/other/archive/main.tar.gz", true),
            (
                "GET",
                "/acme/other/info/refs?service=git-receive-pack",
                false,
            ),
            ("POST", "/acme/other/git-receive-pack", false),
            ("POST", "/acme/other/info/lfs/locks", false),
            ("GET", "/search", false),
        ],
        |(method, target, passes)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut request = request(target, &[]);
            request.method = method.parse().unwrap();
            request.headers = headers(&[
                ("authorization", "Basic eDp5"),
                ("cookie", "a=b"),
                ("accept", "*/*"),
            ]);
            let verdict = judged(public(), &mut flow, &mut request);
            assert_eq!(verdict.is_ok(), passes, "{method} {target}");
            assert_eq!(flow.find_slot::<Anonymous>().is_some(), passes);
            if passes {
                assert_eq!(request.headers, headers(&[("accept", "*/*")]));
            }
        },
    );
    let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
    let mut own = request("/acme/web", &[("authorization", "Basic eDp5")]);
    judged(public(), &mut flow, &mut own).unwrap();
    assert!(flow.find_slot::<Anonymous>().is_none());
    assert!(own.headers.contains_key("authorization"));
}

#[test]
fn a_compressed_push_is_refused_and_a_compressed_fetch_is_not() {
    each_row(
        [
            ("/acme/web/git-receive-pack", "gzip", true),
            ("/acme/web/git-receive-pack", "identity", false),
            ("/acme/web/git-upload-pack", "gzip", false),
        ],
        |(path, encoding, denied)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut request = request(path, &[("content-encoding", encoding)]);
            request.method = Method::POST;
            let verdict = judged(settings(), &mut flow, &mut request);
            let code = verdict.err().map(|denial| denial.code());
            assert_eq!(code, denied.then_some(Code::UnsupportedEncoding));
        },
    );
}

#[test]
fn a_repository_may_have_its_own_limit() {
    let own_limit = Repo {
        name: "acme/big".into(),
        max_receive_pack_bytes: Some(5000),
    };
    let mut registration = registration("web");
    registration.repos.push(own_limit);
    let container = Arc::new(Container::new(registration));
    each_row(
        [
            ("acme/web", 1000, None),
            ("acme/web", 1001, Some("git.push_limits.hard_limit_bytes")),
            ("Acme/BIG", 5000, None),
            ("Acme/BIG", 5001, Some("max_receive_pack_bytes of Acme/BIG")),
        ],
        |(repo, size, rule)| {
            let plain = GitSettings {
                report_push_denials: false,
                ..settings()
            };
            let mut flow = flow_of(&container, Kind::Http, "github.com");
            let mut request = request(&format!("/{repo}/git-receive-pack"), &[]);
            request.method = Method::POST;
            request.content_length = Some(size);
            let denial = judged(plain, &mut flow, &mut request).err();
            let found = denial.as_ref().and_then(|denial| denial.rule_name());
            assert_eq!(found, rule, "{repo} {size}");
            let code = denial.as_ref().map(Denial::code);
            assert_eq!(code, rule.map(|_| Code::PushTooLarge));
        },
    );
}

#[test]
fn lfs_uploads_have_the_size_limit_of_a_push() {
    each_row(
        [
            (Some(1000), None),
            (Some(1001), Some(Code::PushTooLarge)),
            (None, Some(Code::MalformedRequest)),
        ],
        |(length, denied)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut request = request("/acme/web/info/lfs/objects/ab/12", &[]);
            request.method = Method::PUT;
            request.content_length = length;
            let verdict = judged(settings(), &mut flow, &mut request);
            assert_eq!(verdict.err().map(|denial| denial.code()), denied);
        },
    );
}

#[test]
fn pushes_above_the_warning_size_are_logged_if_they_passed() {
    let git = git(settings());
    each_row(
        [
            ("/acme/web/git-receive-pack", 500, None, None),
            ("/acme/web/git-receive-pack", 501, None, Some("acme/web")),
            (
                "/acme/web/git-receive-pack",
                502,
                Some(Denial::internal()),
                None,
            ),
            ("/acme/web/git-upload-pack", 503, None, None),
        ],
        |(path, bytes, denial, logged)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut request = request(path, &[]);
            request.method = Method::POST;
            verdict(git.request(&mut flow, &mut request)).unwrap();
            flow.counters.bytes_in.store(bytes, Ordering::Relaxed);
            let outcome = Outcome {
                status: 200,
                denial,
                aborted: false,
                duration: Duration::from_secs(1),
            };
            let logged = logged.map(|repo| (repo, bytes));
            assert_eq!(git.large_push(&flow, &outcome), logged);
        },
    );
}

#[test]
fn the_operation_of_a_request_is_recorded_even_if_the_request_is_denied() {
    each_row(
        [
            (
                "/acme/web/info/refs?service=git-receive-pack",
                Operation::Refs { push: true },
            ),
            (
                "/acme/other/info/refs?service=git-upload-pack",
                Operation::Refs { push: false },
            ),
            ("/acme/other/blob/main/a", Operation::Page),
        ],
        |(target, operation)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let _ = judged(settings(), &mut flow, &mut request(target, &[]));
            assert_eq!(flow.find_slot(), Some(&operation), "{target}");
        },
    );
}
