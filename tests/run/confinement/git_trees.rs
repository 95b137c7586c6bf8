//! git in linked work trees, submodules and directories below the top of a work tree, and git's work
//! with placeholders and with protected files that differ between branches.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::each_row;

use super::protected::{git, repository};
use crate::fixture::{Person, names};
use crate::support::Ran;

const NAME: &str = "git config --global user.name B; git config --global user.email b@example.com";

/// The output of a run that succeeded.
#[track_caller]
pub fn said(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    &ran.stdout
}

/// The output of git on the host.
fn outside(person: &Person, directory: &Path, arguments: &[&str]) -> String {
    let mut command = person.outside("git");
    Ran::of(command.current_dir(directory).args(arguments)).ok()
}

/// A repository `main` whose linked work tree is the working directory, and `other`, another one.
fn linked(person: &Person) -> PathBuf {
    let main = repository(person, "main");
    for (at, branch) in [("project", "feature"), ("other", "other")] {
        let at = person.home().join(at);
        let add = [
            "worktree",
            "add",
            "--quiet",
            "-b",
            branch,
            at.to_str().unwrap(),
        ];
        git(person, &main, &add);
    }
    main
}

#[test]
fn git_works_in_a_linked_work_tree_and_forgets_no_other() {
    let Some(person) = Person::new() else { return };
    let main = linked(&person);
    let script = format!(
        "set -e; {NAME}; echo more > new; git add -A; git commit -q -m second; git show -s --format=%s HEAD; \
         echo x > y; git stash -q -u; git stash pop -q >&2; git clean -q -fd; git worktree prune; git gc -q --prune=now; \
         git branch -q -f theirs HEAD; git worktree add -q inner -b inner; git status --short; git ls-files"
    );
    let ran = person.sh(&[], &script);
    // The new work tree.
    assert_eq!(said(&ran), "second\n?? inner/\nfile\nnew\n", "{ran:?}");
    assert_eq!(
        outside(&person, &main, &["log", "-1", "--format=%s", "feature"]),
        "second\n"
    );
    let other = person.home().join("other");
    assert_eq!(outside(&person, &other, &["status", "--short"]), "");
    assert_eq!(outside(&person, &main, &["status", "--short"]), "");
    assert_eq!(
        outside(&person, &main, &["worktree", "list"])
            .lines()
            .count(),
        4
    );
    assert!(!names(&main.join(".git")).contains(&".envrc".to_owned()));
    git(&person, &main, &["fsck"]);
    // What the host executes is protected in the directory that the trees share.
    let hook = "echo evil > ../main/.git/hooks/pre-commit; git config core.fsmonitor evil; rm ../main/file";
    let ran = person.sh(&[], hook);
    assert!(ran.stderr.contains("core.fsmonitor = evil"), "{ran:?}");
    assert!(!main.join(".git/hooks/pre-commit").exists() && main.join("file").exists());
    assert_eq!(outside(&person, &main, &["status", "--short"]), "");
}

#[test]
fn no_run_in_the_main_work_tree_forgets_linked_ones() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    let other = person.home().join("deep/other");
    let add = ["worktree", "add", "--quiet", other.to_str().unwrap()];
    git(&person, &work, &add);
    let ran = person.sh(
        &[],
        "set -e; git worktree prune; git gc -q --prune=now; git worktree list | wc -l",
    );
    assert_eq!(said(&ran), "2\n", "{ran:?}");
    assert_eq!(outside(&person, &other, &["status", "--short"]), "");
    assert_eq!(names(&work.join(".git/worktrees")), ["other"]);
}

#[test]
fn git_works_in_a_submodule() {
    let Some(person) = Person::new() else { return };
    let library = repository(&person, "library");
    let outer = repository(&person, "outer");
    let library = library.to_str().unwrap();
    git(
        &person,
        &outer,
        &["submodule", "--quiet", "add", library, "lib/part"],
    );
    let part = outer.join("lib/part");
    let config = outer.join(".git/modules/lib/part/config");
    let before = fs::read(&config).unwrap();
    let script = format!(
        "set -e; {NAME}; git switch -q -c feature; git commit -q --allow-empty -m second; git status --short; \
         git config core.fsmonitor evil; git log --format=%s; ls -a ../.."
    );
    let ran = Ran::of(
        person
            .command(&[], &["sh", "-c", &script])
            .current_dir(&part),
    );
    assert_eq!(said(&ran), "second\nfirst\n.\n..\n.git\nlib\n", "{ran:?}");
    assert!(fs::read(config).unwrap() == before);
    assert_eq!(
        outside(&person, &part, &["log", "-1", "--format=%s"]),
        "second\n"
    );
}

/// A `.git` that came with the directory may name any repository of the user.
#[test]
fn a_git_directory_that_does_not_name_the_work_tree_is_not_shown() {
    each_row(
        ["main/.git", "main/.git/worktrees/other", "fake"],
        |named| {
            let Some(person) = Person::new() else { return };
            let main = repository(&person, "main");
            let other = person.home().join("other");
            git(
                &person,
                &main,
                &["worktree", "add", "--quiet", other.to_str().unwrap()],
            );
            // A directory in the tree that claims to belong to `main`.
            let fake = person.directory("project/fake");
            let named = match named {
                "fake" => fake.clone(),
                named => person.home().join(named),
            };
            person.write(fake.join("HEAD"), "ref: refs/heads/main\n");
            person.write(fake.join("commondir"), "../../main/.git\n");
            person.write(
                fake.join("gitdir"),
                format!("{}/.git\n", person.work().display()),
            );
            person.write("project/.git", format!("gitdir: {}\n", named.display()));
            let ran = person.sh(
                &[],
                &format!("cat {}/config || echo hidden", main.join(".git").display()),
            );
            assert_eq!(ran.stdout, "hidden\n", "{ran:?}");
            let is_hinted = ran.stderr.contains("git does not work here");
            assert_eq!(is_hinted, named != fake, "{ran:?}");
        },
    );
}

#[test]
fn below_the_top_of_a_work_tree_the_start_says_what_to_do() {
    let Some(person) = Person::new() else { return };
    let top = repository(&person, "top");
    person.write("top/sub/deep/file", "x\n");
    git(&person, &top, &["add", "-A"]);
    git(&person, &top, &["commit", "-q", "-m", "second"]);
    let below = top.join("sub");
    let run = |flags: &[&str], script: &str| {
        Ran::of(
            person
                .command(flags, &["sh", "-c", script])
                .current_dir(&below),
        )
    };
    let (shown, git_directory) = (top.to_str().unwrap(), top.join(".git"));
    let ran = run(&[], "echo ran");
    assert_eq!(said(&ran), "ran\n");
    assert!(
        ran.stderr.contains(&format!("start in {shown} ")),
        "{ran:?}"
    );
    assert_eq!(run(&["--quiet"], "true").stderr, "");
    // Otherwise `git add -A` would remove the files of the tree that are not visible.
    let ran = run(&["--write", git_directory.to_str().unwrap()], "echo ran");
    assert_eq!((ran.code, &*ran.stdout), (Some(64), ""), "{ran:?}");
    let script = format!(
        "{NAME}; set -e; git show -s --format=%s HEAD; echo x > new; git add -A; git commit -q -m third; \
         git status --short; git ls-files --full-name"
    );
    let ran = run(&["--write", shown], &script);
    assert_eq!(said(&ran), "second\nsub/deep/file\nsub/new\n", "{ran:?}");
    assert_eq!(ran.stderr, "");
    assert_eq!(outside(&person, &top, &["status", "--short"]), "");
    assert_eq!(names(&below), ["deep", "new"]);
    // While a run lasts, the host's git has no ambiguous name.
    let mut command = person.command(&["--quiet"], &["sh", "-c", "echo ready; read -r line"]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut lasting = command.current_dir(&below).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(lasting.stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(
        outside(&person, &below, &["show", "-s", "--format=%s", "HEAD"]),
        "third\n"
    );
    drop(lasting.stdin.take());
    lasting.wait().unwrap();
}

/// git would execute the settings of a git directory before those of the work tree around it.
#[test]
fn a_directory_of_a_work_tree_cannot_become_a_git_directory() {
    let plant = "mkdir -p objects refs/heads real/refs real/objects; echo 'ref: refs/heads/main' > HEAD; \
        printf '[core]\\nbare = false\\nworktree = .\\nfsmonitor = touch executed\\n' > config; \
        echo real > commondir; echo ready; read -r line; true";
    each_row(["", "refs", "commondir", "refs commondir"], |existing| {
        let Some(person) = Person::new() else { return };
        let top = repository(&person, "top");
        let below = person.directory("top/sub");
        for name in existing.split_whitespace() {
            person.write(below.join(name), "mine\n");
        }
        let mut command = person.command(&[], &["sh", "-c", plant]);
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut run = command.current_dir(&below).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let inside = ["rev-parse", "--show-toplevel"];
        let expected = format!("{}\n", top.display());
        assert_eq!(outside(&person, &below, &inside), expected, "{existing}");
        drop(run.stdin.take());
        run.wait().unwrap();
        assert_eq!(outside(&person, &below, &inside), expected, "{existing}");
        outside(&person, &below, &["status", "--short"]);
        assert!(!below.join("executed").exists(), "{existing}");
    });
}

#[test]
fn placeholders_are_left_out_in_nested_repositories_and_without_a_file_of_excludes() {
    each_row(["exclude", "info", "", "own"], |removed| {
        let Some(person) = Person::new() else { return };
        let work = repository(&person, "project");
        person.write("project/.gitignore", "/nested\n");
        git(&person, &work, &["add", ".gitignore"]);
        git(&person, &work, &["commit", "-q", "-m", "second"]);
        let nested = repository(&person, "project/nested");
        for tree in [&work, &nested] {
            git(
                &person,
                tree,
                &["config", "core.hooksPath", "missing hooks"],
            );
            let info = tree.join(".git/info");
            match removed {
                "exclude" => fs::remove_file(info.join("exclude")).unwrap(),
                "info" => fs::remove_dir_all(info).unwrap(),
                "own" => {
                    person.write(info.join("exclude"), "*.own\n");
                }
                _ => {}
            }
        }
        let script = format!(
            "{NAME}; set -e; for tree in . nested; do cd $tree; echo more > other; echo x > x.own; mkdir own; echo x > own/x; \
             git stash -q -u; git stash pop -q >&2; git add -A; git diff --cached --name-only; git reset -q; \
             git clean -q -fd; git status --short; rm -f x.own; done"
        );
        let expected = match removed {
            "own" => "other\nown/x\nother\nown/x\n",
            _ => "other\nown/x\nx.own\nother\nown/x\nx.own\n",
        };
        let ran = person.sh(&[], &script);
        assert_eq!(said(&ran), expected, "{removed}: {ran:?}");
        assert!(!ran.stderr.contains("exclude"), "{removed}: {ran:?}");
        for tree in [&work, &nested] {
            let info = names(&tree.join(".git/info"));
            let expected: &[&str] = if ["exclude", "info"].contains(&removed) {
                &[]
            } else {
                &["exclude"]
            };
            assert_eq!(info, expected, "{removed}");
            assert_eq!(tree.join(".git/info").exists(), removed != "info");
        }
    });
}

/// git can neither replace nor remove a read-only file.
#[test]
fn other_versions_of_protected_files_in_the_commit_that_is_checked_out_are_listed() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    for (branch, text) in [("main", "1\n"), ("same", "1\n"), ("other", "2\n")] {
        git(&person, &work, &["checkout", "-q", "-B", branch]);
        for name in [".mcp.json", ".claude/settings.json", "plain"] {
            person.write(work.join(name), text);
        }
        person.write(work.join("own"), branch);
        git(&person, &work, &["add", "-A"]);
        git(&person, &work, &["commit", "-q", "-m", branch]);
    }
    git(&person, &work, &["rm", "-q", "-r", ".claude"]);
    git(&person, &work, &["commit", "-q", "-m", "removed"]);
    git(&person, &work, &["checkout", "-q", "main"]);
    let ran = person.sh(&[], "git switch -q same && git merge -q main && git reset -q --hard main~0 && git status --short");
    assert_eq!((said(&ran), &*ran.stderr), ("", ""), "{ran:?}");
    let ran = person.sh(&["--quiet"], "git switch -q other; cat plain");
    assert_eq!(said(&ran), "2\n");
    for name in [".claude", ".mcp.json"] {
        let line = format!(
            "{} (HEAD has another version than before",
            work.join(name).display()
        );
        assert!(ran.stderr.contains(&line), "{ran:?}");
    }
    // As the list says.
    outside(&person, &work, &["restore", "."]);
    assert_eq!(fs::read_to_string(work.join(".mcp.json")).unwrap(), "2\n");
}
