//! Searches the directories of a run for files that the host would later execute, or obey as
//! settings, and for sockets.

mod compare;
mod git;
pub mod list;
mod protect;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::git_directory;
use super::obeyed::{OBEYED_AT_ONCE, is_empty};
use super::placeholders::Missing;
use super::version_control::{GIT, IfMissing};

use walk::Place;

/// The state directory of `dev`, with its admin socket.
const OWN_STATE: &str = ".unified-proxy";
/// The directory of the copies of git's configurations in the sandbox.
pub const GIT_COPIES: &str = "/run/unified-proxy/git";

/// What a search has found.
#[derive(Debug, Default)]
pub struct Found {
    /// The paths of `read_only` that do not exist and so need placeholders.
    pub missing: Vec<Missing>,
    /// Directories above protected paths. Each is mounted over itself, so that the command cannot
    /// rename it and create the protected path again.
    pub pinned: BTreeSet<PathBuf>,
    /// Files and directories that the command must not change.
    pub read_only: BTreeSet<PathBuf>,
    /// Sockets and directories that the command must not use.
    pub hidden: BTreeSet<PathBuf>,
    /// Files to compare, each with the file or directory that the host obeys as a whole and that
    /// contains the file.
    pub compared: BTreeMap<PathBuf, PathBuf>,
    /// The directories of `compared`, also empty ones.
    pub compared_directories: BTreeSet<PathBuf>,
    /// The directories of [`Found::compare_all`].
    pub compared_as_named: BTreeSet<PathBuf>,
    /// Those that [`Found::finish`] has to search, each with whether it contains programs.
    pending: Vec<(PathBuf, bool)>,
    /// The `.git` files of linked work trees that the command does not see, each with the directory
    /// that it names.
    pub unseen: Vec<(PathBuf, PathBuf)>,
    /// The `.git` of each work tree, a directory or a file, and bare git directories.
    pub repositories: BTreeSet<PathBuf>,
    /// The writable directories that were searched.
    roots: Vec<PathBuf>,
    /// The directories of `--read`, which are read-only as a whole.
    pub readable: Vec<PathBuf>,
    /// The number of directory entries that were searched.
    files: usize,
    /// The bytes of their paths.
    bytes: usize,
    /// The repositories of the search at the start, for the search after the command.
    before: Option<BTreeSet<PathBuf>>,
}

impl Found {
    /// Searches the directories that a command will see: the writable ones for files that the host
    /// would execute or obey, and all of them for sockets. Fails if a path cannot be protected, or
    /// if a limit is exceeded.
    pub fn search(writable: &[PathBuf], readable: &[PathBuf]) -> Result<Self, String> {
        let roots = writable.iter().filter(|root| root.is_dir());
        let mut found = Self {
            roots: roots.cloned().collect(),
            readable: readable.to_vec(),
            ..Self::default()
        };
        found.search_roots()?;
        for root in readable {
            found.hide_sockets(root, 0, None)?;
        }
        Ok(found)
    }

    /// Searches the writable directories again after the command has ended. Links and hard links,
    /// which the command may have made, are no errors. `before` is the search at the start.
    pub fn search_at_end(writable: &[PathBuf], before: &Self) -> Result<Self, String> {
        let roots = writable.iter().filter(|root| root.is_dir());
        let mut found = Self {
            roots: roots.cloned().collect(),
            before: Some(before.repositories.clone()),
            ..Self::default()
        };
        found.search_roots()?;
        Ok(found)
    }

    fn search_roots(&mut self) -> Result<(), String> {
        for root in &self.roots.clone() {
            self.add_root(root)?;
        }
        self.finish()
    }

    /// The writable directories.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Returns the innermost writable directory that contains a path, other than the path itself.
    pub fn root_of(&self, path: &Path) -> Option<PathBuf> {
        let roots = self.roots.iter();
        let above = roots.filter(|root| path.starts_with(root) && *path != **root);
        above.max_by_key(|root| root.components().count()).cloned()
    }

    /// Protects files and directories that the host obeys, at any depth of a writable directory. The
    /// names of [`OBEYED_AT_ONCE`] directly in the directory are protected even if they are missing.
    /// If the directory has no repository and is not itself a git directory, what could make it one
    /// is protected in the same way. The state directory of `dev` is hidden even if it is missing.
    fn add_root(&mut self, root: &Path) -> Result<(), String> {
        let git = root.join(".git");
        if git_directory::is_one(root) {
            self.add_git(root)?;
            // Only git reads in the git directory of a work tree.
            if root.components().any(|part| part.as_os_str() == GIT.name) {
                return Ok(());
            }
        } else if !exists(&git) || is_empty(&git) {
            self.add(git, IfMissing::Directory)?;
            self.add_against_git(root)?;
        }
        let own_state = root.join(OWN_STATE);
        if self.before.is_none() && !exists(&own_state) {
            // A placeholder: with a directory of its own there, the command could offer the
            // commands of the host an admin socket.
            self.missing.push(Missing {
                path: own_state.clone(),
                text: None,
            });
            self.hidden.insert(own_state);
        }
        for (name, text) in OBEYED_AT_ONCE {
            let if_missing = text.map_or(IfMissing::Directory, IfMissing::File);
            self.add(root.join(name), if_missing)?;
        }
        self.walk(Place::top(root), root)
    }
}

/// Whether the name of a file or directory is hidden.
pub fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
