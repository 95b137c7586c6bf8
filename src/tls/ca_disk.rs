//! Reads and writes the files of the interception CA.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use tempfile::NamedTempFile;

use super::ca_error::CaError;

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, CaError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CaError::io(path)(error)),
    }
}

/// Creates a directory and its parents, unless it exists.
pub(super) fn create_dir(path: &Path, mode: u32) -> Result<(), CaError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(CaError::io(path))
}

/// Writes a public file, unless it has this content already.
pub(super) fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), CaError> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    write(path, bytes, 0o644)
}

/// Writes a file atomically: it is flushed to disk before it gets its name.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CaError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let written = (|| {
        // Until the mode is set, only this user can open the file.
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))?;
        // The directory's owner runs the server. This process may be root, as in `ca rotate`: the
        // server could not read root's files.
        if rustix::process::geteuid().is_root() {
            let owner = fs::metadata(directory)?;
            fchown(file.as_file(), Some(owner.uid()), Some(owner.gid()))?;
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    })();
    written.map_err(CaError::io(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// Only root can give a file to another user. If the tests run without root, the owner is this
    /// user.
    #[test]
    fn a_file_belongs_to_the_owner_of_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            chown(directory.path(), Some(54_321), Some(54_322)).unwrap();
        }
        let file = directory.path().join("ca-next.key");
        write(&file, b"key", 0o600).unwrap();
        let of = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.uid(), found.gid())
        };
        assert_eq!(of(&file), of(directory.path()));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    }
}
