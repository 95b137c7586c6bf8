//! Finds the files in the writable directories of a run that the host would later execute, or obey
//! as settings, and makes them read-only. Hides the sockets in all directories of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::git_directory::{self, OBEYED_BY_GIT};
use super::obeyed::{OBEYED, is_empty, is_obeyed};
use super::placeholders::Missing;
use crate::sandbox::{Access, Entry};

/// The state directory of `dev`, with its admin socket.
const OWN_STATE: &str = ".unified-proxy";

/// Limit on the directory entries that are searched for one run.
const MAX_FILES: usize = 2_000_000;
/// Limit on the protected and hidden paths of one run, since each is a mount.
const MAX_PROTECTED: usize = 20_000;
/// Limit on the nesting of directories.
const MAX_DEPTH: usize = 400;

/// The protected paths in the directories of a run.
#[derive(Debug, Default)]
pub struct Protected {
    /// The paths of `read_only` that do not exist and so need placeholders.
    pub missing: Vec<Missing>,
    /// Directories above protected paths. Each is mounted over itself, so that the command cannot
    /// rename it and create the protected path again.
    pinned: BTreeSet<PathBuf>,
    /// Files and directories that the host would execute or obey.
    read_only: BTreeSet<PathBuf>,
    /// Sockets and directories that the command must not use.
    hidden: BTreeSet<PathBuf>,
    /// The directories of `--read`, which are read-only as a whole.
    readable: Vec<PathBuf>,
    /// The number of directory entries that were searched.
    files: usize,
}

impl Protected {
    /// Searches the directories that a command will see: the writable ones for paths to protect,
    /// and all of them for sockets. Fails if a path cannot be protected, or if a limit is exceeded.
    pub fn find(writable: &[PathBuf], readable: &[PathBuf]) -> Result<Self, String> {
        let mut found = Self {
            readable: readable.to_vec(),
            ..Self::default()
        };
        for root in writable.iter().filter(|root| root.is_dir()) {
            found.add_root(root)?;
        }
        for root in readable {
            found.hide_sockets(root, 0, None)?;
        }
        let count = found.pinned.len() + found.read_only.len() + found.hidden.len();
        if count > MAX_PROTECTED {
            return Err(format!(
                "{count} files and directories need protection, at most {MAX_PROTECTED} can have \
                 it: start the command in a smaller directory"
            ));
        }
        Ok(found)
    }

    /// Hides files or directories.
    pub fn hide(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.hidden.extend(paths);
    }

    /// Drops the protection of paths that cannot be created: they need no protection.
    pub fn forget(&mut self, paths: &[PathBuf]) {
        self.read_only.retain(|path| !paths.contains(path));
    }

    /// The read-only paths: files and directories that the host would execute or obey.
    pub fn obeyed(&self) -> &BTreeSet<PathBuf> {
        &self.read_only
    }

    /// Searches again. Returns the files and directories that the host would execute or obey and
    /// that were created since the first search. Instead of a path below a `.git` directory,
    /// returns that directory. Fails if the search fails, since the command may have made a
    /// directory unreadable.
    pub fn made_since(&self, writable: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
        let now = Self::find(writable, &[])?;
        let is_known = |path: &&PathBuf| {
            let mut above = path.ancestors();
            above.any(|above| self.read_only.contains(above))
        };
        let made = now.read_only.iter().filter(|path| !is_known(path));
        let of_git = |path: &PathBuf| {
            let git = path.ancestors().find(|above| above.ends_with(".git"));
            git.unwrap_or(path).to_owned()
        };
        let made: BTreeSet<PathBuf> = made.map(of_git).collect();
        Ok(made.into_iter().collect())
    }

    /// Returns the entries of the sandbox's file system that protect and hide these paths.
    pub fn entries(&self) -> Vec<Entry> {
        let pinned = self.pinned.difference(&self.read_only);
        let pinned = pinned.map(|path| (path, Access::Writable));
        let read_only = self.read_only.iter().map(|path| (path, Access::ReadOnly));
        // A map of paths is sorted, so that parents come before their children.
        let pins: BTreeMap<_, _> = pinned.chain(read_only).collect();
        let pins = pins.into_iter().map(|(at, access)| Entry::Pin {
            at: at.clone(),
            access,
        });
        let hidden = self.hidden.iter().map(|at| Entry::Hide { at: at.clone() });
        pins.chain(hidden).collect()
    }

    /// Protects files and directories whose names the host obeys, at any depth of a writable
    /// directory. The names of [`OBEYED`] directly in the directory are protected even if they are
    /// missing. If the directory has no repository and is not itself a git directory, `.git` and
    /// `HEAD` are protected in the same way.
    fn add_root(&mut self, root: &Path) -> Result<(), String> {
        let git = root.join(".git");
        if git_directory::is_one(root) {
            self.add_git(root)?;
        } else if !exists(&git) || is_empty(&git) {
            self.add(git, None)?;
            // A `HEAD` could make the directory itself a git directory, whose settings are obeyed.
            self.add(root.join("HEAD"), None)?;
        }
        for (name, text) in OBEYED {
            self.add(root.join(name), text)?;
        }
        self.walk(root, root, 0)
    }

    /// Protects a file or directory. A missing one gets a placeholder: a file with `text`, or a
    /// directory if `text` is `None`. Fails for a symbolic link and for a file with several hard
    /// links.
    fn add(&mut self, path: PathBuf, text: Option<&str>) -> Result<(), String> {
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => return Err(is_a_link(&path)),
            Ok(found) if found.is_file() && found.nlink() > 1 => {
                return Err(has_another_name(&path));
            }
            Ok(_) => {}
            Err(_) => self.missing.push(Missing {
                path: path.clone(),
                text: text.map(str::to_owned),
            }),
        }
        self.read_only.insert(path);
        Ok(())
    }

    /// Protects a git directory, and those of its submodules and work trees.
    fn add_git(&mut self, git: &Path) -> Result<(), String> {
        self.pinned.insert(git.to_owned());
        for (name, text) in OBEYED_BY_GIT {
            self.add(git.join(name), text)?;
        }
        let named = git_directory::named_by_config(git);
        for (path, text) in named.paths {
            if let Some(above) = path.parent() {
                self.pin_between(&named.tree, above);
            }
            self.add(path, text)?;
        }
        for name in ["modules", "worktrees"] {
            let below = git.join(name);
            if exists(&below) {
                self.pinned.insert(below.clone());
                self.add_git_below(&below, 0)?;
            }
        }
        // `objects` may have very many files.
        self.hide_sockets(git, 0, Some("objects"))
    }

    /// Protects the git directories at any depth below a directory, since the names of submodules
    /// may contain slashes.
    fn add_git_below(&mut self, directory: &Path, depth: usize) -> Result<(), String> {
        for (entry, kind) in self.list(directory, depth)? {
            let path = entry.path();
            if !kind.is_dir() {
                continue;
            }
            if git_directory::looks_like_one(&path) {
                self.pin_between(directory, &path);
                self.add_git(&path)?;
            } else {
                self.pinned.insert(path.clone());
                self.add_git_below(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Searches a directory and those below it for names that the host obeys, and for sockets.
    fn walk(&mut self, root: &Path, directory: &Path, depth: usize) -> Result<(), String> {
        for (entry, kind) in self.list(directory, depth)? {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            // A directory of `--read` is read-only as a whole, and `find` hides its sockets.
            if self.readable.contains(&path) {
                continue;
            }
            if kind.is_socket() || name == OWN_STATE {
                self.hidden.insert(path);
            } else if name == ".git" {
                self.pin_between(root, directory);
                match kind.is_dir() && !is_empty(&path) {
                    true => self.add_git(&path)?,
                    // A file with the path of the git directory, or an empty directory.
                    false => self.add(path, None)?,
                }
            } else if is_obeyed(name) && !kind.is_symlink() {
                self.pin_between(root, directory);
                self.add(path.clone(), None)?;
                if kind.is_dir() {
                    self.hide_sockets(&path, depth, None)?;
                }
            } else if kind.is_dir() {
                if git_directory::is_one(&path) {
                    self.pin_between(root, directory);
                    self.add_git(&path)?;
                }
                self.walk(root, &path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Pins `directory` and the directories between it and `root`.
    fn pin_between(&mut self, root: &Path, directory: &Path) {
        let way = directory.ancestors().take_while(|path| *path != root);
        self.pinned.extend(way.map(Path::to_owned));
    }

    /// Hides the sockets in a directory, at any depth. Does not search its subdirectory `skipped`.
    fn hide_sockets(
        &mut self,
        directory: &Path,
        depth: usize,
        skipped: Option<&str>,
    ) -> Result<(), String> {
        if !directory.is_dir() {
            return Ok(());
        }
        for (entry, kind) in self.list(directory, depth)? {
            if kind.is_socket() {
                self.hidden.insert(entry.path());
            } else if kind.is_dir() && skipped.is_none_or(|name| entry.file_name() != name) {
                self.hide_sockets(&entry.path(), depth + 1, None)?;
            }
        }
        Ok(())
    }

    /// Lists a directory. Returns no entries if it belongs to another user and this user may not
    /// read it. Fails if it cannot be read for another reason, if its path is not UTF-8, or if
    /// [`MAX_DEPTH`] or [`MAX_FILES`] is exceeded.
    fn list(
        &mut self,
        directory: &Path,
        depth: usize,
    ) -> Result<Vec<(DirEntry, FileType)>, String> {
        let unreadable = |error: io::Error| {
            format!(
                "{} cannot be searched for files to protect: {error}",
                directory.display()
            )
        };
        if directory.to_str().is_none() || depth > MAX_DEPTH {
            let why = "its path is not UTF-8, or it is nested in more than 400 directories";
            return Err(unreadable(io::Error::other(why)));
        }
        let entries = match fs::read_dir(directory) {
            // The command cannot read a directory of another user either.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && !is_ours(directory) =>
            {
                return Ok(Vec::new());
            }
            entries => entries.map_err(unreadable)?,
        };
        let entries = entries.map(|entry| {
            let entry = entry?;
            let kind = entry.file_type()?;
            Ok((entry, kind))
        });
        let entries: Vec<_> = entries.collect::<io::Result<_>>().map_err(unreadable)?;
        self.files += entries.len();
        match self.files <= MAX_FILES {
            true => Ok(entries),
            false => Err(format!(
                "there are more than {MAX_FILES} files, too many to search for files to protect: \
                 start the command in a smaller directory"
            )),
        }
    }
}

/// Whether a directory belongs to this user, who could make it readable again.
fn is_ours(directory: &Path) -> bool {
    let user = rustix::process::getuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|found| found.uid() == user)
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn has_another_name(path: &Path) -> String {
    format!(
        "{} has another name (a hard link), by which the command could write to it: replace it by \
         a copy",
        path.display()
    )
}

fn is_a_link(path: &Path) -> String {
    format!(
        "{} is a symbolic link, which the command could replace: replace it by its target, or \
         start in another directory",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_directory_made_in_the_run_is_found_and_an_unsearchable_directory_is_an_error() {
        let work = tempfile::tempdir().unwrap();
        let writable = [work.path().to_owned()];
        let before = Protected::find(&writable, &[]).unwrap();
        fs::create_dir_all(work.path().join("sub/.git/hooks")).unwrap();
        let made = before.made_since(&writable).unwrap();
        assert_eq!(made, [work.path().join("sub/.git")]);
        let deep: PathBuf = std::iter::repeat_n("d", MAX_DEPTH + 2).collect();
        fs::create_dir_all(work.path().join(deep)).unwrap();
        assert!(before.made_since(&writable).is_err());
    }
}
