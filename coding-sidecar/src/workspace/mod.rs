//! The workspace root. Every file operation opens its files relative to the descriptor of the root,
//! or of a folder that was opened this way.
//!
//! If operations are confined to the root, the kernel resolves each path with `openat2` and
//! `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS`. Then no symbolic link, no `..` and no folder that is
//! replaced during an operation leads outside.

mod beneath;
mod locks;
mod path;
mod replace;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, Stat, fstat};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::work::Work;

pub(crate) use beneath::Links;
use beneath::Resolver;
use locks::FileLocks;
pub(crate) use path::WorkspacePath;
pub(crate) use replace::Parents;

/// The most bytes that are read or written between two checks of [`Work`]. An image is read without
/// a check.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// The open workspace root, which all operations share.
///
/// If the folder is renamed, it stays the root; if it is removed, the workspace is empty.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    /// `root` without symbolic links, as `pwd -P` prints it.
    canonical: PathBuf,
    folder: OwnedFd,
    resolver: Resolver,
    locks: FileLocks,
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) stat: Stat,
}

impl Workspace {
    /// Opens the root. With `allow_outside`, operations are not confined to it, and `openat2` is
    /// not needed.
    ///
    /// # Errors
    ///
    /// `root` is not a folder that can be opened, or the kernel or its seccomp profile does not
    /// offer `openat2` ([`io::ErrorKind::Unsupported`]).
    pub fn open(root: &Path, allow_outside: bool) -> Result<Self, io::Error> {
        let folder = rustix::fs::open(
            root,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let resolver = if allow_outside {
            Resolver::Anywhere
        } else {
            Resolver::beneath(folder.as_fd())?
        };
        Ok(Self {
            root: root.to_path_buf(),
            canonical: root.canonicalize()?,
            folder,
            resolver,
            locks: FileLocks::default(),
        })
    }

    /// The root's configured path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The root's path without symbolic links.
    pub(crate) fn canonical(&self) -> &Path {
        &self.canonical
    }

    /// Parses the path of a request, without opening it.
    pub(crate) fn path(&self, requested: &str) -> Result<WorkspacePath, Failure> {
        WorkspacePath::parse(self, requested)
    }

    /// Opens a regular file for reading. Checks the kind first, so that an object of another kind
    /// is refused without being opened. If such an object replaces the file after this check, it
    /// is opened and then refused.
    pub(crate) fn file(&self, path: &WorkspacePath) -> Result<OpenFile, Failure> {
        self.expect_kind(path, FileType::RegularFile)?;
        OpenFile::new(
            path.requested(),
            self.resolve(path.relative(), OFlags::RDONLY),
        )
    }

    /// Opens a folder for listing.
    pub(crate) fn folder(&self, path: &WorkspacePath) -> Result<OwnedFd, Failure> {
        self.expect_kind(path, FileType::Directory)?;
        self.resolve(path.relative(), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|error| Failure::system(path.requested(), "open", error))
    }

    /// The kind of the object that `path` names. Follows symbolic links.
    pub(crate) fn kind(&self, path: &WorkspacePath) -> Result<FileType, Failure> {
        self.kind_of(path.relative())
            .map_err(|error| Failure::system(path.requested(), "open", error))
    }

    /// The kind of the object that a path relative to the root names. Follows symbolic links.
    pub(crate) fn kind_of(&self, relative: &[u8]) -> Result<FileType, Errno> {
        let stat = fstat(self.resolve(relative, OFlags::PATH)?)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    /// Opens the path `name` relative to the open folder `at`.
    pub(crate) fn open_at(
        &self,
        at: impl AsFd,
        name: &[u8],
        flags: OFlags,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        self.resolver.open(at.as_fd(), name, flags, links)
    }

    /// Opens a path relative to the root.
    pub(crate) fn open_below_root(
        &self,
        relative: &[u8],
        flags: OFlags,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        self.open_at(&self.folder, relative, flags, links)
    }

    fn resolve(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_below_root(relative, flags, Links::Follow)
    }

    /// Checks the kind of an object without opening it, since opening a device may have effects.
    fn expect_kind(&self, path: &WorkspacePath, wanted: FileType) -> Result<(), Failure> {
        expect(path.requested(), self.kind(path)?, wanted)
    }
}

impl OpenFile {
    /// Takes the outcome of opening a file whose kind was checked before. Checks the kind again,
    /// since the name may lead to another object by now.
    fn new(requested: &str, opened: Result<OwnedFd, Errno>) -> Result<Self, Failure> {
        let failed = |error| Failure::system(requested, "open", error);
        let fd = opened.map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        expect(requested, kind, FileType::RegularFile)?;
        let file = File::from(fd);
        Ok(Self { file, stat })
    }

    /// Reads the whole file. Returns `None` if it has more than `bytes_max` bytes.
    pub(crate) fn read_whole(
        mut self,
        path: &WorkspacePath,
        bytes_max: usize,
        work: &Work,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let size = usize::try_from(self.stat.st_size).unwrap_or(usize::MAX);
        if size > bytes_max {
            return Ok(None);
        }
        let mut whole = Vec::with_capacity(size.saturating_add(1));
        loop {
            work.check()?;
            let read = (&mut self.file)
                .take(CHUNK_BYTES as u64)
                .read_to_end(&mut whole)
                .map_err(|error| Failure::system(path.requested(), "read", error))?;
            if whole.len() > bytes_max {
                return Ok(None);
            }
            if read == 0 {
                return Ok(Some(whole));
            }
        }
    }
}

fn expect(requested: &str, kind: FileType, wanted: FileType) -> Result<(), Failure> {
    if kind == wanted {
        return Ok(());
    }
    let wanted = match wanted {
        FileType::Directory => "a folder",
        _ => "a regular file",
    };
    Err(Failure::path(
        requested,
        format!("{}, not {wanted}", kind_name(kind)),
    ))
}

/// The name of a kind of object, with its article.
fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "an object of unknown kind",
    }
}
