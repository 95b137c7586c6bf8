//! Placeholders: empty directories and files in the working directories, there for as long as a
//! command runs, so that what is missing can be mounted over and so not be made by the command.
//!
//! Runs in one directory share them. Each holds a lock on a record of what was made there; the
//! last one removes what the record names. After a run that was killed, the next one does.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest record, in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// The longest placeholder, in bytes.
const MAX_TEXT: u64 = 16;

/// The records of the directories of a run. Dropping it removes the placeholders, unless others
/// need them.
#[derive(Debug)]
pub struct Placeholders {
    records: Vec<Record>,
}

#[derive(Debug)]
struct Record {
    directory: PathBuf,
    path: PathBuf,
    /// Locked, shared with other runs.
    file: File,
}

impl Placeholders {
    /// Locks the records of some directories. What is there from now on stays until this is
    /// dropped.
    pub fn lock(directories: &[PathBuf], state: &Path) -> io::Result<Self> {
        let folder = state.join("placeholders");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let records = directories.iter().map(|directory| {
            let path = folder.join(file_name(directory));
            let file = lock(&path)?;
            let directory = directory.clone();
            Ok(Record {
                directory,
                path,
                file,
            })
        });
        Ok(Self {
            records: records.collect::<io::Result<_>>()?,
        })
    }

    /// Makes what is missing: files with a text, directories without.
    pub fn make(&mut self, missing: &[(PathBuf, Option<&str>)]) -> io::Result<()> {
        for (path, text) in missing {
            let holders = self.records.iter_mut();
            let mut holders: Vec<_> = holders
                .filter(|record| path.starts_with(&record.directory))
                .collect();
            holders.sort_by_key(|record| record.directory.components().count());
            let Some(record) = holders.pop() else {
                continue;
            };
            // Before it is made, so that one that is made is always known.
            writeln!(record.file, "{}", path.display())?;
            let made = match text {
                None => fs::create_dir(path),
                Some(text) => OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(path)
                    .and_then(|mut file| file.write_all(text.as_bytes())),
            };
            match made {
                // Another run was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let text = format!("{} cannot be made: {error}", path.display());
                    return Err(io::Error::new(error.kind(), text));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for record in &mut self.records {
            // What stays is removed by the next run in the directory.
            let _ = record.clean();
        }
    }
}

impl Record {
    /// Removes what was made, if no other run is in the directory.
    fn clean(&mut self) -> io::Result<()> {
        self.file.unlock()?;
        if self.file.try_lock().is_err() {
            return Ok(());
        }
        let mut text = String::new();
        self.file.rewind()?;
        (&self.file).take(MAX_RECORD).read_to_string(&mut text)?;
        for path in text.lines().map(Path::new) {
            remove(path);
        }
        fs::remove_file(&self.path)
    }
}

/// Removes a placeholder that is still one.
fn remove(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path) else {
        return;
    };
    // Neither follows a link, and only an empty directory can be removed.
    let _ = match found.is_dir() {
        true => fs::remove_dir(path),
        false if found.is_file() && found.len() <= MAX_TEXT && is_text(path) => {
            fs::remove_file(path)
        }
        false => Ok(()),
    };
}

/// Whether a file has the text of a placeholder.
fn is_text(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.is_empty() || text == ".\n")
}

/// Opens and locks a record that is still at its path once it is locked.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        file.lock_shared()?;
        let (ours, there) = (file.metadata()?, fs::metadata(path));
        if there.is_ok_and(|there| there.ino() == ours.ino() && there.dev() == ours.dev()) {
            return Ok(file);
        }
    }
}

/// A directory's path as a file name.
fn file_name(directory: &Path) -> String {
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA256,
        directory.as_os_str().as_encoded_bytes(),
    );
    let digits = digest.as_ref().iter().take(16);
    digits.map(|byte| format!("{byte:02x}")).collect()
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

    #[test]
    fn the_last_run_in_a_directory_removes_what_was_made_there() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directories = [work.path().to_owned()];
        let missing = [
            (work.path().join(".envrc"), None),
            (work.path().join("commondir"), Some(".\n")),
        ];
        let mut first = Placeholders::lock(&directories, state.path()).unwrap();
        first.make(&missing).unwrap();
        let mut second = Placeholders::lock(&directories, state.path()).unwrap();
        second.make(&missing).unwrap();
        drop(first);
        assert_eq!(names(work.path()), [".envrc", "commondir"]);
        drop(second);
        assert!(names(work.path()).is_empty());
        assert!(names(&state.path().join("placeholders")).is_empty());
    }

    #[test]
    fn what_is_no_placeholder_any_more_stays() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (directory, file) = (work.path().join(".vscode"), work.path().join("commondir"));
        let mut run = Placeholders::lock(&[work.path().to_owned()], state.path()).unwrap();
        run.make(&[(directory.clone(), None), (file.clone(), Some(""))])
            .unwrap();
        fs::write(directory.join("settings.json"), "{}").unwrap();
        fs::write(&file, "../elsewhere").unwrap();
        drop(run);
        assert_eq!(names(work.path()), [".vscode", "commondir"]);
    }

    #[test]
    fn what_a_killed_run_left_is_removed_by_the_next() {
        let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directories = [work.path().to_owned()];
        let missing = [(work.path().join(".idea"), None)];
        let mut killed = Placeholders::lock(&directories, state.path()).unwrap();
        killed.make(&missing).unwrap();
        // The kernel lets go of the lock, and nothing else happens.
        killed.records.clear();
        assert_eq!(names(work.path()), [".idea"]);
        drop(Placeholders::lock(&directories, state.path()).unwrap());
        assert!(names(work.path()).is_empty());
    }
}
