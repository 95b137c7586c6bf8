//! The directories of a run: home, working directory, and those given as arguments.

use std::env;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::exit::{Failure, code};
use crate::sandbox::machine::without_parents;

/// The home directory inside, if the real one is unset, `/` or in a directory of the system.
const PLAIN_HOME: &str = "/home/sandbox";

/// The most symbolic links that are followed one after the other.
const MAX_LINKS: usize = 8;

/// The directories of a run, as canonical paths.
#[derive(Clone, Debug)]
pub struct RunDirectories {
    /// The home directory outside, if it is set and suitable.
    pub real_home: Option<PathBuf>,
    /// The home directory inside.
    pub home: PathBuf,
    /// The working directory.
    pub directory: PathBuf,
    /// Writable paths: the working directory, then those of `--write`.
    pub writable: Vec<PathBuf>,
    /// Read-only paths: those of `--read`.
    pub readable: Vec<PathBuf>,
}

impl RunDirectories {
    /// Finds the directories. Refuses those that contain the home directory, writable ones that
    /// belong to the system, and those below `/proc`, `/dev` and `/sys`.
    pub fn find(write: &[PathBuf], read: &[PathBuf]) -> Result<Self, Failure> {
        let real_home = env::var_os("HOME").map(PathBuf::from);
        let real_home = real_home.filter(|home| home.is_absolute());
        let home = real_home.as_deref().map(canonical_or_same);
        let is_home = |home: &PathBuf| {
            let mut system = ["/etc", "/usr", "/proc", "/dev", "/sys"].iter();
            home != Path::new("/") && !system.any(|system| home.starts_with(system))
        };
        let home = home.filter(is_home);
        let directory = env::current_dir().map_err(|error| {
            let message = format_args!("the working directory cannot be used: {error}");
            Failure::new(code::USAGE, message)
        })?;
        let mut writable = vec![directory.clone()];
        for path in write {
            writable.push(canonical("--write", path)?);
        }
        let readable: Result<Vec<_>, _> =
            read.iter().map(|path| canonical("--read", path)).collect();
        let directories = Self {
            home: home.clone().unwrap_or_else(|| PLAIN_HOME.into()),
            real_home: home,
            directory,
            writable,
            readable: readable?,
        };
        directories.check()?;
        Ok(directories)
    }

    /// Resolves the links of a path. Returns `None` if the path or a link leads through a directory
    /// of the run, where the command could change it or sees it anyway; if it does not exist; and
    /// if a directory in it is a link.
    pub fn resolve_outside(&self, path: &Path) -> Option<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let mut work = self.writable.iter().chain(&self.readable);
            if work.any(|root| path.starts_with(root)) {
                return None;
            }
            if fs::canonicalize(&path).ok()? == path {
                return Some(path);
            }
            // Only the last part may be a link; links before it are not followed.
            let parent = path.parent()?;
            if fs::canonicalize(parent).ok()? != parent {
                return None;
            }
            path = without_parents(&parent.join(fs::read_link(&path).ok()?));
        }
        None
    }

    fn check(&self) -> Result<(), Failure> {
        let refuse = |message: String| Err(Failure::new(code::USAGE, message));
        for path in self.writable.iter().chain(&self.readable) {
            if self.home.starts_with(path) {
                return refuse(format!(
                    "{} holds the home directory, with every login in it: change to a \
                     directory below it, or name one",
                    path.display()
                ));
            }
            if self.writable.contains(path) && is_of_system(path) {
                return refuse(format!(
                    "{} belongs to the system, which a sandbox may not write to: start in another \
                     directory",
                    path.display()
                ));
            }
            if path.to_str().is_none() {
                return refuse(format!("{}: its name is not UTF-8", path.display()));
            }
            let own = ["/proc", "/dev", "/sys"]
                .iter()
                .find(|own| path.starts_with(own));
            if let Some(own) = own {
                return refuse(format!("{}: a sandbox has its own {own}", path.display()));
            }
        }
        match self
            .writable
            .iter()
            .find(|path| self.readable.contains(path))
        {
            None => Ok(()),
            Some(path) => refuse(format!(
                "{} cannot be both read-only and writable",
                path.display()
            )),
        }
    }
}

/// Whether a path holds programs or settings of the machine.
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
    fs::canonicalize(path).map_err(|error| {
        let message = format_args!("{flag} {}: {error}", path.display());
        Failure::new(code::USAGE, message)
    })
}

fn canonical_or_same(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Creates the directory that is kept between runs, with logs and records of placeholders. Refuses
/// one that the command could write to.
pub fn kept_state(directories: &RunDirectories) -> Result<PathBuf, Failure> {
    let base = env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let base = base.filter(|base| base.is_absolute());
    let base = match (base, &directories.real_home) {
        (Some(base), _) => base,
        (None, Some(home)) if home.is_dir() => home.join(".local/state"),
        (None, _) => {
            let message = "there is no directory for the audit log: set HOME or XDG_STATE_HOME";
            return Err(Failure::new(code::USAGE, message));
        }
    };
    let state = base.join("unified-proxy");
    make_private(&state.join("runs"))?;
    let state = canonical_or_same(&state);
    match directories
        .writable
        .iter()
        .any(|path| state.starts_with(path))
    {
        false => Ok(state),
        true => Err(Failure::new(
            code::USAGE,
            format_args!(
                "the sandbox could write to {}, where audit logs are kept: start it in another \
                 directory, or set XDG_STATE_HOME",
                state.display()
            ),
        )),
    }
}

fn make_private(path: &Path) -> Result<(), Failure> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|error| {
        let message = format_args!("{} cannot be made: {error}", path.display());
        Failure::new(code::CONFIG, message)
    })
}
