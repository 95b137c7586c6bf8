//! Searches directories, and adds what they contain by its name and its place.

use std::collections::BTreeSet;
use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::super::git_directory;
use super::super::obeyed::{Care, Within, care_for, is_empty, is_of_packages};
use super::super::version_control::{IfMissing, System, other_system};
use super::{Found, OWN_STATE, exists, is_hidden};

/// Where the search is.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The writable directory that contains the place.
    root: &'a Path,
    /// The directory around the place that the host obeys as a whole.
    obeyed: Option<&'a Path>,
    /// The directory of a repository around the place, and its system.
    repository: Option<(&'a Path, &'a System)>,
    /// Whether the place is in a directory with installed packages.
    is_of_packages: bool,
    /// Whether the place is in a directory of programs, or in a Python environment.
    is_code: bool,
    depth: usize,
}

impl<'a> Place<'a> {
    pub(super) fn top(root: &'a Path) -> Self {
        Self {
            root,
            obeyed: None,
            repository: None,
            is_of_packages: false,
            is_code: false,
            depth: 0,
        }
    }

    /// How the host obeys a file in `directory`, which is at this place.
    fn within(&self, directory: &Path) -> Within {
        let Some(obeyed) = self.obeyed else {
            return Within::Nothing;
        };
        let is_top = |path: &Path| path == obeyed || is_hidden(path);
        let of_settings = directory.ends_with("settings") || directory.ends_with("config");
        match directory.parent() {
            _ if self.is_code => Within::Code,
            _ if is_top(directory) => Within::Settings,
            Some(parent) if of_settings && is_top(parent) => Within::Settings,
            _ => Within::Deep,
        }
    }
}

impl Found {
    /// Searches the directories of [`Found::compare_all`], and those to which links in them lead.
    pub fn finish(&mut self) -> Result<(), String> {
        while let Some((directory, is_code)) = self.pending.pop() {
            let Some(root) = self.root_of(&directory) else {
                continue;
            };
            let mut above = directory.ancestors().take_while(|path| **path != root);
            let place = Place {
                obeyed: Some(&directory),
                is_code: is_code || above.any(is_python_environment),
                ..Place::top(&root)
            };
            self.walk(place, &directory)?;
        }
        Ok(())
    }

    /// Protects what a version control system obeys in the directory of a repository, and compares
    /// the rest except data.
    pub(super) fn add_repository(
        &mut self,
        root: &Path,
        directory: &Path,
        system: &System,
    ) -> Result<(), String> {
        self.pinned.insert(directory.to_owned());
        for (name, if_missing) in system.obeyed {
            let path = directory.join(name);
            match if_missing {
                IfMissing::Compare => self.add_or_compare(directory, &path),
                if_missing => self.add(path, *if_missing)?,
            }
        }
        let place = Place {
            repository: Some((directory, system)),
            ..Place::top(root)
        };
        self.walk(place, directory)
    }

    /// Searches a directory and those below it for what the host obeys, and for sockets.
    pub(super) fn walk(&mut self, place: Place<'_>, directory: &Path) -> Result<(), String> {
        for (entry, kind) in self.list(directory, place.depth)? {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            // A directory of `--read` is read-only as a whole, and `search` hides its sockets.
            if self.readable.contains(&path) {
                continue;
            }
            if kind.is_socket() || name == OWN_STATE {
                self.hidden.insert(path);
            } else if let Some((repository, system)) = place.repository {
                self.add_of_repository(place, repository, system, &path, kind)?;
            } else if name == ".git" {
                self.pin_between(place.root, directory);
                match kind.is_dir() && !is_empty(&path) {
                    true => self.add_git(&path)?,
                    // A file with the path of the git directory, or an empty directory.
                    false => {
                        self.repositories.insert(path.clone());
                        self.add(path, IfMissing::Compare)?;
                    }
                }
            } else if let Some(system) = other_system(name).filter(|_| kind.is_dir()) {
                self.pin_between(place.root, directory);
                self.compared_directories.insert(path.clone());
                self.add_repository(place.root, &path, system)?;
            } else {
                self.add_named(place, &path, name, kind)?;
            }
        }
        Ok(())
    }

    /// Adds a file or directory in the directory of a repository.
    fn add_of_repository(
        &mut self,
        place: Place<'_>,
        repository: &Path,
        system: &System,
        path: &Path,
        kind: FileType,
    ) -> Result<(), String> {
        let relative = path.strip_prefix(repository).unwrap_or(path);
        if system.is_obeyed(relative) {
            return Ok(());
        }
        let depth = place.depth + 1;
        if system.is_data(relative) {
            // The data of another system may include a git directory, as that of jj does.
            if kind.is_dir() && !system.is_git() {
                let repository = None;
                self.walk(
                    Place {
                        repository,
                        depth,
                        ..place
                    },
                    path,
                )?;
            }
            return Ok(());
        }
        let top = relative.components().next();
        let top = top.map_or(path.to_owned(), |top| repository.join(top));
        if !kind.is_dir() {
            self.compare(path, &top);
            return Ok(());
        }
        self.compared_directories.insert(path.to_owned());
        self.walk(Place { depth, ..place }, path)
    }

    /// Adds a file or directory according to its name.
    fn add_named(
        &mut self,
        place: Place<'_>,
        path: &Path,
        name: &str,
        kind: FileType,
    ) -> Result<(), String> {
        let directory = path.parent().unwrap_or(place.root);
        let care = care_for(name, place.within(directory));
        let care = care.filter(|_| !place.is_of_packages);
        if care == Some(Care::Protected) {
            self.add_or_compare(place.root, path);
            if kind.is_dir() {
                self.hide_sockets(path, place.depth, None)?;
            }
        } else if kind.is_dir() {
            if git_directory::is_one(path) {
                self.pin_between(place.root, directory);
                self.add_git(path)?;
            }
            if care.is_some() {
                self.compared_directories.insert(path.to_owned());
            }
            let obeyed = place.obeyed.or(care.map(|_| path));
            let place = Place {
                obeyed: obeyed.filter(|_| !self.is_tree(path)),
                is_code: place.is_code || obeyed.is_some() && is_python_environment(path),
                is_of_packages: place.is_of_packages || is_of_packages(name),
                depth: place.depth + 1,
                ..place
            };
            self.walk(place, path)?;
        } else if care.is_some() {
            self.compare(path, place.obeyed.unwrap_or(path));
        }
        Ok(())
    }

    /// Whether a directory is a work tree, which contains source code even in a hidden directory. A
    /// hidden one may be an agent's, and one that the command made may hide settings.
    fn is_tree(&self, directory: &Path) -> bool {
        let git = directory.join(".git");
        let is_known = |before: &BTreeSet<PathBuf>| before.contains(&git);
        !is_hidden(directory) && exists(&git) && self.before.as_ref().is_none_or(is_known)
    }

    /// Hides the sockets in a directory, at any depth, and compares the targets of links in read-only
    /// directories. Does not search its subdirectory `skipped`.
    pub(super) fn hide_sockets(
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
            } else if kind.is_symlink() {
                let path = entry.path();
                if path.ancestors().any(|path| self.read_only.contains(path)) {
                    self.compare_target(&path, false);
                }
            } else if kind.is_dir() && skipped.is_none_or(|name| entry.file_name() != name) {
                self.hide_sockets(&entry.path(), depth + 1, None)?;
            }
        }
        Ok(())
    }
}

/// Whether a directory is a Python environment, whose programs and packages `pip` replaces.
fn is_python_environment(directory: &Path) -> bool {
    exists(&directory.join("pyvenv.cfg"))
}
