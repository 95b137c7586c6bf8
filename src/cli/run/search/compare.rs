//! Adds the files that the command may change, to compare them after it has ended.

use std::fs;
use std::path::{Path, PathBuf};

use super::Found;

/// Limit on the links that are followed one after another, as in the kernel, and on missing parts of
/// a path.
const MAX_LINKS: usize = 40;

impl Found {
    /// Compares a file, and the target of a symbolic link in a writable directory. `obeyed` is what
    /// the host obeys as a whole.
    pub fn compare(&mut self, path: &Path, obeyed: &Path) {
        self.insert_compared(path.to_owned(), obeyed);
        if !path.is_symlink() {
            return;
        }
        let Some(target) = resolve(path).filter(|target| self.root_of(target).is_some()) else {
            return;
        };
        match target.is_dir() {
            false => self.insert_compared(target, obeyed),
            // The directories in `obeyed` are compared anyway.
            true if target.starts_with(obeyed) => {}
            true => self.compare_all(&target, false),
        }
    }

    /// The innermost directory that the host obeys counts, so that a link to a directory around it
    /// does not replace its line in the list.
    fn insert_compared(&mut self, path: PathBuf, obeyed: &Path) {
        let known = self.compared.entry(path).or_default();
        if known.as_os_str().len() < obeyed.as_os_str().len() {
            obeyed.clone_into(known);
        }
    }

    /// Compares the file, or the files of the directory, to which a path leads in a writable
    /// directory. `is_code` says whether a directory contains programs.
    pub fn compare_target(&mut self, path: &Path, is_code: bool) {
        let Some(target) = resolve(path).filter(|target| self.root_of(target).is_some()) else {
            return;
        };
        match target.is_dir() {
            true => self.compare_all(&target, is_code),
            false => self.compare(&target, &target),
        }
    }

    /// Compares all files in a directory, which the host obeys as a whole although its name does not
    /// say so. [`Found::finish`] searches it: a chain of links would overflow the stack.
    pub fn compare_all(&mut self, directory: &Path, is_code: bool) {
        if self.compared_as_named.insert(directory.to_owned()) {
            self.compared_directories.insert(directory.to_owned());
            self.pending.push((directory.to_owned(), is_code));
        }
    }
}

/// The path to which a path leads, even if the last parts are missing.
fn resolve(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    let mut missing = Vec::new();
    for _ in 0..MAX_LINKS {
        if let Ok(target) = fs::canonicalize(&path) {
            let missing = missing.into_iter().rev();
            return Some(missing.fold(target, |path, name| path.join(name)));
        }
        let parent = path.parent()?;
        path = match fs::read_link(&path) {
            Ok(target) => parent.join(target),
            Err(_) => {
                missing.push(path.file_name()?.to_owned());
                parent.to_owned()
            }
        };
    }
    None
}
