//! Files of the working directory that programs of the host would later execute or read as
//! configuration.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use testkit::each_row;

use crate::attempts::check;
use crate::fixture::Person;
use crate::support::{Ran, SOON, eventually};

/// Python code that tries to write, remove, rename, replace and cover protected files. The
/// arguments are the relative paths of the files.
pub const CHANGES: &str = r##"
EVIL = "#!/bin/sh\necho planted\n"
def write(path):
    with open(path, "w") as file:
        file.write(EVIL)

def swap(path, make):
    """Renames the path, and makes another file in its place."""
    os.rename(path, f"moved-{os.getpid()}")
    make(path)

for path in sys.argv[1:]:
    kind = os.lstat(path) if os.path.lexists(path) else None
    if kind and stat.S_ISDIR(kind.st_mode):
        fails(f"{path}: a file in it", lambda: write(f"{path}/planted"))
        fails(f"{path}: a directory in it", lambda: os.mkdir(f"{path}/planted"))
        fails(f"{path}: a link in it", lambda: os.symlink("/tmp", f"{path}/planted"))
        fails(f"{path}: removing it", lambda: os.rmdir(path))
    else:
        fails(f"{path}: writing", lambda: write(path))
        fails(f"{path}: appending", lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)))
        fails(f"{path}: cutting", lambda: os.truncate(path, 0))
        fails(f"{path}: removing", lambda: os.unlink(path))
        fails(f"{path}: a hard link to write through", lambda: (os.link(path, f"linked-{os.getpid()}"), write(f"linked-{os.getpid()}")))
    fails(f"{path}: renaming", lambda: os.rename(path, "away"))
    fails(f"{path}: replacing", lambda: (open("new", "w").close(), os.replace("new", path)))
    fails(f"{path}: replacing by a directory", lambda: (os.makedirs("newdir", exist_ok=True), os.replace("newdir", path)))
    fails(f"{path}: a link in its place", lambda: swap(path, lambda p: os.symlink("/tmp", p)))
    fails(f"{path}: exchanging", lambda: (os.makedirs("newdir", exist_ok=True), call(316, -100, path.encode(), -100, b"newdir", 2)))
    fails(f"{path}: other rights", lambda: os.chmod(path, 0o777))
    fails(f"{path}: unmounting", lambda: call(166, path.encode(), 2))
    fails(f"{path}: mounting over", lambda: call(165, b"/tmp", path.encode(), None, 4096, None))
    for above in [os.path.join(*path.split("/")[:n]) for n in range(1, path.count("/") + 1)]:
        fails(f"{path}: renaming {above}", lambda: os.rename(above, "away"))
        fails(f"{path}: another {above}", lambda: swap(above, os.mkdir))
        fails(f"{path}: exchanging {above}", lambda: (os.makedirs("newdir", exist_ok=True), call(316, -100, above.encode(), -100, b"newdir", 2)))
"##;

/// Names that are protected even if they do not exist.
const ALWAYS: [&str; 15] = [
    ".aider.conf.yml",
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".devcontainer.json",
    ".envrc",
    ".gemini",
    ".git",
    ".idea",
    ".mcp.json",
    ".vscode",
    "crush.json",
    "opencode.json",
    "opencode.jsonc",
];

pub fn git(person: &Person, directory: &Path, arguments: &[&str]) {
    let name = ["-c", "user.name=A", "-c", "user.email=a@example.com"];
    let file = [
        "-c",
        "protocol.file.allow=always",
        "-c",
        "init.defaultBranch=main",
    ];
    let mut command = person.outside("git");
    command.arg("-C").arg(directory).args(name).args(file);
    Ran::of(command.args(arguments)).ok();
}

/// Creates a repository at `at`, below the home directory, with one commit.
pub fn repository(person: &Person, at: &str) -> PathBuf {
    let path = person.directory(at);
    git(person, &path, &["init", "--quiet"]);
    person.write(path.join("file"), "text\n");
    git(person, &path, &["add", "file"]);
    git(person, &path, &["commit", "--quiet", "-m", "first"]);
    path
}

/// The paths below a directory, with the contents of files, except `new` and `newdir`, which the
/// attempts create.
fn tree(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut next = vec![directory.to_owned()];
    while let Some(path) = next.pop() {
        for entry in fs::read_dir(&path).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            let content = match kind.is_file() {
                true => fs::read(entry.path()).unwrap(),
                false => Vec::new(),
            };
            if kind.is_dir() {
                next.push(entry.path());
            }
            found.push((entry.path(), content));
        }
    }
    found.retain(|(path, _)| !["new", "newdir"].iter().any(|name| path.ends_with(name)));
    found.sort();
    found
}

#[track_caller]
fn check_unchanged(person: &Person, flags: &[&str], paths: &[&str]) {
    let before = tree(&person.work());
    check(person, flags, CHANGES, paths, paths.len() * 10);
    let (after, names) = (tree(&person.work()), |tree: &[(PathBuf, Vec<u8>)]| {
        tree.iter()
            .map(|(path, _)| path.clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(names(&before), names(&after));
    assert!(before == after, "the content of a file changed");
}

#[test]
fn missing_protected_files_cannot_be_created_and_their_placeholders_are_removed() {
    let Some(person) = Person::new() else { return };
    // `HEAD` is protected too, since it could make the directory a git directory.
    check_unchanged(&person, &[], &[&ALWAYS[..], &["HEAD"]].concat());

    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    person.directory("project/sub/.hg/store");
    let missing = [".git/config.worktree", ".git/commondir", "sub/.hg/hgrc"];
    check_unchanged(&person, &[], &missing);
}

#[test]
fn existing_protected_files_cannot_be_changed() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    let files = [
        ".claude/settings.json",
        ".config/mise/config.toml",
        ".envrc",
        ".githooks/pre-push",
        ".hg/hgrc",
        ".hg/sharedpath",
        ".husky/pre-commit",
        ".jj/repo/config.toml",
        ".jj/repo/store/git_target",
        ".kiro/settings/mcp.json",
        ".mcp.json",
        ".nvim.lua",
        ".pre-commit-config.yaml",
        ".roo/mcp.json",
        ".some-future-agent/mcp-servers.toml",
        ".vscode/tasks.json",
        ".yarnrc",
        "mise.local.toml",
        "mise.toml",
        "opencode.json",
        "sub/deep/.yarnrc.yml",
    ];
    for name in files {
        person.write(person.work().join(name), "here\n");
    }
    let of_git = [
        ".git/hooks",
        ".git/config.worktree",
        ".git/commondir",
        ".git/hooks/pre-push.sample",
    ];
    let directories = [".claude", ".vscode", ".husky", ".config/mise"];
    check_unchanged(&person, &[], &[&files[..], &of_git, &directories].concat());
}

#[test]
fn nested_repositories_are_protected_and_directories_above_them_cannot_be_renamed() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    repository(&person, "project/vendor/deep/nested");
    person.write(person.work().join("tools/scripts/.envrc"), "here\n");
    check_unchanged(
        &person,
        &[],
        &[
            "vendor/deep/nested/.git/hooks",
            "vendor/deep/nested/.git/commondir",
            "tools/scripts/.envrc",
        ],
    );
}

#[test]
fn submodules_and_worktrees_are_protected() {
    let Some(person) = Person::new() else { return };
    let library = repository(&person, "library");
    let work = repository(&person, "project");
    git(
        &person,
        &work,
        &[
            "submodule",
            "--quiet",
            "add",
            library.to_str().unwrap(),
            "lib/part",
        ],
    );
    git(
        &person,
        &work,
        &["worktree", "add", "--quiet", "trees/other", "-b", "other"],
    );
    check_unchanged(
        &person,
        &[],
        &[
            "lib/part/.git",
            "trees/other/.git",
            ".git/modules/lib/part/hooks",
            ".git/worktrees/other/commondir",
        ],
    );
}

#[test]
fn a_worktree_and_a_bare_repository_are_protected_as_working_directories() {
    let Some(person) = Person::new() else { return };
    let main = repository(&person, "main");
    let work = person.work();
    git(
        &person,
        &main,
        &["worktree", "add", "--quiet", work.to_str().unwrap()],
    );
    check_unchanged(&person, &[], &[".git", ".envrc", ".vscode"]);

    let Some(person) = Person::new() else { return };
    git(&person, &person.work(), &["init", "--quiet", "--bare"]);
    check_unchanged(
        &person,
        &[],
        &["hooks", "config.worktree", "commondir", ".envrc"],
    );
}

#[test]
fn hooks_in_the_directory_of_core_hookspath_are_protected() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    person.write(work.join("build/hooks/pre-commit"), "#!/bin/sh\n");
    git(&person, &work, &["config", "core.hooksPath", "build/hooks"]);
    check_unchanged(&person, &[], &["build/hooks", "build/hooks/pre-commit"]);
    git(&person, &work, &["config", "core.hooksPath", "missing"]);
    check_unchanged(&person, &[], &["missing"]);
}

#[test]
fn hooks_are_protected_in_every_work_tree_to_which_the_setting_applies() {
    let Some(person) = Person::new() else { return };
    // A work tree of a repository outside, another one below, and the settings of the user.
    let main = repository(&person, "main");
    let work = person.work();
    let add = ["worktree", "add", "--quiet", work.to_str().unwrap()];
    git(&person, &main, &add);
    git(&person, &main, &["config", "core.hooksPath", "ci/hooks"]);
    person.write(".config/git/config", "[include]\npath = more\n");
    person.write(".config/git/more", "[core]\nhooksPath = own-hooks\n");
    repository(&person, "project/nested");
    let hooks = ["ci/hooks/pre-commit", "nested/own-hooks/post-checkout"];
    for name in hooks {
        person.write(work.join(name), "#!/bin/sh\n");
    }
    check_unchanged(&person, &[], &hooks);
}

#[test]
fn what_linked_settings_of_the_user_name_is_protected() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    person.write("dotfiles/gitconfig", "[include]\npath = more.inc\n");
    person.write("dotfiles/more", "[core]\nhooksPath = own-hooks\n");
    for (link, to) in [(".gitconfig", "gitconfig"), ("more.inc", "more")] {
        symlink(Path::new("dotfiles").join(to), person.home().join(link)).unwrap();
    }
    person.write(work.join("own-hooks/pre-commit"), "#!/bin/sh\n");
    check_unchanged(&person, &[], &["own-hooks", "own-hooks/pre-commit"]);
}

#[test]
fn hooks_and_programs_of_a_repository_around_the_working_directory_are_protected() {
    let Some(person) = Person::new() else { return };
    let outer = repository(&person, "");
    git(
        &person,
        &outer,
        &["config", "core.hooksPath", "project/hooks"],
    );
    git(
        &person,
        &outer,
        &["config", "core.fsmonitor", "sh project/watch.sh"],
    );
    let files = ["hooks/pre-commit", "watch.sh"];
    for name in files {
        person.write(person.work().join(name), "#!/bin/sh\n");
    }
    check_unchanged(&person, &[], &files);
}

#[test]
fn files_that_the_git_configuration_includes_or_executes_are_protected() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    let config = |key: &str, value: &str| git(&person, &work, &["config", key, value]);
    config("include.path", "../build/shared.gitconfig");
    config("includeIf.onbranch:other.path", "../other.gitconfig");
    config("filter.f.clean", "python3 tools/clean.py %f");
    config("core.fsmonitor", "./tools/monitor");
    for (name, text) in [
        ("build/shared.gitconfig", "[include]\npath = deeper/more\n"),
        (
            "build/deeper/more",
            "[include]\npath = last\n[diff]\nexternal = tools/diff.sh\n",
        ),
        ("build/deeper/last", "[alias]\n"),
        ("tools/clean.py", ""),
        ("tools/monitor", ""),
        ("tools/diff.sh", ""),
    ] {
        person.write(work.join(name), text);
    }
    check_unchanged(
        &person,
        &[],
        &[
            "build/shared.gitconfig",
            "build/deeper/more",
            "build/deeper/last",
            "other.gitconfig",
            "tools/clean.py",
            "tools/monitor",
            "tools/diff.sh",
        ],
    );
}

#[test]
fn git_can_commit_branch_stash_and_pack_inside() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    let script = "set -e; git config --get user.name || true; \
        git -c user.name=B -c user.email=b@example.com commit --quiet --allow-empty -m second; \
        git checkout --quiet -b feature; echo more >> file; git stash --quiet; git stash pop --quiet; \
        git -c user.name=B -c user.email=b@example.com commit --quiet -a -m third; \
        git gc --quiet; git status --short; git log --format=%s HEAD";
    let ran = person.sh(&[], script);
    assert_eq!(ran.ok(), "third\nsecond\nfirst\n");
    git(&person, &person.work(), &["fsck"]);
}

#[test]
fn git_stash_and_git_clean_work_inside_and_leave_out_placeholders() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    // A placeholder in the work tree.
    git(
        &person,
        &work,
        &["config", "core.hooksPath", "missing hooks"],
    );
    let name = "-c user.name=B -c user.email=b@example.com";
    let script = format!(
        "set -e; echo more > other; mkdir own; echo x > own/x; git {name} stash -q -u; \
         test ! -e other; test ! -e own; git {name} stash pop -q >&2; git add -A; \
         git diff --cached --name-only; git reset -q; git clean -q -fd; git status --short"
    );
    assert_eq!(person.sh(&[], &script).ok(), "other\nown/x\n");
    let excluded = fs::read_to_string(work.join(".git/info/exclude")).unwrap();
    assert!(
        !excluded.contains("missing") && !excluded.contains("opencode"),
        "{excluded}"
    );
}

#[test]
fn a_symbolic_link_at_a_protected_path_is_refused() {
    each_row([".git", ".envrc", ".vscode", ".claude"], |name| {
        let Some(person) = Person::new() else { return };
        person.directory("elsewhere");
        symlink("../elsewhere", person.work().join(name)).unwrap();
        let ran = person.sh(&[], "touch started");
        assert_eq!(ran.code, Some(64), "{ran:?}");
        assert!(ran.stderr.contains("is a symbolic link"), "{ran:?}");
        assert!(!person.work().join("started").exists());
    });
}

#[test]
fn a_protected_file_with_a_second_hard_link_is_refused() {
    let Some(person) = Person::new() else { return };
    let file = person.write("project/.envrc", "before\n");
    fs::hard_link(&file, person.work().join("other-name")).unwrap();
    let ran = person.sh(&[], "echo after > other-name");
    assert_eq!(ran.code, Some(64), "{ran:?}");
    assert!(ran.stderr.contains("hard link"), "{ran:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before\n");
}

#[test]
fn replacing_a_protected_file_outside_ends_the_run_and_the_error_names_the_file() {
    let Some(person) = Person::new() else { return };
    let file = person.write("project/.envrc", "before\n");
    let mut run = person.spawn(&[], &["sh", "-c", "echo ready; sleep 1000"]);
    let mut ready = [0; 6];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let other = person.write("project/other", "after\n");
    fs::rename(other, &file).unwrap();
    eventually("the run ends", SOON, || run.try_wait().unwrap().is_some());
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&*file.to_string_lossy()), "{said}");
    assert_eq!(fs::read_to_string(file).unwrap(), "after\n");
}
