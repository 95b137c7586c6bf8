//! The configuration of a repository: git in the sandbox may change it, and the host takes over only
//! what cannot harm it.

use std::fs;
use std::path::Path;

use testkit::each_row;

use super::git_trees::said;
use super::protected::{git, repository};
use crate::fixture::Person;
use crate::support::{Ran, SOON, eventually};

/// The value of a setting on the host; empty if it has none.
fn setting(person: &Person, key: &str) -> String {
    let mut command = person.outside("git");
    let ran = Ran::of(command.args(["config", "--local", "--get-all", key]));
    ran.stdout.trim().to_owned()
}

/// A repository in the working directory that was pushed to a bare one, whose path is returned.
fn cloned(person: &Person) -> String {
    let origin = person.directory("origin.git");
    git(person, &origin, &["init", "--quiet", "--bare"]);
    let work = repository(person, "project");
    let origin = origin.to_str().unwrap().to_owned();
    git(person, &work, &["remote", "add", "origin", &origin]);
    git(
        person,
        &work,
        &["push", "--quiet", "origin", "main", "main:theirs"],
    );
    git(person, &work, &["fetch", "--quiet"]);
    origin
}

#[test]
fn git_keeps_track_of_branches_and_remotes_and_the_host_takes_them_over() {
    let Some(person) = Person::new() else { return };
    let origin = cloned(&person);
    // What a setting of the same file includes stays in force.
    git(
        &person,
        &person.work(),
        &["config", "include.path", "../shared.gitconfig"],
    );
    person.write(
        "project/shared.gitconfig",
        "[alias]\n\tshort = status --short\n",
    );
    let script = "set -e; git switch -q -c feature; git push -q -u origin feature; git switch -q theirs; \
        git remote add fork https://example.com/fork/project; git branch -q gone; git branch -q -u origin/theirs gone; \
        git branch -q -D gone; git switch -q -c old; git branch -q -u origin/main; git branch -m old new; \
        git config --get-regexp '^branch'; git short >&2";
    let ran = person.sh(&["--write", &origin], script);
    let inside = "branch.feature.remote origin\nbranch.feature.merge refs/heads/feature\n\
        branch.theirs.remote origin\nbranch.theirs.merge refs/heads/theirs\n\
        branch.new.remote origin\nbranch.new.merge refs/heads/main\n";
    assert_eq!(said(&ran), inside, "{ran:?}");
    for (key, value) in [
        ("branch.feature.remote", "origin"),
        ("branch.feature.merge", "refs/heads/feature"),
        ("branch.theirs.merge", "refs/heads/theirs"),
        ("branch.new.merge", "refs/heads/main"),
        ("branch.old.merge", ""),
        ("remote.fork.url", "https://example.com/fork/project"),
        ("remote.fork.fetch", "+refs/heads/*:refs/remotes/fork/*"),
        ("remote.origin.url", &origin),
        ("include.path", "../shared.gitconfig"),
    ] {
        assert_eq!(setting(&person, key), value, "{key}");
    }
    assert!(
        ran.stderr
            .contains("\n  remote.fork.url = https://example.com/fork/project\n"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("ended with it"), "{ran:?}");
    // The next run changes nothing and says nothing.
    let before = fs::read(person.work().join(".git/config")).unwrap();
    assert_eq!(
        person.sh(&[], "git branch -q -u origin/main new").stderr,
        ""
    );
    assert_eq!(fs::read(person.work().join(".git/config")).unwrap(), before);
    // Branches may lose their remote.
    person
        .sh(&[], "git switch -q main; git branch -q -D new")
        .ok();
    assert_eq!(setting(&person, "branch.new.remote"), "");
    assert_eq!(setting(&person, "branch.feature.remote"), "origin");
}

/// Ways to write to a configuration from the inside, and text that the report has of them.
#[test]
fn what_the_host_would_execute_stays_in_the_sandbox_however_it_is_written() {
    let evil = "git config core.fsmonitor 'touch ../executed'; git config core.hooksPath .; git config alias.st '!touch ../executed'";
    let copy = "$(readlink .git/config)";
    let rows = [
        (evil.to_owned(), "core.fsmonitor = touch ../executed"),
        (format!("{evil}; git config branch.main.remote ../evil"), "branch.main.remote = ../evil"),
        ("git remote add x 'ext::sh -c true'; git remote set-url origin ../evil".to_owned(), "remote.origin.url = ../evil"),
        ("git remote remove origin".to_owned(), "remote.origin.url (removed)"),
        ("printf '[core]\\n\\tfsmonitor = touch ../executed\\n' >> .git/config; rm -f .git/config; mv .git/config away; \
          ln -sf /dev/null .git/config; touch new; mv new .git/config; git config user.email b@example.com".to_owned(), "user.email = b@example.com"),
        (format!("echo '[core' > {copy}"), "git cannot read them"),
        (format!("c={copy}; rm $c; mkfifo $c"), "not taken over"),
        (format!("c={copy}; rm $c; ln -s $PWD/other $c; git config -f other core.fsmonitor evil"), "not taken over"),
        (format!("head -c 2000000 /dev/zero > {copy}"), "not taken over"),
        (format!("rm {copy}"), "not taken over"),
        ("for n in $(seq 120); do printf '[branch \"b%s\"]\\nremote = origin\\n' $n; done >> .git/config".to_owned(), "more than 100"),
    ];
    each_row(rows, |(script, said)| {
        let Some(person) = Person::new() else { return };
        cloned(&person);
        let config = person.work().join(".git/config");
        let before = fs::read(&config).unwrap();
        let ran = person.sh(&["--quiet"], &script);
        assert!(fs::read(&config).unwrap() == before, "{script}");
        assert!(ran.stderr.contains(said), "{script}: {ran:?}");
        git(&person, &person.work(), &["status", "--short"]);
        assert!(!person.home().join("executed").exists(), "{script}");
    });
}

#[test]
fn the_settings_of_submodules_and_nested_and_bare_repositories_are_protected_too() {
    let Some(person) = Person::new() else { return };
    let library = repository(&person, "library");
    let work = repository(&person, "project");
    let library = library.to_str().unwrap();
    git(
        &person,
        &work,
        &["submodule", "--quiet", "add", library, "part"],
    );
    repository(&person, "project/vendor/nested");
    let bare = person.directory("project/bare");
    git(&person, &bare, &["init", "--quiet", "--bare"]);
    let configs = [
        ".git/modules/part/config",
        "vendor/nested/.git/config",
        "bare/config",
    ];
    let before = configs.map(|name| fs::read(work.join(name)).unwrap());
    let script = "for at in part vendor/nested bare; do git -C $at config core.fsmonitor evil; \
        git -C $at config core.fsmonitor; done";
    let ran = person.sh(&[], script);
    assert_eq!(said(&ran), "evil\nevil\nevil\n");
    assert!(configs.map(|name| fs::read(work.join(name)).unwrap()) == before);
    assert_eq!(
        ran.stderr.matches("core.fsmonitor = evil").count(),
        3,
        "{ran:?}"
    );
}

/// A run that takes settings over replaces no file, so another run in the same directory goes on.
#[test]
fn a_run_goes_on_while_another_takes_settings_over() {
    let Some(person) = Person::new() else { return };
    cloned(&person);
    let script =
        "echo ready; read -r line; git branch -q other; git branch -q -u origin/theirs other";
    let mut first = person.spawn(&[], &["sh", "-c", script]);
    let mut ready = [0; 6];
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut ready).unwrap();
    person.sh(&[], "git branch -q -u origin/main main").ok();
    assert_eq!(setting(&person, "branch.main.remote"), "origin");
    drop(first.stdin.take());
    eventually("the run ends", SOON, || first.try_wait().unwrap().is_some());
    assert_eq!(first.wait().unwrap().code(), Some(0));
    assert_eq!(setting(&person, "branch.main.remote"), "origin");
    assert_eq!(setting(&person, "branch.other.merge"), "refs/heads/theirs");
    assert!(!Path::new(&person.work().join(".git/config.lock")).exists());
}
