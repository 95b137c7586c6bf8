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

/// Returns the included files and the directories of hooks that a repository's configuration names,
/// if they are in the work tree and their parent directory exists. Each has the text of its
/// placeholder, as in [`OBEYED_BY_GIT`].
pub fn named_by_config(git: &Path) -> Vec<(PathBuf, Option<&'static str>)> {
    let text = read_start(CWD, &git.join("config"), MAX_CONFIG);
    let (Some(text), Some(tree)) = (text, git.parent()) else {
        return Vec::new();
    };
    let values = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        // A quoted value may contain the characters that begin a comment.
        let value = match value.trim().strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => value.split(['#', ';']).next(),
        };
        let value = value.unwrap_or_default().trim();
        // A key may follow its section header on the same line.
        let key = key.rsplit(']').next().unwrap_or(key).trim();
        match key.to_ascii_lowercase().as_str() {
            "hookspath" => Some((without_parents(&tree.join(value)), None)),
            "path" => Some((without_parents(&git.join(value)), Some(""))),
            _ => None,
        }
    });
    values
        .filter(|(path, _)| path.starts_with(tree) && path != tree)
        .filter(|(path, _)| path.parent().is_some_and(Path::is_dir))
        .collect()
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
        assert_eq!(
            named_by_config(&git),
            [
                (work.path().join(".hooks"), None),
                (work.path().join(".gitconfig"), Some("")),
                (work.path().join(".more"), None),
                (work.path().join(".git;config"), Some("")),
            ]
        );
    }
}
