//! git with real repositories: the operations that pass, and the message that git shows for a
//! denial.

use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, Ran, SANDBOX, Setup};

/// Bare repositories `acme/web` and `acme/other` at the origin, a proxy with git rules for
/// `git.example.com`, a container registered for `acme/web`, and a work tree with one commit that
/// is not pushed yet.
pub struct Forge {
    pub origin: Origin,
    pub proxy: Proxy,
}

pub const HOST: &str = "https://git.example.com";

impl Forge {
    pub fn start() -> Self {
        Self::with(|_| (), json!({}))
    }

    /// Like [`Self::start`], with a changed configuration and further members of the registration.
    pub fn with(change: impl FnOnce(&mut Setup), registration: Value) -> Self {
        let origin = Origin::start();
        for repo in ["acme/web", "acme/other"] {
            origin.create_repository(repo);
        }
        let mut setup = Setup::new(&origin);
        setup.containers.clear();
        setup.policy = Some(json!({ "version": 1, "git": { "hosts": ["git.example.com"] } }));
        change(&mut setup);
        let proxy = setup.start();
        let mut body =
            json!({ "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["acme/web"] });
        for (key, value) in registration.as_object().unwrap() {
            body[key] = value.clone();
        }
        proxy.register_as(body);
        let forge = Self { origin, proxy };
        forge
            .git(&["init", "--quiet", "--initial-branch=main", "work"])
            .ok();
        forge.commit("first");
        forge
            .work(&["remote", "add", "origin", &format!("{HOST}/acme/web.git")])
            .ok();
        forge
    }

    pub fn git(&self, arguments: &[&str]) -> Ran {
        self.proxy.run("git", arguments)
    }

    /// Runs git in the work tree.
    pub fn work(&self, arguments: &[&str]) -> Ran {
        let as_tester = [
            "-C",
            "work",
            "-c",
            "user.name=Tester",
            "-c",
            "user.email=tester@example.com",
        ];
        self.git(&[&as_tester[..], arguments].concat())
    }

    pub fn commit(&self, content: &str) {
        std::fs::write(self.proxy.path("work/file"), content).unwrap();
        self.work(&["add", "file"]).ok();
        self.work(&["commit", "--quiet", "-m", "Change the file"])
            .ok();
    }

    /// Pushes; panics unless git exits with 1. Returns git's standard error.
    #[track_caller]
    pub fn denied_push(&self, arguments: &[&str]) -> String {
        let ran = self.work(&[&["push", "origin"], arguments].concat());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    }

    /// The commit id of a ref of `acme/web` at the origin, with a newline; `None` if the ref does
    /// not exist.
    pub fn at_origin(&self, name: &str) -> Option<String> {
        let bare = self.origin.repositories().join("acme/web.git");
        let ran = self.git(&[
            "-C",
            bare.to_str().unwrap(),
            "rev-parse",
            "--verify",
            "--quiet",
            name,
        ]);
        (ran.code == Some(0)).then_some(ran.stdout)
    }

    /// The id of the work tree's commit, with a newline. Never `None`: the type is that of
    /// [`Self::at_origin`], so that tests can compare the two.
    pub fn head(&self) -> Option<String> {
        Some(self.work(&["rev-parse", "HEAD"]).ok())
    }

    /// Number of pushes with commands that reached the origin.
    pub fn pushes_seen(&self) -> usize {
        let seen = self.origin.seen();
        let pushes = seen
            .iter()
            .filter(|seen| seen.target.ends_with("/git-receive-pack"));
        // git's probe for authentication has a body of four bytes.
        pushes.filter(|seen| seen.received() > 4).count()
    }
}

#[test]
fn an_authorized_repository_is_cloned_fetched_and_pushed_with_and_without_the_git_suffix() {
    let forge = Forge::start();
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    assert_eq!(forge.at_origin("main"), forge.head());
    forge.work(&["tag", "v1"]).ok();
    forge
        .work(&["push", "--quiet", "origin", "v1", "main:refs/heads/topic"])
        .ok();
    assert_eq!(forge.at_origin("v1"), forge.head());
    for (at, url) in [("a", "acme/web.git"), ("b", "acme/web")] {
        forge
            .git(&["clone", "--quiet", &format!("{HOST}/{url}"), at])
            .ok();
        forge.git(&["-C", at, "fetch", "--quiet", "--depth=1"]).ok();
    }
    forge
        .git(&[
            "-C",
            "b",
            "push",
            "--quiet",
            "origin",
            "main:refs/heads/without",
        ])
        .ok();
    assert_eq!(forge.at_origin("without"), forge.head());
    each_row(
        [("refs", "ok"), ("fetch", "ok"), ("push", "ok")],
        |(operation, outcome)| {
            let labels = [
                format!("operation=\"{operation}\""),
                format!("outcome=\"{outcome}\""),
            ];
            let labels = labels.each_ref().map(String::as_str);
            assert!(forge.proxy.metric("proxy_git_operations_total", &labels) >= 2.0);
        },
    );
}

#[test]
fn repository_names_are_compared_without_letter_case() {
    let forge = Forge::start();
    let repositories = forge.origin.repositories();
    std::os::unix::fs::symlink(repositories.join("acme"), repositories.join("ACME")).unwrap();
    let upper = format!("{HOST}/ACME/web.git");
    forge.git(&["ls-remote", "--quiet", &upper]).ok();
    let denied = forge.git(&["ls-remote", &format!("{HOST}/ACME/OTHER.git")]);
    assert!(denied.stderr.contains("403"), "{denied:?}");
}

#[test]
fn clones_and_reads_of_another_repository_are_denied() {
    let forge = Forge::start();
    each_row(
        [
            [
                "clone",
                "--quiet",
                "https://git.example.com/acme/other",
                "x",
            ],
            [
                "clone",
                "--quiet",
                "https://git.example.com/acme/web/other.git",
                "x",
            ],
        ],
        |arguments| {
            let ran = forge.git(&arguments);
            assert_eq!(ran.code, Some(128));
            assert!(
                ran.stderr.contains("The requested URL returned error: 403"),
                "{ran:?}"
            );
            let said = [
                "remote: Repo not authorized",
                "remote: code: repo_not_authorized",
            ];
            assert!(said.iter().all(|line| ran.stderr.contains(line)), "{ran:?}");
        },
    );
    each_row(
        [
            "/acme/other",
            "/acme/other/raw/main/a",
            "/acme/other.git/HEAD",
        ],
        |path| {
            let reply = forge.proxy.fetch("git.example.com", path);
            reply.assert_denied(403, "repo_not_authorized", "Repo not authorized");
            assert_eq!(reply.json()["repo"], "acme/other");
        },
    );
    let nameless = forge.proxy.fetch("git.example.com", "/search?q=acme");
    nameless.assert_denied(403, "repo_not_authorized", "Repo not authorized");
    assert_eq!(forge.origin.seen().len(), 0);
    forge.proxy.audited(json!({
        "code": "repo_not_authorized", "addon": "git", "rule": "repos of container sandbox",
        "status": 403, "path": "/acme/other.git/HEAD",
    }));
}

#[test]
fn writes_over_dumb_http_webdav_and_web_forms_are_refused() {
    let forge = Forge::start();
    each_row(
        [
            ("PUT", "/acme/web.git/objects/ab/cdef", 403),
            ("DELETE", "/acme/web.git/refs/heads/main", 403),
            ("POST", "/acme/web/settings", 403),
            ("PROPFIND", "/acme/web.git/", 405),
            ("MKCOL", "/acme/web.git/refs/heads/x", 405),
        ],
        |(method, path, status)| {
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: git.example.com\r\nContent-Length: 0\r\n\r\n"
            );
            let reply = forge.proxy.https("git.example.com", head);
            assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        },
    );
    forge.origin.assert_untouched();
}

#[test]
fn a_deletion_is_denied_and_git_shows_why() {
    let forge = Forge::start();
    forge
        .work(&[
            "push",
            "--quiet",
            "origin",
            "main",
            "main:topic",
            "main:refs/tags/v1",
        ])
        .ok();
    let pushed = forge.pushes_seen();
    each_row(
        [
            ("topic", "Branch deletion blocked: refs/heads/topic"),
            ("refs/tags/v1", "Branch deletion blocked: refs/tags/v1"),
        ],
        |(name, shown)| {
            let said = forge.denied_push(&["--delete", name]);
            assert!(
                said.contains("[remote rejected]") && said.contains(shown),
                "{said}"
            );
            assert!(forge.at_origin(name).is_some());
        },
    );
    // One denied command denies all commands of its push.
    forge.commit("second");
    let said = forge.denied_push(&["main:new", ":topic"]);
    assert_eq!(
        said.matches("Branch deletion blocked: refs/heads/topic")
            .count(),
        2,
        "{said}"
    );
    assert_eq!(forge.at_origin("new"), None);
    assert_eq!(forge.pushes_seen(), pushed);
    let blocked = ["reason=\"branch_deletion_blocked\""];
    assert_eq!(
        forge.proxy.metric("proxy_git_push_blocked_total", &blocked),
        3.0
    );
    forge.proxy.audited(json!({
        "code": "branch_deletion_blocked", "status": 403, "outcome": "denied",
        "addon": "git", "rule": "policy.allow_branch_deletion",
    }));
}

#[test]
fn deletions_pass_if_the_policy_allows_them() {
    let forge = Forge::with(
        |setup| {
            let policy = setup.policy.as_mut().unwrap();
            policy["policy"] = json!({ "allow_branch_deletion": true });
        },
        json!({}),
    );
    forge
        .work(&["push", "--quiet", "origin", "main", "main:topic"])
        .ok();
    forge
        .work(&["push", "--quiet", "origin", "--delete", "topic"])
        .ok();
    assert_eq!(forge.at_origin("topic"), None);
}

#[test]
fn in_bot_mode_pushes_pass_only_to_sandbox_branches() {
    let forge = Forge::with(|_| (), json!({ "auth_mode": "bot" }));
    let shown = "Bot mode: can only push to sandbox/* branches";
    each_row(
        ["main", "main:refs/tags/v1", "main:refs/heads/sandboxed"],
        |to| {
            let said = forge.denied_push(&[to]);
            assert!(said.contains(shown), "{said}");
        },
    );
    let mixed = forge.denied_push(&["main:sandbox/a", "main"]);
    assert_eq!(mixed.matches(shown).count(), 2, "{mixed}");
    assert_eq!(forge.pushes_seen(), 0);
    forge
        .work(&["push", "--quiet", "origin", "main:sandbox/a"])
        .ok();
    assert_eq!(forge.at_origin("sandbox/a"), forge.head());
}

#[test]
fn pushes_to_review_refs_and_replace_refs_are_denied() {
    let forge = Forge::start();
    each_row(
        [
            "refs/for/main",
            "refs/replace/0123456789abcdef0123456789abcdef01234567",
        ],
        |name| {
            let said = forge.denied_push(&[&format!("main:{name}")]);
            assert!(
                said.contains(&format!("Write not allowed: push to {name}")),
                "{said}"
            );
        },
    );
    assert_eq!(forge.pushes_seen(), 0);
}

#[test]
fn force_pushes_pass() {
    let forge = Forge::start();
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    forge
        .work(&["commit", "--quiet", "--amend", "-m", "Another"])
        .ok();
    let refused = forge.work(&["push", "origin", "main"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    forge
        .work(&["push", "--quiet", "--force", "origin", "main"])
        .ok();
    assert_eq!(forge.at_origin("main"), forge.head());
}

#[test]
fn atomic_and_shallow_pushes_pass() {
    let forge = Forge::start();
    forge.commit("second");
    forge
        .work(&[
            "push", "--quiet", "--atomic", "origin", "main", "main:b", "main:c",
        ])
        .ok();
    assert_eq!(forge.at_origin("c"), forge.head());
    let url = format!("{HOST}/acme/web.git");
    forge
        .git(&["clone", "--quiet", "--depth=1", &url, "shallow"])
        .ok();
    forge
        .git(&[
            "-C",
            "shallow",
            "push",
            "--quiet",
            "origin",
            "main:refs/heads/d",
        ])
        .ok();
    assert_eq!(forge.at_origin("d"), forge.head());
}

#[test]
fn push_options_are_refused_and_git_shows_why() {
    let forge = Forge::start();
    let bare = forge.origin.repositories().join("acme/web.git");
    let bare = bare.to_str().unwrap();
    forge
        .git(&["-C", bare, "config", "receive.advertisePushOptions", "true"])
        .ok();
    let said = forge.denied_push(&["--push-option=ci.skip", "main"]);
    assert!(said.contains("Write not allowed: push options"), "{said}");
    assert_eq!(forge.at_origin("main"), None);
}

#[test]
fn with_push_denials_set_to_status_a_denial_is_a_json_response() {
    let forge = Forge::with(
        |setup| setup.policy.as_mut().unwrap()["git"]["push_denials"] = "status".into(),
        json!({ "auth_mode": "bot" }),
    );
    let ran = forge.work(&["push", "origin", "main"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("HTTP 403"), "{ran:?}");
    let body = "0093".to_owned()
        + &"0".repeat(40)
        + " 0123456789abcdef0123456789abcdef01234567 refs/heads/main\0 report-status side-band-64k agent=x\n";
    let length = body.len();
    let body = body.replacen("0093", &format!("{length:04x}"), 1) + "0000";
    let head = format!(
        "POST /acme/web.git/git-receive-pack HTTP/1.1\r\nHost: git.example.com\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = forge.proxy.https("git.example.com", head);
    reply.assert_denied(
        403,
        "bot_branch_restricted",
        "Bot mode: can only push to sandbox/* branches",
    );
}

#[test]
fn public_repositories_are_read_without_a_credential_if_the_policy_allows_it() {
    let forge = Forge::with(
        |setup| {
            setup.policy.as_mut().unwrap()["git"]["public_reads"] = "allow".into();
            setup.credential(json!({
                "name": "forge", "hosts": ["git.example.com"],
                "basic": { "username": "x-access-token", "password": "a-token-of-the-forge" },
            }));
        },
        json!({}),
    );
    let seen_with_credential = || {
        let seen = forge.origin.seen();
        seen.iter()
            .filter(|seen| seen.header("authorization").is_some())
            .count()
    };
    forge
        .git(&["clone", "--quiet", &format!("{HOST}/acme/other"), "other"])
        .ok();
    assert!(!forge.origin.seen().is_empty());
    assert_eq!(seen_with_credential(), 0);
    forge
        .git(&["clone", "--quiet", &format!("{HOST}/acme/web"), "web"])
        .ok();
    assert!(seen_with_credential() > 0);
    let push = forge.work(&["push", &format!("{HOST}/acme/other"), "main"]);
    assert!(push.stderr.contains("403"), "{push:?}");
}
