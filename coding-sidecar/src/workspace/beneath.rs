//! Opens paths such that the opened file is below a folder, even if names are replaced meanwhile.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// The most calls of `openat2` for one path. A call fails with `EAGAIN` if a file was renamed or a
/// file system mounted while the call resolved `..`. The second call nearly always succeeds; the
/// limit applies if a command renames files all the time.
const ATTEMPTS_MAX: usize = 256;

/// Whether symbolic links in a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Links are followed; with [`Resolver::Beneath`], only those that stay below the folder.
    Follow,
    /// A link is an error, `ELOOP`.
    Refuse,
}

/// The rule by which paths are opened.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resolver {
    /// Opens only files below the folder to which a path is relative.
    Beneath,
    /// Opens every file: `SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT=true`.
    Anywhere,
}

impl Resolver {
    /// Returns [`Resolver::Beneath`] after checking that `openat2` is available.
    pub(super) fn beneath(root: BorrowedFd<'_>) -> Result<Self, io::Error> {
        match Self::Beneath.open(root, b".", OFlags::PATH, Links::Follow) {
            Ok(_) => Ok(Self::Beneath),
            // Seccomp profiles that do not list the call make it fail with EPERM.
            Err(Errno::NOSYS | Errno::PERM) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel (Linux 5.6 is needed) or its seccomp profile does not offer openat2, \
                 without which paths cannot be confined to the workspace root; \
                 SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT=true runs without confinement",
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the path `name` relative to `at`. Neither blocks on a FIFO nor acquires a controlling
    /// terminal. With [`Resolver::Anywhere`], `links` applies to the last component only.
    pub(super) fn open(
        self,
        at: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        let flags = if flags.contains(OFlags::PATH) {
            flags | OFlags::CLOEXEC
        } else {
            flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
        };
        match self {
            Self::Beneath => open_beneath(at, name, flags, links),
            Self::Anywhere if links == Links::Refuse => {
                openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty())
            }
            Self::Anywhere => openat(at, name, flags, Mode::empty()),
        }
    }
}

fn open_beneath(
    at: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refuse {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    for _ in 0..ATTEMPTS_MAX {
        match openat2(at, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}
