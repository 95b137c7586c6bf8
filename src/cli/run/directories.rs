//! The directories of a run: the home directory, the working directory, and the paths of `--write`
//! and `--read`.

use std::env;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::git_directory;
use crate::cli::exit::{Failure, code};
use crate::sandbox::machine::without_parents;

/// The home directory in the sandbox, if the user's home directory is unset, relative, `/` or in a
/// directory of the system.
const PLAIN_HOME: &str = "/home/sandbox";

/// The number of symbolic links, one after the other, at which `resolve_outside` gives up.
const MAX_LINKS: usize = 8;

/// The directories of a run, as canonical paths.
#[derive(Clone, Debug)]
pub struct RunDirectories {
    /// The home directory of the user; `None` if it is unset, relative, `/` or in a directory of
    /// the system.
    pub real_home: Option<PathBuf>,
    /// The home directory in the sandbox.
    pub home: PathBuf,
    /// The working directory.
    pub directory: PathBuf,
    /// Writable paths: the working directory, the paths of `--write`, then the git directory of a
    /// working directory that is a linked work tree or a submodule.
    pub writable: Vec<PathBuf>,
    /// Read-only paths, given by `--read`.
    pub readable: Vec<PathBuf>,
}

impl RunDirectories {
    /// Finds the directories. Fails if a path does not exist, if a path is not UTF-8, or if a path
    /// is both writable and read-only. Refuses the home directory and the directories that contain
    /// it, writable directories that belong to the system, and directories in `/proc`, `/dev` and
    /// `/sys`.
    pub fn find(write: &[PathBuf], read: &[PathBuf]) -> Result<Self, Failure> {
        let is_home = |home: &PathBuf| {
            let mut system = ["/etc", "/usr", "/proc", "/dev", "/sys"].iter();
            home != Path::new("/") && !system.any(|system| home.starts_with(system))
        };
        let home = absolute_path_of("HOME");
        let home = home.map(|home| canonical_or_same(&home)).filter(is_home);
        let directory = env::current_dir().map_err(|error| {
            Failure::usage(format_args!(
                "the working directory cannot be used: {error}"
            ))
        })?;
        let mut writable = vec![directory.clone()];
        for path in write {
            writable.push(canonical("--write", path)?);
        }
        let readable: Result<Vec<_>, _> =
            read.iter().map(|path| canonical("--read", path)).collect();
        let readable = readable?;
        if let Some(git) = git_directory::outside(&directory) {
            let mut shown = writable.iter().chain(&readable);
            if !shown.any(|root| git.starts_with(root)) {
                writable.push(git);
            }
        }
        let directories = Self {
            home: home.clone().unwrap_or_else(|| PLAIN_HOME.into()),
            real_home: home,
            directory,
            writable,
            readable,
        };
        directories.check()?;
        Ok(directories)
    }

    /// Follows symbolic links in the last part of a path, and returns the path at their end.
    /// Returns `None` if
    ///
    /// - the path or a target is in a directory of the run, where the command could change it or
    ///   sees it anyway,
    /// - the path or a target does not exist, or one of its directories is a link,
    /// - there are [`MAX_LINKS`] links or more.
    pub fn resolve_outside(&self, path: &Path) -> Option<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            if self.shown().any(|root| path.starts_with(root)) {
                return None;
            }
            if fs::canonicalize(&path).ok()? == path {
                return Some(path);
            }
            // Only the last part may be a link.
            let parent = path.parent()?;
            if fs::canonicalize(parent).ok()? != parent {
                return None;
            }
            path = without_parents(&parent.join(fs::read_link(&path).ok()?));
        }
        None
    }

    /// The paths that the command sees: the writable ones, then the read-only ones.
    pub fn shown(&self) -> impl Iterator<Item = &PathBuf> {
        self.writable.iter().chain(&self.readable)
    }

    /// Returns the first writable path that contains `path`.
    pub fn writable_above(&self, path: &Path) -> Option<&PathBuf> {
        self.writable.iter().find(|root| path.starts_with(root))
    }

    /// Says why git will not work in the working directory; `None` if it will, or if the user's home
    /// directory is in the same work tree. Fails if git would do harm there.
    pub fn hint_of_git(&self) -> Result<Option<String>, Failure> {
        let shows = |path: &Path| self.shown().any(|root| path.starts_with(root));
        let file = self.directory.join(".git");
        let git = canonical_or_same(&git_directory::of_tree(&file));
        if git != file && git.is_dir() && !shows(&git) {
            return Ok(Some(format!(
                "git does not work here, since the command does not see {}, which does not name \
                 this directory as its work tree: show it with --write if it is the right one",
                git.display()
            )));
        }
        let around = git_directory::around(&self.directory);
        let around = around.map(|(top, git)| (top, canonical_or_same(&git)));
        let around = around.filter(|(top, _)| !self.home.starts_with(top));
        let Some((top, git)) = around.filter(|(top, git)| !shows(top) || !shows(git)) else {
            return Ok(None);
        };
        let top = top.display();
        match self.writable_above(&git) {
            Some(_) => Err(Failure::usage(format_args!(
                "the command would see the git directory of {top} but not all files of this work \
                 tree, so that git would take them for deleted: start in {top}, or show it with \
                 --write"
            ))),
            None => Ok(Some(format!(
                "git does not work here, since the command does not see the repository around this \
                 directory: start in {top} if it should"
            ))),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let refuse = |message: String| Err(Failure::usage(message));
        for path in self.shown() {
            if self.home.starts_with(path) {
                return refuse(format!(
                    "{} holds the home directory, with every login in it: start in a directory \
                     below the home directory, or name one with --write or --read",
                    path.display()
                ));
            }
            if self.writable.contains(path) && is_of_system(path) {
                return refuse(format!(
                    "{} belongs to the system, which a sandbox may not write to: start in another \
                     directory, or name another one with --write",
                    path.display()
                ));
            }
            if path.to_str().is_none() {
                return refuse(format!("{}: the path is not UTF-8", path.display()));
            }
            let own = ["/proc", "/dev", "/sys"]
                .iter()
                .find(|own| path.starts_with(own));
            if let Some(own) = own {
                return refuse(format!(
                    "{} cannot be shown to the command: a sandbox has its own {own}",
                    path.display()
                ));
            }
        }
        let mut writable = self.writable.iter();
        match writable.find(|path| self.readable.contains(path)) {
            None => Ok(()),
            Some(path) => refuse(format!(
                "{} cannot be both read-only and writable",
                path.display()
            )),
        }
    }
}

/// Whether a path is a directory with programs or settings of the machine.
fn is_of_system(path: &Path) -> bool {
    let below = [
        "/boot",
        "/etc",
        "/usr/bin",
        "/usr/lib",
        "/usr/sbin",
        "/usr/local/bin",
    ];
    let exactly = [
        "/opt",
        "/usr",
        "/usr/local",
        "/usr/share",
        "/var",
        "/var/lib",
    ];
    below.iter().any(|system| path.starts_with(system))
        || exactly.iter().any(|system| path == Path::new(system))
}

fn canonical(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path)
        .map_err(|error| Failure::usage(format_args!("{flag} {}: {error}", path.display())))
}

/// Returns the path in an environment variable; `None` if it is unset or relative.
pub fn absolute_path_of(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

fn canonical_or_same(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The directory for what outlives a run; `None` if the user has no directory for it.
pub fn kept_directory(home: Option<&Path>) -> Option<PathBuf> {
    let of_home = || Some(home.filter(|home| home.is_dir())?.join(".local/state"));
    let base = absolute_path_of("XDG_STATE_HOME").or_else(of_home)?;
    Some(base.join("unified-proxy"))
}

/// Creates the directory for logs and records of placeholders, which outlive the run. Refuses a
/// directory that the command could write to.
pub fn kept_state(directories: &RunDirectories) -> Result<PathBuf, Failure> {
    let Some(state) = kept_directory(directories.real_home.as_deref()) else {
        let message = "there is no directory for the audit log: set HOME or XDG_STATE_HOME";
        return Err(Failure::usage(message));
    };
    let runs = state.join("runs");
    let mut private = fs::DirBuilder::new();
    let made = private.recursive(true).mode(0o700).create(&runs);
    made.map_err(|error| {
        let runs = runs.display();
        let message = format_args!("the directory {runs} cannot be created: {error}");
        Failure::new(code::CONFIG, message)
    })?;
    let state = canonical_or_same(&state);
    match directories.writable_above(&state) {
        None => Ok(state),
        Some(_) => Err(Failure::usage(format_args!(
            "the sandbox could write to {}, where audit logs are kept: start the command in \
             another directory, or set XDG_STATE_HOME",
            state.display()
        ))),
    }
}
