//! Replaces a file atomically, by a temporary file beside it and `renameat`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    Access, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, accessat, fchmod, fchown, fstat,
    fsync, mkdirat, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::locks::{FileKey, FileLock};
use super::{CHUNK_BYTES, Links, OpenFile, Workspace, WorkspacePath, expect};
use crate::failure::Failure;
use crate::work::Work;

/// The most symbolic links that are followed from the requested path to the file; the kernel has
/// the same limit.
const LINKS_MAX: usize = 40;
/// The most attempts to find an unused name for the temporary file.
const NAMES_MAX: usize = 16;

/// Whether missing parent folders of a file are created (`Make`) or are an error (`Expect`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parents {
    Make,
    Expect,
}

/// The name of a file to replace, and its open folder. No other write or edit can lock the name
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    folder: OwnedFd,
    name: OsString,
    requested: String,
    _lock: FileLock<'a>,
}

impl Workspace {
    /// Finds the folder and the name to which `path` leads, and locks the name.
    ///
    /// Follows a symbolic link, so that the file is replaced and not the link.
    pub(crate) fn target(
        &self,
        path: &WorkspacePath,
        parents: Parents,
        work: &Work,
    ) -> Result<Target<'_>, Failure> {
        let requested = path.requested();
        let mut relative = path.relative().to_vec();
        for _ in 0..LINKS_MAX {
            let (folder_path, name) = split(&relative, requested)?;
            let folder = self.parent(folder_path, requested, parents)?;
            match readlinkat(&folder, name, Vec::new()) {
                Ok(link) => relative = linked(folder_path, link.as_bytes()),
                Err(Errno::INVAL | Errno::NOENT) => {
                    return self.locked(folder, name.to_vec(), requested, work);
                }
                Err(error) => return Err(Failure::system(requested, "open", error)),
            }
        }
        Err(Failure::system(requested, "open", Errno::LOOP))
    }

    fn locked(
        &self,
        folder: OwnedFd,
        name: Vec<u8>,
        requested: &str,
        work: &Work,
    ) -> Result<Target<'_>, Failure> {
        let stat = fstat(&folder).map_err(|error| Failure::system(requested, "open", error))?;
        let name = OsString::from_vec(name);
        let key = FileKey {
            device: stat.st_dev,
            folder: stat.st_ino,
            name: name.clone(),
        };
        Ok(Target {
            folder,
            name,
            requested: requested.to_owned(),
            _lock: self.locks.lock(key, work)?,
        })
    }

    fn parent(&self, folder: &[u8], requested: &str, parents: Parents) -> Result<OwnedFd, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.resolve(folder, flags) {
            Err(Errno::NOENT) if parents == Parents::Make => self.make_folders(folder, requested),
            result => result.map_err(|error| Failure::system(requested, "open", error)),
        }
    }

    /// Creates the missing folders of `path` one by one, and opens the last one. Each is opened
    /// from the root again, so that the kernel checks symbolic links in the whole path.
    fn make_folders(&self, path: &[u8], requested: &str) -> Result<OwnedFd, Failure> {
        let failed = |error| Failure::system(requested, "make a folder", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut reached = Vec::with_capacity(path.len());
        if path.starts_with(b"/") {
            reached.push(b'/');
        }
        let mut folder = self.resolve(if reached.is_empty() { b"." } else { b"/" }, flags);
        for name in path.split(|byte| *byte == b'/').filter(|n| !n.is_empty()) {
            if !matches!(reached.last(), None | Some(b'/')) {
                reached.push(b'/');
            }
            reached.extend_from_slice(name);
            let mut next = self.resolve(&reached, flags);
            if next.as_ref().is_err_and(|error| *error == Errno::NOENT) {
                match mkdirat(
                    folder.as_ref().map_err(|e| failed(*e))?,
                    name,
                    Mode::from(0o777),
                ) {
                    // EEXIST: another process created it meanwhile, or it is a dangling link.
                    Ok(()) | Err(Errno::EXIST) => next = self.resolve(&reached, flags),
                    Err(error) => return Err(failed(error)),
                }
            }
            folder = Ok(next.map_err(failed)?);
        }
        folder.map_err(failed)
    }
}

impl Target<'_> {
    /// The metadata of the file that has the name now; `None` if there is none. Fails if it is not
    /// a regular file or this user may not write to it.
    pub(crate) fn existing(&self) -> Result<Option<Stat>, Failure> {
        let failed = |error| Failure::system(&self.requested, "replace the file", error);
        let stat = match statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        expect(&self.requested, kind, FileType::RegularFile)?;
        // `renameat` requires only write permission for the folder, so it would replace a read-only
        // file.
        accessat(&self.folder, &self.name, Access::WRITE_OK, AtFlags::empty()).map_err(failed)?;
        Ok(Some(stat))
    }

    /// Opens the file that has the name now, for reading.
    pub(crate) fn open(&self, workspace: &Workspace) -> Result<OpenFile, Failure> {
        let name = self.name.as_bytes();
        let opened = workspace.open_at(&self.folder, name, OFlags::RDONLY, Links::Refuse);
        OpenFile::new(&self.requested, opened)
    }

    /// Writes `content` to a temporary file beside the target and flushes it to disk. Copies the
    /// mode of `replaced` and, if the system permits, its owner; without the owner, drops the
    /// set-user-ID and set-group-ID bits.
    pub(crate) fn stage(
        &self,
        content: &[u8],
        replaced: Option<&Stat>,
        work: &Work,
    ) -> Result<Staged<'_>, Failure> {
        let failed =
            |error: std::io::Error| Failure::system(&self.requested, "replace the file", error);
        let (staged, mut file) =
            Staged::create(self, replaced.is_some()).map_err(|error| failed(error.into()))?;
        for chunk in content.chunks(CHUNK_BYTES) {
            work.check()?;
            file.write_all(chunk).map_err(failed)?;
        }
        if let Some(stat) = replaced {
            keep_owner_and_mode(&file, stat).map_err(|error| failed(error.into()))?;
        }
        fsync(&file).map_err(|error| failed(error.into()))?;
        work.check()?;
        Ok(staged)
    }

    /// Fails if the file was replaced or written to since `stat` was read.
    pub(crate) fn expect_unchanged(&self, stat: &Stat) -> Result<(), Failure> {
        let now = self.existing()?;
        let same = now.is_some_and(|now| {
            (now.st_dev, now.st_ino, now.st_size) == (stat.st_dev, stat.st_ino, stat.st_size)
                && (now.st_mtime, now.st_mtime_nsec) == (stat.st_mtime, stat.st_mtime_nsec)
        });
        if same {
            return Ok(());
        }
        Err(Failure::path(
            &self.requested,
            "changed while it was edited; read it again",
        ))
    }
}

/// The new content of a target, in a temporary file beside it. Dropping this removes the file,
/// unless it was renamed.
pub(crate) struct Staged<'a> {
    target: &'a Target<'a>,
    /// The name of the temporary file.
    name: String,
    renamed: bool,
}

impl<'a> Staged<'a> {
    /// Creates the temporary file: with mode 0600 if `private` is set, otherwise 0666 less the
    /// umask.
    fn create(target: &'a Target<'a>, private: bool) -> Result<(Self, File), Errno> {
        let mode = Mode::from(if private { 0o600 } else { 0o666 });
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        for _ in 0..NAMES_MAX {
            let name = temporary_name();
            match openat(&target.folder, &name, flags | OFlags::CLOEXEC, mode) {
                Ok(fd) => {
                    let staged = Self {
                        target,
                        name,
                        renamed: false,
                    };
                    return Ok((staged, File::from(fd)));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }

    /// Replaces the old file by the new one. A reader gets either the old or the new content.
    pub(crate) fn replace(mut self) -> Result<(), Failure> {
        let Target { folder, name, .. } = self.target;
        renameat(folder, &self.name, folder, name)
            .map_err(|error| Failure::system(&self.target.requested, "replace the file", error))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // An error is ignored, since the caller reports why the file was not renamed.
            let _ = unlinkat(&self.target.folder, &self.name, AtFlags::empty());
        }
    }
}

fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".coding-sidecar-{}-{next}-{nanos}.tmp", std::process::id())
}

fn keep_owner_and_mode(file: &File, replaced: &Stat) -> Result<(), Errno> {
    let mut mode = Mode::from_raw_mode(replaced.st_mode & 0o7777);
    let now = fstat(file)?;
    if (now.st_uid, now.st_gid) != (replaced.st_uid, replaced.st_gid) {
        let owner = Some(Uid::from_raw(replaced.st_uid));
        let group = Some(Gid::from_raw(replaced.st_gid));
        if fchown(file, owner, group).is_err() {
            // With another owner, a set-user-ID file would grant other privileges.
            mode.remove(Mode::SUID | Mode::SGID);
        }
    }
    fchmod(file, mode)
}

/// The path to which a symbolic link in `folder` leads. An absolute path is returned unchanged;
/// `Resolver::Beneath` refuses it.
fn linked(folder: &[u8], link: &[u8]) -> Vec<u8> {
    if link.starts_with(b"/") {
        return link.to_vec();
    }
    [folder, b"/", link].concat()
}

/// Splits a path into the folder and the last name. Fails if the path names a folder: it ends with
/// `/`, `.` or `..`.
fn split<'a>(relative: &'a [u8], requested: &str) -> Result<(&'a [u8], &'a [u8]), Failure> {
    let (folder, name) = match relative.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], relative.get(1..)),
        Some(slash) => (
            relative.get(..slash).unwrap_or_default(),
            relative.get(slash.saturating_add(1)..),
        ),
        None => (&b"."[..], Some(relative)),
    };
    match name.unwrap_or_default() {
        b"" | b"." | b".." => Err(Failure::path(requested, "a folder, not a regular file")),
        name => Ok((folder, name)),
    }
}
