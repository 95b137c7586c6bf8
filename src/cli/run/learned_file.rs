//! Writes the file of `--learn`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::cli::exit::Failure;

/// The destination of the file. Its directory is opened before the command runs, so that the
/// command cannot redirect the file by replacing the directory with a link.
pub struct LearnedFile {
    shown: PathBuf,
    directory: File,
    name: OsString,
}

impl LearnedFile {
    /// Opens the directory of the file. Fails if `path` is a directory.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::usage(format_args!("--learn {}: {error}", path.display()));
        let name = path
            .file_name()
            .filter(|_| !path.is_dir())
            .ok_or_else(|| failed(io::Error::other("this is a directory; name a file in it")))?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent, flags, Mode::empty());
        Ok(Self {
            shown: path.to_owned(),
            directory: File::from(directory.map_err(|error| failed(error.into()))?),
            name: name.to_owned(),
        })
    }

    /// Writes the text to a new file and renames it, which replaces an existing file.
    pub fn write(self, text: &str) -> Result<(), Failure> {
        let directory = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(&directory)?;
            file.write_all(text.as_bytes())?;
            file.persist(directory.join(&self.name))?;
            Ok::<_, io::Error>(())
        };
        write().map_err(|error| {
            let shown = self.shown.display();
            Failure::internal(format_args!("--learn {shown}: {error}"))
        })
    }
}
