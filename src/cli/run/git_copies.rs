//! Private copies of the configurations of repositories, so that `git push -u`, `git switch` and
//! `git remote add` work although the configurations are protected. In the sandbox, a symbolic link
//! to the copy is mounted over the file, so that git reads and replaces the copy. At the end, the
//! settings that cannot harm the host are taken over, the others are only listed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use tempfile::TempDir;

use super::appliance::private_directory;
use super::git_harmless::{Changed, Settings};
use super::placeholders::parent;
use super::programs::output_of;
use super::search::GIT_COPIES;
use crate::cli::exit::printable;
use crate::sandbox::{Access, Entry};

/// Limit on the bytes of a configuration. A longer one is not copied, and not taken over.
const MAX_CONFIG: u64 = 1 << 20;
/// Limit on the copies of a run. Further configurations are read-only.
const MAX_COPIES: usize = 200;
/// Limit on the changed settings of a file. If there are more, nothing is taken over, so that no
/// number of them hides one.
const MAX_CHANGED: usize = 100;
/// Limit on the characters of a listed setting.
const MAX_SHOWN: usize = 300;

/// The copies of one run. Dropping this value deletes them.
#[derive(Debug)]
pub struct GitCopies {
    /// The program.
    git: PathBuf,
    originals: Vec<Original>,
    /// The local branches at the start, of each original.
    branches: Vec<BTreeSet<String>>,
    /// A directory that no sandbox sees. Its subdirectory `copies` is shown to the command; each
    /// copy has the index of its original as name.
    directory: PathBuf,
    /// Deletes the directory.
    _state: (TempDir, File),
}

#[derive(Debug)]
struct Original {
    path: PathBuf,
    /// Device and inode numbers.
    identity: (u64, u64),
    text: Vec<u8>,
}

impl GitCopies {
    /// Copies configurations; `None` if there is none. `kept` is the directory for files that
    /// outlive the run.
    pub fn make(configs: &[PathBuf], git: PathBuf, kept: &Path) -> io::Result<Option<Self>> {
        let originals = configs.iter().filter_map(|path| Original::read(path).ok());
        let originals: Vec<_> = originals.take(MAX_COPIES).collect();
        if originals.is_empty() {
            return Ok(None);
        }
        let state = private_directory(kept)?;
        let branches = originals
            .iter()
            .map(|original| branches(&git, &original.path));
        let made = Self {
            branches: branches.collect(),
            git,
            originals,
            directory: fs::canonicalize(state.0.path())?,
            _state: state,
        };
        fs::create_dir(made.copies())?;
        for (number, original) in made.originals.iter().enumerate() {
            fs::write(made.copies().join(number.to_string()), &original.text)?;
        }
        Ok(Some(made))
    }

    fn copies(&self) -> PathBuf {
        self.directory.join("copies")
    }

    /// Replaces the entries of the sandbox's file system that make these files read-only.
    pub fn redirect(&self, entries: &mut Vec<Entry>) {
        entries.retain(|entry| {
            self.originals
                .iter()
                .all(|original| entry.at() != original.path)
        });
        entries.push(Entry::Bind {
            from: self.copies(),
            at: GIT_COPIES.into(),
            access: Access::Writable,
        });
        let links = self.originals.iter().enumerate();
        entries.extend(links.map(|(number, original)| Entry::Redirect {
            at: original.path.clone(),
            to: Path::new(GIT_COPIES).join(number.to_string()),
        }));
    }

    /// Takes over harmless settings, and returns the text for the user; if `is_quiet`, only that
    /// about settings that were left out. Call it after the sandbox has ended.
    pub fn take_over(&self, is_quiet: bool) -> String {
        let mut text = String::new();
        let originals = self.originals.iter().zip(&self.branches);
        for (number, (original, branches)) in originals.enumerate() {
            let copy = self.copies().join(number.to_string());
            let said = self.take_over_one(original, branches, &copy, is_quiet);
            let said = said.unwrap_or_else(|error| {
                format!("unified-proxy: settings of git that the command made were not taken over to {}: {error}\n", shown(&original.path.display().to_string()))
            });
            text.push_str(&said);
        }
        text
    }

    fn take_over_one(
        &self,
        original: &Original,
        branches: &BTreeSet<String>,
        copy: &Path,
        is_quiet: bool,
    ) -> io::Result<String> {
        let copy = Original::read(copy)?;
        if copy.text == original.text {
            return Ok(String::new());
        }
        let changed = self
            .settings(&original.text)?
            .changed(&self.settings(&copy.text)?, branches);
        if changed.len() > MAX_CHANGED {
            return Err(io::Error::other(format!(
                "there are more than {MAX_CHANGED}"
            )));
        }
        let (mut taken, left): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|one| one.is_harmless);
        if !taken.is_empty() {
            self.write(original, &taken)?;
        }
        if is_quiet {
            taken.clear();
        }
        let path = shown(&original.path.display().to_string());
        let mut text = String::new();
        for (settings, what) in [
            (
                taken,
                format!("settings of git that the command made and that are now in {path}"),
            ),
            (
                left,
                format!(
                    "settings of git that the command made and that ended with it, since programs of the host may obey them; what you want of them, set in {path}"
                ),
            ),
        ] {
            if !settings.is_empty() {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "unified-proxy: {what}");
                settings.iter().for_each(|one| one.list(&mut text));
            }
        }
        Ok(text)
    }

    /// The settings of a configuration with this text.
    fn settings(&self, text: &[u8]) -> io::Result<Settings> {
        let file = self.directory.join("listed");
        fs::write(&file, text)?;
        self.run(&file, &["--no-includes", "--list", "--null"])
            .map(|listed| Settings::read(&listed))
            .ok_or_else(|| io::Error::other("git cannot read them"))
    }

    /// Writes settings to the original, in place: other runs that protect it would end if it were
    /// replaced.
    fn write(&self, original: &Original, settings: &[Changed]) -> io::Result<()> {
        let parent = parent(&original.path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // The lock of git.
        let _lock = openat(&parent, LOCK, flags, Mode::from_raw_mode(0o600)).map_err(|error| {
            io::Error::new(error.kind(), format!("{LOCK} cannot be made: {error}"))
        })?;
        let written = self.write_locked(original, settings);
        unlinkat(&parent, LOCK, AtFlags::empty())?;
        written
    }

    fn write_locked(&self, original: &Original, settings: &[Changed]) -> io::Result<()> {
        let (mut file, now) = open(&original.path, OFlags::RDWR)?;
        if now.identity != original.identity {
            return Err(io::Error::other("the file was replaced"));
        }
        let merged = self.directory.join("merged");
        fs::write(&merged, &now.text)?;
        for Changed { key, values, .. } in settings {
            // Fails if the file does not have the key.
            let _ = self.run(&merged, &["--unset-all", key]);
            for value in values {
                self.run(&merged, &["--add", key, value])
                    .ok_or_else(|| io::Error::other("git cannot write them"))?;
            }
        }
        let text = fs::read(merged)?;
        file.rewind()?;
        file.write_all(&text)?;
        file.set_len(u64::try_from(text.len()).map_err(io::Error::other)?)
    }

    /// Runs `git config` for a file in the private directory.
    fn run(&self, file: &Path, arguments: &[&str]) -> Option<String> {
        let first = ["config", "--file", file.to_str()?];
        output_of(&self.git, &[&first, arguments].concat())
    }
}

/// The local branches of the repository with a configuration; none if git cannot list them.
fn branches(git: &Path, config: &Path) -> BTreeSet<String> {
    let directory = config.parent().and_then(Path::to_str).unwrap_or_default();
    let format = "--format=%(refname:lstrip=2)";
    let arguments = ["--git-dir", directory, "for-each-ref", format, "refs/heads"];
    let listed = output_of(git, &arguments).unwrap_or_default();
    listed.lines().map(str::to_owned).collect()
}

/// The name of git's lock of a file `config`.
const LOCK: &str = "config.lock";

impl Original {
    fn read(path: &Path) -> io::Result<Self> {
        open(path, OFlags::RDONLY).map(|(_, read)| read)
    }
}

/// Opens and reads a file. Fails at a symbolic link in the path, which a command may have made.
fn open(path: &Path, access: OFlags) -> io::Result<(File, Original)> {
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let file = File::from(file);
    let found = file.metadata()?;
    if !found.is_file() || found.len() > MAX_CONFIG {
        return Err(io::Error::other("it is not a file, or too long"));
    }
    let mut text = Vec::new();
    (&file).take(MAX_CONFIG).read_to_end(&mut text)?;
    let original = Original {
        path: path.to_owned(),
        identity: (found.dev(), found.ino()),
        text,
    };
    Ok((file, original))
}

impl Changed {
    fn list(&self, text: &mut String) {
        let key = &self.key;
        let values = self.values.iter().map(|value| format!("{key} = {value}"));
        let removed = self.values.is_empty().then(|| format!("{key} (removed)"));
        for line in values.chain(removed).take(MAX_CHANGED) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {}", shown(&line));
        }
    }
}

fn shown(text: &str) -> String {
    printable(&text.chars().take(MAX_SHOWN).collect::<String>())
}
