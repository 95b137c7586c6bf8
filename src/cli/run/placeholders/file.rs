//! Makes and removes a placeholder itself, following no link.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};
use rustix::io::Errno;

use super::super::git_directory::NOWHERE;
use super::super::obeyed::{NO_SETTINGS, read_start};
use super::Missing;

/// Limit on the bytes that are read of a placeholder file. All of [`TEXTS`] are shorter.
pub const MAX_TEXT: u64 = 16;
/// The possible texts of a placeholder file.
const TEXTS: [&str; 4] = ["", ".\n", NO_SETTINGS, NOWHERE];

/// Opens the parent directory of a path. Fails at a symbolic link in the path, which another
/// sandbox may have put there.
pub fn parent(path: &Path) -> Result<impl AsFd + use<>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = path.parent().unwrap_or(Path::new("/"));
    openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

pub(super) fn make(missing: &Missing) -> Result<(), Errno> {
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
pub(super) fn remove(missing: &Missing) {
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
pub(super) fn has_text(parent: &impl AsFd, name: &Path) -> bool {
    read_start(parent, name, MAX_TEXT).is_some_and(|text| TEXTS.contains(&text.as_str()))
}
