//! Searches the directories of a run for files that the host would later execute, or obey as
//! settings, and for sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::git_directory;
use super::obeyed::{Care, OBEYED_AT_ONCE, care_for, is_empty, is_of_packages};
use super::placeholders::Missing;
use super::version_control::{GIT, IfMissing, System, other_system};

/// The state directory of `dev`, with its admin socket.
const OWN_STATE: &str = ".unified-proxy";

/// Limit on the directory entries that are searched for one run.
const MAX_FILES: usize = 2_000_000;
/// Limit on the bytes of the paths that are searched, which bounds the memory for the paths that are
/// kept.
const MAX_BYTES: usize = 256 << 20;
/// Limit on the nesting of directories.
pub const MAX_DEPTH: usize = 400;

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
    /// The `.git` of each work tree, a directory or a file, and bare git directories.
    pub repositories: BTreeSet<PathBuf>,
    /// The writable directories that were searched.
    roots: Vec<PathBuf>,
    /// The directories of `--read`, which are read-only as a whole.
    readable: Vec<PathBuf>,
    /// The number of directory entries that were searched.
    files: usize,
    /// The bytes of their paths.
    bytes: usize,
}

/// Where the search is.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The writable directory that contains the place.
    root: &'a Path,
    /// The directory around the place that the host obeys as a whole.
    obeyed: Option<&'a Path>,
    /// The directory of a repository around the place, and its system.
    repository: Option<(&'a Path, &'a System)>,
    /// Whether the place is in a directory with installed packages.
    is_of_packages: bool,
    depth: usize,
}

impl<'a> Place<'a> {
    fn top(root: &'a Path) -> Self {
        Self {
            root,
            obeyed: None,
            repository: None,
            is_of_packages: false,
            depth: 0,
        }
    }
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
        for root in &found.roots.clone() {
            found.add_root(root)?;
        }
        for root in readable {
            found.hide_sockets(root, 0, None)?;
        }
        Ok(found)
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
    /// If the directory has no repository and is not itself a git directory, `.git` and `HEAD` are
    /// protected in the same way.
    fn add_root(&mut self, root: &Path) -> Result<(), String> {
        let git = root.join(".git");
        if git_directory::is_one(root) {
            self.add_git(root)?;
        } else if !exists(&git) || is_empty(&git) {
            self.add(git, IfMissing::Directory)?;
            // A `HEAD` could make the directory itself a git directory, whose settings are obeyed.
            self.add(root.join("HEAD"), IfMissing::Directory)?;
        }
        for (name, text) in OBEYED_AT_ONCE {
            let if_missing = text.map_or(IfMissing::Directory, IfMissing::File);
            self.add(root.join(name), if_missing)?;
        }
        self.walk(Place::top(root), root)
    }

    /// Protects a file or directory. Fails for a symbolic link and for a file with several hard
    /// links.
    pub fn add(&mut self, path: PathBuf, if_missing: IfMissing) -> Result<(), String> {
        match path.symlink_metadata() {
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

    /// Compares a file, and the target of a symbolic link in a writable directory. `obeyed` is what
    /// the host obeys as a whole.
    pub fn compare(&mut self, path: &Path, obeyed: &Path) {
        self.compared.insert(path.to_owned(), obeyed.to_owned());
        if path.is_symlink()
            && let Ok(target) = fs::canonicalize(path)
            && target.is_file()
            && self.root_of(&target).is_some()
        {
            self.compared.insert(target, obeyed.to_owned());
        }
    }

    /// Compares all files in a directory, which the host obeys as a whole although its name does not
    /// say so.
    pub fn compare_all(&mut self, root: &Path, directory: &Path) -> Result<(), String> {
        self.compared_as_named.insert(directory.to_owned());
        self.compared_directories.insert(directory.to_owned());
        let place = Place {
            obeyed: Some(directory),
            ..Place::top(root)
        };
        self.walk(place, directory)
    }

    /// Protects a git directory, and those of its submodules and work trees.
    fn add_git(&mut self, git: &Path) -> Result<(), String> {
        self.repositories.insert(git.to_owned());
        self.add_repository(git, git, &GIT)?;
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

    /// Protects what a version control system obeys in the directory of a repository, and compares
    /// the rest except data.
    fn add_repository(
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
    fn walk(&mut self, place: Place<'_>, directory: &Path) -> Result<(), String> {
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
        let care = care_for(name, place.obeyed.is_some());
        let care = care.filter(|_| !place.is_of_packages);
        if care == Some(Care::Protected) {
            if kind.is_dir() {
                self.hide_sockets(path, place.depth, None)?;
            }
            self.add_or_compare(place.root, path);
        } else if kind.is_dir() {
            if git_directory::is_one(path) {
                self.pin_between(place.root, directory);
                self.add_git(path)?;
            }
            if care.is_some() {
                self.compared_directories.insert(path.to_owned());
            }
            let place = Place {
                obeyed: place.obeyed.or(care.map(|_| path)),
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

    /// Pins `directory` and the directories between it and `root`.
    pub fn pin_between(&mut self, root: &Path, directory: &Path) {
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
        self.bytes += directory.as_os_str().len() * entries.len();
        match self.files <= MAX_FILES && self.bytes <= MAX_BYTES {
            true => Ok(entries),
            false => Err(format!(
                "there are more than {MAX_FILES} files, or their paths are longer than {MAX_BYTES} \
                 bytes in all, too many to search for files to protect: start the command in a \
                 smaller directory"
            )),
        }
    }
}

/// Whether a directory belongs to this user, who could make it readable again.
fn is_ours(directory: &Path) -> bool {
    let user = rustix::process::getuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|found| found.uid() == user)
}

pub fn exists(path: &Path) -> bool {
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
