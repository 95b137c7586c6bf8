//! Searches the directories of a run for files that the host would later execute, or obey as
//! settings, and for sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::git_directory;
use super::obeyed::{Care, OBEYED_AT_ONCE, Within, care_for, is_empty, is_of_packages};
use super::placeholders::Missing;
use super::version_control::{GIT, IfMissing, System, other_system};

/// The state directory of `dev`, with its admin socket.
const OWN_STATE: &str = ".unified-proxy";

/// The directory of the copies of git's configurations in the sandbox.
pub const GIT_COPIES: &str = "/run/unified-proxy/git";
/// Limit on the directory entries that are searched for one run.
const MAX_FILES: usize = 2_000_000;
/// Limit on the bytes of the paths that are searched, which bounds the memory for the paths that are
/// kept.
const MAX_BYTES: usize = 256 << 20;
/// Limit on the nesting of directories.
pub const MAX_DEPTH: usize = 400;
/// Limit on the links that are followed one after another, as in the kernel, and on missing parts of
/// a path.
const MAX_LINKS: usize = 40;

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
    /// Whether the place is in a directory of programs, or in a Python environment.
    is_code: bool,
    depth: usize,
}

impl<'a> Place<'a> {
    fn top(root: &'a Path) -> Self {
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

/// Whether the name of a file or directory is hidden.
pub fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
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
    /// is protected in the same way.
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
        for (name, text) in OBEYED_AT_ONCE {
            let if_missing = text.map_or(IfMissing::Directory, IfMissing::File);
            self.add(root.join(name), if_missing)?;
        }
        self.walk(Place::top(root), root)
    }

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
        self.add_excludes(git)?;
        self.add_unseen(git)?;
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

    /// Pins `directory` and the directories between it and `root`.
    pub fn pin_between(&mut self, root: &Path, directory: &Path) {
        let way = directory.ancestors().take_while(|path| *path != root);
        self.pinned.extend(way.map(Path::to_owned));
    }

    /// Hides the sockets in a directory, at any depth, and compares the targets of links in read-only
    /// directories. Does not search its subdirectory `skipped`.
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

    /// Lists a directory. Returns no entries if it belongs to another user and this user may not
    /// read it. Fails if it cannot be read for another reason, if its path is not UTF-8, or if
    /// [`MAX_DEPTH`] or [`MAX_FILES`] is exceeded.
    pub fn list(
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
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let kind = entry.file_type().map_err(unreadable)?;
            self.files += 1;
            self.bytes += directory.as_os_str().len() + entry.file_name().len() + 1;
            if self.files > MAX_FILES || self.bytes > MAX_BYTES {
                return Err(format!(
                    "there are more than {MAX_FILES} files, or their paths are longer than \
                     {MAX_BYTES} bytes in all, too many to search for files to protect: start the \
                     command in a smaller directory"
                ));
            }
            listed.push((entry, kind));
        }
        Ok(listed)
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

/// Whether a directory is a Python environment, whose programs and packages `pip` replaces.
fn is_python_environment(directory: &Path) -> bool {
    exists(&directory.join("pyvenv.cfg"))
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
