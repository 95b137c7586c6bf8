//! Makes and removes placeholders: directories and files that a run makes in its writable
//! directories for protected paths that are missing. They are mounted read-only, so that the
//! command cannot create these paths.
//!
//! Each run has a record, locked while the run lasts, of the directories that it shows and the
//! placeholders that it made. When the last run that shows a placeholder ends, it removes the
//! placeholder. The next run that ends also removes the placeholders of killed runs.

mod covers;
mod file;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use covers::covers;
pub use file::{MAX_TEXT, parent};

use file::{make, remove};

/// Limit on the bytes that are read of a record. A longer record counts as empty.
const MAX_RECORD: u64 = 16 << 20;

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

#[cfg(test)]
mod tests;
