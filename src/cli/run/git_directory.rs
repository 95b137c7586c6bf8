//! Recognizes git directories, and finds the files of a repository that git executes, or obeys as
//! settings.

use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::obeyed::read_start;
use crate::sandbox::machine::without_parents;

/// Names in a git directory that git executes or obeys, each with the text of the placeholder that
/// is made if the name is missing; `None` stands for a directory. `commondir` contains the path of
/// another directory with hooks and settings. The placeholder of `commondir` contains `.`, which is
/// the git directory itself.
pub const OBEYED_BY_GIT: [(&str, Option<&str>); 4] = [
    ("hooks", None),
    ("config", Some("")),
    ("config.worktree", Some("")),
    ("commondir", Some(".\n")),
];
/// Limit on the bytes that are read of a git configuration. The rest is ignored.
const MAX_CONFIG: u64 = 1 << 20;

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

/// The files that a repository's configuration names, and the work tree that they are in.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedByConfig {
    pub tree: PathBuf,
    /// Included files and directories of hooks. Each has the text of its placeholder, as in
    /// [`OBEYED_BY_GIT`].
    pub paths: Vec<(PathBuf, Option<&'static str>)>,
}

/// Returns the included files and the directories of hooks that a repository's configuration names,
/// if they are in the work tree and their parent directory exists.
pub fn named_by_config(git: &Path) -> NamedByConfig {
    // Both files, although git reads the second one only if the first one says so.
    let texts = ["config", "config.worktree"]
        .map(|name| read_start(CWD, &git.join(name), MAX_CONFIG).unwrap_or_default());
    let settings = || {
        texts
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(setting)
    };
    let tree = work_tree(git, settings());
    let named = settings().filter_map(|(key, value)| match key.as_str() {
        "hookspath" => Some((without_parents(&tree.join(value)), None)),
        "path" => Some((without_parents(&git.join(value)), Some(""))),
        _ => None,
    });
    let paths = named
        .filter(|(path, _)| path.starts_with(&tree) && *path != tree)
        .filter(|(path, _)| path.parent().is_some_and(Path::is_dir))
        .collect();
    NamedByConfig { tree, paths }
}

/// Reads the key, in lower case, and the value in a line of a configuration.
fn setting(line: &str) -> Option<(String, &str)> {
    let (key, value) = line.split_once('=')?;
    // A quoted value may contain the characters that begin a comment.
    let value = match value.trim().strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split(['#', ';']).next(),
    };
    // A key may follow its section header on the same line.
    let key = key.rsplit(']').next().unwrap_or(key).trim();
    Some((key.to_ascii_lowercase(), value.unwrap_or_default().trim()))
}

/// The work tree of a repository: the parent of its git directory, except for a submodule. The git
/// directory of a submodule is inside the git directory of the outer repository, and the
/// submodule's setting `core.worktree` names the work tree.
fn work_tree<'a>(git: &Path, settings: impl Iterator<Item = (String, &'a str)>) -> PathBuf {
    let beside = git.parent().unwrap_or(git);
    let outer = git.ancestors().skip(1).find(|path| path.ends_with(".git"));
    let submodule = outer.and_then(Path::parent).and_then(|outer| {
        // Of several values, git uses the last one.
        let (_, value) = settings.filter(|(key, _)| key == "worktree").last()?;
        Some(without_parents(&git.join(value))).filter(|tree| tree.starts_with(outer))
    });
    submodule.unwrap_or_else(|| beside.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_in_the_work_tree_that_a_configuration_names_are_found() {
        let work = tempfile::tempdir().unwrap();
        let git = work.path().join(".git");
        fs::create_dir(&git).unwrap();
        let text = "[core]\n\thooksPath = .hooks\n[include] path = ../.gitconfig\n\
                    [core]\n\thooksPath = .more # ours\n[include] path = \"../.git;config\" ; x\n\
                    [include]\n\tpath = /etc/gitconfig\n[alias]\n\tx = y\n";
        fs::write(git.join("config"), text).unwrap();
        fs::write(git.join("config.worktree"), "[core]\nhooksPath=ci-hooks\n").unwrap();
        let named = named_by_config(&git);
        assert_eq!(named.tree, work.path());
        assert_eq!(
            named.paths,
            [
                (work.path().join(".hooks"), None),
                (work.path().join(".gitconfig"), Some("")),
                (work.path().join(".more"), None),
                (work.path().join(".git;config"), Some("")),
                (work.path().join("ci-hooks"), None),
            ]
        );
    }

    #[test]
    fn hooks_of_a_submodule_are_found_in_its_own_work_tree() {
        let work = tempfile::tempdir().unwrap();
        let git = work.path().join(".git/modules/lib");
        fs::create_dir_all(&git).unwrap();
        let tree = work.path().join("vendor/lib");
        fs::create_dir_all(&tree).unwrap();
        let hooks = "hooksPath = ci-hooks";
        let named = |worktree: &str| {
            let text = format!("[core]\n\tworktree = {worktree}\n\t{hooks}\n");
            fs::write(git.join("config"), text).unwrap();
            named_by_config(&git)
        };
        let found = named("../../../vendor/lib");
        assert_eq!(found.paths, [(tree.join("ci-hooks"), None)]);
        assert_eq!(found.tree, tree);
        // A work tree outside of the outer one is not writable in the sandbox.
        assert_eq!(named("/etc").tree, work.path().join(".git/modules"));
    }
}
