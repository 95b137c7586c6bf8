//! What a command may not change in the directories that it works in: files that the host would
//! execute or obey later without being asked. And what it may not reach there: sockets.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::visible::is_socket;
use crate::sandbox::{Access, Entry};

/// Names that shells, editors and agents of the host look for in a directory, and execute or
/// obey once they are there.
const OBEYED: [&str; 11] = [
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".gemini",
    ".idea",
    ".mcp.json",
    ".opencode",
    ".vscode",
    "opencode.json",
];
/// Names that are executed or obeyed where the person has set that up: they matter where they are
/// there already.
const OBEYED_IF_THERE: [&str; 12] = [
    ".exrc",
    ".gdbinit",
    ".githooks",
    ".husky",
    ".lldbinit",
    ".mise.toml",
    ".nvim.lua",
    ".nvimrc",
    ".pre-commit-config.yaml",
    ".yarnrc.yml",
    ".zed",
    "mise.toml",
];
/// The same in a repository's own directory: hooks, and settings that name programs.
const OBEYED_BY_GIT: [&str; 4] = ["hooks", "config", "config.worktree", "commondir"];
/// Leads git to another directory for hooks and settings; as a placeholder it leads to its own.
const COMMON_DIRECTORY: &str = "commondir";
/// State of the appliance that `dev` keeps in a directory, its admin socket among it.
const OWN_STATE: &str = ".unified-proxy";

/// Directories of which a sandbox has its own.
const OWN: [&str; 5] = ["/run", "/tmp", "/dev", "/proc", "/sys"];

/// How many files are looked at in the directories of one run.
const MAX_FILES: usize = 2_000_000;
/// How many places may be protected in one run; each is a mount.
const MAX_PROTECTED: usize = 4_000;
/// The longest part of a git configuration that is read, in bytes.
const MAX_GIT_CONFIG: u64 = 1 << 20;

/// What is to be protected in the directories of a run.
#[derive(Debug, Default)]
pub struct Protected {
    /// Mounted over themselves, in this order.
    pub entries: Vec<Entry>,
    /// What must be there to be mounted over, and is not: each with the text of a file, or none
    /// for a directory.
    pub missing: Vec<(PathBuf, Option<&'static str>)>,
    /// Directories that hold others, to be pinned.
    pinned: BTreeSet<PathBuf>,
    read_only: BTreeSet<PathBuf>,
    hidden: BTreeSet<PathBuf>,
    files: usize,
}

impl Protected {
    /// Looks through the directories. `hidden` is never shown.
    pub fn find(
        writable: &[PathBuf],
        readable: &[PathBuf],
        hidden: &[PathBuf],
    ) -> Result<Self, String> {
        let mut found = Self::default();
        for root in writable.iter().filter(|root| root.is_dir()) {
            found.add_root(root)?;
        }
        for root in readable {
            found.hide_sockets(root)?;
        }
        found.hide_listed_sockets(writable, readable);
        found.hidden.extend(hidden.iter().cloned());
        found.finish()
    }

    /// Protects a directory that the command can write to, whether or not the names are there.
    fn add_root(&mut self, root: &Path) -> Result<(), String> {
        let git = root.join(".git");
        match git.symlink_metadata() {
            _ if is_git_directory(root) => self.add_git(root, true)?,
            Ok(found) if found.is_symlink() => return Err(is_a_link(&git)),
            Ok(found) if found.is_dir() && is_git_directory(&git) => self.add_git(&git, true)?,
            // A work tree's, which the walk protects.
            Ok(found) if found.is_file() => {}
            missing => {
                if missing.is_err() {
                    self.missing.push((git.clone(), None));
                }
                self.read_only.insert(git);
                // With it the directory itself would be a repository, settings and all.
                let head = root.join("HEAD");
                if head.symlink_metadata().is_err() {
                    self.missing.push((head.clone(), None));
                }
                self.read_only.insert(head);
            }
        }
        for name in OBEYED {
            let path = root.join(name);
            match path.symlink_metadata() {
                Ok(found) if found.is_symlink() => return Err(is_a_link(&path)),
                Ok(_) => {}
                Err(_) => self.missing.push((path.clone(), None)),
            }
            self.read_only.insert(path);
        }
        self.walk(root, root)
    }

    /// Protects a repository's directory. `complete`: names that are missing as well.
    fn add_git(&mut self, git: &Path, complete: bool) -> Result<(), String> {
        self.pinned.insert(git.to_owned());
        for name in OBEYED_BY_GIT {
            let path = git.join(name);
            match path.symlink_metadata() {
                Ok(found) if found.is_symlink() => return Err(is_a_link(&path)),
                Ok(_) => {}
                Err(_) if !complete => continue,
                Err(_) if name == COMMON_DIRECTORY => {
                    self.missing.push((path.clone(), Some(".\n")));
                }
                Err(_) if name == "hooks" => self.missing.push((path.clone(), None)),
                Err(_) => self.missing.push((path.clone(), Some(""))),
            }
            self.read_only.insert(path);
        }
        if let Some(hooks) = hooks_elsewhere(git) {
            self.read_only.insert(hooks);
        }
        for (name, depth) in [("modules", 4), ("worktrees", 1)] {
            self.add_git_below(&git.join(name), depth)?;
        }
        Ok(())
    }

    /// Protects the repositories' directories of submodules and worktrees.
    fn add_git_below(&mut self, directory: &Path, depth: usize) -> Result<(), String> {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if path.join("HEAD").is_file() {
                self.pin_way(directory, &path);
                self.add_git(&path, false)?;
            } else if depth > 1 {
                self.add_git_below(&path, depth - 1)?;
            }
        }
        Ok(())
    }

    /// Looks through a directory for what is obeyed below it, and for sockets.
    fn walk(&mut self, root: &Path, directory: &Path) -> Result<(), String> {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            self.count(root)?;
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                if kind.is_dir() {
                    self.walk(root, &entry.path())?;
                }
                continue;
            };
            if kind.is_socket() || name == OWN_STATE {
                self.hidden.insert(entry.path());
            } else if name == ".git" && !kind.is_symlink() {
                self.pin_way(root, directory);
                let path = entry.path();
                if kind.is_dir() {
                    if is_git_directory(&path) && directory != root {
                        self.add_git(&path, true)?;
                    }
                    self.hide_sockets_in(&path);
                } else {
                    // It leads to the repository's directory.
                    self.read_only.insert(path);
                }
            } else if (OBEYED.contains(&name) || OBEYED_IF_THERE.contains(&name))
                && !kind.is_symlink()
            {
                self.pin_way(root, directory);
                self.read_only.insert(entry.path());
                self.hide_sockets(&entry.path())?;
            } else if kind.is_dir() {
                self.walk(root, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Pins the directories from below `root` to `directory`: one that was renamed would leave
    /// its name free.
    fn pin_way(&mut self, root: &Path, directory: &Path) {
        let way = directory.ancestors().take_while(|path| *path != root);
        self.pinned.extend(way.map(Path::to_owned));
    }

    fn hide_sockets(&mut self, root: &Path) -> Result<(), String> {
        if is_socket(root) {
            return Ok(());
        }
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            self.count(root)?;
            match entry.file_type() {
                Ok(kind) if kind.is_socket() => {
                    self.hidden.insert(entry.path());
                }
                Ok(kind) if kind.is_dir() => self.hide_sockets(&entry.path())?,
                _ => {}
            }
        }
        Ok(())
    }

    fn hide_sockets_in(&mut self, directory: &Path) {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
        self.hidden.extend(sockets.map(|entry| entry.path()));
    }

    /// Hides the sockets that the kernel lists by their path, wherever they are.
    fn hide_listed_sockets(&mut self, writable: &[PathBuf], readable: &[PathBuf]) {
        let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let paths = table
            .lines()
            .filter_map(|line| line.split_whitespace().nth(7));
        let paths = paths
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from);
        let there = paths.filter_map(|path| fs::canonicalize(path).ok());
        let is_visible = |path: &PathBuf| {
            let mut roots = writable.iter().chain(readable);
            roots.any(|root| path.starts_with(root)) || !OWN.iter().any(|own| path.starts_with(own))
        };
        self.hidden
            .extend(there.filter(|path| is_visible(path) && is_socket(path)));
    }

    fn count(&mut self, root: &Path) -> Result<(), String> {
        self.files += 1;
        match self.files <= MAX_FILES {
            true => Ok(()),
            false => Err(format!(
                "{} and the other directories hold more than {MAX_FILES} files, too many to look \
                 through for what must be protected: start it in a smaller directory",
                root.display()
            )),
        }
    }

    fn finish(mut self) -> Result<Self, String> {
        let most = MAX_PROTECTED;
        let count = self.pinned.len() + self.read_only.len() + self.hidden.len();
        if count > most {
            return Err(format!(
                "{count} files and directories would have to be protected, at most {most} can be: \
                 start it in a smaller directory"
            ));
        }
        // A set of paths is in the order of the tree: what holds others comes first.
        let pinned = self.pinned.difference(&self.read_only);
        let pins = pinned.map(|path| (path, Access::Writable));
        let read_only = self.read_only.iter().map(|path| (path, Access::ReadOnly));
        let mut pins: Vec<_> = pins.chain(read_only).collect();
        pins.sort_by_key(|(path, _)| *path);
        let pins = pins.into_iter().map(|(at, access)| Entry::Pin {
            at: at.clone(),
            access,
        });
        let hidden = self.hidden.iter().map(|at| Entry::Hide { at: at.clone() });
        self.entries = pins.chain(hidden).collect();
        Ok(self)
    }
}

fn is_a_link(path: &Path) -> String {
    format!(
        "{} is a symbolic link, which cannot be protected from being replaced: put what it leads \
         to in its place, or start in another directory",
        path.display()
    )
}

/// Whether git would take a directory for a repository's.
fn is_git_directory(path: &Path) -> bool {
    path.join("HEAD").symlink_metadata().is_ok()
        && (path.join("objects").is_dir() || path.join(COMMON_DIRECTORY).is_file())
}

/// The directory of hooks that a repository's configuration names, if it lies in the work tree.
fn hooks_elsewhere(git: &Path) -> Option<PathBuf> {
    let text = read_start(&git.join("config")).ok()?;
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        let is_it = key.trim().eq_ignore_ascii_case("hookspath");
        is_it.then(|| value.trim().trim_matches('"').to_owned())
    })?;
    let tree = git.parent()?;
    let hooks = fs::canonicalize(tree.join(line)).ok()?;
    (hooks.starts_with(tree) && hooks != tree).then_some(hooks)
}

fn read_start(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_GIT_CONFIG)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
