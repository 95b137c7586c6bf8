//! Makes and removes placeholders: directories and files that a run makes in its writable
//! directories for protected paths that are missing. They are mounted read-only, so that the
//! command cannot create these paths.
//!
//! Each run has a record, locked while the run lasts, of the directories that it shows and the
//! placeholders that it made. When the last run that shows a placeholder ends, it removes the
//! placeholder. The next run that ends also removes the placeholders of killed runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::git_directory::{self, NOWHERE};
use super::obeyed::{NO_SETTINGS, is_empty, read_start};
use crate::sandbox::Entry;

/// Limit on the bytes that are read of a record. A longer record counts as empty.
const MAX_RECORD: u64 = 16 << 20;
/// Limit on the bytes that are read of a placeholder file. All of [`TEXTS`] are shorter.
pub const MAX_TEXT: u64 = 16;
/// The possible texts of a placeholder file.
const TEXTS: [&str; 4] = ["", ".\n", NO_SETTINGS, NOWHERE];
/// The settings directory of OpenCode, to which OpenCode writes.
const WRITTEN: &str = ".opencode";
/// Limit on the bytes that are copied from `.git/info/exclude`. The rest is left out.
const MAX_EXCLUDES: u64 = 1 << 20;

/// A missing path that needs a placeholder.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub path: PathBuf,
    /// The text of a file; `None` for a directory.
    pub text: Option<String>,
}

/// The contents of a record.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Contents {
    /// The directories that the run shows to its command.
    shown: Vec<PathBuf>,
    /// The placeholders that the run made or was about to make.
    made: Vec<Missing>,
}

/// The record of this run. Dropping it removes the placeholders that no other run needs.
#[derive(Debug)]
pub struct Placeholders {
    folder: PathBuf,
    /// The record's file, locked.
    file: File,
    contents: Contents,
}

impl Placeholders {
    /// Records the directories that a run shows, in a file below `state`. Until the record is
    /// dropped, no other run removes placeholders in these directories.
    pub fn record(shown: Vec<PathBuf>, state: &Path) -> io::Result<Self> {
        let folder = state.join("placeholders");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let _lock = lock_records(&folder)?;
        let (file, _) = tempfile::Builder::new()
            .prefix("run-")
            .tempfile_in(&folder)?
            .keep()
            .map_err(|error| error.error)?;
        file.lock()?;
        let mut record = Self {
            folder,
            file,
            contents: Contents {
                shown,
                made: Vec::new(),
            },
        };
        record.write()?;
        Ok(record)
    }

    /// Makes the placeholders. Returns the paths that this user may not create; the command may not
    /// create them either.
    pub fn make(&mut self, missing: Vec<Missing>) -> io::Result<Vec<PathBuf>> {
        let _lock = lock_records(&self.folder)?;
        // Recorded before the placeholders are made, so that a killed run leaves no unrecorded one.
        self.contents.made = missing;
        self.write()?;
        let mut uncreatable = Vec::new();
        for missing in &self.contents.made {
            match make(missing) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                    uncreatable.push(missing.path.clone());
                }
                // Below a directory that this user may not create.
                Err(Errno::NOENT) if uncreatable.iter().any(|at| missing.path.starts_with(at)) => {
                    uncreatable.push(missing.path.clone());
                }
                Err(error) => {
                    let path = missing.path.display();
                    let text = format!("the placeholder {path} cannot be made: {error}");
                    return Err(io::Error::other(text));
                }
            }
        }
        Ok(uncreatable)
    }

    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.contents)?;
        self.file.set_len(0)?;
        io::Seek::rewind(&mut self.file)?;
        self.file.write_all(&text)
    }

    /// Removes the placeholders of this run and of ended runs, except those in directories that
    /// live runs show.
    fn clean(&self) -> io::Result<()> {
        let _lock = lock_records(&self.folder)?;
        // From here on, this run counts as ended.
        self.file.unlock()?;
        let (mut shown, mut ended) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let path = entry.path();
            let Ok(file) = File::open(&path) else {
                continue;
            };
            if !entry.file_name().as_encoded_bytes().starts_with(b"run-") {
                continue;
            }
            let lives = file.try_lock().is_err();
            let contents = read(&file).unwrap_or_default();
            match lives {
                true => shown.extend(contents.shown),
                false => ended.push((path, contents)),
            }
        }
        for (path, contents) in ended {
            let is_shown = |made: &Missing| shown.iter().any(|root| made.path.starts_with(root));
            let (kept, gone): (Vec<_>, Vec<_>) = contents.made.into_iter().partition(is_shown);
            // A directory comes before the files in it.
            gone.iter().rev().for_each(remove);
            if kept.is_empty() {
                fs::remove_file(path)?;
            } else {
                let contents = Contents {
                    shown: contents.shown,
                    made: kept,
                };
                fs::write(path, serde_json::to_vec(&contents)?)?;
            }
        }
        Ok(())
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        // After an error, the next run that ends removes the remaining placeholders.
        let _ = self.clean();
    }
}

/// Returns the entries of the sandbox's file system that keep placeholders from disturbing the
/// command. Call it after the placeholders are made. `repositories` are the `.git` of work trees.
/// Placeholders in work trees are added to git's excludes, so that `git add`, `git stash -u` and
/// `git clean` leave them out. An empty `.opencode` is covered by a writable scratch directory, since
/// OpenCode fails if it cannot write there.
pub fn covers(
    protected: &BTreeSet<PathBuf>,
    repositories: &BTreeSet<PathBuf>,
    roots: &[PathBuf],
) -> Vec<Entry> {
    // Also those of other runs.
    let is_placeholder = |path: &&PathBuf| is_empty(path) || has_text(&CWD, path);
    let placeholders: BTreeSet<_> = protected.iter().filter(is_placeholder).collect();
    let mut excluded: BTreeMap<PathBuf, String> = BTreeMap::new();
    for path in &placeholders {
        let mut above = path
            .ancestors()
            .skip(1)
            .map(|tree| (tree, tree.join(".git")));
        let Some((tree, git)) = above.find(|(_, git)| repositories.contains(git)) else {
            continue;
        };
        let pattern = path.strip_prefix(tree).ok().and_then(pattern);
        if let Some(pattern) = pattern.filter(|_| !path.starts_with(&git)) {
            let common = git_directory::common(&git_directory::of_tree(&git));
            excluded.entry(common).or_default().push_str(&pattern);
        }
    }
    let excluded = excluded.into_iter().filter_map(|(common, patterns)| {
        let (info, at) = (common.join("info"), common.join("info/exclude"));
        if info.is_symlink() || !roots.iter().any(|root| at.starts_with(root)) {
            return None;
        }
        let text = format!("{}\n{patterns}", read_start(CWD, &at, MAX_EXCLUDES)?);
        Some(Entry::Replace { at, text })
    });
    let written = roots.iter().map(|root| root.join(WRITTEN));
    let empty = written.filter(|at| placeholders.contains(at) && at.is_dir());
    let scratch = empty.map(|at| Entry::Scratch { at, mode: 0o700 });
    excluded.chain(scratch).collect()
}

/// A line of git's excludes that matches exactly this path.
fn pattern(path: &Path) -> Option<String> {
    let special = |letter| matches!(letter, '\\' | '*' | '?' | '[' | ' ');
    let escaped = path.to_str()?.chars().flat_map(|letter| {
        let escape = special(letter).then_some('\\');
        escape.into_iter().chain([letter])
    });
    Some(format!("/{}\n", escaped.collect::<String>()))
}

/// Locks the records against other runs until the file is dropped.
fn lock_records(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join("order"))?;
    file.lock()?;
    Ok(file)
}

fn read(file: &File) -> io::Result<Contents> {
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Opens the parent directory of a path. Fails at a symbolic link in the path, which another
/// sandbox may have put there.
pub fn parent(path: &Path) -> Result<impl AsFd + use<>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = path.parent().unwrap_or(Path::new("/"));
    openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn make(missing: &Missing) -> Result<(), Errno> {
    let name = missing.path.file_name().ok_or(Errno::INVAL)?;
    let parent = parent(&missing.path)?;
    let Some(text) = &missing.text else {
        return mkdirat(&parent, name, Mode::from_raw_mode(0o755));
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let file = openat2(&parent, name, flags, mode, ResolveFlags::NO_SYMLINKS)?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Removes a placeholder if it is unchanged: an empty directory, or a file with one of [`TEXTS`].
fn remove(missing: &Missing) {
    let (Some(name), Ok(parent)) = (missing.path.file_name(), parent(&missing.path)) else {
        return;
    };
    // Neither call follows a link.
    let _ = match missing.text {
        None => unlinkat(&parent, name, AtFlags::REMOVEDIR),
        Some(_) if has_text(&parent, name.as_ref()) => unlinkat(&parent, name, AtFlags::empty()),
        Some(_) => Ok(()),
    };
}

/// Whether a file has one of [`TEXTS`].
fn has_text(parent: &impl AsFd, name: &Path) -> bool {
    read_start(parent, name, MAX_TEXT).is_some_and(|text| TEXTS.contains(&text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn run(shown: &Path, state: &Path, missing: &[(&Path, Option<&str>)]) -> Placeholders {
        let mut run = Placeholders::record(vec![shown.to_owned()], state).unwrap();
        let missing = missing.iter().map(|(path, text)| Missing {
            path: path.to_path_buf(),
            text: text.map(str::to_owned),
        });
        assert!(run.make(missing.collect()).unwrap().is_empty());
        run
    }

    #[test]
    fn the_last_run_that_shows_a_placeholder_removes_it() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let inner = work.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let (envrc, common) = (inner.join(".envrc"), inner.join("commondir"));
        let missing = [(&*envrc, None), (&*common, Some(".\n"))];
        let outer = run(work.path(), state.path(), &missing);
        let within = run(&inner, state.path(), &missing);
        drop(outer);
        assert_eq!(names(&inner), [".envrc", "commondir"]);
        drop(within);
        assert!(names(&inner).is_empty());
        let inside = run(&inner, state.path(), &missing);
        let above = run(work.path(), state.path(), &[]);
        drop(inside);
        assert_eq!(names(&inner), [".envrc", "commondir"]);
        drop(above);
        assert!(names(&inner).is_empty());
        assert_eq!(names(&state.path().join("placeholders")), ["order"]);
    }

    #[test]
    fn placeholders_in_the_work_tree_are_excluded_and_an_empty_directory_of_opencode_is_covered() {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        for directory in [".git/info", ".opencode", ".claude", "my *hooks"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        for (file, text) in [
            (".git/info/exclude", "*.log"),
            (".git/config", ""),
            (".claude/settings.json", ""),
            ("opencode.json", NO_SETTINGS),
            ("opencode.jsonc", "{ \"own\": 1 }\n"),
        ] {
            fs::write(at(file), text).unwrap();
        }
        let protected = [
            ".git/config",
            ".claude",
            ".opencode",
            "my *hooks",
            "opencode.json",
            "opencode.jsonc",
        ];
        let text = "*.log\n/.opencode\n/my\\ \\*hooks\n/opencode.json\n".to_owned();
        let expected = [
            Entry::Replace {
                at: at(".git/info/exclude"),
                text,
            },
            Entry::Scratch {
                at: at(".opencode"),
                mode: 0o700,
            },
        ];
        let found = covers(
            &protected.map(at).into(),
            &[at(".git")].into(),
            &[work.path().to_owned()],
        );
        assert_eq!(found, expected);
    }

    #[test]
    fn a_changed_placeholder_is_kept() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (directory, file) = (work.path().join(".vscode"), work.path().join("commondir"));
        let missing = [(&*directory, None), (&*file, Some(""))];
        let run = run(work.path(), state.path(), &missing);
        fs::write(directory.join("settings.json"), "{}").unwrap();
        fs::write(&file, "../elsewhere").unwrap();
        drop(run);
        assert_eq!(names(work.path()), [".vscode", "commondir"]);
    }

    #[test]
    fn removing_a_placeholder_with_a_newline_in_its_name_removes_no_other_directory() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = work.path().join("other");
        fs::create_dir(&other).unwrap();
        let odd = work.path().join(format!(
            "x\n{}\n",
            other.display().to_string().replace('/', "_")
        ));
        drop(run(work.path(), state.path(), &[(&odd, None)]));
        assert_eq!(names(work.path()), ["other"]);
    }

    #[test]
    fn placeholders_of_a_killed_run_are_removed_by_the_next_run() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let idea = work.path().join(".idea");
        let killed = run(work.path(), state.path(), &[(&idea, None)]);
        // A kill only releases the lock.
        killed.file.unlock().unwrap();
        std::mem::forget(killed);
        assert_eq!(names(work.path()), [".idea"]);
        drop(run(work.path(), state.path(), &[]));
        assert!(names(work.path()).is_empty());
    }

    #[test]
    fn a_link_in_the_path_is_not_followed() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), work.path().join("sub")).unwrap();
        let mut run = Placeholders::record(vec![work.path().to_owned()], state.path()).unwrap();
        let missing = Missing {
            path: work.path().join("sub/.git"),
            text: None,
        };
        assert!(run.make(vec![missing]).is_err());
        assert!(names(elsewhere.path()).is_empty());
    }
}
