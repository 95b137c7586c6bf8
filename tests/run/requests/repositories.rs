//! `--repo` and `--mode`: the repositories and branches that git may use.

use serde_json::json;

use crate::fixture::Person;
use crate::support::Ran;

/// A user, and an origin that is a forge with two repositories.
fn forge() -> Option<Person> {
    let mut person = Person::new()?;
    let https = person.origin.https;
    person.setup.host("github.com", https);
    person.setup.credential(json!({
        "name": "forge", "hosts": ["github.com"], "basic": { "username": "x-access-token", "password": "real-token-5d1c" },
    }));
    for name in ["acme/web", "acme/other"] {
        person.origin.create_repository(name);
    }
    Some(person)
}

fn at_origin(person: &Person, name: &str) -> Option<String> {
    let bare = person.origin.repositories().join("acme/web.git");
    let mut git = std::process::Command::new("git");
    git.arg("-C")
        .arg(bare)
        .args(["rev-parse", "--verify", "--quiet", name]);
    let ran = Ran::of(&mut git);
    (ran.code == Some(0)).then_some(ran.stdout)
}

const COMMIT: &str = "git clone -q https://github.com/acme/web.git web 2>&1; cd web; git checkout -qb main;\
    echo text > file; git add file; git -c user.name=A -c user.email=a@example.com commit -qm first;";

#[test]
fn an_allowed_repository_is_cloned_and_pushed_and_another_one_is_denied() {
    let Some(person) = forge() else { return };
    let script = format!(
        "{COMMIT} git push -q origin main && git rev-parse HEAD; git ls-remote https://github.com/acme/other.git"
    );
    let ran = person.sh(&["--repo", "acme/web"], &script);
    let pushed = at_origin(&person, "main").expect("a push");
    assert!(ran.stdout.ends_with(&pushed), "{ran:?}");
    assert_eq!(ran.code, Some(128), "{ran:?}");
    let words = super::answers::summary(&ran.stderr);
    assert_eq!(
        words,
        [["github.com/acme/other", "1", "time", "--repo", "acme/other"]],
        "{ran:?}"
    );
    let seen = person.origin.seen();
    assert!(
        seen.iter().all(|seen| !seen.target.contains("other")),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .any(|seen| seen.header("authorization").is_some())
    );
}

#[test]
fn a_repository_can_be_given_by_its_url() {
    let Some(person) = forge() else { return };
    let flags = ["--repo", "https://github.com/acme/web.git"];
    person
        .sh(&flags, "git ls-remote https://github.com/acme/web")
        .ok();
}

#[test]
fn without_the_flag_no_repository_can_be_used() {
    let Some(person) = forge() else { return };
    let ran = person.run(&[], &["git", "ls-remote", "https://github.com/acme/web"]);
    assert_eq!(ran.code, Some(128), "{ran:?}");
    assert!(ran.stderr.contains("--repo acme/web"), "{ran:?}");
    person.origin.assert_untouched();
}

#[test]
fn in_bot_mode_only_sandbox_branches_can_be_pushed_to() {
    let Some(person) = forge() else { return };
    let script = format!(
        "{COMMIT} git push origin main 2>&1; git push -q origin main:sandbox/work && echo pushed"
    );
    let ran = person.sh(&["--repo", "acme/web", "--mode", "bot"], &script);
    assert!(
        ran.stdout.contains("can only push to sandbox/* branches"),
        "{ran:?}"
    );
    assert!(ran.stdout.ends_with("pushed\n"), "{ran:?}");
    assert!(at_origin(&person, "main").is_none());
    assert!(at_origin(&person, "sandbox/work").is_some());
}
