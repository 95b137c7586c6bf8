//! Finds the files in the writable directories of a run that the host would later execute, or obey
//! as settings. Makes them read-only or compares them at the end. Hides the sockets in all
//! directories of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::changes::{Change, Start};
use super::named;
use super::placeholders::Missing;
use super::search::Found;
use crate::sandbox::{Access, Entry};

/// Limit on the protected and hidden paths of one run, since each is a mount.
const MAX_PROTECTED: usize = 20_000;
/// Limit on the work trees that the command does not see but git may not take for deleted.
const MAX_UNSEEN: usize = 1000;

/// The protected and the compared paths in the directories of a run.
#[derive(Debug)]
pub struct Protected {
    found: Found,
    start: Start,
}

impl Protected {
    /// Searches the directories that a command will see: the writable ones for files that the host
    /// would execute or obey, and all of them for sockets. Fails if a path cannot be protected, or
    /// if a limit is exceeded. `home` is the home directory of the user, and `git` the program.
    pub fn find(
        writable: &[PathBuf],
        readable: &[PathBuf],
        home: Option<&Path>,
        git: Option<PathBuf>,
    ) -> Result<Self, String> {
        let mut found = Found::search(writable, readable)?;
        named::add(&mut found, home)?;
        let count = found.pinned.len() + found.read_only.len() + found.hidden.len();
        if count > MAX_PROTECTED {
            return Err(format!(
                "{count} files and directories need protection, at most {MAX_PROTECTED} can have \
                 it: start the command in a smaller directory"
            ));
        }
        let start = Start::record(&found, git);
        Ok(Self { found, start })
    }

    /// Takes the protected paths that do not exist and so need placeholders.
    pub fn take_missing(&mut self) -> Vec<Missing> {
        std::mem::take(&mut self.found.missing)
    }

    /// Hides files or directories.
    pub fn hide(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.found.hidden.extend(paths);
    }

    /// Drops the protection of paths that cannot be created: they need no protection.
    pub fn forget(&mut self, paths: &[PathBuf]) {
        self.found.read_only.retain(|path| !paths.contains(path));
        self.found.hidden.retain(|path| !paths.contains(path));
    }

    /// The read-only paths: files and directories that the host would execute or obey.
    pub fn obeyed(&self) -> &BTreeSet<PathBuf> {
        &self.found.read_only
    }

    /// The paths that may have placeholders: the read-only and the hidden ones.
    pub fn restricted(&self) -> BTreeSet<PathBuf> {
        &self.found.read_only | &self.found.hidden
    }

    /// The `.git` of each work tree, and bare git directories.
    pub fn repositories(&self) -> &BTreeSet<PathBuf> {
        &self.found.repositories
    }

    /// Entries with the `.git` of the work trees that the command does not see. Without it, git takes
    /// the tree for deleted, and `git gc` removes what the repository keeps about it.
    pub fn unseen_trees(&self) -> impl Iterator<Item = Entry> {
        let unseen = self.found.unseen.iter().take(MAX_UNSEEN);
        unseen.map(|(file, own)| Entry::File {
            at: file.clone(),
            text: format!("gitdir: {}\n", own.display()),
        })
    }

    /// The existing configurations of repositories.
    pub fn git_configs(&self) -> Vec<PathBuf> {
        let configs = self.found.repositories.iter();
        let configs = configs.map(|git| git.join("config"));
        configs
            .filter(|path| self.found.read_only.contains(path) && path.is_file())
            .collect()
    }

    /// Searches again, and returns what was made, changed or removed since the first search that
    /// the host would execute or obey, the most dangerous first. Fails if the search fails, since the command may have made a
    /// directory unreadable.
    pub fn changes(&self, writable: &[PathBuf]) -> Result<Vec<(PathBuf, Change)>, String> {
        let mut now = Found::search_at_end(writable, &self.found)?;
        for directory in &self.found.compared_as_named {
            // A link in its place may lead out of the writable directory.
            match fs::canonicalize(directory).is_ok_and(|now| now == *directory && now.is_dir()) {
                true => now.compare_all(directory, false),
                false => now.compare(directory, directory),
            }
        }
        now.finish()?;
        Ok(self.start.changes(&self.found, &now))
    }

    /// Returns the entries of the sandbox's file system that protect and hide these paths.
    pub fn entries(&self) -> Vec<Entry> {
        let Found {
            pinned,
            read_only,
            hidden,
            ..
        } = &self.found;
        let pinned = pinned.difference(read_only);
        let pinned = pinned.map(|path| (path, Access::Writable));
        let read_only = read_only.iter().map(|path| (path, Access::ReadOnly));
        // A map of paths is sorted, so that parents come before their children.
        let pins: BTreeMap<_, _> = pinned.chain(read_only).collect();
        let pins = pins.into_iter().map(|(at, access)| Entry::Pin {
            at: at.clone(),
            access,
        });
        let hidden = hidden.iter().map(|at| Entry::Hide { at: at.clone() });
        pins.chain(hidden).collect()
    }
}

#[cfg(test)]
mod tests;
