use std::os::unix::fs::symlink;
use std::process::Command;

use testkit::each_row;

use super::super::report::text_of_changes;
use super::super::search::list::MAX_DEPTH;
use super::*;

/// A writable directory after a shell script.
fn directory(script: &str) -> (tempfile::TempDir, [PathBuf; 1]) {
    let work = tempfile::tempdir().unwrap();
    let at = fs::canonicalize(work.path()).unwrap();
    sh(&at, script);
    (work, [at])
}

fn sh(directory: &Path, script: &str) {
    let mut command = Command::new("sh");
    let status = command
        .args(["-ec", script])
        .current_dir(directory)
        .status();
    assert!(status.unwrap().success(), "{script}");
}

fn find(writable: &[PathBuf]) -> Protected {
    Protected::find(writable, &[], None, Some("git".into())).unwrap()
}

/// The list after a command, with relative paths.
fn listed(prepare: &str, command: &str) -> Vec<String> {
    let (_work, writable) = directory(prepare);
    let before = find(&writable);
    assert_eq!(before.changes(&writable).unwrap(), [], "{prepare}");
    sh(&writable[0], command);
    let changes = before.changes(&writable).unwrap();
    let line = |(path, change): &(PathBuf, Change)| {
        let path = path.strip_prefix(&writable[0]).unwrap();
        format!("{}{change}", path.display())
    };
    changes.iter().map(line).collect()
}

#[test]
fn targets_of_links_in_protected_directories_are_compared() {
    let hook = "git init -q; mkdir scripts tools; echo tools/check.sh > scripts/pre-commit.sh; \
        echo x > tools/check.sh; ln -s ../../scripts/pre-commit.sh .git/hooks/pre-commit";
    let of_path = "git init -q; git config core.hooksPath a/hooks; mkdir -p a/hooks scripts; echo x > scripts/s; \
        ln -s ../../scripts/s a/hooks/pre-push";
    each_row(
        [
            (
                hook,
                "echo y > scripts/pre-commit.sh",
                "scripts/pre-commit.sh (changed)",
            ),
            (hook, "echo y > tools/check.sh", "tools/check.sh (changed)"),
            (
                hook,
                "rm scripts/pre-commit.sh",
                "scripts/pre-commit.sh (removed)",
            ),
            (of_path, "echo y > scripts/s", "scripts/s (changed)"),
            (
                "git init -q; ln -s ../../scripts/later .git/hooks/pre-commit",
                "mkdir scripts; echo x > scripts/later",
                "scripts/later",
            ),
            (
                "mkdir .vscode config; echo x > config/tasks.json; ln -s ../config/tasks.json .vscode",
                "echo y > config/tasks.json",
                "config/tasks.json (changed)",
            ),
            (
                "mkdir .claude skills; echo x > skills/a.md; ln -s ../skills .claude/skills",
                "echo y > skills/b.md",
                "skills/b.md",
            ),
        ],
        |(prepare, command, line)| assert_eq!(listed(prepare, command), [line], "{prepare}"),
    );
}

#[test]
fn the_files_of_directories_to_which_links_lead_are_compared() {
    let husky = "mkdir real; echo x > real/pre-commit; ln -s real .husky";
    let twice = "mkdir -p a/b c; ln -s a .agent; ln -s ../../c a/b/c; ln -s .. a/b/loop; ln -s a/b/loop/b .other";
    each_row(
        [
            (
                husky,
                "echo y > real/pre-commit",
                "real/pre-commit (changed)",
            ),
            (husky, "echo x > real/pre-push", "real/pre-push"),
            (husky, "rm .husky; ln -s / .husky", ".husky (changed)"),
            (twice, "echo x > c/settings.json", "c/settings.json"),
            (twice, "echo x > a/b/settings.json", "a/b/settings.json"),
            (
                "ln -s later .agent",
                "mkdir later; echo x > later/file",
                "later",
            ),
        ],
        |(prepare, command, line)| {
            assert!(
                listed(prepare, command).iter().any(|found| found == line),
                "{prepare}: {command}"
            );
        },
    );
    // More links one after another than the stack has room for.
    let (_work, writable) = directory("mkdir d; ln -s d/0 .agent");
    let at = |number: usize| writable[0].join(format!("d/{number}"));
    for number in 0..5000 {
        fs::create_dir(at(number)).unwrap();
        symlink(at(number + 1), at(number).join("next")).unwrap();
    }
    let before = find(&writable);
    let last = at(4999).join("x");
    fs::write(&last, "").unwrap();
    assert_eq!(before.changes(&writable).unwrap(), [(last, Change::Made)]);
}

#[test]
fn missing_files_that_settings_name_are_compared() {
    let config =
        "git init -q; git config diff.external tools/diff.sh; git config core.editor 'sh edit.sh'";
    each_row(
        [
            (
                config,
                "mkdir tools; echo x > tools/diff.sh",
                "tools/diff.sh",
            ),
            (config, "echo x > edit.sh", "edit.sh"),
            (
                "echo 'use flake' > .envrc",
                "echo x > flake.lock",
                "flake.lock",
            ),
        ],
        |(prepare, command, line)| assert_eq!(listed(prepare, command), [line], "{prepare}"),
    );
}

#[test]
fn a_new_repository_hides_no_settings_beside_it() {
    let made = "mkdir -p .agent/settings/.git; echo x > .agent/settings/mcp.json; echo x > .agent/settings/hooks";
    let found = listed("mkdir .agent", made);
    let expected = [".agent/settings/.git", ".agent/settings/mcp.json"];
    assert_eq!(found[..2], expected, "{found:?}");
    let found = listed("mkdir -p .w/f/.git/x", "echo x > .w/f/mcp.json");
    assert_eq!(found, [".w/f/mcp.json"]);
}

/// git leaves the old content of a read-only file in the work tree.
#[test]
fn files_that_differ_between_branches_are_compared() {
    each_row(
        [
            ("echo 1 > .tool-versions", ".tool-versions"),
            (
                "mkdir sub; echo 1 > sub/.tool-versions",
                "sub/.tool-versions",
            ),
            (
                "echo 'use flake' > .envrc; echo 1 > flake.lock",
                "flake.lock",
            ),
            ("echo 'use flake' > .envrc; echo 1 > flake.nix", "flake.nix"),
            ("echo dotenv > .envrc; echo 1 > .env", ".env"),
            (
                "echo '. env/base.sh' > .envrc; mkdir env; echo 1 > env/base.sh",
                "env/base.sh",
            ),
            (
                "echo '. a.sh' > .envrc; echo '. b.sh' > a.sh; echo 1 > b.sh",
                "b.sh",
            ),
        ],
        |(prepare, name)| {
            let (_work, writable) = directory(prepare);
            let is_read_only = find(&writable).obeyed().contains(&writable[0].join(name));
            assert!(!is_read_only, "{name}");
            let changed = listed(prepare, &format!("echo 2 > {name}"));
            assert_eq!(changed, [format!("{name} (changed)")]);
        },
    );
}

#[test]
fn code_in_hidden_directories_is_writable_and_lists_of_servers_are_not() {
    let tree = "mkdir -p .worktrees/f; echo gitdir: x > .worktrees/f/.git;";
    each_row(
        [
            (
                "mkdir .venv; touch .venv/pyvenv.cfg;",
                ".venv/bin/mcp",
                false,
            ),
            (
                "mkdir .venv; touch .venv/pyvenv.cfg;",
                ".venv/bin/mise",
                false,
            ),
            (
                "mkdir .venv; touch .venv/pyvenv.cfg;",
                ".venv/share/x/mcp.json",
                false,
            ),
            (tree, ".worktrees/f/src/mcp/server.py", false),
            (tree, ".worktrees/f/src/mcp.json", false),
            (tree, ".worktrees/f/.roo/mcp.json", true),
            (tree, ".worktrees/g/mcp.json", true),
            ("", ".agent/src/deep/mcp", false),
            ("", ".agent/mcp", true),
            ("", ".agent/config/mcp", true),
            ("", ".kiro/settings/mcp.json", true),
            ("", ".config/mise", true),
            // Otherwise a file would remove the protection of an agent's directory.
            ("mkdir .roo; touch .roo/.git;", ".roo/mcp.json", true),
        ],
        |(prepare, name, is_protected)| {
            let parent = Path::new(name).parent().unwrap().display();
            let script = format!("{prepare} mkdir -p {parent}; echo x > {name}");
            let (_work, writable) = directory(&script);
            let found = find(&writable);
            let mut above = Path::new(name).ancestors();
            let found = above.any(|path| found.obeyed().contains(&writable[0].join(path)));
            assert_eq!(found, is_protected, "{name}");
        },
    );
}

#[test]
fn links_that_the_command_makes_are_listed_and_hide_nothing() {
    let bare = "mkdir -p z/.git/objects z/.git/hooks; echo x > z/.git/HEAD;";
    each_row(
        [
            ("ln -s /etc/passwd z/.git/config", "z/.git"),
            ("echo x > z/c; ln z/c z/.git/config", "z/.git"),
            ("ln -s ../.. z/.git/commondir", "z/.git"),
            ("mkdir y; ln -s ../z/.git y/.git", "y/.git"),
            ("mkdir -p y/.hg; ln -s / y/.hg/hgrc", "y/.hg/hgrc"),
            ("mkdir y; ln -s . y/.envrc", "y/.envrc"),
            ("ln -s .l/a .l", ".l"),
            ("ln -s .m .l; ln -s .l .m", ".l"),
        ],
        |(command, line)| {
            let found = listed("", &format!("{bare} echo x > .npmrc; {command}"));
            for line in [line, ".npmrc"] {
                assert!(found.iter().any(|found| found == line), "{line}: {found:?}");
            }
        },
    );
}

#[test]
fn no_number_of_other_files_displaces_what_the_host_obeys_at_once() {
    let (_work, writable) = directory("");
    let before = find(&writable);
    let flood = "i=0; while [ $i -lt 220 ]; do echo x > .a$i; i=$((i+1)); done; \
        mkdir -p sub z/new; echo x > sub/.envrc; git init -q z/new; git init -q --bare zz";
    sh(&writable[0], flood);
    let text = text_of_changes(&before.changes(&writable));
    for name in ["sub/.envrc", "z/new/.git", "zz"] {
        assert!(text.contains(&format!("/{name}\n")), "{name}: {text}");
    }
    assert!(text.contains("  and 23 more\n"), "{text}");
}

#[test]
fn a_new_repository_is_found_and_a_directory_that_cannot_be_searched_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let writable = [work.path().to_owned()];
    let before = Protected::find(&writable, &[], None, None).unwrap();
    fs::create_dir_all(work.path().join("sub/.git/hooks")).unwrap();
    let changes = before.changes(&writable).unwrap();
    assert_eq!(changes, [(work.path().join("sub/.git"), Change::Made)]);
    let deep: PathBuf = std::iter::repeat_n("d", MAX_DEPTH + 2).collect();
    fs::create_dir_all(work.path().join(deep)).unwrap();
    assert!(before.changes(&writable).is_err());
}
