//! Files in the data directory that the server replaces as a whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::files;

/// A file that only the server writes.
pub(super) struct StateFile(PathBuf);

impl StateFile {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("."))
    }

    /// Reads the file; `None` if there is none.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(files::read(&self.0)?.map(|bytes| bytes.to_vec()))
    }

    /// Prepares a file with this content, or the removal of the file. Only this user may read it.
    pub fn with(&self, bytes: Option<&[u8]>) -> io::Result<Prepared> {
        let file = bytes.map(|bytes| {
            let mut file = NamedTempFile::new_in(self.directory())?;
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            Ok::<_, io::Error>(file)
        });
        Ok(Prepared {
            path: self.0.clone(),
            file: file.transpose()?,
        })
    }

    /// Moves the file onto another one in its directory, atomically. After an error, it may be done.
    pub fn replace(&self, other: &Self) -> io::Result<()> {
        fs::rename(&self.0, &other.0)?;
        sync_directory(&other.0)
    }

    /// Prepares the file as it is now.
    pub fn unchanged(&self) -> io::Result<Prepared> {
        self.with(self.read()?.as_deref())
    }
}

/// A file on disk that has not its name yet.
pub struct Prepared {
    path: PathBuf,
    /// `None` if there was no file.
    file: Option<NamedTempFile>,
}

impl Prepared {
    /// Replaces the file atomically. After an error, it may be the old or the new one.
    pub fn commit(self) -> io::Result<()> {
        match self.file {
            Some(file) => drop(file.persist(&self.path).map_err(|error| error.error)?),
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        sync_directory(&self.path)
    }
}

fn sync_directory(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
