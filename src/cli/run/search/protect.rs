//! Adds the files and directories that the command must not change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::placeholders::Missing;
use super::super::version_control::IfMissing;
use super::{Found, GIT_COPIES};

impl Found {
    /// Protects a file or directory. Fails for a symbolic link and for a file with several hard
    /// links, except at the end.
    pub fn add(&mut self, path: PathBuf, if_missing: IfMissing) -> Result<(), String> {
        match path.symlink_metadata() {
            Ok(found) if self.before.is_some() => {
                if found.is_symlink() {
                    self.compare(&path, &path);
                }
            }
            Ok(found) if found.is_symlink() => return Err(is_a_link(&path)),
            Ok(found) if found.is_file() && found.nlink() > 1 => {
                return Err(has_another_name(&path));
            }
            Ok(_) => {}
            Err(_) => {
                let text = match if_missing {
                    IfMissing::Compare => {
                        self.compare(&path, &path);
                        return Ok(());
                    }
                    IfMissing::Directory => None,
                    IfMissing::File(text) => Some(text.to_owned()),
                };
                let path = path.clone();
                self.missing.push(Missing { path, text });
            }
        }
        self.read_only.insert(path);
        Ok(())
    }

    /// Protects a file, or a directory with its files, below `root`. If that is impossible, because
    /// of a link or since it is missing, it is compared.
    pub fn add_or_compare(&mut self, root: &Path, path: &Path) {
        match self.add(path.to_owned(), IfMissing::Compare) {
            Ok(()) if self.read_only.contains(path) => {
                self.pin_between(root, path.parent().unwrap_or(root));
            }
            Ok(()) => {}
            Err(_) => self.compare(path, path),
        }
    }

    /// Pins `directory` and the directories between it and `root`.
    pub fn pin_between(&mut self, root: &Path, directory: &Path) {
        let way = directory.ancestors().take_while(|path| *path != root);
        self.pinned.extend(way.map(Path::to_owned));
    }
}

fn has_another_name(path: &Path) -> String {
    format!(
        "{} has another name (a hard link), by which the command could write to it: replace it by \
         a copy",
        path.display()
    )
}

fn is_a_link(path: &Path) -> String {
    if fs::read_link(path).is_ok_and(|to| to.starts_with(GIT_COPIES)) {
        return format!(
            "{} is a link of an earlier sandbox, which a copy of a repository took along: remove it, \
             and copy `config` from the original",
            path.display()
        );
    }
    format!(
        "{} is a symbolic link, which the command could replace: replace it by its target, or \
         start in another directory",
        path.display()
    )
}
