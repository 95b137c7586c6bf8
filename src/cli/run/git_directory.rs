//! Recognizes git directories, and reads the paths and the index entries that lead to others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rustix::fs::CWD;

use super::git_config::{Named, named};
use super::obeyed::{is_empty, read_start};
use crate::sandbox::machine::without_parents;

/// Limit on the bytes of the list of an index, for about two million files.
const MAX_LIST: u64 = 256 << 20;
/// Limit on the bytes that are read of a file with a path.
const MAX_PATH: u64 = 16 << 10;
/// The text of a `commondir` that keeps git from using its directory as a git directory.
pub const NOWHERE: &str = "/dev/null\n";

/// Whether git uses the directory as a git directory.
pub fn is_one(path: &Path) -> bool {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    has("HEAD") && (has("objects") || has("commondir"))
}

/// Whether the directory may be a git directory, even if parts were removed to disguise it.
pub fn looks_like_one(path: &Path) -> bool {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    ["HEAD", "config", "hooks", "objects", "commondir"]
        .into_iter()
        .any(has)
}

/// The git directory of a work tree, where `git` is its `.git`: a directory, or a file with the path
/// of one.
pub fn of_tree(git: &Path) -> PathBuf {
    let text = read_start(CWD, git, MAX_PATH);
    let path = text
        .as_deref()
        .and_then(|text| text.strip_prefix("gitdir:"));
    let beside = git.parent().unwrap_or(git);
    path.map_or_else(
        || git.to_owned(),
        |path| without_parents(&beside.join(path.trim())),
    )
}

/// The directory with the files that all work trees share: the one that `commondir` names, or the
/// git directory itself.
pub fn common(git: &Path) -> PathBuf {
    let common = read_start(CWD, &git.join("commondir"), MAX_PATH);
    let common = common.map(|path| without_parents(&git.join(path.trim())));
    common.unwrap_or_else(|| git.to_owned())
}

/// The `.git` file of a linked work tree, where `own` is its directory in `worktrees`; `None` if the
/// tree does not exist, or if its file names another directory.
pub fn file_of_linked(own: &Path) -> Option<PathBuf> {
    let text = read_start(CWD, &own.join("gitdir"), MAX_PATH)?;
    let tree = own.join(text.trim()).parent()?.to_owned();
    let file = fs::canonicalize(tree).ok()?.join(".git");
    let named = fs::canonicalize(of_tree(&file)).ok()?;
    (named == fs::canonicalize(own).ok()?).then_some(file)
}

/// The git directory outside of a linked work tree or submodule that git needs there; `None` for
/// other directories. The git directory must name the tree too: its owner did not choose the `.git`
/// of a tree that came from elsewhere.
pub fn outside(tree: &Path) -> Option<PathBuf> {
    let file = tree.join(".git");
    let own = fs::canonicalize(of_tree(&file)).ok()?;
    if own == file || !is_one(&own) {
        return None;
    }
    if own.join("commondir").is_file() {
        let shared = fs::canonicalize(common(&own)).ok()?;
        let is_of_shared = own.parent() == Some(&*shared.join("worktrees"));
        return (is_of_shared && file_of_linked(&own)? == file).then_some(shared);
    }
    let named = named(config_files(&own), &own, tree, |_| false);
    let mut trees = named.into_iter().filter_map(|named| match named {
        Named::Tree(path) => fs::canonicalize(path).ok(),
        _ => None,
    });
    trees.any(|named| named == tree).then_some(own)
}

/// The work tree around a directory that is not at the top of one, and its git directory.
pub fn around(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let git = directory.join(".git");
    let is_top = git.symlink_metadata().is_ok() && !is_empty(&git);
    if is_top || is_one(directory) {
        return None;
    }
    directory.ancestors().skip(1).find_map(|top| {
        let git = of_tree(&top.join(".git"));
        is_one(&git).then(|| (top.to_owned(), git))
    })
}

/// The configuration files of a git directory. Those of a linked work tree are in the directory that
/// its `commondir` names.
pub fn config_files(git: &Path) -> Vec<PathBuf> {
    let common = common(git);
    // Also the file that git reads only if a setting says so.
    let files = [common.join("config"), common.join("config.worktree")];
    files
        .into_iter()
        .chain([git.join("config.worktree")])
        .collect()
}

/// The existing repositories that the index of a work tree names. `git status` in the tree executes
/// what their settings name. `git` is the program. `None` if git fails or has not ended at the
/// deadline, or if the index is too large.
pub fn entered(git: &Path, tree: &Path, deadline: Instant) -> Option<BTreeSet<PathBuf>> {
    let of_tree = tree.to_owned();
    let read = move |output| repositories_in(output, &of_tree);
    list(git, tree, &["ls-files", "--stage", "-z"], read, deadline)
}

/// The versions of files and directories in the commit that is checked out in a work tree, each with
/// its path in the tree. `None` if git fails, as without a commit, or has not ended at the deadline.
pub fn versions(
    git: &Path,
    tree: &Path,
    paths: &[&str],
    deadline: Instant,
) -> Option<BTreeMap<PathBuf, String>> {
    // Without paths, git would list all of them.
    if paths.is_empty() {
        return None;
    }
    let arguments = [&["ls-tree", "-z", "--", "HEAD"][..], paths].concat();
    list(git, tree, &arguments, versions_in, deadline)
}

/// Reads what git lists about a work tree.
fn list<T: Send + 'static>(
    git: &Path,
    tree: &Path,
    arguments: &[&str],
    read: impl FnOnce(ChildStdout) -> Option<T> + Send + 'static,
    deadline: Instant,
) -> Option<T> {
    // git would wait for a writer of a FIFO. A new repository has no index.
    let directory = of_tree(&tree.join(".git"));
    for (name, may_be_missing) in [("HEAD", false), ("index", true)] {
        let found = directory.join(name).symlink_metadata();
        if !found.map_or(may_be_missing, |found| found.is_file()) {
            return None;
        }
    }
    let mut command = Command::new(git);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"GIT_") {
            command.env_remove(name);
        }
    }
    let started = command
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .args(["-c", "core.fsmonitor=false"])
        .args(arguments)
        .current_dir(tree)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut listing = started.ok()?;
    let output = listing.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    // The thread ends when git ends. Sending fails after the deadline.
    thread::spawn(move || sender.send(read(output)));
    let left = deadline.saturating_duration_since(Instant::now());
    let listed = receiver.recv_timeout(left).ok().flatten();
    if listed.is_none() {
        // Fails if git has ended.
        let _ = listing.kill();
    }
    let has_succeeded = listing.wait().is_ok_and(|status| status.success());
    listed.filter(|_| has_succeeded)
}

/// The versions in the output of `git ls-tree -z`: `MODE TYPE ID<tab>PATH`.
fn versions_in(output: impl Read) -> Option<BTreeMap<PathBuf, String>> {
    let entries = BufReader::new(output.take(MAX_LIST)).split(0);
    let versions = entries.map_while(Result::ok).filter_map(|entry| {
        let (version, path) = str::from_utf8(&entry).ok()?.split_once('\t')?;
        Some((path.into(), version.to_owned()))
    });
    Some(versions.collect())
}

/// The existing repositories in the output of `git ls-files --stage -z` in a work tree; `None` if it
/// is too long.
fn repositories_in(output: impl Read, tree: &Path) -> Option<BTreeSet<PathBuf>> {
    let mut list = BufReader::new(output.take(MAX_LIST));
    let entries = list.by_ref().split(0).map_while(Result::ok);
    let named = entries.filter_map(|entry| {
        // `160000 ID STAGE<tab>PATH`, where 160000 is the mode of a repository.
        let entry = str::from_utf8(&entry).ok()?;
        let (_, path) = entry.strip_prefix("160000 ")?.split_once('\t')?;
        Some(tree.join(path))
    });
    let entered = named.filter(|path| path.join(".git").exists()).collect();
    let is_whole = list.into_inner().limit() > 0;
    is_whole.then_some(entered)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_git_directory_and_the_configuration_of_a_linked_work_tree_are_found() {
        let work = tempfile::tempdir().unwrap();
        let (main, linked) = (work.path().join("main/.git"), work.path().join("linked"));
        let own = main.join("worktrees/linked");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir(&linked).unwrap();
        fs::write(
            linked.join(".git"),
            "gitdir: ../main/.git/worktrees/linked\n",
        )
        .unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        assert_eq!(of_tree(&linked.join(".git")), own);
        let files = config_files(&own);
        assert!(files.contains(&main.join("config")), "{files:?}");
        assert!(files.contains(&own.join("config.worktree")), "{files:?}");
        assert_eq!(of_tree(&main), main);
    }

    #[test]
    fn the_versions_of_files_whose_names_are_options_of_git_are_found() {
        let work = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let commit = "git init -q; for name in -d --name-only --object-only --help plain; do \
                      echo x > ./$name; done; git add .; \
                      git -c user.name=a -c user.email=a@example.com commit -q -m x";
        command.args(["-ec", commit]).current_dir(work.path());
        assert!(command.status().unwrap().success());
        for name in ["-d", "--name-only", "--object-only", "--help", "plain"] {
            let soon = Instant::now() + Duration::from_secs(30);
            let found = versions(Path::new("git"), work.path(), &[name], soon).unwrap();
            let paths: Vec<_> = found.keys().map(|path| path.to_str().unwrap()).collect();
            assert_eq!(paths, [name]);
            assert!(
                found[Path::new(name)].starts_with("100644 blob "),
                "{found:?}"
            );
        }
    }

    /// A FIFO in place of a file blocks git until the deadline, or for ever without one.
    #[test]
    fn an_index_that_git_cannot_list_is_an_error_and_does_not_block() {
        let soon = || Instant::now() + Duration::from_secs(3);
        let run = |directory: &Path, line: &str| {
            let mut command = Command::new("sh");
            command.args(["-ec", line]).current_dir(directory);
            assert!(command.status().unwrap().success(), "{line}");
        };
        for (line, is_listed) in [
            ("", true),
            ("rm .git/index", true),
            ("rm .git/index; mkfifo .git/index", false),
            ("rm .git/index; mkfifo .git/f; ln -s f .git/index", false),
            ("rm .git/HEAD; mkfifo .git/HEAD", false),
            (
                "git update-index --split-index; f=$(ls .git/shared*); rm $f; mkfifo $f",
                false,
            ),
            ("echo broken > .git/index", false),
        ] {
            let work = tempfile::tempdir().unwrap();
            run(
                work.path(),
                "git init -q; echo x > file; git add file; git init -q nested",
            );
            run(work.path(), line);
            let listed = entered(Path::new("git"), work.path(), soon());
            assert_eq!(listed.is_some(), is_listed, "{line}");
        }
    }
}
