//! Keeps placeholders from disturbing the command, and git in the sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::super::git_directory;
use super::super::obeyed::{is_empty, read_start};
use super::file::has_text;
use crate::sandbox::Entry;

/// The settings directory of OpenCode, to which OpenCode writes.
const WRITTEN: &str = ".opencode";
/// Limit on the bytes that are copied from `.git/info/exclude`. The rest is left out.
const MAX_EXCLUDES: u64 = 1 << 20;

/// Returns the entries of the sandbox's file system that keep placeholders from disturbing the
/// command. Call it after the placeholders are made. `repositories` are the `.git` of work trees.
/// Placeholders in work trees are added to git's excludes, so that `git add`, `git stash -u` and
/// `git clean` leave them out. An empty `.opencode` is covered by a writable scratch directory, since
/// OpenCode fails if it cannot write there.
pub fn covers(
    protected: &BTreeSet<PathBuf>,
    repositories: &BTreeSet<PathBuf>,
    roots: &[PathBuf],
) -> Vec<Entry> {
    // Also those of other runs.
    let is_placeholder = |path: &&PathBuf| is_empty(path) || has_text(&CWD, path);
    let placeholders: BTreeSet<_> = protected.iter().filter(is_placeholder).collect();
    let mut excluded: BTreeMap<PathBuf, String> = BTreeMap::new();
    for path in &placeholders {
        let mut above = path
            .ancestors()
            .skip(1)
            .map(|tree| (tree, tree.join(".git")));
        let Some((tree, git)) = above.find(|(_, git)| repositories.contains(git)) else {
            continue;
        };
        let pattern = path.strip_prefix(tree).ok().and_then(pattern);
        if let Some(pattern) = pattern.filter(|_| !path.starts_with(&git)) {
            let common = git_directory::common(&git_directory::of_tree(&git));
            excluded.entry(common).or_default().push_str(&pattern);
        }
    }
    let excluded = excluded.into_iter().filter_map(|(common, patterns)| {
        let (info, at) = (common.join("info"), common.join("info/exclude"));
        if info.is_symlink() || !roots.iter().any(|root| at.starts_with(root)) {
            return None;
        }
        let text = format!("{}\n{patterns}", read_start(CWD, &at, MAX_EXCLUDES)?);
        Some(Entry::Replace { at, text })
    });
    let written = roots.iter().map(|root| root.join(WRITTEN));
    let empty = written.filter(|at| placeholders.contains(at) && at.is_dir());
    let scratch = empty.map(|at| Entry::Scratch { at, mode: 0o700 });
    excluded.chain(scratch).collect()
}

/// A line of git's excludes that matches exactly this path.
fn pattern(path: &Path) -> Option<String> {
    let special = |letter| matches!(letter, '\\' | '*' | '?' | '[' | ' ');
    let escaped = path.to_str()?.chars().flat_map(|letter| {
        let escape = special(letter).then_some('\\');
        escape.into_iter().chain([letter])
    });
    Some(format!("/{}\n", escaped.collect::<String>()))
}
