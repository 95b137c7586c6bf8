//! Reads and writes the files of the interception CA.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
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
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    })();
    written.map_err(CaError::io(path))
}
