//! Finds out at the end of a run which files the command made, changed or removed that the host
//! would execute, or obey as settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::fingerprint::{Fingerprint, Fingerprints};
use super::git_directory;
use super::obeyed::is_empty;
use super::search::{Found, exists};

/// Limit on the changes that are listed separately in a directory that the host obeys as a whole.
const MAX_LISTED: usize = 5;
/// The time that git has to list all indexes.
const GIT_WAIT: Duration = Duration::from_secs(30);
/// Limit on the protected files whose versions in commits are compared, since they are arguments of
/// git.
const MAX_VERSIONS: usize = 500;

/// What happened to a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Made,
    Changed,
    Removed,
    /// A protected file that differs between the commits that were checked out at the start and at
    /// the end.
    Committed,
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
            Self::Committed => f.write_str(
                " (HEAD has another version than before: `git diff HEAD` shows it, `git restore` takes it)",
            ),
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
    /// Work trees, each with [`git_directory::versions`] of its protected files.
    versions: BTreeMap<PathBuf, Option<BTreeMap<PathBuf, String>>>,
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
        let roots = found.roots().iter();
        let roots = roots.filter_map(|root| Some((root, git.as_ref()?)));
        let roots = roots.filter(|(root, _)| exists(&root.join(".git")));
        let committed =
            roots.map(|(root, git)| (root.clone(), versions(git, root, found, deadline)));
        Self {
            versions: committed.collect(),
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
        changes.extend(self.committed(before));
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

    /// The protected files of which the commit that is checked out has another version than the one
    /// at the start. The command could not write it to the file.
    fn committed(&self, found: &Found) -> Vec<(PathBuf, Change)> {
        let deadline = Instant::now() + GIT_WAIT;
        let mut committed = Vec::new();
        for (tree, before) in &self.versions {
            let now = self
                .git
                .as_ref()
                .and_then(|git| versions(git, tree, found, deadline));
            let (before, now) = (before.clone().unwrap_or_default(), now.unwrap_or_default());
            let paths: BTreeSet<_> = before.keys().chain(now.keys()).collect();
            let differ = paths
                .into_iter()
                .filter(|path| before.get(*path) != now.get(*path));
            let differ = differ.map(|path| (before.contains_key(path), tree.join(path)));
            // A file that was there before was added by the command as it is.
            let differ = differ.filter(|(was_known, path)| *was_known || is_empty(path));
            committed.extend(differ.map(|(_, path)| (path, Change::Committed)));
        }
        committed
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

/// The versions of the protected files of a work tree in the commit that is checked out.
fn versions(
    git: &Path,
    tree: &Path,
    found: &Found,
    deadline: Instant,
) -> Option<BTreeMap<PathBuf, String>> {
    let own = found
        .read_only
        .iter()
        .filter_map(|path| path.strip_prefix(tree).ok());
    let own = own.filter(|path| !path.starts_with(".git"));
    let own: Vec<_> = own.filter_map(Path::to_str).take(MAX_VERSIONS).collect();
    git_directory::versions(git, tree, &own, deadline)
}
