//! Directories of git repositories, and what in them git executes or obeys.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::sandbox::machine::without_parents;

/// Hooks, and settings that name programs; each with the text that stands for it where it is
/// missing, or none for a directory. `commondir` leads to another directory for hooks and settings:
/// its placeholder leads to its own.
pub const OBEYED_BY_GIT: [(&str, Option<&str>); 4] = [
    ("hooks", None),
    ("config", Some("")),
    ("config.worktree", Some("")),
    ("commondir", Some(".\n")),
];
/// The longest configuration that is read, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Whether git would take a directory for a repository's.
pub fn is_one(path: &Path) -> bool {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    has("HEAD") && (has("objects") || has("commondir"))
}

/// The same where parts may have been taken away to hide it.
pub fn looks_like_one(path: &Path) -> bool {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    ["HEAD", "config", "hooks", "objects", "commondir"]
        .into_iter()
        .any(has)
}

/// Files and directories of the work tree that a repository's configuration names as its own
/// continuation or as hooks.
pub fn named_by_config(git: &Path) -> Vec<(PathBuf, Option<&'static str>)> {
    let (Ok(text), Some(tree)) = (read(&git.join("config")), git.parent()) else {
        return Vec::new();
    };
    let values = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let value = value.trim().trim_matches('"');
        // A key may stand behind its section's head.
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

fn read(path: &Path) -> io::Result<String> {
    // A pipe in its place has no writer, and would never be opened.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_configuration_names_in_the_work_tree_is_found() {
        let work = tempfile::tempdir().unwrap();
        let git = work.path().join(".git");
        fs::create_dir(&git).unwrap();
        let text = "[core]\n\thooksPath = .hooks\n[include] path = ../.gitconfig\n\
                    [include]\n\tpath = /etc/gitconfig\n[alias]\n\tx = y\n";
        fs::write(git.join("config"), text).unwrap();
        assert_eq!(
            named_by_config(&git),
            [
                (work.path().join(".hooks"), None),
                (work.path().join(".gitconfig"), Some("")),
            ]
        );
    }
}
