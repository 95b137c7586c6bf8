//! Files of the configuration directory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use addons::contract::settings::{Document, Env, Report};
use zeroize::Zeroizing;

/// Limit on the size of a configuration file, in bytes: ten times the size of the largest sensible
/// one.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads and parses a file of the directory, and expands `${NAME}` with `env`, if that is given. A
/// missing file is an absent document. Errors go to `report`.
pub fn open<'a>(dir: &Path, name: &str, env: Option<Env<'_>>, report: &'a Report) -> Document<'a> {
    match read(&dir.join(name)) {
        Ok(None) => Document::absent(name, report),
        Ok(Some(bytes)) => Document::parse(name, &bytes, env, report),
        Err(error) => Document::unreadable(name, &error, report),
    }
}

/// Reads a file; `None` if it does not exist. A dangling symbolic link is an error.
pub fn read(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    // Checked before the file is opened, since opening a FIFO waits for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Some(bytes))
}
