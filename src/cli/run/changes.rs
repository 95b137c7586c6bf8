//! Finds out at the end of a run which files the command made, changed or removed that the host
//! would execute, or obey as settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::fingerprint::{Fingerprint, Fingerprints};
use super::git_directory;
use super::search::{Found, exists};

/// Limit on the changes that are listed separately in a directory that the host obeys as a whole.
const MAX_LISTED: usize = 5;
/// The time that git has to list all indexes.
const GIT_WAIT: Duration = Duration::from_secs(30);

/// What happened to a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Made,
    Changed,
    Removed,
    /// A repository that the index of the work tree around it did not name before.
    Entered,
    /// The number of files in a directory that were made, changed or removed.
    Several(usize),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made => Ok(()),
            Self::Changed => f.write_str(" (changed)"),
            Self::Removed => f.write_str(" (removed)"),
            Self::Entered => f.write_str(" (git status now executes what its settings name)"),
            Self::Several(count) => write!(f, " ({count} files)"),
        }
    }
}

/// The state of the files at the start.
#[derive(Debug, Default)]
pub struct Start {
    fingerprints: Fingerprints,
    /// The files that are compared; `None` for one that did not exist.
    files: BTreeMap<PathBuf, Option<Fingerprint>>,
    /// Work trees that contain other repositories, each with [`git_directory::entered`].
    entered: BTreeMap<PathBuf, Option<BTreeSet<PathBuf>>>,
    /// The program git.
    git: Option<PathBuf>,
}

impl Start {
    /// Records the state of the files that a search has found. `git` is the program, if there is
    /// one.
    pub fn record(found: &Found, git: Option<PathBuf>) -> Self {
        let mut fingerprints = Fingerprints::default();
        let files = found.compared.keys();
        let files = files.map(|path| (path.clone(), fingerprints.take(path)));
        let files = files.collect();
        let trees = found
            .repositories
            .iter()
            .filter(|path| path.ends_with(".git"));
        let trees: BTreeSet<&Path> = trees.filter_map(|path| path.parent()).collect();
        // In the order of paths, the first tree in another one follows that one.
        let outer = trees.iter().zip(trees.iter().skip(1));
        let outer = outer.filter(|(tree, next)| next.starts_with(tree));
        let outer = outer.filter_map(|(tree, _)| Some((tree, git.as_ref()?)));
        let deadline = Instant::now() + GIT_WAIT;
        let entered = outer.map(|(tree, git)| {
            let entered = git_directory::entered(git, tree, deadline);
            (tree.to_path_buf(), entered)
        });
        Self {
            entered: entered.collect(),
            fingerprints,
            files,
            git,
        }
    }

    /// Compares with the files that another search has found at the end. `before` is the search at
    /// the start. First come repositories and what the host obeys at once, so that no number of
    /// other files can displace them from the list.
    pub fn changes(&self, before: &Found, now: &Found) -> Vec<(PathBuf, Change)> {
        let was_protected = |path: &Path| {
            let mut above = path.ancestors();
            above.any(|above| before.read_only.contains(above))
        };
        let new = now.repositories.difference(&before.repositories);
        let new = new.map(PathBuf::as_path);
        let new: BTreeSet<&Path> = new.filter(|path| !was_protected(path)).collect();
        let is_in_new = |path: &Path| {
            let mut above = path.ancestors().skip(1);
            above.any(|above| new.contains(above))
        };
        let protected = now.read_only.iter().map(PathBuf::as_path);
        let protected = protected.filter(|path| exists(path) && !was_protected(path));
        let mut first: BTreeMap<_, _> = self.newly_entered().into_iter().collect();
        for path in new.iter().copied().chain(protected) {
            // A link that became a file was compared at the start.
            let change = match self.files.contains_key(path) {
                true => self.change(path),
                false => Some(Change::Made),
            };
            if let Some(change) = change.filter(|_| !is_in_new(path)) {
                first.insert(path.to_owned(), change);
            }
        }

        let mut changes = BTreeMap::new();
        let mut below: BTreeMap<&PathBuf, Vec<(&PathBuf, Change)>> = BTreeMap::new();
        for (path, obeyed) in &now.compared {
            let existed = self.files.contains_key(obeyed)
                || before.compared_directories.contains(obeyed)
                || before.read_only.contains(obeyed);
            let Some(change) = self.change(path) else {
                continue;
            };
            if is_in_new(path) || was_protected(path) {
                continue;
            }
            if change == Change::Made && !existed {
                changes.insert(obeyed.clone(), change);
            } else {
                below.entry(obeyed).or_default().push((path, change));
            }
        }
        for (path, obeyed) in &before.compared {
            if !now.compared.contains_key(path)
                && !now.read_only.contains(path)
                && let Some(change) = self.change(path)
            {
                below.entry(obeyed).or_default().push((path, change));
            }
        }
        for (obeyed, listed) in below {
            if listed.len() > MAX_LISTED {
                changes.insert(obeyed.clone(), Change::Several(listed.len()));
            } else {
                let listed = listed.into_iter();
                changes.extend(listed.map(|(path, change)| (path.clone(), change)));
            }
        }
        changes.retain(|path, _| !first.contains_key(path));
        first.into_iter().chain(changes).collect()
    }

    fn change(&self, path: &Path) -> Option<Change> {
        let before = self.files.get(path).and_then(Option::as_ref);
        let differs = self.fingerprints.differs(path, before);
        differs.then(|| match (before.is_some(), exists(path)) {
            (false, _) => Change::Made,
            (true, true) => Change::Changed,
            (true, false) => Change::Removed,
        })
    }

    /// The repositories that an index names since the start, and indexes that cannot be read any
    /// more.
    fn newly_entered(&self) -> Vec<(PathBuf, Change)> {
        let mut new = Vec::new();
        let deadline = Instant::now() + GIT_WAIT;
        for (tree, before) in &self.entered {
            let Some(git) = &self.git else {
                continue;
            };
            match (before, git_directory::entered(git, tree, deadline)) {
                (Some(before), Some(now)) => {
                    let now = now.difference(before).cloned();
                    new.extend(now.map(|path| (path, Change::Entered)));
                }
                (None, Some(now)) => {
                    new.extend(now.into_iter().map(|path| (path, Change::Entered)))
                }
                (Some(_), None) => new.push((tree.join(".git/index"), Change::Changed)),
                (None, None) => {}
            }
        }
        new
    }
}
