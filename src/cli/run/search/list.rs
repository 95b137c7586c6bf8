//! Lists directories, within the limits of a search.

use std::fs::{self, DirEntry, FileType};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Found;

/// Limit on the directory entries that are searched for one run.
const MAX_FILES: usize = 2_000_000;
/// Limit on the bytes of the paths that are searched, which bounds the memory for the paths that are
/// kept.
const MAX_BYTES: usize = 256 << 20;
/// Limit on the nesting of directories.
pub const MAX_DEPTH: usize = 400;

impl Found {
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

/// Whether a directory belongs to this user, who could make it readable again.
fn is_ours(directory: &Path) -> bool {
    let user = rustix::process::getuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|found| found.uid() == user)
}
